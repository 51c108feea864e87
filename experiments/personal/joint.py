"""Ditto's two solvers under model replacement: beside the global model, or after it."""

from __future__ import annotations

import evenhand as eh
from evenhand import personalization as personal
from experiments.personal.methods import Candidates
from experiments.personal.places import Place

__all__ = ["EPOCHS", "LAMS", "PLACES", "average", "methods", "work"]

PLACES: tuple[Place, ...] = ("two classes", "dirichlet")
EPOCHS = (1, 5, 20, 50)
"""Of finetuning; validation rows choose."""
LAMS = (0.1, 1.0, 2.0)


def work(rate: float, epochs: int = 1) -> eh.local.Work:
    """SGD on a perceptron of 32 hidden units."""
    return eh.local.sgd(eh.models.mlp(196, classes=10, hidden=(32,)), rate, epochs=epochs, batch_size=10)


def average(rate: float) -> eh.Algorithm:
    """The global model of all methods."""
    return eh.algorithms.fedavg(work(rate))


def methods() -> dict[str, Candidates]:
    """The global model, and Ditto around it."""
    return {
        "global": Candidates(lambda n: average(n["rate"]), {}),
        "local": Candidates(lambda n: personal.ditto(average(n["rate"]), work(n["rate"]), lam=0.0), {}),
        "finetuning solver": Candidates(
            lambda n: personal.finetune(average(n["rate"]), work(n["rate"], n["epochs"]), lam=n["lam"]),
            {"lam": LAMS, "epochs": EPOCHS},
        ),
        "joint solver": Candidates(
            lambda n: personal.ditto(average(n["rate"]), work(n["rate"]), lam=n["lam"]), {"lam": LAMS}
        ),
    }
