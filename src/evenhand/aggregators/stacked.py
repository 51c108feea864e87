"""Arithmetic on stacked uploads: norms, distances, combinations."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.errors import whole_number
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = [
    "cleared",
    "combined",
    "combined_present",
    "distances",
    "flattened",
    "is_large",
    "least",
    "mean_of",
    "norms",
    "products",
    "robust",
    "suits_products",
]

_LARGE = 2**20
"""Numbers in all uploads together, from which on a sum adds them one by one, and a copy takes as long as ten means."""

_SHORT = 2**15
"""Numbers of an upload, up to which none is worth a choice between two ways.

Of models of that size, several runs train side by side, and each choice would go both ways.
"""

_LONGEST = 2**20
"""Numbers of an upload in a leaf, up to which squared distances by products are good to 5e-5.

XLA:CPU adds the products of a row one after the other: with ten times as many, they are good to 1e-3.
"""

_SIGNS = 8
"""Sums with random signs, of all numbers of an upload, by which the one near the middle is found."""


def robust(
    name: str,
    malicious: int,
    holds: Callable[[int], bool],
    reduced: Callable[[Upload, Array, Key], PyTree],
    skips_absent: bool = False,
) -> Stack:
    """An aggregator without a state that is built for so many malicious uploads.

    Args:
      name: that of the factory, for errors and warnings.
      malicious: a whole number of at least 0.
      holds: ``m -> bool``, whether the guarantee holds with so many uploads.
      reduced: ``(uploads, present, key) -> direction``.
      skips_absent: whether ``reduced`` takes uploads that are only :func:`cleared`.
    """
    malicious = whole_number(f"{name}(malicious=)", malicious, 0)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        read = cleared(uploads, present) if skips_absent else uploads
        return reduced(read, present, key), state

    needs = (Need.over(f"{name}({malicious})", malicious, holds),)
    return Stack(lambda like, clients: (), apply, needs=needs, skips_absent=skips_absent)


def is_large(deltas: PyTree) -> bool:
    """Whether uploads are so large that they are added one by one."""
    return sum(leaf.size for leaf in jax.tree.leaves(deltas)) >= _LARGE


def _is_long(deltas: PyTree) -> bool:
    """Whether uploads are large, and each of them is."""
    return is_large(deltas) and sum(leaf[0].size for leaf in jax.tree.leaves(deltas)) > _SHORT


def suits_products(deltas: PyTree) -> bool:
    """Whether distances by products of large uploads are as good as by differences, and take less time.

    Numbers of another type would round, or would have to be copied.
    """
    leaves = jax.tree.leaves(deltas)
    return _is_long(deltas) and all(leaf.dtype == jnp.float32 and leaf[0].size <= _LONGEST for leaf in leaves)


def cleared(uploads: Upload, present: Array) -> Upload:
    """Uploads with zeros in empty slots, but for long deltas, whose copy is spared."""
    if not _is_long(uploads.delta):
        return tree.among(present, uploads)
    weight, loss = tree.among(present, (uploads.weight, uploads.loss))
    return Upload(uploads.delta, weight, loss)


def norms(deltas: PyTree) -> Array:
    """The Euclidean norm of each upload, ``(m,)``."""
    return jax.vmap(tree.norm)(deltas)


def combined(weights: Array, deltas: PyTree) -> PyTree:
    """``sum_k weights_k Delta_k``; for weights ``(n, m)``, ``n`` of them, along a leading axis.

    As a product, since XLA's sums over a leading axis are many times slower on a CPU.
    """
    deltas = tree.real(deltas)  # weights would be rounded to whole numbers
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), deltas)


def combined_present(weights: Array, deltas: PyTree, present: Array) -> PyTree:
    """As :func:`combined`, of :func:`cleared` uploads, with weights of 0 for empty slots."""
    if not _is_long(deltas):
        return combined(weights, deltas)

    # Zero times what an empty slot holds may be NaN.
    def masked() -> PyTree:
        return combined(weights, tree.among(present, deltas))

    return lax.cond(jnp.all(present), lambda: combined(weights, deltas), masked)


def mean_of(uploads: Upload, shares: Array, weighted: bool = False, present: Array | None = None) -> PyTree:
    """The mean of the uploads with these shares; zeros if all shares are 0.

    Args:
      uploads: leaves ``(m, ...)``; whole numbers and truth values count as float32.
      shares: ``(m,)``, bool (which uploads count) or nonnegative; scaled to sum to 1.
      weighted: whether the shares are multiplied by the reported weights, which a malicious client can falsify.
      present: bool ``(m,)``, where the uploads are only :func:`cleared`; None: all slots hold numbers.
    """
    weights = shares.astype(jnp.float32) * (uploads.weight if weighted else 1.0)
    total = jnp.sum(weights)
    weights = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), 0.0)
    if present is None:
        return combined(weights, uploads.delta)
    return combined_present(weights, uploads.delta, present)


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
    return _products(deltas, present.shape[0], lambda flat: 0.125 * (flat - flat[middle][None]))


def _products(deltas: PyTree, m: int, changed: Callable[[Array], Array]) -> Array:
    """Inner products of what ``changed`` makes of the uploads, ``(m, m)``."""
    total = jnp.zeros((m,) * 2, jnp.float32)
    for leaf in jax.tree.leaves(deltas):
        side = changed(flattened(leaf))
        total = total + jnp.matmul(side, side.T, precision="highest")
    return 0.5 * (total + total.T)


def distances(deltas: PyTree, present: Array, key: Key, nearest: Array | int | None = None) -> Array:
    r"""Squared distances between stacked uploads, over 64, for aggregators such as Krum.

    .. math:: D_{ij} = \tfrac1{64} \|\Delta_i - \Delta_j\|^2

    Args:
      deltas: the stacked uploads, a tree whose leaves are ``(m, ...)``.
      present: bool ``(m,)``, which slots hold an upload.
      key: of the aggregator; it chooses the signs of sums by which an upload near the middle is found.
      nearest: where the caller only compares or adds up the ``nearest`` smallest distances of each upload to others;
        None: each distance must be exact.  On a CPU, those of long float32 uploads then take half the time.

    Returns:
      float32 ``(m, m)``, symmetric, with 0 on the diagonal; infinite to and from empty slots, on the diagonal as well.

    Edge cases: distances are computed around the upload in the middle: around zero, those between uploads that are
    nearly parallel would drown in rounding.  With ``nearest`` they are computed around zero where, for every upload,
    the largest of so many is far above rounding; a smaller one may then be off by 5e-5 of it.  They are over 64 so that
    none overflows unless the norm of an upload does; multiply by 64 to compare them with a length, and take care that
    such a product may be infinite.

    Example:
      >>> import jax
      >>> apart = distances(jnp.array([[0.0], [8.0], [0.0]]), jnp.array([True, True, False]), jax.random.key(0))
      >>> apart.tolist()
      [[0.0, 1.0, inf], [1.0, 0.0, inf], [inf, inf, inf]]
    """

    def around_the_middle() -> Array:
        return _apart(products(deltas, present, key), present)

    if nearest is None or not suits_products(deltas):
        return around_the_middle()
    # Not a multiple of the uploads, which would be a copy of them.
    inner = _products(deltas, present.shape[0], lambda flat: flat) / 64.0
    apart = _apart(inner, present)
    return lax.cond(_is_exact(apart, inner, present, nearest), lambda: apart, around_the_middle)


def _apart(inner: Array, present: Array) -> Array:
    """Squared distances from inner products around any point; infinite from and to empty slots."""
    squares = jnp.diagonal(inner)
    apart = jnp.maximum(squares[:, None] + squares[None, :] - 2.0 * inner, 0.0)
    return jnp.where(present[:, None] & present[None, :], apart, jnp.inf)


_NEAR = 1 / 16
"""A squared distance over the square of a length, below which the rounding of inner products would show."""


def _is_exact(apart: Array, inner: Array, present: Array, nearest: Array | int) -> Array:
    """Whether for each upload the largest of the ``nearest`` distances is far above the rounding of its square."""
    others = jnp.maximum(jnp.sum(present) - 1, 1)
    m = present.shape[0]
    ascending = jnp.sort(jnp.where(jnp.eye(m, dtype=bool), jnp.inf, apart), axis=1)
    last = jnp.take(ascending, jnp.clip(nearest, 1, others) - 1, axis=1)
    # A length whose square overflows is never exceeded: differences do not overflow.
    return jnp.all(~present | (last > _NEAR * jnp.diagonal(inner)))


def _middle(deltas: PyTree, present: Array, key: Key) -> Array:
    """The upload that half of the others are nearest to, by sums with random signs, which differ as the uploads do.

    A sample of the coordinates would not do, nor would a sum of distances: an upload with one huge number elsewhere
    would pass for the middle, and all distances would drown in that number.
    """
    # No signs can be drawn for an array without numbers.
    leaves, m = [leaf for leaf in jax.tree.leaves(deltas) if leaf.size], present.shape[0]
    sketches = jnp.zeros((m, _SIGNS), jnp.float32)
    for number, leaf in enumerate(leaves):
        flat = flattened(leaf)
        bits = jax.random.bits(jax.random.fold_in(key, number), (flat.shape[1], 1), jnp.uint8)
        signs = jnp.unpackbits(bits, axis=1).astype(jnp.float32)
        sketches = sketches + flat @ (signs / 4 - 0.125)
    squares = jnp.sum(jnp.square(sketches[:, None] - sketches[None, :]), axis=-1)
    ascending = jnp.sort(jnp.where(present[None, :], squares, jnp.inf), axis=1)
    half = ascending[:, jnp.sum(present) // 2]
    return jnp.argmin(jnp.where(present, half, jnp.inf))


def flattened(leaf: Array) -> Array:
    """An upload in each row, float32 ``(m, d)``; ``d`` may be 0."""
    return leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:])).astype(jnp.float32)
