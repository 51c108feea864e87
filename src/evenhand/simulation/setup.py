"""From a method and its data to a program that can run, with rows and states where its rounds find them.

:func:`set_up` chooses the devices, the number of clients side by side, and whether rows and clients' states are on the
devices or stay on the host.  Which clients take part in a round depends on the seed and not on the training, so cohorts
are drawn ahead (:func:`cohorts`), and what the next rounds need is gathered while the rounds before them train: rows by
:class:`Streamed`, clients' states by :class:`Offloaded`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from evenhand import communication, rounds, tree
from evenhand._jaxpr.hoist import AsTraced, Keyed
from evenhand._jaxpr.programs import UnknownForm, footprint
from evenhand.communication import Exchanged
from evenhand.data import FederatedDataset
from evenhand.devices import copies, everywhere, here, over
from evenhand.errors import EvenhandError
from evenhand.rounds import RoundState, malicious_clients
from evenhand.simulation._job import Job, check_start
from evenhand.simulation.program import (
    ById,
    Members,
    Program,
    Resident,
    Rows,
    Source,
    client_data,
    deal,
    efforts,
    gathered,
    must_stream,
    poison,
    resident,
    rows_of,
    sent,
    shifts_of,
    tabulated,
)
from evenhand.simulation.store import HostStore, NDArray, stored
from evenhand.streams import Keys, Purpose, keys_of, stream
from evenhand.systems import bound
from evenhand.types import Algorithm, Array, Attack, Cohort, Params, PyTree

__all__ = [
    "SMALL_MODEL",
    "Offloaded",
    "Setup",
    "Streamed",
    "attendance",
    "device_rows",
    "drawn_last",
    "set_up",
]


_BUFFER = 4096
"""Most rounds in one call: fixed, so that no number of rounds compiles anything."""
SMALL_MODEL = 2**15
"""Parameters up to which clients train side by side on a CPU; beyond, a batch of products is slower than a loop."""
_MOST_LANES = 32
"""Clients of a small model that train side by side on a CPU at most."""
_MOST_ON_ACCELERATOR, _MOST_SMALL = 128, 1024
"""Clients that train side by side on an accelerator at most, where the model is large or small."""
_MOST_WASTE = 1.1
"""The largest ratio of executed to useful local steps on a CPU, which gains little from a lane."""
_SAMPLED_ROUNDS = 16
"""Rounds whose cohorts are drawn to see whether all clients take equally many steps."""
_MOST_KEPT = 2**20
"""Bytes that a program may close over, such as who is available when, to be kept for other runs."""
_RESIDENT = 2**30
"""Bytes of clients' states up to which a CPU trains on all of them in place."""
_COPIES = 8
"""Models that one lane keeps at a time, about: parameters, gradients, optimiser, sums."""


class Setup(NamedTuple):
    """All that a run needs before its first round.

    Attributes:
      program: what is compiled.
      source: the training rows.
      keys: the roots of everything random.
      state: before the first round.
      begin: which state that is, for each model that it may start from.
      traffic: what crosses the wire in each phase of a round.
      offloaded: the clients' states, where they are on the host, and ``state`` has none; or None.
      restarts: whether a schedule of the clients' step sizes restarts in every round.
    """

    program: Program
    source: Source
    keys: Keys
    state: RoundState
    begin: Callable[[Params], RoundState]
    traffic: tuple[Exchanged, ...]
    offloaded: Offloaded | None = None
    restarts: bool = False

    @property
    def store(self) -> HostStore | None:
        """All clients' states, where they are on the host."""
        return None if self.offloaded is None else self.offloaded.store

    @property
    def like(self) -> RoundState:
        """The shapes of what training depends on: of the state with those of all clients, wherever they are."""
        like = jax.eval_shape(lambda state: state, self.state)._replace(last_round=())
        return like if self.offloaded is None else like._replace(clients=self.offloaded.store.like)

    @property
    def rows(self) -> Rows:
        """All rows on the devices; where they are streamed, the shapes of ``x`` and ``y``."""
        return self.source.rows


def set_up(job: Job, *, rows: Resident | None = None) -> Setup:
    """The program of a run, its rows and the state it starts from.

    Args:
      job: the run.
      rows: those of another run of the same data, sampling, seed and attack, or of any seed where there is no attack.
    """
    algorithm, data, seed = job.algorithm, job.trained, job.seed
    if data.train.rows >= 2**31:
        raise EvenhandError(
            f"{data.name} has {data.train.rows:,} training rows: give fewer than 2,147,483,648."
        )
    # The initial model is drawn from the run's own root: the same for every method, whatever it keeps secret.
    first, keys = keys_of(seed), rounds.roots(algorithm, keys_of(seed))
    cohort, execution, clients = job.slots, job.execution, data.num_clients
    program = Program(
        algorithm=algorithm,
        cohort=cohort,
        capacity=int(data.train.sizes.max()),
        lanes=1 if execution.lanes is None else execution.lanes,
        systems=bound(job.systems, data.client_ids),
        attack=job.attack,
        buffer=_BUFFER,
        mesh=over(_devices(cohort, execution.devices)),
        masks=execution.masks,
    )
    source: Source
    if rows is not None:
        source = rows
    elif must_stream(data.train) if execution.stream is None else execution.stream:
        source = Streamed(program, data, seed, keys)
    else:
        source = resident(data, job.attack, seed, program.mesh, algorithm.sampling)
    params = algorithm.model.init(stream(first.shared, Purpose.INIT))
    if job.start is not None:
        check_start(job.start, algorithm.model)
        # In the containers of the model: others with the same paths would be another program.
        params = jax.tree.unflatten(jax.tree.structure(params), map(jnp.asarray, jax.tree.leaves(job.start)))
    form = tree.form((params, (source.rows.x, source.rows.y)))
    if any(phase.aggregator.compression is not None for phase in algorithm.phases):
        algorithm = _compressed(_Method(algorithm), *form, program.capacity, clients)
        program = program._replace(algorithm=algorithm)
    wires, begin = _beginning(ById(program), *form, clients)
    beginning = begin(params)
    lanes = execution.lanes or _default_lanes(program, params, beginning, source, keys)
    program = _shifting(program._replace(lanes=lanes), params, source, keys)
    if algorithm.pooled is not None:  # it may look at all examples before the first round
        beginning = beginning._replace(clients=jax.jit(algorithm.pooled)(params, data.train.x, data.train.y))
    # A copy: the first round takes its memory over, and the initial parameters may be the caller's arrays.
    state = copies(everywhere(program.mesh, beginning._replace(last_round=np.zeros(clients, np.int32))))
    offloaded = None
    if _on_host(state.clients, clients, execution.offload):
        folder = Path(execution.offload) if isinstance(execution.offload, str | Path) else None
        store = HostStore(jax.tree.map(np.asarray, here(state.clients)), clients, folder)
        offloaded = Offloaded(store, program, source.rows.sizes, source.rows.table, keys)
    return Setup(
        program=program,
        source=source,
        keys=keys,
        state=state._replace(clients=() if offloaded else stored(state.clients, clients)),
        begin=begin,
        traffic=communication.traffic(algorithm, wires),
        offloaded=offloaded,
        restarts=any(wire.restarts for wire in wires),
    )


def _on_host(state: PyTree, clients: int, offload: bool | str | Path | None) -> bool:
    """Whether the clients' states stay on the host: where the user says so, or they are large."""
    size = clients * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    if size == 0 or offload is False:
        return False
    stats = {} if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats() or {}
    return offload is not None or size > stats.get("bytes_limit", 3 * _RESIDENT) / 3


class _Method(Keyed):
    """A method as a key: its functions do not compare, and methods that are one object compile nothing anew."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(id(algorithm))
        self.algorithm = algorithm  # kept, so that its id stays its own


@lru_cache(maxsize=16)
def _compressed(
    method: _Method, structure: Any, form: tuple[Any, ...], capacity: int, clients: int
) -> Algorithm:
    """:func:`evenhand.communication.compressed`, the same object for the same method and shapes."""
    params, rows = _like(structure, form)
    return communication.compressed(method.algorithm, params, rows, capacity, clients)


@lru_cache(maxsize=16)
def _beginning(
    identity: ById, structure: Any, form: tuple[Any, ...], clients: int
) -> tuple[tuple[rounds.Wire, ...], Callable[[Params], RoundState]]:
    """What crosses the wire, and the state before the first round as one program, not one per array."""
    algorithm, (params, rows) = identity.program.algorithm, _like(structure, form)
    wires = rounds.wires(algorithm, params, rows, identity.program.capacity, clients)
    return wires, jax.jit(
        partial(rounds.begin, algorithm, clients=clients, wires=wires, capacity=identity.program.capacity)
    )


def device_rows(data: FederatedDataset, attack: Attack | None, seed: int, mesh: Mesh | None = None) -> Rows:
    """The training rows on the devices, those of malicious clients poisoned."""
    return resident(data, attack, seed, mesh, None).rows


def _devices(cohort: int, asked: int | None) -> int:
    """How many devices share the cohort: all, unless the user has named one of them to JAX."""
    if jax.process_count() > 1:  # every process must take part
        return jax.device_count()
    config: Any = jax.config
    available = 1 if asked is None and config.jax_default_device is not None else jax.device_count()
    return min(available, cohort, available if asked is None else asked)


# --- how many clients train side by side ------------------------------------------------------------------------------


def _default_lanes(
    program: Program, params: Params, beginning: RoundState, source: Source, keys: Keys
) -> int:
    """How many clients train side by side on a device: on a CPU a few if the model is small, else as many as fit."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    share = -(-program.cohort // program.devices.size)
    if jax.default_backend() != "cpu":
        most = _MOST_SMALL if numbers <= SMALL_MODEL else _MOST_ON_ACCELERATOR
        return max(1, min(share, most, _lanes_in_memory(program, beginning, source.rows, keys, numbers)))
    if numbers > SMALL_MODEL:
        return 1
    lanes, rows = min(share, _MOST_LANES), source.block(0, 0)[0]
    if lanes > 1:
        steps = _steps(program, rows)
        while lanes > 1 and _waste(program, steps, lanes) > _MOST_WASTE:
            lanes //= 2
    return lanes


def _shifting(program: Program, params: Params, source: Source, keys: Keys) -> Program:
    """The program; with clients that change the device halfway, where some devices would train one more than others.

    Small models train side by side, and clients with unequal work are dealt by its length: both stay as they are.
    """
    cohort, devices = program.cohort, program.devices.size
    large = sum(leaf.size for leaf in jax.tree.leaves(params)) > SMALL_MODEL
    if not large or program.lanes > 1 or devices == 1 or cohort % devices == 0 or cohort < 2 * devices:
        return program
    if program.systems is not None or jax.process_count() > 1:
        return program
    # Only balance is at stake, so that some of the cohorts to come speak for all.
    rows = source.block(0, 0)[0]
    steps = np.asarray(_drawn_steps(ById(program), *tree.form((rows, keys)))(rows, keys))
    least = int(steps.min())
    if least < steps.max() or shifts_of(cohort, devices).longest(least) >= -(-cohort // devices) * least:
        return program
    return program._replace(shifts=True)


@lru_cache(maxsize=16)  # the runs of a study have one method
def _drawn_steps(identity: ById, structure: Any, form: tuple[Any, ...]) -> Callable[[Rows, Keys], Array]:
    """``(rows, keys) -> steps`` of the last phase in some rounds to come, ``(rounds, m)``; 0 for empty slots."""
    program = identity.program
    algorithm, last = program.algorithm, len(program.algorithm.phases) - 1

    def drawn_steps(rows: Rows, keys: Keys) -> Array:
        def steps_in(round: Array) -> Array:
            drawn = rounds.cohort(algorithm, None, rows.sizes, program.cohort, keys, round, last, rows.table)
            steps = efforts(algorithm.phases[last].effort, program.capacity, rows, drawn, round).steps
            return jnp.where(drawn.present, steps, 0)

        return lax.map(steps_in, jnp.arange(_SAMPLED_ROUNDS, dtype=jnp.int32))

    return _compiled(drawn_steps, _like(structure, form))


def _lanes_in_memory(program: Program, beginning: RoundState, rows: Rows, keys: Keys, numbers: int) -> int:
    """How many clients' work fits into half of an accelerator's memory; a third of it may be filled with rows."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 2**34)
    try:
        needed = _memory_of_work(program, beginning, rows, keys)
    except UnknownForm:  # this JAX stores programs in another way
        needed = 4 * _COPIES * numbers
    return limit // 2 // max(1, needed)


def _memory_of_work(program: Program, beginning: RoundState, rows: Rows, keys: Keys) -> int:
    """Bytes that one client's local work takes beyond what all clients share, in the phase that takes the most.

    Counted, not compiled: a compiler merges operations, so that what was measured on a GPU was 0.65 to 0.8 of it.
    """
    algorithm, number = program.algorithm, jnp.int32(0)
    member = Members(number, jnp.float32(1), jnp.bool_(True))

    def work(index: int, server: PyTree, rows: Rows, member: Members, state: PyTree) -> PyTree:
        phase, streams = algorithm.phases[index], rounds.phase_stream(algorithm, index)
        message, key = phase.broadcast(server, member.ids), rounds.work_key(keys, number, streams, member.ids)
        data = client_data(program.capacity, rows, member, number)
        return phase.report(message, state, data), phase.work(message, state, data, key)

    trace = jax.make_jaxpr(work, static_argnums=0)
    given = beginning.server, rows, member, beginning.clients
    return max(footprint(trace(index, *given)) for index in range(len(algorithm.phases)))


def _steps(program: Program, rows: Rows) -> NDArray:
    """The local steps in some random cohorts, ``(cohorts, m + 1)``, the longest work first, and a 0 at the end.

    Up to a factor: where all clients have equally many rows, all take one step, and nothing is compiled.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, rows.sizes.shape[0], (16, program.cohort), dtype=np.int32)

    def in_order(steps: NDArray) -> NDArray:
        return np.concatenate([-np.sort(-steps, axis=1), np.zeros((len(steps), 1))], axis=1)

    if np.ptp(np.asarray(rows.sizes)) == 0:
        return in_order(np.ones(chosen.shape))

    ids = jnp.asarray(chosen.ravel())
    steps = _steps_of(ById(program), *tree.form((rows, ids)))(rows, ids)
    return in_order(np.asarray(steps, np.float64).reshape(chosen.shape))


@lru_cache(maxsize=16)  # the runs of a study have one method
def _steps_of(identity: ById, structure: Any, form: tuple[Any, ...]) -> Callable[[Rows, Array], Array]:
    """``(rows, ids) -> steps``, of the last phase."""
    program = identity.program

    def effort(rows: Rows, ids: Array) -> Array:
        effort_of = program.algorithm.phases[-1].effort
        return efforts(effort_of, program.capacity, rows, Cohort.of(ids), 0).steps

    return _compiled(effort, _like(structure, form))


def _compiled(function: Callable[..., Array], like: tuple[Any, ...]) -> Callable[..., Array]:
    """One program, where each operation would be one, and the same for each method for which it is."""
    traced = AsTraced(function, like)
    return jax.jit(traced) if traced.nbytes > _MOST_KEPT else _shared(traced)


@lru_cache(maxsize=16)  # methods that differ in a step size draw the same cohorts, and take the same steps
def _shared(traced: AsTraced) -> Callable[..., Array]:
    return jax.jit(traced)


def _like(structure: Any, form: tuple[Any, ...]) -> Any:
    """What has this form, without numbers."""
    return jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form])


def _waste(program: Program, steps: NDArray, lanes: int) -> float:
    """Executed over useful local steps, over these cohorts."""
    ranks = np.minimum(deal(program.cohort, lanes, program.devices.size), program.cohort)
    executed = steps[:, ranks].max(axis=-1).sum() * ranks.shape[-1]
    return float(executed / max(steps.sum(), 1.0))


# --- the cohorts of rounds to come ------------------------------------------------------------------------------------


def cohorts(
    program: Program, count: int, sizes: Array, table: PyTree, keys: Keys
) -> Callable[[Array, PyTree, Keys, Any], Array]:
    """``(sizes, table, keys, first) -> (rounds, draws)``: the client ids of some rounds, -1 for empty slots.

    For arrays of the form of these.
    """
    algorithm = program.algorithm

    def drawn(sizes: Array, table: PyTree, keys: Keys, round: Array) -> Array:
        draw = partial(rounds.cohort, algorithm, program.systems, sizes, program.cohort, keys, round)
        cohorts = [draw(phase, table) for phase in range(len(algorithm.phases))]
        return jnp.concatenate([jnp.where(cohort.present, cohort.ids, -1) for cohort in cohorts])

    def all_of(sizes: Array, table: PyTree, keys: Keys, first: Array) -> Array:
        return lax.map(lambda i: drawn(sizes, table, keys, first + i), jnp.arange(count, dtype=jnp.int32))

    return _compiled(all_of, _like(*tree.form((sizes, table, keys, np.int32(0)))))


def drawn_last(program: Program, rows: Rows, keys: Keys, count: int) -> NDArray:
    """The last round, counted from 1, for which each client was drawn, of the first ``count``: int32 ``(N,)``.

    It is when the client last trained, unless its upload was rejected then.
    """
    sizes, table = here((rows.sizes, rows.table)) if program.mesh is not None else (rows.sizes, rows.table)
    draw = partial(rounds.cohort, program.algorithm, program.systems, sizes, program.cohort, keys)
    phase = len(program.algorithm.phases) - 1

    def after(round: Array, before: Array) -> Array:
        drawn = draw(round, phase, table)
        return rounds.last_rounds(before, drawn, drawn.present, round)

    begin = jnp.zeros(sizes.shape, jnp.int32)
    return np.asarray(jax.jit(lambda: lax.fori_loop(0, count, after, begin))())


def attendance(program: Program, keys: Keys, clients: int) -> Callable[[int, int], NDArray] | None:
    """``(first, count) -> (clients,)``: in how many of these rounds each client was available; None: always in all."""
    systems = program.systems
    if systems is None or systems.present is None:
        return None

    @jax.jit
    def attended(first: Array, count: Array) -> Array:
        def one_more(i: Array, before: Array) -> Array:
            there = rounds.presence(systems, keys, clients, first + i)
            assert there is not None
            return before + there.astype(jnp.int32)

        return lax.fori_loop(0, count, one_more, jnp.zeros(clients, jnp.int32))

    return lambda first, count: np.asarray(attended(jnp.int32(first), jnp.int32(count)), np.int64)


_T = TypeVar("_T")


class _Ahead(Generic[_T]):
    """What is gathered for the next rounds while those before them train; the worker thread has this name."""

    def __init__(self, name: str) -> None:
        self._worker = ThreadPoolExecutor(1, name)
        self._next: tuple[Any, Future[_T]] | None = None

    def take(self, key: Any) -> _T | None:
        """What was prepared under this key; None: nothing was, as after a run has continued from elsewhere."""
        ahead, self._next = self._next, None
        value = None if ahead is None else ahead[1].result()
        return value if ahead is not None and ahead[0] == key else None

    def prepare(self, key: Any, gather: Callable[..., _T], *arguments: Any) -> None:
        """Gathers in the background.

        The cohorts must have been drawn: a device does things in turn, and would draw them after the rounds that it is
        given next.
        """
        self._next = key, self._worker.submit(gather, *arguments)


# --- rows that are sent for some rounds at a time ---------------------------------------------------------------------

_ROW_BLOCK = 2**24
"""Bytes of rows in a block, about: some rounds of a small cohort, that a processor's cache may hold."""
_ROW_BLOCK_ROUNDS = 2**8
"""Most rounds in a block."""


class RowBlock(NamedTuple):
    """The rows of the clients of some rounds.

    Attributes:
      first: the first of the rounds.
      until: the round after the last.
      clients: ids of the clients that take part, ascending.
      starts: their first rows in the block.
      x: on the devices; the last row is NaN, or the largest integer.
      y: likewise.
    """

    first: int
    until: int
    clients: NDArray
    starts: NDArray
    x: Array
    y: Array


class Streamed:
    """Where each client's rows are in the block that is on the devices.

    A client without rows in the block is placed at its end, where there are only NaN: if a round ever drew another
    cohort than the one drawn ahead, the loss would be NaN, and never that of another client's rows.

    Attributes:
      rows: the shapes of all rows.
    """

    def __init__(self, program: Program, data: FederatedDataset, seed: int, keys: Keys) -> None:
        if program.algorithm.observe is not None:
            raise EvenhandError(
                "This method uses the training loss over all clients before each round, so all rows must be on the "
                "device: give stream=False, and rows that fit there."
            )
        train = self._train = data.train
        self._attack, self._mesh, self._seed, self._keys = program.attack, program.mesh, seed, keys
        self._clients, self._sizes = data.num_clients, train.sizes
        self._malicious = malicious_clients(program.attack, data.client_ids, seed)
        sizes = train.sizes.astype(np.int32)
        table = tabulated(program.algorithm.sampling, sizes)
        self._shared: tuple[Array, Array, PyTree] = everywhere(self._mesh, (sizes, self._malicious, table))
        x, y = jax.eval_shape(lambda: tuple(jnp.zeros(part.shape, part.dtype) for part in (train.x, train.y)))
        starts: Any = jax.ShapeDtypeStruct((self._clients,), np.int32)
        self.rows = Rows(x, y, starts, *self._shared)
        draws = program.cohort * len(program.algorithm.phases)
        # Rows of a block, about as many as a processor's cache holds, and of an average round.
        rows = _ROW_BLOCK // max(1, (train.x.nbytes + train.y.nbytes) // train.rows)
        need = max(1, int(draws * train.sizes.mean()))
        most = int(np.clip(rows // need, 1, _ROW_BLOCK_ROUNDS))
        self._draw = cohorts(program, most, self.rows.sizes, self.rows.table, keys)
        self._ahead = _Ahead[RowBlock]("evenhand-rows")
        self._now: RowBlock | None = None
        # Enough for two rounds.
        self._resize(_round_up(max(rows, 2 * need), train.rows))

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """As :meth:`Resident.block`; the rows that it gave before may be gone."""
        now = self._now
        if now is None or not now.first <= first < now.until:
            now = self._ahead.take(first)
            now = self._now = self._gather(first, self._drawn(first), self._room) if now is None else now
            self._place(now)
            self._ahead.prepare(now.until, self._gather, now.until, self._drawn(now.until), self._room)
        return Rows(now.x, now.y, self._starts, *self._shared), min(count, now.until - first)

    def _drawn(self, first: int) -> Array:
        sizes, _, table = self._shared if self._mesh is None else here(self._shared)
        return self._draw(sizes, table, self._keys, np.int32(first))

    def _gather(self, first: int, ids: Array, room: int) -> RowBlock:
        """The block that begins with round ``first``, of ``room`` rows or, where one cohort has more, of as many."""
        drawn = np.asarray(ids)
        until, clients = _fitting(drawn, self._sizes, room)
        if until == 0:
            until, clients = 1, np.unique(drawn[0][drawn[0] >= 0])
        index, offsets = rows_of(self._train, clients)
        room = max(room, _round_up(len(index), self._train.rows))
        x, y = (gathered(part, index, room + 1) for part in (self._train.x, self._train.y))
        for part in (x, y):  # the last row is one that no client may train on
            part[-1] = np.nan if part.dtype.kind == "f" else np.iinfo(part.dtype).max
        if self._attack is not None and self._attack.rows is not None:
            bad = self._malicious[clients]
            windows = zip(clients[bad], offsets[:-1][bad], offsets[1:][bad], strict=True)
            poison(self._attack, self._seed, x, y, windows)
        x, y = sent(self._mesh, (x, y))
        return RowBlock(first=first, until=first + until, clients=clients, starts=offsets[:-1], x=x, y=y)

    def _resize(self, room: int) -> None:
        """Makes room for so many rows; another size compiles the round again."""
        self._room = room
        self._starts = everywhere(self._mesh, np.full(self._clients, room, np.int32))
        self._placed = np.zeros(0, np.int64)

    def _place(self, block: RowBlock) -> None:
        """Records where the rows of the block's clients are, and that those of the block before are gone."""
        room = block.x.shape[0] - 1
        if room > self._room:
            self._resize(room)
        # Padded to a power of two, so that few programs are compiled, whoever takes part.
        count = 2 ** max(len(block.clients) - 1, len(self._placed) - 1, 1).bit_length()

        def padded(values: NDArray, value: int) -> NDArray:
            return np.pad(values, (0, count - len(values)), constant_values=value).astype(np.int32)

        old, new = padded(self._placed, self._clients), padded(block.clients, self._clients)
        self._starts = _moved(self._starts, old, new, padded(block.starts, 0), np.int32(self._room))
        self._placed = block.clients


@partial(jax.jit, donate_argnums=0)
def _moved(starts: Array, old: Array, new: Array, places: Array, absent: Array) -> Array:
    """``starts`` with the old clients absent and the new ones in their places; ids from ``N`` on are padding."""
    return starts.at[old].set(absent, mode="drop").at[new].set(places, mode="drop")


def _fitting(drawn: NDArray, sizes: NDArray, room: int) -> tuple[int, NDArray]:
    """How many of the rounds there is room for, and the clients that take part; ids are ``(rounds, draws)``, or -1."""
    clients, seen = np.unique(drawn, return_index=True)
    clients, seen = clients[clients >= 0], seen[clients >= 0]
    order = np.argsort(seen)
    count = int(np.searchsorted(np.cumsum(sizes[clients[order]]), room, "right"))
    if count == len(clients):
        return len(drawn), clients
    until = int(seen[order[count]]) // drawn.shape[1]
    return until, clients[seen < until * drawn.shape[1]]


def _round_up(rows: int, most: int) -> int:
    """A power of two, so that few sizes occur, but no more than there are rows."""
    return min(2 ** (max(rows, 1) - 1).bit_length(), most)


# --- clients' states that are sent for some rounds at a time ----------------------------------------------------------

_STATE_BLOCK = 2**26
"""Bytes of states in a block, about."""
_STATE_BLOCK_ROUNDS = 2**6


class StateBlock(NamedTuple):
    """The states of the clients of some rounds.

    Attributes:
      ids: who takes part, ascending.
      rounds: how many rounds these are.
      states: on the devices, ``(room, ...)``; the last ones belong to nobody.
      slots: where each client's state is in them, int32 ``(N,)``; that of others is the last.
    """

    ids: NDArray
    rounds: int
    states: PyTree
    slots: Array


class Offloaded:
    """Sends the states of the clients of some rounds to the devices, and takes them back afterwards.

    Which clients take part does not depend on the training, so that the next states are gathered while these rounds
    train; only those of clients in both are gathered again.

    Args:
      store: all states.
      program: has the sampling scheme.
      sizes: of the clients, int32 ``(N,)``, on the devices.
      table: of the sampling scheme, likewise.
      keys: of the cohorts.
    """

    def __init__(self, store: HostStore, program: Program, sizes: Array, table: PyTree, keys: Keys) -> None:
        self.store, self._mesh, self._keys = store, program.mesh, keys
        self._sizes, self._table = (sizes, table) if self._mesh is None else here((sizes, table))
        draws = program.cohort * len(program.algorithm.phases)
        # The room is fixed, as a shape of the compiled program; a block may need less of it.
        most = int(np.clip(_STATE_BLOCK // max(1, draws * store.bytes_each), 1, _STATE_BLOCK_ROUNDS))
        self._most, self._room = most, min(store.clients, most * draws) + 1
        self._draw = cohorts(program, most, self._sizes, self._table, keys)
        self._ahead = _Ahead[PyTree]("evenhand-states")
        self._stale = np.zeros(0, np.int64)

    def block(self, first: int, count: int) -> StateBlock:
        """The states for rounds from ``first`` on: for at most ``count`` rounds, of which the block says how many."""
        rounds = min(count, self._most)
        ids = self._drawn(first, rounds)
        states = self._ahead.take((first, ids.tobytes()))
        if states is None:
            states = self.store.read(ids, self._room)
        else:  # those of clients that trained in the meantime are gathered again
            both = np.flatnonzero(np.isin(ids, self._stale))
            again = jax.tree.leaves(self.store.read(ids[both]))
            for leaf, new in zip(jax.tree.leaves(states), again, strict=True):
                leaf[both] = new
        # NaN in the last state: if a round ever drew another client than those drawn ahead, it would show.
        for leaf in jax.tree.leaves(states):
            if leaf.dtype.kind == "f":
                leaf[-1] = np.nan
        # Whoever is not in the block has the last slot, whose state is NaN.
        slots = np.full(self.store.clients, self._room - 1, np.int32)
        slots[ids] = np.arange(len(ids), dtype=np.int32)
        block = StateBlock(ids, rounds, *everywhere(self._mesh, (states, slots)))
        if rounds:
            following = self._drawn(first + rounds, rounds)
            key = first + rounds, following.tobytes()
            self._ahead.prepare(key, self.store.read, following, self._room)
        return block

    def take_back(self, block: StateBlock, states: PyTree) -> None:
        """Stores what has become of a block's states."""
        self.store.put(block.ids, here(states))
        # The next states may have been gathered before these were put back.
        self._stale = block.ids

    def _drawn(self, first: int, rounds: int) -> NDArray:
        drawn = np.asarray(self._draw(self._sizes, self._table, self._keys, np.int32(first)))[:rounds]
        ids = np.unique(drawn)
        return ids[ids >= 0].astype(np.int64)
