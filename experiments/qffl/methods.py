"""The methods that are compared, and what is told of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import evenhand as eh
from evenhand.report import RunView, statistics
from experiments.fairness import Measures

__all__ = ["against_afl", "by_device", "course", "each_its_own", "family"]

_FOLLOWED = {
    "train_loss": ("train_loss", 1.0),
    "mean": ("test_accuracy_mean", 100.0),
    "weighted_mean": ("test_accuracy", 100.0),
    "worst10": ("test_accuracy_worst10", 100.0),
    "variance": ("test_accuracy_variance", 1e4),
}


def family(powers: Sequence[float], step: float, *, epochs: int, batch_size: int) -> dict[str, eh.Algorithm]:
    """q-FedAvg for each q, devices drawn by their rows; and the mean over devices drawn uniformly.

    All sums are plain, as in the reference code.
    """
    model = eh.models.softmax_regression(features=60, classes=10)
    work = eh.local.sgd(model, step, epochs=epochs, batch_size=batch_size)
    alike = eh.sampling.uniform(weighted=False)
    known = {f"q={q:g}": eh.algorithms.qfedavg(work, q=q, lipschitz=1 / step) for q in powers}
    return known | {"uniform sampling": eh.algorithms.fedavg(work, sampling=alike)}


def against_afl(
    data: eh.data.FederatedDataset, powers: Sequence[float], *, gamma_w: float, gamma_lambda: float
) -> dict[str, eh.Algorithm]:
    """q-FedSGD for each q; AFL, whose result is the mean of its iterates, and its last iterate; all rows pooled.

    All of them step by ``gamma_w`` against gradients over all rows; devices count alike but in the last.
    """
    (features,) = data.feature_shape
    model = eh.models.softmax_regression(features, classes=2)
    known = {f"q={q:g}": eh.algorithms.qfedsgd(model, q=q, lipschitz=1 / gamma_w) for q in powers}
    by_rows = eh.algorithms.qfedsgd(model, q=0.0, lipschitz=1 / gamma_w, sampling=eh.sampling.uniform())
    average = eh.algorithms.afl(model, gamma_w=gamma_w, gamma_lambda=gamma_lambda)
    return known | {
        "AFL": average,
        "AFL, last iterate": average._replace(global_params=lambda state: by_rows.global_params(state.inner)),
        "q=0, devices by rows": by_rows,
    }


def by_device(run: RunView) -> Measures:
    """Test accuracy in percent over all rows and on each device, and the training loss of each device."""
    accuracies, losses = run.clients["test"]["accuracy"], run.clients["train"]["loss"]
    told = {"average": 100.0 * statistics(run, "test", "accuracy")["weighted_mean"]}
    told |= {name: 100.0 * float(each) for name, each in zip(run.client_ids, accuracies, strict=True)}
    return told | {f"{name} loss": float(each) for name, each in zip(run.client_ids, losses, strict=True)}


def course(runs: Mapping[str, Sequence[RunView]]) -> dict[str, list[Measures]]:
    """What the runs of each method had come to by each evaluation."""
    return {
        f"{name}, round {now}": [
            {what: factor * float(run.history[column][k]) for what, (column, factor) in _FOLLOWED.items()}
            for run in each
        ]
        for name, each in runs.items()
        for k, now in enumerate(each[0].history["round"])
    }


def each_its_own(runs: Sequence[RunView]) -> RunView:
    """A run whose devices are each served the model that is most accurate on their own validation rows.

    Args:
      runs: on the same data, by ascending q.  Of models that are equally accurate the first is taken.
    """
    # A device without validation rows has no accuracy there: it gets the smallest q.
    best = np.argmax(np.nan_to_num([run.clients["valid"]["accuracy"] for run in runs]), axis=0)
    clients = {
        split: {"accuracy": np.choose(best, [run.clients[split]["accuracy"] for run in runs])}
        for split in ("train", "valid", "test")
    }
    return runs[0]._replace(clients=clients, classes={})
