"""RFA against FedAvg under corrupted data and omniscient updates, per communication and not per round."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn

import evenhand as eh
from evenhand import aggregators, attacks
from evenhand.report import statistics
from experiments.fairness import Measures
from experiments.robust.data import mnist

__all__ = ["PAPER", "Net", "Setup", "compared", "tuned"]

Net = Literal["linear", "convnet"]

PAPER: Mapping[str, Mapping[str, float]] = {
    "FedAvg": {"none": 64.3, "negative 10": 60.1},
    "RFA": {"none": 62.9, "negative 10": 62.3},
}
"""The slides' accuracies on handwritten characters (EMNIST, 62 classes), without and with a tenth corrupted."""

_RULES: Mapping[str, tuple[eh.types.Aggregator, int]] = {
    "FedAvg": (aggregators.mean(), 1),
    "RFA": (aggregators.geometric_median(3, start="mean"), 3),
    "RFA from zero": (aggregators.geometric_median(3), 3),
    "one-step RFA": (aggregators.geometric_median(1), 1),
}
"""Name -> the aggregator, and its communications in a round."""


class Setup(NamedTuple):
    """What all runs have in common.

    Attributes:
      data_dir: folder with mnist.npz.
      net: the model.
      clients: how many there are.
      images: of all clients.
      cohort: clients of a round.
      communications: secure sums of each client that takes part, for every method: FedAvg has three times RFA's rounds.
    """

    data_dir: Path
    net: Net
    clients: int
    images: int
    cohort: int
    communications: int

    def method(self, name: str, rate: float) -> eh.Algorithm:
        """Federated averaging with one of the rules, weighted by the clients' numbers of examples."""
        work = eh.local.sgd(_model(self.net), rate, epochs=1, batch_size=20)
        return eh.algorithms.fedavg(work, aggregator=_RULES[name][0])

    def study(
        self, methods: Any, seeds: Any, passes: int, folder: Path | None, **given: Any
    ) -> eh.studies.Study:
        """The runs of methods that take as many passes each."""
        return eh.study(
            methods,
            partial(
                mnist,
                self.data_dir,
                deal="dirichlet",
                clients=self.clients,
                images=self.images,
            ),
            rounds=self.communications // passes,
            seeds=seeds,
            cohort=self.cohort,
            eval_every=self.communications // passes,
            folder=folder,
            progress=True,
            **given,
        )


def tuned(setup: Setup, rates: tuple[float, ...], seeds: Any, folder: Path | None) -> float:
    """FedAvg's best step size without attack, by validation images, for all methods: so the authors do."""
    study = setup.study(
        {"FedAvg": partial(setup.method, "FedAvg")}, seeds, 1, folder, grid={"rate": list(rates)}
    )
    return float(study.best("FedAvg").numbers["rate"])


def compared(
    setup: Setup, rate: float, seeds: Any, folder: Path | None
) -> dict[str, dict[str, list[Measures]]]:
    """Method -> corruption -> the accuracy on clean images of all clients, in percent for each seed."""
    found: dict[str, dict[str, list[Measures]]] = {}
    for passes in sorted({each for _, each in _RULES.values()}):
        names = [name for name, (_, each) in _RULES.items() if each == passes]
        study = setup.study(
            {name: setup.method(name, rate) for name in names},
            seeds,
            passes,
            folder and folder / f"{passes}_passes",
            attack=_corruptions(),
            baseline=names[0],
        )
        for each in study.outcomes:
            if each.view is None:
                raise SystemExit(f"{each.setting}, seed {each.seed}: {each.reason}")
            told = statistics(each.view, "test", "accuracy")
            by_name = found.setdefault(each.setting.method, {})
            measures = {name: 100.0 * told[name] for name in ("weighted_mean", "mean", "worst10")}
            by_name.setdefault(each.setting.case["attack"], []).append(measures)
    return found


def _corruptions() -> dict[str, eh.types.Attack | None]:
    relabelled = tuple((7 * y + 1) % 10 for y in range(10))
    return {
        "none": None,
        "negative 10": attacks.negative(0.1),
        "negative 25": attacks.negative(0.25),
        "relabelled 10": attacks.relabel(0.1, relabelled),
        "relabelled 25": attacks.relabel(0.25, relabelled),
        "omniscient 10": attacks.omniscient(0.1),
        "omniscient 25": attacks.omniscient(0.25),
    }


def _model(net: Net) -> eh.Model:
    if net == "linear":
        return eh.models.softmax_regression(features=196, classes=10)
    return eh.models.from_flax(_ConvNet(), loss="cross_entropy", sample=jnp.zeros((1, 196)))


class _ConvNet(nn.Module):
    """Two convolutions with pooling, and a dense layer, on 14 x 14 images: 4,874 parameters."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x.reshape(-1, 14, 14, 1)
        for features in (8, 16):
            x = nn.relu(nn.Conv(features, (5, 5))(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))
