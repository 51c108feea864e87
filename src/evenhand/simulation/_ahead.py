"""The cohorts of rounds to come, drawn ahead, and their rows, gathered while the rounds before them train.

Which clients take part in a round depends on the seed and not on the training.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand import rounds
from evenhand.data import Split
from evenhand.devices import here
from evenhand.memory import empty_aligned
from evenhand.simulation._rows import poison, sent
from evenhand.simulation.program import Program, Rows
from evenhand.streams import Keys
from evenhand.types import Array, PyTree

__all__ = ["Ahead", "Block", "cohorts", "drawn_last", "room_for"]

NDArray = npt.NDArray[Any]

_BLOCK = 2**24
"""Bytes of rows in a block, about: some rounds of a small cohort, that a processor's cache may hold."""
_MOST_AHEAD = 2**8
"""Most rounds in a block."""


class Block(NamedTuple):
    """The rows of the clients of some rounds.

    Attributes:
      first: the first of the rounds.
      until: the round after the last.
      clients: ids of the clients that take part, ascending.
      starts: their first rows in the block.
      x: on the devices; the last row is NaN, or the largest integer.
      y: likewise.
    """

    first: int
    until: int
    clients: NDArray
    starts: NDArray
    x: Array
    y: Array


class Ahead:
    """Draws the cohorts of a block of rounds, gathers the rows of their clients and sends these to the devices.

    Args:
      program: has the sampling scheme and the attack.
      train: all training rows, on the host or in a file.
      malicious: which clients are, ``(N,)``.
      shared: ``(sizes, malicious, table)`` on the devices.
      seed: of the attack on rows.
      keys: of the cohorts.
    """

    def __init__(
        self,
        program: Program,
        train: Split,
        malicious: NDArray,
        shared: tuple[Array, Array, PyTree],
        seed: int,
        keys: Keys,
    ) -> None:
        self._attack, self._mesh = program.attack, program.mesh
        self._train, self._sizes, self._malicious, self._shared = train, train.sizes, malicious, shared
        self._seed, self._keys = seed, keys
        rows, need = _block_rows(program, train)
        self._draw = cohorts(program, int(np.clip(rows // need, 1, _MOST_AHEAD)))
        self._worker = ThreadPoolExecutor(1, "evenhand-rows")
        self._next: tuple[int, Future[Block]] | None = None

    def block(self, first: int, room: int) -> Block:
        """The block that begins with round ``first``, of ``room`` rows or, where one cohort has more, of as many."""
        ahead, self._next = self._next, None
        if ahead is not None:
            gathered = ahead[1].result()
            if ahead[0] == first:
                return gathered
        return self._gather(first, self._drawn(first), room)

    def prepare(self, first: int, room: int) -> None:
        """Gathers the block that begins with round ``first`` in the background; its cohorts are drawn at once.

        A device does things in turn, and would draw them after the rounds that it is given next.
        """
        ids = self._drawn(first)
        self._next = first, self._worker.submit(self._gather, first, ids, room)

    def _drawn(self, first: int) -> Array:
        sizes, _, table = self._shared if self._mesh is None else here(self._shared)
        return self._draw(sizes, table, self._keys, np.int32(first))

    def _gather(self, first: int, ids: Array, room: int) -> Block:
        drawn = np.asarray(ids)
        until, clients = _fitting(drawn, self._sizes, room)
        if until == 0:
            until, clients = 1, np.unique(drawn[0][drawn[0] >= 0])
        sizes = self._sizes[clients]
        ends = np.cumsum(sizes)
        starts, total = ends - sizes, int(sizes.sum())
        index = np.repeat(self._train.offsets[clients] - starts, sizes) + np.arange(total)
        room = max(room, _round_up(total, self._train.rows))
        x, y = (_taken(part, index, room) for part in (self._train.x, self._train.y))
        if self._attack is not None and self._attack.rows is not None:
            bad = self._malicious[clients]
            poison(self._attack, self._seed, x, y, zip(clients[bad], starts[bad], ends[bad], strict=True))
        return Block(first, first + until, clients, starts, *sent(self._mesh, (x, y)))


def room_for(program: Program, train: Split) -> int:
    """Rows of a block: about as many as a processor's cache holds, and enough for two rounds."""
    rows, need = _block_rows(program, train)
    return _round_up(max(rows, 2 * need), train.rows)


def _block_rows(program: Program, train: Split) -> tuple[int, int]:
    """Rows of a block, and of an average round."""
    draws = program.cohort * len(program.algorithm.phases)
    rows = _BLOCK // max(1, (train.x.nbytes + train.y.nbytes) // train.rows)
    return rows, max(1, int(draws * train.sizes.mean()))


def _fitting(drawn: NDArray, sizes: NDArray, room: int) -> tuple[int, NDArray]:
    """How many of the rounds there is room for, and the clients that take part; ids are ``(rounds, draws)``, or -1."""
    clients, seen = np.unique(drawn, return_index=True)
    clients, seen = clients[clients >= 0], seen[clients >= 0]
    order = np.argsort(seen)
    count = int(np.searchsorted(np.cumsum(sizes[clients[order]]), room, "right"))
    if count == len(clients):
        return len(drawn), clients
    until = int(seen[order[count]]) // drawn.shape[1]
    return until, clients[seen < until * drawn.shape[1]]


def cohorts(program: Program, count: int) -> Callable[[Array, PyTree, Keys, Any], Array]:
    """``(sizes, table, keys, first) -> (rounds, draws)``: the client ids of some rounds, -1 for empty slots."""
    algorithm = program.algorithm

    def one(sizes: Array, table: PyTree, keys: Keys, number: Array) -> Array:
        draw = partial(rounds.cohort, algorithm, program.systems, sizes, program.cohort, keys, number)
        cohorts = [draw(phase, table) for phase in range(len(algorithm.phases))]
        return jnp.concatenate([jnp.where(one.present, one.ids, -1) for one in cohorts])

    def all_of(sizes: Array, table: PyTree, keys: Keys, first: Array) -> Array:
        return lax.map(lambda i: one(sizes, table, keys, first + i), jnp.arange(count, dtype=jnp.int32))

    return jax.jit(all_of)


def drawn_last(program: Program, rows: Rows, keys: Keys, count: int) -> NDArray:
    """The last round, counted from 1, for which each client was drawn, of the first ``count``: int32 ``(N,)``.

    It is when the client last trained, unless its upload was rejected then.
    """
    sizes, table = here((rows.sizes, rows.table)) if program.mesh is not None else (rows.sizes, rows.table)
    draw = partial(rounds.cohort, program.algorithm, program.systems, sizes, program.cohort, keys)
    phase = len(program.algorithm.phases) - 1

    def after(number: Array, before: Array) -> Array:
        drawn = draw(number, phase, table)
        return rounds.last_rounds(before, drawn, drawn.present, number)

    begin = jnp.zeros(sizes.shape, jnp.int32)
    return np.asarray(jax.jit(lambda: lax.fori_loop(0, count, after, begin))())


def _taken(part: NDArray, index: NDArray, room: int) -> NDArray:
    """Rows of ``part``, room for more, and a last one of NaN, or of the largest integer."""
    whole = empty_aligned((room + 1, *part.shape[1:]), part.dtype)
    np.take(np.asarray(part), index, axis=0, out=whole[: len(index)], mode="clip")
    whole[-1] = np.nan if part.dtype.kind == "f" else np.iinfo(part.dtype).max
    return whole


def _round_up(rows: int, most: int) -> int:
    """A power of two, so that few sizes occur, but no more than there are rows."""
    return min(2 ** (max(rows, 1) - 1).bit_length(), most)
