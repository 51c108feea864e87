"""Training columns of runs: in this process, or by the workers of an executor.

:func:`trained` trains runs side by side and is the same everywhere.  :class:`Workers` sends it to an executor, a column
of runs in each task: :func:`train_column` is the task.  The state of each run is in the study's folder, which all
workers share, so whoever gets a column continues where the last one stopped.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import platform
import shutil
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from evenhand._platform import check_process, settings
from evenhand._version import __version__
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, EvenhandWarning, StorageError, warn_caller
from evenhand.memory import copied, is_mapped
from evenhand.records import FolderInUse, held
from evenhand.simulation import Checkpoint, Job, Run, crews, iterate_many
from evenhand.studies._selection import NDArray, Outcome, Setting
from evenhand.studies._store import Store, remedy


class Planned(NamedTuple):
    """A run that a study has to make.

    Attributes:
      setting: the method and its hyper-parameters.
      seed: the run's seed.
      job: the run.
      new_data: whether each seed has its own data.
    """

    setting: Setting
    seed: int
    job: Job
    new_data: bool


_OF_THE_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE),
}
"""The system's errors about disks that are full or fail, and about too many open files: a run may succeed later."""


def trained(
    runs: Sequence[Planned], wanted: Collection[int], measured: Measurements
) -> Iterator[tuple[int, Run | Exception, Outcome | None]]:
    """Yields ``(place, run so far, its outcome if that was its end)`` at each evaluation of the wanted runs.

    Args:
      runs: all runs of a batch, whose places decide how numbers are rounded.
      wanted: the places of those that are made.
      measured: measures them.

    Raises:
      StorageError: a state could not be written or read, or a disk is full or fails, which is no result of a run.
      EvenhandError: a run needs a module that is not installed here, which is none either.
    """
    for place, result in iterate_many([run.job for run in runs], wanted):
        setting, seed, job, new_data = runs[place]
        if isinstance(result, StorageError):
            raise result
        if isinstance(result, OSError) and result.errno in _OF_THE_MACHINE:
            raise StorageError(
                f"{setting}, seed {seed}, ended with an error of the system ({result.strerror or result}): remove its "
                "cause, such as a full disk, and start again; finished runs are kept."
            ) from result
        if isinstance(result, ImportError):
            raise EvenhandError(
                f"{setting}, seed {seed}, needs what {socket.gethostname()} cannot import ({result}): install it there "
                "and start again; finished runs are kept."
            ) from result
        measures = measured.take(setting, seed, result)
        has_ended = isinstance(result, Exception) or result.info["rounds"] == job.rounds
        outcome = Outcome.of(setting, seed, result, measures, new_data=new_data) if has_ended else None
        yield place, result, outcome
        # A study keeps numbers: the next rounds or runs may have the memory of the clients' states.
        if isinstance(result, Run) and not (measured.asks and result.kept.light):
            result.release()


# --- what the user's own function measures --------------------------------------------------------------------


Measure: TypeAlias = Callable[[Run], Mapping[str, float]]
"""``run -> {name: number}``, called at each evaluation."""


class Measurements:
    """The numbers of all runs, on disk until a run ends where the study has a folder.

    Args:
      measure: the user's function; None: nothing is measured.
      store: where a run that was interrupted finds those of its earlier evaluations.
    """

    def __init__(self, measure: Measure | None, store: Store | None) -> None:
        self._measure, self._store = measure, store
        self._noted: dict[tuple[str, int], dict[int, dict[str, float]]] = {}

    @property
    def asks(self) -> bool:
        """Whether a function of the user's has seen the runs, and may still hold them."""
        return self._measure is not None

    def take(self, setting: Setting, seed: int, result: Run | Exception) -> dict[str, NDArray]:
        """Measures a run at its latest evaluation.

        Returns name -> a number for each evaluation so far, NaN where there is none.
        """
        if self._measure is None or isinstance(result, Exception):
            return {}
        key = str(setting), seed
        if key not in self._noted:
            self._noted[key] = {} if self._store is None else self._store.notes(setting, seed)
        # By round: notes of an interrupted session may go further than the checkpoint from which its run continues,
        # which then measures these rounds again.
        noted, rounds = self._noted[key], result.history["round"].tolist()
        noted[rounds[-1]] = {name: float(value) for name, value in self._measure(result).items()}
        if self._store is not None:
            self._store.note(setting, seed, noted)
        names = dict.fromkeys(name for numbers in noted.values() for name in numbers)
        rows = [noted.get(now, {}) for now in rounds]
        return {name: np.array([row.get(name, np.nan) for row in rows], np.float64) for name in names}


# --- by the workers of an executor ----------------------------------------------------------------------------

_LARGE = 10**6
"""Bytes of an array beyond which it is a file of its own."""
_SHARED_FILES = "shared"
"""The folder of data sets and large arrays in that of the study; it is removed when the study ends."""
_TRIES = 3
"""How often a column is sent whose workers are lost."""
_PAUSE = 0.05
"""Seconds between two looks at the tasks."""


class Executor(Protocol):
    """What a study can send its runs to, such as ``concurrent.futures.ProcessPoolExecutor``."""

    def submit(self, fn: Callable[[bytes], bytes], task: bytes, /) -> Any:
        """Calls the function somewhere, and returns at once what has the methods ``done()`` and ``result()``."""
        ...


class Crew(NamedTuple):
    """Runs that train together, as one task.

    Attributes:
      runs: all runs of the column, with the checkpoints and the rounds of their jobs.
      wanted: the places of those that are made.
    """

    runs: list[Planned]
    wanted: list[int]

    def __str__(self) -> str:
        setting, seed, *_ = self.runs[self.wanted[0]]
        others = len(self.wanted) - 1
        return f"{setting}, seed {seed}" + (f" (and {others} more)" if others else "")


def columns_of(runs: Sequence[Planned], wanted: Collection[int]) -> list[tuple[list[int], Crew]]:
    """The columns in which these runs of a batch train, with the positions of the runs in the batch."""
    columns: list[tuple[list[int], Crew]] = []
    for crew in crews([run.job for run in runs], wanted):
        places = [place for place, position in enumerate(crew) if position in wanted]
        columns.append((crew, Crew([runs[position] for position in crew], places)))
    return columns


class Workers:
    """Sends columns of runs to an executor, and collects what comes of them.

    Args:
      executor: where they are sent.
      folder: the study's, which all workers share.
      measure: the user's function, which measures the runs where they train.
    """

    def __init__(self, executor: Executor, folder: Path, measure: Measure | None) -> None:
        self._executor, self._folder, self._measure = executor, folder.absolute(), measure
        # Held with what was packed, so that no other object gets its address.
        self._packed: dict[int, tuple[Any, Any]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder / _SHARED_FILES, ignore_errors=True)

    def train(self, columns: Sequence[Crew]) -> Iterator[tuple[int, dict[int, Outcome]]]:
        """Yields ``(position of the column, place -> outcome)`` in the order in which columns end.

        Raises:
          EvenhandError: a worker cannot train a column, the executor is broken, or a column's workers were lost
            several times; the last is raised after all other columns have ended.
        """
        tasks = [self._task(column) for column in columns]
        pending, lost = dict[Any, tuple[int, int]](), list[str]()
        try:
            for position, task in enumerate(tasks):
                pending[self._submit(task)] = position, 1
            while pending:
                ended = [future for future in pending if future.done()]
                if not ended:
                    # Not wait(): what submitit returns, for example, is no future of the standard library.
                    time.sleep(_PAUSE)
                for future in ended:
                    position, tries = pending.pop(future)
                    try:
                        content, cautions = pickle.loads(future.result())
                    except BrokenExecutor as error:
                        raise _broken(error) from error
                    except Exception as error:
                        # The task itself raises nothing, so its worker died, or never began, or its answer was lost.
                        if tries < _TRIES:
                            pending[self._submit(tasks[position])] = position, tries + 1
                        else:
                            lost.append(f"{columns[position]} ({_in_words(error)})")
                        continue
                    yield position, _read(content, cautions)
        finally:
            for future in pending:
                with suppress(Exception):  # an executor that is broken or closed cancels nothing
                    future.cancel()
        if lost:
            raise EvenhandError(
                f"{len(lost)} of {len(columns)} columns of runs were lost with their workers {_TRIES} times; the first "
                f"is {lost[0]}: look at the workers' output, give them more memory, and start the study again. "
                "Finished runs are kept."
            )

    def _submit(self, task: bytes) -> Any:
        try:
            future = self._executor.submit(train_column, task)
        except BrokenExecutor as error:
            raise _broken(error) from error
        except Exception as error:  # such as one that was shut down, or whose cluster refuses more jobs
            raise EvenhandError(
                f"study(executor=...): the executor takes no task ({_in_words(error)}): remove the cause, or give "
                "another one, and start the study again. Finished runs are kept."
            ) from error
        if not (callable(getattr(future, "done", None)) and callable(getattr(future, "result", None))):
            raise EvenhandError(
                f"study(executor=...): submit returned {type(future).__name__}, without done() and result(): give an "
                "executor such as those of concurrent.futures."
            )
        return future

    def _task(self, column: Crew) -> bytes:
        """What travels: plain bytes around those of cloudpickle, so that another version can read which it is."""
        try:
            packed = self._dumped((column, self._measure))
        except StorageError:
            raise
        except Exception as error:
            raise EvenhandError(
                f"study(executor=...): {column} cannot be sent to a worker ({_in_words(error)}): its method and "
                "measure must consist of functions and arrays, without open files or locks."
            ) from error
        return pickle.dumps((_versions(), str(self._folder), settings(), packed))

    def _dumped(self, value: Any) -> bytes:
        import cloudpickle  # an extra

        reference = self._reference

        # As methods of a class, since Python 3.13.0 lets no object of the class above have its own.
        class Pickler(cloudpickle.Pickler):
            def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
                return reference(obj)

            def reducer_override(self, obj: Any) -> Any:
                if isinstance(obj, _WRAPPERS):
                    return _reduced(obj)
                # Functions of jax.checkpoint refer to caches of JAX, whose type has no public name.
                return (
                    _by_name(obj)
                    if type(obj).__name__ == "WeakrefLRUCache"
                    else super().reducer_override(obj)
                )

        buffer = io.BytesIO()
        Pickler(buffer).dump(value)
        return buffer.getvalue()

    def _reference(self, value: Any) -> tuple[Any, ...] | None:
        """The name of what columns share, and the type of an array; None for what travels with each of them."""
        if not (_is_large(value) or isinstance(value, FederatedDataset)):
            return None
        if id(value) not in self._packed:
            folder = self._folder / _SHARED_FILES
            if isinstance(value, FederatedDataset):
                # Its parts, since the object itself would be this reference again.
                content = self._dumped(vars(value))
                name = _filed(folder, hashlib.sha256(content), lambda file: file.write(content))
                reference: tuple[Any, ...] = "data", name, None
            else:
                kind = "device" if isinstance(value, jax.Array) else "file" if is_mapped(value) else "memory"
                array = np.ascontiguousarray(value)
                checksum = hashlib.sha256(repr((array.dtype.str, array.shape)).encode())
                checksum.update(array.reshape(-1).view(np.uint8).data)
                name = _filed(folder, checksum, lambda file: np.save(file, array, allow_pickle=False))
                # The file has only the bytes of a type that NumPy lacks, such as bfloat16.
                reference = kind, name, array.dtype
            self._packed[id(value)] = value, reference
        return self._packed[id(value)][1]


def _is_large(value: Any) -> bool:
    """Whether it is an array that is a file of its own, which keeps a plain array's shape, type and numbers only."""
    if type(value) in (np.ndarray, np.memmap):
        return value.nbytes > _LARGE and not value.dtype.hasobject
    is_array = isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return is_array and value.nbytes > _LARGE and not getattr(value, "weak_type", False)


_WRAPPERS = type(jax.jit(lambda: None)), jax.custom_jvp, jax.custom_vjp


def _reduced(function: Any) -> Any:
    """How a function that JAX has wrapped travels: by its name, or compiled anew, as its own way loses parts of it."""
    name, module = function.__qualname__, sys.modules.get(function.__module__)
    if function.__module__ != "__main__" and vars(module or object).get(name) is function:
        return name
    if isinstance(function, _WRAPPERS[1:]):
        return type(function), (function.fun,), dict(vars(function))
    state = function.__getstate__()
    return _jitted, (function.__wrapped__, state["static_argnums"], state["static_argnames"])


def _by_name(value: Any) -> Any:
    """How an object of a module of JAX travels."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "jax"]:
        for name, part in vars(module).items():
            if part is value:
                return attrgetter(name), (module,)
    return NotImplemented


def _jitted(function: Any, argnums: Sequence[int], argnames: Sequence[str]) -> Any:
    return jax.jit(function, static_argnums=argnums, static_argnames=argnames)


def _filed(folder: Path, checksum: Any, write: Callable[[Any], object]) -> str:
    """Writes a file that is named by its content, if there is none; returns the name."""
    path = folder / checksum.hexdigest()
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # In one step: a study that was killed while it wrote leaves no file of this name.
            part = path.with_suffix(f".{os.getpid()}")
            with part.open("wb") as file:
                write(file)
            part.replace(path)
        except OSError as error:
            raise StorageError(
                f"The data could not be written in {folder} ({error.strerror or error}): {remedy(error)} and start "
                "again; finished runs are kept."
            ) from error
    return path.name


def _versions() -> dict[str, str]:
    """What must be equal at both ends."""
    return {
        "Evenhand": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "JAX": jax.__version__,
    }


def _broken(error: BaseException) -> EvenhandError:
    return EvenhandError(
        f"study(executor=...): a worker ended abruptly, after which this executor takes no more tasks "
        f"({_in_words(error)}): give the workers more memory, and start the study again with a new executor. Finished "
        "runs are kept."
    )


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")[:300]


def _read(content: Any, cautions: Sequence[EvenhandWarning]) -> dict[int, Outcome]:
    """The outcomes in a worker's answer; its warnings are repeated here, and what it could not do is raised."""
    for caution in cautions:
        warn_caller(caution)
    if isinstance(content, Exception):
        raise content
    return pickle.loads(content)


# --- at a worker ----------------------------------------------------------------------------------------------

_TURN = Lock()
"""A worker with several threads trains one column at a time: warnings are caught for a whole process."""
_SHARED: dict[tuple[Any, ...], Any] = {}
"""What the columns of one study share, by the study's folder and its name: a worker reads it once."""


def train_column(task: bytes) -> bytes:
    """The task of a worker: trains a column of runs; what it cannot do is part of its answer, and is not raised."""
    with _TURN, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EvenhandWarning)
        try:
            answer: Any = _packed_outcomes(task)
        except EvenhandError as error:
            answer = error
        except ImportError as error:
            answer = EvenhandError(
                f"The worker on {socket.gethostname()} cannot import what the study uses ({error}): install it there, "
                "in the same version, and start the study again. Finished runs are kept."
            )
        except Exception as error:
            answer = EvenhandError(f"The worker on {socket.gethostname()} failed ({_in_words(error)}).")
            answer.add_note(traceback.format_exc())
    cautions = [warning.message for warning in caught if isinstance(warning.message, EvenhandWarning)]
    return pickle.dumps((answer, cautions))


def _packed_outcomes(task: bytes) -> bytes:
    check_process()  # before arrays arrive, for which a forked process would wait for ever
    versions, folder, chosen, packed = pickle.loads(task)
    for name, version in _versions().items():
        if versions[name] != version:
            raise EvenhandError(
                f"The worker on {socket.gethostname()} has {name} {version}, and the study {versions[name]}: install "
                "the same version."
            )
    # Not the study's folder alone: a worker may have one of that name on a disk of its own.
    if not (shared := Path(folder) / _SHARED_FILES).is_dir():
        raise EvenhandError(
            f"The worker on {socket.gethostname()} has no folder {shared}, which the study has made: give a folder "
            "on a file system that all workers share."
        )
    for name, value in chosen.items():  # which the script may have set, where no worker runs it
        jax.config.update(name, value)
    column, measure = _loaded(packed, folder)
    runs: list[Planned] = column.runs
    for place in column.wanted:
        _await(runs[place].job.checkpoint)
    measured = Measurements(measure, Store(Path(folder)))
    rows = trained(runs, column.wanted, measured)
    outcomes = {place: outcome for place, _, outcome in rows if outcome is not None}

    import cloudpickle  # an extra; pickle takes no read-only mapping, such as a setting without conditions

    return cloudpickle.dumps(outcomes)


def _loaded(packed: bytes, folder: str) -> Any:
    """The inverse of what :class:`Workers` packs, in a process that reads the study's folder."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return _shared(folder, pid)

    return Unpickler(io.BytesIO(packed)).load()


def _shared(folder: str, reference: tuple[Any, ...]) -> Any:
    """What a reference of :class:`Workers` stands for: one object for all columns of a study."""
    if any(key[0] != folder for key in _SHARED):  # an earlier study's
        _SHARED.clear()
    if (key := (folder, *reference)) not in _SHARED:
        kind, name, dtype = reference
        path = Path(folder) / _SHARED_FILES / name
        if kind == "data":
            value: Any = object.__new__(FederatedDataset)
            vars(value).update(_loaded(path.read_bytes(), folder))
        else:
            value = np.load(path, mmap_mode="r", allow_pickle=False).view(dtype)
            # Rows in files are streamed, to other bits: what was in memory must be there again.
            value = value if kind == "file" else copied(value)
            value = jnp.asarray(value) if kind == "device" else value
            if kind == "memory":
                value.setflags(write=False)
        _SHARED[key] = value
    return _SHARED[key]


def _await(place: Any) -> None:
    """Waits until no other process has a run: a worker whose study was killed, for example, may still train it."""
    assert isinstance(place, Checkpoint)
    while True:
        try:
            with held(place.folder):
                return
        except FolderInUse:
            time.sleep(1.0)
