"""Several runs as one program: their numbers and states side by side, what they share once.

Runs of methods that differ in their numbers only, such as the step size, are one program (:mod:`._hoist`).  With the
same seed they also draw the same cohorts, batches and shuffles, which this program then draws once; it is mapped over
the numbers and states of a *column* of runs, and each device has a column of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evenhand.devices import everywhere
from evenhand.simulation._hoist import Hoisted
from evenhand.simulation._session import Session, Train, Trained
from evenhand.simulation.engine import Hoistable
from evenhand.simulation.program import Rows
from evenhand.types import Array

__all__ = ["Together"]


class _ByKey(NamedTuple):
    """A program apart from its numbers, on these devices; which of its constants the runs of a column share."""

    hoisted: Hoisted
    mesh: Mesh | None
    shared: tuple[bool, ...]

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.hoisted.key, self.mesh, self.shared

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and self._key == other._key


@lru_cache(maxsize=16)
def _compiled(program: _ByKey) -> Any:
    """``(numbers, constants, state, keys, rest) -> results``: all but the last have an axis for the devices, and the
    first three another one for the runs of a column; constants that are shared do not."""
    axes = (0, [None if shared else 0 for shared in program.shared], 0)

    def column(mine: Any, rest: list[Array]) -> list[Array]:
        numbers, constants, state, keys = jax.tree.map(lambda leaf: leaf[0], mine)
        rows, counts = rest[:-2], rest[-2:]

        def one(numbers: Array, constants: list[Array], state: list[Array]) -> list[Array]:
            return program.hoisted.run(numbers, constants, [*state, *rows, *keys, *counts])

        found = jax.vmap(one, axes)(numbers, constants, state)
        return [leaf[None] for leaf in found]

    def run(numbers: Array, constants: Any, state: Any, keys: Any, rest: list[Array]) -> list[Array]:
        mine = (numbers, constants, state, keys)
        if program.mesh is None:
            return column(mine, rest)
        each = PartitionSpec(*program.mesh.axis_names)
        specs = (each, PartitionSpec())
        return jax.shard_map(column, mesh=program.mesh, in_specs=specs, out_specs=each, check_vma=False)(
            mine, rest
        )

    return jax.jit(run, donate_argnums=2)


class Together:
    """Columns of runs that train as one program, each column with one seed and on a device of its own.

    Args:
      columns: the runs, None for one that is not made; the first column is not shorter than any other.
      programs: the program of each place, all of one key.
      rows: the training rows of all of them, on each device of the mesh.
      mesh: as many devices as there are columns; None: one.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Session | None]],
        programs: Sequence[Sequence[Hoistable]],
        rows: Rows,
        mesh: Mesh | None,
    ) -> None:
        self._lengths, self._mesh = [len(column) for column in columns], mesh
        first, self._results = programs[0][0].hoisted, programs[0][0].results
        hoisted = [[each.hoisted for each in column] for column in programs]
        shared = tuple(
            all(_same(each.constants[i], first.constants[i]) for column in hoisted for each in column)
            for i in range(len(first.constants))
        )
        self._run = _compiled(_ByKey(first, mesh, shared))
        self._numbers = self._dealt([[each.values for each in column] for column in hoisted])
        self._constants = [
            self._each_device([first.constants[i]] * len(columns))
            if one
            else self._dealt([[each.constants[i] for each in column] for column in hoisted])
            for i, one in enumerate(shared)
        ]
        made = [[each for each in column if each is not None] for column in columns]
        some = next(column for column in made if column)
        keys = [jax.tree.leaves((column or some)[0].setup.keys) for column in made]
        self._keys = [self._each_device(list(parts)) for parts in zip(*keys, strict=True)]
        self._rows = jax.tree.leaves(rows)

    def answer(self, requests: Sequence[Sequence[Train | None]]) -> list[list[Trained | None]]:
        """The same rounds of all runs; requests and answers are in the places of the runs.

        A place without a request is computed from another run's state, and has no answer: its width is part of the
        program, which decides how the numbers of all others are rounded.
        """
        begin, asked = (
            time.perf_counter(),
            [each for column in requests for each in column if each is not None],
        )
        filler, first, rounds = asked[0]
        states = [
            [jax.tree.leaves(filler if each is None else each.state) for each in column]
            for column in requests
        ]
        state = [
            self._dealt([[leaves[i] for leaves in column] for column in states])
            for i in range(len(states[0][0]))
        ]
        rest = [*self._rows, *everywhere(self._mesh, [np.int32(first), np.int32(rounds)])]
        results = self._run(self._numbers, self._constants, state, self._keys, rest)
        given = len(state)
        ends = self._columns(results[:given])
        infos = [np.asarray(info)[:, :, :rounds] for info in results[given:]]
        seconds = {"data": 0.0, "train": (time.perf_counter() - begin) / len(asked)}

        def answer(column: int, run: int, leaves: list[Array]) -> Trained:
            state, found = jax.tree.unflatten(
                self._results, [*leaves, *(info[column, run] for info in infos)]
            )
            return Trained(state, found, rounds, seconds)

        return [
            [
                None if request is None else answer(i, j, leaves)
                for j, (leaves, request) in enumerate(zip(column, requests[i], strict=False))
            ]
            for i, column in enumerate(ends)
        ]

    def _dealt(self, parts: Sequence[Sequence[Any]]) -> Array:
        """One array of all runs, ``(columns, runs, ...)``; shorter columns repeat their last run."""
        longest = self._lengths[0]
        columns = [[*column, *[column[-1]] * (longest - len(column))] for column in parts]
        return self._each_device([_stack(column) for column in columns])

    def _each_device(self, parts: list[Any]) -> Array:
        """An array for each device."""
        stacked = jnp.stack(parts)
        if self._mesh is None:
            return stacked
        return jax.device_put(stacked, NamedSharding(self._mesh, PartitionSpec(*self._mesh.axis_names)))

    def _columns(self, state: Sequence[Array]) -> list[list[list[Array]]]:
        """The leaves of each run's state, on the first device."""
        place = jax.local_devices()[0]
        pieces = [
            [shard.data for shard in sorted(leaf.addressable_shards, key=_first_index)] for leaf in state
        ]
        columns = zip(*pieces, strict=True)
        return [_apart(jax.device_put(list(leaves), place)) for leaves in columns]


def _first_index(shard: Any) -> int:
    return int(shard.index[0].start or 0)


def _same(one: Any, other: Any) -> bool:
    return one is other or (np.shape(one) == np.shape(other) and bool(np.array_equal(one, other)))


@jax.jit
def _stack(parts: list[Any]) -> Array:
    return jnp.stack([jnp.asarray(part) for part in parts])


@jax.jit
def _apart(leaves: list[Array]) -> list[list[Array]]:
    """``(1, runs, ...)`` leaves, run by run."""
    return [[leaf[0, i] for leaf in leaves] for i in range(leaves[0].shape[1])]
