"""The map: every aggregator against every attack, at several shares of malicious clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import evenhand as eh
from evenhand.report import statistics
from evenhand.studies import Family
from experiments.robust.data import mnist
from experiments.robust.rules import SCALED, STRONGEST, Scaled, against, rules, threats

__all__ = ["Cells", "Map", "accuracy", "cells", "tuned"]

Cells = dict[str, dict[str, dict[str, list[float]]]]
"""Rule -> attack -> ``"mean"``, ``"std"`` and ``"worst10"`` -> percent for each seed."""

CLASSES = 10
TUNED_UNDER = ("none", "label flip", "sign flip", "ALIE")
"""No attack, and one each on examples, by single clients and by a coalition."""


class Map(NamedTuple):
    """What all runs of the map have in common; without names of rules, or of attacks, there are all of them."""

    data_dir: Path
    clients: int
    images: int
    alpha: float
    rounds: int
    batch_size: int
    rules: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()

    def known(self, malicious: int) -> dict[str, Scaled]:
        """The rules; the mean, to which the others are compared, is always one of them."""
        every = rules(malicious, self.clients)
        return {name: every[name] for name in every if name in ("mean", *(self.rules or every))}

    def threats(self, fraction: float) -> dict[str, eh.types.Attack | None]:
        """The attacks, by this share of the clients."""
        every = threats(fraction, CLASSES)
        return {name: every[name] for name in self.attacks or every if name in every}

    def data(self, seed: int) -> eh.data.FederatedDataset:
        """The clients of a seed."""
        return mnist(
            self.data_dir,
            seed,
            deal="dirichlet",
            clients=self.clients,
            images=self.images,
            alpha=self.alpha,
        )

    def method(self, rule: eh.types.Aggregator, rate: float) -> eh.Algorithm:
        """Federated averaging of softmax regression with this rule."""
        model = eh.models.softmax_regression(features=196, classes=CLASSES)
        work = eh.local.sgd(model, rate, epochs=1, batch_size=self.batch_size)
        return eh.algorithms.fedavg(work, aggregator=rule)

    def study(self, methods: Any, seeds: Any, folder: Path | None, **given: Any) -> eh.studies.Study:
        """The runs of these methods."""
        return eh.study(
            methods,
            self.data,
            rounds=self.rounds,
            seeds=seeds,
            eval_every=self.rounds,
            folder=folder,
            progress=True,
            **given,
        )


def tuned(
    setup: Map, fraction: float, rates: tuple[float, ...], lengths: tuple[float, ...], seeds: Any, folder: Any
) -> dict[str, dict[str, float]]:
    """Rule -> the step size, and the length where it has one, with the best validation accuracy of honest clients.

    That is the mean over ``TUNED_UNDER``, by ``fraction`` of the clients.
    """
    malicious, all_threats = round(fraction * setup.clients), threats(fraction, CLASSES)
    few = {name: all_threats[name] for name in TUNED_UNDER if name in (setup.attacks or TUNED_UNDER)}
    known = setup.known(malicious)

    def family(name: str) -> Family:
        make = known[name]
        return Family(
            ("rate", "length") if name in SCALED else ("rate",),
            lambda numbers: setup.method(make(numbers.get("length", 1.0)), numbers["rate"]),
        )

    scaled = [name for name in SCALED if name in known]
    grid: dict[str, Any] = {"rate": list(rates)} | {name: {"length": list(lengths)} for name in scaled}
    study = setup.study(
        {name: family(name) for name in known}, seeds, folder, grid=grid, attack=few, baseline="mean"
    )
    found: dict[str, dict[tuple[tuple[str, float], ...], list[float]]] = {}
    for each in study.outcomes:
        of = found.setdefault(each.setting.method, {})
        of.setdefault(tuple(each.setting.numbers.items()), []).append(accuracy(each, "valid")["mean"])
    return {
        name: dict(max(of, key=lambda setting, of=of: np.mean(of[setting]))) for name, of in found.items()
    }


def cells(
    setup: Map,
    fraction: float,
    settings: Mapping[str, Mapping[str, float]],
    seeds: Any,
    folder: Path | None,
) -> Cells:
    """What each rule, prepared for ``fraction`` of the clients, comes to under each attack by as many."""
    known = setup.known(round(fraction * setup.clients))
    made = {name: make(settings[name].get("length", 1.0)) for name, make in known.items() if name in settings}
    methods = {name: setup.method(rule, settings[name]["rate"]) for name, rule in made.items()}
    study = setup.study(
        methods, seeds, folder and folder / "all", attack=setup.threats(fraction), baseline="mean"
    )
    found = _cells(study)
    for name, rule in made.items():
        if strongest := {
            attack: each
            for attack, each in against(rule, fraction).items()
            if attack in (setup.attacks or STRONGEST)
        }:
            worst = setup.study({name: methods[name]}, seeds, folder and folder / name, attack=strongest)
            found[name] |= _cells(worst)[name]
    return found


def _cells(study: eh.studies.Study) -> Cells:
    found: Cells = {}
    for each in study.outcomes:
        cell = found.setdefault(each.setting.method, {}).setdefault(each.setting.case["attack"], {})
        for name, value in accuracy(each, "test").items():
            cell.setdefault(name, []).append(value)
    return found


def accuracy(each: eh.studies.Outcome, split: str) -> dict[str, float]:
    """Accuracy over honest clients in percent; 0 for a model that is not finite."""
    if each.status == "failed" or each.seen is None:
        raise SystemExit(f"{each.setting}, seed {each.seed}: {each.reason}")
    told = statistics(each.seen, split, "accuracy")
    return {name: 100.0 * float(np.nan_to_num(told[name])) for name in ("mean", "std", "worst10")}
