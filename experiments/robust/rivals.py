"""The robust rivals of Ditto under its attacks A1 to A3, on stand-ins for its Fashion MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import evenhand as eh
from evenhand import aggregators, attacks
from evenhand.studies import Family
from experiments.fairness import Measures
from experiments.robust.breakdown import accuracy
from experiments.robust.data import Deal, mnist

__all__ = ["LEVELS", "PAPER", "Rivals", "table"]

LEVELS: Mapping[str, tuple[float, ...]] = {
    "A1": (0.2, 0.5, 0.8),
    "A2": (0.2, 0.5, 0.8),
    "A3": (0.1, 0.2, 0.5),
}
"""Attack -> shares of malicious devices (Ditto, table 9)."""

PAPER: Mapping[str, tuple[float, ...]] = {
    "global": (91.1, 89.7, 85.5, 75.3, 90.0, 88.2, 85.7, 75.3, 55.1, 27.5),
    "median": (88.4, 85.3, 81.8, 60.6, 88.5, 88.3, 86.4, 85.6, 82.9, 72.5),
    "Krum": (83.8, 86.4, 81.8, 76.8, 84.7, 87.0, 80.5, 86.8, 86.6, 64.0),
    "multi-Krum": (91.1, 90.7, 88.9, 79.3, 84.9, 82.7, 9.5, 80.4, 86.0, 82.3),
    "clipping": (91.3, 90.5, 87.5, 75.3, 90.4, 88.6, 85.6, 90.1, 84.4, 47.7),
    "k-norm": (91.1, 90.8, 88.8, 11.8, 90.6, 89.3, 9.6, 76.5, 85.4, 82.8),
    "k-loss": (89.8, 85.6, 86.1, 85.1, 87.6, 86.6, 87.0, 53.8, 25.7, 9.2),
}
"""Fashion MNIST, 500 devices: accuracy without attack, and at the levels of A1, A2 and A3 (table 9)."""


class Rivals(NamedTuple):
    """What all runs have in common.

    Attributes:
      data_dir: folder with mnist.npz.
      deal: how the digits are dealt.
      clients: how many there are.
      images: of all clients.
      cohort: clients of a round.
      rounds: how many.
      rates: step sizes, of which validation images of honest clients choose one for each rule and attack.
    """

    data_dir: Path
    deal: Deal
    clients: int
    images: int
    cohort: int
    rounds: int
    rates: tuple[float, ...]


def table(setup: Rivals, seeds: int, folder: Path | None) -> dict[str, dict[str, list[Measures]]]:
    """Attack and level -> rule -> mean accuracy, and its spread over honest devices, in percent for each seed."""
    found: dict[str, dict[str, list[Measures]]] = {}
    for level in sorted({level for levels in LEVELS.values() for level in levels}):
        named = {
            name: attack for name, attack in _attacks(level, setup.cohort).items() if level in LEVELS[name]
        }
        known: dict[str, eh.types.Attack | None] = {
            f"{name} {100 * level:.0f}": each for name, each in named.items()
        }
        if level == 0.2:
            known["clean"] = None
        rules = _rules(int(setup.cohort * level))
        study = eh.study(
            {name: Family(("rate",), partial(_method, rule)) for name, rule in rules.items()},
            partial(mnist, setup.data_dir, deal=setup.deal, clients=setup.clients, images=setup.images),
            rounds=setup.rounds,
            seeds=seeds,
            grid={"rate": list(setup.rates)},
            cohort=setup.cohort,
            eval_every=setup.rounds,
            attack=known,
            baseline="global",
            folder=folder and folder / f"{setup.deal.replace(' ', '_')}_{100 * level:.0f}",
            progress=True,
        )
        for name in known:
            part = [each for each in study.outcomes if each.setting.case["attack"] == name]
            found[name] = {
                rule: _best([each for each in part if each.setting.method == rule]) for rule in rules
            }
    return found


def _best(outcomes: Sequence[eh.studies.Outcome]) -> list[Measures]:
    """Of each seed, at the step size with the best mean of the validation accuracies of honest devices."""
    by_rate: dict[float, list[eh.studies.Outcome]] = {}
    for each in outcomes:
        by_rate.setdefault(each.setting.numbers["rate"], []).append(each)
    valid = {
        rate: np.mean([accuracy(each, "valid")["mean"] for each in part]) for rate, part in by_rate.items()
    }
    return [accuracy(each, "test") for each in by_rate[max(valid, key=lambda rate: valid[rate])]]


def _method(rule: eh.types.Aggregator, numbers: Mapping[str, float]) -> eh.Algorithm:
    model = eh.models.softmax_regression(features=196, classes=10)
    work = eh.local.sgd(model, numbers["rate"], epochs=1, batch_size=10)
    return eh.algorithms.fedavg(work, aggregator=rule, sampling=eh.sampling.uniform(weighted=False))


def _rules(malicious: int) -> dict[str, eh.types.Aggregator]:
    """Unweighted, as in the paper; ``malicious`` is the number of malicious devices in a round, rounded down."""
    return {
        "global": aggregators.mean(),
        "median": aggregators.coordinate_median(),
        "Krum": aggregators.krum(malicious),
        "multi-Krum": aggregators.multi_krum(malicious),
        "clipping": aggregators.clip(),
        "k-norm": aggregators.norm_filter(malicious),
        "k-loss": aggregators.loss_filter(malicious),
        "geometric median": aggregators.geometric_median(5),
    }


def _attacks(fraction: float, cohort: int) -> dict[str, eh.types.Attack]:
    """The labels of malicious devices are wrong under all three, as in the authors' code."""
    poisoned = attacks.uniform_labels(fraction, classes=10)
    return {
        "A1": poisoned,
        "A2": attacks.both(poisoned, attacks.gaussian(fraction)),
        "A3": attacks.both(poisoned, attacks.model_replacement(fraction, boost=float(cohort))),
    }
