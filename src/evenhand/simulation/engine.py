"""The compiled engine: a round is one program, and runs of rounds are a loop inside it.

A round's cohort is cut into groups of ``lanes`` clients, which are dealt to the devices.  Each device scans its groups;
the clients of a group are ``vmap``ped and run until the longest of them is done, so the cohort is sorted by work first.
Aggregators of the sum form are accumulated along the scan and then over the devices, which keeps memory at O(lanes)
models; the others get the cohort's stacked uploads, of which each device holds a part of the coordinates.  Everything
else is done by every device.

From top to bottom: rounds as one compiled program, one round, the reduction of a cohort's uploads, one client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evenhand import rounds, tree
from evenhand._jaxpr.hoist import Hoisted, hoist, is_switched_on, unchanged, warn_of
from evenhand.aggregators import in_loop, in_passes, reduce_uploads
from evenhand.devices import everywhere
from evenhand.rounds import RoundState
from evenhand.simulation.program import (
    WORK,
    ById,
    Groups,
    Members,
    Program,
    Rows,
    client_data,
    efforts,
    observe,
    side_by_side,
    sum_of,
)
from evenhand.simulation.store import States
from evenhand.streams import Keys, Purpose, stream
from evenhand.types import Aggregator, Array, ClientData, Cohort, Key, PyTree, Report, Sum, Upload

__all__ = ["Hoistable", "hoist_rounds", "one_round", "run_rounds"]

_Infos = dict[str, Array]


# --- rounds as one compiled program -----------------------------------------------------------------------------------


def run_rounds(
    program: Program, state: RoundState, rows: Rows, keys: Keys, first: int, count: int
) -> tuple[RoundState, _Infos]:
    """Rounds ``first .. first + count - 1``; ``count`` is at most ``program.buffer``.

    The memory of ``state`` goes to the result: its arrays are gone afterwards.

    Returns the new state and each info as an array whose first ``count`` entries are the rounds'.
    """
    arguments = (state, rows, keys, np.int32(first), np.int32(count))
    leaves = jax.tree.leaves(arguments)
    places = [leaf.sharding if isinstance(leaf, jax.Array) else None for leaf in leaves]
    given = len(jax.tree.leaves(state))
    compiled, numbers, constants, shapes = _prepared(
        ById(program, places), *_form(arguments), given, is_switched_on()
    )
    results = compiled(numbers, constants, leaves[:given], leaves[given:])
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


class Hoistable(NamedTuple):
    """The rounds of a program apart from their numbers, and the structure of their results."""

    hoisted: Hoisted
    results: Any


def hoist_rounds(program: Program, state: RoundState, rows: Rows, keys: Keys) -> Hoistable | None:
    """The rounds of a program on arguments of these shapes; None where they cannot be told from their numbers."""
    if not is_switched_on():
        return None
    traced, shapes = _traced(ById(program), *_form((state, rows, keys, np.int32(0), np.int32(0))))
    try:
        return Hoistable(hoist(traced), jax.tree.structure(shapes))
    except Exception as error:  # as in _prepared
        warn_of(error)
        return None


class _ByKey(NamedTuple):
    """A program apart from its numbers; programs with one key are one program."""

    hoisted: Hoisted
    mesh: Mesh | None

    def __hash__(self) -> int:
        return hash((self.hoisted.key, self.mesh))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and (self.hoisted.key, self.mesh) == (other.hoisted.key, other.mesh)


def _form(arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    """The structure of arguments, and the shape and dtype of each array."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)


@lru_cache(maxsize=16)
def _traced(identity: ById, structure: Any, form: tuple[Any, ...]) -> tuple[Any, Any]:
    """The rounds of a program, and the shapes of their results."""
    like = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form])
    return jax.make_jaxpr(partial(_run_rounds, identity.program), return_shape=True)(*like)


@lru_cache(maxsize=16)
def _prepared(
    identity: ById, structure: Any, form: tuple[Any, ...], given: int, hoisting: bool
) -> tuple[Any, Any, Any, Any]:
    """``(compiled, numbers, constants, shapes of the results)``; the first ``given`` leaves are the state's."""
    program = identity.program
    traced, shapes = _traced(identity, structure, form)

    def ready(hoisted: Hoisted) -> tuple[Any, Any, Any, Any]:
        compiled = _compiled(_ByKey(hoisted, program.mesh))
        numbers, constants = everywhere(program.mesh, (hoisted.values, list(hoisted.constants)))
        # On arguments as those of the call, so that it finds this trace.
        placed = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=place)
            for (shape, dtype), place in zip(form, identity.places, strict=True)
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

    # Whole on each device: XLA would leave an aggregator's state divided, and a run that continues from a file, whose
    # states are whole, would be another program with other rounding.
    whole = None if program.mesh is None else NamedSharding(program.mesh, PartitionSpec())
    return jax.jit(run, donate_argnums=2, out_shardings=whole)


def _run_rounds(
    program: Program, state: RoundState, rows: Rows, keys: Keys, first: Array, count: Array
) -> tuple[RoundState, _Infos]:
    one = jax.jit(partial(one_round, program))  # traced once, for the shapes and for the loop
    shapes = jax.eval_shape(one, state, rows, keys, first)[1]
    infos = {name: jnp.zeros((program.buffer, *info.shape), info.dtype) for name, info in shapes.items()}

    def body(i: Array, carry: tuple[RoundState, _Infos]) -> tuple[RoundState, _Infos]:
        state, infos = carry
        state, info = one(state, rows, keys, first + i)
        infos = {name: infos[name].at[i].set(info[name]) for name in infos}
        return program.devices.whole((state, infos))

    return lax.fori_loop(0, count, body, (state, infos))


# --- one round --------------------------------------------------------------------------------------------------------


def one_round(
    program: Program, state: RoundState, rows: Rows, keys: Keys, number: Array
) -> tuple[RoundState, _Infos]:
    """Round ``number``: the state after it, and what its phases show."""
    algorithm = program.algorithm
    if algorithm.observe is not None:
        state = state._replace(server=observe(algorithm, state.server, rows))
    infos: _Infos = dict.fromkeys((*WORK, "rejected"), jnp.float32(0.0))
    reported = jnp.float32(0.0)
    for index in range(len(algorithm.phases)):
        cohort = rounds.cohort(
            algorithm, program.systems, rows.sizes, program.cohort, keys, number, index, rows.table
        )
        effort = efforts(algorithm.phases[index].effort, program.capacity, rows, cohort)
        groups = Groups.cut(cohort, effort.steps, program.lanes, program.devices)
        state, info, accepted = _one_phase(program, index, state, rows, keys, number, cohort, groups)
        reported, drawn = (jnp.sum(slots.astype(jnp.float32)) for slots in (accepted, cohort.present))
        counted = (groups.useful, groups.executed, jnp.sum(effort.rows.astype(jnp.float32)), drawn - reported)
        more = {name: infos[name] + count for name, count in zip((*WORK, "rejected"), counted, strict=True)}
        infos |= info | more
        if index == len(algorithm.phases) - 1:
            last = rounds.last_rounds(state.last_round, cohort, accepted, number)
            state = state._replace(last_round=last)
    return state, {**infos, "reported": reported}


def _one_phase(
    program: Program,
    index: int,
    state: RoundState,
    rows: Rows,
    keys: Keys,
    number: Array,
    cohort: Cohort,
    groups: Groups,
) -> tuple[RoundState, _Infos, Array]:
    """The state after one exchange, what it shows, and whose uploads were accepted, ``(m,)``."""
    phase, before = program.algorithm.phases[index], state.aggregators[index]
    client, shared = Client.of(program, index), Shared(state.server, rows, keys, number)
    states = States(state.clients, rows.slots)
    memory, info = before, {}
    if isinstance(phase.aggregator, Sum) and phase.aggregator.weigh is not None:
        reports, sane = groups.ungroup(groups.map_groups(partial(_reports, client), (shared, states)))
        cohort = cohort._replace(present=cohort.present & sane)
        weights, memory, info = rounds.weighed(phase.aggregator, reports, cohort, memory)
        groups = groups.with_reports(Report(weights, reports.loss), cohort.present)
    streams = rounds.phase_stream(program.algorithm, index)
    key, server_key = (
        stream(keys.secret, purpose, number, streams) for purpose in (Purpose.AGGREGATOR, Purpose.SERVER)
    )
    noise = jax.vmap(partial(rounds.lift_key, keys, number, streams))(cohort.ids)
    attack = program.attack
    parts = (phase.aggregator, memory, client, shared, groups, states, key, noise, cohort.ids)
    if attack is None or attack.collude is None:
        found = reduced(*parts)
    else:

        def agreed(uploads: Upload, accepted: Array) -> Upload:
            left = cohort._replace(present=accepted)
            return rounds.colluding(attack, uploads, rows.malicious[cohort.ids], left, keys, number, streams)

        found = stacked(*parts, agreed)
    step = rounds.server_step(
        phase,
        state.server,
        (before, found.memory),
        found.direction,
        jnp.sum(found.accepted.astype(jnp.int32)),
        server_key,
    )
    aggregators = (*state.aggregators[:index], step.memory, *state.aggregators[index + 1 :])
    clients = states.after(*groups.slots(found.accepted), found.states)
    state = state._replace(server=step.server, aggregators=aggregators, clients=clients)
    return state, {**info, **step.info}, found.accepted


def _reports(client: Client, group: Members, fixed: tuple[Shared, States]) -> tuple[Report, Array]:
    """What a group's clients report before they work, and which of them an honest client could have sent."""
    shared, states = fixed
    return side_by_side(lambda member: client.report(shared, member, states.of(member.ids)), group)


# --- a cohort's work, and the reduction of its uploads, streamed where the aggregator allows it -----------------------


class Reduced(NamedTuple):
    """The result of a cohort's work.

    Attributes:
      direction: what the uploads are reduced to.
      memory: the aggregator's state.
      states: the new states, one per slot of the groups, as :meth:`Groups.as_dealt` gives them.
      accepted: which uploads were accepted, bool ``(m,)``.
    """

    direction: PyTree
    memory: PyTree
    states: PyTree
    accepted: Array


def reduced(
    aggregator: Aggregator,
    memory: PyTree,
    client: Client,
    shared: Shared,
    groups: Groups,
    states: States,
    key: Key,
    noise: Key,
    ids: Array,
) -> Reduced:
    """Trains the cohort and reduces what it sends, in the least memory that the aggregator allows.

    A sum in one pass keeps no upload.  A sum in several passes keeps the uploads on the device that made them, and
    reduces them pass by pass.  Any other aggregator gets all of them at once.
    """
    if not isinstance(aggregator, Sum) or not aggregator.streams:
        return stacked(aggregator, memory, client, shared, groups, states, key, noise, ids)
    if aggregator.passes > 1:
        return _in_passes(aggregator, memory, client, shared, groups, states, key)

    def on_device(
        members: Members, fixed: tuple[Shared, States, PyTree]
    ) -> tuple[PyTree, tuple[PyTree, Array]]:
        shared, states, public = fixed

        def lifted(group: Members, done: Trained) -> PyTree:
            return _lifted(public, 0, client, shared, group, done.upload, done.accepted)

        def step(total: PyTree, group: Members) -> tuple[PyTree, tuple[PyTree, Array]]:
            done = _train(client, group, (shared, states))
            return tree.add(total, lifted(group, done)), (done.state, done.accepted)

        first = tree.take(members, jnp.int32(0))
        like = jax.eval_shape(lambda: lifted(first, _train(client, first, (shared, states))))
        return lax.scan(step, _zeros(like), members)

    fixed = shared, states, aggregator.publish(memory)
    totals, (states_after, accepted) = groups.devices.each(on_device, groups.members, fixed)
    direction, memory = in_passes(aggregator, memory, key, lambda public, number: groups.total(totals))
    return Reduced(direction, memory, groups.as_dealt(states_after), groups.ungroup(accepted))


def _in_passes(
    aggregator: Sum,
    memory: PyTree,
    client: Client,
    shared: Shared,
    groups: Groups,
    states: States,
    key: Key,
) -> Reduced:
    done = groups.map_groups(partial(_train, client), (shared, states))

    def total_of(public: PyTree, number: Array) -> PyTree:
        def on_device(kept: tuple[Members, Upload, Array], fixed: tuple[PyTree, Array, Shared]) -> PyTree:
            public, number, shared = fixed

            def lifted(group: tuple[Members, Upload, Array]) -> PyTree:
                members, uploads, accepted = group
                return _lifted(public, number, client, shared, members, uploads, accepted)

            def step(total: PyTree, group: tuple[Members, Upload, Array]) -> tuple[PyTree, None]:
                return tree.add(total, lifted(group)), None

            like = jax.eval_shape(lambda: lifted(tree.take(kept, jnp.int32(0))))
            return lax.scan(step, _zeros(like), kept)[0]

        kept = groups.members, done.upload, done.accepted
        return groups.total(groups.devices.each(on_device, kept, (public, number, shared)))

    direction, memory = in_loop(aggregator, memory, key, total_of)
    return Reduced(direction, memory, groups.as_dealt(done.state), groups.ungroup(done.accepted))


def stacked(
    aggregator: Aggregator,
    memory: PyTree,
    client: Client,
    shared: Shared,
    groups: Groups,
    states: States,
    key: Key,
    noise: Key,
    ids: Array,
    agreed: Callable[[Upload, Array], Upload] | None = None,
) -> Reduced:
    """As :func:`reduced`, with all uploads at once; ``agreed`` has colluding clients replace theirs.

    ``noise`` has the key of each client of the cohort, ``(m,)``, and ``ids`` the clients.
    """
    done = groups.map_groups(partial(_train, client), (shared, states))
    delta = groups.by_coordinate(done.upload.delta)
    (weight, loss), accepted = groups.ungroup((done.upload[1:], done.accepted))
    uploads = Upload(delta, weight, loss)
    if agreed is not None:
        uploads = agreed(tree.among(accepted, uploads), accepted)
        accepted = accepted & jax.vmap(rounds.accepts_delta, axis_size=len(accepted))(uploads.delta)

    def lift(slot: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
        return client.lift(shared, ids[slot], upload, public, key)

    direction, memory = groups.devices.whole(
        reduce_uploads(aggregator, uploads, accepted, memory, key, noise, lift)
    )
    return Reduced(direction, memory, groups.as_dealt(done.state), accepted)


def _train(client: Client, members: Members, fixed: tuple[Shared, States]) -> Trained:
    """One group's local work, clients side by side."""
    shared, states = fixed
    return side_by_side(partial(client.train, shared), members, states.of(members.ids))


def _lifted(
    public: PyTree,
    number: Array | int,
    client: Client,
    shared: Shared,
    members: Members,
    uploads: Upload,
    accepted: Array,
) -> PyTree:
    """What one group adds to the sum of pass ``number``."""

    def lift(member: Members, upload: Upload) -> PyTree:
        key = jax.random.fold_in(client.noise(shared, member), number)
        return client.lift(shared, member.ids, upload, public, key)

    return sum_of(accepted, side_by_side(lift, members, uploads))


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


# --- one client in one phase ------------------------------------------------------------------------------------------


class Shared(NamedTuple):
    """What all clients of an exchange share.

    Attributes:
      server: the method's state, from which each broadcast is made.
      rows: of all clients.
      keys: the roots.
      number: of the round.
    """

    server: PyTree
    rows: Rows
    keys: Keys
    number: Array


class Trained(NamedTuple):
    """What a client's local work leaves behind.

    Attributes:
      upload: what it sends.
      accepted: whether there is a client, and an honest one can have sent this.
      state: what it keeps.
    """

    upload: Upload
    accepted: Array
    state: PyTree


class Client(NamedTuple):
    """A client's part, as functions of who it is.

    Attributes:
      report: ``(shared, member, state) -> (Report, accepted)``.
      train: ``(shared, member, state) -> Trained``; a member without a report makes one.
      noise: ``(shared, member) -> key`` of what it adds to what it sends.
      lift: ``(shared, client, upload, public, key) -> lifted``, what it adds to a sum in a pass, with its key for that
        pass.
    """

    report: Callable[[Shared, Members, PyTree], tuple[Report, Array]]
    train: Callable[[Shared, Members, PyTree], Trained]
    noise: Callable[[Shared, Members], Key]
    lift: Callable[[Shared, Array, Upload, PyTree, Key], PyTree]

    @staticmethod
    def of(program: Program, index: int) -> Client:
        """The client's part in phase ``index``."""
        algorithm, attack = program.algorithm, program.attack
        phase, streams = algorithm.phases[index], rounds.phase_stream(algorithm, index)
        largest = rounds.largest_weight(algorithm, program.capacity)

        def data(rows: Rows, member: Members, number: Array, key: Key) -> ClientData:
            clean = client_data(program.capacity, rows, member)
            return rounds.fresh_data(attack, clean, rows.malicious, member.ids, number, key)

        def reported(
            member: Members, message: PyTree, state: PyTree, rows: Rows, number: Array, key: Key
        ) -> tuple[Report, Array]:
            report = phase.report(message, state, data(rows, member, number, key))
            report = rounds.false_report(attack, report, rows.malicious[member.ids], number, key)
            return report, member.present & rounds.accepts_report(phase.aggregator, report, largest)

        def report(shared: Shared, member: Members, state: PyTree) -> tuple[Report, Array]:
            server, rows, keys, number = shared
            key = rounds.work_key(keys, number, streams, member.ids)
            return reported(member, phase.broadcast(server, member.ids), state, rows, number, key)

        @jax.jit  # traced once, for the shapes and for the loop
        def train(shared: Shared, member: Members, state: PyTree) -> Trained:
            server, rows, keys, number = shared
            message = phase.broadcast(server, member.ids)
            key = rounds.work_key(keys, number, streams, member.ids)
            report, accepted = member.report, member.present
            if report is None:
                report, accepted = reported(member, message, state, rows, number, key)
            delta, state = phase.work(message, state, data(rows, member, number, key), key)
            delta = rounds.false_delta(attack, delta, rows.malicious[member.ids], number, key)
            return Trained(Upload(delta, *report), accepted & rounds.accepts_delta(delta), state)

        def noise(shared: Shared, member: Members) -> Key:
            return rounds.lift_key(shared.keys, shared.number, streams, member.ids)

        def lift(shared: Shared, client: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
            assert isinstance(phase.aggregator, Sum)
            malicious, number = shared.rows.malicious[client], shared.number
            return rounds.lifted(attack, phase.aggregator, upload, public, malicious, number, key)

        return Client(report, train, noise, lift)
