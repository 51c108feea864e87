"""What can be wrong with a simulation before it starts, each in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.streams import MAX_ROUNDS
from evenhand.types import Algorithm, Array, Model

__all__ = ["check_first_losses", "check_model", "check_numbers"]


def check_numbers(
    algorithm: Algorithm,
    data: FederatedDataset,
    rounds: int,
    cohort: int | None,
    eval_every: int,
    lanes: int | None,
) -> int | None:
    """The cohort, no larger than there are clients."""
    if not 0 <= rounds < MAX_ROUNDS:
        raise EvenhandError(f"rounds={rounds}: give a number from 0 to {MAX_ROUNDS - 1}.")
    for name, value in (("cohort", cohort), ("eval_every", eval_every), ("lanes", lanes)):
        if value is not None and value < 1:
            raise EvenhandError(f"{name}={value}: it must be at least 1.")
    params = jax.eval_shape(algorithm.model.init, jax.random.key(0))
    stateful = bool(jax.tree.leaves(jax.eval_shape(algorithm.init_client, params)))
    if algorithm.sampling.repeats and stateful:
        raise EvenhandError(
            "This method keeps a state at each client, and its sampling can draw a client twice in one round: "
            "sample without replacement, e.g. sampling=eh.sampling.uniform()."
        )
    return None if cohort is None else min(cohort, data.num_clients)


def check_model(model: Model, data: FederatedDataset) -> None:
    """The model takes the data's rows and gives one loss per row."""
    x, y = jnp.asarray(data.train.x[:2]), jnp.asarray(data.train.y[:2])

    def losses(x: Array, y: Array) -> Array:
        return model.losses(model.apply(model.init(jax.random.key(0)), x), y)

    try:
        shape = jax.eval_shape(losses, x, y).shape
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EvenhandError(
            f"The model does not fit the data {data.name!r}, whose rows are {x.dtype}{list(x.shape[1:])} with labels "
            f"{y.dtype}{list(y.shape[1:])}: give a model for such rows ({reason})."
        ) from error
    if shape != (x.shape[0],):
        raise EvenhandError(
            f"The model's losses have shape {shape} for {x.shape[0]} rows: they must be one number per row, unreduced."
        )


def check_first_losses(clients: Mapping[str, Mapping[str, Any]], data: FederatedDataset) -> None:
    """The initial model has a finite loss at every client: labels out of the model's range show here."""
    for split, sizes in (("train", data.train.sizes), ("valid", data.valid.sizes), ("test", data.test.sizes)):
        bad = np.flatnonzero(~np.isfinite(clients[split]["loss"]) & (sizes > 0))
        if len(bad):
            name, count = data.client_ids[bad[0]], f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise EvenhandError(
                f"Client {name!r}{count} has {split} rows on which the initial model's loss is not finite: check that "
                f"its labels lie in the model's range and its features are of ordinary size."
            )
