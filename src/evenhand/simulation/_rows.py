"""Where a round finds its clients' rows: all of them on the devices, or only those of the next rounds' clients.

Who takes part in a round depends on the seed and not on the training, so the cohorts of the rounds to come can be
drawn ahead.  While a block of rounds trains, the rows of the next block's clients are gathered and sent.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh

from evenhand import rounds
from evenhand.data import FederatedDataset, Split
from evenhand.devices import everywhere, here
from evenhand.errors import EvenhandError
from evenhand.memory import aligned, empty_aligned, is_aligned, is_mapped
from evenhand.rounds import malicious_clients, poisoned
from evenhand.simulation.program import Program, Rows
from evenhand.streams import Keys
from evenhand.types import Array, Attack, PyTree, Sampling

__all__ = ["Resident", "Source", "Streamed", "must_stream", "resident", "sent"]

NDArray = npt.NDArray[Any]

_SHARE = 3
"""One part in so many of an accelerator's memory may be filled with rows."""
_COPY = 2**30
"""Bytes that may be copied to where a CPU can use them in place; rows beyond, not aligned, are streamed."""
_BLOCK = 2**24
"""Bytes of rows in a block, about: some rounds of a small cohort, that a processor's cache may hold."""
_MOST_AHEAD = 2**8
"""Most rounds in a block."""


class Resident(NamedTuple):
    """All rows on every device."""

    rows: Rows

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """Rows for rounds from ``first`` on, and for how many of the ``count`` rounds asked for they serve."""
        return self.rows, count


def resident(
    data: FederatedDataset,
    attack: Attack | None,
    seed: int,
    mesh: Mesh | None = None,
    sampling: Sampling | None = None,
) -> Resident:
    """All training rows on the devices, those of malicious clients poisoned."""
    x, y = data.train.x, data.train.y
    malicious = malicious_clients(attack, data.num_clients, seed)
    if attack is not None and attack.rows is not None:
        x, y = x.copy(), y.copy()
        for k in np.flatnonzero(malicious):
            own = slice(int(data.train.offsets[k]), int(data.train.offsets[k + 1]))
            x[own], y[own] = poisoned(attack.rows, x[own], y[own], seed, int(k))
    starts, sizes = data.train.offsets[:-1].astype(np.int32), data.train.sizes.astype(np.int32)
    if jax.default_backend() == "cpu":
        x, y = aligned(x), aligned(y)  # else each device would make a copy of its own
    table = _table(sampling, sizes)
    return Resident(Rows(*sent(mesh, (x, y)), *everywhere(mesh, (starts, sizes, malicious, table))))


def _table(sampling: Sampling | None, sizes: NDArray) -> PyTree:
    if sampling is None or sampling.tabulate is None:
        return None
    return jax.tree.map(np.asarray, sampling.tabulate(jnp.asarray(sizes)))


def sent(mesh: Mesh | None, rows: tuple[NDArray, NDArray]) -> tuple[Array, Array]:
    """On the devices; a CPU uses them where they are."""
    return jax.device_put(rows) if mesh is None else everywhere(mesh, rows)


def must_stream(*splits: Split) -> bool:
    """Whether rows had better stay on the host: in a file, or too many for the device."""
    parts = [part for split in splits for part in (split.x, split.y)]
    if any(is_mapped(part) for part in parts):
        return True
    if jax.default_backend() == "cpu":
        return sum(part.nbytes for part in parts if not is_aligned(part)) > _COPY
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit is not None and sum(part.nbytes for part in parts) > limit / _SHARE


class _Block(NamedTuple):
    """The rows of some rounds' clients.

    Attributes:
      first: the first of the rounds.
      until: the round after the last.
      clients: who takes part, ascending.
      starts: their first rows in the block.
      x: on the devices.
      y: on the devices.
    """

    first: int
    until: int
    clients: NDArray
    starts: NDArray
    x: Array
    y: Array


class Streamed:
    """Rows that stay on the host or in a file; the next rounds' clients' are on the devices.

    A client that is not there has its place at the end of the block, where there are no numbers: were the cohort that
    a round draws ever another than the one drawn ahead, the loss would be NaN, never that of somebody else's rows.

    Attributes:
      like: the shapes of all rows.
    """

    def __init__(
        self, program: Program, data: FederatedDataset, attack: Attack | None, seed: int, keys: Keys
    ) -> None:
        if program.algorithm.observe is not None:
            raise EvenhandError(
                "This method looks at the training loss over all clients before each round, so all rows must be on the "
                "device: give stream=False, and rows that fit there."
            )
        train = data.train
        self._data, self._attack, self._seed, self._keys = train, attack, seed, keys
        self._mesh, self._clients = program.mesh, data.num_clients
        self._offsets, self._sizes = train.offsets, train.sizes
        self._malicious = malicious_clients(attack, self._clients, seed)
        sizes = self._sizes.astype(np.int32)
        own = sizes, self._malicious, _table(program.algorithm.sampling, sizes)
        self._sent: tuple[Array, Array, PyTree] = everywhere(self._mesh, own)
        x: Any = jax.ShapeDtypeStruct(train.x.shape, train.x.dtype)
        y: Any = jax.ShapeDtypeStruct(train.y.shape, train.y.dtype)
        starts: Any = jax.ShapeDtypeStruct((self._clients,), np.int32)
        self.like = Rows(x, y, starts, *self._sent)
        room = _BLOCK // max(1, (train.x.nbytes + train.y.nbytes) // train.rows)
        draws = program.cohort * len(program.algorithm.phases)
        need = max(1, int(draws * self._sizes.mean()))
        self._draw = _cohorts(program, int(np.clip(room // need, 1, _MOST_AHEAD)))
        self._grow(max(room, 2 * need))
        self._worker = ThreadPoolExecutor(1, "evenhand-rows")
        self._now: _Block | None = None
        self._next: tuple[int, Future[_Block]] | None = None

    def _grow(self, rows: int) -> None:
        """Room for so many rows; a change of it compiles the round again."""
        self._room = _round_up(rows, self._data.rows)
        self._starts = everywhere(self._mesh, np.full(self._clients, self._room, np.int32))
        self._placed = np.zeros(0, np.int64)

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """As :meth:`Resident.block`; ends the use of what it gave before."""
        now = self._now
        if now is None or not now.first <= first < now.until:
            now = self._now = self._ready(first)
            self._place(now)
            # Drawn at once: a device does things in turn, and the rounds of this block come next.
            ids = self._drawn(now.until)
            self._next = now.until, self._worker.submit(self._gather, now.until, ids)
        return Rows(now.x, now.y, self._starts, *self._sent), min(count, now.until - first)

    def _ready(self, first: int) -> _Block:
        ahead, self._next = self._next, None
        if ahead is not None:
            found = ahead[1].result()
            if ahead[0] == first:
                return found
        return self._gather(first, self._drawn(first))

    def _drawn(self, first: int) -> Array:
        sizes, _, table = self._sent if self._mesh is None else here(self._sent)
        return self._draw(sizes, table, self._keys, np.int32(first))

    def _gather(self, first: int, ids: Array) -> _Block:
        drawn = np.asarray(ids)
        until, clients = self._fitting(drawn)
        if until == 0:
            until, clients = 1, np.unique(drawn[0][drawn[0] >= 0])
        sizes = self._sizes[clients]
        ends = np.cumsum(sizes)
        starts, total = ends - sizes, int(sizes.sum())
        index = np.repeat(self._offsets[clients] - starts, sizes) + np.arange(total)
        room = max(self._room, _round_up(total, self._data.rows))
        x, y = (_taken(part, index, room) for part in (self._data.x, self._data.y))
        if self._attack is not None and self._attack.rows is not None:
            for at in np.flatnonzero(self._malicious[clients]):
                own = slice(int(starts[at]), int(ends[at]))
                x[own], y[own] = poisoned(self._attack.rows, x[own], y[own], self._seed, int(clients[at]))
        return _Block(first, first + until, clients, starts, *sent(self._mesh, (x, y)))

    def _fitting(self, drawn: NDArray) -> tuple[int, NDArray]:
        """How many of the rounds there is room for, and who takes part in them; ids are ``(rounds, draws)``, or -1."""
        clients, seen = np.unique(drawn, return_index=True)
        clients, seen = clients[clients >= 0], seen[clients >= 0]
        order = np.argsort(seen)
        count = int(np.searchsorted(np.cumsum(self._sizes[clients[order]]), self._room, "right"))
        if count == len(clients):
            return len(drawn), clients
        until = int(seen[order[count]]) // drawn.shape[1]
        return until, clients[seen < until * drawn.shape[1]]

    def _place(self, block: _Block) -> None:
        """Tells where the block's clients are, and that those of the block before are gone."""
        room = block.x.shape[0] - 1
        if room > self._room:
            self._grow(room)
        count = 2 ** max(len(block.clients) - 1, len(self._placed) - 1, 1).bit_length()

        def padded(values: NDArray, value: int) -> NDArray:
            return np.pad(values, (0, count - len(values)), constant_values=value).astype(np.int32)

        old, new = padded(self._placed, self._clients), padded(block.clients, self._clients)
        self._starts = _moved(self._starts, old, new, padded(block.starts, 0), np.int32(self._room))
        self._placed = block.clients


Source: TypeAlias = Resident | Streamed


def _cohorts(program: Program, count: int) -> Callable[[Array, PyTree, Keys, Any], Array]:
    """``(sizes, table, keys, first) -> (rounds, draws)``: the client ids of some rounds, -1 for empty slots."""
    algorithm = program.algorithm

    def one(sizes: Array, table: PyTree, keys: Keys, number: Array) -> Array:
        draw = partial(rounds.cohort, algorithm, program.systems, sizes, program.cohort, keys, number)
        cohorts = [draw(phase, table) for phase in range(len(algorithm.phases))]
        return jnp.concatenate([jnp.where(one.present, one.ids, -1) for one in cohorts])

    def all_of(sizes: Array, table: PyTree, keys: Keys, first: Array) -> Array:
        return lax.map(lambda i: one(sizes, table, keys, first + i), jnp.arange(count, dtype=jnp.int32))

    return jax.jit(all_of)


@partial(jax.jit, donate_argnums=0)
def _moved(starts: Array, old: Array, new: Array, places: Array, absent: Array) -> Array:
    """``starts`` with the old clients absent and the new ones in their places; ids from ``N`` on are padding."""
    return starts.at[old].set(absent, mode="drop").at[new].set(places, mode="drop")


def _taken(part: NDArray, index: NDArray, room: int) -> NDArray:
    """Rows of ``part``, room for more, and one at the end that has no numbers."""
    whole = empty_aligned((room + 1, *part.shape[1:]), part.dtype)
    np.take(np.asarray(part), index, axis=0, out=whole[: len(index)], mode="clip")
    whole[-1] = np.nan if part.dtype.kind == "f" else np.iinfo(part.dtype).max
    return whole


def _round_up(rows: int, most: int) -> int:
    """A power of two, so that few sizes occur, but no more than there are rows."""
    return min(2 ** (max(rows, 1) - 1).bit_length(), most)
