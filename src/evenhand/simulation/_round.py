"""What the compiled engine and its readable twin must agree on: a round's clients, keys and states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from evenhand import tree
from evenhand.evaluation import Prepared, mean_loss
from evenhand.simulation._program import on_each
from evenhand.streams import Purpose, client_stream, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, ClientData, Key, Params, Phase, PyTree, Report, Sum

__all__ = [
    "EXECUTED",
    "ROWS",
    "USEFUL",
    "WORK",
    "RoundState",
    "Rows",
    "Wire",
    "begin",
    "cohort",
    "effective",
    "from_last",
    "lie",
    "lie_in_report",
    "observe",
    "traffic",
    "wires",
    "work_key",
]


USEFUL, EXECUTED, ROWS = WORK = ("steps.useful", "steps.executed", "rows")
"""Names among a round's infos: local steps that were asked for, those that the lanes went through, rows trained on."""


class Rows(NamedTuple):
    """All training rows, and which clients lie, on the device.

    Attributes:
      x: features of all clients, one client after the other.
      y: their labels.
      starts: int32 ``(N,)``, each client's first row.
      sizes: int32 ``(N,)``, each client's rows.
      liars: bool ``(N,)``.
      table: what the sampling makes of the sizes once for all rounds, None for nothing.
    """

    x: Array
    y: Array
    starts: Array
    sizes: Array
    liars: Array
    table: PyTree = None


class RoundState(NamedTuple):
    """Everything a run remembers between rounds.

    Attributes:
      server: the algorithm's server state.
      aggregators: one state per phase.
      clients: the clients' states, leading axis ``N``.
    """

    server: PyTree
    aggregators: tuple[PyTree, ...]
    clients: PyTree


class Wire(NamedTuple):
    """The shapes of what crosses the wire between the server and one client in one phase."""

    message: PyTree
    delta: PyTree
    report: Report


def wires(
    algorithm: Algorithm,
    params: Params,
    rows: Rows,
    capacity: int,
    mesh: Mesh | None = None,
) -> tuple[Wire, ...]:
    """What each phase sends, found without computing anything.

    With the ``capacity`` and the ``mesh`` of the program, the work's gradient is traced once for this and the rounds.
    """

    def exchange(phase: Phase, params: Params, rows: Rows, key: Key) -> Wire:
        data = ClientData(rows.x, rows.y, rows.starts[0], rows.sizes[0], jnp.float32(1.0), capacity)
        message = phase.broadcast(algorithm.init(params, rows.sizes.shape[0]), jnp.int32(0))
        own = algorithm.init_client(params)
        return Wire(message, phase.work(message, own, data, key)[0], phase.report(message, own, data))

    return tuple(
        jax.eval_shape(on_each(mesh, partial(exchange, phase)), params, rows, jax.random.key(0))
        for phase in algorithm.phases
    )


def begin(
    algorithm: Algorithm,
    params: Params,
    rows: Rows,
    wires: tuple[Wire, ...],
    place: Callable[[PyTree], PyTree] = lambda values: values,
) -> RoundState:
    """The state before the first round; ``place`` puts arrays where they shall be."""
    clients = rows.sizes.shape[0]

    @jax.jit  # one program, not one per array
    def initial(params: Params) -> RoundState:
        zeros = [jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), wire.delta) for wire in wires]
        aggregators = tuple(
            phase.aggregator.init(like, clients) for phase, like in zip(algorithm.phases, zeros, strict=True)
        )
        return RoundState(algorithm.init(params, clients), aggregators, algorithm.init_client(params))

    one = place(initial(params))
    # In place already: a million clients' states may be most of the memory.
    store = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), one.clients)
    return one._replace(clients=store)


def traffic(algorithm: Algorithm, wires: tuple[Wire, ...]) -> dict[str, int]:
    """How many numbers a client that takes part in all phases of a round gets (``down``) and sends (``up``)."""
    down, up = 0, 0
    for phase, wire in zip(algorithm.phases, wires, strict=True):
        passes = phase.aggregator.passes if isinstance(phase.aggregator, Sum) else 1
        down += sum(leaf.size for leaf in jax.tree.leaves(wire.message))
        up += passes * (wire.report.weight.size + sum(leaf.size for leaf in jax.tree.leaves(wire.delta)))
        up += wire.report.loss.size if phase.aggregator.needs_loss else 0
    return {"down": down, "up": up}


def cohort(
    algorithm: Algorithm,
    systems: Systems | None,
    sizes: Array,
    count: int,
    root: Key,
    number: Array | int,
    phase: int,
    table: PyTree = None,
) -> tuple[Array, Array]:
    """``(ids, progress)`` of the clients that report in one phase of round ``number``, of ``count`` drawn ones.

    Clients whose work would be dropped are left out here, so that nobody computes what is thrown away.  ``table`` is
    that of :class:`Rows`.
    """
    draw = phase
    while draw + 1 < len(algorithm.phases) and not algorithm.phases[draw + 1].fresh_cohort:
        draw += 1
    draw = from_last(algorithm, draw)
    key, sampling = stream(root, Purpose.COHORT, number, draw), algorithm.sampling
    if table is not None and sampling.look_up is not None:
        ids = sampling.look_up(key, table, count)
    else:
        ids = sampling.draw(key, sizes, count)
    if systems is None:
        return ids, jnp.ones(ids.shape, jnp.float32)
    order, progress = systems.draw(stream(root, Purpose.STRAGGLERS, number, draw), ids)
    if algorithm.partial_work:
        return ids, progress
    fast = jnp.sort(order[: systems.fast(ids.shape[0])])
    return ids[fast], progress[fast]


def from_last(algorithm: Algorithm, phase: int) -> int:
    """The number of a phase's streams.

    Counted from the last phase, the one that trains in every method: so that methods with more exchanges still meet
    the same cohorts, stragglers and batches.
    """
    return len(algorithm.phases) - 1 - phase


def work_key(root: Key, number: Array | int, phase: int, client: Array) -> Key:
    """The key of a client's local work; ``phase`` counts from the last one."""
    return client_stream(stream(root, Purpose.WORK, number, phase), client)


def effective(weights: Array) -> Array:
    """How many clients of equal weight would be as many as these: ``(sum w)^2 / sum w^2``; 0 for none.

    The mean of that, where several models are trained side by side, and weights are ``(m, models)``.
    """
    squares = jnp.sum(jnp.square(weights), axis=0)
    sums = jnp.square(jnp.sum(weights, axis=0))
    return jnp.mean(jnp.where(squares > 0, sums / jnp.where(squares > 0, squares, 1.0), 0.0))


def observe(algorithm: Algorithm, server: PyTree, rows: Rows) -> PyTree:
    """The server state once the method has seen the training loss of the global model over all clients."""
    assert algorithm.observe is not None
    everything = Prepared(rows.x, rows.y, np.array([0, rows.x.shape[0]]))
    return algorithm.observe(server, mean_loss(algorithm.model, algorithm.global_params(server), everything))


def lie_in_report(attack: Attack | None, rows: Rows, report: Report, client: Array, key: Key) -> Report:
    """What the client reports in place of ``report``: the same, unless it is a liar."""
    if attack is None or attack.report is None:
        return report
    return tree.select(rows.liars[client], attack.report(report, stream(key, Purpose.ATTACK, 1)), report)


def lie(attack: Attack | None, rows: Rows, delta: PyTree, client: Array, key: Key) -> PyTree:
    """What the client sends in place of ``delta``: the same, unless it is a liar."""
    if attack is None or attack.upload is None:
        return delta
    return tree.select(rows.liars[client], attack.upload(delta, stream(key, Purpose.ATTACK)), delta)
