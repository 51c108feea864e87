"""Keeping a run on disk, so that it can go on after the process died."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.simulation._engine import Program, one_round
from evenhand.simulation._round import RoundState, Rows
from evenhand.types import Key

__all__ = ["Checkpoints", "Snapshot", "identity"]

NDArray = npt.NDArray[Any]


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


class Checkpoints:
    """The latest snapshots of one run in a folder, written so that a kill at any moment leaves a whole one.

    Random draws are keyed by seed and round, so there is no generator to save.
    """

    def __init__(self, folder: str | Path, like: RoundState, identity: dict[str, Any]) -> None:
        # Imported here: it takes a second, and most runs keep no checkpoint.
        import orbax.checkpoint as ocp

        self._folder = Path(folder).absolute()
        self._like, self._identity, self._ocp = like, identity, ocp
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EvenhandError(f"No checkpoint can be kept in {folder}: {error.strerror}.") from error
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def load(self) -> Snapshot | None:
        """The latest snapshot, or None if there is none yet."""
        step = self._manager.latest_step()
        if step is None:
            return None
        ocp = self._ocp
        about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        for name, value in self._identity.items():
            if about["identity"].get(name) != value:
                raise EvenhandError(
                    f"The checkpoint in {self._folder} is of another run (its {name} is "
                    f"{about['identity'].get(name)}, not {value}): give another folder, or delete that one."
                )
        leaves, structure = jax.tree.flatten(self._like)
        shapes = {str(i): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)}
        restore = ocp.args.Composite(state=ocp.args.StandardRestore(shapes))
        arrays = self._manager.restore(step, args=restore)["state"]
        state = jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(leaves))])
        per_round = {
            name: np.array(values, np.dtype(about["dtypes"][name]))
            for name, values in about["per_round"].items()
        }
        return Snapshot(state, about["done"], about["history"], per_round, about["seconds"])

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot; when this returns, it is there, whole."""
        ocp = self._ocp
        about = {
            "identity": self._identity,
            "done": snapshot.done,
            "history": snapshot.history,
            "per_round": {name: values.tolist() for name, values in snapshot.per_round.items()},
            "dtypes": {name: str(values.dtype) for name, values in snapshot.per_round.items()},
            "seconds": snapshot.seconds,
        }
        arrays = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(snapshot.state))}
        whole = ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
        self._manager.save(snapshot.done, args=whole, force=True)
        self._manager.wait_until_finished()


def identity(
    program: Program, data: FederatedDataset, state: RoundState, rows: Rows, root: Key, seed: int
) -> dict[str, Any]:
    """What must be equal for a run to go on from a checkpoint."""
    digest = hashlib.sha256()
    for part in (data.train.offsets, data.train.y, data.test.offsets):
        digest.update(np.ascontiguousarray(part).tobytes())
    return {
        "seed": seed,
        "cohort": program.cohort,
        "data": digest.hexdigest()[:16],
        "method (with its settings, systems, attack and lanes)": _fingerprint(program, state, rows, root),
    }


def _fingerprint(program: Program, state: RoundState, rows: Rows, root: Key) -> str:
    """Of the computation that one round is, every constant in it included; addresses in memory left out."""
    traced = jax.make_jaxpr(partial(one_round, program))(state, rows, root, jnp.int32(0))
    digest = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(traced)).encode())
    for constant in traced.consts:
        digest.update(np.asarray(constant).tobytes())
    return digest.hexdigest()[:16]
