"""A table of private methods, each at the setting that validation rows choose, and the file that keeps it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

import evenhand as eh
from evenhand import privacy
from evenhand.report import statistics
from evenhand.studies import Family, Outcome, Rule
from experiments.fairness import write

__all__ = [
    "BY_ERROR",
    "Candidate",
    "Numbers",
    "Runs",
    "earlier",
    "error",
    "save",
    "spent",
    "stepping",
    "study",
    "valid",
    "wanted",
]

Numbers = Mapping[str, Any]

BY_ERROR = Rule("valid", "mean", metric="squared_error")


class Candidate(NamedTuple):
    """A method, and what is tried of it."""

    make: Callable[[Numbers], eh.local.Work]
    grid: Mapping[str, Sequence[Any]]


class Runs(NamedTuple):
    """What all runs of a table have in common.

    Attributes:
      data: one client; or a function of the seed.
      seeds: 0 and so on.
      tuning: how many further ones choose the settings.
      select: how they do.
      folder: keeps each run.
      measure: as for :func:`evenhand.study`.
    """

    data: Any
    seeds: int
    tuning: int
    select: Rule = Rule("valid", "mean")
    folder: Path | None = None
    measure: Callable[[Any], Mapping[str, float]] | None = None


def study(name: str, each: Candidate, runs: Runs) -> tuple[Numbers, list[Outcome], list[Outcome]]:
    """A method's best setting by validation rows, what chose it, and what came of it with the other seeds.

    A method with a single setting is not tuned.
    """
    chooses = any(len(values) > 1 for values in each.grid.values())
    found = eh.study(
        {name: Family(tuple(each.grid), lambda n: eh.algorithms.alone(each.make(n)))},
        runs.data,
        rounds=1,
        eval_every=1,
        seeds=runs.seeds,
        tuning_seeds=runs.tuning if chooses else None,
        grid={name: {key: list(values) for key, values in each.grid.items()}},
        select=runs.select,
        measure=runs.measure,
        folder=runs.folder and runs.folder / name.replace(" ", "_"),
    )
    tuning = [outcome for outcome in found.outcomes if outcome.seed in found.tuning_seeds]
    reported = [outcome for outcome in found.outcomes if outcome.seed not in found.tuning_seeds]
    if not reported:
        found.best(name)  # a sentence on why no setting was chosen
    return reported[0].setting.numbers, tuning, reported


def valid(tuning: Iterable[Outcome], score: Callable[[Outcome, str], float]) -> dict[str, float]:
    """Setting -> its score on the validation rows that chose."""
    return {str(dict(outcome.setting.numbers)): score(outcome, "valid") for outcome in tuning}


def stepping(
    rule: Callable[..., optax.GradientTransformation], step_size: float, **settings: Any
) -> optax.GradientTransformation:
    """An optimiser with its step size in its state, so that runs with several of them are one compiled program."""
    return optax.inject_hyperparams(lambda step_size: rule(step_size, **settings))(step_size=step_size)


def error(outcome: Outcome, split: str) -> float:
    """The mean squared error; a large number, 1e6, where the model is not finite."""
    if outcome.status == "failed" or outcome.seen is None:
        raise SystemExit(f"{outcome.setting}, seed {outcome.seed}: {outcome.reason}")
    found = float(statistics(outcome.seen, split, "squared_error")["mean"])
    return found if np.isfinite(found) else 1e6


def spent(work: eh.local.Work, *, units: int, delta: float) -> dict[str, Any]:
    """The epsilon of a run, and the releases that it follows from."""
    promise = work.privacy
    assert promise is not None
    found = privacy.account(promise, rounds=1, units=units, delta=delta)
    return {"epsilon": found.epsilon, "delta": found.delta, "releases": [r._asdict() for r in found.releases]}


def wanted(every: Iterable[str], names: Sequence[str]) -> Sequence[str]:
    """The methods to run, or parts of an experiment: those with these names, or all."""
    known = list(every)
    strange = [name for name in names if name not in known]
    if strange:
        raise SystemExit(f"there is no {', '.join(map(repr, strange))} here: choose from {', '.join(known)}.")
    return names or known


def earlier(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a file has of all methods or parts, where only some of them are run again; else nothing."""
    if not (config.get("methods") or config.get("parts")) or not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text())
    if _settings(content["config"]) != _settings(config):
        raise SystemExit(
            f"{path} has numbers of other settings, beside which these do not belong: give another --out."
        )
    return content


def save(path: Path, content: Mapping[str, Any], config: Mapping[str, Any], digits: int = 4) -> None:
    """Writes the numbers of the experiment that the file is named after, with the command for all of it."""
    told = {name: value for name, value in config.items() if name not in ("methods", "parts")}
    command = shlex.join(["python", "-m", f"experiments.private.{path.stem}", *_for_all(sys.argv[1:])])
    write(path, {"command": command, **content}, told, digits=digits)


def _settings(config: Mapping[str, Any]) -> Any:
    """What numbers depend on."""
    apart = {"methods", "parts", "data_dir", "out", "folder", "chosen"}
    kept = {
        name: _settings(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in apart
    }
    return json.loads(json.dumps(kept, default=str))


def _for_all(options: Sequence[str]) -> list[str]:
    """The same without a choice of methods or parts."""
    words, kept = iter(options), list[str]()
    for word in words:
        chosen = word in ("--methods", "--parts")
        given = next((each for each in words if each.startswith("--")), "") if chosen else word
        kept += [given] if given else []
    return kept
