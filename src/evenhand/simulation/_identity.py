"""What distinguishes runs, so that none continues from the checkpoint of another."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.data import FederatedDataset
from evenhand.rounds import RoundState, malicious_clients, poisoned
from evenhand.simulation._hoist import inner_constants
from evenhand.simulation._served import Untrained
from evenhand.simulation.engine import one_round
from evenhand.simulation.program import ById, Rows
from evenhand.simulation.setup import Setup
from evenhand.types import Attack, ClientData, Key, Params

__all__ = ["identity"]

_SAMPLE = 2**12
"""Rows under ``"data"``, all that earlier versions saved: theirs are still compared by these."""
_MALICIOUS = 4
"""Malicious clients by whose rows attacks are distinguished."""


def identity(
    setup: Setup, data: FederatedDataset, seed: int, eval_clients: int | None, untrained: Untrained
) -> dict[str, Any]:
    """What must be equal for a run to continue from a checkpoint."""
    digest = hashlib.sha256()
    for split in (data.train, data.valid, data.test):
        rows = np.linspace(0, split.rows - 1, min(split.rows, _SAMPLE)).astype(np.int64)
        for part in (split.offsets, split.y, split.x[rows]):
            digest.update(np.ascontiguousarray(part).tobytes())
    return {
        "seed": seed,
        "cohort": setup.program.cohort,
        "eval_clients": eval_clients,
        "untrained": untrained,
        "data": digest.hexdigest()[:16],
        "data (every row, and the clients' names)": data.fingerprint,
        "attack": _attack(setup.program.attack, data, seed),
        "method (with its settings, systems and attack)": _fingerprint(setup),
    }


def _fingerprint(setup: Setup) -> str:
    """Of the computation of one round, with every constant in it, but without addresses in memory.

    The lanes and devices are left out too: they change rounding only, and a run may move to another machine.
    """
    program = setup.program._replace(lanes=1, mesh=None)
    # Of shapes: the arrays may be gone, and runs whose data are of one form are one computation.
    like = jax.eval_shape(lambda *values: values, setup.like, setup.rows, setup.keys)
    leaves, structure = jax.tree.flatten(like)
    return _of_computation(ById(program), structure, tuple(leaves))


@lru_cache(maxsize=512)
def _of_computation(of: ById, structure: Any, form: tuple[jax.ShapeDtypeStruct, ...]) -> str:
    program, (state, rows, keys) = of.program, jax.tree.unflatten(structure, form)
    digest, adapt = hashlib.sha256(), program.algorithm.adapt
    traced = [jax.make_jaxpr(partial(one_round, program))(state, rows, keys, jnp.int32(0))]
    if adapt is not None:

        def adapted(state: RoundState, rows: Rows, key: Key) -> Params:
            data = ClientData(
                rows.x, rows.y, rows.starts[0], rows.sizes[0], jnp.float32(1.0), program.capacity
            )
            return adapt(program.algorithm.global_params(state.server), data, key)

        traced.append(jax.make_jaxpr(adapted)(state, rows, keys.shared))
    for each in traced:
        # Not str(), which has colours where the standard output is a terminal or a notebook.
        text = each.pretty_print(use_color=False, width=80)
        digest.update(re.sub(r"0x[0-9a-f]+", "", text).encode())
        for constant in inner_constants(each):
            digest.update(constant)
    return digest.hexdigest()[:16]


def _attack(attack: Attack | None, data: FederatedDataset, seed: int) -> str:
    """Of the malicious clients and the poisoned rows of some; uploads and reports are part of the computation."""
    if attack is None:
        return "none"
    malicious = malicious_clients(attack, data.client_ids, seed)
    digest = hashlib.sha256(malicious.tobytes())
    if attack.rows is None:
        return digest.hexdigest()[:16]
    for client in np.flatnonzero(malicious)[:_MALICIOUS]:
        rows = slice(*data.train.offsets[client : client + 2])
        for part in poisoned(attack.rows, data.train.x[rows], data.train.y[rows], seed, int(client)):
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]
