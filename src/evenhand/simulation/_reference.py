"""The readable twin of the engine: what a federated run *is*, as a plain loop over rounds and clients.

Slow on purpose; tests run every method through both and compare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators._reduce import reduce_uploads, weigh
from evenhand.simulation import _round
from evenhand.simulation._client import effort
from evenhand.simulation._program import Program
from evenhand.simulation._round import EXECUTED, ROWS, USEFUL, WORK, RoundState, Rows
from evenhand.streams import Purpose, stream
from evenhand.types import Array, ClientData, Info, Key, Phase, PyTree, Report, Sum, Upload

__all__ = ["Parts", "parts_of", "run_rounds"]


class Parts(NamedTuple):
    """A phase as two compiled functions, since the twin need not be that slow: what a client and the server do.

    Attributes:
      train: ``(rows, message, client_state, client, progress, key) -> (report, delta, client_state)``.
      serve: ``(server, aggregator_state, reports, deltas, ids, aggregator_key, server_key) -> (server,
        aggregator_state, info)``.
    """

    train: Callable[[Rows, PyTree, PyTree, Array, Array, Key], tuple[Report, PyTree, PyTree]]
    serve: Callable[[PyTree, PyTree, Report, PyTree, Array, Key, Key], tuple[PyTree, PyTree, Info]]


def parts_of(program: Program) -> list[Parts]:
    """One for each phase."""
    return [Parts(_client(program, phase), _server(phase)) for phase in program.algorithm.phases]


def run_rounds(
    program: Program,
    state: RoundState,
    rows: Rows,
    root: Key,
    first: int,
    count: int,
    parts: list[Parts] | None = None,
) -> tuple[RoundState, dict[str, Array]]:
    """As :func:`evenhand.simulation._engine.run_rounds`; ``parts`` are those of the program, if they are at hand."""
    parts = parts_of(program) if parts is None else parts
    history: list[dict[str, Array]] = []
    for number in range(first, first + count):
        state, info = _one_round(program, parts, state, rows, root, number)
        history.append(info)
    return state, {name: jnp.stack([info[name] for info in history]) for name in history[0]}


def _client(program: Program, phase: Phase) -> Callable[..., tuple[Report, PyTree, PyTree]]:
    """What one client does in a phase: report, then train."""

    def train(
        rows: Rows, message: PyTree, state: PyTree, client: Array, progress: Array, key: Key
    ) -> tuple[Report, PyTree, PyTree]:
        start, size = rows.starts[client], rows.sizes[client]
        data = ClientData(rows.x, rows.y, start, size, progress, program.capacity)
        report = phase.report(message, state, data)
        report = _round.lie_in_report(program.attack, rows, report, client, key)
        delta, state = phase.work(message, state, data, key)
        return report, _round.lie(program.attack, rows, delta, client, key), state

    return jax.jit(train)


def _server(phase: Phase) -> Callable[..., tuple[PyTree, PyTree, Info]]:
    """What the server does with all uploads of a phase: weigh, reduce, step."""

    def serve(
        server: PyTree, memory: PyTree, report: Report, delta: PyTree, ids: Array, key: Key, server_key: Key
    ) -> tuple[PyTree, PyTree, Info]:
        weights, memory = weigh(phase.aggregator, report, ids, memory)
        direction, memory = reduce_uploads(phase.aggregator, Upload(delta, weights, report.loss), memory, key)
        server, info = phase.server(server, direction, jnp.int32(ids.shape[0]), server_key)
        if isinstance(phase.aggregator, Sum) and phase.aggregator.weigh is not None:
            info = {"effective_cohort": _round.effective(weights), **info}
        return server, memory, info

    return jax.jit(serve)


def _one_round(
    program: Program, parts: list[Parts], state: RoundState, rows: Rows, root: Key, number: int
) -> tuple[RoundState, dict[str, Array]]:
    algorithm, reported = program.algorithm, 0
    infos: dict[str, Array] = {name: jnp.float32(0.0) for name in WORK}
    if algorithm.observe is not None:
        state = state._replace(server=_round.observe(algorithm, state.server, rows))
    for index, phase in enumerate(algorithm.phases):
        ids, progress = _round.cohort(
            algorithm, program.systems, rows.sizes, program.cohort, root, number, index
        )
        streams = _round.from_last(algorithm, index)
        reported = len(ids)
        if reported == 0:
            continue
        steps, passed = effort(program, index, rows, ids, progress)
        for name, count in ((USEFUL, steps), (EXECUTED, steps), (ROWS, passed)):
            infos[name] += jnp.sum(count.astype(jnp.float32))
        reports: list[Report] = []
        deltas: list[PyTree] = []
        clients = state.clients
        for k, share in zip(ids, progress, strict=True):
            message, key = phase.broadcast(state.server, k), _round.work_key(root, number, streams, k)
            report, delta, own = parts[index].train(rows, message, tree.take(clients, k), k, share, key)
            clients = jax.tree.map(lambda kept, new, k=k: kept.at[k].set(new), clients, own)
            reports.append(report)
            deltas.append(delta)
        keys = [stream(root, purpose, number, streams) for purpose in (Purpose.AGGREGATOR, Purpose.SERVER)]
        uploads = (_stack(reports), _stack(deltas), ids)
        server, memory, info = parts[index].serve(state.server, state.aggregators[index], *uploads, *keys)
        infos.update(info)
        aggregators = (*state.aggregators[:index], memory, *state.aggregators[index + 1 :])
        state = RoundState(server, aggregators, clients)
    return state, {**infos, "reported": jnp.float32(reported)}


def _stack(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
