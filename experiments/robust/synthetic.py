"""RFA on synthetic label shift, beside another implementation: from which corruption on does which start fail?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import evenhand as eh
from evenhand import aggregators, attacks
from evenhand.report import statistics
from experiments.delta_fl.data import clients

__all__ = ["ANCHORS", "RULES", "Setup", "table"]

RULES: Mapping[str, eh.types.Aggregator] = {
    "mean": aggregators.mean(),
    "from the mean, 2 iterations": aggregators.geometric_median(3, start="mean"),
    "from the mean, 5 iterations": aggregators.geometric_median(6, start="mean"),
    "one step from zero": aggregators.geometric_median(1),
    "from zero, 3 iterations": aggregators.geometric_median(3),
}

ANCHORS: Mapping[str, tuple[float, ...]] = {
    "none": (75.3, 75.1, 75.1, 75.1, 75.1),
    "labels 7y+1, 10": (73.6, 75.1, 75.1, 75.1, 75.1),
    "labels 7y+1, 25": (69.1, 73.8, 73.9, 73.8, 73.9),
    "labels 7y+1, 45": (49.5, 59.5, 60.8, 61.7, 61.1),
    "features -x, 10": (74.8, 75.2, 75.2, 75.2, 75.2),
    "features -x, 25": (73.6, 74.9, 74.9, 74.9, 74.9),
    "omniscient 10": (0.1, 72.9, 73.0, 72.9, 73.0),
    "omniscient 25": (0.1, 65.5, 67.3, 67.3, 67.4),
}
"""Attack -> what another implementation found for each of the rules; the paper has no table."""


class Setup(NamedTuple):
    """What all runs have in common.

    Attributes:
      clients: how many there are, with 100 examples each.
      cohort: clients of a round.
      rounds: how many, for every rule.
    """

    clients: int
    cohort: int
    rounds: int

    def data(self, seed: int) -> eh.data.FederatedDataset:
        """The clients of a seed."""
        shape = {"clients": self.clients, "strangers": 1, "rows": 100, "alpha": 0.5, "stranger_alpha": 0.5}
        return clients("synthetic", Path(), seed, **shape)[0]


def table(setup: Setup, seeds: int, folder: Path | None) -> dict[str, dict[str, list[float]]]:
    """Attack -> rule -> accuracy on the clean training examples of all clients, in percent for each seed."""
    model = eh.models.softmax_regression(features=20, classes=10)
    work = eh.local.sgd(model, 0.05, steps=5, batch_size=100)
    study = eh.study(
        {name: eh.algorithms.fedavg(work, aggregator=rule) for name, rule in RULES.items()},
        setup.data,
        rounds=setup.rounds,
        seeds=seeds,
        cohort=setup.cohort,
        eval_every=setup.rounds,
        attack=_corruptions(),
        baseline="mean",
        folder=folder,
        progress=True,
    )
    found: dict[str, dict[str, list[float]]] = {}
    for each in study.outcomes:
        told: Any = None if each.view is None else statistics(each.view, "train", "accuracy")["mean"]
        if told is None:
            raise SystemExit(f"{each.setting}, seed {each.seed}: {each.reason}")
        of = found.setdefault(each.setting.case["attack"], {})
        of.setdefault(each.setting.method, []).append(100.0 * float(np.nan_to_num(told)))
    return found


def _corruptions() -> dict[str, eh.types.Attack | None]:
    relabelled = tuple((7 * y + 1) % 10 for y in range(10))
    return {
        "none": None,
        **{f"labels 7y+1, {100 * part:.0f}": attacks.relabel(part, relabelled) for part in (0.1, 0.25, 0.45)},
        **{f"features -x, {100 * part:.0f}": attacks.negative(part, highest=0.0) for part in (0.1, 0.25)},
        **{f"omniscient {100 * part:.0f}": attacks.omniscient(part) for part in (0.1, 0.25)},
    }
