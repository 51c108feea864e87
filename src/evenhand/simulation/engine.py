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
from evenhand._jaxpr.hoist import Hoisted, Keyed, hoist, is_switched_on, unchanged, warn_of
from evenhand._jaxpr.programs import UnknownForm, has_primitive, interruptible
from evenhand.aggregators import in_loop, in_passes, reduce_uploads
from evenhand.devices import as_entry, entry, everywhere
from evenhand.rounds import RoundState
from evenhand.simulation.program import (
    SECONDS,
    WORK,
    ById,
    Groups,
    Members,
    Pieces,
    Program,
    Rows,
    client_data,
    efforts,
    observe,
    on_time,
    side_by_side,
    sum_of,
)
from evenhand.simulation.store import States
from evenhand.streams import Keys, Purpose, stream
from evenhand.types import Aggregator, Array, ClientData, Cohort, Info, Key, PyTree, Report, Sum, Upload

__all__ = ["ByKey", "Hoistable", "hoist_rounds", "one_round", "run_rounds"]

_Infos = dict[str, Array]
_After = tuple[RoundState, _Infos]
"""The state after some rounds or one, and what these report."""
_Reported = tuple[Report, Array]
"""What clients report, and which of it an honest client could have sent."""
_Sent = tuple[Members, Upload, Array]
"""A group's clients, what they send, and what of it is accepted."""
_Made = tuple[PyTree, Array, PyTree]
"""The states of a group's clients, what of theirs is accepted, and what is kept of what they lift."""
_Begun = tuple[list[Array], list[Array]]
"""What the loops of clients carry that are not done: of one that stays on this device, and of one that leaves it."""


# --- rounds as one compiled program -----------------------------------------------------------------------------------


def run_rounds(program: Program, state: RoundState, rows: Rows, keys: Keys, first: int, count: int) -> _After:
    """Rounds ``first .. first + count - 1``; ``count`` is at most ``program.buffer``.

    The memory of ``state`` goes to the result: its arrays are gone afterwards.

    Returns the new state and each info as an array whose first ``count`` entries are the rounds'.
    """
    arguments = (state, rows, keys, np.int32(first), np.int32(count))
    # Flat: only the state is donated, and the program is keyed by what its arguments are, not by how they are nested.
    leaves, given = jax.tree.leaves(arguments), len(jax.tree.leaves(state))
    traced = _traced(ById(program), *tree.form(arguments))
    run, literals, constants = traced.compiled(leaves, given)
    results = run(literals, constants, leaves[:given], leaves[given:])
    return jax.tree.unflatten(traced.results, results)


class Hoistable(NamedTuple):
    """The rounds of a program apart from their literals, and the structure of their results."""

    hoisted: Hoisted
    results: Any


_FACTORISATIONS = {"cholesky", "eig", "eigh", "geqrf", "lu", "schur", "svd"}
"""Primitives that call LAPACK."""


def hoist_rounds(program: Program, state: RoundState, rows: Rows, keys: Keys) -> Hoistable | None:
    """The rounds of a program on arguments of these shapes; None where they cannot serve several runs.

    They cannot be told from their literals then, or factorise matrices.
    """
    if not is_switched_on():
        return None
    traced = _traced(ById(program), *tree.form((state, rows, keys, np.int32(0), np.int32(0))))
    try:
        # To the bits of a single run; many at once also waited for each other for ever, before stacks came in pieces.
        if has_primitive(traced.jaxpr, _FACTORISATIONS):
            return None
        return Hoistable(hoist(traced.jaxpr), traced.results)
    except Exception as error:  # as in _Traced.compiled
        warn_of(error)
        return None


_Compiled = tuple[Any, Array, list[Array]]
"""``(run, literals, constants)``, all but the first on the devices."""


class _Traced:
    """The rounds of a program on arguments of one form: traced at once, and compiled when they are first called.

    Attributes:
      jaxpr: the traced program.
      results: the structure of its results.
    """

    def __init__(self, identity: ById, structure: Any, form: tuple[Any, ...]) -> None:
        program = self._program = identity.program
        self._form = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form]
        like = jax.tree.unflatten(structure, self._form)
        # Traced here for the shapes of the infos, and found again by the loop, which needs them for its buffers.
        one_more = jax.jit(partial(one_round, program))
        info_shapes = jax.eval_shape(one_more, *like[:-1])[1]

        def loop(state: RoundState, rows: Rows, keys: Keys, first: Array, count: Array) -> _After:
            # A buffer of a fixed size, so that no number of rounds compiles anything.
            infos = {name: jnp.zeros((program.buffer, *x.shape), x.dtype) for name, x in info_shapes.items()}

            def body(i: Array, carry: _After) -> _After:
                state, infos = carry
                state, info = one_more(state, rows, keys, first + i)
                # Not .at[i].set(), which is a scatter.
                infos = {
                    name: lax.dynamic_update_index_in_dim(infos[name], info[name], i, 0) for name in infos
                }
                # Else XLA may leave the carry divided over the devices, and the next round exchanges it again.
                return program.devices.whole((state, infos))

            return lax.fori_loop(0, count, body, (state, infos))

        self.jaxpr, shapes = jax.make_jaxpr(loop, return_shape=True)(*like)
        self.results = jax.tree.structure(shapes)
        self._ready: dict[bool, _Compiled] = {}

    def compiled(self, leaves: list[Any], given: int) -> _Compiled:
        """What runs them on arguments like ``leaves``, of which the first ``given`` are the state's."""
        hoisting = is_switched_on()
        if hoisting not in self._ready:
            self._ready[hoisting] = self._compile(leaves, given, hoisting)
        return self._ready[hoisting]

    def _compile(self, leaves: list[Any], given: int, hoisting: bool) -> _Compiled:
        # Placed as those of the first call, so that the call finds this trace.
        placed = [
            jax.ShapeDtypeStruct(
                like.shape, like.dtype, sharding=leaf.sharding if isinstance(leaf, jax.Array) else None
            )
            for like, leaf in zip(self._form, leaves, strict=True)
        ]

        def ready(hoisted: Hoisted) -> _Compiled:
            run = _compiled(ByKey(hoisted, self._program.mesh))
            literals, constants = everywhere(self._program.mesh, (hoisted.values, list(hoisted.constants)))
            run.trace(literals, constants, placed[:given], placed[given:])
            return run, literals, constants

        if hoisting:
            try:
                return ready(hoist(self.jaxpr))
            except Exception as error:  # the rounds have been traced: it is the walk through them that fails
                warn_of(error)
        return ready(unchanged(self.jaxpr))


# Few: each entry keeps its method, whose functions may hold data, and its rounds as a traced program.
_traced = lru_cache(maxsize=16)(_Traced)


class ByKey(Keyed):
    """A program apart from its literals, as a key: programs with one key are one program.

    Attributes:
      hoisted: the program.
      mesh: the devices on which it runs.
      shared: which of its constants several runs of it share, where it runs for several at once.
    """

    def __init__(self, hoisted: Hoisted, mesh: Mesh | None, shared: tuple[bool, ...] = ()) -> None:
        super().__init__((hoisted.key, mesh, shared))
        self.hoisted, self.mesh, self.shared = hoisted, mesh, shared


@lru_cache(maxsize=64)
def _compiled(program: ByKey) -> Any:
    def run(literals: Array, constants: list[Array], state: list[Array], rest: list[Array]) -> list[Array]:
        return program.hoisted.run(literals, constants, [*state, *rest])

    # Whole on each device: XLA would leave an aggregator's state divided, and a run that continues from a file, whose
    # states are whole, would be another program with other rounding.
    whole = None if program.mesh is None else NamedSharding(program.mesh, PartitionSpec())
    return jax.jit(run, donate_argnums=2, out_shardings=whole)


# --- one round --------------------------------------------------------------------------------------------------------


def one_round(program: Program, state: RoundState, rows: Rows, keys: Keys, round: Array) -> _After:
    """The state after a round, and what its phases show."""
    algorithm = program.algorithm
    if algorithm.observe is not None:
        state = state._replace(server=observe(algorithm, state.server, rows))
    infos: _Infos = dict.fromkeys((*WORK, "rejected"), jnp.float32(0.0))
    reported = jnp.float32(0.0)
    for index, phase in enumerate(algorithm.phases):
        cohort = rounds.cohort(
            algorithm, program.systems, rows.sizes, program.cohort, keys, round, index, rows.table
        )
        cohort, seconds = on_time(program, index, rows, cohort, round)
        effort = efforts(phase.effort, program.capacity, rows, cohort, round)
        shared, client = Shared(state.server, rows, keys, round), Client.in_phase(program, index)
        shifted = _shifted(program, index, client, (shared, cohort, States(state.clients, rows.slots)))
        groups = Groups.cut(cohort, effort.steps, program.lanes, program.devices, shifts=shifted is not None)
        exchange, info = _exchange(program, index, state, (client, shifted), shared, cohort, groups)
        done = reduced(exchange)
        before, uploads = state.aggregators[index], jnp.sum(done.accepted.astype(jnp.int32))
        memories = before, done.memory
        step = rounds.server_step(phase, state.server, memories, done.direction, uploads, exchange.server_key)
        state = state._replace(
            server=step.server,
            aggregators=(*state.aggregators[:index], step.memory, *state.aggregators[index + 1 :]),
            clients=exchange.states.after(*exchange.groups.slots(done.accepted), done.states),
        )
        reported, drawn = (jnp.sum(slots.astype(jnp.float32)) for slots in (done.accepted, cohort.present))
        counted = (groups.useful, groups.executed, jnp.sum(effort.rows.astype(jnp.float32)), drawn - reported)
        more = {name: infos[name] + count for name, count in zip((*WORK, "rejected"), counted, strict=True)}
        infos |= {**info, **step.info, **more}
        if seconds is not None:
            infos[SECONDS] = infos.get(SECONDS, 0.0) + seconds
        if index == len(algorithm.phases) - 1:
            last = rounds.last_rounds(state.last_round, cohort, done.accepted, round)
            state = state._replace(last_round=last)
    return state, {**infos, "reported": reported}


class Exchange(NamedTuple):
    """One phase of a round, before its clients work.

    Attributes:
      aggregator: reduces the uploads.
      memory: its state.
      client: a client's part.
      shifted: its training, to be interrupted where clients change the device halfway; None: they do not.
      shared: what all clients share.
      groups: the clients.
      states: what they keep.
      ids: the clients, ``(m,)`` in the cohort's order.
      noise: the key of what each of them adds to what it sends, likewise.
      key: of the aggregator.
      server_key: of the server's step.
      agreed: has colluding clients replace their uploads, given which were accepted; None: nobody colludes.
    """

    aggregator: Aggregator
    memory: PyTree
    client: Client
    shifted: Shifted | None
    shared: Shared
    groups: Groups
    states: States
    ids: Array
    noise: Key
    key: Key
    server_key: Key
    agreed: Callable[[Upload, Array], Upload] | None


def _exchange(
    program: Program,
    index: int,
    state: RoundState,
    parts: tuple[Client, Shifted | None],
    shared: Shared,
    cohort: Cohort,
    groups: Groups,
) -> tuple[Exchange, _Infos]:
    """Phase ``index`` of a round, once its clients have been weighed where the aggregator weighs them first."""
    aggregator, memory = program.aggregator(index), state.aggregators[index]
    _, rows, keys, round = shared
    (client, shifted), states = parts, States(state.clients, rows.slots)
    info: Info = {}
    if isinstance(aggregator, Sum) and aggregator.weigh is not None:
        # Weights depend on all reports, and a sum keeps no upload: clients report before they work.
        reports, sane = groups.ungroup(groups.map_groups(partial(_reports, client), (shared, states)))
        cohort = cohort._replace(present=cohort.present & sane)
        weights, memory, info = rounds.weighed(aggregator, reports, cohort, memory)
        groups = groups.with_reports(Report(weights, reports.loss), cohort.present)
    streams = rounds.phase_stream(program.algorithm, index)
    # From the secret root: a client that could derive these keys could undo the noise.
    key = stream(keys.secret, Purpose.AGGREGATOR, round, streams)
    server_key = stream(keys.secret, Purpose.SERVER, round, streams)
    attack = program.attack

    def agreed(uploads: Upload, accepted: Array) -> Upload:
        assert attack is not None
        left = cohort._replace(present=accepted)
        return rounds.colluding(attack, uploads, rows.malicious[cohort.ids], left, keys, round, streams)

    exchange = Exchange(
        aggregator=aggregator,
        memory=memory,
        client=client,
        shifted=shifted,
        shared=shared,
        groups=groups,
        states=states,
        ids=cohort.ids,
        noise=jax.vmap(partial(rounds.lift_key, keys, round, streams))(cohort.ids),
        key=key,
        server_key=server_key,
        agreed=None if attack is None or attack.collude is None else agreed,
    )
    return exchange, dict(info)


def _reports(client: Client, group: Members, fixed: tuple[Shared, States]) -> _Reported:
    """What a group's clients report before they work."""
    shared, states = fixed

    def report(member: Members) -> _Reported:
        return client.report(shared, member, states.at(member.ids))

    return side_by_side(report, group.ids.shape[0])(group)


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


def reduced(exchange: Exchange) -> Reduced:
    """Trains the cohort and reduces what it sends, in the least memory that the aggregator allows.

    A sum in one pass keeps no upload.  A sum in several passes keeps the uploads on the device that made them, and
    reduces them pass by pass.  A sum under masks also keeps what is lifted.  Any other aggregator gets all uploads at
    once, and so does a coalition.
    """
    aggregator, client, groups = exchange.aggregator, exchange.client, exchange.groups
    if not isinstance(aggregator, Sum) or not aggregator.unmasked.streams or exchange.agreed is not None:
        return _at_once(exchange)
    if aggregator.passes > 1:
        return _in_passes(aggregator, exchange)

    def on_device(
        dealt: tuple[Members, Pieces | None], fixed: tuple[Shared, States, PyTree]
    ) -> tuple[PyTree, _Made]:
        (members, pieces), (shared, states, public) = entry(dealt), fixed
        train = groups.lanes.batched(partial(client.train, shared))

        def mine(group: Members) -> tuple[Members, PyTree]:
            return groups.lanes.enter((group, states.at(group.ids)))

        def lifted(group: Members, done: Trained) -> PyTree:
            return _lifted(public, 0, client, shared, (group, done.upload, done.accepted))

        def added(total: PyTree, group: Members, trained: Trained) -> tuple[PyTree, _Made]:
            done = groups.lanes.leave(trained)
            total, kept = _added(aggregator, total, lifted(group, done), done.accepted)
            return total, (done.state, done.accepted, kept)

        def step(total: PyTree, group: Members) -> tuple[PyTree, _Made]:
            return added(total, group, train(*mine(group)))

        # Only the shapes for the first group: the scan trains it, with all others.
        first = tree.take(members, jnp.int32(0))
        done = jax.eval_shape(train, *jax.eval_shape(mine, first))
        like = jax.eval_shape(lifted, first, jax.eval_shape(groups.lanes.leave, done))
        if (shifted := exchange.shifted) is None:
            return _summed(aggregator, lambda total: lax.scan(step, total, members), like)

        def piece_step(carry: tuple[PyTree, _Begun], slot: tuple[Members, Pieces]) -> tuple[Any, _Made]:
            (total, begun), (group, piece) = carry, slot
            trained, begun = shifted.train(shared, *mine(group), piece, begun)
            total, made = added(total, group, trained)
            return (total, begun), made

        slots = members, pieces
        return _summed(aggregator, lambda total: _in_halves(groups, shifted, piece_step, total, slots), like)

    fixed = exchange.shared, exchange.states, aggregator.publish(exchange.memory)
    dealt = groups.members, groups.pieces
    totals, (states_after, accepted, kept) = groups.devices.spread(on_device)(dealt, fixed)
    direction, memory = in_passes(
        aggregator,
        exchange.memory,
        exchange.key,
        lambda public, turn: _total(aggregator, exchange, totals, (kept, accepted), turn),
    )
    return Reduced(direction, memory, groups.as_dealt(states_after), groups.ungroup(accepted))


def _in_passes(aggregator: Sum, exchange: Exchange) -> Reduced:
    client, shared, groups = exchange.client, exchange.shared, exchange.groups
    done = groups.map_groups(partial(_train, client), (shared, exchange.states))

    def total_of(public: PyTree, turn: Array) -> PyTree:
        def on_device(dealt: _Sent, fixed: tuple[PyTree, Array, Shared]) -> PyTree:
            sent, (public, turn, shared) = entry(dealt), fixed
            lifted = partial(_lifted, public, turn, client, shared)

            def step(total: PyTree, group: _Sent) -> tuple[PyTree, PyTree]:
                return _added(aggregator, total, lifted(group), group[2])

            like = jax.eval_shape(lambda: lifted(tree.take(sent, jnp.int32(0))))
            return _summed(aggregator, lambda total: lax.scan(step, total, sent), like)

        sent = groups.members, done.upload, done.accepted
        totals, kept = groups.devices.spread(on_device)(sent, (public, turn, shared))
        return _total(aggregator, exchange, totals, (kept, done.accepted), turn)

    direction, memory = in_loop(aggregator, exchange.memory, exchange.key, total_of)
    return Reduced(direction, memory, groups.as_dealt(done.state), groups.ungroup(done.accepted))


def _added(aggregator: Sum, total: PyTree, lifted: PyTree, accepted: Array) -> tuple[PyTree, PyTree]:
    """The sum with what one group lifts, and what is kept of that: nothing, unless it gets masks."""
    if aggregator.streams:
        return tree.add(total, sum_of(accepted, aggregator.limbs_apart(lifted))), ()
    # In the same loop as without masks: another one could round differently.
    return total, lifted


def _summed(
    aggregator: Sum, scan: Callable[[PyTree], tuple[PyTree, PyTree]], like: PyTree
) -> tuple[PyTree, PyTree]:
    """A device's own total over its groups, and what ``scan`` keeps of each; ``like`` is what one group lifts."""
    of_client = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), like)
    total, kept = scan(tree.zeros(jax.eval_shape(aggregator.limbs_apart, of_client)))
    return as_entry((aggregator.limbs_together(total, of_client), kept))


def _total(
    aggregator: Sum, exchange: Exchange, totals: PyTree, kept: tuple[PyTree, Array], turn: Array | int
) -> PyTree:
    """The sum of pass ``turn``: of all devices' ``totals``, or under masks of what was ``kept`` and is accepted."""
    groups = exchange.groups
    if aggregator.summation is None or aggregator.summation.add is None:
        return groups.total(totals)
    # Another key than the one that lower() draws noise from.
    secret = jax.random.fold_in(jax.random.fold_in(exchange.key, turn), 1)
    add = partial(aggregator.summation.add, groups.by_coordinate(kept[0]), groups.ungroup(kept[1]), secret)
    # A branch, so that XLA compiles what comes after the sum as without masks, to the same rounding.
    total = lax.cond(jnp.any(kept[1]), add, lambda: tree.zeros(jax.eval_shape(add)))
    return groups.devices.whole(total)


class Shifted(NamedTuple):
    """A client's training where it may change the device halfway.

    Attributes:
      carry: the shapes of what its loop carries from step to step.
      train: ``(shared, member, state, piece, begun) -> (Trained, begun)``, a piece of its work; what it leaves behind
        counts only where the work is done.
    """

    carry: list[jax.ShapeDtypeStruct]
    train: Callable[[Shared, Members, PyTree, Pieces, _Begun], tuple[Trained, _Begun]]


def _shifted(
    program: Program, index: int, client: Client, like: tuple[Shared, Cohort, States]
) -> Shifted | None:
    """The training of the last phase, if it can be interrupted and its uploads are summed in one pass; else None."""
    aggregator, attack = program.aggregator(index), program.attack
    if not program.shifts or index < len(program.algorithm.phases) - 1 or not isinstance(aggregator, Sum):
        return None
    if attack is not None and attack.collude is not None:
        return None
    # Those who are weighed have reported before they work, and so train in another program.
    if aggregator.weigh is not None or aggregator.passes > 1 or not aggregator.unmasked.streams:
        return None
    shared, cohort, states = like
    member = tree.take(Members(**cohort._asdict()), jnp.int32(0))
    # Of shapes alone: what an earlier exchange has made is placed on all devices, and so would be what is traced.
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (shared, member, states.at(member.ids))
    )
    traced, results = jax.make_jaxpr(client.train, return_shape=True)(*arguments)
    try:
        work = interruptible(traced)
    except UnknownForm:  # this JAX stores programs in another way
        return None
    if work is None:
        return None

    def train(
        shared: Shared, member: Members, state: PyTree, piece: Pieces, begun: _Begun
    ) -> tuple[Trained, _Begun]:
        def entered(*fresh: Array) -> list[Array]:
            return [lax.select_n(piece.entered, *leaves) for leaves in zip(fresh, *begun, strict=True)]

        leaves, carry = work.run(jax.tree.leaves((shared, member, state)), entered, piece.most)
        trained: Trained = jax.tree.unflatten(jax.tree.structure(results), leaves)

        def kept(place: int, before: list[Array]) -> list[Array]:
            chosen = piece.left == place
            return [lax.select(chosen, new, old) for new, old in zip(carry, before, strict=True)]

        begun = kept(1, begun[0]), kept(2, begun[1])
        return trained._replace(accepted=trained.accepted & (piece.left == 0)), begun

    return Shifted(work.carry, train)


def _in_halves(
    groups: Groups, shifted: Shifted, step: Callable[..., tuple[Any, _Made]], total: PyTree, slots: PyTree
) -> tuple[PyTree, _Made]:
    """A device's slots in two halves, between which it gets what the next device has begun."""

    def half(carry: tuple[PyTree, _Begun], slots: PyTree) -> tuple[tuple[PyTree, _Begun], _Made]:
        (total, (own, others)), made = lax.scan(step, carry, slots)
        # In the loop, which compiles the training once; what is passed on after the second half is not used.
        return (total, (own, groups.devices.from_next(others))), made

    nothing = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in shifted.carry]
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), slots)
    (total, _), made = lax.scan(half, (total, (nothing, nothing)), halves)
    return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), made)


def _at_once(exchange: Exchange) -> Reduced:
    client, shared, groups = exchange.client, exchange.shared, exchange.groups
    done = groups.map_groups(partial(_train, client), (shared, exchange.states))
    # A part of the coordinates on each device: no device could hold the whole uploads of a large cohort.
    delta = groups.by_coordinate(done.upload.delta)
    (weight, loss), accepted = groups.ungroup((done.upload[1:], done.accepted))
    uploads = Upload(delta, weight, loss)
    if exchange.agreed is not None:
        uploads = exchange.agreed(tree.among(accepted, uploads), accepted)
        accepted = accepted & jax.vmap(rounds.accepts_delta, axis_size=len(accepted))(uploads.delta)

    def lift(slot: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
        return client.lift(shared, exchange.ids[slot], upload, public, key)

    direction, memory = groups.devices.whole(
        reduce_uploads(
            exchange.aggregator, uploads, accepted, exchange.memory, exchange.key, exchange.noise, lift
        )
    )
    return Reduced(direction, memory, groups.as_dealt(done.state), accepted)


def _train(client: Client, members: Members, fixed: tuple[Shared, States]) -> Trained:
    """One group's local work, clients side by side."""
    shared, states = fixed
    train = side_by_side(partial(client.train, shared), members.ids.shape[0])
    return train(members, states.at(members.ids))


def _lifted(public: PyTree, turn: Array | int, client: Client, shared: Shared, group: _Sent) -> PyTree:
    """What the clients of one group add to the sum of pass ``turn``."""
    members, uploads, _ = group

    def lift(member: Members, upload: Upload) -> PyTree:
        key = jax.random.fold_in(client.noise(shared, member), turn)
        return client.lift(shared, member.ids, upload, public, key)

    return side_by_side(lift, members.ids.shape[0])(members, uploads)


# --- one client in one phase ------------------------------------------------------------------------------------------


class Shared(NamedTuple):
    """What all clients of an exchange share.

    Attributes:
      server: the method's state, from which each broadcast is made.
      rows: of all clients.
      keys: the roots.
      round: its number, from 0.
    """

    server: PyTree
    rows: Rows
    keys: Keys
    round: Array


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

    report: Callable[[Shared, Members, PyTree], _Reported]
    train: Callable[[Shared, Members, PyTree], Trained]
    noise: Callable[[Shared, Members], Key]
    lift: Callable[[Shared, Array, Upload, PyTree, Key], PyTree]

    @staticmethod
    def in_phase(program: Program, index: int) -> Client:
        """The client's part in phase ``index``."""
        algorithm, attack = program.algorithm, program.attack
        phase, streams = algorithm.phases[index], rounds.phase_stream(algorithm, index)
        largest = rounds.largest_weight(algorithm, program.capacity)

        def data(shared: Shared, member: Members, key: Key) -> ClientData:
            rows, clean = shared.rows, client_data(program.capacity, shared.rows, member, shared.round)
            return rounds.fresh_data(attack, clean, rows.malicious, member.ids, shared.round, key)

        def reported(shared: Shared, member: Members, message: PyTree, state: PyTree, key: Key) -> _Reported:
            report = phase.report(message, state, data(shared, member, key))
            malicious = shared.rows.malicious[member.ids]
            report = rounds.false_report(attack, report, malicious, shared.round, key)
            return report, member.present & rounds.accepts_report(phase.aggregator, report, largest)

        def report(shared: Shared, member: Members, state: PyTree) -> _Reported:
            key = rounds.work_key(shared.keys, shared.round, streams, member.ids)
            return reported(shared, member, phase.broadcast(shared.server, member.ids), state, key)

        @jax.jit  # traced once, for the shapes and for the loop
        def train(shared: Shared, member: Members, state: PyTree) -> Trained:
            message = phase.broadcast(shared.server, member.ids)
            key = rounds.work_key(shared.keys, shared.round, streams, member.ids)
            report, accepted = member.report, member.present
            if report is None:
                report, accepted = reported(shared, member, message, state, key)
            delta, state = phase.work(message, state, data(shared, member, key), key)
            malicious = shared.rows.malicious[member.ids]
            params = rounds.received_params(algorithm, index, message)
            delta = rounds.false_delta(attack, tree.real(delta), malicious, shared.round, key, params)
            return Trained(Upload(delta, *report), accepted & rounds.accepts_delta(delta), state)

        def noise(shared: Shared, member: Members) -> Key:
            return rounds.lift_key(shared.keys, shared.round, streams, member.ids)

        def lift(shared: Shared, client: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
            assert isinstance(phase.aggregator, Sum)
            malicious, round = shared.rows.malicious[client], shared.round
            return rounds.lifted(attack, phase.aggregator, upload, public, malicious, round, key)

        return Client(report, train, noise, lift)
