"""The accuracy of each class within each client, how evenly a client's classes are served, and whether all that is more
than one constant answer would give.

NumPy in float64, on the host.  Only the classes that a client has examples of are kept: memory grows with the examples,
not with clients times classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

CLASS_COLUMNS = ("classes", "class_spread", "worst_class")
"""What is measured per client; see :func:`class_spread`."""

RAREST = "rarest"
"""The column of :func:`class_columns` with the examples of a client's rarest class, which no file of texts has."""

_TABLE = 2**22
"""About how many numbers a table of clients by classes has; it is made for some clients at a time."""
_READABLE = 50
"""Most classes in a table for readers."""
_TOGETHER = 2**16
"""Most clients in a table of clients by classes."""
_LEAST_OF_ONE, _LEAST, _LEARNT = 20, 100, 1.2
_CLEARLY, _FAR = 2.0, 0.05

NDArray: TypeAlias = npt.NDArray[Any]


class ClassMetrics(NamedTuple):
    """The accuracy of each class at each client that has examples of it, ordered by client, then by class.

    Attributes:
      clients: the clients' positions, ``(cells,)``.
      classes: class numbers, ``(cells,)``.
      counts: examples of that class at that client, ``(cells,)``, at least 1: an absent class has no accuracy.
      accuracy: the share of them that the client's model gets right, ``(cells,)``, float64.
    """

    clients: NDArray
    classes: NDArray
    counts: NDArray
    accuracy: NDArray

    @staticmethod
    def joined(parts: Mapping[int, ClassMetrics]) -> ClassMetrics:
        """Joins blocks of clients, each given with the position of its first client."""
        moved = [part._replace(clients=part.clients + first) for first, part in parts.items()]
        return ClassMetrics(*(np.concatenate(column) for column in zip(*moved, strict=True)))

    def among(self, chosen: NDArray) -> ClassMetrics:
        """The cells of the clients that are chosen, bool ``(K,)``, with their positions as before."""
        kept = chosen[self.clients]
        return ClassMetrics(*(part[kept] for part in self))


class ClassIndex(NamedTuple):
    """Which clients have examples of which classes.

    Attributes:
      y: class numbers of all examples, ``(examples,)``, on the host.
      offsets: ``(K + 1,)``; client ``k`` has rows ``offsets[k]`` up to ``offsets[k + 1]``.
      number: how many classes there are.
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
        """Which cells a table, ``(clients, classes)`` from client ``first`` on, fills, and their values in it."""
        cells = slice(*np.searchsorted(self.clients, [first, first + len(table)]))
        return cells, table[self.clients[cells] - first, self.classes[cells]]

    def metrics(self, right: NDArray) -> ClassMetrics:
        """The accuracies, from how many examples of each cell are right, ``(cells,)``."""
        return ClassMetrics(self.clients, self.classes, self.counts, right / self.counts)

    def some(self, chosen: slice) -> ClassIndex:
        """The index of the clients in the slice ``chosen``, renumbered from 0."""
        offsets = self.offsets[chosen.start : chosen.stop + 1]
        cells = slice(*np.searchsorted(self.clients, [chosen.start, chosen.stop]))
        columns = (self.clients[cells] - chosen.start, self.classes[cells], self.counts[cells])
        return ClassIndex(self.y[offsets[0] : offsets[-1]], offsets - offsets[0], self.number, *columns)

    def sums(self, *values: NDArray) -> list[NDArray]:
        """Sums values per example over each cell, ``(examples,) -> (cells,)`` each."""
        sums = [np.zeros(len(self.clients)) for _ in values]
        for first, rows, keys, clients in self.blocks():
            for of_rows, into in zip(values, sums, strict=True):
                table = np.bincount(keys, of_rows[rows], clients * self.number)
                cells, totals = self.cells(first, table.reshape(clients, self.number))
                into[cells] = totals
        return sums

    def blocks(self) -> Iterator[tuple[int, slice, NDArray, int]]:
        """Blocks of clients: the first client, the rows, each row's cell in the block's table, how many clients."""
        sizes, fitting = np.diff(self.offsets), self.fitting()
        for first in range(0, len(sizes), fitting):
            some = sizes[first : first + fitting]
            rows = slice(int(self.offsets[first]), int(self.offsets[first + len(some)]))
            yield first, rows, np.repeat(np.arange(len(some)) * self.number, some) + self.y[rows], len(some)


def index_classes(y: NDArray, offsets: NDArray, number: int) -> ClassIndex:
    """Finds which clients have examples of which classes.

    Args:
      y: class numbers ``0 .. number - 1``, one per example.
      offsets: ``(K + 1,)``.
      number: how many classes there are.
    """
    empty = (np.zeros(0, np.int64),) * 3
    index = ClassIndex(np.asarray(y).reshape(-1), np.asarray(offsets, np.int64), number, *empty)
    cells = [empty]
    for first, _, keys, many in index.blocks():
        table = np.bincount(keys, minlength=many * number)
        present = np.flatnonzero(table)
        cells.append((first + present // number, present % number, table[present]))
    clients, classes, counts = map(np.concatenate, zip(*cells, strict=True))
    return index._replace(clients=clients, classes=classes, counts=counts)


def class_spread(metrics: ClassMetrics, clients: int) -> dict[str, npt.NDArray[np.float64]]:
    r"""How evenly each client's classes are served; an absent class is left out and does not count as 0.

    With ``a_{n,k}`` the accuracy of class ``k`` at client ``n`` and ``K_n`` the classes that it has examples of:

    * ``"classes"``: ``|K_n|``, 0 for a client without examples;
    * ``"class_spread"``: ``s_n = std {a_{n,k} : k in K_n}`` (population), a share of 1; 0 for a client with one class;
    * ``"worst_class"``: ``min {a_{n,k} : k in K_n}``.

    Args:
      metrics: the accuracies.
      clients: how many clients there are.

    Returns:
      ``(clients,)`` each; the latter two are NaN for a client without examples.

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
    client, accuracy = metrics.clients, metrics.accuracy
    number = np.bincount(client, minlength=clients).astype(np.float64)
    worst = np.full(clients, np.nan)
    if len(client):
        starts = np.flatnonzero(np.diff(client, prepend=-1))
        worst[client[starts]] = np.minimum.reduceat(accuracy, starts)
    divisor = np.maximum(number, 1.0)
    # Less the lowest one, so that equal accuracies have a spread of exactly 0.
    above = accuracy - worst[client]
    deviation = above - (np.bincount(client, above, clients) / divisor)[client]
    spread = np.sqrt(np.bincount(client, deviation**2, clients) / divisor)
    return {"classes": number, "class_spread": np.where(number > 0, spread, np.nan), "worst_class": worst}


def class_columns(metrics: ClassMetrics, clients: int) -> dict[str, npt.NDArray[np.float64]]:
    """What :func:`class_spread` gives, and ``"rarest"``: how many examples a client has of the rarest of its classes.

    The latter, ``(clients,)``, is 0 for a client with fewer than two classes.

    Example:
      >>> table = ClassMetrics(np.array([0, 0, 2]), np.array([3, 7, 3]), np.array([75, 25, 9]), np.ones(3))
      >>> class_columns(table, 3)["rarest"].tolist()
      [25.0, 0.0, 0.0]
    """
    columns, rarest = class_spread(metrics, clients), np.zeros(clients)
    if len(metrics.clients):
        starts = np.flatnonzero(np.diff(metrics.clients, prepend=-1))
        rarest[metrics.clients[starts]] = np.minimum.reduceat(metrics.counts, starts)
    return columns | {RAREST: np.where(columns["classes"] > 1, rarest, 0.0)}


def summarize_classes(columns: Mapping[str, NDArray]) -> dict[str, float]:
    r"""Summarises over clients how evenly each client's classes are served.

    * ``class_spread``: :math:`\mu_\sigma = \mathrm{mean}_n\, s_n`, every client that has examples counts alike;
    * ``class_spread_std``: :math:`\sigma_\sigma = \mathrm{std}_n\, s_n` (population);
    * ``worst_class``: ``min {a_{n,k}}`` over all clients and their classes, 0 where a model has given up some class.

    Accuracies and their spreads are shares of 1: times 100 they are the paper's percentage points.  Less spread is
    more even.  Where every client has one class only, there is no spread to measure and it is 0.

    Args:
      columns: from :func:`class_spread`.

    Returns:
      NaN where no client has examples, or where a client that has some got NaN.

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
    with np.errstate(invalid="ignore"):  # a damaged table may hold infinities
        return {
            "class_spread": float(np.mean(spread)),
            "class_spread_std": float(np.std(spread - spread[0])),
            "worst_class": float(np.min(worst)),
        }


def by_class(metrics: ClassMetrics, names: Sequence[str] | None, number: int) -> list[dict[str, Any]]:
    """One entry per class: its name, its examples (``rows``), how many clients have some, and its accuracy.

    Empty for more than 50 classes, too many to read one by one.

    ``accuracy`` is over all examples of the class, ``worst`` is that of the client where it is lowest; both are None
    for a class without examples.

    Args:
      metrics: the accuracy of each class at each client.
      names: the names of the classes; None: their numbers.
      number: how many classes there are.

    Example:
      >>> a = np.array
      >>> metrics = ClassMetrics(a([0, 0, 1]), a([0, 1, 1]), a([4, 1, 3]), a([0.5, 1.0, 0.0]))
      >>> by_class(metrics, ("no", "yes"), 2)[1]
      {'class': 'yes', 'rows': 4, 'clients': 2, 'accuracy': 0.25, 'worst': 0.0}
    """
    entries: list[dict[str, Any]] = []
    for k in range(number if number <= _READABLE else 0):
        cells = metrics.classes == k
        counts, accuracy = metrics.counts[cells], metrics.accuracy[cells]
        some = len(counts) > 0
        entries.append(
            {
                "class": str(k) if names is None else names[k],
                "rows": int(counts.sum()),
                "clients": len(counts),
                "accuracy": float(np.average(accuracy, weights=counts)) if some else None,
                "worst": float(accuracy.min()) if some else None,
            }
        )
    return entries


# --- one constant answer -------------------------------------------------------------------------------------------


class ClassTotals(NamedTuple):
    """How many examples of each class there are, and how many of them are right.

    Attributes:
      classes: the classes that occur, ascending, ``(C,)``.
      counts: examples of each, ``(C,)``.
      right: how many of these are right, ``(C,)``.
    """

    classes: NDArray
    counts: NDArray
    right: NDArray

    @property
    def total(self) -> float:
        """How many examples there are."""
        return float(np.sum(self.counts))

    @property
    def share(self) -> float:
        """The share of the most frequent class."""
        return float(np.max(self.counts)) / self.total

    @property
    def accuracy(self) -> float:
        """The share of the examples that are right."""
        return float(np.sum(self.right)) / self.total

    @property
    def only(self) -> int | None:
        """The place of the one class that the model answers for all examples, at least 20; None: it answers several."""
        some = np.flatnonzero(self.right > 0.5)
        if self.total < _LEAST_OF_ONE or len(some) != 1:
            return None
        return int(some[0]) if self.right[some[0]] > self.counts[some[0]] - 0.5 else None

    @property
    def is_guess(self) -> bool:
        """Whether they are no better than one constant answer.

        The rule, where the ``n`` examples have two or more classes, of which the most frequent has a share ``p``:

        * one answer: of at least 20 examples, all of one class are right and none of any other;
        * no better: over at least 100 examples, the accuracy is at most ``p + sqrt(p (1 - p) / n)``, and the mean of
          the classes' accuracies at most 1.2 times that of a guess.  A fair model that gives up overall accuracy for
          the rare classes has a higher mean, and is not meant.
        """
        if len(self.classes) < 2 or not np.isfinite(self.right).all():
            return False
        if self.only is not None:
            return True
        noise = math.sqrt(self.share * (1 - self.share) / self.total)
        recall = float(np.mean(self.right / self.counts))
        is_low = self.total >= _LEAST and self.accuracy <= self.share + noise
        return is_low and recall <= _LEARNT / len(self.classes)


def class_totals(cells: ClassMetrics) -> ClassTotals:
    """The answers to the examples of all clients together."""
    counts = np.bincount(cells.classes, cells.counts)
    right = np.bincount(cells.classes, cells.counts * cells.accuracy)
    present = np.flatnonzero(counts)
    return ClassTotals(present, counts[present], right[present])


class Ranking(NamedTuple):
    """That a model ranks examples far better than at random.

    Attributes:
      auc: the mean over clients.
      clients: how many have one.
    """

    auc: float
    clients: int


def ranking(cells: ClassMetrics, auc: NDArray) -> Ranking | None:
    r"""How well a model ranks the examples, if that is clearly better than at random; else None.

    The rule: the mean AUC over clients exceeds .5 by .05 at least, and by two of the standard deviations that it would
    have if scores were drawn at random.  For a client with :math:`P` examples of a class and :math:`N` others that
    deviation is :math:`\sqrt{(P + N + 1) / (12 P N)}` (Mann and Whitney), and of several classes the mean of theirs.

    Args:
      cells: which clients have how many examples of each class.
      auc: of each client, ``(K,)``, numbered as in ``cells``; NaN where it is undefined.
    """
    totals = np.bincount(cells.clients, cells.counts, len(auc))
    others = totals[cells.clients] - cells.counts
    deviation = np.sqrt((totals[cells.clients] + 1) / (12.0 * cells.counts * np.maximum(others, 1)))
    classes = np.bincount(cells.clients, minlength=len(auc))
    has = np.isfinite(auc) & (classes > 1)
    if not has.any():
        return None
    of_client = (np.bincount(cells.clients, deviation, len(auc)) / np.maximum(classes, 1))[has]
    mean, clients = float(np.mean(auc[has])), int(np.sum(has))
    least = max(_FAR, _CLEARLY * math.sqrt(float(np.sum(of_client**2))) / clients)
    return Ranking(mean, clients) if mean - 0.5 >= least else None
