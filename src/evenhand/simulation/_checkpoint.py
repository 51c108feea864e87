"""Keeping a run on disk, so that it can continue after the process died.

:class:`Checkpoints` writes the latest states of one run; clients' states that are on the host are written in
:class:`Segments` of those that changed.  :func:`identity` distinguishes runs, so that none continues from the
checkpoint of another.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, lru_cache, partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand._jaxpr.hoist import inner_constants
from evenhand._version import __version__
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, EvenhandWarning, StorageError, warn_caller
from evenhand.evaluation.metrics import resolved
from evenhand.records import FolderInUse, held, is_sealed, resealed, uninterrupted
from evenhand.rounds import RoundState, malicious_clients, poisoned
from evenhand.simulation._job import Checkpoint, Execution, Job, check_job
from evenhand.simulation.engine import one_round
from evenhand.simulation.program import ById, Rows
from evenhand.simulation.setup import Setup, set_up
from evenhand.simulation.store import HostStore, NDArray, chunks
from evenhand.streams import root_key
from evenhand.types import Attack, ClientData, Key, Params, PyTree

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager


# --- the latest states of one run -------------------------------------------------------------------------------------

_ABOUT = {"identity", "done", "history", "per_round", "dtypes", "seconds"}
"""What is saved beside the arrays."""
_CLIENTS = "clients"
"""The segments of the clients' states, where these are on the host."""
_LAST_ROUND = "last_round"
"""When each client last trained; missing in checkpoints of earlier versions."""
_NO_START = {"start": "the model's own"}
"""Part of the identity of a run that has no other start; it is not saved."""
_STATE = "sha256 of the state"
"""The checksum of the arrays; one of that and of everything else is beside it."""
_METHOD = "method (with its settings, systems and attack)"
"""The part of a run's identity that is a traced program, which another version may trace otherwise."""
_MODEL = "model (its first parameters and its metrics)"
"""The part of a run's identity that a round does not show."""
_BEGINNING = "method (the states that it begins with)"
"""The part that a round is given, such as the noise in an aggregator's state; earlier versions did not save it."""
_MALICIOUS = "attack (its fraction and clients)"
"""The part of a study's identity that says who is malicious, which differs with the seed."""
_VERSIONS = "versions"
"""What traced it; missing in checkpoints of earlier versions."""


_IN_USE: dict[Path, Checkpoints] = {}
"""The folders in which runs of this process are."""


class Snapshot(NamedTuple):
    """All that a run needs to continue as if nothing had happened.

    Attributes:
      state: what the next round starts from.
      done: rounds done.
      history: one row per evaluation.
      per_round: what the method reported about each round, ``(done,)`` each.
      seconds: spent per activity.
      last_round: of the state, from which it is taken out; None: it was not saved, as by earlier versions.
    """

    state: RoundState
    done: int
    history: list[dict[str, float]]
    per_round: dict[str, NDArray]
    seconds: dict[str, float]
    last_round: NDArray | None = None


class Checkpoints:
    """The latest snapshots of one run in a folder, written so that a kill at any moment leaves a whole one.

    Random draws are keyed by seed and round, so that there is no generator to save, and nothing at all before the
    first round.
    """

    def __init__(self, setup: Setup, job: Job, place: str | Path | Checkpoint) -> None:
        self._place = place if isinstance(place, Checkpoint) else Checkpoint(place, seconds=0.0)
        self._folder = Path(self._place.folder).absolute()
        # Without the last rounds, which are saved beside the arrays, so that those are as they ever were.
        self._like, self._identify, self._rounds = setup.like, partial(identity, setup, job), job.rounds
        if not 0.0 <= self._place.seconds < math.inf:
            raise EvenhandError(f"Checkpoint(seconds={self._place.seconds}): give a number of at least 0.")
        _check_writable(self._folder)
        self._saved_at, self._cost = monotonic(), 0.0
        self._segments = Segments(self._folder / _CLIENTS, setup.store)
        self._stale = self._place.saved() if self._place.fresh else []

    @contextmanager
    def held(self) -> Generator[None]:
        """Keeps other runs out of the folder, of this process and of others, which the first of a run's processes does.

        Raises:
          FolderInUse: another run is in it.
        """
        folder = self._folder.resolve()
        # The lock of the operating system does not keep out its own process.
        if _IN_USE.setdefault(folder, self) is not self:
            raise FolderInUse(
                f"{self._folder} is in use by another run of this process: wait until that ends, close() it if it is "
                "one of iterate(), or give another folder."
            )
        try:
            with held(self._folder) if jax.process_index() == 0 else nullcontext():
                yield
        finally:
            del _IN_USE[folder]

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return self._identify()  # late and once, for it takes a trace of the whole round

    @cached_property
    def _manager(self) -> CheckpointManager:
        # Imported here: it takes half a second, and not every run keeps its state.
        import orbax.checkpoint as ocp

        self._folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        return ocp.CheckpointManager(self._folder, options=options)

    def load(self, newcomer: PyTree = ()) -> Snapshot | None:
        """The latest snapshot that is whole, or None if there is none; ``newcomer`` is the state of a new client."""
        steps = self._place.saved()[::-1]
        if self._place.fresh or not steps:
            return None
        if steps[0] > self._rounds:
            raise StorageError(
                f"The checkpoint in {self._folder} has {steps[0]} rounds done, more than rounds={self._rounds}: ask "
                f"for at least as many, or give another folder."
            )
        identity, reasons = self._identity, list[str]()
        for step in steps:
            try:
                with uninterrupted():  # as while saving
                    snapshot, is_old = self._read(step, identity, newcomer)
            except EvenhandError as error:
                raise StorageError(*error.args) from None  # which no study may take for the result of a run
            except Exception as error:  # orbax and its stores raise whatever they like about damaged files
                reasons.append(_first_line(error))
                continue
            if reasons:
                self._stale = steps[: len(reasons)]
                warn_caller(
                    EvenhandWarning(
                        f"The newest state in {self._folder}, after round {steps[0]}, is damaged ({reasons[0]}): the "
                        f"run continues from the one after round {step}."
                    )
                )
            if is_old:
                warn_caller(
                    EvenhandWarning(
                        f"The checkpoint in {self._folder} was written by an earlier version of Evenhand, without "
                        f"checksums: damage to it would not be noticed."
                    )
                )
            return snapshot
        raise StorageError(
            f"The checkpoint in {self._folder} is damaged ({reasons[0]}): delete its contents to start over."
        )

    def _read(self, step: int, identity: Mapping[str, Any], newcomer: PyTree) -> tuple[Snapshot, bool]:
        """The snapshot, as NumPy arrays, since the devices of the run that saved it may be gone; and whether it lacks
        checksums, as those of earlier versions do."""
        import orbax.checkpoint as ocp

        about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        is_old = set(about) == _ABOUT
        if not (is_old or is_sealed(about)):
            raise ValueError("the data beside the arrays do not match their checksum")
        saved = _NO_START | about["identity"]
        for name, value in (_NO_START | dict(identity)).items():
            if name in saved and saved[name] != value:  # what earlier versions did not save is not compared
                hint = _traced_by(about.get(_VERSIONS)) if name in (_METHOD, _MODEL, _BEGINNING) else ""
                raise EvenhandError(
                    f"The checkpoint in {self._folder} is of another run (its {name} is {saved[name]}, not {value}): "
                    f"give another folder, or delete that one.{hint}"
                )
        listed = about.get(_CLIENTS)
        saved_like = self._like if listed is None else self._like._replace(clients=())
        like = _numbered(saved_like, lambda leaf: np.empty(leaf.shape, leaf.dtype))
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        arrays = self._manager.restore(step, args=wanted)["state"]
        if not is_old and about[_STATE] != _checksum(arrays):
            raise ValueError("its arrays do not match their checksum")
        leaves, structure = jax.tree.flatten(saved_like)
        restored = [arrays[str(i)] for i in range(len(leaves))]
        for leaf, array in zip(leaves, restored, strict=True):
            self._check_form(leaf, array)
        if about["done"] != step:
            raise ValueError(f"it says that {about['done']} rounds are done")
        dtypes = about["dtypes"]
        per_round = {name: np.array(x, np.dtype(dtypes[name])) for name, x in about["per_round"].items()}
        state = jax.tree.unflatten(structure, restored)
        clients = state.clients if listed is None else self._like.clients
        state = state._replace(clients=self._segments.restored(listed, clients, newcomer))
        last = None if _LAST_ROUND not in about else np.array(about[_LAST_ROUND], np.int32)
        snapshot = Snapshot(
            state=state,
            done=step,
            history=about["history"],
            per_round=per_round,
            seconds=about["seconds"],
            last_round=last,
        )
        return snapshot, is_old

    def _check_form(self, leaf: jax.ShapeDtypeStruct, saved: NDArray) -> None:
        """Whether an array of the state is whole: up to version 0.1.0, a few were not."""
        if (leaf.shape, leaf.dtype) == (saved.shape, saved.dtype):
            return
        axes = [(whole, part) for whole, part in zip(leaf.shape, saved.shape, strict=False) if whole != part]
        if len(leaf.shape) == saved.ndim and len(axes) == 1 and axes[0][0] % max(axes[0][1], 1) == 0:
            raise EvenhandError(
                f"The checkpoint in {self._folder} lacks a part of the aggregator's state: an earlier version of "
                f"Evenhand, on {axes[0][0] // max(axes[0][1], 1)} devices, saved only what the first one held. A run "
                f"cannot continue from it: start over in another folder, or delete that one."
            )
        raise ValueError(f"it has an array {saved.shape} of {saved.dtype} for {leaf.shape} of {leaf.dtype}")

    def due(self, *, last: bool) -> bool:
        """Whether it is time to save; ``last``: after the last round."""
        # Clocks of several processes differ, and all of them must save together.
        seconds = self._place.seconds if jax.process_count() == 1 else 0.0
        return (last and self._place.last) or monotonic() - self._saved_at >= seconds * max(1.0, self._cost)

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot, which is complete when this returns.

        Raises:
          EvenhandError: it cannot be written, for instance because the disk is full; the one before it is kept.
        """
        import orbax.checkpoint as ocp

        begin = monotonic()
        arrays = _numbered(snapshot.state, np.asarray)
        about = {
            "identity": self._identity,
            "done": snapshot.done,
            "history": snapshot.history,
            "per_round": {name: values.tolist() for name, values in snapshot.per_round.items()},
            "dtypes": {name: str(values.dtype) for name, values in snapshot.per_round.items()},
            "seconds": snapshot.seconds,
            _VERSIONS: _versions(),
            _STATE: _checksum(arrays),
        }
        if snapshot.last_round is not None:
            about[_LAST_ROUND] = snapshot.last_round.tolist()
        # Threads of the store that are left behind by Ctrl-C complain on the user's screen.
        with uninterrupted():
            try:
                self._drop_stale()
                # The segments first: the state that lists them is whole only once they are on disk.
                if (listed := self._segments.save(snapshot.done)) is not None:
                    about[_CLIENTS] = listed
                whole = ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(resealed(about))
                )
                self._manager.save(snapshot.done, args=whole, force=True)
                self._manager.wait_until_finished()
                self._segments.saved(listed)
            except Exception as error:  # orbax and its stores raise whatever they like about a full disk
                cure = "free some space and run again" if _is_of_disk(error) else "run again"
                raise StorageError(
                    f"The state after round {snapshot.done} could not be saved in {self._folder} "
                    f"({_first_line(error)}): {cure}, which continues from the last saved state."
                ) from error
        self._saved_at = monotonic()
        self._cost = self._saved_at - begin

    def end(self) -> None:
        """After the last round: a fresh run that has saved nothing leaves no state of the run before it either."""
        if self._place.fresh and self._stale:
            with uninterrupted():
                self._drop_stale()
                if jax.process_index() == 0:  # no state is left that lists any of them
                    shutil.rmtree(self._folder / _CLIENTS, ignore_errors=True)

    def _drop_stale(self) -> None:
        """Damaged and foreign states go when there is a better one to write, and no earlier."""
        listed = self._manager.all_steps()
        for step in self._stale:
            if step in listed:
                self._manager.delete(step)
            elif jax.process_index() == 0:  # too damaged for orbax to see, or gone already
                shutil.rmtree(self._folder / str(step), ignore_errors=True)
        self._stale = []


def _numbered(tree: PyTree, array_of: Callable[[Any], NDArray]) -> dict[str, NDArray]:
    """Arrays of the leaves of a tree, by their numbers."""
    return {str(i): array_of(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _checksum(arrays: Mapping[str, NDArray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(_bytes(array))
    return digest.hexdigest()


def _bytes(array: NDArray) -> memoryview:
    """The bytes of an array, without a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _versions() -> dict[str, str]:
    return {"Evenhand": __version__, "JAX": jax.__version__}


def _traced_by(versions: Mapping[str, str] | None) -> str:
    """A sentence about the versions that saved a run, in which its method may be another program; "" if these did."""
    if versions == _versions():
        return ""
    names = (
        "the earlier version that"
        if versions is None
        else " and ".join(map(" ".join, versions.items())) + ", which"
    )
    return f" The same method may be a different program in another version: continue its run with {names} saved it."


def _first_line(error: Exception) -> str:
    return (f"{error}".strip() or type(error).__name__).partition("\n")[0][:200]


def _is_of_disk(error: Exception) -> bool:
    """Whether the system has refused to write."""
    # The stores of orbax raise a ValueError, with the number of the system's error in its text.
    return isinstance(error, OSError) or "os_error_code" in str(error)


def _check_writable(folder: Path) -> None:
    """Refuses at once what would fail at the first save, perhaps hours later."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise StorageError(
            f"No checkpoint can be kept in {folder}: {nearest} is not a folder that can be written to."
        )


# --- clients' states, in segments of those that changed between two saves ---------------------------------------------

_MOST_SAVED = 2
"""Saved states for each client that has one, before they are written anew."""


class Segments:
    """A folder of segments; the states at a save are those of its segments, in order, the later ones over the earlier.

    A save writes the states that have changed since the last one.  Where segments hold more than twice as many states
    as there are clients with one, it writes a single new one.  The two latest saves keep their segments.

    Args:
      folder: for the segments only.
      store: the states; None: they are on the device, and saved with everything else.
    """

    def __init__(self, folder: Path, store: HostStore | None) -> None:
        self._folder, self._store = folder, store
        self._listed: list[dict[str, Any]] = []
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        # All of them, until the second save: a checkpoint from which the run may continue lists some of these.
        self._kept = [names]

    def save(self, done: int) -> list[dict[str, Any]] | None:
        """Writes what has changed; all segments that now make the states, to be given to :meth:`restored`."""
        if (store := self._store) is None:
            return None
        listed, ids, touched = self._listed, np.flatnonzero(store.changed), np.flatnonzero(store.touched)
        if sum(segment["clients"] for segment in listed) + len(ids) > _MOST_SAVED * len(touched):
            listed, ids = [], touched
        return [*listed, self._write(store, f"{done:010d}", ids)] if len(ids) else listed

    def saved(self, listed: list[dict[str, Any]] | None) -> None:
        """These segments are those of a whole checkpoint; others that no checkpoint needs are deleted."""
        self._listed = listed or []
        if self._store is not None:
            self._store.settle()
        self._kept = [self._kept[-1], {segment["name"] for segment in self._listed}]
        needed = set[str]().union(*self._kept)
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def restored(self, listed: list[dict[str, Any]] | None, clients: PyTree, newcomer: PyTree) -> PyTree:
        """The clients' states of a checkpoint, where this run keeps them: in the store, or on the device.

        Args:
          listed: its segments; None: all states are in ``clients``.
          clients: leaves ``(N, ...)``, or the shapes of these.
          newcomer: the state of a new client.

        Raises:
          ValueError: a segment is damaged.
          OSError: it cannot be read.
        """
        store = self._store
        if listed is not None:
            if store is None:
                store = HostStore(newcomer, jax.tree.leaves(clients)[0].shape[0])
            # A newer state may have left its segments in the store before damage was found.
            store.reset()
            for segment in listed:
                self._read(store, segment)
            store.settle()
            self._listed = listed if self._store is not None else []
            return store.whole() if self._store is None else ()
        if store is None:
            return clients
        store.reset()
        store.put(np.arange(store.clients), clients)
        return ()

    def _write(self, store: HostStore, name: str, ids: NDArray) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        first = jax.process_index() == 0  # it writes for all processes of the run
        digest, part = hashlib.sha256(), self._folder / f"{name}.part" if first else Path(os.devnull)
        with part.open("wb") as file:

            def put(values: NDArray) -> None:
                digest.update(_bytes(values))
                file.write(_bytes(values))

            put(ids.astype("<i8"))
            for some in chunks(store, ids):
                for array in store.arrays:
                    put(array[some])
            # On disk before it gets its name, so that a segment with a name is a whole one.
            file.flush()
            if first:
                os.fsync(file.fileno())
        if first:
            part.replace(self._folder / name)
        return {"name": name, "clients": len(ids), "sha256": digest.hexdigest()}

    def _read(self, store: HostStore, segment: Mapping[str, Any]) -> None:
        digest, path = hashlib.sha256(), self._folder / segment["name"]
        with path.open("rb") as file:

            def get(shape: tuple[int, ...], dtype: Any) -> NDArray:
                values = np.empty(shape, dtype)
                if file.readinto(_bytes(values)) != values.nbytes:
                    raise ValueError(f"{path.name} of the clients' states is cut off")
                digest.update(_bytes(values))
                return values

            ids = get((segment["clients"],), "<i8")
            if len(ids) and not 0 <= ids.min() <= ids.max() < store.clients:
                raise ValueError(f"{path.name} of the clients' states has clients that do not exist")
            for some in chunks(store, ids):
                for array, newcomer in zip(store.arrays, store.newcomer, strict=True):
                    array[some] = get((len(some), *newcomer.shape), newcomer.dtype)
            store.touched[ids] = True
        if digest.hexdigest() != segment["sha256"]:
            raise ValueError(f"{path.name} of the clients' states does not match its checksum")


# --- what distinguishes runs ------------------------------------------------------------------------------------------

_SAMPLED_ROWS = 2**12
"""Rows under ``"data"``, all that earlier versions saved: theirs are still compared by these."""
_SAMPLED_CLIENTS = 4
"""Malicious clients by whose rows attacks are distinguished."""


def identify(job: Job) -> dict[str, Any]:
    """What must be equal for two jobs to be the same run, except the seed, under which a result is kept."""
    check_job(job)
    setup = set_up(job._replace(execution=Execution(devices=1, lanes=1, offload=False)))
    # Which clients are malicious depends on the seed: attacks are distinguished by what they do at seed 0.
    same = identity(setup, job._replace(seed=0))
    del same["seed"]
    if job.attack is not None:
        clients = job.attack.clients
        # In the types of JSON, which reads back no tuple and writes no number of NumPy.
        named = None if clients is None else [k if isinstance(k, str) else int(k) for k in clients]
        same[_MALICIOUS] = [float(job.attack.fraction), named]
    if metrics := resolved(job.metrics):  # no part of what is trained, but of what is kept of it
        same["metrics"] = [metric.name for metric in metrics]
    return same | {"rounds": job.rounds, "eval_every": job.eval_every}


def identity(setup: Setup, job: Job) -> dict[str, Any]:
    """What must be equal for a run to continue from a checkpoint."""
    data, digest = job.data, hashlib.sha256()
    for split in (data.train, data.valid, data.test):
        rows = np.linspace(0, split.rows - 1, min(split.rows, _SAMPLED_ROWS)).astype(np.int64)
        for part in (split.offsets, split.y, split.x[rows]):
            digest.update(_bytes(part))
    same: dict[str, Any] = {
        "seed": job.seed,
        "cohort": setup.program.cohort,
        "eval_clients": job.eval_clients,
        "untrained": job.untrained,
        "data": digest.hexdigest()[:16],
        "data (every row, and the clients' names)": data.fingerprint,
        "attack": _attack(job.attack, data, job.seed),
        _METHOD: _fingerprint(setup),
        _MODEL: _of_models(
            ById(setup.program),
            _form(data.train.x[:1]),
            _form(data.train.y[:1]),
            has_start=job.start is not None,
        ),
        _BEGINNING: _of_beginning(setup, data),
    }
    if job.start is not None:
        same["start"] = _checksum(_numbered(job.start, np.asarray))[:16]
    return same


def _fingerprint(setup: Setup) -> str:
    """Of the computation of one round, with every constant in it, but without addresses in memory.

    The lanes and devices are left out too, and whether clients change the device: they change rounding only, and a run
    may move to another machine.  So are masks, which change nothing.
    """
    program = setup.program._replace(lanes=1, mesh=None, masks=False, shifts=False)
    # Of shapes: the arrays may be gone, and runs whose data are of one form are one computation.
    like = jax.eval_shape(lambda *values: values, setup.like, setup.rows, setup.keys)
    leaves, structure = jax.tree.flatten(like)
    return _of_computation(ById(program), structure, tuple(leaves))


@lru_cache(maxsize=512)
def _of_computation(identity: ById, structure: Any, form: tuple[jax.ShapeDtypeStruct, ...]) -> str:
    program, (state, rows, keys) = identity.program, jax.tree.unflatten(structure, form)
    digest, adapt = hashlib.sha256(), program.algorithm.adapt
    traced = [jax.make_jaxpr(partial(one_round, program))(state, rows, keys, jnp.int32(0))]
    if adapt is not None:

        def adapted(state: RoundState, rows: Rows, key: Key) -> Params:
            data = ClientData(
                x=rows.x,
                y=rows.y,
                start=rows.starts[0],
                size=rows.sizes[0],
                progress=jnp.float32(1.0),
                capacity=program.capacity,
            )
            return adapt(program.algorithm.global_params(state.server), data, key)

        traced.append(jax.make_jaxpr(adapted)(state, rows, keys.shared))
    for jaxpr in traced:
        _add(digest, jaxpr)
    return digest.hexdigest()[:16]


def _of_beginning(setup: Setup, data: FederatedDataset) -> str:
    """Of the states before the first round, for any first parameters: a round's program does not show their numbers."""
    algorithm, digest = setup.program.algorithm, hashlib.sha256()
    params = jax.eval_shape(algorithm.model.init, root_key(0))
    _add(digest, jax.make_jaxpr(setup.begin)(params))
    if algorithm.pooled is not None:
        _add(digest, jax.make_jaxpr(algorithm.pooled)(params, *map(_form, (data.train.x, data.train.y))))
    return digest.hexdigest()[:16]


def _form(rows: NDArray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(rows.shape, jax.dtypes.canonicalize_dtype(rows.dtype))


@lru_cache(maxsize=512)
def _of_models(identity: ById, x: jax.ShapeDtypeStruct, y: jax.ShapeDtypeStruct, *, has_start: bool) -> str:
    """Of what a round does not show of the models: how they begin, and what is measured of them."""
    algorithm, digest = identity.program.algorithm, hashlib.sha256()
    if not has_start:
        # Without constants: an unseeded PyTorch module begins with other weights in each process, and its run continues
        # from the weights in the checkpoint.
        _add(digest, jax.make_jaxpr(algorithm.model.init)(root_key(0)), constants=False)
    for model in (algorithm.model, *(level.model for level in algorithm.levels)):
        outputs = jax.eval_shape(lambda x, model=model: model.apply(model.init(root_key(0)), x), x)
        for name, metric in sorted(model.metrics.items()):
            digest.update(name.encode())
            _add(digest, jax.make_jaxpr(metric)(outputs, y))
    return digest.hexdigest()[:16]


def _add(digest: Any, jaxpr: Any, *, constants: bool = True) -> None:
    """A traced program with every constant in it, unless they are not to count, but without addresses in memory."""
    # Not str(), which has colours where the standard output is a terminal or a notebook.
    text = jaxpr.pretty_print(use_color=False, width=80)
    digest.update(re.sub(r"0x[0-9a-f]+", "", text).encode())
    for constant in inner_constants(jaxpr) if constants else ():
        digest.update(constant)


def _attack(attack: Attack | None, data: FederatedDataset, seed: int) -> str:
    """Of the malicious clients and the poisoned rows of some; uploads and reports are part of the computation."""
    if attack is None:
        return "none"
    malicious = malicious_clients(attack, data.client_ids, seed)
    digest = hashlib.sha256(malicious.tobytes())
    if attack.rows is not None:
        for client in np.flatnonzero(malicious)[:_SAMPLED_CLIENTS]:
            rows = slice(*data.train.offsets[client : client + 2])
            for part in poisoned(attack.rows, data.train.x[rows], data.train.y[rows], seed, int(client)):
                digest.update(_bytes(part))
    return digest.hexdigest()[:16]
