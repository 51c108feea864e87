"""The accuracy of each class within each client, and how evenly a client's classes are served.

NumPy in float64, on the host.  Only the classes that a client has rows of are kept: memory follows the rows, not the
clients times the classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "CLASS_COLUMNS",
    "ClassIndex",
    "ClassMetrics",
    "by_class",
    "class_spread",
    "index_classes",
    "summarize_classes",
]

CLASS_COLUMNS = ("classes", "class_spread", "worst_class")
"""What is known per client, see :func:`class_spread`."""

_TABLE = 2**22
"""Numbers in a table of clients and classes, about, which is only ever made for some clients at a time."""
_READABLE = 50
"""Classes in a table for a person, at most."""
_TOGETHER = 2**16
"""Clients in such a table, at most."""

NDArray = npt.NDArray[Any]


class ClassMetrics(NamedTuple):
    """The accuracy of each class at each client that has rows of it, ordered by client, then by class.

    Attributes:
      clients: the clients' positions, ``(cells,)``.
      classes: class numbers, ``(cells,)``.
      counts: rows of that class at that client, ``(cells,)``, at least 1: a class without rows has no accuracy.
      accuracy: the share of them that the client's model gets right, ``(cells,)``, float64.
    """

    clients: NDArray
    classes: NDArray
    counts: NDArray
    accuracy: NDArray

    @staticmethod
    def joined(parts: Mapping[int, ClassMetrics]) -> ClassMetrics:
        """Of some clients after the others, by the position of the first of them."""
        moved = [part._replace(clients=part.clients + first) for first, part in parts.items()]
        return ClassMetrics(*(np.concatenate(each) for each in zip(*moved, strict=True)))


class ClassIndex(NamedTuple):
    """Which clients have rows of which classes.

    Attributes:
      y: class numbers of all rows, ``(rows,)``, on the host.
      offsets: ``(K + 1,)``; client ``k`` owns rows ``offsets[k]`` up to ``offsets[k + 1]``.
      number: of classes.
      clients: as in :class:`ClassMetrics`.
      classes: likewise.
      counts: likewise.
    """

    y: NDArray
    offsets: NDArray
    number: int
    clients: NDArray
    classes: NDArray
    counts: NDArray

    def fitting(self) -> int:
        """How many clients a table is made for at a time."""
        return int(np.clip(_TABLE // self.number, 1, _TOGETHER))

    def cells(self, first: int, table: NDArray) -> tuple[slice, NDArray]:
        """What a table, ``(clients, classes)`` from client ``first`` on, says of the pairs that have rows."""
        own = slice(*np.searchsorted(self.clients, [first, first + len(table)]))
        return own, table[self.clients[own] - first, self.classes[own]]

    def metrics(self, right: NDArray) -> ClassMetrics:
        """The accuracies, from how many rows of each pair are right, ``(cells,)``."""
        return ClassMetrics(self.clients, self.classes, self.counts, right / self.counts)

    def some(self, own: slice) -> ClassIndex:
        """The same of some of the clients, counted from 0."""
        rows, offsets = (
            slice(self.offsets[own.start], self.offsets[own.stop]),
            self.offsets[own.start : own.stop + 1],
        )
        cells = slice(*np.searchsorted(self.clients, [own.start, own.stop]))
        clients = self.clients[cells] - own.start
        cells_of = (clients, self.classes[cells], self.counts[cells])
        return ClassIndex(self.y[rows], offsets - offsets[0], self.number, *cells_of)

    def sums(self, values: NDArray) -> NDArray:
        """Per pair the sum of a number per row: ``(rows,) -> (cells,)``."""
        sums = np.zeros(len(self.clients))
        for first, rows, keys, clients in _blocks(self.y, self.offsets, self.number, self.fitting()):
            table = np.bincount(keys, values[rows], clients * self.number).reshape(clients, self.number)
            own, found = self.cells(first, table)
            sums[own] = found
        return sums


def index_classes(y: NDArray, offsets: NDArray, number: int) -> ClassIndex:
    """Finds which clients have rows of which classes.

    Args:
      y: class numbers ``0 .. number - 1``, one per row.
      offsets: ``(K + 1,)``.
      number: of classes.
    """
    y = np.asarray(y).reshape(-1)
    empty = np.zeros(0, np.int64)
    index = ClassIndex(y, np.asarray(offsets, np.int64), number, empty, empty, empty)
    clients, classes, counts = [empty], [empty], [empty]
    for first, _, keys, many in _blocks(y, index.offsets, number, index.fitting()):
        table = np.bincount(keys, minlength=many * number)
        present = np.flatnonzero(table)
        clients.append(first + present // number)
        classes.append(present % number)
        counts.append(table[present])
    found = (np.concatenate(parts) for parts in (clients, classes, counts))
    return ClassIndex(y, index.offsets, number, *found)


def class_spread(metrics: ClassMetrics, clients: int) -> dict[str, npt.NDArray[np.float64]]:
    r"""How evenly each client's classes are served; an absent class is left out, it does not count as 0.

    With ``a_{n,k}`` the accuracy of class ``k`` at client ``n`` and ``K_n`` the classes that it has rows of:

    * ``"classes"``: ``|K_n|``, 0 for a client without rows;
    * ``"class_spread"``: ``s_n = std {a_{n,k} : k in K_n}`` (population), a share of 1; 0 for a client with one class;
    * ``"worst_class"``: ``min {a_{n,k} : k in K_n}``.

    Args:
      metrics: the accuracies.
      clients: how many clients there are.

    Returns:
      ``(clients,)`` each; NaN for a client without rows.

    Example:
      >>> table = ClassMetrics(
      ...     clients=np.array([0, 0, 2]),
      ...     classes=np.array([3, 7, 3]),
      ...     counts=np.array([75, 25, 9]),
      ...     accuracy=np.array([0.6, 1.0, 0.5]),
      ... )
      >>> {name: values.round(6).tolist() for name, values in class_spread(table, 3).items()}
      {'classes': [2.0, 0.0, 1.0], 'class_spread': [0.2, nan, 0.0], 'worst_class': [0.6, nan, 0.5]}

    Source: *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, Definition 2.
    """
    who, accuracy = metrics.clients, metrics.accuracy
    number = np.bincount(who, minlength=clients).astype(np.float64)
    worst = np.full(clients, np.nan)
    if len(who):
        starts = np.flatnonzero(np.diff(who, prepend=-1))
        worst[who[starts]] = np.minimum.reduceat(accuracy, starts)
    has = np.maximum(number, 1.0)
    above = accuracy - worst[who]  # so that equal accuracies have no spread at all
    deviation = above - (np.bincount(who, above, clients) / has)[who]
    spread = np.sqrt(np.bincount(who, deviation**2, clients) / has)
    return {"classes": number, "class_spread": np.where(number > 0, spread, np.nan), "worst_class": worst}


def summarize_classes(columns: Mapping[str, NDArray]) -> dict[str, float]:
    r"""Summarises over the clients how evenly the classes within each are served.

    * ``class_spread``: :math:`\mu_\sigma = \mathrm{mean}_n\, s_n`, every client that has rows counts alike;
    * ``class_spread_std``: :math:`\sigma_\sigma = \mathrm{std}_n\, s_n` (population);
    * ``worst_class``: ``min {a_{n,k}}`` over all clients and their classes, 0 where a model has given some class up.

    Accuracies and their spreads are shares of 1: times 100 they are the paper's percentage points.  Less spread is
    more even.  Where every client has one class only, there is no spread to measure and it is 0.

    Args:
      columns: from :func:`class_spread`.

    Returns:
      NaN where no client has rows, or where a client that has some got NaN.

    Example:
      >>> a = np.array([1.0, 0.8, 0.9, 0.9, 0.6, 1.0])
      >>> table = ClassMetrics(np.array([0, 0, 1, 1, 2, 2]), np.tile([0, 1], 3), np.full(6, 50), a)
      >>> {name: round(value, 7) for name, value in summarize_classes(class_spread(table, 3)).items()}
      {'class_spread': 0.1, 'class_spread_std': 0.0816497, 'worst_class': 0.6}

    Source: *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, Definition 2.
    """
    has = columns["classes"] > 0
    spread, worst = columns["class_spread"][has], columns["worst_class"][has]
    if not has.any():
        return dict.fromkeys(("class_spread", "class_spread_std", "worst_class"), float("nan"))
    with np.errstate(invalid="ignore"):  # a table that somebody has damaged may hold infinities
        return {
            "class_spread": float(np.mean(spread)),
            "class_spread_std": float(np.std(spread - spread[0])),
            "worst_class": float(np.min(worst)),
        }


def by_class(metrics: ClassMetrics, names: Sequence[str] | None, number: int) -> list[dict[str, Any]]:
    """One entry per class: its name, its rows, how many clients have some, and how often it is recognised.

    Nothing where there are more than 50 classes, which nobody reads one by one.

    ``accuracy`` is over all rows of the class, ``worst`` that of the client that has the lowest; both are None for a
    class without rows.

    Args:
      metrics: the accuracy of each class at each client.
      names: of the classes; None: they are called by their numbers.
      number: of classes.

    Example:
      >>> a = np.array
      >>> metrics = ClassMetrics(a([0, 0, 1]), a([0, 1, 1]), a([4, 1, 3]), a([0.5, 1.0, 0.0]))
      >>> by_class(metrics, ("no", "yes"), 2)[1]
      {'class': 'yes', 'rows': 4, 'clients': 2, 'accuracy': 0.25, 'worst': 0.0}
    """
    entries: list[dict[str, Any]] = []
    for k in range(number if number <= _READABLE else 0):
        own = metrics.classes == k
        rows, accuracy = metrics.counts[own], metrics.accuracy[own]
        some = len(rows) > 0
        entries.append(
            {
                "class": str(k) if names is None else names[k],
                "rows": int(rows.sum()),
                "clients": len(rows),
                "accuracy": float(np.average(accuracy, weights=rows)) if some else None,
                "worst": float(accuracy.min()) if some else None,
            }
        )
    return entries


def _blocks(
    y: NDArray, offsets: NDArray, number: int, fitting: int
) -> Iterator[tuple[int, slice, NDArray, int]]:
    """Some clients at a time: the first of them, their rows, each row's place in a table of them, how many."""
    sizes = np.diff(offsets)
    for first in range(0, len(sizes), fitting):
        own = sizes[first : first + fitting]
        rows = slice(int(offsets[first]), int(offsets[first + len(own)]))
        yield first, rows, np.repeat(np.arange(len(own)) * number, own) + y[rows], len(own)
