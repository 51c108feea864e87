"""Ditto's two solvers under model replacement: beside the global model, or after it."""

from __future__ import annotations

import evenhand as eh
from evenhand import personalization as personal
from experiments.personal.methods import Candidates, Numbers
from experiments.personal.places import Place

__all__ = ["PLACES", "methods"]

PLACES: tuple[Place, ...] = ("two classes", "dirichlet")
_EPOCHS = (1, 5, 20, 50)
"""Of finetuning; validation rows choose."""
_LAMS = (0.1, 1.0, 2.0)


def methods() -> dict[str, Candidates]:
    """The global model, and Ditto around it, with a perceptron of 32 hidden units."""
    model = eh.models.mlp(196, classes=10, hidden=(32,))

    def work(n: Numbers, epochs: int = 1) -> eh.local.Work:
        return eh.local.sgd(model, n["rate"], epochs=epochs, batch_size=10)

    def average(n: Numbers) -> eh.Algorithm:
        return eh.algorithms.fedavg(work(n))

    return {
        "global": Candidates(average, {}),
        "local": Candidates(lambda n: personal.ditto(average(n), work(n), lam=0.0), {}),
        "finetuning solver": Candidates(
            lambda n: personal.finetune(average(n), work(n, n["epochs"]), lam=n["lam"]),
            {"lam": _LAMS, "epochs": _EPOCHS},
        ),
        "joint solver": Candidates(
            lambda n: personal.ditto(average(n), work(n), lam=n["lam"]), {"lam": _LAMS}
        ),
    }
