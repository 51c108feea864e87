"""The compiled engine: a round is one program, and runs of rounds are a loop inside it.

A round's cohort is cut into groups of ``lanes`` clients.  Groups are scanned, the clients of a group are ``vmap``ped
and run until the longest of them is done, so the cohort is sorted by work first.  Aggregators of the sum form are
accumulated along the scan, which keeps memory at O(lanes) models; the others get the cohort's stacked uploads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.aggregators._reduce import reduce_uploads, weigh
from evenhand.simulation import _round
from evenhand.simulation._groups import Groups, Members, live_sum, side_by_side
from evenhand.simulation._round import RoundState, Rows
from evenhand.streams import Purpose, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, ClientData, Key, Phase, PyTree, Report, Sum, Upload

__all__ = ["Program", "one_round", "run_rounds"]


class Program(NamedTuple):
    """What is fixed when a round is compiled.

    Attributes:
      algorithm: the method.
      cohort: clients drawn per round.
      capacity: rows of the largest client.
      lanes: clients trained side by side.
      systems: stragglers, or None.
      attack: liars, or None.
      buffer: how many rounds' infos one call returns.
    """

    algorithm: Algorithm
    cohort: int
    capacity: int
    lanes: int
    systems: Systems | None
    attack: Attack | None
    buffer: int


class _Static:
    """A program as a static argument: its parts are values, but hold functions that do not compare."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._key = tuple(field if isinstance(field, int) else id(field) for field in program)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key


def run_rounds(
    program: Program, state: RoundState, rows: Rows, root: Key, first: int, count: int
) -> tuple[RoundState, dict[str, Array]]:
    """Rounds ``first .. first + count - 1``; ``count`` is at most ``program.buffer``.

    Returns the new state and each info as an array whose first ``count`` entries are the rounds'.
    """
    return _run_rounds(_Static(program), state, rows, root, jnp.int32(first), jnp.int32(count))


@partial(jax.jit, static_argnums=0)
def _run_rounds(
    static: _Static, state: RoundState, rows: Rows, root: Key, first: Array, count: Array
) -> tuple[RoundState, dict[str, Array]]:
    program = static.program
    one = jax.jit(partial(one_round, program))  # traced once, for the shapes and for the loop
    shapes = jax.eval_shape(one, state, rows, root, first)[1]
    infos = {name: jnp.zeros((program.buffer, *info.shape), info.dtype) for name, info in shapes.items()}

    def body(i: Array, carry: tuple[RoundState, dict[str, Array]]) -> tuple[RoundState, dict[str, Array]]:
        state, infos = carry
        state, info = one(state, rows, root, first + i)
        return state, {name: infos[name].at[i].set(info[name]) for name in infos}

    return lax.fori_loop(0, count, body, (state, infos))


def one_round(
    program: Program, state: RoundState, rows: Rows, root: Key, number: Array
) -> tuple[RoundState, dict[str, Array]]:
    """Round ``number``: the state after it, and what its phases tell."""
    algorithm = program.algorithm
    if algorithm.observe is not None:
        state = state._replace(server=_round.observe(algorithm, state.server, rows))
    infos: dict[str, Array] = {}
    reported = 0
    for index in range(len(algorithm.phases)):
        ids, progress = _round.cohort(
            algorithm,
            program.systems,
            rows.sizes,
            program.cohort,
            root,
            number,
            index,
        )
        reported = ids.shape[0]
        if reported > 0:
            state, info = _one_phase(program, index, state, rows, root, number, ids, progress)
            infos.update(info)
    return state, {**infos, "reported": jnp.float32(reported)}


def _one_phase(
    program: Program,
    index: int,
    state: RoundState,
    rows: Rows,
    root: Key,
    number: Array,
    ids: Array,
    progress: Array,
) -> tuple[RoundState, dict[str, Array]]:
    phase, memory = program.algorithm.phases[index], state.aggregators[index]
    aggregator = phase.aggregator
    groups = Groups.cut(ids, progress, rows.sizes, program.lanes)
    client = _Client.of(program, phase, index, state.server, rows, root, number)
    if isinstance(aggregator, Sum) and aggregator.weigh is not None:
        reports = groups.map(lambda k, share: client.report(k, share, tree.take(state.clients, k)))
        weights, memory = weigh(aggregator, groups.ungroup(reports), ids, memory)
        groups = groups.told(Report(groups.regroup(weights), reports.loss))
    streams = _round.from_last(program.algorithm, index)
    key = stream(root, Purpose.AGGREGATOR, number, streams)
    if isinstance(aggregator, Sum) and aggregator.passes == 1:
        clients, total = _streamed(aggregator, memory, client, groups, state.clients)
        direction, memory = aggregator.lower(total, memory, jax.random.fold_in(key, 0))
    else:
        (clients, _), uploads = _scan(client, groups, state.clients, (), _keep)
        direction, memory = reduce_uploads(aggregator, groups.ungroup(uploads), memory, key)
    server_key = stream(root, Purpose.SERVER, number, streams)
    server, info = phase.server(state.server, direction, jnp.int32(ids.shape[0]), server_key)
    aggregators = (*state.aggregators[:index], memory, *state.aggregators[index + 1 :])
    return RoundState(server, aggregators, clients), dict(info)


def _streamed(
    aggregator: Sum, memory: PyTree, client: _Client, groups: Groups, store: PyTree
) -> tuple[PyTree, PyTree]:
    """``(store, total)``: everybody trained, and the sum of what was lifted; no upload is kept."""

    def lift(uploads: Upload) -> PyTree:
        return side_by_side(lambda upload: aggregator.lift(upload, memory), uploads)

    def consume(total: PyTree, uploads: Upload, live: Array) -> tuple[PyTree, PyTree]:
        return tree.add(total, jax.tree.map(partial(live_sum, live), lift(uploads))), ()

    first = tree.take(groups.members, jnp.int32(0))
    like = jax.eval_shape(lambda: lift(_train(client, first, store)[0]))
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), like)
    return _scan(client, groups, store, total, consume)[0]


def _scan(
    client: _Client,
    groups: Groups,
    store: PyTree,
    begin: PyTree,
    consume: Callable[[PyTree, Upload, Array], tuple[PyTree, PyTree]],
) -> tuple[tuple[PyTree, PyTree], PyTree]:
    """Trains group after group: new client states into ``store``, uploads to ``consume``."""

    def step(carry: tuple[PyTree, PyTree], members: Members) -> tuple[tuple[PyTree, PyTree], PyTree]:
        store, kept = carry
        uploads, states = _train(client, members, store)
        # Padding writes nowhere: its index lies outside the store.
        where = jnp.where(members.live, members.ids, client.rows.sizes.shape[0])
        store = jax.tree.map(lambda old, new: old.at[where].set(new, mode="drop"), store, states)
        kept, out = consume(kept, uploads, members.live)
        return (store, kept), out

    return lax.scan(step, (store, begin), groups.members)


def _train(client: _Client, members: Members, store: PyTree) -> tuple[Upload, PyTree]:
    """One group's uploads and new states, client by client side by side."""
    states = tree.take(store, members.ids)
    return side_by_side(client.upload, members.ids, members.progress, states, members.report)


def _keep(kept: PyTree, uploads: Upload, live: Array) -> tuple[PyTree, PyTree]:
    return kept, uploads


class _Client(NamedTuple):
    """What a client does in one phase of one round, as functions of who it is.

    Attributes:
      rows: all clients' rows.
      report: ``(client, progress, state) -> Report``.
      upload: ``(client, progress, state, report) -> (Upload, state)``; without a report it makes its own.
    """

    rows: Rows
    report: Callable[[Array, Array, PyTree], Report]
    upload: Callable[[Array, Array, PyTree, Report | None], tuple[Upload, PyTree]]

    @staticmethod
    def of(
        program: Program, phase: Phase, index: int, server: PyTree, rows: Rows, root: Key, number: Array
    ) -> _Client:
        streams = _round.from_last(program.algorithm, index)

        def data(rows: Rows, client: Array, progress: Array) -> ClientData:
            start, size = rows.starts[client], rows.sizes[client]
            return ClientData(rows.x, rows.y, start, size, progress, program.capacity)

        def report(client: Array, progress: Array, state: PyTree) -> Report:
            told = phase.report(phase.broadcast(server, client), state, data(rows, client, progress))
            key = _round.work_key(root, number, streams, client)
            return _round.lie_in_report(program.attack, rows, told, client, key)

        @jax.jit  # traced once, for the shapes and for the loop
        def upload(
            fixed: tuple[PyTree, Rows, Key, Array],
            client: Array,
            progress: Array,
            state: PyTree,
            report: Report | None,
        ) -> tuple[Upload, PyTree]:
            server, rows, root, number = fixed
            own = data(rows, client, progress)
            message = phase.broadcast(server, client)
            key = _round.work_key(root, number, streams, client)
            told = report
            if told is None:
                told = phase.report(message, state, own)
                told = _round.lie_in_report(program.attack, rows, told, client, key)
            delta, state = phase.work(message, state, own, key)
            return Upload(_round.lie(program.attack, rows, delta, client, key), told.weight, told.loss), state

        return _Client(rows, report, partial(upload, (server, rows, root, number)))
