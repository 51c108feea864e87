"""Arithmetic on stacked uploads: norms, distances, combinations."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import whole_number
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = ["combined", "distances", "least", "mean_of", "norms", "products", "robust"]


_SIGNS = 8
"""Sums with random signs, of all numbers of an upload, by which the one near the middle is found."""


def robust(
    name: str, malicious: int, holds: Callable[[int], bool], reduced: Callable[[Upload, Array, Key], PyTree]
) -> Stack:
    """An aggregator without a state that is built for so many malicious uploads.

    Args:
      name: that of the factory, for errors and warnings.
      malicious: a whole number of at least 0.
      holds: ``m -> bool``, whether the guarantee holds with so many uploads.
      reduced: ``(uploads, present, key) -> direction``.
    """
    whole_number(f"{name}(malicious=)", malicious, 0)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        return reduced(uploads, present, key), state

    needs = (Need.over(f"{name}({malicious})", malicious, holds),)
    return Stack(lambda like, clients: (), apply, needs=needs)


def norms(deltas: PyTree) -> Array:
    """The Euclidean norm of each upload, ``(m,)``."""
    return jax.vmap(tree.norm)(deltas)


def combined(weights: Array, deltas: PyTree) -> PyTree:
    """``sum_k weights_k Delta_k``; for weights ``(n, m)``, ``n`` of them, along a leading axis.

    As a product, since XLA's sums over a leading axis are many times slower on a CPU.
    """
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), deltas)


def mean_of(uploads: Upload, shares: Array, weighted: bool = False) -> PyTree:
    """The mean of the uploads with these shares; zeros if all shares are 0.

    Args:
      uploads: leaves ``(m, ...)``.
      shares: ``(m,)``, bool (which uploads count) or nonnegative; scaled to sum to 1.
      weighted: whether the shares are multiplied by the reported weights, which a malicious client can falsify.
    """
    weights = shares.astype(jnp.float32) * (uploads.weight if weighted else 1.0)
    total = jnp.sum(weights)
    return combined(jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), 0.0), uploads.delta)


def least(values: Array, present: Array, count: Array | int) -> Array:
    """Which ``count`` of the present ``values``, ``(m,)``, are the least, bool ``(m,)``; of equal ones the first."""
    order = jnp.argsort(jnp.where(present, values, jnp.inf), stable=True)
    return present & (jnp.argsort(order, stable=True) < count)


def products(deltas: PyTree, present: Array, key: Key) -> Array:
    """Inner products of the uploads' differences to one of them that lies near the middle, over 64, ``(m, m)``.

    Distances are the same around any point, but in float32 they drown in ``|x|^2 + |y|^2 - 2 x y`` when the uploads
    are closer to each other than to that point.  Over 64, since then nothing overflows whose own norm does not.
    """
    middle = _middle(deltas, present, key)
    total = jnp.zeros((present.shape[0],) * 2, jnp.float32)
    for leaf in jax.tree.leaves(deltas):
        flat = _flat(leaf)
        apart = 0.125 * (flat - flat[middle][None])
        total = total + jnp.matmul(apart, apart.T, precision="highest")
    return 0.5 * (total + total.T)


def distances(deltas: PyTree, present: Array, key: Key) -> Array:
    r"""Squared distances between stacked uploads, over 64, for aggregators such as Krum.

    .. math:: D_{ij} = \tfrac1{64} \|\Delta_i - \Delta_j\|^2

    Args:
      deltas: the stacked uploads, a tree whose leaves are ``(m, ...)``.
      present: bool ``(m,)``, which slots hold an upload.
      key: of the aggregator; it chooses the signs of sums by which an upload near the middle is found.

    Returns:
      float32 ``(m, m)``, symmetric, with 0 on the diagonal; infinite to and from empty slots, on the diagonal as well.

    Edge cases: distances are computed around the upload in the middle: around zero, those between uploads that are
    nearly parallel would drown in rounding.  They are over 64 so that none overflows unless the norm of an upload does;
    multiply by 64 to compare them with a length, and take care that such a product may be infinite.

    Example:
      >>> import jax
      >>> apart = distances(jnp.array([[0.0], [8.0], [0.0]]), jnp.array([True, True, False]), jax.random.key(0))
      >>> apart.tolist()
      [[0.0, 1.0, inf], [1.0, 0.0, inf], [inf, inf, inf]]
    """
    inner = products(deltas, present, key)
    squares = jnp.diagonal(inner)
    apart = jnp.maximum(squares[:, None] + squares[None, :] - 2.0 * inner, 0.0)
    return jnp.where(present[:, None] & present[None, :], apart, jnp.inf)


def _middle(deltas: PyTree, present: Array, key: Key) -> Array:
    """The upload that half of the others are nearest to, by sums with random signs, which differ as the uploads do.

    A sample of the coordinates would not do, nor would a sum of distances: an upload with one huge number elsewhere
    would pass for the middle, and all distances would drown in that number.
    """
    leaves, m = jax.tree.leaves(deltas), present.shape[0]
    sketches = jnp.zeros((m, _SIGNS), jnp.float32)
    for number, leaf in enumerate(leaves):
        flat = _flat(leaf)
        bits = jax.random.bits(jax.random.fold_in(key, number), (flat.shape[1], 1), jnp.uint8)
        signs = jnp.unpackbits(bits, axis=1).astype(jnp.float32)
        sketches = sketches + flat @ (signs / 4 - 0.125)
    squares = jnp.sum(jnp.square(sketches[:, None] - sketches[None, :]), axis=-1)
    ascending = jnp.sort(jnp.where(present[None, :], squares, jnp.inf), axis=1)
    half = ascending[:, jnp.sum(present) // 2]
    return jnp.argmin(jnp.where(present, half, jnp.inf))


def _flat(leaf: Array) -> Array:
    return leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
