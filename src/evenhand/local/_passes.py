"""Reading a client's examples, and passes over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.lowering import lowered
from evenhand.types import Array, ClientData, Key, Model, Params, PyTree

__all__ = ["full_gradient", "full_loss", "losses_of", "rows_at"]

_CHUNK_NUMBERS = 2**17
"""About how many numbers one slice of a pass over a client's examples holds, to bound memory."""
_CHUNK_ROWS = (64, 512)
"""Fewest and most examples in a slice."""


def full_gradient(model: Model, params: Params, data: ClientData, key: Key | None = None) -> Params:
    r""":math:`\nabla F_k(w)`: the gradient of the mean loss over all of the client's examples, a tree like ``params``.

    With ``key`` the forward pass is the one for training (dropout), without it the one for evaluation.
    """
    count = jnp.maximum(data.size, 1).astype(jnp.float32)

    def add(total: Params, x: Array, y: Array, inside: Array, chunk: Array) -> Params:
        chunk_key = None if key is None else jax.random.fold_in(key, chunk)
        return tree.add(total, jax.grad(_sum_loss)(params, model, x, y, inside, chunk_key))

    return tree.scale(1.0 / count, _over_rows(data, tree.zeros_like(params), add))


def full_loss(model: Model, params: Params, data: ClientData) -> Array:
    r""":math:`F_k(w)`: the mean loss over all of the client's examples, a float32 scalar."""
    count = jnp.maximum(data.size, 1).astype(jnp.float32)

    def add(total: Array, x: Array, y: Array, inside: Array, chunk: Array) -> Array:
        return total + _sum_loss(params, model, x, y, inside, None)

    return _over_rows(data, jnp.float32(0.0), add) / count


def rows_at(data: ClientData, positions: Array) -> tuple[Array, Array]:
    """The inputs and labels of the client's examples at these positions."""
    if jax.default_backend() != "cpu":
        return data.x[data.start + positions], data.y[data.start + positions]
    # XLA:CPU gathers number by number and recomputes the index for each; a slice per row is a plain copy of memory.
    index = lax.optimization_barrier(data.start + positions)

    def copy(row: Array, batch: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(batch, lax.dynamic_slice_in_dim(data.x, index[row], 1), row, 0)

    batch = jnp.zeros((*index.shape, *data.x.shape[1:]), data.x.dtype)
    return lax.fori_loop(0, index.shape[0], copy, batch), data.y[index]


def _over_rows(
    data: ClientData, begin: PyTree, add: Callable[[PyTree, Array, Array, Array, Array], PyTree]
) -> PyTree:
    """Folds ``add(total, x, y, inside, chunk)`` over the client's examples, a slice at a time."""
    fewest, most = _CHUNK_ROWS
    fitting = _CHUNK_NUMBERS // max(1, math.prod(data.x.shape[1:]))
    width = min(max(fewest, min(fitting, most)), data.capacity)

    def body(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        chunk, total = carry
        positions = chunk * width + jnp.arange(width, dtype=jnp.int32)
        inside = positions < data.size
        x, y = rows_at(data, jnp.where(inside, positions, 0))
        return chunk + 1, add(total, x, y, inside, chunk)

    return lax.while_loop(lambda carry: carry[0] * width < data.size, body, (jnp.int32(0), begin))[1]


def losses_of(params: Params, model: Model, x: Array, y: Array, inside: Array, key: Key | None) -> Array:
    """The loss of each example, 0 where not ``inside``; with a ``key``, that of the forward pass for training."""
    if key is None or model.apply_train is None:
        outputs = lowered(model.apply)(params, x)
    else:
        outputs = lowered(model.apply_train)(params, x, key)
    return jnp.where(inside, model.losses(outputs, y), 0.0)


def _sum_loss(params: Params, model: Model, x: Array, y: Array, inside: Array, key: Key | None) -> Array:
    return jnp.sum(losses_of(params, model, x, y, inside, key))
