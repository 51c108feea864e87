"""Private methods at the settings that validation rows choose, all with the same effort."""

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
from evenhand.studies import Family, Outcome
from experiments.fairness import write

__all__ = [
    "Candidate",
    "Found",
    "Numbers",
    "Runs",
    "earlier",
    "error",
    "save",
    "spent",
    "stepping",
    "tuned",
    "wanted",
]

Numbers = Mapping[str, Any]


class Candidate(NamedTuple):
    """A method, and what is tried of it."""

    make: Callable[[Numbers], eh.local.Work]
    grid: Mapping[str, Sequence[Any]]


class Runs(NamedTuple):
    """What all runs of an experiment have in common.

    Attributes:
      data: one client; or a function of the seed.
      seeds: 0 and so on.
      tuning: how many further ones choose the settings.
      score: ``(outcome, split) -> number``, what settings are chosen by.
      best: ``max`` where larger scores are better, else ``min``.
      folder: keeps each run.
      measure: as for :func:`evenhand.study`.
    """

    data: Any
    seeds: int
    tuning: int
    score: Callable[[Outcome, str], float]
    best: Callable[..., Outcome] = max
    folder: Path | None = None
    measure: Callable[[Any], Mapping[str, float]] | None = None


class Found(NamedTuple):
    """What came of a method.

    Attributes:
      chosen: its best setting.
      valid: setting -> its score on validation rows.
      outcomes: the best setting's, one for each seed.
    """

    chosen: Numbers
    valid: dict[str, float]
    outcomes: Sequence[Outcome]


def tuned(name: str, each: Candidate, runs: Runs) -> Found:
    """A method at its best setting by validation rows, run again with the other seeds; a single one is not tuned."""
    at = runs.folder and runs.folder / name.replace(" ", "_")
    how: dict[str, Any] = {"rounds": 1, "eval_every": 1, "select": ("valid", "mean"), "measure": runs.measure}
    best, valid = _single(each), {}
    if best is None:
        family = Family(tuple(each.grid), lambda n: eh.algorithms.alone(each.make(n)))
        tried = eh.study(
            {name: family},
            runs.data,
            seeds=range(runs.seeds, runs.seeds + runs.tuning),
            grid={name: {key: list(values) for key, values in each.grid.items()}},
            folder=at and at / "tuning",
            **how,
        )
        valid = {str(dict(o.setting.numbers)): runs.score(o, "valid") for o in tried.outcomes}
        best = runs.best(tried.outcomes, key=lambda o: runs.score(o, "valid")).setting.numbers
    fixed = Family((), lambda _: eh.algorithms.alone(each.make(best)))
    # Step sizes in an optimiser's state do not tell runs apart: each setting has a folder of its own.
    final = at and at / "-".join(["final", *(f"{key}={value}" for key, value in best.items())])
    again = eh.study({name: fixed}, runs.data, seeds=runs.seeds, folder=final, **how)
    return Found(best, valid, again.outcomes)


def _single(each: Candidate) -> Numbers | None:
    """The setting of a method that has no other."""
    if any(len(values) > 1 for values in each.grid.values()):
        return None
    return {key: values[0] for key, values in each.grid.items()}


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
