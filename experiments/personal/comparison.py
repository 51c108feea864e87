"""Methods at the numbers that validation rows choose, all with the same effort, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import evenhand as eh
from evenhand.report import statistics
from evenhand.studies import Family, Outcome
from experiments.fairness import Measures
from experiments.personal.methods import Candidates
from experiments.robust.breakdown import accuracy

__all__ = ["Found", "Runs", "compared", "shown"]

Found = dict[str, dict[str, Any]]
"""Method -> ``"chosen"``, its numbers; ``"seeds"``, what it came to at each; ``"valid"``, the sweep."""


class Runs(NamedTuple):
    """What all runs of a comparison have in common.

    Attributes:
      data: the clients of a seed.
      seeds: how many, from ``first``.
      tuning: how many further ones choose the numbers.
      rates: step sizes that each method chooses from.
      rounds: of each run.
      cohort: clients of a round; None: the methods draw their cohorts themselves.
      attack: what malicious clients do.
      folder: keeps each run.
      everybody: also tell how well malicious clients are served.
      first: the first seed.
      select: the split and the statistic over clients that choose the numbers.
    """

    data: Callable[[int], eh.data.FederatedDataset]
    seeds: int
    tuning: int
    rates: Sequence[float]
    rounds: int
    cohort: int | None
    attack: eh.types.Attack | None = None
    folder: Path | None = None
    everybody: bool = False
    first: int = 0
    select: tuple[str, str] = ("valid", "mean")


def compared(every: Mapping[str, Candidates], runs: Runs) -> Found:
    """Each method at its best numbers by validation accuracy of honest clients; a run that fails serves nobody."""
    grids = {label: _grid(runs, each) for label, each in every.items()}
    chooses = any(len(values) > 1 for grid in grids.values() for values in grid.values())
    study = eh.study(
        {label: Family(("rate", *each.grid), each.make) for label, each in every.items()},
        runs.data,
        rounds=runs.rounds,
        seeds=range(runs.first, runs.first + runs.seeds),
        tuning_seeds=runs.tuning if chooses else None,
        select=runs.select,
        grid=grids,
        baseline=next(iter(every)),
        cohort=runs.cohort,
        eval_every=runs.rounds,
        attack=runs.attack,
        folder=runs.folder,
        progress=True,
    )
    found: Found = {}
    for label in every:
        outcomes = [outcome for outcome in study.outcomes if outcome.setting.method == label]
        tuning = [outcome for outcome in outcomes if not chooses or outcome.seed in study.tuning_seeds]
        chosen = study.best(label)
        found[label] = {
            "chosen": dict(chosen.numbers),
            "seeds": [
                _served(outcome, runs.everybody)
                for outcome in outcomes
                if outcome.seed < runs.first + runs.seeds and outcome.setting == chosen
            ],
            "valid": _swept(tuning),
        }
    return found


def shown(title: str, found: Found) -> None:
    """Prints a line for each method."""
    print(title)
    for label, each in found.items():
        seeds: list[Measures] = each["seeds"]
        mean, std = (np.mean([one[what] for one in seeds]) for what in ("mean", "std"))
        print(f"  {label:28} {mean:5.1f} (std over clients {std:4.1f})  {each['chosen']}", flush=True)


def _grid(runs: Runs, each: Candidates) -> dict[str, list[Any]]:
    return {"rate": list(runs.rates), **{name: list(values) for name, values in each.grid.items()}}


def _swept(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Setting -> the mean of the validation accuracies of honest clients, over clients and seeds."""
    by_setting: dict[str, list[float]] = {}
    for each in outcomes:
        by_setting.setdefault(str(dict(each.setting.numbers)), []).append(_of(each, "valid")["mean"])
    return {setting: float(np.mean(values)) for setting, values in by_setting.items()}


def _served(outcome: Outcome, everybody: bool) -> Measures:
    served = _of(outcome, "test")
    if everybody and outcome.view is not None:
        return {**served, "everybody": 100.0 * float(statistics(outcome.view, "test", "accuracy")["mean"])}
    return served


def _of(outcome: Outcome, split: str) -> Measures:
    """As :func:`accuracy`, and 0 where personal models did not stay finite, at which a run ends."""
    if outcome.status == "failed" and "not finite" in outcome.reason:
        return {"mean": 0.0, "std": 0.0, "worst10": 0.0}
    return accuracy(outcome, split)
