"""Following a run, and choosing among runs by validation rows: one ``q`` for all devices, or each device its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

import evenhand as eh
from experiments.fairness import Measures, accuracy

__all__ = ["by_device", "choose", "each_its_own", "follow"]

_TOLERANCE = 1.0
_FOLLOWED = ("mean", "weighted_mean", "worst10", "variance")


def follow(
    method: eh.Algorithm,
    data: eh.data.FederatedDataset,
    *,
    seed: int,
    rounds: int,
    cohort: int,
    eval_every: int,
) -> tuple[eh.Run, dict[int, Measures]]:
    """A run, and what it had come to by each evaluation."""
    course = dict[int, Measures]()
    for run in eh.simulation.iterate(
        method, data, rounds=rounds, cohort=cohort, seed=seed, eval_every=eval_every
    ):
        told = accuracy(run)
        loss = {"train_loss": float(run.history["train_loss"][-1])}
        course[int(run.history["round"][-1])] = loss | {name: told[name] for name in _FOLLOWED}
    return run, course


def by_device(run: eh.Run) -> Measures:
    """Test accuracy in percent over all rows and on each device, and the training loss of each device."""
    accuracies, losses = run.clients["test"]["accuracy"], run.clients["train"]["loss"]
    told = {"average": 100.0 * run.summary("test", "accuracy")["weighted_mean"]}
    told |= {name: 100.0 * float(each) for name, each in zip(run.data.client_ids, accuracies, strict=True)}
    return told | {
        f"{name} loss": float(each) for name, each in zip(run.data.client_ids, losses, strict=True)
    }


def each_its_own(runs: Mapping[float, eh.Run]) -> eh.Run:
    """A run whose devices are each served the model that is most accurate on their own validation rows.

    Args:
      runs: q -> run on the same data.  Of models that are equally accurate the one with the smallest ``q`` is taken.
    """
    ordered = [runs[q] for q in sorted(runs)]
    # A device without validation rows has no accuracy there: it gets the smallest q.
    valid = np.nan_to_num([run.clients["valid"]["accuracy"] for run in ordered])
    best = np.argmax(valid, axis=0)
    clients = {
        split: {"accuracy": np.choose(best, [run.clients[split]["accuracy"] for run in ordered])}
        for split in ("train", "valid", "test")
    }
    return replace(ordered[0], clients=clients, classes={})


def choose(runs: Mapping[float, eh.Run]) -> float:
    """The ``q`` of the smallest variance of validation accuracy whose mean is within a point of that of q = 0.

    Args:
      runs: q -> run on the same data, q = 0 among them.
    """
    told = {q: run.summary("valid", "accuracy") for q, run in sorted(runs.items())}
    near = {
        q: each["variance"]
        for q, each in told.items()
        if 100.0 * abs(each["weighted_mean"] - told[0.0]["weighted_mean"]) <= _TOLERANCE
    }
    return min(near, key=lambda q: near[q])
