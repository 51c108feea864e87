"""What the server and the clients of a round agree on, whoever carries the messages.

The compiled engine, its readable twin and a network are three callers of these functions.  A round has four steps for
each phase of the method:

1. *The cohort.*  The server draws clients (:func:`cohort`).
2. *The clients.*  Each gets ``phase.broadcast``, makes its ``phase.report`` and does its ``phase.work`` with
   :func:`work_key`; malicious ones replace what they send (:func:`false_report`, :func:`false_delta`,
   :func:`colluding`).
3. *The reduction.*  The server rejects what no honest client can send (:func:`accepts_report`,
   :func:`accepts_delta`), weighs the others (:func:`weighed`), and reduces their uploads to one direction: in passes
   of sums (:func:`evenhand.aggregators.in_passes`, each client lifting with :func:`lift_key`), or all at once.
4. *The server.*  It steps (:func:`server_step`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand._jaxpr import programs
from evenhand.errors import EvenhandError, expect, perhaps, real_number, whole_number
from evenhand.local import SCHEDULE
from evenhand.streams import MAX_PHASES, Keys, Purpose, client_stream, root_key, stream
from evenhand.systems import Systems
from evenhand.text import counted
from evenhand.types import (
    Aggregator,
    Algorithm,
    Array,
    Attack,
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

__all__ = [
    "PerExample",
    "RoundState",
    "Step",
    "Wire",
    "accepts_delta",
    "accepts_report",
    "begin",
    "cohort",
    "colluding",
    "effective",
    "false_delta",
    "false_report",
    "fresh_data",
    "largest_weight",
    "last_rounds",
    "lift_key",
    "lifted",
    "malicious_clients",
    "newcomer",
    "own_rows",
    "phase_stream",
    "poisoned",
    "presence",
    "received_params",
    "roots",
    "server_step",
    "unattacked",
    "weighed",
    "wires",
    "work_key",
]

NDArray = npt.NDArray[Any]


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
    """The roots of a method's rounds: those of the run, or, where it guarantees privacy, secret ones only.

    A guarantee that counts on who was drawn, or which examples, holds only where nobody can compute that.
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

    Clients whose work would be dropped are left out, so that nothing is computed in vain; their slots are empty where
    an aggregator counts these.

    Args:
      algorithm: the method.
      systems: who is available, stragglers and dropouts, or None.
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
    there = presence(systems, keys, sizes.shape[0], round)
    if sampling.scheduled is not None:
        # One key for all rounds: a schedule is drawn once, and the round says where in it.
        key = stream(keys.shared, Purpose.COHORT, 0, draw)
        drawn = sampling.scheduled(key, jnp.asarray(round, jnp.int32), sizes, count)
        if there is not None:  # nobody takes the turn of a client that is absent
            drawn = drawn._replace(present=drawn.present & there[drawn.ids])
    elif there is not None:
        assert sampling.among is not None, "a job is checked before it runs"
        drawn = sampling.among(key, sizes, there, count)
    elif table is not None and sampling.look_up is not None:
        drawn = sampling.look_up(key, table, count)
    else:
        drawn = sampling.draw(key, sizes, count)
    expect("the result of Sampling.draw", drawn, Cohort, "eh.types.Cohort.of(ids)")
    if systems is not None:
        # A key of its own, so that stragglers change no cohort.
        key = stream(keys.shared, Purpose.STRAGGLERS, round, draw)
        slots, drawn = drawn.ids.shape[0], systems.draw(key, drawn, algorithm.partial_work)
        left_out, rules = slots - drawn.ids.shape[0], (phase.aggregator for phase in algorithm.phases)
        if left_out and any(isinstance(rule, Sum) and rule.of_slots for rule in rules):
            drawn = jax.tree.map(lambda leaf: jnp.pad(leaf, (0, left_out)), drawn)
    if drawn.ids.shape[0] == 0:
        # A cohort has at least one slot, so that an empty one needs no code of its own.
        return Cohort.of(jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))
    return drawn


def presence(systems: Systems | None, keys: Keys, clients: int, round: Array | int) -> Array | None:
    """Which of so many clients are available in ``round``, counted from 0, bool ``(clients,)``; None: always all."""
    if systems is None or systems.present is None:
        return None
    number = jnp.asarray(round, jnp.int32)
    return systems.present(stream(keys.shared, Purpose.AVAILABILITY, number), number, clients)


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
    algorithm: Algorithm, params: Params, rows: tuple[Array, Array], capacity: int, clients: int
) -> tuple[Wire, ...]:
    """What each phase sends, found without computing anything.

    With the ``capacity`` of a program on one device, the work's gradient is traced once for this and the rounds.

    Args:
      algorithm: the method.
      params: those of its model, or their shapes.
      rows: ``(x, y)`` of one or many clients, or their shapes.
      capacity: rows of the largest client.
      clients: how many clients there are.

    Raises:
      EvenhandError: the method has no phase, or more than there are streams for.
    """
    if not 1 <= len(algorithm.phases) <= MAX_PHASES:
        raise EvenhandError(
            f"{algorithm.name or 'This method'} has {len(algorithm.phases)} exchanges in a round: give "
            f"Algorithm(phases=) from 1 to {MAX_PHASES} of them."
        )

    def wire_of(phase: Phase) -> Wire:
        def exchange(client_state: PyTree, params: Params, rows: tuple[Array, Array], key: Key) -> Wire:
            window = jnp.int32(0), jnp.int32(1), jnp.float32(1.0), capacity
            data = ClientData(*rows, *window, round=jnp.int32(0))
            message = phase.broadcast(algorithm.init(params, clients), jnp.int32(0))
            report = phase.report(message, client_state, data)
            delta = tree.real(phase.work(message, client_state, data, key)[0])
            if not isinstance(phase.aggregator, Sum):
                return Wire(message, report, delta, (), ())
            public = phase.aggregator.publish(phase.aggregator.init(tree.zeros(delta), clients))
            lifted = phase.aggregator.lift(Upload(delta, report.weight, report.loss), public, key)
            return Wire(message, report, delta, public, lifted)

        traced = jax.make_jaxpr(exchange, return_shape=True)
        program, wire = traced(client_state, params, rows, root_key(0))
        return wire._replace(restarts=programs.has_call(program, SCHEDULE))

    # Made outside, as a client keeps it from round to round: what begins in it does not restart.
    client_state = (
        jax.eval_shape(lambda params: newcomer(algorithm, params, capacity), params)
        if algorithm.pooled is None
        else jax.eval_shape(algorithm.pooled, params, *rows)
    )
    return tuple(map(wire_of, algorithm.phases))


class PerExample(NamedTuple):
    """An :attr:`evenhand.types.Algorithm.init_client` that needs the number of examples that a client can have.

    Attributes:
      init: ``(params, examples) -> client_state``, given the largest number of training examples of any client.
    """

    init: Callable[[Params, int], PyTree]

    def __call__(self, params: Params) -> PyTree:
        """Refuses to be called by a method around this one, which does not know that number."""
        raise EvenhandError(
            "This method keeps a number for each training example of a client, so it cannot be inside another method "
            "that keeps states at the clients: run it by itself."
        )


def newcomer(algorithm: Algorithm, params: Params, examples: int) -> PyTree:
    """The state of a client never seen before, where no client has more training examples."""
    if isinstance(algorithm.init_client, PerExample):
        return algorithm.init_client.init(params, examples)
    return algorithm.init_client(params)


def begin(
    algorithm: Algorithm, params: Params, clients: int, wires: tuple[Wire, ...], capacity: int | None = None
) -> RoundState:
    """The state before the first round, with that of one client.

    ``capacity`` is that of :func:`wires`; only methods with a ``PerExample`` need it.
    """
    aggregators = tuple(
        phase.aggregator.init(tree.zeros(wire.delta), clients)
        for phase, wire in zip(algorithm.phases, wires, strict=True)
    )
    mine = algorithm.init_client(params) if capacity is None else newcomer(algorithm, params, capacity)
    return RoundState(algorithm.init(params, clients), aggregators, mine)


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
      EvenhandError: a state has changed its structure, shapes or dtypes, or what is reported is no scalar or has the
        name of a column of the history.
    """
    before, after = memories
    stepped, info = phase.server(server, direction, reported, key)
    _check_form("Phase.server", server, stepped)
    _check_form("the aggregator", before, after)
    _check_info(info)
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


_COLUMNS = {"absent", "bytes_down", "bytes_up", "rejected", "reported", "round", "rows", "seconds", "time"}
"""What a history has beside the metrics of its splits, and what is counted of each round."""


def _check_info(info: Info) -> None:
    for name, value in info.items():
        if name in _COLUMNS or re.fullmatch(r"(train|valid|test)_\w+|steps\.\w+", name):
            raise EvenhandError(
                f"Phase.server reports {name!r:.60}, which is a column of the history, or could be: give it another "
                "name, such as 'update_norm'."
            )
        if np.shape(value):
            raise EvenhandError(
                f"Phase.server reports {name!r:.60} of shape {np.shape(value)}: report scalars, each by its name."
            )


# --- malicious clients: who they are, and what they do to examples, reports and uploads -------------------------------


def malicious_clients(attack: Attack | None, clients: int | Sequence[str], seed: int) -> NDArray:
    """Which of the clients are malicious, bool ``(clients,)``; ``clients`` are their ids, or only how many there are.

    Raises:
      EvenhandError: the attack names clients that do not exist, or a share outside [0, 1], or both a share and clients.
    """
    ids = () if isinstance(clients, int) else clients
    clients = clients if isinstance(clients, int) else len(clients)
    malicious = np.zeros(clients, bool)
    if attack is None:
        return malicious
    if not 0.0 <= real_number(attack.fraction) <= 1.0:
        raise EvenhandError(
            f"Attack(fraction={attack.fraction}): the share of malicious clients must lie in [0, 1]."
        )
    whole_number("Attack(first=)", attack.first, 1)
    if attack.last is not None:
        whole_number("Attack(last=)", attack.last, attack.first)
    if attack.clients is not None:
        if attack.fraction:
            raise EvenhandError("Attack() got both fraction= and clients=: give one of them.")
        malicious[[_position(client, ids, clients) for client in attack.clients]] = True
        return malicious
    rng = np.random.default_rng((seed, int(Purpose.MALICIOUS)))
    malicious[rng.choice(clients, _share_of(attack, clients), replace=False)] = True
    return malicious


def _share_of(attack: Attack, clients: int) -> int:
    """How many clients the attack's share is."""
    return int(attack.fraction * clients + 1e-9)  # 29 % of 100 are 29, not 28.999999999999996


def unattacked(attack: Attack | None, clients: int) -> str:
    """A sentence where an attack has a share of the ``clients``, but not one of them is malicious; else empty.

    Example:
      >>> unattacked(Attack(0.1), 8).split(":")[0]
      'The attack has no malicious client'
      >>> unattacked(Attack(0.125), 8), unattacked(Attack(), 8)
      ('', '')
    """
    if attack is None or not attack.fraction or _share_of(attack, clients):
        return ""
    least = math.ceil(1e6 / clients) / 1e6
    return (
        f"The attack has no malicious client: its fraction {attack.fraction:g} of {counted(clients, 'client')} is "
        f"rounded down to 0, so these numbers are those of a run without an attack. Give a fraction of {least:g} or "
        "more, or name the clients with by_clients()."
    )


def _position(client: int | str, ids: Sequence[str], clients: int) -> int:
    """The position of a client that an attack names."""
    if not isinstance(client, str):
        return whole_number("Attack(clients=)", client, 0, clients - 1)
    if client not in ids:
        unknown = f"there is no such client{perhaps(client, ids)}"
        place = unknown if ids else "here clients have positions but no ids"
        raise EvenhandError(
            f"Attack(clients={client!r:.60}): {place}; give ids, or positions from 0 to {clients - 1}."
        )
    return ids.index(client)


def poisoned(
    rows: Callable[[Any, Any, Any], tuple[Any, Any]], x: NDArray, y: NDArray, seed: int, client: int
) -> tuple[NDArray, NDArray]:
    """What the rows of a malicious client become; its draws depend on the run's seed and the client alone."""
    new_x, new_y = rows(x, y, np.random.default_rng((seed, int(Purpose.ATTACK), client)))
    if np.shape(new_x) != x.shape or np.shape(new_y) != y.shape:
        raise EvenhandError(
            f"Attack(rows=...) made rows of shape {np.shape(new_x)} with labels {np.shape(new_y)} from "
            f"{x.shape} and {y.shape}: it must keep the shapes."
        )
    return new_x, new_y


def fresh_data(
    attack: Attack | None, data: ClientData, malicious: Array, client: Array, round: Array | int, key: Key
) -> ClientData:
    """The examples of ``client`` in ``round``, counted from 0: as they are unless it is one of the ``malicious``.

    ``key`` is the client's own.
    """
    if attack is None or attack.fresh is None:
        return data
    own = own_rows(data)
    # Numbered: false uploads (0) and reports (1) draw from other streams of the same key.
    fresh = attack.fresh(own.x, own.y, own.size, stream(key, Purpose.ATTACK, 2))
    x, y = tree.select(malicious[client] & _is_on(attack, round), fresh, (own.x, own.y))
    return own._replace(x=x, y=y)


def own_rows(data: ClientData) -> ClientData:
    """A copy of a client's rows alone, ``capacity`` of them; those past ``size`` repeat its first one."""
    # As many rows as the largest client has, since the shape is the same for all clients of a program.
    position = jnp.arange(data.capacity, dtype=jnp.int32)
    index = data.start + jnp.where(position < data.size, position, 0)
    return data._replace(x=data.x[index], y=data.y[index], start=jnp.zeros_like(data.start))


def false_report(
    attack: Attack | None, report: Report, malicious: Array, round: Array | int, key: Key
) -> Report:
    """What a client reports in ``round``, counted from 0: ``report`` unless it is ``malicious``; ``key`` is its own."""
    if attack is None or attack.report is None:
        return report
    # Made for honest clients, too: who is malicious is known only when the compiled round runs.
    false = attack.report(report, stream(key, Purpose.ATTACK, 1))
    return tree.select(malicious & _is_on(attack, round), false, report)


def false_delta(
    attack: Attack | None,
    delta: PyTree,
    malicious: Array,
    round: Array | int,
    key: Key,
    params: Callable[[], Params] | None = None,
) -> PyTree:
    """What a client sends in ``round``, counted from 0: ``delta`` unless it is ``malicious``.

    Args:
      attack: what malicious clients do.
      delta: what the client has computed.
      malicious: whether it is.
      round: counted from 0.
      key: the client's own.
      params: the global model that it has received, see :func:`received_params`.
    """
    false = delta
    if attack is not None and attack.upload is not None:
        false = attack.upload(false, stream(key, Purpose.ATTACK))
    if attack is not None and attack.reply is not None and params is not None:
        false = attack.reply(false, params(), stream(key, Purpose.ATTACK, 3))
    if attack is None or false is delta:
        return delta
    return tree.select(malicious & _is_on(attack, round), false, delta)


def received_params(algorithm: Algorithm, number: int, message: PyTree) -> Callable[[], Params] | None:
    """How a client reads the global model off the broadcast of a phase; None before the last: nobody says how."""

    def read() -> Params:
        try:
            return algorithm.received(message)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise EvenhandError(
                "This attack needs the global model that clients receive, and received= of "
                f"{algorithm.name or 'the method'} fails: {error}: give Algorithm(received=) a function of the last "
                "phase's broadcast that returns the global parameters, or another attack, such as "
                "eh.attacks.gaussian(0.2)."
            ) from error

    return read if number == len(algorithm.phases) - 1 else None


def lifted(
    attack: Attack | None,
    aggregator: Sum,
    upload: Upload,
    public: PyTree,
    malicious: Array,
    round: Array | int,
    key: Key,
) -> PyTree:
    """What a client adds to the sum in one pass of ``round``, counted from 0; ``key`` is its own for that pass.

    Raises:
      EvenhandError: the attack sends false numbers into sums of whole numbers that stand for no real ones.
    """
    honest = aggregator.lift(upload, public, key)
    if attack is None or attack.lifted is None:
        return honest
    if aggregator.compression is not None:
        raise EvenhandError(
            "Attack(lifted=...) replaces what clients add to a sum, but here they send compressed uploads, which the "
            "server sums: give an attack on uploads, such as eh.attacks.sign_flip(0.2)."
        )
    whole = aggregator.summation
    numbers = aggregator.lift if whole is None else whole.numbers
    if numbers is None:
        raise EvenhandError(
            "Attack(lifted=...) replaces real numbers in a sum, but this aggregator sends none: use secure(...) of a "
            "single method, or an aggregator that needs sums only."
        )
    false = attack.lifted(numbers(upload, public, key), public, stream(key, Purpose.ATTACK))
    if whole is not None and whole.anything is not None:
        false = whole.anything(false, stream(key, Purpose.ATTACK, 1))
    return tree.select(malicious & _is_on(attack, round), false, honest)


def colluding(
    attack: Attack,
    uploads: Upload,
    malicious: Array,
    cohort: Cohort,
    keys: Keys,
    round: Array | int,
    phase: int,
) -> Upload:
    """The cohort's uploads, leading axis ``m``, with those of malicious clients as their coalition has agreed.

    Args:
      attack: one that has a ``collude``.
      uploads: as the clients have made them; those of empty slots are zeros.
      malicious: bool ``(m,)``, of the clients in the slots.
      cohort: the slots.
      keys: the run's roots.
      round: counted from 0.
      phase: the number of a :func:`evenhand.rounds.phase_stream`.
    """
    assert attack.collude is not None
    # One key for the whole coalition: what its members agree on, all of them can draw.
    key = stream(keys.shared, Purpose.ATTACK, round, phase)
    agreed = attack.collude(uploads, malicious & cohort.present, cohort.present, key)
    chosen = malicious & cohort.present & _is_on(attack, round)
    return uploads._replace(delta=tree.among(chosen, agreed, uploads.delta))


def _is_on(attack: Attack, round: Array | int) -> Array:
    # An attack counts rounds from 1, as users do, and the engine from 0.
    on = jnp.asarray(round) + 1 >= attack.first
    return on if attack.last is None else on & (jnp.asarray(round) + 1 <= attack.last)
