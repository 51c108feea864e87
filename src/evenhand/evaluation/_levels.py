"""Serving by level: of several models, each client takes the one that suits its own examples best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenhand.evaluation._metrics import is_higher_better, of_global

__all__ = ["Levels", "serve_by_level"]

NDArray = npt.NDArray[Any]


class Measured(Protocol):
    """A run, by what each of its clients gets."""

    def client_metrics(self, split: str = "test") -> Mapping[str, NDArray]:
        """Metric -> ``(num_clients,)``."""
        ...


class Levels(NamedTuple):
    """What each client gets when it chooses among several models.

    Attributes:
      level: ``(num_clients,)``, the position of the run whose model the client chose.
      metrics: metric -> ``(num_clients,)``, with that model; summarise with :func:`evenhand.evaluation.summarize`.
    """

    level: npt.NDArray[np.int64]
    metrics: dict[str, NDArray]


class _Level(NamedTuple):
    """One of several models that a run trained side by side."""

    run: Measured
    name: str

    def client_metrics(self, split: str = "test") -> dict[str, NDArray]:
        suffix = f" ({self.name})"
        found = self.run.client_metrics(split)
        return {name.removesuffix(suffix): values for name, values in found.items() if name.endswith(suffix)}


def serve_by_level(
    runs: Sequence[Measured] | Measured,
    *,
    choose_on: str = "valid",
    metric: str = "accuracy",
    split: str = "test",
) -> Levels:
    """Of several runs' models, each client takes the one that is best on its own examples.

    One model per level: q-FFL with a ``q`` for each device, Delta-FL with several ``theta``.  Runs with the same data
    and the same seed draw the same cohorts and batches, as if all levels were trained side by side; their traffic
    and work add up.

    Args:
      runs: one per level, on the same data, or the one run of :func:`evenhand.algorithms.side_by_side`; of equal levels
        the first is taken, so begin with the least fair.
      choose_on: the split that clients choose on, ``"valid"`` or ``"train"``.
      metric: the metric that they choose by.
      split: the split of the returned metrics.

    Raises:
      ValueError: there is no run, the runs have different numbers of clients, or no client has examples to choose on.

    Edge cases: a client without examples to choose on takes the first model.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80, valid_fraction=0.2)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> runs = [
      ...     eh.simulate(eh.algorithms.delta_fl(work, theta=theta), data, rounds=10)
      ...     for theta in (1.0, 0.5, 0.1)
      ... ]
      >>> served = serve_by_level(runs)
      >>> sorted(set(served.level.tolist())) != [0], len(served.metrics["accuracy"])
      (True, 8)

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, table 12; Pillutla et al.,
    *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine Learning 2023, figure 1.
    """
    runs = runs if isinstance(runs, Sequence) else _levels(runs)
    if not runs:
        raise ValueError(
            "serve_by_level() needs at least one run, or one run of several methods side by side."
        )
    scores = [np.asarray(run.client_metrics(choose_on)[metric], np.float64) for run in runs]
    if len({score.shape for score in scores}) > 1:
        raise ValueError(
            "serve_by_level() got runs with different numbers of clients: use the same data for all."
        )
    if np.all(np.isnan(np.stack(scores))):
        raise ValueError(
            f"serve_by_level(): no client has {choose_on} examples to choose on: load the data with "
            'valid_fraction=0.2, or give choose_on="train".'
        )
    sign = 1.0 if is_higher_better(metric) else -1.0
    known = np.where(np.isnan(np.stack(scores)), -np.inf, sign * np.stack(scores))
    level = np.argmax(known, axis=0)
    each = [run.client_metrics(split) for run in runs]
    served = [name for name in each[0] if not name.startswith(of_global(""))]
    metrics = {
        name: np.stack([metrics[name] for metrics in each])[level, np.arange(level.size)] for name in served
    }
    return Levels(level, metrics)


def _levels(run: Measured) -> list[_Level]:
    known = (name for name in run.client_metrics("train") if name.startswith("loss ("))
    return [_Level(run, name.removeprefix("loss (").removesuffix(")")) for name in known]
