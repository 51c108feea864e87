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
from evenhand.simulation._round import RoundState, Rows
from evenhand.streams import Purpose, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, ClientData, Key, Phase, PyTree, Report, Sum, Upload

__all__ = ["Program", "run_rounds"]


class Program(NamedTuple):
    """What is fixed when a round is compiled.

    Attributes:
      algorithm: the method.
      cohort: clients drawn per round; None: everybody.
      capacity: rows of the largest client.
      lanes: clients trained side by side.
      systems: stragglers, or None.
      attack: liars, or None.
      buffer: how many rounds' infos one call returns.
    """

    algorithm: Algorithm
    cohort: int | None
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
    one = jax.jit(partial(_one_round, program))  # traced once, for the shapes and for the loop
    shapes = jax.eval_shape(one, state, rows, root, first)[1]
    infos = {name: jnp.zeros((program.buffer, *info.shape), info.dtype) for name, info in shapes.items()}

    def body(i: Array, carry: tuple[RoundState, dict[str, Array]]) -> tuple[RoundState, dict[str, Array]]:
        state, infos = carry
        state, info = one(state, rows, root, first + i)
        return state, {name: infos[name].at[i].set(info[name]) for name in infos}

    return lax.fori_loop(0, count, body, (state, infos))


def _one_round(
    program: Program, state: RoundState, rows: Rows, root: Key, number: Array
) -> tuple[RoundState, dict[str, Array]]:
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
            _round.draw_phase(algorithm, index),
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
    phase = program.algorithm.phases[index]
    aggregator = phase.aggregator
    groups = _Groups.cut(ids, progress, rows.sizes, program.lanes)
    upload = partial(_client(program, phase, index), state.server, rows, root, number)
    aggregator_state = state.aggregators[index]
    weights: Array | None = None
    if isinstance(aggregator, Sum) and aggregator.weigh is not None:

        def report(client: Array, progress: Array) -> Report:
            data = _data(program, rows, client, progress)
            return phase.report(phase.broadcast(state.server, client), tree.take(state.clients, client), data)

        reports = groups.map(report)
        weights, aggregator_state = weigh(aggregator, groups.ungroup(reports), ids, aggregator_state)
        weights = groups.regroup(weights)
    streams = isinstance(aggregator, Sum) and aggregator.passes == 1

    def lifted(upload: Upload) -> PyTree:
        assert isinstance(aggregator, Sum)
        return aggregator.lift(upload, aggregator_state)

    def group(carry: tuple[PyTree, PyTree], chosen: _Group) -> tuple[tuple[PyTree, PyTree], PyTree]:
        store, total = carry
        uploads, states = _lanes(upload, chosen.ids, chosen.progress, tree.take(store, chosen.ids))
        if chosen.weights is not None:
            uploads = uploads._replace(weight=chosen.weights)
        # Padding writes nowhere: its index lies outside the store.
        where = jnp.where(chosen.live, chosen.ids, rows.sizes.shape[0])
        store = jax.tree.map(lambda kept, new: kept.at[where].set(new, mode="drop"), store, states)
        if not streams:
            return (store, total), uploads
        return (store, tree.add(total, _live_sum(_lanes(lifted, uploads), chosen.live))), ()

    total: PyTree = ()
    chosen = _Group(groups.ids, groups.progress, groups.live, weights)
    if streams:
        first = tree.take(chosen, jnp.int32(0))
        own = tree.take(state.clients, first.ids)
        like = jax.eval_shape(lambda: _lanes(lifted, _lanes(upload, first.ids, first.progress, own)[0]))
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), like)
    (clients, total), uploads = lax.scan(group, (state.clients, total), chosen)
    key = stream(root, Purpose.AGGREGATOR, number, index)
    if streams:
        assert isinstance(aggregator, Sum)
        direction, aggregator_state = aggregator.lower(total, aggregator_state, jax.random.fold_in(key, 0))
    else:
        direction, aggregator_state = reduce_uploads(
            aggregator, groups.ungroup(uploads), aggregator_state, key
        )
    server_key = stream(root, Purpose.SERVER, number, index)
    server, info = phase.server(state.server, direction, ids.shape[0], server_key)
    aggregators = (*state.aggregators[:index], aggregator_state, *state.aggregators[index + 1 :])
    return RoundState(server, aggregators, clients), dict(info)


def _client(program: Program, phase: Phase, index: int) -> Callable[..., tuple[Upload, PyTree]]:
    """``(server, rows, root, number, id, progress, state) -> (upload, state)`` of one client in one phase."""

    def upload(
        server: PyTree, rows: Rows, root: Key, number: Array, client: Array, progress: Array, state: PyTree
    ) -> tuple[Upload, PyTree]:
        data = _data(program, rows, client, progress)
        message = phase.broadcast(server, client)
        report = phase.report(message, state, data)
        key = _round.work_key(root, number, index, client)
        delta, state = phase.work(message, state, data, key)
        delta = _round.lie(program.attack, rows, delta, client, key)
        return Upload(delta, report.weight, report.loss), state

    return jax.jit(upload)  # traced once, for the shapes and for the loop


def _data(program: Program, rows: Rows, client: Array, progress: Array) -> ClientData:
    return ClientData(rows.x, rows.y, rows.starts[client], rows.sizes[client], progress, program.capacity)


class _Group(NamedTuple):
    """Clients trained side by side; padding is not ``live``."""

    ids: Array
    progress: Array
    live: Array
    weights: Array | None


class _Groups(NamedTuple):
    """A cohort cut into groups of equal size, longest work first.

    Attributes:
      ids: ``(groups, lanes)`` client ids.
      progress: ``(groups, lanes)``.
      live: ``(groups, lanes)``, False for padding.
      order: ``(m,)``, which member of the cohort stands at each place.
    """

    ids: Array
    progress: Array
    live: Array
    order: Array

    @staticmethod
    def cut(ids: Array, progress: Array, sizes: Array, lanes: int) -> _Groups:
        m = ids.shape[0]
        lanes = min(lanes, m)
        order = jnp.arange(m)
        if lanes > 1:
            work = sizes[ids].astype(jnp.float32) * jnp.minimum(progress, 1.0)
            order = jnp.argsort(-work, stable=True)
        count = -(-m // lanes)
        place = jnp.minimum(jnp.arange(count * lanes), m - 1).reshape(count, lanes)
        live = (jnp.arange(count * lanes) < m).reshape(count, lanes)
        return _Groups(ids[order][place], progress[order][place], live, order)

    def map(self, function: Callable[[Array, Array], PyTree]) -> PyTree:
        """``function(id, progress)`` of every client, grouped."""
        return lax.map(lambda group: _lanes(function, *group), (self.ids, self.progress))

    def ungroup(self, grouped: PyTree) -> PyTree:
        """From ``(groups, lanes, ...)`` to ``(m, ...)`` in the cohort's own order."""
        m = self.order.shape[0]
        back = jnp.argsort(self.order)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:m][back], grouped)

    def regroup(self, values: Array) -> Array:
        """From ``(m,)`` in the cohort's own order to ``(groups, lanes)``."""
        m = self.order.shape[0]
        place = jnp.minimum(jnp.arange(self.ids.size), m - 1).reshape(self.ids.shape)
        return values[self.order][place]


def _lanes(function: Callable[..., PyTree], *batched: PyTree) -> PyTree:
    """``vmap``, except that a single lane is not batched: a batch of one costs XLA:CPU its fast paths."""
    if jax.tree.leaves(batched)[0].shape[0] > 1:
        return jax.vmap(function)(*batched)
    out = function(*(jax.tree.map(lambda leaf: leaf[0], argument) for argument in batched))
    return jax.tree.map(lambda leaf: leaf[None], out)


def _live_sum(values: PyTree, live: Array) -> PyTree:
    def total(leaf: Array) -> Array:
        mask = live.reshape(live.shape + (1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(mask, leaf, jnp.zeros((), leaf.dtype)), axis=0)

    return jax.tree.map(total, values)
