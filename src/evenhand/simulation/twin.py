"""The readable twin of the engine: what a federated run *is*, as a plain loop over rounds and clients.

Slow on purpose; tests run every method through both and compare.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import rounds, tree
from evenhand.aggregators import reduce_uploads
from evenhand.exchange import ClientHalf, ServerHalf, Worked, uploads_of
from evenhand.rounds import RoundState, Step
from evenhand.simulation.program import (
    EXECUTED,
    ROWS,
    SECONDS,
    USEFUL,
    WORK,
    Program,
    Rows,
    efforts,
    observe,
    on_time,
)
from evenhand.simulation.store import States
from evenhand.streams import Keys
from evenhand.types import Array, ClientData, Cohort, Key, PyTree, Report, Upload

__all__ = ["PhaseParts", "parts_of", "run_rounds"]


class PhaseParts(NamedTuple):
    """A phase as two compiled functions, since the twin need not be that slow: what a client and the server do.

    Attributes:
      client: ``(rows, message, client_state, k, progress, round, key) -> Worked``.
      server: ``(server, memory, reports, deltas, cohort, malicious, keys, round) -> (Step, accepted)``.
    """

    client: Callable[[Rows, PyTree, PyTree, Array, Array, int, Key], Worked]
    server: Callable[[PyTree, PyTree, Report, PyTree, Cohort, Array, Keys, int], tuple[Step, Array]]


def parts_of(program: Program) -> list[PhaseParts]:
    """One for each phase."""
    return [
        PhaseParts(jax.jit(partial(_client, program, index)), jax.jit(partial(_server, program, index)))
        for index in range(len(program.algorithm.phases))
    ]


def run_rounds(
    program: Program,
    state: RoundState,
    rows: Rows,
    keys: Keys,
    first: int,
    count: int,
    parts: list[PhaseParts] | None = None,
) -> tuple[RoundState, dict[str, Array]]:
    """As :func:`evenhand.simulation.engine.run_rounds`; ``parts`` are those of the program, if they are at hand."""
    parts = parts_of(program) if parts is None else parts
    history: list[dict[str, Array]] = []
    for round in range(first, first + count):
        state, info = _one_round(program, parts, state, rows, keys, round)
        history.append(info)
    return state, {name: jnp.stack([info[name] for info in history]) for name in history[0]}


def _one_round(
    program: Program, parts: list[PhaseParts], state: RoundState, rows: Rows, keys: Keys, round: int
) -> tuple[RoundState, dict[str, Array]]:
    algorithm = program.algorithm
    infos: dict[str, Array] = {name: jnp.float32(0.0) for name in (*WORK, "reported", "rejected")}
    if algorithm.observe is not None:
        state = state._replace(server=observe(algorithm, state.server, rows))
    for index, phase in enumerate(algorithm.phases):
        # 1. The server draws a cohort.
        cohort = rounds.cohort(algorithm, program.systems, rows.sizes, program.cohort, keys, round, index)
        cohort, seconds = on_time(program, index, rows, cohort, round)
        # 2. Each of its clients gets the broadcast, reports, works and sends what its work gives.
        sent: list[Worked] = []
        for k, progress in zip(cohort.ids, cohort.progress, strict=True):
            message, memory = phase.broadcast(state.server, k), tree.take(state.clients, k)
            key = rounds.work_key(keys, round, rounds.phase_stream(algorithm, index), k)
            sent.append(parts[index].client(rows, message, memory, k, progress, round, key))
        reports, deltas, memories = tree.stack(sent)
        # 3. and 4.  The server reduces what it accepts to one direction, and steps.
        step, accepted = parts[index].server(
            state.server, state.aggregators[index], reports, deltas, cohort, rows.malicious, keys, round
        )
        aggregators = (*state.aggregators[:index], step.memory, *state.aggregators[index + 1 :])
        clients = States(state.clients).after(cohort.ids, accepted, memories)
        state = state._replace(server=step.server, aggregators=aggregators, clients=clients)
        infos |= {**step.info, **_counted(program, index, rows, cohort, round, accepted, infos)}
        if seconds is not None:
            infos[SECONDS] = infos.get(SECONDS, 0.0) + seconds
        if index == len(algorithm.phases) - 1:
            last = rounds.last_rounds(state.last_round, cohort, accepted, round)
            state = state._replace(last_round=last)
    return state, infos


def _client(
    program: Program,
    index: int,
    rows: Rows,
    message: PyTree,
    state: PyTree,
    k: Array,
    progress: Array,
    round: int,
    key: Key,
) -> Worked:
    half = ClientHalf(program.algorithm, index, program.attack)
    data = ClientData(
        x=rows.x,
        y=rows.y,
        start=rows.starts[k],
        size=rows.sizes[k],
        progress=progress,
        capacity=program.capacity,
        round=jnp.asarray(round, jnp.int32),
    )
    data = rounds.fresh_data(program.attack, data, rows.malicious, k, round, key)
    return half.work(message, state, data, rows.malicious[k], key)


def _server(
    program: Program,
    index: int,
    server: PyTree,
    memory: PyTree,
    reports: Report,
    deltas: PyTree,
    cohort: Cohort,
    malicious: Array,
    keys: Keys,
    round: int,
) -> tuple[Step, Array]:
    half = ServerHalf(program.algorithm, index, program.capacity)
    aggregator, client = program.aggregator(index), ClientHalf(program.algorithm, index, program.attack)
    # What no honest client can send is rejected; the others are weighed.
    cohort = cohort._replace(present=cohort.present & half.sane(reports))
    weights, after, info = half.weighed(reports, cohort, memory)
    cohort = cohort._replace(present=cohort.present & half.finite(deltas, len(cohort.ids)))
    uploads = uploads_of(reports, deltas, weights, cohort.present)
    if program.attack is not None and program.attack.collude is not None:
        chosen = malicious[cohort.ids]
        uploads = rounds.colluding(program.attack, uploads, chosen, cohort, keys, round, half.streams)
        finite = half.finite(uploads.delta, len(cohort.ids))
        cohort = cohort._replace(present=cohort.present & finite)
    # All uploads become one direction, and the server steps along it.
    noise = jax.vmap(partial(rounds.lift_key, keys, round, half.streams))(cohort.ids)
    key, step_key = half.keys(keys, round)

    def lift(slot: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
        return client.lift(upload, public, malicious[cohort.ids[slot]], round, key)

    direction, after = reduce_uploads(aggregator, uploads, cohort.present, after, key, noise, lift)
    step = half.step(server, (memory, after), direction, cohort.present, info, step_key)
    return step, cohort.present


def _counted(
    program: Program,
    index: int,
    rows: Rows,
    cohort: Cohort,
    round: int,
    accepted: Array,
    before: dict[str, Array],
) -> dict[str, Array]:
    """How much work that was, and how many uploads came of it."""
    effort = program.algorithm.phases[index].effort
    steps, passed = efforts(effort, program.capacity, rows, cohort, round)
    counts = {USEFUL: steps, EXECUTED: steps, ROWS: passed, "rejected": cohort.present & ~accepted}
    more = {name: before[name] + jnp.sum(count.astype(jnp.float32)) for name, count in counts.items()}
    return {**more, "reported": jnp.sum(accepted.astype(jnp.float32))}
