"""The compiled engine: a round is one program, and runs of rounds are a loop inside it.

A round's cohort is cut into groups of ``lanes`` clients, which are dealt to the devices.  Each device scans its groups;
the clients of a group are ``vmap``ped and run until the longest of them is done, so the cohort is sorted by work first.
Aggregators of the sum form are accumulated along the scan and then over the devices, which keeps memory at O(lanes)
models; the others get the cohort's stacked uploads.  What is not a client's work, every device does for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from evenhand import tree
from evenhand.aggregators._reduce import reduce_uploads, weigh
from evenhand.simulation import _client, _round
from evenhand.simulation._client import Client
from evenhand.simulation._groups import Groups, Members, live_sum, side_by_side
from evenhand.simulation._hoist import Hoisted, hoist, is_switched_on, unchanged, warn_of
from evenhand.simulation._program import Program, everywhere, on_each
from evenhand.simulation._round import WORK, RoundState, Rows
from evenhand.streams import Purpose, stream
from evenhand.types import Array, Key, PyTree, Report, Sum, Upload

__all__ = ["one_round", "run_rounds"]

_Infos = dict[str, Array]


def run_rounds(
    program: Program, state: RoundState, rows: Rows, root: Key, first: int, count: int
) -> tuple[RoundState, _Infos]:
    """Rounds ``first .. first + count - 1``; ``count`` is at most ``program.buffer``.

    The memory of ``state`` goes to the result: its arrays are gone afterwards.

    Returns the new state and each info as an array whose first ``count`` entries are the rounds'.
    """
    arguments = (state, rows, root, np.int32(first), np.int32(count))
    leaves, structure = jax.tree.flatten(arguments)
    form = tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)
    places = [leaf.sharding if isinstance(leaf, jax.Array) else None for leaf in leaves]
    given = len(jax.tree.leaves(state))
    compiled, numbers, constants, shapes = _prepared(
        _ById(program, places), structure, form, given, is_switched_on()
    )
    results = compiled(numbers, constants, leaves[:given], leaves[given:])
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


class _ById:
    """A program as a key: its parts are values, but hold functions that do not compare.

    With it goes where the leaves of its first arguments lie, which is no part of the key.
    """

    def __init__(self, program: Program, places: list[Any]) -> None:
        self.program, self.places = program, places
        self._key = tuple(field if isinstance(field, int | Mesh) else id(field) for field in program)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self._key == other._key


class _ByKey(NamedTuple):
    """A program apart from its numbers; programs with one key are one program."""

    hoisted: Hoisted
    mesh: Mesh | None

    def __hash__(self) -> int:
        return hash((self.hoisted.key, self.mesh))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and (self.hoisted.key, self.mesh) == (other.hoisted.key, other.mesh)


@lru_cache(maxsize=64)
def _prepared(
    identity: _ById, structure: Any, form: tuple[Any, ...], given: int, hoisting: bool
) -> tuple[Any, Any, Any, Any]:
    """``(compiled, numbers, constants, shapes of the results)``; the first ``given`` leaves are the state's."""
    program = identity.program
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form]
    like = jax.tree.unflatten(structure, leaves)
    traced, shapes = jax.make_jaxpr(partial(_run_rounds, program), return_shape=True)(*like)

    def ready(hoisted: Hoisted) -> tuple[Any, Any, Any, Any]:
        compiled = _compiled(_ByKey(hoisted, program.mesh))
        numbers, constants = everywhere(program.mesh, (hoisted.values, list(hoisted.constants)))
        # On arguments as those of the call, so that it finds this trace.
        placed = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
            for leaf, place in zip(leaves, identity.places, strict=True)
        ]
        compiled.trace(numbers, constants, placed[:given], placed[given:])
        return compiled, numbers, constants, shapes

    if hoisting:
        try:
            return ready(hoist(traced))
        except Exception as error:  # the rounds have been traced: it is the walk through them that fails
            warn_of(error)
    return ready(unchanged(traced))


@lru_cache(maxsize=64)
def _compiled(program: _ByKey) -> Any:
    def run(numbers: Array, constants: list[Array], state: list[Array], rest: list[Array]) -> list[Array]:
        return program.hoisted.run(numbers, constants, [*state, *rest])

    return jax.jit(run, donate_argnums=2)


def _run_rounds(
    program: Program, state: RoundState, rows: Rows, root: Key, first: Array, count: Array
) -> tuple[RoundState, _Infos]:
    return on_each(program.mesh, partial(_loop, program))(state, rows, root, first, count)


def _loop(
    program: Program, state: RoundState, rows: Rows, root: Key, first: Array, count: Array
) -> tuple[RoundState, _Infos]:
    one = jax.jit(partial(one_round, program))  # traced once, for the shapes and for the loop
    shapes = jax.eval_shape(one, state, rows, root, first)[1]
    infos = {name: jnp.zeros((program.buffer, *info.shape), info.dtype) for name, info in shapes.items()}

    def body(i: Array, carry: tuple[RoundState, _Infos]) -> tuple[RoundState, _Infos]:
        state, infos = carry
        state, info = one(state, rows, root, first + i)
        return state, {name: infos[name].at[i].set(info[name]) for name in infos}

    return lax.fori_loop(0, count, body, (state, infos))


def one_round(
    program: Program, state: RoundState, rows: Rows, root: Key, number: Array
) -> tuple[RoundState, _Infos]:
    """Round ``number``: the state after it, and what its phases tell."""
    algorithm = program.algorithm
    if algorithm.observe is not None:
        state = state._replace(server=_round.observe(algorithm, state.server, rows))
    infos: _Infos = dict.fromkeys(WORK, jnp.float32(0.0))
    reported = 0
    for index in range(len(algorithm.phases)):
        ids, progress = _round.cohort(
            algorithm, program.systems, rows.sizes, program.cohort, root, number, index, rows.table
        )
        reported = ids.shape[0]
        if reported > 0:
            effort = _client.effort(program, index, rows, ids, progress)
            groups = Groups.cut(ids, progress, effort.steps, program.lanes, program.devices)
            state, info = _one_phase(program, index, state, rows, root, number, ids, groups)
            passed = jnp.sum(effort.rows.astype(jnp.float32))
            work = zip(WORK, (groups.useful, groups.executed, passed), strict=True)
            infos |= info | {name: infos[name] + more for name, more in work}
    return state, {**infos, "reported": jnp.float32(reported)}


def _one_phase(
    program: Program,
    index: int,
    state: RoundState,
    rows: Rows,
    root: Key,
    number: Array,
    ids: Array,
    groups: Groups,
) -> tuple[RoundState, _Infos]:
    phase, memory = program.algorithm.phases[index], state.aggregators[index]
    aggregator = phase.aggregator
    client = Client.of(program, index, state.server, rows, root, number)
    told: _Infos = {}
    if isinstance(aggregator, Sum) and aggregator.weigh is not None:
        reports = groups.map(lambda member: client.report(member, tree.take(state.clients, member.ids)))
        weights, memory = weigh(aggregator, reports, ids, memory)
        told = {"effective_cohort": _round.effective(weights)}
        groups = groups.told(Report(weights, reports.loss))
    streams = _round.from_last(program.algorithm, index)
    key = stream(root, Purpose.AGGREGATOR, number, streams)
    if isinstance(aggregator, Sum) and aggregator.passes == 1:
        total, states = _streamed(aggregator, memory, client, groups, state.clients)
        direction, memory = aggregator.lower(total, memory, jax.random.fold_in(key, 0))
    else:
        _, (uploads, states) = _scan(client, groups, state.clients, (), _keep)
        direction, memory = reduce_uploads(aggregator, groups.ungroup(uploads), memory, key)
    server_key = stream(root, Purpose.SERVER, number, streams)
    server, info = phase.server(state.server, direction, jnp.int32(ids.shape[0]), server_key)
    aggregators = (*state.aggregators[:index], memory, *state.aggregators[index + 1 :])
    clients = jax.tree.map(lambda old, new: old.at[ids].set(new), state.clients, groups.ungroup(states))
    return RoundState(server, aggregators, clients), {**told, **info}


def _streamed(
    aggregator: Sum, memory: PyTree, client: Client, groups: Groups, store: PyTree
) -> tuple[PyTree, PyTree]:
    """``(total, states)``: everybody trained, and the sum of what was lifted; no upload is kept."""

    def lift(uploads: Upload) -> PyTree:
        return side_by_side(lambda upload: aggregator.lift(upload, memory), uploads)

    def consume(total: PyTree, uploads: Upload, live: Array) -> tuple[PyTree, PyTree]:
        return tree.add(total, jax.tree.map(partial(live_sum, live), lift(uploads))), ()

    first = tree.take(groups.members, jnp.int32(0))
    like = jax.eval_shape(lambda: lift(_train(client, first, store)[0]))
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), like)
    total, (_, states) = _scan(client, groups, store, total, consume)
    return groups.devices.total(total), states


def _scan(
    client: Client,
    groups: Groups,
    store: PyTree,
    begin: PyTree,
    consume: Callable[[PyTree, Upload, Array], tuple[PyTree, PyTree]],
) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """Trains group after group: uploads go to ``consume``, new client states come out grouped."""

    def step(kept: PyTree, members: Members) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        uploads, states = _train(client, members, store)
        kept, out = consume(kept, uploads, members.live)
        return kept, (out, states)

    return lax.scan(step, begin, groups.members)


def _train(client: Client, members: Members, store: PyTree) -> tuple[Upload, PyTree]:
    """One group's uploads and new states, client by client side by side."""
    return side_by_side(client.upload, members, tree.take(store, members.ids))


def _keep(kept: PyTree, uploads: Upload, live: Array) -> tuple[PyTree, PyTree]:
    return kept, uploads
