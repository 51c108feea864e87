"""Private methods over budgets, each at the settings that validation rows choose for that budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import evenhand as eh
from evenhand import privacy
from evenhand.studies import Family, Outcome
from experiments.fairness import Measures
from experiments.private.clients import Place, served
from experiments.private.rivals import Rival

__all__ = ["Found", "Runs", "over_budgets"]

Found = dict[str, dict[str, Any]]
"""Budget -> what it came to: ``"chosen"``, ``"seeds"``, ``"valid"``, ``"noise"`` and ``"epsilon"``."""


class Runs(NamedTuple):
    """What all runs of a comparison have in common.

    Attributes:
      place: the clients of a seed, and how they are measured.
      rounds: of each run.
      units: how many clients, or rows, are protected.
      delta: of the promise.
      seeds: 0 and so on.
      tuning: how many further ones choose the settings.
      best: the measure on validation rows that chooses: the larger the better, with a minus sign the smaller.
      folder: keeps each run.
    """

    place: Callable[[int], Place]
    rounds: int
    units: int
    delta: float
    seeds: int
    tuning: int
    best: str
    folder: Path | None = None


def over_budgets(name: str, rival: Rival, epsilons: Sequence[float], runs: Runs) -> Found:
    """A method at each epsilon: six settings on the tuning seeds, and the best of them on the others."""
    noises = {f"{epsilon:g}": rival.noise(epsilon) for epsilon in epsilons}
    study = partial(_study, runs, rival.cohort)

    def titled(budget: str) -> str:
        return f"{name}, epsilon {budget}"

    tuned = study(
        {titled(at): Family(tuple(rival.grid), partial(rival.make, noise)) for at, noise in noises.items()},
        seeds=range(runs.seeds, runs.seeds + runs.tuning),
        grid={titled(at): {key: list(values) for key, values in rival.grid.items()} for at in noises},
        folder=runs.folder and runs.folder / name / "tuning",
    )
    swept = {at: _swept(_of(tuned, titled(at)), runs.best) for at in noises}
    chosen = {at: max(tried, key=lambda each: each[1])[0] for at, tried in swept.items()}
    final = study(
        {
            titled(at): Family((), partial(_fixed, partial(rival.make, noise, chosen[at])))
            for at, noise in noises.items()
        },
        seeds=range(runs.seeds),
        grid=None,
        folder=runs.folder and runs.folder / name / f"final, {runs.best.lstrip('-')}",
    )
    return {
        at: {
            "chosen": dict(chosen[at]),
            "noise": noise,
            "epsilon": _spent(rival.make(noise, chosen[at]), runs),
            "seeds": [_tested(outcome) for outcome in _of(final, titled(at))],
            "valid": {str(dict(numbers)): value for numbers, value in swept[at]},
        }
        for at, noise in noises.items()
    }


def _study(
    runs: Runs, cohort: int | None, methods: Any, *, seeds: Any, grid: Any, folder: Any
) -> eh.studies.Study:
    return eh.study(
        methods,
        lambda seed: runs.place(seed).data,
        rounds=runs.rounds,
        seeds=seeds,
        grid=grid,
        select=("train", "mean"),
        cohort=cohort,
        eval_every=runs.rounds,
        measure=lambda run: served(runs.place(run.seed), run),
        folder=folder,
        progress=True,
    )


def _fixed(make: Callable[[], eh.Algorithm], _: Mapping[str, Any]) -> eh.Algorithm:
    return make()


def _of(study: eh.studies.Study, title: str) -> list[Outcome]:
    return [outcome for outcome in study.outcomes if outcome.setting.method == title]


def _told(outcome: Outcome) -> Measures:
    if outcome.status == "failed":
        raise SystemExit(f"{outcome.setting}, seed {outcome.seed}: {outcome.reason}")
    return {what: float(values[-1]) for what, values in outcome.measures.items()}


def _tested(outcome: Outcome) -> Measures:
    return {what: value for what, value in _told(outcome).items() if what.startswith("test_")}


def _swept(outcomes: Sequence[Outcome], best: str) -> list[tuple[Mapping[str, Any], float]]:
    """Each setting with the mean of the measure over the tuning seeds."""
    sign, measure = (-1.0 if best.startswith("-") else 1.0), best.lstrip("-")
    by_setting: dict[str, list[Outcome]] = {}
    for each in outcomes:
        by_setting.setdefault(str(each.setting), []).append(each)
    return [
        (part[0].setting.numbers, sign * float(np.mean([_told(each)[measure] for each in part])))
        for part in by_setting.values()
    ]


def _spent(method: eh.Algorithm, runs: Runs) -> float:
    assert method.privacy is not None
    found = privacy.account(method.privacy, rounds=runs.rounds, units=runs.units, delta=runs.delta)
    return found.epsilon
