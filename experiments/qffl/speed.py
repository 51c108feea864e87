"""How fast the solvers of q-FFL are: q-FedAvg, q-FedSGD, and FedSGD with a fixed step (figures 4.4 and 4.10)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

import evenhand as eh
from evenhand.studies import Family, Outcome
from experiments.evidence import Contrast, Finding, Kind, Rival, claims, contrast
from experiments.fairness import picture, write
from experiments.personal.places import clients_of, model_of
from experiments.qffl.data import synthetic

__all__ = ["SOLVERS", "Place", "Runs", "Setting", "draw", "study_speed"]

Place: TypeAlias = Literal["IID", "hybrid", "(1, 1)", "Shakespeare"]
Solver: TypeAlias = Literal["q-FedAvg", "q-FedSGD", "FedSGD"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
Course: TypeAlias = npt.NDArray[np.float64]
"""The training objective at each evaluation."""
Courses: TypeAlias = Mapping[Place, Mapping[Solver, list[Course]]]
"""Place -> solver -> the course of each seed."""
Steps: TypeAlias = dict[Place, dict[Solver, float]]

_INHERITED: tuple[Solver, ...] = ("q-FedAvg", "q-FedSGD")
"""Their step is tuned at q = 0 and kept for every other q."""
_COLORS = {"q-FedAvg": "#0072B2", "q-FedSGD": "#D55E00", "FedSGD": "#999999"}
_LAST = 5
"""Evaluations at the end whose mean is the final objective."""


@dataclass(frozen=True)
class Setting:
    """How the solvers are compared; clients, cohort, epochs and batches are those of the other claims."""

    rounds: int = 500
    """Ours: the figures have no numbers on their axes in our source."""
    eval_every: int = 10
    """Ours."""
    steps: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    """Ours: each solver is tuned over all of them."""
    given_step: float = 0.1
    """Section 4.6.2: the step of q-FedAvg on synthetic data."""
    given_step_shakespeare: float = 0.8
    """Section 4.6.2."""
    q: float = 1.0
    """Table 4.1, synthetic data."""
    q_shakespeare: float = 0.001
    """Table 4.1."""
    tuning: int = 1
    """Seeds that tune, not among those that are reported (ours)."""
    more_seeds: int = 5
    """Further seeds for the rival explanation that the seeds decide (ours)."""
    places: tuple[Place, ...] = get_args(Place)
    """Figure 4.10: IID, half IID, and Synthetic(1, 1); figure 4.4: Synthetic(1, 1) and Shakespeare."""


class Runs(NamedTuple):
    """What the runs have in common with those of the other claims.

    Attributes:
      clients: how many.
      size_sigma: of the sizes of synthetic clients.
      held_out: share of a client's rows for validation, and for testing.
      cohort: clients in each round.
      epochs: of q-FedAvg.
      batch_size: of q-FedAvg.
      seeds: that are reported: 0 and so on.
      data_dir: with shakespeare_speakers.npz.
      folder: name -> the folder that keeps these runs.
    """

    clients: int
    size_sigma: float
    held_out: float
    cohort: int
    epochs: int
    batch_size: int
    seeds: int
    data_dir: Path
    folder: Callable[[str], Path | None]


def study_speed(setting: Setting, runs: Runs, out: Path, config: Mapping[str, Any]) -> Path:
    """Tunes the solvers, runs them, and saves courses, findings and rival explanations; returns the JSON file."""
    tuned: dict[Place, Sequence[Outcome]] = {place: _tuning(place, setting, runs) for place in setting.places}
    steps = {
        "main": _chosen(tuned, setting, inherited=True, early=False),
        "tuning": _chosen(tuned, setting, inherited=False, early=False),
        "selection": _chosen(tuned, setting, inherited=True, early=True),
    }
    steps["given"] = {place: _given(place, chosen, setting) for place, chosen in steps["main"].items()}
    first = range(runs.seeds)
    further = range(runs.seeds + setting.tuning, runs.seeds + setting.tuning + setting.more_seeds)
    courses = {name: _courses(chosen, setting, runs, first) for name, chosen in steps.items()}
    courses["seeds"] = _courses(steps["main"], setting, runs, further)
    content = {
        "steps": steps,
        "places": {place: _summary(courses["main"][place], setting) for place in setting.places},
        "findings": findings(courses, setting),
    }
    path = write(out / "speed.json", content, {**config, **asdict(setting)}, digits=5)
    draw(path)
    return path


# --- the runs -----------------------------------------------------------------------------------------------------


def _data(place: Place, runs: Runs, seed: int) -> eh.data.FederatedDataset:
    """The clients of one seed."""
    if place == "Shakespeare":
        return clients_of("shakespeare", runs.data_dir, seed, runs.clients, 0)
    spread, shared = (None, 0) if place == "IID" else (1.0, runs.clients // 2 if place == "hybrid" else 0)
    return synthetic(spread, runs.clients, runs.size_sigma, runs.held_out, seed, shared=shared)


def _methods(place: Place, runs: Runs) -> dict[Solver, Family]:
    """Each solver as a function of ``q`` and its step."""
    model = (
        model_of("shakespeare")
        if place == "Shakespeare"
        else eh.models.softmax_regression(features=60, classes=10)
    )

    def local_updates(numbers: Mapping[str, Any]) -> eh.Algorithm:
        work = eh.local.sgd(model, numbers["step"], epochs=runs.epochs, batch_size=runs.batch_size)
        return eh.algorithms.qfedavg(work, q=numbers["q"], lipschitz=1 / numbers["step"])

    def gradients(numbers: Mapping[str, Any]) -> eh.Algorithm:
        return eh.algorithms.qfedsgd(model, q=numbers["q"], lipschitz=1 / numbers["step"])

    def fixed_step(numbers: Mapping[str, Any]) -> eh.Algorithm:
        return eh.algorithms.qfedsgd(model, q=numbers["q"], step_size=numbers["step"])

    made = dict(zip(SOLVERS, (local_updates, gradients, fixed_step), strict=True))
    return {solver: Family(("q", "step"), make) for solver, make in made.items()}


def objectives(q: float, run: eh.Run) -> dict[str, float]:
    """``sum_k p_k F_k^(q+1) / (q+1)`` over training and validation rows, and the latter at ``q = 0`` too."""
    values = {}
    for name, split, power in (("train", "train", q), ("valid", "valid", q), ("valid at 0", "valid", 0.0)):
        losses, rows = run.client_metrics(split)["loss"], run.facts.sizes[split]
        values[name] = float(np.sum((rows * losses ** (power + 1))[rows > 0]) / rows.sum() / (power + 1))
    return values


def _study(
    place: Place,
    grid: Mapping[str, Mapping[str, Sequence[float]]],
    seeds: Sequence[int],
    setting: Setting,
    runs: Runs,
) -> list[Outcome]:
    """The runs of one place, whose objectives are measured at each evaluation."""
    study = eh.study(
        {solver: family for solver, family in _methods(place, runs).items() if solver in grid},
        partial(_data, place, runs),
        rounds=setting.rounds,
        seeds=seeds,
        grid=grid,
        cohort=runs.cohort,
        eval_every=setting.eval_every,
        measure=partial(objectives, _power(place, setting)),
        folder=runs.folder(place),
        progress=True,
    )
    if failed := [outcome for outcome in study.outcomes if outcome.status == "failed"]:
        raise SystemExit(f"{failed[0].setting}, seed {failed[0].seed}: {failed[0].reason}")
    return list(study.outcomes)


def _tuning(place: Place, setting: Setting, runs: Runs) -> list[Outcome]:
    """All steps of all solvers on the tuning seeds; those that inherit a step also at ``q = 0``."""
    q = _power(place, setting)
    grid = {
        solver: {"q": [0.0, q] if solver in _INHERITED else [q], "step": list(setting.steps)}
        for solver in SOLVERS
    }
    return _study(place, grid, range(runs.seeds, runs.seeds + setting.tuning), setting, runs)


def _courses(steps: Steps, setting: Setting, runs: Runs, seeds: Sequence[int]) -> Courses:
    """The training objective of each solver with its step, on these seeds."""
    courses: dict[Place, dict[Solver, list[Course]]] = {}
    for place, chosen in steps.items():
        q = _power(place, setting)
        grid = {solver: {"q": [q], "step": [step]} for solver, step in chosen.items()}
        outcomes = _study(place, grid, seeds, setting, runs)
        courses[place] = {
            solver: [outcome.measures["train"] for outcome in outcomes if outcome.setting.method == solver]
            for solver in SOLVERS
        }
    return courses


def _power(place: Place, setting: Setting) -> float:
    """The ``q`` of a place."""
    return setting.q_shakespeare if place == "Shakespeare" else setting.q


# --- which steps, and how fast they are ---------------------------------------------------------------------------


def _chosen(
    tuned: Mapping[Place, Sequence[Outcome]], setting: Setting, *, inherited: bool, early: bool
) -> Steps:
    """The step of each solver with the lowest validation objective on the tuning seeds.

    Args:
      tuned: the runs of all steps.
      setting: has the powers.
      inherited: q-FedAvg and q-FedSGD take the step that is best at ``q = 0``; else that of their own ``q``.
      early: by the mean logarithm over all rounds, which favours fast steps; else by the last evaluations.
    """
    steps: Steps = {}
    for place, outcomes in tuned.items():
        steps[place] = {}
        for solver in SOLVERS:
            at_zero = inherited and solver in _INHERITED
            q, name = (0.0, "valid at 0") if at_zero else (_power(place, setting), "valid")
            steps[place][solver] = best_step(outcomes, solver, q, name, early=early)
    return steps


def _given(place: Place, chosen: Mapping[Solver, float], setting: Setting) -> dict[Solver, float]:
    """The source's step for the solvers that inherit it, in place of ours."""
    step = setting.given_step_shakespeare if place == "Shakespeare" else setting.given_step
    return {**chosen, **dict.fromkeys(_INHERITED, step)}


def best_step(outcomes: Sequence[Outcome], solver: Solver, q: float, name: str, *, early: bool) -> float:
    """The step of a solver with the lowest objective; one that diverges is never chosen.

    Args:
      outcomes: runs of all steps.
      solver: whose step.
      q: of its runs.
      name: of the objective among their measures.
      early: by the mean logarithm over all evaluations; else by the mean of the last ones.
    """
    scores: dict[float, list[float]] = {}
    for outcome in outcomes:
        numbers = outcome.setting.numbers
        if outcome.setting.method == solver and numbers["q"] == q:
            course = outcome.measures[name]
            score = float(np.mean(np.log(course)) if early else np.mean(course[-_LAST:]))
            scores.setdefault(numbers["step"], []).append(score)
    return min(scores, key=lambda step: _finite(float(np.mean(scores[step]))))


def rounds_to_meet(courses: Mapping[Solver, Course], every: int) -> dict[Solver, float]:
    """The rounds that each solver needs to reach the highest of their final objectives.

    Args:
      courses: the objective at each evaluation; between two of them it is interpolated.
      every: rounds between two evaluations.
    """
    finals = {solver: _finite(float(np.mean(course[-_LAST:]))) for solver, course in courses.items()}
    target = max(final for final in finals.values() if final < np.inf)
    return {solver: every * _crossing(course, target) for solver, course in courses.items()}


def _crossing(course: Course, target: float) -> float:
    """Where a course first comes down to the target; at its end if it never does, as after a divergence."""
    reached = np.flatnonzero(course <= target)
    if not len(reached):
        return float(len(course) - 1)
    after = int(reached[0])
    if after == 0 or not np.isfinite(course[after - 1]):
        return float(after)
    return after - float((target - course[after]) / (course[after - 1] - course[after]))


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.inf


def _summary(courses: Mapping[Solver, list[Course]], setting: Setting) -> dict[str, Any]:
    """The mean course of each solver for the figure, and what each seed came to."""
    meeting = [rounds_to_meet(each, setting.eval_every) for each in _by_seed(courses)]
    return {
        solver: {
            "course": np.mean(each, axis=0).tolist(),
            "seeds": [
                {"final": float(np.mean(course[-_LAST:])), "rounds": counts[solver]}
                for course, counts in zip(each, meeting, strict=True)
            ],
        }
        for solver, each in courses.items()
    }


def _by_seed(courses: Mapping[Solver, list[Course]]) -> list[dict[Solver, Course]]:
    """The courses of all solvers, seed by seed."""
    return [dict(zip(courses, each, strict=True)) for each in zip(*courses.values(), strict=True)]


# --- what is found ------------------------------------------------------------------------------------------------


class _Claim(NamedTuple):
    """A claim of a figure: how many more rounds one solver needs than another, or how that grows with heterogeneity."""

    sentence: str
    ours: Solver
    theirs: Solver
    place: Place
    beyond: Place | None = None


_CLAIMS: Mapping[str, _Claim] = {
    "Shakespeare": _Claim(
        "On Shakespeare, the rounds that q-FedAvg needs to reach the higher of the two final objectives differ from "
        "those of q-FedSGD by {}.",
        "q-FedAvg",
        "q-FedSGD",
        "Shakespeare",
    ),
    "IID": _Claim(
        "On IID data, the rounds that q-FedAvg needs to reach the higher of the two final objectives differ from "
        "those of q-FedSGD by {}.",
        "q-FedAvg",
        "q-FedSGD",
        "IID",
    ),
    "synthetic": _Claim(
        "On Synthetic(1, 1), the rounds that q-FedAvg needs to reach the higher of the two final objectives differ "
        "from those of q-FedSGD by {}.",
        "q-FedAvg",
        "q-FedSGD",
        "(1, 1)",
    ),
    "fixed step": _Claim(
        "On Synthetic(1, 1), the rounds that q-FedSGD, tuned at q = 0, needs to reach the higher of the two final "
        "objectives differ from those of FedSGD, tuned at q = 1, by {}.",
        "q-FedSGD",
        "FedSGD",
        "(1, 1)",
    ),
    "heterogeneity": _Claim(
        "From IID to Synthetic(1, 1), the rounds that q-FedAvg needs beyond those of q-FedSGD change by {}.",
        "q-FedAvg",
        "q-FedSGD",
        "(1, 1)",
        beyond="IID",
    ),
}

_RIVALS: Mapping[str, tuple[Kind, str, str]] = {
    "tuning": (
        "tuning",
        "a step tuned at q = 0 does not suit q > 0",
        "all solvers tuned at q > 0, over the same steps",
    ),
    "given": (
        "tuning",
        "the range of steps is wider than the paper's",
        "q-FedAvg and q-FedSGD with the paper's step, 0.1 or, on Shakespeare, 0.8",
    ),
    "seeds": ("seeds", "the five seeds are special", "five further seeds, with the same steps"),
    "selection": (
        "selection",
        "steps chosen by the final objective are slow at first",
        "steps chosen by the mean log objective over all rounds",
    ),
}


def findings(courses: Mapping[str, Courses], setting: Setting) -> dict[str, Any]:
    """The findings on both figures, each with its rival explanations.

    Args:
      courses: those of the comparison, "main", and of the runs that test other explanations of it.
      setting: has the rounds between two evaluations.
    """
    saved = {}
    for key, claim in _CLAIMS.items():
        if {claim.place, claim.beyond or claim.place} <= set(setting.places):
            finding = Finding(
                claim.sentence, _difference(claim, courses["main"], setting), "rounds", digits=0
            )
            rivals = [
                Rival(*words, _difference(claim, courses[name], setting)) for name, words in _RIVALS.items()
            ]
            saved[key] = claims(finding, rivals)
    return saved


def _difference(claim: _Claim, courses: Courses, setting: Setting) -> Contrast:
    """The difference that a claim is about, in rounds, over the seeds of these courses."""
    here = _behind(claim, courses[claim.place], setting)
    there = [0.0] * len(here) if claim.beyond is None else _behind(claim, courses[claim.beyond], setting)
    return contrast([{"rounds": count} for count in here], [{"rounds": count} for count in there], "rounds")


def _behind(claim: _Claim, courses: Mapping[Solver, list[Course]], setting: Setting) -> list[float]:
    """By how many rounds the first solver of a claim is behind the second, at each seed."""
    counts = [
        rounds_to_meet({claim.ours: ours, claim.theirs: theirs}, setting.eval_every)
        for ours, theirs in zip(courses[claim.ours], courses[claim.theirs], strict=True)
    ]
    return [seed[claim.ours] - seed[claim.theirs] for seed in counts]


def draw(path: Path) -> Path:
    """A panel per place with the mean objective over the rounds, from the JSON file; the PNG lies beside it."""
    content = json.loads(path.read_text())
    every, places = content["config"]["eval_every"], content["places"]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2.4 * len(places) + 0.6, 2.6), layout="constrained")
        panels = figure.subplots(1, len(places), squeeze=False)[0]
        for axis, (place, solvers) in zip(panels, places.items(), strict=True):
            for solver, saved in solvers.items():
                rounds = every * np.arange(len(saved["course"]))
                style = "--" if solver == "FedSGD" else "-"
                axis.plot(rounds, saved["course"], style, color=_COLORS[solver], lw=1.3, label=solver)
            axis.set_yscale("log")
            axis.set_title(place, fontsize=9)
            axis.set_xlabel("round")
        panels[0].set_ylabel("training objective")
        panels[-1].legend(frameon=False, fontsize=8)
        return picture(figure, path.with_suffix(".png"))
