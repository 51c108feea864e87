"""What the clients of a run have received and sent: numbers, bytes, and over whom they are counted.

What crosses the wire for one client in one round depends on shapes alone
(:func:`evenhand.communication.traffic`).  How many clients took part is counted round by round, since some drop out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand import rounds
from evenhand._jaxpr.hoist import Keyed
from evenhand.communication import Load, added
from evenhand.devices import here
from evenhand.simulation.program import Program, Rows, on_time
from evenhand.simulation.setup import Setup
from evenhand.simulation.store import NDArray
from evenhand.streams import Keys
from evenhand.systems import Systems, only_availability
from evenhand.text import counted
from evenhand.types import Array, Cohort

_BLOCK = 64
"""Rounds whose cohorts are counted in one call: fixed, so that no number of rounds compiles anything."""


class Taken(NamedTuple):
    """How often clients took part in a run so far: each counts once for each round.

    Attributes:
      part: in each phase, those whose upload reached the server, accepted or not; ``(phases,)``.
      left_out: those who were drawn for the last phase, and dropped out, were late or had their work discarded.
    """

    part: NDArray
    left_out: int


class Meter:
    """Counts what the clients of a run have received and sent."""

    def __init__(self, setup: Setup) -> None:
        self._setup, program = setup, setup.program
        self._loads, self._cohorts = setup.traffic, list[NDArray]()
        # With one phase, and nobody who drops out, what the engine counts anyway is enough.
        self._draws = len(setup.traffic) > 1 or program.systems is not None
        self._is_pooled = program.algorithm.pooled is not None

    def course(self, per_round: Mapping[str, NDArray], done: int) -> dict[str, float]:
        """Bytes after ``done`` rounds, in columns of the history."""
        down, up = self._totals(self._taken(per_round, done).part)
        return {"bytes_down": float(down.bytes), "bytes_up": float(up.bytes)}

    def read(self, per_round: Mapping[str, NDArray], done: int) -> dict[str, Any]:
        """All of it after ``done`` rounds, in the types of JSON; see :attr:`evenhand.simulation.Run.info`."""
        taken = self._taken(per_round, done)
        once = np.full(len(self._loads), 0 if self._is_pooled else 1)
        sums = 0 if self._is_pooled else sum(load.secure_sums for load in self._loads)
        return {
            "rounds": done,
            "secure_sums": done * sums,
            "per_client_and_round": _in_both_directions(*self._totals(once)),
            "total": _in_both_directions(*self._totals(taken.part)),
            "took_part": int(taken.part[-1]),
            "left_out": taken.left_out,
            "covers": self._covers(taken),
        }

    def _totals(self, times: NDArray) -> tuple[Load, Load]:
        """What is received and sent where each phase happens so many ``times``."""
        down, up = (
            [Load(int(n) * load.numbers, int(n) * load.bits) for n, load in zip(times, loads, strict=True)]
            for loads in ([load.down for load in self._loads], [load.up for load in self._loads])
        )
        return added(*down), added(*up)

    def _taken(self, per_round: Mapping[str, NDArray], done: int) -> Taken:
        if self._is_pooled:
            return Taken(np.zeros(len(self._loads), np.int64), 0)
        if not self._draws:
            # In float64: beyond 2**24, a sum in float32 no longer counts single clients.
            uploads = [
                np.sum(per_round.get(name, 0.0), dtype=np.float64) for name in ("reported", "rejected")
            ]
            return Taken(np.array([round(float(sum(uploads)))], np.int64), 0)
        while len(self._cohorts) * _BLOCK < done:
            rows = self._setup.source.rows
            # Of the examples, the shapes: how much work a client has does not depend on what is in them.
            like = [jnp.zeros((1, *part.shape[1:]), part.dtype) for part in (rows.x, rows.y)]
            # Nor where it is: rows that are sent have no place yet.
            starts = jnp.zeros(rows.starts.shape, jnp.int32)
            given = (rows._replace(x=like[0], y=like[1], starts=starts, slots=None), self._setup.keys)
            rows, keys = given if self._setup.program.mesh is None else here(given)
            count, first = _counter(_Draws(self._setup.program)), jnp.int32(len(self._cohorts) * _BLOCK)
            self._cohorts.append(np.asarray(count(rows, keys, first)))
        counts: NDArray = np.concatenate([*self._cohorts, np.zeros((0, 2, len(self._loads)), np.int32)])
        part, drawn = (counts[:done, row].sum(axis=0, dtype=np.int64) for row in (0, 1))
        return Taken(part, int(drawn[-1] - part[-1]))

    def _covers(self, taken: Taken) -> str:
        """Over whom the totals are counted, and what is not in them, in sentences."""
        algorithm = self._setup.program.algorithm
        if self._is_pooled:
            return "The method trains on the examples of all clients in one place: its rounds send nothing."
        times = counted(int(taken.part[-1]), "upload")
        text = (
            f"All clients, in each round in which their upload reached the server, accepted or not: {times}"
        )
        text += " in the last exchange of the rounds." if len(self._loads) > 1 else "."
        if taken.left_out:
            text += (
                f" Left out are {taken.left_out:,} times that a client was drawn and dropped out, was late or had its "
                "work discarded: what it received until then is not counted."
            )
        if any(load.secure_sums for load in self._loads):
            text += " The keys and shares of secure sums are not counted."
        if algorithm.observe is not None:
            text += " The training losses that the method asks for before a round are not counted."
        return text


def _in_both_directions(down: Load, up: Load) -> dict[str, dict[str, int]]:
    return {name: {"numbers": x.numbers, "bytes": x.bytes} for name, x in (("down", down), ("up", up))}


class _Draws(Keyed):
    """The draws of a program's cohorts as a key: methods that differ in their local work alone have the same."""

    def __init__(self, program: Program) -> None:
        algorithm = program.algorithm
        fresh = tuple(phase.fresh_cohort for phase in algorithm.phases)
        draws = (algorithm.sampling, algorithm.partial_work, fresh, program.systems, program.cohort)
        if self.has_deadline(program):  # who is done by then depends on the work
            draws = (*draws, program.capacity, *(phase.effort for phase in algorithm.phases))
        super().__init__(draws)
        self.program = program

    @staticmethod
    def has_deadline(program: Program) -> bool:
        """Whether the work of clients that are too slow does not reach the server."""
        pace = None if program.systems is None else program.systems.pace
        return pace is not None and math.isfinite(pace.deadline)


@lru_cache(maxsize=16)
def _counter(draws: _Draws) -> Callable[[Rows, Keys, Array], Array]:
    """``(rows, keys, first) -> (rounds, 2, phases)``: the clients that take part, and those that are drawn."""
    program, has_deadline = draws.program, draws.has_deadline(draws.program)
    phases = range(len(program.algorithm.phases))

    def clients(rows: Rows, keys: Keys, round: Array) -> Array:
        def cohort(systems: Systems | None, phase: int) -> Cohort:
            where = (rows.sizes, program.cohort, keys, round, phase, rows.table)
            return rounds.cohort(program.algorithm, systems, *where)

        taken = [cohort(program.systems, phase) for phase in phases]
        if has_deadline:
            taken = [on_time(program, phase, rows, part, round)[0] for phase, part in enumerate(taken)]
        drawn = [cohort(only_availability(program.systems), phase) for phase in phases]
        return jnp.array([[jnp.sum(part.present) for part in parts] for parts in (taken, drawn)], jnp.int32)

    def block(rows: Rows, keys: Keys, first: Array) -> Array:
        return lax.map(partial(clients, rows, keys), first + jnp.arange(_BLOCK, dtype=jnp.int32))

    return jax.jit(block)
