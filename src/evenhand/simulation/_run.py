"""What a simulation leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import RunView, is_higher_better, summarize, write_report
from evenhand.simulation._round import RoundState
from evenhand.types import Algorithm, Params

__all__ = ["Run"]

NDArray = npt.NDArray[Any]


@dataclass(frozen=True, repr=False)
class Run:
    """A simulation up to its latest evaluation.

    Attributes:
      algorithm: the method.
      data: the clients.
      seed: the run's seed.
      history: equal-length arrays, one entry per evaluation: ``"round"``; ``"<split>_<metric>"``, the mean over all
        rows of the split, each client with the model it is served; ``"test_<metric>_worst10"``, ``"_best10"`` and
        ``"_variance"`` over clients for the primary metric; and what the method tells about its latest round, NaN
        before the first one.
      per_round: what the method tells about each round, ``(rounds,)`` each, e.g. ``"update_norm"``.
      info: ``"rounds"`` done; ``"cohort"``; ``"lanes"``; ``"floats"``, how many numbers a client gets (``"down"``) and
        sends (``"up"``) in a round that it takes part in; ``"seconds"`` per activity.
      state: all that the next round would start from.
    """

    algorithm: Algorithm
    data: FederatedDataset
    seed: int
    history: Mapping[str, NDArray]
    per_round: Mapping[str, NDArray]
    info: Mapping[str, Any]
    state: RoundState
    clients: Mapping[str, Mapping[str, NDArray]]

    @property
    def params(self) -> Params:
        """The global parameters."""
        return self.algorithm.global_params(self.state.server)

    def personal_params(self, k: int) -> Params:
        """The parameters that the client at position ``k`` is served; the global ones where nobody has its own."""
        if not 0 <= k < self.data.num_clients:
            raise EvenhandError(
                f"There is no client {k}: positions run from 0 to {self.data.num_clients - 1}."
            )
        if self.algorithm.personal_params is None:
            return self.params
        return self.algorithm.personal_params(self.state.server, tree.take(self.state.clients, jnp.int32(k)))

    def client_metrics(self, split: str = "test") -> dict[str, NDArray]:
        """Loss and metrics of every client, ``(num_clients,)`` each, with the model that it is served.

        Args:
          split: ``"train"``, ``"valid"`` or ``"test"``; NaN for clients without rows there.
        """
        if split not in self.clients:
            raise EvenhandError(f"There is no split {split!r} here: choose one of {sorted(self.clients)}.")
        return {name: values.copy() for name, values in self.clients[split].items()}

    def summary(self, split: str = "test", metric: str | None = None) -> dict[str, float]:
        """How good and how even a metric is over the clients; see :func:`evenhand.evaluation.summarize`.

        Args:
          split: as in :meth:`client_metrics`.
          metric: a name from there; None: ``"accuracy"`` if the model has it, else ``"loss"``.
        """
        values = self.client_metrics(split)
        name = primary_metric(values) if metric is None else metric
        if name not in values:
            raise EvenhandError(f"The model has no metric {name!r}: choose one of {sorted(values)}.")
        sizes = split_sizes(self.data)[split]
        return summarize(values[name], sizes, higher_is_better=is_higher_better(name))

    def view(self, title: str = "run", config: Mapping[str, Any] | None = None) -> RunView:
        """What reports and figures need to know about this run."""
        sizes = {name: rows for name, rows in split_sizes(self.data).items() if rows.any()}
        clients = {name: self.clients[name] for name in sizes}
        info = {**self.info, "seed": self.seed}
        return RunView(title, self.history, sizes, self.data.client_ids, clients, info, config or {})

    def report(self, path: str | Path, title: str = "run") -> Path:
        """Writes one self-contained HTML page about this run and returns its path."""
        return write_report(path, [self.view(title)])

    def __repr__(self) -> str:
        final = {name: float(values[-1]) for name, values in self.history.items()}
        told = ", ".join(f"{name}={value:.4g}" for name, value in final.items() if not np.isnan(value))
        return f"Run({told})"


def primary_metric(metrics: Mapping[str, Any]) -> str:
    """The metric that a run is judged by."""
    return "accuracy" if "accuracy" in metrics else "loss"


def split_sizes(data: FederatedDataset) -> dict[str, NDArray]:
    """Rows per client of each split."""
    return {"train": data.train.sizes, "valid": data.valid.sizes, "test": data.test.sizes}
