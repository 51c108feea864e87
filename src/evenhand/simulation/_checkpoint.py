"""Keeping a run on disk, so that it can go on after the process died."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.simulation._engine import one_round
from evenhand.simulation._hoist import inner_constants
from evenhand.simulation._liars import liars_of, poisoned
from evenhand.simulation._round import RoundState, Rows
from evenhand.simulation._setup import Setup
from evenhand.simulation._signals import uninterrupted
from evenhand.types import Attack, ClientData, Key, Params

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager

__all__ = ["Checkpoint", "Checkpoints", "Snapshot", "identity"]

NDArray = npt.NDArray[Any]

_ABOUT = ("identity", "done", "history", "per_round", "dtypes", "seconds")
"""What is saved beside the arrays."""

_SAMPLE = 2**12
"""Rows by which data are told apart; all of them may be more than fits into memory."""
_LIARS = 4
"""Liars by whose rows attacks are told apart."""


class Snapshot(NamedTuple):
    """All that a run needs to go on as if nothing had happened.

    Attributes:
      state: what the next round starts from.
      done: rounds done.
      history: one row per evaluation.
      per_round: what the method told about each round, ``(done,)`` each.
      seconds: spent per activity.
    """

    state: RoundState
    done: int
    history: list[dict[str, float]]
    per_round: dict[str, NDArray]
    seconds: dict[str, float]


class Checkpoint(NamedTuple):
    """Where a run keeps its latest state, and how often it is saved.

    Attributes:
      folder: the place; it is made when the first state is saved.
      seconds: time between two saves, longer in proportion where a save takes more than one second, so that saving
        stays below a share ``1 / seconds`` of the time.  A state is saved at an evaluation, and after the last round
        unless the whole run was shorter than this.  0: at each evaluation.
      fresh: begin anew, replacing the checkpoint of an earlier run, rather than go on from it.

    Example:
      >>> import tempfile, evenhand as eh, optax
      >>> data, model = eh.testing.toy_data(), eh.testing.toy_model()
      >>> method = eh.algorithms.fedavg(model, client_opt=optax.sgd(0.1), epochs=1, batch_size=5)
      >>> place = Checkpoint(tempfile.mkdtemp(), seconds=0.0)
      >>> run = eh.simulate(method, data, rounds=2, eval_every=1, checkpoint=place)
      >>> longer = eh.simulation.iterate(method, data, rounds=4, eval_every=1, checkpoint=place)
      >>> [run.info["rounds"] for run in longer]
      [2, 3, 4]
    """

    folder: str | Path
    seconds: float = 10.0
    fresh: bool = False


class Checkpoints:
    """The latest snapshots of one run in a folder, written so that a kill at any moment leaves a whole one.

    Random draws are keyed by seed and round, so there is no generator to save; nor is there anything to save before
    the first round.
    """

    def __init__(
        self, place: str | Path | Checkpoint, like: RoundState, identity: Callable[[], dict[str, Any]]
    ) -> None:
        self._place = place if isinstance(place, Checkpoint) else Checkpoint(place, seconds=0.0)
        self._folder = Path(self._place.folder).absolute()
        self._like, self._identify = jax.eval_shape(lambda state: state, like), identity
        if not 0.0 <= self._place.seconds < math.inf:
            raise EvenhandError(f"Checkpoint(seconds={self._place.seconds}): give a number of at least 0.")
        _check_writable(self._folder)
        self._saved_at, self._cost, self._kept = monotonic(), 0.0, False

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return self._identify()  # late and once, for it takes a trace of the whole round

    @cached_property
    def _manager(self) -> CheckpointManager:
        # Imported here: it takes half a second, and most runs are over before their first save.
        import orbax.checkpoint as ocp

        self._folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        manager = ocp.CheckpointManager(self._folder, options=options)
        if self._place.fresh:
            for step in manager.all_steps():
                manager.delete(step)
        return manager

    def load(self) -> Snapshot | None:
        """The latest snapshot, or None if there is none yet."""
        if self._place.fresh or not self._folder.exists():
            return None
        step = self._manager.latest_step()
        if step is None:
            return None
        about = self._about(step)
        for name, value in self._identity.items():
            if about["identity"].get(name) != value:
                raise EvenhandError(
                    f"The checkpoint in {self._folder} is of another run (its {name} is "
                    f"{about['identity'].get(name)}, not {value}): give another folder, or delete that one."
                )
        per_round = {
            name: np.array(values, np.dtype(about["dtypes"][name]))
            for name, values in about["per_round"].items()
        }
        self._kept = True
        return Snapshot(self._state(step), about["done"], about["history"], per_round, about["seconds"])

    def _about(self, step: int) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        with self._readable():
            about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))[
                "about"
            ]
            return {name: about[name] for name in _ABOUT}

    def _state(self, step: int) -> RoundState:
        """As NumPy arrays: the devices of the run that saved it may be gone."""
        import orbax.checkpoint as ocp

        leaves, structure = jax.tree.flatten(self._like)
        like = {str(i): np.empty(leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)}
        with self._readable():
            wanted = ocp.args.Composite(state=ocp.args.StandardRestore(like))
            arrays = self._manager.restore(step, args=wanted)["state"]
        return jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(leaves))])

    @contextmanager
    def _readable(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # orbax and its stores raise whatever they like about damaged files
            reason = f"{error}".strip().partition("\n")[0][:200]
            raise EvenhandError(
                f"The checkpoint in {self._folder} is damaged ({reason}): delete what is in it to begin anew."
            ) from error

    def due(self, *, last: bool) -> bool:
        """Whether it is time to save; ``last``: after the last round."""
        # Clocks of several processes differ, and all of them must save together.
        seconds = self._place.seconds if jax.process_count() == 1 else 0.0
        return (last and self._kept) or monotonic() - self._saved_at >= seconds * max(1.0, self._cost)

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot; when this returns, it is there, whole."""
        import orbax.checkpoint as ocp

        begin = monotonic()
        about = {
            "identity": self._identity,
            "done": snapshot.done,
            "history": snapshot.history,
            "per_round": {name: values.tolist() for name, values in snapshot.per_round.items()},
            "dtypes": {name: str(values.dtype) for name, values in snapshot.per_round.items()},
            "seconds": snapshot.seconds,
        }
        arrays = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(snapshot.state))}
        whole = ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
        # Threads of the store that are left behind by Ctrl-C complain on the user's screen.
        with uninterrupted():
            self._manager.save(snapshot.done, args=whole, force=True)
            self._manager.wait_until_finished()
        self._saved_at = monotonic()
        self._cost, self._kept = self._saved_at - begin, True


def _check_writable(folder: Path) -> None:
    """Refuses at once what would fail at the first save, perhaps hours later."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise EvenhandError(f"No checkpoint can be kept in {folder}: {there} is no folder to write to.")


def identity(setup: Setup, data: FederatedDataset, seed: int) -> dict[str, Any]:
    """What must be equal for a run to go on from a checkpoint."""
    digest = hashlib.sha256()
    for split in (data.train, data.valid, data.test):
        rows = np.linspace(0, split.rows - 1, min(split.rows, _SAMPLE)).astype(np.int64)
        for part in (split.offsets, split.y, split.x[rows]):
            digest.update(np.ascontiguousarray(part).tobytes())
    return {
        "seed": seed,
        "cohort": setup.program.cohort,
        "data": digest.hexdigest()[:16],
        "attack": _lies(setup.program.attack, data, seed),
        "method (with its settings, systems and attack)": _fingerprint(setup),
    }


def _fingerprint(setup: Setup) -> str:
    """Of the computation that one round is, every constant in it included; addresses in memory left out.

    The lanes and devices are left out too: they change rounding only, and a run may move to another machine.
    """
    program = setup.program._replace(lanes=1, mesh=None)
    state, rows = jax.eval_shape(lambda *values: values, setup.state, setup.rows)  # the arrays may be gone

    digest, adapt = hashlib.sha256(), program.algorithm.adapt
    traced = [jax.make_jaxpr(partial(one_round, program))(state, rows, setup.root, jnp.int32(0))]
    if adapt is not None:

        def adapted(state: RoundState, rows: Rows, key: Key) -> Params:
            data = ClientData(
                rows.x, rows.y, rows.starts[0], rows.sizes[0], jnp.float32(1.0), program.capacity
            )
            return adapt(program.algorithm.global_params(state.server), data, key)

        traced.append(jax.make_jaxpr(adapted)(state, rows, setup.root))
    for each in traced:
        digest.update(re.sub(r"0x[0-9a-f]+", "", str(each)).encode())
        for constant in inner_constants(each):
            digest.update(constant)
    return digest.hexdigest()[:16]


def _lies(attack: Attack | None, data: FederatedDataset, seed: int) -> str:
    """Of who lies, and of the poisoned rows of the first of them; uploads and reports are in the computation."""
    if attack is None:
        return "none"
    liars = liars_of(attack, len(data.train.sizes), seed)
    digest = hashlib.sha256(liars.tobytes())
    if attack.rows is None:
        return digest.hexdigest()[:16]
    for client in np.flatnonzero(liars)[:_LIARS]:
        rows = slice(*data.train.offsets[client : client + 2])
        for part in poisoned(attack.rows, data.train.x[rows], data.train.y[rows], seed, int(client)):
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]
