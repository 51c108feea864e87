"""Gaussian noise on trees of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand.types import Array, Key, PyTree

__all__ = ["with_gaussian"]


def with_gaussian(key: Key, tree: PyTree, deviation: Array | float) -> PyTree:
    """The tree plus independent normal noise of this standard deviation on every number of it."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + (deviation * jax.random.normal(of, jnp.shape(leaf), jnp.float32)).astype(leaf.dtype)
        for of, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)
