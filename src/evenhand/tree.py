"""Arithmetic on trees of arrays, where ``jax.tree.map`` alone would be clutter."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from evenhand.types import Array, PyTree

__all__ = [
    "add",
    "among",
    "divide",
    "form",
    "mix",
    "norm",
    "real",
    "scale",
    "select",
    "stack",
    "subtract",
    "take",
    "weighted_mean",
    "widened",
    "zeros",
    "zeros_like",
]


def form(tree: PyTree) -> tuple[Any, tuple[Hashable, ...]]:
    """The structure of a tree, and the shape and dtype of each of its arrays; equal for trees of one form."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def zeros(shapes: PyTree) -> PyTree:
    """A tree of zeros of these shapes and dtypes, such as a result of ``jax.eval_shape``."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def stack(trees: Sequence[PyTree]) -> PyTree:
    """One tree of trees of one form, with a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def zeros_like(tree: PyTree) -> PyTree:
    """A tree of zeros with the structure, shapes and dtypes of ``tree``."""
    return jax.tree.map(jnp.zeros_like, tree)


def add(a: PyTree, b: PyTree) -> PyTree:
    """``a + b``, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: PyTree, b: PyTree) -> PyTree:
    """``a - b``, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def divide(a: PyTree, b: PyTree) -> PyTree:
    """``a / b``, leaf by leaf."""
    return jax.tree.map(jnp.divide, a, b)


def scale(factor: Array | float, tree: PyTree) -> PyTree:
    """``factor * tree``; each leaf keeps its dtype."""
    return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), tree)


def real(tree: PyTree) -> PyTree:
    """``tree`` with whole numbers and truth values in float32; other leaves stay as they are."""

    def as_real(leaf: Array) -> Array:
        return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(jnp.float32)

    return jax.tree.map(as_real, tree)


def widened(tree: PyTree) -> PyTree:
    """``tree`` with whole numbers, and those of half precision, in float32."""
    return jax.tree.map(
        lambda leaf: leaf if leaf.dtype.itemsize >= 4 else leaf.astype(jnp.float32), real(tree)
    )


def mix(share: Array | float, a: PyTree, b: PyTree) -> PyTree:
    """``share * a + (1 - share) * b``; each leaf keeps its dtype, and shares of 1 and 0 give ``a`` and ``b``.

    Where one of the two is infinite or NaN, so is the result, or NaN, whatever the share is: :func:`select` takes one.
    """
    return add(scale(share, a), scale(1.0 - share, b))


def select(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """``yes`` where the scalar ``condition`` holds, else ``no``; a NaN in the one not taken does no harm."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def among(chosen: Array, yes: PyTree, no: PyTree | None = None) -> PyTree:
    """Entries of ``yes`` along the leading axis where ``chosen`` holds, else those of ``no``, or zeros for None.

    Example:
      >>> import jax.numpy as jnp
      >>> among(jnp.array([True, False]), jnp.array([[1.0, 2.0], [jnp.nan, 4.0]])).tolist()
      [[1.0, 2.0], [0.0, 0.0]]
    """

    def mixed(a: Array, b: Array) -> Array:
        return jnp.where(chosen.reshape(chosen.shape + (1,) * (a.ndim - chosen.ndim)), a, b)

    return jax.tree.map(mixed, yes, zeros_like(yes) if no is None else no)


def take(tree: PyTree, index: ArrayLike) -> PyTree:
    """Entry or entries ``index`` along the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def norm(tree: PyTree) -> Array:
    """Euclidean norm over the concatenation of all leaves; 0 for an empty tree.

    Example:
      >>> import jax.numpy as jnp
      >>> float(norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}))
      5.0
    """
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.float32(0.0)))


def weighted_mean(trees: PyTree, weights: Array) -> PyTree:
    """``sum_i weights_i * trees_i / sum_i weights_i`` over the leading axis; zeros where all weights are 0.

    A weight of NaN gives NaN.  Each leaf keeps its dtype, but whole numbers and truth values count as float32.
    """
    total = jnp.sum(weights)
    is_empty = total <= 0  # false of NaN
    share = jnp.where(is_empty, 0.0, weights / jnp.where(is_empty, 1.0, total))

    def mean(leaf: Array) -> Array:
        return jnp.tensordot(share.astype(leaf.dtype), leaf, axes=1)

    return jax.tree.map(mean, real(trees))
