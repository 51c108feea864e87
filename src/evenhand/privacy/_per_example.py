"""Sums of clipped gradients, one for each example."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.types import Array, Key, Model, Params

__all__ = ["clipped_sum"]


def clipped_sum(
    model: Model,
    params: Params,
    x: Array,
    y: Array,
    inside: Array,
    key: Key,
    *,
    clip: Array | float,
    divided_by: Params | None = None,
) -> tuple[Params, Array]:
    """The sum of the clipped gradients of the examples inside, and their norms."""

    def one(x: Array, y: Array, inside: Array, key: Key) -> tuple[Params, Array]:
        def loss(params: Params) -> Array:
            if model.apply_train is None:
                return model.losses(model.apply(params, x[None]), y[None])[0]
            return model.losses(model.apply_train(params, x[None], key), y[None])[0]

        gradient = jax.grad(loss)(params)
        if divided_by is not None:
            gradient = jax.tree.map(lambda g, d: g / d, gradient, divided_by)
        norm = tree.norm(gradient)
        scaled = tree.scale(jnp.minimum(1.0, clip / jnp.maximum(norm, 1e-30)), gradient)
        return tree.select(inside & jnp.isfinite(norm), scaled, tree.zeros_like(scaled)), norm

    sums, norms = jax.vmap(one)(x, y, inside, jax.random.split(key, x.shape[0]))
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums), norms
