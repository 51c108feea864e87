"""Support vector machines on devices of Vehicle's sizes: MOCHA beside Ditto, and TERM's tilts under random labels."""

from __future__ import annotations

from pathlib import Path

import evenhand as eh
from evenhand import personalization as personal
from evenhand.personalization.methods import mocha
from experiments.personal.methods import Candidates, Numbers
from experiments.term_fl.data import devices, sizes_like_vehicle, skewed

__all__ = ["PAPER", "devices_of", "methods", "tilted"]

_FEATURES = 100
_LAMS = (0.1, 1.0, 2.0)
_MOCHA_LAMS = (1e-3, 1e-2, 1e-1)
_TILTS = (1.0, 2.0, 5.0)

PAPER = {
    "global": {"clean": 86.6, "A1 50": 64.3, "A2 50": 84.0, "A3 20": 60.6},
    "local": {"clean": 83.6, "A1 50": 84.0, "A2 50": 84.0, "A3 20": 83.5},
    "TERM": {"clean": 87.0, "A1 50": 57.2, "A2 50": 70.4, "A3 20": 62.8},
    "MOCHA": {"clean": 88.0, "A1 50": 83.2, "A2 50": 84.3, "A3 20": 84.4},
    "Ditto, 0.1": {"clean": 84.5, "A1 50": 84.1, "A2 50": 84.8, "A3 20": 82.9},
    "Ditto, 1": {"clean": 87.5, "A1 50": 82.1, "A2 50": 87.0, "A3 20": 81.3},
    "Ditto, 2": {"clean": 88.2, "A1 50": 80.0, "A2 50": 87.2, "A3 20": 79.1},
}
"""Table 7 of Ditto, on Vehicle."""


def devices_of(folder: Path, seed: int, rows: float) -> eh.data.FederatedDataset:
    """The 23 devices of ``experiments.term_fl``, with so many rows on average; MNIST stands in for Vehicle."""
    sizes = sizes_like_vehicle(23, rows, 0.18 * rows)
    return devices(folder, seed, skewed(0.2), sizes=sizes, features=_FEATURES, label="parity", held_out=0.2)


def methods() -> dict[str, Candidates]:
    """The rows of table 7 that need no robust rule; TERM stands for "fair"."""
    model = eh.models.svm(_FEATURES)

    def work(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, n["rate"], epochs=1, batch_size=32)

    def average(n: Numbers) -> eh.Algorithm:
        return eh.algorithms.fedavg(work(n))

    def ditto(lam: float) -> Candidates:
        return Candidates(lambda n: personal.ditto(average(n), work(n), lam=lam), {})

    return {
        "global": Candidates(average, {}),
        "local": Candidates(lambda n: personal.ditto(average(n), work(n), lam=0.0), {}),
        "TERM": Candidates(lambda n: eh.algorithms.term(work(n), t=1.0), {}),
        "MOCHA": Candidates(lambda n: mocha(model, lam=n["lam"]), {"lam": _MOCHA_LAMS}),
        **{f"Ditto, {lam:g}": ditto(lam) for lam in _LAMS},
    }


def tilted(model: eh.Model) -> dict[str, Candidates]:
    """Figure 4: the global model, TERM with three tilts, and Ditto."""

    def work(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, n["rate"], epochs=1, batch_size=10)

    def term(t: float) -> Candidates:
        return Candidates(lambda n: eh.algorithms.term(work(n), t=t), {})

    return {
        "global": Candidates(lambda n: eh.algorithms.fedavg(work(n)), {}),
        **{f"TERM, {t:g}": term(t) for t in _TILTS},
        "Ditto": Candidates(
            lambda n: personal.ditto(eh.algorithms.fedavg(work(n)), work(n), lam=n["lam"]), {"lam": _LAMS}
        ),
    }
