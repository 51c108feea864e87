"""Who takes part in a round, with which keys, what crosses the wire, and what the server does with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand._jaxpr import programs
from evenhand.errors import EvenhandError, expect
from evenhand.local import SCHEDULE
from evenhand.streams import Keys, Purpose, client_stream, stream
from evenhand.systems import Systems
from evenhand.types import (
    Aggregator,
    Algorithm,
    Array,
    ClientData,
    Cohort,
    Info,
    Key,
    Params,
    Phase,
    PyTree,
    Report,
    Sum,
    Upload,
)


class RoundState(NamedTuple):
    """Everything that is kept between rounds.

    Attributes:
      server: the algorithm's server state.
      aggregators: one state per phase.
      clients: the clients' states, leading axis ``N``; from :func:`begin`, that of one new client.
      last_round: int32 ``(N,)``, from :func:`last_rounds`; ``()`` where that is not recorded.
    """

    server: PyTree
    aggregators: tuple[PyTree, ...]
    clients: PyTree
    last_round: PyTree = ()


def roots(algorithm: Algorithm, keys: Keys) -> Keys:
    """The roots of a method's rounds: those of the run, or, where it promises privacy, secret ones only.

    A promise that counts on who was drawn, or which examples, holds only where nobody can compute that.
    """
    if algorithm.privacy is None:
        return keys
    return keys._replace(shared=stream(keys.secret, Purpose.COHORT))


# --- the cohort -------------------------------------------------------------------------------------------------------


def phase_stream(algorithm: Algorithm, phase: int) -> int:
    """The number of a phase's streams.

    Counted from the last phase, the one that trains in every method, so that methods with more exchanges still meet
    the same cohorts, stragglers and batches.
    """
    return len(algorithm.phases) - 1 - phase


def cohort(
    algorithm: Algorithm,
    systems: Systems | None,
    sizes: Array,
    count: int,
    keys: Keys,
    round: Array | int,
    phase: int,
    table: PyTree = None,
) -> Cohort:
    """The clients of one phase of ``round``.

    Clients whose work would be dropped are left out, so that nothing is computed in vain.

    Args:
      algorithm: the method.
      systems: stragglers and dropouts, or None.
      sizes: training rows of each client, ``(N,)``.
      count: clients drawn.
      keys: the run's roots.
      round: counted from 0.
      phase: the exchange, from 0.
      table: what ``algorithm.sampling.tabulate`` makes of the sizes, where it has that.
    """
    draw = phase
    # Phases that share a cohort draw it as the last of them, whose number does not depend on how many there are.
    while draw + 1 < len(algorithm.phases) and not algorithm.phases[draw + 1].fresh_cohort:
        draw += 1
    draw = phase_stream(algorithm, draw)
    key, sampling = stream(keys.shared, Purpose.COHORT, round, draw), algorithm.sampling
    if sampling.scheduled is not None:
        # One key for all rounds: a schedule is drawn once, and the round says where in it.
        key = stream(keys.shared, Purpose.COHORT, 0, draw)
        drawn = sampling.scheduled(key, jnp.asarray(round, jnp.int32), sizes, count)
    elif table is not None and sampling.look_up is not None:
        drawn = sampling.look_up(key, table, count)
    else:
        drawn = sampling.draw(key, sizes, count)
    expect("the result of Sampling.draw", drawn, Cohort, "eh.types.Cohort.of(ids)")
    if systems is not None:
        # A key of its own, so that stragglers change no cohort.
        key = stream(keys.shared, Purpose.STRAGGLERS, round, draw)
        drawn = systems.draw(key, drawn, algorithm.partial_work)
    if drawn.ids.shape[0] == 0:
        # A cohort has at least one slot, so that an empty one needs no code of its own.
        return Cohort.of(jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))
    return drawn


def last_rounds(before: PyTree, cohort: Cohort, accepted: Array, round: Array | int) -> PyTree:
    """The last round, counted from 1, in which each client trained, after ``round``, which counts from 0.

    A client trains in a round if it is in the cohort of the last exchange, and its upload is accepted: a dropout, a
    straggler whose work is discarded and a client whose upload is rejected keep the state that they had.

    Args:
      before: int32 ``(N,)``, the result of the round before, 0 for clients that never trained; ``()``: not recorded.
      cohort: that of the last exchange.
      accepted: which of its uploads were accepted, bool ``(m,)``.
      round: the latest one, counted from 0.
    """

    def after(rounds: Array) -> Array:
        trained = cohort.present & accepted
        # A scatter has no mask: whoever did not train is sent beyond the end, where updates are dropped.
        return rounds.at[jnp.where(trained, cohort.ids, rounds.shape[0])].set(round + 1, mode="drop")

    return jax.tree.map(after, before)  # of (), nothing: the program of a round is then as without this


# --- the clients' keys ------------------------------------------------------------------------------------------------


def work_key(keys: Keys, round: Array | int, phase: int, client: Array) -> Key:
    """The key of a client's local work; ``phase`` is the number of a :func:`phase_stream`."""
    return client_stream(stream(keys.shared, Purpose.WORK, round, phase), client)


def lift_key(keys: Keys, round: Array | int, phase: int, client: Array) -> Key:
    """The key of the noise that a client adds to what it sends; of pass ``i``, fold in ``i``."""
    return client_stream(stream(keys.secret, Purpose.NOISE, round, phase), client)


# --- what crosses the wire --------------------------------------------------------------------------------------------


class Wire(NamedTuple):
    """The shapes of what crosses the wire between the server and one client in one phase.

    Attributes:
      message: the broadcast.
      report: what the client reports before it works.
      delta: what its work gives.
      published: what it gets before each pass of an aggregator that is a sum, ``()`` else.
      lifted: what it sends in each such pass, ``()`` else.
      restarts: whether its work begins a schedule of step sizes, which therefore restarts in every round.
    """

    message: PyTree
    report: Report
    delta: PyTree
    published: PyTree
    lifted: PyTree
    restarts: bool = False


def wires(
    algorithm: Algorithm,
    params: Params,
    rows: tuple[Array, Array],
    capacity: int,
    clients: int,
) -> tuple[Wire, ...]:
    """What each phase sends, found without computing anything.

    With the ``capacity`` of a program on one device, the work's gradient is traced once for this and the rounds.

    Args:
      algorithm: the method.
      params: those of its model, or their shapes.
      rows: ``(x, y)`` of one or many clients, or their shapes.
      capacity: rows of the largest client.
      clients: how many clients there are.
    """

    def exchange(
        phase: Phase, client_state: PyTree, params: Params, rows: tuple[Array, Array], key: Key
    ) -> Wire:
        data = ClientData(*rows, jnp.int32(0), jnp.int32(1), jnp.float32(1.0), capacity)
        message = phase.broadcast(algorithm.init(params, clients), jnp.int32(0))
        report = phase.report(message, client_state, data)
        delta = phase.work(message, client_state, data, key)[0]
        if not isinstance(phase.aggregator, Sum):
            return Wire(message, report, delta, (), ())
        public = phase.aggregator.publish(phase.aggregator.init(tree.zeros(delta), clients))
        lifted = phase.aggregator.lift(Upload(delta, report.weight, report.loss), public, key)
        return Wire(message, report, delta, public, lifted)

    # Made outside, as a client keeps it from round to round: what begins in it does not restart.
    client_state = jax.eval_shape(algorithm.init_client, params)
    made: list[Wire] = []
    for phase in algorithm.phases:
        traced = jax.make_jaxpr(partial(exchange, phase), return_shape=True)
        program, wire = traced(client_state, params, rows, jax.random.key(0))
        made.append(wire._replace(restarts=programs.has_call(program, SCHEDULE)))
    return tuple(made)


def begin(algorithm: Algorithm, params: Params, clients: int, wires: tuple[Wire, ...]) -> RoundState:
    """The state before the first round, with that of one client."""
    aggregators = tuple(
        phase.aggregator.init(tree.zeros(wire.delta), clients)
        for phase, wire in zip(algorithm.phases, wires, strict=True)
    )
    return RoundState(algorithm.init(params, clients), aggregators, algorithm.init_client(params))


def traffic(algorithm: Algorithm, wires: tuple[Wire, ...]) -> Mapping[str, int]:
    """How many numbers of 32 bits a client that takes part in all phases of a round gets (``down``), sends (``up``)."""
    down, up = 0, 0
    for phase, wire in zip(algorithm.phases, wires, strict=True):
        aggregator, weight = phase.aggregator, wire.report.weight.size
        loss = wire.report.loss.size if aggregator.needs_loss else 0
        down += _numbers(wire.message)
        if isinstance(aggregator, Sum):
            down += aggregator.passes * _numbers(wire.published)
            bits = 32 if aggregator.summation is None else aggregator.summation.bits
            up += aggregator.passes * _numbers(wire.lifted) * bits // 32
            if aggregator.weigh is not None:
                down, up = down + weight, up + weight + loss
        else:
            up += _numbers(wire.delta) + weight + loss
    return {"down": down, "up": up}


def _numbers(message: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(message))


# --- the server: what it rejects, how it weighs, and its step ---------------------------------------------------------


def largest_weight(algorithm: Algorithm, capacity: int) -> Array:
    """The weight of the largest client, whose ``capacity`` of rows the server knows: no honest client reports more."""
    return algorithm.sampling.weight(jnp.int32(capacity))


def accepts_report(aggregator: Aggregator, report: Report, largest: Array) -> Array:
    """Whether an honest client can have sent this: a weight from 0 to the largest, and a finite loss if one is due.

    A bool scalar; where a report has several weights and losses, each must pass.
    """
    # Up to rounding: the server and the client may compile the weight differently.
    fits = (report.weight >= 0) & (report.weight <= largest * (1 + 1e-5))
    return jnp.all(fits & jnp.isfinite(report.loss) if aggregator.needs_loss else fits)


def accepts_delta(delta: PyTree) -> Array:
    """Whether all of an upload is finite, its norm in float32 included; a bool scalar."""
    return jnp.isfinite(tree.norm(delta))


def weighed(
    aggregator: Aggregator, reports: Report, cohort: Cohort, memory: PyTree
) -> tuple[Array, PyTree, Info]:
    """``(weights, memory, info)``: the weights ``(m,)`` that the uploads of a cohort get, given its reports."""
    if not (isinstance(aggregator, Sum) and aggregator.weigh is not None):
        return reports.weight, memory, {}
    weights, memory = aggregator.weigh(tree.among(cohort.present, reports), cohort, memory)
    weights = tree.among(cohort.present, weights)
    return weights, memory, {"effective_cohort": effective(weights)}


def effective(weights: Array) -> Array:
    """The number of equally weighted clients that would count as much: ``(sum w)^2 / sum w^2``; 0 for none.

    The mean of that, where several models are trained side by side, and weights are ``(m, models)``.
    """
    squares = jnp.sum(jnp.square(weights), axis=0)
    sums = jnp.square(jnp.sum(weights, axis=0))
    return jnp.mean(jnp.where(squares > 0, sums / jnp.where(squares > 0, squares, 1.0), 0.0))


class Step(NamedTuple):
    """The result of the server's step: its state, that of the phase's aggregator, and what is reported."""

    server: PyTree
    memory: PyTree
    info: Info


def server_step(
    phase: Phase,
    server: PyTree,
    memories: tuple[PyTree, PyTree],
    direction: PyTree,
    reported: Array,
    key: Key,
) -> Step:
    """The server's step.

    Args:
      phase: the exchange that ends.
      server: the algorithm's server state.
      memories: the aggregator's state, before the exchange and after it.
      direction: what the uploads were reduced to.
      reported: how many uploads were accepted.  Without any, nothing changes, unless the phase has ``steps_if_empty``.
      key: of this phase of this round, from the secret root.

    Raises:
      EvenhandError: a state has changed its structure, shapes or dtypes.
    """
    before, after = memories
    stepped, info = phase.server(server, direction, reported, key)
    _check_form("Phase.server", server, stepped)
    _check_form("the aggregator", before, after)
    if phase.steps_if_empty:
        return Step(stepped, after, info)
    # Both are computed, and one is chosen: how many uploads there are is known only when the round runs.
    anybody = reported > 0
    return Step(tree.select(anybody, stepped, server), tree.select(anybody, after, before), info)


def _check_form(part: str, before: PyTree, after: PyTree) -> None:
    if tree.form(before) != tree.form(after):
        raise EvenhandError(
            f"A round changed the structure, shapes or dtypes of a state: {part} must return a state like the one that "
            "it gets."
        )
