"""The states that clients keep between rounds, all of them in one store.

They are on the devices (:class:`States`), or, where they are far more than a device could hold, in the host's memory or
in files (:class:`HostStore`); a result of a run hands them out (:class:`Kept`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand.devices import copies, here
from evenhand.errors import EvenhandError, StorageError
from evenhand.rounds import RoundState
from evenhand.types import Array, PyTree

__all__ = ["HostStore", "Kept", "States", "chunks", "stored"]

NDArray = npt.NDArray[Any]


# --- on the devices ---------------------------------------------------------------------------------------------------


def stored(state: PyTree, clients: int) -> PyTree:
    """A store of so many states like ``state``, leaves ``(clients, ...)``, on the same device.

    Not made on the host first: a million clients' states may be most of the memory.
    """
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), state)


class States(NamedTuple):
    """The clients' states on the device.

    Attributes:
      all: leaves ``(N, ...)``, or those of some clients.
      slots: int32 ``(N,)``, where each client's state is in them; None: at its id.
    """

    all: PyTree
    slots: Array | None = None

    def at(self, ids: Array) -> PyTree:
        """The states of some clients, or of one."""
        places = ids if self.slots is None else self.slots[ids]
        # Not leaf[places], which checks for negative places.
        return jax.tree.map(lambda leaf: jnp.take(leaf, places, axis=0, mode="clip"), self.all)

    def after(self, ids: Array, chosen: Array, states: PyTree) -> PyTree:
        """All states, with new ones of the chosen clients, among ``ids``; the others keep theirs."""
        places = ids if self.slots is None else self.slots[ids]

        def put(old: Array, new: Array) -> Array:
            # As XLA:CPU wants it, each update with an axis of length 1: else it copies all of them into this form.
            window = lax.ScatterDimensionNumbers(tuple(range(1, old.ndim + 1)), (), (0,))
            where = jnp.where(chosen, places, old.shape[0])[:, None]
            return lax.scatter(old, where, jnp.asarray(new, old.dtype)[:, None], window, mode="drop")

        return jax.tree.map(put, self.all, states)


# --- in host memory or in files ---------------------------------------------------------------------------------------

_CHUNK = 2**24
"""Bytes that are handled at a time, about."""


class HostStore:
    """The states of all clients, of which only those that have ever changed take memory, or room on the disk.

    Args:
      newcomer: the state of a new client.
      clients: how many there are.
      folder: where they are mapped from files, which are made anew and are of no use after the run; None: in memory.

    Attributes:
      touched: who has another state than a new client's, bool ``(clients,)``.
      changed: who has got a state since :meth:`settle`, bool ``(clients,)``.
    """

    def __init__(self, newcomer: PyTree, clients: int, folder: Path | None = None) -> None:
        leaves, self._structure = jax.tree.flatten(newcomer)
        self.newcomer: list[NDArray] = [np.asarray(leaf) for leaf in leaves]
        self.clients, self.folder = clients, folder
        self.touched, self.changed = np.zeros(clients, bool), np.zeros(clients, bool)
        self.arrays: list[NDArray] = [
            _room(None if folder is None else folder / f"states-{i}", (clients, *leaf.shape), leaf.dtype)
            for i, leaf in enumerate(self.newcomer)
        ]

    @property
    def bytes_each(self) -> int:
        """Bytes of one client's state."""
        return sum(leaf.nbytes for leaf in self.newcomer)

    @property
    def like(self) -> PyTree:
        """The shapes of all states."""
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.arrays]
        return jax.tree.unflatten(self._structure, shapes)

    def read(self, ids: NDArray, room: int | None = None) -> PyTree:
        """The states of some clients, leaves ``(ids, ...)``; with ``room``, as many, the last of new clients."""
        count, touched = len(ids), self.touched[ids]
        gathered: list[NDArray] = []
        for array, newcomer in zip(self.arrays, self.newcomer, strict=True):
            taken = np.empty((count if room is None else room, *newcomer.shape), newcomer.dtype)
            np.take(array, ids, axis=0, out=taken[:count], mode="clip")
            taken[:count][~touched] = newcomer
            taken[count:] = newcomer
            gathered.append(taken)
        return jax.tree.unflatten(self._structure, gathered)

    def put(self, ids: NDArray, states: PyTree) -> None:
        """New states of some clients: of leaves ``(at least ids, ...)`` the first."""
        # Only these rows are written: pages that no client has touched take no memory, nor room on the disk.
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
        return self.read(np.arange(self.clients))


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
        raise StorageError(f"Clients' states cannot be kept in {path.parent}: {error.strerror}.") from error


# --- handed out with a result -----------------------------------------------------------------------------------------

_LIGHT = 2**26
"""Bytes of all clients' states that may be copied at every evaluation."""


class Kept:
    """The state that a run has reached, handed out while training may continue in its memory.

    The clients' states may be most of the memory, so they are lent: when training continues, their owner takes them
    back (:meth:`take_back`).  Light ones are then copied, for a run that is still in use; others are gone, unless they
    have been copied before (:meth:`keep`).
    """

    def __init__(self, state: RoundState, store: HostStore | None = None) -> None:
        state = here(state)
        # The others are small, and are copied: the next round's program takes over the memory of all of them.
        self._clients: PyTree | None = state.clients
        self._store, self._is_lent = store, True
        self._others = copies(state._replace(clients=()))
        self._gone = ""

    @property
    def state(self) -> RoundState:
        """All of it; the clients' states are a copy, which is the caller's."""
        clients = self.clients if self._store is None else self._checked(self._store).whole()
        return self._others._replace(clients=copies(clients))

    @property
    def clients(self) -> PyTree:
        """The clients' states; nothing, where a store on the host has them."""
        self._checked(None)
        return self._clients

    def client(self, k: int) -> PyTree:
        """The state of one client."""
        if self._store is None:
            return jax.tree.map(lambda leaf: jnp.asarray(leaf[jnp.int32(k)]), self.clients)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self._checked(self._store).read(np.array([k])))

    def some(self, clients: slice) -> PyTree:
        """The states of the clients at these positions, with a leading axis."""
        if self._store is None:
            return jax.tree.map(lambda leaf: leaf[clients], self.clients)
        return self._checked(self._store).read(np.arange(clients.start, clients.stop))

    @property
    def light(self) -> bool:
        """Whether all clients' states may be copied at every evaluation, since they take little memory."""
        return self._store is None and self._bytes <= _LIGHT

    @property
    def is_gone(self) -> bool:
        """Whether the clients' states are no longer here."""
        return bool(self._gone)

    @property
    def server(self) -> PyTree:
        """The algorithm's server state."""
        return self._others.server

    def take_back(self) -> None:
        """Training continues, and reuses the memory of the clients' states."""
        if self._gone or not self._is_lent:
            return
        if self.light:
            self.keep()
            return
        place = "on the host" if self._store is not None else f"of {self._bytes / 2**20:,.0f} MB"
        way = ", or give simulate(offload=False)" if self._store is not None else ""
        self._clients = self._store = None
        self._gone = (
            f"This run has trained on since, and its clients' states, which are {place}, are never copied: ask "
            f"for personal models before the next evaluation, or call run.keep() before it{way}."
        )

    def keep(self) -> None:
        """Copies the clients' states, which are then this object's own."""
        if self._store is not None:
            self._clients, self._store = self._checked(self._store).whole(), None
        elif self._is_lent:
            self._clients = copies(self.clients)
        self._is_lent = False

    def release(self) -> None:
        """Drops the clients' states."""
        self._clients = self._store = None
        self._gone = (
            "This run has released its clients' states, so that training could continue in their place: ask for "
            "personal models before release()."
        )

    @property
    def _bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._clients))

    def _checked(self, store: Any) -> Any:
        if self._gone:
            raise EvenhandError(self._gone)
        return store
