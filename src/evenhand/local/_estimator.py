"""The gradient of a client's loss, estimated on a batch of its examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp

from evenhand.local._batches import Batch
from evenhand.local._passes import full_gradient, losses_of
from evenhand.types import Array, Key, Model, Params, Risk

__all__ = ["Estimator", "RowRisk", "batch_gradient"]

Estimator: TypeAlias = Callable[[Params, Batch, Key], Params]
"""``(params, batch, key) -> gradient``; the key is for dropout and noise."""

RowRisk: TypeAlias = Risk | Callable[[Array], Risk]
"""A risk over the examples of a batch, or a function of the batch's labels that gives one."""


def batch_gradient(model: Model, risk: RowRisk | None = None) -> Estimator:
    r""":math:`\nabla F_k(w; b)`, the gradient of the mean loss over the batch, or of another risk of its losses.

    Args:
      model: gives the losses.
      risk: the risk of a batch's losses; None: their mean.  Except for the mean, the risk of a batch is a biased
        estimate of that of all examples.
    """
    slope = jax.jit(jax.grad(partial(_batch_loss, model, risk)))  # traced once, however often the work is

    def estimate(params: Params, batch: Batch, key: Key) -> Params:
        if batch.positions is None and risk is None:
            return full_gradient(model, params, batch.data, key)
        return slope(params, *batch.read(), key)

    return estimate


def _batch_loss(
    model: Model, risk: RowRisk | None, params: Params, x: Array, y: Array, inside: Array, key: Key
) -> Array:
    losses = losses_of(params, model, x, y, inside, key)
    if risk is None:
        return jnp.sum(losses) / jnp.maximum(jnp.sum(inside), 1).astype(jnp.float32)
    return (risk if isinstance(risk, Risk) else risk(y)).value(losses, inside.astype(losses.dtype))
