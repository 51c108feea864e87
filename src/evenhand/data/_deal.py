"""The arithmetic of the partitioners."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from evenhand.data._arrays import NDArray, as_array
from evenhand.errors import EvenhandError, whole_number

__all__ = [
    "check_clients",
    "classes",
    "deal",
    "no_empty_client",
    "row_count",
    "rows_of_classes",
    "shard_counts",
    "spread",
]


def row_count(rows: int | npt.ArrayLike) -> int:
    """The length of an array, or the number given in its place."""
    try:
        return len(rows)  # pyright: ignore[reportArgumentType]  (the point is to try)
    except TypeError:
        return whole_number("rows", rows, 0)


def classes(y: npt.ArrayLike, what: str = "y") -> NDArray:
    """``(n,)`` labels of any kind as positions among the sorted distinct ones."""
    labels = as_array(y, "partition", what)
    if labels.ndim != 1:
        raise EvenhandError(
            f"{what} has {labels.ndim} axes: give one class label per example to partition by label."
        )
    return np.unique(labels, return_inverse=True)[1]


def check_clients(rows: int, clients: int) -> None:
    """Refuses a number of clients that is not a whole number from 1, or is larger than that of the examples."""
    if whole_number("clients", clients, 1) > rows:
        raise EvenhandError(f"{rows} examples are too few for {clients} clients: give each at least one.")


def rows_of_classes(codes: NDArray) -> list[NDArray]:
    """The rows of each class in ascending order."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


def spread(rows: int, shares: NDArray) -> NDArray:
    """``(rows,)`` client numbers in ascending order, client ``k`` about ``shares[k] * rows`` times."""
    ends = np.rint(np.cumsum(shares) * rows).astype(np.int64)
    ends[-1] = rows
    return np.repeat(np.arange(len(shares)), np.diff(ends, prepend=0))


def no_empty_client(client: NDArray, clients: int, random: np.random.Generator) -> NDArray:
    """Gives each client without examples a random one of the client that has most, the first of several."""
    members = [rows.tolist() for rows in rows_of_classes(client)]
    members += [[] for _ in range(clients - len(members))]
    heap = [(-len(rows), k) for k, rows in enumerate(members) if rows]
    heapq.heapify(heap)
    for k in [k for k, rows in enumerate(members) if not rows]:
        donor = heap[0][1]
        client[members[donor].pop(int(random.integers(len(members[donor]))))] = k
        heapq.heapreplace(heap, (-len(members[donor]), donor))
    return client


def shard_counts(counts: NDArray, clients: int, each: int) -> NDArray:
    """Shards per class: about equal ones, at most one per client, ``clients * each`` in all."""
    if not 1 <= whole_number("classes_per_client", each, 1) <= len(counts):
        raise EvenhandError(
            f"classes_per_client must be between 1 and the {len(counts)} classes, not {each}."
        )
    total = clients * each
    most = np.minimum(counts, clients)
    if total < len(counts):
        raise EvenhandError(
            f"{clients} clients with {each} classes each cannot hold {len(counts)} classes: use more clients "
            "or more classes per client."
        )
    if total > most.sum():
        raise EvenhandError(
            f"there are too few examples to give {clients} clients {each} classes each: use fewer clients or fewer "
            "classes per client."
        )
    pieces = np.ones(len(counts), np.int64)
    heap = [(-count / 2, label) for label, count in enumerate(counts.tolist()) if most[label] > 1]
    heapq.heapify(heap)
    for _ in range(total - len(counts)):
        _, label = heapq.heappop(heap)
        pieces[label] += 1
        if pieces[label] < most[label]:
            heapq.heappush(heap, (-counts[label].item() / (pieces[label].item() + 1), label))
    return pieces


def deal(pieces: NDArray, clients: int, each: int, random: np.random.Generator) -> list[list[int]]:
    """For each class, the clients that get a shard; taking the classes with most shards left always succeeds."""
    left = pieces.astype(np.float64)
    holders: list[list[int]] = [[] for _ in pieces]
    for k in random.permutation(clients).tolist():
        chosen = np.argsort(left + random.random(len(left)) / 2)[-each:]
        left[chosen] -= 1
        for label in chosen.tolist():
            holders[label].append(k)
    return holders
