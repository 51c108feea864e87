"""A personal output layer: in turns or at the same time, and what it does for robust rules."""

from __future__ import annotations

from collections.abc import Mapping

import evenhand as eh
from evenhand import aggregators, attacks
from evenhand import personalization as personal
from experiments.personal.methods import Candidates, Numbers

__all__ = ["COHORT", "PAPER", "corruptions", "methods"]

COHORT = 20
_RULES: Mapping[str, eh.types.Aggregator] = {
    "mean": aggregators.mean(),
    "geometric median": aggregators.geometric_median(3),
    "one-step median": aggregators.geometric_median(1),
}
"""The second takes three secure sums a round, the others one; all have as many rounds."""

PAPER: Mapping[str, Mapping[str, float]] = {
    "FedAlt, mean": {"clean": 70.1, "corrupt": 24.6},
    "FedAlt, geometric median": {"clean": 69.8, "corrupt": 66.0},
}
"""The slides' accuracies with personalization, and a quarter corrupt; data, model and corruption are not named."""


def corruptions() -> dict[str, eh.types.Attack | None]:
    """A quarter of the clients, or nobody."""
    return {
        "clean": None,
        "negative 25": attacks.negative(0.25),
        "omniscient 25": attacks.omniscient(0.25),
    }


def methods(*, clean: bool) -> dict[str, Candidates]:
    """All rules with and without a personal output layer, of a perceptron of 32 hidden units.

    Args:
      clean: with FedSim, too, at half of FedAlt's gradients, as the authors have it, and at as many.
    """
    model = eh.models.mlp(196, classes=10, hidden=(32,))

    def work(n: Numbers, epochs: int = 1) -> eh.local.Work:
        return eh.local.sgd(model, n["rate"], epochs=epochs, batch_size=10)

    def rival(rule: eh.types.Aggregator) -> Candidates:
        return Candidates(lambda n: eh.algorithms.fedavg(work(n), aggregator=rule), {})

    def alt(rule: eh.types.Aggregator) -> Candidates:
        return Candidates(lambda n: personal.fedalt(work(n), personal="output", aggregator=rule), {})

    def sim(epochs: int) -> Candidates:
        return Candidates(lambda n: personal.fedsim(work(n, epochs), personal="output"), {})

    every = {f"FedAvg, {name}": rival(rule) for name, rule in _RULES.items()}
    every |= {f"FedAlt, {name}": alt(rule) for name, rule in _RULES.items()}
    if clean:
        every |= {"FedSim": sim(2), "FedSim, half the gradients": sim(1)}
        every["local"] = Candidates(lambda n: personal.local_only(work(n)), {})
    return every
