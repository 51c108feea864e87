"""Many runs: those of small models that are one program train side by side, the others one after another.

Runs of methods that differ in their numbers only, such as the step size, are one program
(:mod:`evenhand._jaxpr.hoist`).  With the same seed they also draw the same cohorts, batches and shuffles, which
:class:`Together` then draws once; it is mapped over the literals and states of a *column* of runs, and each device has
a column of its own.  The columns that train at the same time are a *crew*.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evenhand import evaluation, tree
from evenhand._platform import check_process
from evenhand.devices import Devices, everywhere, here, over
from evenhand.simulation._job import Execution, Job, check_job, check_model
from evenhand.simulation._run import Run
from evenhand.simulation._simulate import Measure, Request, Session, Steps, Stretch, Train, runs_of
from evenhand.simulation.engine import ByKey, Hoistable, hoist_rounds
from evenhand.simulation.evaluating import Evaluation
from evenhand.simulation.program import Resident, Rows, must_stream, resident
from evenhand.simulation.setup import SMALL_MODEL, set_up
from evenhand.types import Array

_MOST_BYTES = 2**28
"""Of the states of a column of runs."""
_LONGEST = 32
"""Runs in a column: beyond, a run more costs as much as one alone."""


def iterate_many(
    jobs: Sequence[Job], wanted: Collection[int] | None = None
) -> Iterator[tuple[int, Run | Exception]]:
    """Yields ``(position of the job, run so far)`` at each evaluation of each run, in whatever order is fastest.

    Runs of small models whose methods differ in their numbers only, on the same data, become one program, one column of
    runs on each device; each gives the same numbers as alone, to rounding.  All others run one after another, as by
    :func:`evenhand.simulation.iterate`, to the same bits.

    A run that fails yields the exception, and the others continue.

    A run's numbers depend, to the bit, on ``jobs`` and the devices only: not on which jobs are ``wanted``, which fail,
    or from which rounds they continue.

    Args:
      jobs: the runs; two jobs have the same data, attack or systems if they hold the same object.
      wanted: the positions of the runs that are made; None: all.  The others keep their places in the columns, where
        copies of the wanted runs' states are computed and dropped.

    Example:
      >>> import evenhand as eh
      >>> data, model = eh.testing.toy_data(), eh.testing.toy_model()
      >>> works = [eh.local.sgd(model, step, epochs=1, batch_size=4) for step in (0.01, 0.1)]
      >>> jobs = [Job(eh.algorithms.fedavg(work), data, rounds=4, eval_every=4) for work in works]
      >>> [(job, run.info["rounds"]) for job, run in iterate_many(jobs)]
      [(0, 0), (1, 0), (0, 4), (1, 4)]
    """
    check_process()
    traced: dict[Any, _Traced] = {}
    chosen = set(range(len(jobs)) if wanted is None else wanted)
    for crew in _crews(jobs, chosen, traced):
        if not chosen & {position for column in crew for position in column}:
            continue
        if crew == [[crew[0][0]]]:
            yield from _alone(jobs, crew[0][0])
        else:
            yield from _Crew(jobs, chosen, crew, traced).run()


def crews(jobs: Sequence[Job], wanted: Collection[int] | None = None) -> list[list[int]]:
    """The positions of the jobs that :func:`iterate_many` trains at the same time, one list after another.

    The jobs of one list give the same bits in a call of their own, on as many devices.

    Args:
      jobs: the runs.
      wanted: the positions of the runs that are made; lists without any of them are left out.  None: all.

    Example:
      >>> import evenhand as eh
      >>> data, model = eh.testing.toy_data(), eh.testing.toy_model()
      >>> works = [eh.local.sgd(model, step, epochs=1, batch_size=size) for step in (0.01, 0.1) for size in (2, 4)]
      >>> crews([Job(eh.algorithms.fedavg(work), data, rounds=4) for work in works])
      [[0, 2], [1, 3]]
    """
    check_process()
    chosen = set(range(len(jobs)) if wanted is None else wanted)
    positions = [sorted(chain.from_iterable(crew)) for crew in _crews(jobs, chosen, {})]
    return [crew for crew in positions if chosen & set(crew)]


def _alone(jobs: Sequence[Job], position: int) -> Iterator[tuple[int, Run | Exception]]:
    try:
        for run in runs_of(jobs[position]):
            yield position, run
    except Exception as error:  # whatever it is, it is this run's result
        yield position, error


# --- which runs train together ----------------------------------------------------------------------------------------


class _Traced(NamedTuple):
    """A method's program, the number of clients that it trains side by side, and the size of its state."""

    program: Hoistable
    lanes: int
    bytes: int


def _crews(jobs: Sequence[Job], chosen: set[int], traced: dict[Any, _Traced]) -> Iterator[list[list[int]]]:
    """Columns of runs that train together, as positions; the programs of their methods are put in ``traced``.

    They are the same whoever is chosen; only those of which none may be chosen are left out.
    """
    groups: dict[Any, list[int]] = {}
    for position, job in enumerate(jobs):
        # A run that trains alone gets a key that equals no other.
        groups.setdefault(_kind(job) or object(), []).append(position)
    for group in groups.values():
        if not chosen & set(group):  # tracing them would be for nothing
            continue
        if len(group) == 1:
            yield [group]
            continue
        programs: dict[Any, dict[int, list[int]]] = {}
        for position in group:
            key, job = _program(jobs[position], traced), jobs[position]
            programs.setdefault(key, {}).setdefault(job.seed, []).append(position)
        for by_seed in programs.values():
            first = next(iter(by_seed.values()))[0]
            memo = traced.get(_which(jobs[first]))
            size = 0 if memo is None else memo.bytes
            yield from _columns(list(by_seed.values()), jobs[first], size)


def _kind(job: Job) -> Any:
    """Equal for runs that may be one program; None for one that should train alone."""
    try:
        check_job(job)
        params = jax.eval_shape(job.algorithm.model.init, jax.random.key(0))
    except Exception:  # the run reports the error when it begins
        return None
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    if parameters > SMALL_MODEL or must_stream(job.data.train) or jax.process_count() > 1:
        return None
    # What is asked for there, such as lanes or a tracker, is of one run; a crew has its own.
    if job.execution != Execution():
        return None
    # By identity: comparing data would read all of them, and the jobs keep the objects alive.
    parts = (id(job.data), id(job.attack), id(job.systems), job.algorithm.sampling)
    return (*parts, job.rounds, job.cohort, job.eval_every, job.eval_clients, job.untrained)


def _which(job: Job) -> Any:
    """Equal for runs of one method on the same data, whatever their seed."""
    return id(job.algorithm), id(job.data), id(job.attack), id(job.systems), job.cohort


def _program(job: Job, traced: dict[Any, _Traced]) -> Any:
    """The key of a run's program; one of its own where it has none."""
    if (memo := traced.get(_which(job))) is None:
        try:
            check_job(job)
            setup = set_up(job._replace(execution=Execution(devices=1, offload=False)))
        except Exception:  # the run reports the error when it begins
            return object()
        program = hoist_rounds(setup.program, setup.state, setup.rows, setup.keys)
        if program is None:
            return object()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(setup.state))
        memo = traced[_which(job)] = _Traced(program, setup.program.lanes, size)
    return memo.program.hoisted.key


def _columns(by_seed: list[list[int]], like: Job, size: int) -> Iterator[list[list[int]]]:
    """Crews of columns, as many as there are devices; a column is of one seed.

    Malicious clients are drawn anew for each seed, and a crew shares its rows: under an attack it has one seed.
    """
    devices = _devices()
    # The states of a column are all on one device, and a column that is too long gains nothing.
    longest = max(1, min(_LONGEST, _MOST_BYTES // max(size, 1)))
    for seeds in [by_seed] if like.attack is None else [[group] for group in by_seed]:
        columns = [runs[i : i + longest] for runs in seeds for i in range(0, len(runs), longest)]
        columns.sort(key=len, reverse=True)
        for first in range(0, len(columns), devices):
            yield _spread(columns[first : first + devices], devices)


def _devices() -> int:
    """All, unless the user has named one of them to JAX."""
    config: Any = jax.config
    return 1 if config.jax_default_device is not None else jax.device_count()


def _spread(columns: list[list[int]], devices: int) -> list[list[int]]:
    """Columns for as many devices as there are runs for, the longest first."""
    while len(columns) < devices and len(columns[0]) > 1:
        first, *others = columns
        half = (len(first) + 1) // 2
        columns = sorted([first[:half], first[half:], *others], key=len, reverse=True)
    return columns


# --- runs that wait for each other ------------------------------------------------------------------------------------


class _Crew:
    """Runs that train as one program, and wait for each other at each evaluation.

    Their places are fixed: where a run is not wanted, has failed or is ahead, another one's state fills its place.
    """

    def __init__(
        self, jobs: Sequence[Job], chosen: set[int], columns: list[list[int]], traced: dict[Any, _Traced]
    ) -> None:
        self._jobs, self._chosen, self._columns, self._traced = jobs, chosen, columns, traced
        self._places = list(chain.from_iterable(columns))
        first = jobs[columns[0][0]]
        self._mesh = over(len(columns))
        self._rows = resident(first.trained, first.attack, first.seed, self._mesh, first.algorithm.sampling)
        # Each session is a run on one device: it sees the first device's rows, which all columns share.
        self._resident = Resident(here(self._rows.rows))
        self._evaluations: dict[int, Evaluation] = {}
        self._sessions: dict[int, Session] = {}
        self._steps: dict[int, Steps] = {}
        self._pending: dict[int, Request] = {}

    def run(self) -> Iterator[tuple[int, Run | Exception]]:
        """As :func:`iterate_many`."""
        with ExitStack() as stack:
            for position in [position for position in self._places if position in self._chosen]:
                try:
                    self._steps[position] = self._begin(position, stack)
                except Exception as error:
                    yield position, error
                    continue
                yield from self._send(position, None)
            while self._pending:
                for position, answer in self._answers().items():
                    yield from self._send(position, answer)

    def _begin(self, position: int, stack: ExitStack) -> Steps:
        job = self._jobs[position]
        check_model(job.algorithm.model, job.data)
        evaluation.check_metrics(job.measured, job.algorithm.client_model, job.data)
        execution = Execution(devices=1, lanes=self._traced[_which(job)].lanes, offload=False)
        setup = set_up(job._replace(execution=execution), rows=self._resident)
        same = self._sample(position)
        if same not in self._evaluations:
            # Each run trains on one device, but the crew evaluates on all of its devices.
            program = setup.program._replace(mesh=self._mesh)
            self._evaluations[same] = Evaluation(job, program, setup.keys, self._rows, setup.store)
        measuring = self._evaluations[same].shared_by(setup.program, setup.keys, setup.store)
        session = self._sessions[position] = Session(setup, job, measuring)
        return session.begin(stack)

    def _sample(self, position: int) -> int:
        """Equal for runs in which the same clients are evaluated."""
        job = self._jobs[position]
        return job.seed if job.eval_clients is not None else 0

    def _send(self, position: int, answer: Any) -> Iterator[tuple[int, Run | Exception]]:
        """What a run yields until its next request, which is then pending."""
        self._pending.pop(position, None)
        steps = self._steps[position]
        try:
            # Raised where the run waits for its answer, so that it ends as it would alone.
            step = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
            while isinstance(step, Run):
                yield position, step
                step = next(steps)
            self._pending[position] = step
        except StopIteration:
            return
        except Exception as error:  # whatever it is, it is this run's result
            yield position, error

    def _answers(self) -> dict[int, Any]:
        """Answers to those that are furthest behind: a run that was resumed at another round first catches up."""
        asked = list(self._pending.items())
        measured = {position: request for position, request in asked if isinstance(request, Measure)}
        trained = {position: request for position, request in asked if isinstance(request, Train)}
        least = min((request[1:] for request in trained.values()), default=None)
        behind = {position: request for position, request in trained.items() if request[1:] == least}
        try:
            # Evaluations first: only after its own does a run ask for the rounds that it may train with the others.
            return self._measured(measured) if measured else self._trained(behind)
        except Exception:
            # Such as too little memory for all: alone, each gets its own result or its own failure.
            return {position: self._alone(position) for position in measured or behind}

    def _measured(self, asked: dict[int, Measure]) -> dict[int, Any]:
        """All evaluations at once, where the crew's can be."""
        methods = [self._jobs[position].algorithm for position in self._places]
        has_one_sample = len({self._sample(position) for position in self._places}) == 1
        if not (has_one_sample and Evaluation.are_alike(methods)):
            return {position: self._alone(position) for position in asked}
        filler = next(iter(asked))
        places = [position if position in asked else filler for position in self._places]
        states = [asked[position].state for position in places]
        served = Evaluation.of_each([self._sessions[position].evaluation for position in places], states)
        pairs = zip(self._places, served, strict=True)
        return {position: result for position, result in pairs if position in asked}

    def _trained(self, asked: dict[int, Train]) -> dict[int, Any]:
        """The rounds of all of them as one program."""
        requests = [[asked.get(position) for position in column] for column in self._columns]
        answers = chain.from_iterable(self._together.answer(requests))
        pairs = zip(self._places, answers, strict=True)
        return {position: answer for position, answer in pairs if answer is not None}

    def _alone(self, position: int) -> Any:
        """The answer to one run, or the exception that is its result."""
        try:
            return self._sessions[position].answer(self._pending[position])
        except Exception as error:
            return error

    @cached_property
    def _together(self) -> Together:
        """The program of these runs."""
        programs = [
            [self._traced[_which(self._jobs[position])].program for position in column]
            for column in self._columns
        ]
        sessions = [[self._sessions.get(position) for position in column] for column in self._columns]
        return Together(sessions, programs, everywhere(self._mesh, self._rows.rows), self._mesh)


# --- several runs as one program --------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _compiled(program: ByKey) -> Any:
    """``(literals, constants, state, keys, rest) -> results``: all but the last have an axis for the devices, and the
    first three another one for the runs of a column; constants that are shared do not."""
    axes = (0, [None if shared else 0 for shared in program.shared], 0)

    def column(mine: Any, rest: list[Array]) -> list[Array]:
        # The axis of the devices has length 1 on each of them, and without a mesh, too.
        literals, constants, state, keys = jax.tree.map(lambda leaf: leaf[0], mine)
        rows, counts = rest[:-2], rest[-2:]

        def alone(literals: Array, constants: list[Array], state: list[Array]) -> list[Array]:
            return program.hoisted.run(literals, constants, [*state, *rows, *keys, *counts])

        results = jax.vmap(alone, axes)(literals, constants, state)
        return [leaf[None] for leaf in results]

    def run(literals: Array, constants: Any, state: Any, keys: Any, rest: list[Array]) -> list[Array]:
        return Devices(program.mesh).spread(column)((literals, constants, state, keys), rest)

    # The states alone are donated: literals, constants and keys serve the next call, too.
    return jax.jit(run, donate_argnums=2)


class Together:
    """Columns of runs that train as one program, each column with one seed and on a device of its own.

    Args:
      columns: the runs, None for one that is not made; the first column is not shorter than any other.
      programs: the program of each place, all of one key.
      rows: the training rows of all of them, on each device of the mesh.
      mesh: as many devices as there are columns; None: one.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Session | None]],
        programs: Sequence[Sequence[Hoistable]],
        rows: Rows,
        mesh: Mesh | None,
    ) -> None:
        self._lengths, self._mesh = [len(column) for column in columns], mesh
        first, self._results = programs[0][0].hoisted, programs[0][0].results
        hoisted = [[program.hoisted for program in column] for column in programs]
        # A constant that is equal in all runs is kept once on each device, not once per run.
        shared = tuple(
            all(_same(program.constants[i], first.constants[i]) for column in hoisted for program in column)
            for i in range(len(first.constants))
        )
        self._run = _compiled(ByKey(first, mesh, shared))
        self._literals = self._dealt([[program.values for program in column] for column in hoisted])
        self._constants = [
            self._each_device([first.constants[i]] * len(columns))
            if is_shared
            else self._dealt([[program.constants[i] for program in column] for column in hoisted])
            for i, is_shared in enumerate(shared)
        ]
        made = [[program for program in column if program is not None] for column in columns]
        some = next(column for column in made if column)
        # A column of which no run is made still computes, with the keys of another; its results are dropped.
        keys = [jax.tree.leaves((column or some)[0].setup.keys) for column in made]
        self._keys = [self._each_device(list(parts)) for parts in zip(*keys, strict=True)]
        self._rows = jax.tree.leaves(rows)

    def answer(self, requests: Sequence[Sequence[Train | None]]) -> list[list[Stretch | None]]:
        """The same rounds of all runs; requests and answers are in the places of the runs.

        A place without a request is computed from another run's state, and has no answer: its width is part of the
        program, which decides how the numbers of all others are rounded.
        """
        begin = time.perf_counter()
        asked = [request for column in requests for request in column if request is not None]
        filler, first, rounds = asked[0]
        states = [
            [jax.tree.leaves(filler if request is None else request.state) for request in column]
            for column in requests
        ]
        state = [
            self._dealt([[leaves[i] for leaves in column] for column in states])
            for i in range(len(states[0][0]))
        ]
        rest = [*self._rows, *everywhere(self._mesh, [np.int32(first), np.int32(rounds)])]
        # The stacked states are this call's own copies, so that it may take their memory over.
        results = self._run(self._literals, self._constants, state, self._keys, rest)
        given = len(state)
        ends = self._columns(results[:given])
        # The buffer of infos has a fixed length, of which these rounds have filled the beginning.
        infos = [np.asarray(info)[:, :, :rounds] for info in results[given:]]
        # Shared out evenly, so that the seconds of all runs add up to those that have passed.
        seconds = {"data": 0.0, "train": (time.perf_counter() - begin) / len(asked)}

        def answer(column: int, run: int, leaves: list[Array]) -> Stretch:
            state, infos_of_run = jax.tree.unflatten(
                self._results, [*leaves, *(info[column, run] for info in infos)]
            )
            return Stretch(state, infos_of_run, rounds, seconds)

        return [
            [
                None if request is None else answer(i, j, leaves)
                for j, (leaves, request) in enumerate(zip(column, requests[i], strict=False))
            ]
            for i, column in enumerate(ends)
        ]

    def _dealt(self, parts: Sequence[Sequence[Any]]) -> Array:
        """One array of all runs, ``(columns, runs, ...)``; shorter columns repeat their last run."""
        longest = self._lengths[0]
        # The devices run one program, whose shapes are those of the longest column.
        columns = [[*column, *[column[-1]] * (longest - len(column))] for column in parts]
        return self._each_device([_stack(column) for column in columns])

    def _each_device(self, parts: list[Any]) -> Array:
        """An array for each device."""
        stacked = jnp.stack(parts)
        if self._mesh is None:
            return stacked
        return jax.device_put(stacked, NamedSharding(self._mesh, PartitionSpec(*self._mesh.axis_names)))

    def _columns(self, state: Sequence[Array]) -> list[list[list[Array]]]:
        """The leaves of each run's state, on the first device."""
        place = jax.local_devices()[0]
        shards = [sorted(leaf.addressable_shards, key=_first_index) for leaf in state]
        return [
            _apart(jax.device_put([shard.data for shard in column], place))
            for column in zip(*shards, strict=True)
        ]


def _first_index(shard: Any) -> int:
    return int(shard.index[0].start or 0)


def _same(first: Any, second: Any) -> bool:
    return first is second or (np.shape(first) == np.shape(second) and bool(np.array_equal(first, second)))


_stack = jax.jit(tree.stack)


@jax.jit
def _apart(leaves: list[Array]) -> list[list[Array]]:
    """``(1, runs, ...)`` leaves, run by run."""
    return [[leaf[0, i] for leaf in leaves] for i in range(leaves[0].shape[1])]
