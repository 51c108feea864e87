"""What each client, or each of a sample of them, is served: losses and metrics with the model that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from evenhand.data import FederatedDataset, Split
from evenhand.data._memory import aligned, empty_aligned
from evenhand.evaluation import Prepared, evaluate_personal, is_higher_better, per_client, summarize
from evenhand.evaluation._flat import spread
from evenhand.simulation._program import here
from evenhand.simulation._round import RoundState
from evenhand.simulation._rows import Resident, must_stream, sent
from evenhand.simulation._run import primary_metric
from evenhand.simulation._setup import Setup
from evenhand.streams import Purpose
from evenhand.types import Array, Params, PyTree

__all__ = ["Evaluation"]

NDArray = npt.NDArray[Any]


class Evaluation:
    """All splits of all clients, or of as many as are drawn once for the whole run.

    Attributes:
      drawn: who is evaluated, ascending; None: all.
    """

    def __init__(self, setup: Setup, data: FederatedDataset, seed: int, clients: int | None) -> None:
        program = setup.program
        self.algorithm, self.lanes = program.algorithm, program.lanes
        self.drawn = _drawn(data.num_clients, seed, clients)
        mesh = self._mesh = _local(program.mesh)
        poisoned = program.attack is not None and program.attack.rows is not None
        self.splits: dict[str, Prepared] = {}
        for name, split in (("train", data.train), ("valid", data.valid), ("test", data.test)):
            there = setup.source.rows if name == "train" and isinstance(setup.source, Resident) else None
            if there is not None and self.drawn is None and not poisoned:  # liars are measured on clean rows
                x, y = here((there.x, there.y)) if mesh is None else spread(mesh, (there.x, there.y))
                self.splits[name] = Prepared(x, y, split.offsets, None, mesh)
            else:
                host = must_stream(split) if there is None else False
                self.splits[name] = _prepared(split, self.drawn, mesh, host=host)

    def _personal(self, states: PyTree, k: Array) -> Params:
        server, clients = states
        assert self.algorithm.personal_params is not None
        return self.algorithm.personal_params(server, jax.tree.map(lambda leaf: leaf[k], clients))

    def clients(self, state: RoundState) -> dict[str, dict[str, NDArray]]:
        """Split -> metric -> a number for each client that is evaluated."""
        model = self.algorithm.model
        if self._mesh is None:
            state = here(state)
        if self.algorithm.personal_params is None:
            params = self.algorithm.global_params(state.server)
            return {name: per_client(model, params, split) for name, split in self.splits.items()}
        states = (state.server, state.clients)
        return {
            name: evaluate_personal(model, states, split, params_of=self._personal, lanes=self.lanes)
            for name, split in self.splits.items()
        }

    def columns(self, clients: Mapping[str, Mapping[str, NDArray]]) -> dict[str, float]:
        """What the history keeps of them."""
        columns: dict[str, float] = {}
        for split, metrics in clients.items():
            sizes = self.splits[split].sizes
            if not sizes.any():
                continue
            for name, values in metrics.items():
                has = sizes > 0
                columns[f"{split}_{name}"] = float(np.average(values[has], weights=sizes[has]))
            name = primary_metric(metrics)
            spread = summarize(metrics[name], sizes, higher_is_better=is_higher_better(name))
            columns |= {f"{split}_{name}_{what}": spread[what] for what in ("worst10", "best10", "variance")}
        return columns


def _drawn(clients: int, seed: int, asked: int | None) -> NDArray | None:
    if asked is None or asked >= clients:
        return None
    rng = np.random.default_rng((seed, int(Purpose.EVALUATION)))
    return np.sort(rng.choice(clients, asked, replace=False))


def _local(mesh: Mesh | None) -> Mesh | None:
    """The devices of this process; None for one."""
    own = None if mesh is None else mesh.local_mesh
    return None if own is None or own.size == 1 else own


def _prepared(split: Split, clients: NDArray | None, mesh: Mesh | None, *, host: bool) -> Prepared:
    if clients is not None:
        split = _some(split, clients)
        host = must_stream(split)
    if host:
        return Prepared(np.asarray(split.x), np.asarray(split.y), split.offsets, clients, mesh)
    x, y = sent(mesh, (aligned(split.x), aligned(split.y)))
    return Prepared(x, y, split.offsets, clients, mesh)


def _some(split: Split, clients: NDArray) -> Split:
    """The rows of some clients only."""
    sizes = split.sizes[clients]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    index = np.repeat(split.offsets[clients] - offsets[:-1], sizes) + np.arange(offsets[-1])
    parts: list[NDArray] = []
    for part in (split.x, split.y):
        taken = empty_aligned((len(index), *part.shape[1:]), part.dtype)
        parts.append(
            np.take(np.asarray(part), index, axis=0, out=taken, mode="clip") if len(index) else taken
        )
    return Split(parts[0], parts[1], offsets)
