"""Clients' states in host memory or in files: far more of them than a device could hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.types import PyTree

__all__ = ["HostStore", "chunks"]

NDArray = npt.NDArray[Any]

_CHUNK = 2**24
"""Bytes that are handled at a time, about."""


class HostStore:
    """The states of all clients, of which only those that have ever changed take memory, or room on the disk.

    Args:
      one: the state of a new client.
      clients: how many there are.
      folder: where they are mapped from files, which are made anew and are of no use after the run; None: in memory.

    Attributes:
      touched: who has another state than a new client's, bool ``(clients,)``.
      changed: who has got a state since :meth:`settle`, bool ``(clients,)``.
    """

    def __init__(self, one: PyTree, clients: int, folder: Path | None = None) -> None:
        leaves, self._structure = jax.tree.flatten(one)
        self.one: list[NDArray] = [np.asarray(leaf) for leaf in leaves]
        self.clients, self.folder = clients, folder
        self.touched, self.changed = np.zeros(clients, bool), np.zeros(clients, bool)
        self.arrays: list[NDArray] = [
            _room(None if folder is None else folder / f"states-{i}", (clients, *leaf.shape), leaf.dtype)
            for i, leaf in enumerate(self.one)
        ]

    @property
    def bytes_each(self) -> int:
        """Bytes of one client's state."""
        return sum(leaf.nbytes for leaf in self.one)

    @property
    def like(self) -> PyTree:
        """The shapes of all states."""
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.arrays]
        return jax.tree.unflatten(self._structure, shapes)

    def of(self, ids: NDArray, room: int | None = None) -> PyTree:
        """The states of some clients, leaves ``(ids, ...)``; with ``room``, as many, the last of new clients."""
        count, known = len(ids), self.touched[ids]
        found: list[NDArray] = []
        for array, one in zip(self.arrays, self.one, strict=True):
            taken = np.empty((count if room is None else room, *one.shape), one.dtype)
            np.take(array, ids, axis=0, out=taken[:count], mode="clip")
            taken[:count][~known] = one
            taken[count:] = one
            found.append(taken)
        return jax.tree.unflatten(self._structure, found)

    def put(self, ids: NDArray, states: PyTree) -> None:
        """New states of some clients: of leaves ``(at least ids, ...)`` the first."""
        for array, new in zip(self.arrays, jax.tree.leaves(states), strict=True):
            array[ids] = np.asarray(new)[: len(ids)]
        self.touched[ids] = self.changed[ids] = True

    def settle(self) -> None:
        """What has changed is saved elsewhere."""
        self.changed[:] = False

    def reset(self) -> None:
        """All clients are new."""
        self.touched[:] = self.changed[:] = False

    def whole(self) -> PyTree:
        """The states of all clients, as arrays of their own."""
        return self.of(np.arange(self.clients))


def chunks(store: HostStore, ids: NDArray) -> Iterator[NDArray]:
    """These clients, as many at a time as make some megabytes."""
    step = max(1, _CHUNK // max(1, store.bytes_each))
    for first in range(0, len(ids), step):
        yield ids[first : first + step]


def _room(path: Path | None, shape: tuple[int, ...], dtype: Any) -> NDArray:
    if path is None:
        return np.zeros(shape, dtype)  # which takes no memory before it is written to
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        return np.memmap(path, dtype, "w+", shape=shape)
    except OSError as error:
        raise EvenhandError(f"Clients' states cannot be kept in {path.parent}: {error.strerror}.") from error
