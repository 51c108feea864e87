"""Keeping a run on disk, so that it can continue after the process died."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, EvenhandWarning, StorageError
from evenhand.records import held, resealed, uninterrupted
from evenhand.rounds import RoundState
from evenhand.simulation._host_store import HostStore
from evenhand.simulation._segments import Segments
from evenhand.types import PyTree

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager

__all__ = ["Checkpoint", "Checkpoints", "Snapshot", "resealed"]

NDArray = npt.NDArray[Any]

_ABOUT = {"identity", "done", "history", "per_round", "dtypes", "seconds"}
"""What is saved beside the arrays."""
_CLIENTS = "clients"
"""The segments of the clients' states, where these are on the host."""
_LAST_ROUND = "last_round"
"""When each client last trained; missing in checkpoints of earlier versions."""
_STATE, _ALL = "sha256 of the state", "sha256"
"""Checksums: of the arrays, and of that and everything else."""


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


class Checkpoint(NamedTuple):
    """Where a run keeps its latest state, and how often it is saved.

    The last two states are kept, each with a checksum of all that is in it.  Where the newest is damaged, the run
    continues from the one before it, to the same numbers in the end, and a warning says so; where both are, it is
    refused.  Only one process at a time may run in a folder; a second one is refused.

    Attributes:
      folder: where; it is made when the run begins.
      seconds: time between two saves, longer in proportion where a save takes more than one second, so that saving
        stays below a share ``1 / seconds`` of the time.  A state is saved at an evaluation, and after the last round,
        however short the run was, so that more rounds can be added to it.  0: at each evaluation.
      fresh: begin anew, replacing the checkpoint of an earlier run, rather than continue from it.
      last: whether the state after the last round is saved, too, so that more rounds can be added to it.

    Example:
      >>> import tempfile, evenhand as eh
      >>> data, model = eh.testing.toy_data(), eh.testing.toy_model()
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=5))
      >>> place = Checkpoint(tempfile.mkdtemp())
      >>> run = eh.simulate(method, data, rounds=2, eval_every=1, checkpoint=place)
      >>> place.saved()
      [2]
      >>> longer = eh.simulation.iterate(method, data, rounds=4, eval_every=1, checkpoint=place)
      >>> [run.info["rounds"] for run in longer]
      [2, 3, 4]
    """

    folder: str | Path
    seconds: float = 10.0
    fresh: bool = False
    last: bool = True

    def saved(self) -> list[int]:
        """The number of rounds done in each saved state, ascending."""
        folder = Path(self.folder)
        found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in found if re.fullmatch("0|[1-9][0-9]{0,9}", name))


class Checkpoints:
    """The latest snapshots of one run in a folder, written so that a kill at any moment leaves a whole one.

    Random draws are keyed by seed and round, so that there is no generator to save, and nothing at all before the
    first round.
    """

    def __init__(
        self,
        place: str | Path | Checkpoint,
        like: RoundState,
        identity: Callable[[], dict[str, Any]],
        store: HostStore | None = None,
    ) -> None:
        self._place = place if isinstance(place, Checkpoint) else Checkpoint(place, seconds=0.0)
        self._folder = Path(self._place.folder).absolute()
        like = like._replace(
            last_round=()
        )  # which is saved beside the arrays, so that those are as they ever were
        self._like, self._identify = jax.eval_shape(lambda state: state, like), identity
        if not 0.0 <= self._place.seconds < math.inf:
            raise EvenhandError(f"Checkpoint(seconds={self._place.seconds}): give a number of at least 0.")
        _check_writable(self._folder)
        self._saved_at, self._cost = monotonic(), 0.0
        self._segments = Segments(self._folder / _CLIENTS, store)
        self._stale = self._place.saved() if self._place.fresh else []

    def held(self) -> AbstractContextManager[None]:
        """Keeps other processes out of the folder; the first process of a run does so for all of them."""
        return held(self._folder) if jax.process_index() == 0 else nullcontext()

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

    def load(self, one: PyTree = ()) -> Snapshot | None:
        """The latest snapshot that is whole, or None if there is none yet; ``one`` is the state of a new client."""
        steps = self._place.saved()[::-1]
        if self._place.fresh or not steps:
            return None
        identity, reasons = self._identity, list[str]()
        for step in steps:
            try:
                with uninterrupted():  # as while saving
                    found, is_old = self._read(step, identity, one)
            except EvenhandError as error:
                raise StorageError(*error.args) from None  # which no study may take for the result of a run
            except Exception as error:  # orbax and its stores raise whatever they like about damaged files
                reasons.append(_first_line(error))
                continue
            if reasons:
                self._stale = steps[: len(reasons)]
                _warn(
                    f"The newest state in {self._folder}, after round {steps[0]}, is damaged ({reasons[0]}): the run "
                    f"continues from the one after round {step}."
                )
            if is_old:
                _warn(
                    f"The checkpoint in {self._folder} was written by an earlier version of Evenhand, without "
                    f"checksums: damage to it would not be noticed."
                )
            return found
        raise StorageError(
            f"The checkpoint in {self._folder} is damaged ({reasons[0]}): delete what is in it to begin anew."
        )

    def _read(self, step: int, identity: Mapping[str, Any], one: PyTree) -> tuple[Snapshot, bool]:
        """The snapshot, as NumPy arrays, since the devices of the run that saved it may be gone; and whether it lacks
        checksums, as those of earlier versions do."""
        import orbax.checkpoint as ocp

        about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        is_old = set(about) == _ABOUT
        if not is_old and about[_ALL] != resealed(about)[_ALL]:
            raise ValueError("what is beside the arrays does not match its checksum")
        saved = about["identity"]
        for name, value in identity.items():
            if name in saved and saved[name] != value:  # what earlier versions did not save is not compared
                raise EvenhandError(
                    f"The checkpoint in {self._folder} is of another run (its {name} is {saved[name]}, not {value}): "
                    f"give another folder, or delete that one."
                )
        listed = about.get(_CLIENTS)
        leaves, structure = jax.tree.flatten(
            self._like if listed is None else self._like._replace(clients=())
        )
        like = {str(i): np.empty(leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)}
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        arrays = self._manager.restore(step, args=wanted)["state"]
        if not is_old and about[_STATE] != _checksum(arrays):
            raise ValueError("its arrays do not match their checksum")
        for i, leaf in enumerate(leaves):
            self._check_form(leaf, arrays[str(i)])
        if about["done"] != step:
            raise ValueError(f"it says that {about['done']} rounds are done")
        per_round = {
            name: np.array(values, np.dtype(about["dtypes"][name]))
            for name, values in about["per_round"].items()
        }
        state = jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(leaves))])
        clients = state.clients if listed is None else self._like.clients
        state = state._replace(clients=self._segments.restored(listed, clients, one))
        last = None if _LAST_ROUND not in about else np.array(about[_LAST_ROUND], np.int32)
        return Snapshot(state, step, about["history"], per_round, about["seconds"], last), is_old

    def _check_form(self, leaf: jax.ShapeDtypeStruct, saved: NDArray) -> None:
        """Whether an array of the state is whole: up to version 0.1.0, a few were not."""
        if (leaf.shape, leaf.dtype) == (saved.shape, saved.dtype):
            return
        axes = [(whole, part) for whole, part in zip(leaf.shape, saved.shape, strict=False) if whole != part]
        if len(leaf.shape) == saved.ndim and len(axes) == 1 and axes[0][0] % max(axes[0][1], 1) == 0:
            raise EvenhandError(
                f"The checkpoint in {self._folder} lacks a part of the aggregator's state: an earlier version of "
                f"Evenhand, on {axes[0][0] // max(axes[0][1], 1)} devices, saved only what the first one held. A run "
                f"cannot continue from it: begin anew in another folder, or delete that one."
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
        arrays = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(snapshot.state))}
        about = {
            "identity": self._identity,
            "done": snapshot.done,
            "history": snapshot.history,
            "per_round": {name: values.tolist() for name, values in snapshot.per_round.items()},
            "dtypes": {name: str(values.dtype) for name, values in snapshot.per_round.items()},
            "seconds": snapshot.seconds,
            _STATE: _checksum(arrays),
        }
        if snapshot.last_round is not None:
            about[_LAST_ROUND] = snapshot.last_round.tolist()
        # Threads of the store that are left behind by Ctrl-C complain on the user's screen.
        with uninterrupted():
            try:
                self._drop_stale()
                if (listed := self._segments.save(snapshot.done)) is not None:
                    about[_CLIENTS] = listed
                whole = ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(resealed(about))
                )
                self._manager.save(snapshot.done, args=whole, force=True)
                self._manager.wait_until_finished()
                self._segments.saved(listed)
            except Exception as error:  # orbax and its stores raise whatever they like about a full disk
                raise StorageError(
                    f"The state after round {snapshot.done} could not be saved in {self._folder} "
                    f"({_first_line(error)}): make room and run again; "
                    f"that continues from the last state that was saved."
                ) from error
        self._saved_at = monotonic()
        self._cost = self._saved_at - begin

    def _drop_stale(self) -> None:
        """Damaged and foreign states go when there is a better one to write, and no earlier."""
        listed = self._manager.all_steps()
        for step in self._stale:
            if step in listed:
                self._manager.delete(step)
            elif jax.process_index() == 0:  # too damaged for orbax to see, or gone already
                shutil.rmtree(self._folder / str(step), ignore_errors=True)
        self._stale = []


def _checksum(arrays: Mapping[str, NDArray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)  # no copy
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return (f"{error}".strip() or type(error).__name__).partition("\n")[0][:200]


def _warn(sentence: str) -> None:
    warnings.warn(sentence, EvenhandWarning, stacklevel=5)  # the line that called simulate()


def _check_writable(folder: Path) -> None:
    """Refuses at once what would fail at the first save, perhaps hours later."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise EvenhandError(
            f"No checkpoint can be kept in {folder}: {nearest} is not a folder that can be written to."
        )
