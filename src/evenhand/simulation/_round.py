"""What the compiled engine and its readable twin must agree on: a round's clients, keys and states."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import tree
from evenhand.evaluation import Prepared, mean_loss
from evenhand.streams import Purpose, client_stream, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, ClientData, Key, Params, Phase, PyTree

__all__ = ["RoundState", "Rows", "begin", "cohort", "draw_phase", "lie", "observe", "work_key"]


class Rows(NamedTuple):
    """All training rows, and which clients lie, on the device.

    Attributes:
      x: features of all clients, one client after the other.
      y: their labels.
      starts: int32 ``(N,)``, each client's first row.
      sizes: int32 ``(N,)``, each client's rows.
      liars: bool ``(N,)``.
    """

    x: Array
    y: Array
    starts: Array
    sizes: Array
    liars: Array


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


def begin(algorithm: Algorithm, params: Params, rows: Rows) -> RoundState:
    """The state before the first round."""
    clients = rows.sizes.shape[0]
    server = algorithm.init(params, clients)
    store = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), algorithm.init_client(params)
    )
    aggregators = tuple(
        phase.aggregator.init(_first_delta(phase, server, algorithm.init_client(params), rows))
        for phase in algorithm.phases
    )
    return RoundState(server, aggregators, store)


def _first_delta(phase: Phase, server: PyTree, client_state: PyTree, rows: Rows) -> PyTree:
    """Zeros like what a client uploads, found without computing anything."""

    def work(server: PyTree, client_state: PyTree, rows: Rows) -> PyTree:
        data = ClientData(rows.x, rows.y, rows.starts[0], rows.sizes[0], jnp.float32(1.0), rows.x.shape[0])
        return phase.work(phase.broadcast(server, jnp.int32(0)), client_state, data, jax.random.key(0))[0]

    shapes = jax.eval_shape(work, server, client_state, rows)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def cohort(
    algorithm: Algorithm,
    systems: Systems | None,
    sizes: Array,
    count: int | None,
    root: Key,
    number: Array | int,
    phase: int,
) -> tuple[Array, Array]:
    """``(ids, progress)`` of the clients that report in one phase of round ``number``.

    ``count`` is how many are drawn, None for everybody.  Clients whose work would be dropped are left out here, so
    that nobody computes what is thrown away.
    """
    if count is None:
        ids = jnp.arange(sizes.shape[0], dtype=jnp.int32)
    else:
        ids = algorithm.sampling.draw(stream(root, Purpose.COHORT, number, phase), sizes, count)
    if systems is None:
        return ids, jnp.ones(ids.shape, jnp.float32)
    order, progress = systems.draw(stream(root, Purpose.STRAGGLERS, number, phase), ids)
    if algorithm.partial_work:
        return ids, progress
    fast = jnp.sort(order[: systems.fast(ids.shape[0])])
    return ids[fast], progress[fast]


def draw_phase(algorithm: Algorithm, phase: int) -> int:
    """The phase whose draw decides who takes part in ``phase``."""
    while phase > 0 and not algorithm.phases[phase].fresh_cohort:
        phase -= 1
    return phase


def work_key(root: Key, number: Array | int, phase: int, client: Array) -> Key:
    """The key of a client's local work."""
    return client_stream(stream(root, Purpose.WORK, number, phase), client)


def observe(algorithm: Algorithm, server: PyTree, rows: Rows) -> PyTree:
    """The server state once the method has seen the training loss of the global model over all clients."""
    assert algorithm.observe is not None
    everything = Prepared(rows.x, rows.y, np.array([0, rows.x.shape[0]]))
    return algorithm.observe(server, mean_loss(algorithm.model, algorithm.global_params(server), everything))


def lie(attack: Attack | None, rows: Rows, delta: PyTree, client: Array, key: Key) -> PyTree:
    """What the client sends in place of ``delta``: the same, unless it is a liar."""
    if attack is None or attack.upload is None:
        return delta
    return tree.select(rows.liars[client], attack.upload(delta, stream(key, Purpose.ATTACK)), delta)
