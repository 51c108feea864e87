"""The states that clients keep between rounds, all of them in one store."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand.devices import copies, here
from evenhand.errors import EvenhandError
from evenhand.rounds import RoundState
from evenhand.types import Array, PyTree

__all__ = ["Kept", "scatter", "stored"]


class Kept:
    """The state that a run has reached, handed out while training may continue in its memory.

    The clients' states may be most of the memory, so they are copied only if training continues while this object is
    still in use.
    """

    def __init__(self, state: RoundState) -> None:
        state = here(state)
        self._clients: PyTree | None = state.clients
        self._server, self._aggregators = copies((state.server, state.aggregators))

    @property
    def state(self) -> RoundState:
        """All of it; the clients' states are a copy, which is the caller's."""
        return RoundState(self._server, self._aggregators, copies(self.clients))

    @property
    def clients(self) -> PyTree:
        """The clients' states, until training continues."""
        if self._clients is None:
            raise EvenhandError(
                "This run has released its clients' states, so that training could continue in their place: ask for "
                "personal models before release()."
            )
        return self._clients

    @property
    def server(self) -> PyTree:
        """The algorithm's server state."""
        return self._server

    def move_on(self) -> None:
        """Training continues, and reuses the memory of the clients' states."""
        if self._clients is not None:
            self._clients = copies(self._clients)

    def release(self) -> None:
        """Drops the clients' states."""
        self._clients = None


def stored(one: PyTree, clients: int) -> PyTree:
    """A store of so many states like ``one``, leaves ``(clients, ...)``, on the same device.

    Not made on the host first: a million clients' states may be most of the memory.
    """
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), one)


def scatter(store: PyTree, ids: Array, chosen: Array, states: PyTree) -> PyTree:
    """The store with new states of the chosen clients, among ``ids``; the others keep theirs."""

    def put(old: Array, new: Array) -> Array:
        return old.at[jnp.where(chosen, ids, old.shape[0])].set(new, mode="drop")

    return jax.tree.map(put, store, states)
