"""A federation of processes that talk over pipes gives the numbers of the simulation: what a network will do."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pipe_client
import pytest

import evenhand as eh
from evenhand import rounds
from evenhand.aggregators import in_passes
from evenhand.streams import Purpose, keys_of, stream
from evenhand.types import Report, Sum

METHOD, DATA, MODEL, SEED = pipe_client.METHOD, pipe_client.DATA, pipe_client.MODEL, pipe_client.SEED
ROUNDS, COHORT = 2, 2


class Remote:
    """A client in another process."""

    def __init__(self, k: int, stack: ExitStack) -> None:
        command = [sys.executable, str(Path(pipe_client.__file__)), str(k)]
        # One device each: a client has no cores to itself.
        environment = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=4", "count=1")}
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        )
        assert process.stdin is not None and process.stdout is not None
        self.requests, self.answers = process.stdin, process.stdout
        stack.callback(self.requests.close)

    def ask(self, name: str, *request: Any) -> None:
        pickle.dump((name, *jax.tree.map(np.asarray, request)), self.requests)
        self.requests.flush()

    def answer(self) -> Any:
        return pickle.load(self.answers)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[int, Remote]]:
    """Those that are drawn in the rounds of the test, and no others."""
    sizes, drawn = jnp.asarray(DATA.train.sizes, jnp.int32), set[int]()
    for number in range(ROUNDS):
        for index in range(len(METHOD.phases)):
            cohort = rounds.cohort(METHOD, None, sizes, COHORT, keys_of(SEED), number, index)
            drawn |= set(cohort.ids.tolist())
    with ExitStack() as stack:
        yield {k: Remote(k, stack) for k in sorted(drawn)}


def _summed(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: sum(jnp.asarray(leaf) for leaf in leaves), *trees)


def _one_phase(
    state: rounds.RoundState, number: int, index: int, clients: dict[int, Remote]
) -> rounds.RoundState:
    """What the server does: draw, broadcast, reject, weigh, sum in passes, step."""
    keys, phase = keys_of(SEED), METHOD.phases[index]
    streams, sizes = rounds.phase_stream(METHOD, index), jnp.asarray(DATA.train.sizes, jnp.int32)
    cohort = rounds.cohort(METHOD, None, sizes, COHORT, keys, number, index)
    called = [clients[int(k)] for k in cohort.ids]
    for k, client in zip(cohort.ids, called, strict=True):
        client.ask("train", number, index, phase.broadcast(state.server, k))
    reports, fit = zip(*(client.answer() for client in called), strict=True)
    largest = rounds.largest_weight(METHOD, int(sizes.max()))
    sane = [bool(rounds.accepts_report(phase.aggregator, Report(*report), largest)) for report in reports]
    accepted = [client for client, *good in zip(called, sane, fit, strict=True) if all(good)]

    def sum_of(public: Any, step: int) -> Any:
        for client in accepted:
            client.ask("lift", number, index, step, public)
        return _summed([client.answer() for client in accepted])

    before = state.aggregators[index]
    key, server_key = (
        stream(keys.secret, purpose, number, streams) for purpose in (Purpose.AGGREGATOR, Purpose.SERVER)
    )
    assert isinstance(phase.aggregator, Sum)
    direction, memory = in_passes(phase.aggregator, before, key, sum_of)
    step = rounds.server_step(
        phase, state.server, (before, memory), direction, jnp.int32(len(accepted)), server_key
    )
    aggregators = (*state.aggregators[:index], step.memory, *state.aggregators[index + 1 :])
    return rounds.RoundState(step.server, aggregators, ())


def test_a_process_per_client_gives_the_simulated_numbers(clients: dict[int, Remote]) -> None:
    """FedDane, whose two exchanges are reduced by a median of three passes each, and Ditto around it."""
    params = MODEL.init(stream(keys_of(SEED).shared, Purpose.INIT))
    rows: Any = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in (DATA.train.x, DATA.train.y))
    capacity = int(DATA.train.sizes.max())
    wires = rounds.wires(METHOD, params, rows, capacity, DATA.num_clients)
    state = rounds.begin(METHOD, params, DATA.num_clients, wires)._replace(clients=())
    for number in range(ROUNDS):
        for index in range(len(METHOD.phases)):
            state = _one_phase(state, number, index, clients)
    run = eh.simulate(METHOD, DATA, rounds=ROUNDS, cohort=COHORT, seed=SEED)
    for a, b in zip(jax.tree.leaves(run.state.server), jax.tree.leaves(state.server), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for k, client in clients.items():
        client.ask("personal", state.server)
        for a, b in zip(
            jax.tree.leaves(run.personal_params(k)), jax.tree.leaves(client.answer()), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-6)
    start = eh.simulate(METHOD, DATA, rounds=0, seed=SEED)
    moved = zip(jax.tree.leaves(run.params), jax.tree.leaves(start.params), strict=True)
    assert max(float(np.abs(a - b).max()) for a, b in moved) > 1e-2
