"""Which model a client is served, and what an evaluation finds: each client's metrics, and its accuracy by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.evaluation import ClassMetrics, of_global
from evenhand.types import Array, Params, PyTree

__all__ = ["Serve", "Served", "Untrained", "has_own"]

NDArray = npt.NDArray[Any]

Untrained: TypeAlias = Literal["global", "initial"]
"""What clients are served that never trained: the current global model, or what they have kept since the start."""


class Serve(NamedTuple):
    """``(states, k) -> params`` that client ``k`` is served, for ``states`` of the server, the clients and
    :func:`has_own`.

    It holds no data, since compiled functions keep what they are keyed with.
    """

    global_params: Callable[[PyTree], Params]
    personal_params: Callable[[PyTree, PyTree], Params] | None

    def __call__(self, states: PyTree, k: Array) -> Params:
        server, clients, own = states
        shared = self.global_params(server)
        if self.personal_params is None:
            return shared
        # What a client has kept since the start is no model of its own, and may be far behind the global one.
        return tree.select(own[k], self.personal_params(server, tree.take(clients, k)), shared)


def has_own(last_round: NDArray, untrained: Untrained) -> NDArray:
    """Which clients are served their personal models, bool like ``last_round``."""
    return np.ones(last_round.shape, bool) if untrained == "initial" else last_round > 0


class Served(NamedTuple):
    """What one evaluation finds.

    Attributes:
      clients: split -> metric -> a number for each client that is evaluated; where clients have models of their own,
        also ``"global_<metric>"``, with the global model.
      classes: split -> the accuracy of each class at each client, clients as positions among those evaluated; only
        for splits whose rows have classes.
    """

    clients: dict[str, dict[str, NDArray]]
    classes: dict[str, ClassMetrics]

    @staticmethod
    def of(found: Mapping[str, tuple[dict[str, NDArray], ClassMetrics | None]]) -> Served:
        """From what is found of each split."""
        clients = {name: metrics for name, (metrics, _) in found.items()}
        return Served(clients, {name: classes for name, (_, classes) in found.items() if classes is not None})

    @staticmethod
    def joined(parts: Mapping[int, Served]) -> Served:
        """From some clients after the others, by the position of the first of them."""
        clients, classes = next(iter(parts.values()))
        return Served(
            {
                split: {
                    name: np.concatenate([part.clients[split][name] for part in parts.values()])
                    for name in metrics
                }
                for split, metrics in clients.items()
            },
            {
                split: ClassMetrics.joined({first: part.classes[split] for first, part in parts.items()})
                for split in classes
            },
        )

    def with_metrics(self, measured: Mapping[str, Mapping[str, NDArray]]) -> Served:
        """With further metrics of the clients, of each split."""
        clients = {split: {**metrics, **measured[split]} for split, metrics in self.clients.items()}
        return self._replace(clients=clients)

    def beside(self, alone: Mapping[str, Mapping[str, NDArray]]) -> Served:
        """With the metrics ``alone`` of the global model, of each split, beside those of personal models."""
        clients = {
            split: metrics | {of_global(name): values for name, values in alone[split].items()}
            for split, metrics in self.clients.items()
        }
        return self._replace(clients=clients)
