"""Which runs each figure compares: names only, so that they can be listed, matched and saved."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Claim", "Trial", "trials"]

Claim = Literal[
    "stragglers",
    "accuracy",
    "heterogeneity",
    "one_epoch",
    "iid_stragglers",
    "adaptive",
    "feddane",
    "sampling",
    "mnist",
    "mnist_one_epoch",
]
"""Figures 1, 7, 2, 9, 5, 3, 4 and 12 of the paper, in this order; then, on MNIST, figures 1, 7 and 8, and 9 and 10."""


_SYNTHETIC = ("IID", "(0, 0)", "(0.5, 0.5)", "(1, 1)")


class Trial(NamedTuple):
    """One line in one panel of a figure; two trials with the same last three fields are the same run."""

    panel: str
    line: str
    dataset: str
    method: str
    stragglers: float = 0.0


def trials(claim: Claim) -> list[Trial]:
    """The lines of a claim's figure, panel by panel."""
    match claim:
        case "stragglers":
            return [trial for share in (0.0, 0.5, 0.9) for trial in _slow("(1, 1)", share)]
        case "accuracy":
            return _slow("(1, 1)", 0.9)
        case "one_epoch":
            return [trial for share in (0.0, 0.5, 0.9) for trial in _slow("(1, 1)", share, ", E=1")]
        case "mnist":
            return [trial for share in (0.0, 0.5, 0.9) for trial in _slow("MNIST", share)]
        case "mnist_one_epoch":
            return [trial for share in (0.0, 0.5, 0.9) for trial in _slow("MNIST", share, ", E=1")]
        case "iid_stragglers":
            return [trial for share in (0.0, 0.9) for trial in _slow("IID", share)[:2]]
        case "heterogeneity":
            return [
                Trial(data, f"FedProx, {method}", data, method)
                for data in _SYNTHETIC
                for method in ("mu=0", "mu=1")
            ]
        case "adaptive":
            # Each from the worse of the two values.
            rivals = {name: "adaptive from 1" if name == "IID" else "adaptive from 0" for name in _SYNTHETIC}
            return [trial for name, rival in rivals.items() for trial in _against(name, rival)]
        case "feddane":
            return [trial for name in _SYNTHETIC for trial in _against(name, "FedDane")]
        case "sampling":
            names = {"A: drawn by size, plain mean": ", scheme A", "B: drawn uniformly, weighted mean": ""}
            return [
                Trial(f"FedProx, {mu}", name, "(1, 1) capped", mu + suffix)
                for mu in ("mu=0", "mu=1")
                for name, suffix in names.items()
            ]


def _slow(dataset: str, share: float, suffix: str = "") -> list[Trial]:
    # Without stragglers FedAvg is FedProx with mu=0, bit for bit: no need to run it.
    lines = {"FedAvg": "FedAvg" if share else "mu=0", "FedProx, mu=0": "mu=0", "FedProx, mu=1": "mu=1"}
    panel = f"{dataset}, {share:.0%} stragglers"
    return [Trial(panel, line, dataset, method + suffix, share) for line, method in lines.items()]


def _against(dataset: str, rival: str) -> list[Trial]:
    name = "FedDane, mu=0" if rival == "FedDane" else "FedProx, adaptive mu"
    lines = {"FedProx, mu=0": "mu=0", "FedProx, mu=1": "mu=1", name: rival}
    return [Trial(dataset, line, dataset, method) for line, method in lines.items()]
