"""The states that clients keep between rounds, all of them in one store."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand import tree
from evenhand.devices import copies, here
from evenhand.errors import EvenhandError
from evenhand.rounds import RoundState
from evenhand.simulation._host_store import HostStore
from evenhand.types import Array, PyTree

__all__ = ["Kept", "States", "stored"]


_LIGHT = 2**26
"""Bytes of all clients' states that may be copied at every evaluation."""


class Kept:
    """The state that a run has reached, handed out while training may continue in its memory.

    The clients' states may be most of the memory, so they are copied only if training continues while this object is
    still in use; those in a store on the host are never copied.
    """

    def __init__(self, state: RoundState, store: HostStore | None = None) -> None:
        state = here(state)
        self._clients: PyTree | None = state.clients
        self._store = store
        self._others = copies(state._replace(clients=()))
        self._gone = ""

    @property
    def state(self) -> RoundState:
        """All of it; the clients' states are a copy, which is the caller's."""
        clients = self.clients if self._store is None else self._checked(self._store).whole()
        return self._others._replace(clients=copies(clients))

    @property
    def clients(self) -> PyTree:
        """The clients' states on the device, until training continues; nothing, where they are on the host."""
        self._checked(None)
        return self._clients

    def client(self, k: int) -> PyTree:
        """The state of one client."""
        if self._store is None:
            return tree.take(self.clients, jnp.int32(k))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self._checked(self._store).of(np.array([k])))

    def some(self, clients: slice) -> PyTree:
        """The states of the clients at these positions, with a leading axis."""
        if self._store is None:
            return jax.tree.map(lambda leaf: leaf[clients], self.clients)
        return self._checked(self._store).of(np.arange(clients.start, clients.stop))

    @property
    def light(self) -> bool:
        """Whether all clients' states may be copied at every evaluation, since they take little memory."""
        return self._store is None and sum(leaf.nbytes for leaf in jax.tree.leaves(self.clients)) <= _LIGHT

    @property
    def server(self) -> PyTree:
        """The algorithm's server state."""
        return self._others.server

    def move_on(self) -> None:
        """Training continues, and reuses the memory of the clients' states."""
        if self._store is not None:
            self._gone = (
                "This run has trained on since, and its clients' states, which are on the host, are never copied: ask "
                "for personal models before the next evaluation, or give simulate(offload=False)."
            )
        elif not self._gone:
            self._clients = copies(self._clients)

    def release(self) -> None:
        """Drops the clients' states."""
        self._clients = self._store = None
        self._gone = (
            "This run has released its clients' states, so that training could continue in their place: ask for "
            "personal models before release()."
        )

    def _checked(self, store: Any) -> Any:
        if self._gone:
            raise EvenhandError(self._gone)
        return store


def stored(one: PyTree, clients: int) -> PyTree:
    """A store of so many states like ``one``, leaves ``(clients, ...)``, on the same device.

    Not made on the host first: a million clients' states may be most of the memory.
    """
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), one)


class States(NamedTuple):
    """The clients' states on the device.

    Attributes:
      all: leaves ``(N, ...)``, or those of some clients.
      slots: int32 ``(N,)``, where each client's state is in them; None: at its id.
    """

    all: PyTree
    slots: Array | None = None

    def of(self, ids: Array) -> PyTree:
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
