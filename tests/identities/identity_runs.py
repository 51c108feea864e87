"""Small runs that the identity tests share, each method compiled once."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import optax

import evenhand as eh
from evenhand.types import Algorithm

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
ROUNDS = 3
_BATCHES = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
_STEPS = eh.local.sgd(MODEL, 0.1, steps=3)
_EQUAL_WEIGHTS = eh.sampling.uniform(weighted=False)

METHODS: dict[str, Algorithm] = {
    "fedavg, batches": eh.algorithms.fedavg(_BATCHES),
    "fedavg keeping, batches": eh.algorithms.fedavg(_BATCHES, keep_partial=True),
    "fedprox 0, batches": eh.algorithms.fedprox(_BATCHES, mu=0.0),
    "fedprox 0.1, batches": eh.algorithms.fedprox(_BATCHES, mu=0.1),
    "fedavg": eh.algorithms.fedavg(_STEPS),
    "fedavg, equal weights": eh.algorithms.fedavg(_STEPS, sampling=_EQUAL_WEIGHTS),
    "fedavg, scheme A": eh.algorithms.fedavg(_STEPS, sampling=eh.sampling.proportional()),
    "fedavg, half a step": eh.algorithms.fedavg(_STEPS, server_opt=optax.sgd(0.5)),
    "fedavgm 0": eh.algorithms.fedavg(_STEPS, server_opt=eh.server_opt.fedavgm(momentum=0.0)),
    "fedavgm 0.9": eh.algorithms.fedavg(_STEPS, server_opt=eh.server_opt.fedavgm(momentum=0.9)),
    "fedprox 1": eh.algorithms.fedprox(_STEPS, mu=1.0),
    "fedprox adaptive from 1": eh.algorithms.fedprox_adaptive(_STEPS, mu0=1.0),
    "feddane 1": eh.algorithms.feddane(_STEPS, mu=1.0),
    "scaffold": eh.algorithms.scaffold(_STEPS),
}
SYSTEMS = {share: eh.systems.stragglers(share) for share in (0.0, 0.5, 1.0)}


def flat(params: Any) -> np.ndarray:
    """All numbers of a tree."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def runs(
    method: str,
    data: eh.data.FederatedDataset = DATA,
    *,
    rounds: int = ROUNDS,
    slow: float | None = None,
    cohort: int | None = None,
    seed: int = 0,
) -> list[eh.Run]:
    """The run before the first round and after each round."""
    systems = None if slow is None else SYSTEMS[slow]
    return list(
        eh.simulation.iterate(
            METHODS[method], data, rounds=rounds, cohort=cohort, seed=seed, eval_every=1, systems=systems
        )
    )


@cache
def path(method: str, slow: float | None = None, cohort: int | None = None, seed: int = 0) -> np.ndarray:
    """The parameters before each round and after the last, one row each."""
    return np.stack([flat(run.params) for run in runs(method, slow=slow, cohort=cohort, seed=seed)])


def gap(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference."""
    return float(np.abs(a - b).max())
