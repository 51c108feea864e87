"""Clients' states that stay on the host, while those of the next rounds' clients are on the devices."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from evenhand.devices import everywhere, here
from evenhand.simulation._ahead import cohorts
from evenhand.simulation._host_store import HostStore
from evenhand.simulation.program import Program
from evenhand.streams import Keys
from evenhand.types import Array, PyTree

__all__ = ["Offloaded", "StateBlock"]

NDArray = npt.NDArray[Any]

_BLOCK = 2**26
"""Bytes of states in a block, about."""
_MOST_ROUNDS = 2**6


class StateBlock(NamedTuple):
    """The states of the clients of some rounds.

    Attributes:
      ids: who takes part, ascending.
      rounds: how many rounds these are.
      states: on the devices, ``(room, ...)``; the last ones belong to nobody.
      slots: where each client's state is in them, int32 ``(N,)``; that of others is the last.
    """

    ids: NDArray
    rounds: int
    states: PyTree
    slots: Array


class Offloaded:
    """Sends the states of the clients of some rounds to the devices, and takes them back afterwards.

    Which clients take part does not depend on the training, so that the next states are gathered while these rounds
    train; only those of clients in both are gathered again.

    Args:
      store: all states.
      program: has the sampling scheme.
      sizes: of the clients, int32 ``(N,)``, on the devices.
      table: of the sampling scheme, likewise.
      keys: of the cohorts.
    """

    def __init__(self, store: HostStore, program: Program, sizes: Array, table: PyTree, keys: Keys) -> None:
        self.store, self._mesh, self._keys = store, program.mesh, keys
        self._sizes, self._table = (sizes, table) if self._mesh is None else here((sizes, table))
        draws = program.cohort * len(program.algorithm.phases)
        most = int(np.clip(_BLOCK // max(1, draws * store.bytes_each), 1, _MOST_ROUNDS))
        self._most, self._room = most, min(store.clients, most * draws) + 1
        self._draw = cohorts(program, most)
        self._worker = ThreadPoolExecutor(1, "evenhand-states")
        self._next: tuple[int, NDArray, Future[PyTree]] | None = None
        self._stale = np.zeros(0, np.int64)

    def block(self, first: int, count: int) -> StateBlock:
        """The states for rounds from ``first`` on: for at most ``count`` rounds, of which the block says how many."""
        rounds = min(count, self._most)
        ids, states = self._gathered(first, rounds)
        _spoil(states)
        slots = np.full(self.store.clients, self._room - 1, np.int32)
        slots[ids] = np.arange(len(ids), dtype=np.int32)
        block = StateBlock(ids, rounds, *everywhere(self._mesh, (states, slots)))
        if rounds:
            self._prepare(first + rounds, rounds)
        return block

    def take_back(self, block: StateBlock, states: PyTree) -> None:
        """Stores what has become of a block's states."""
        self.store.put(block.ids, here(states))
        self._stale = block.ids

    def _gathered(self, first: int, rounds: int) -> tuple[NDArray, PyTree]:
        ahead, self._next = self._next, None
        ids = self._drawn(first, rounds)
        if ahead is None or ahead[0] != first or not np.array_equal(ahead[1], ids):
            return ids, self.store.of(ids, self._room)
        states = ahead[2].result()
        both = np.flatnonzero(np.isin(ids, self._stale))
        for leaf, new in zip(jax.tree.leaves(states), jax.tree.leaves(self.store.of(ids[both])), strict=True):
            leaf[both] = new
        return ids, states

    def _prepare(self, first: int, rounds: int) -> None:
        """Gathers in the background; the cohorts are drawn at once, before the device is given other work."""
        ids = self._drawn(first, rounds)
        self._next = first, ids, self._worker.submit(self.store.of, ids, self._room)

    def _drawn(self, first: int, rounds: int) -> NDArray:
        drawn = np.asarray(self._draw(self._sizes, self._table, self._keys, np.int32(first)))[:rounds]
        found = np.unique(drawn)
        return found[found >= 0].astype(np.int64)


def _spoil(states: PyTree) -> None:
    """Puts NaN into the last state: if a round ever drew another client than those drawn ahead, it would show."""
    for leaf in jax.tree.leaves(states):
        if leaf.dtype.kind == "f":
            leaf[-1] = np.nan
