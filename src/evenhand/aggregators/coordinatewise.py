"""Robust means of each coordinate: the median, the trimmed mean, and the mean around the median.

They rest on order statistics, which are found by halving: exact, without sorting.  A float32 is an integer in disguise:
with the sign bit flipped, or all bits of a negative number, larger numbers have larger bits.  So the value of a rank is
found bit by bit, from the highest: a bit is set if few enough uploads are below what that makes.  Each step is a
comparison and a product, in blocks that stay in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.aggregators.stacked import flattened, robust
from evenhand.errors import EvenhandError, real_number, truth_value
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = ["around_median", "coordinate_median", "meamed", "trimmed_mean"]


def coordinate_median(*, weighted: bool = False) -> Stack:
    r"""Coordinate-wise median: the median of each coordinate over the uploads.

    .. math:: [\Delta]_j = \operatorname{median}_k \, [\Delta_k]_j

    Args:
      weighted: the median of the reported weights: half of the weight lies on either side.

    Robustness: breakdown point 1/2.  Without ``weighted`` each client counts alike, whatever it reports: one with 0.6 %
    of the examples as much as one with 30 %.  With it, half of the weight must be honest, and one that reports the
    largest admissible weight has that: see :func:`evenhand.aggregators.bounded_weights`.  Where clients have few
    classes each, most of them do not move a coordinate that the others need, and the median stays near zero.

    Edge cases: with half of the weight exactly on either side, the mean of the middle two; without any upload, zeros.

    Cost: exact, in 32 comparisons of each number, and all uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
      >>> eh.aggregators.aggregate(coordinate_median(), deltas).tolist()
      [1.0, 2.0]

    Source: Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates*, ICML 2018, definition 1.
    """
    weighted = truth_value("weighted", weighted)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        weights = jnp.where(present, uploads.weight if weighted else 1.0, 0.0)
        return _medians(uploads.delta, weights), state

    return Stack(lambda like, clients: (), apply)


@jax.jit
def _medians(deltas: PyTree, weights: Array) -> PyTree:
    return _over_coordinates(_median, deltas, weights)


def trimmed_mean(fraction: float, *, weighted: bool = False) -> Stack:
    r"""Trimmed mean: the mean of each coordinate without its largest and smallest values.

    .. math:: [\Delta]_j = \frac{1}{m - 2 l} \sum_{i = l + 1}^{m - l} [\Delta]_{(i), j}, \qquad
        l = \min\Big(\lceil \beta m \rceil, \Big\lfloor \frac{m - 1}{2} \Big\rfloor\Big)

    with :math:`[\Delta]_{(1), j} \le \dots \le [\Delta]_{(m), j}` the coordinate's values in order.

    Args:
      fraction: :math:`\beta`, the share of the uploads that is cut off on either side, below 1/2.
      weighted: whether the mean of the others has the reported weights.

    Raises:
      EvenhandError: ``fraction`` outside [0, 1/2).

    Robustness: breakdown point :math:`\beta`.  Without ``weighted`` each client counts alike, whatever it reports: one
    with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible weight has
    that weight's share wherever it is not cut off: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: ``fraction=0`` is the mean; at least one value or two remain.  Equal values at the edge share what is
    kept of them.  :math:`m` counts the accepted uploads; without any, zeros.

    Differs from the paper: none known; the limit on :math:`l` and the weights are those of RFA's comparison.

    Cost: exact, in 64 comparisons of each number, and all uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0], [1.0], [2.0], [3.0], [90.0]])
      >>> eh.aggregators.aggregate(trimmed_mean(0.2), deltas).tolist()
      [2.0]

    Source: Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning*, ICML 2018, definition 2.
    """
    weighted = truth_value("weighted", weighted)
    if not 0.0 <= real_number(fraction) < 0.5:
        raise EvenhandError(f"trimmed_mean(fraction={fraction!r:.40}): give a share from 0 to below 0.5.")

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        m = present.shape[0]
        # For each number of accepted uploads, in Python: 0.1 of 30 is 3, not the 4 that float32 makes of it.
        cuts = np.ceil(np.arange(m + 1) * fraction - 1e-9)
        cut = jnp.asarray(np.minimum(cuts, np.maximum(np.arange(m + 1) - 1, 0) // 2), jnp.float32)
        accepted = present.astype(jnp.float32)
        weights = accepted * uploads.weight if weighted else accepted
        return _middles(uploads.delta, accepted, weights, cut[jnp.sum(present)]), state

    need = Need.over(f"trimmed_mean({fraction:g})", 0, lambda m: 2 * math.ceil(fraction * m - 1e-9) < m)
    return Stack(lambda like, clients: (), apply, needs=(need,))


@jax.jit
def _middles(deltas: PyTree, present: Array, weights: Array, cut: Array) -> PyTree:
    return _over_coordinates(_middle, deltas, present, weights, cut)


def meamed(malicious: int, *, weighted: bool = False) -> Stack:
    r"""MeaMed (mean around median): the mean of each coordinate over the values nearest to its median.

    .. math:: [\Delta]_j = \frac{1}{m - f} \sum_{k \in S_j} [\Delta_k]_j, \qquad
        S_j \text{ the } m - f \text{ uploads nearest to } \operatorname{median}_k \, [\Delta_k]_j

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.
      weighted: whether the mean has the reported weights; the median never has.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: withstands :math:`f < m / 2`.  Without ``weighted`` each client counts alike, whatever it reports: one
    with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible weight has
    that weight's share wherever it is near the median: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: ``malicious=0`` is the mean; equally near values share the last place; at least one value remains.
    :math:`m` counts the accepted uploads; without any, zeros.

    Cost: exact, in 64 comparisons of each number, and all uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> eh.aggregators.aggregate(meamed(1), jnp.array([[1.0], [2.0], [4.0], [90.0]])).tolist()
      [2.3333332538604736]

    Source: Xie, Koyejo and Gupta, *Generalized Byzantine-Tolerant SGD*, 2018, definition 7.
    """
    weighted = truth_value("weighted", weighted)

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        accepted = present.astype(jnp.float32)
        count = jnp.maximum(jnp.sum(accepted) - malicious, 1.0)
        weights = accepted * uploads.weight if weighted else accepted
        return around_median(uploads.delta, accepted, weights, count)

    return robust("meamed", malicious, lambda m: m > 2 * malicious, reduced)


@jax.jit
def around_median(deltas: PyTree, present: Array, weights: Array, count: Array) -> PyTree:
    """The weighted mean of each coordinate over the ``count`` values nearest to the median of the present ones."""

    def of_columns(values: Array, present: Array, weights: Array, count: Array) -> Array:
        return _nearest(values, present, weights, _median(values, present), count)

    return _over_coordinates(of_columns, deltas, present, weights, count)


# --- order statistics of each coordinate -------------------------------------------------------------------------

_BLOCK = 128
"""Coordinates that a device works on at a time: with a hundred uploads, they fit into its first caches."""


def _over_coordinates(function: Callable[..., Array], deltas: PyTree, *arguments: Array) -> PyTree:
    """A function of each coordinate's values over the uploads, in blocks, on all devices that hold coordinates.

    ``function`` is ``(values (m, devices, block), *arguments) -> (devices, block)``.
    """

    def of_leaf(leaf: Array) -> Array:
        flat = flattened(leaf)
        devices, (m, size) = jax.device_count(), flat.shape
        blocks = max(1, -(-size // (devices * _BLOCK)))
        block = -(-size // (devices * blocks))
        padded = jnp.pad(flat, ((0, 0), (0, devices * blocks * block - size)))
        # The first axis of coordinates is the devices', so that each loops over its own.
        dealt = padded.reshape(m, devices, blocks, block)

        def of_block(i: Array) -> Array:
            return function(lax.dynamic_index_in_dim(dealt, i, axis=2, keepdims=False), *arguments)

        directions = lax.map(of_block, jnp.arange(blocks))
        return jnp.moveaxis(directions, 0, 1).reshape(-1)[:size].reshape(leaf.shape[1:]).astype(leaf.dtype)

    return jax.tree.map(of_leaf, deltas)


def _median(values: Array, weights: Array) -> Array:
    """The middle of the weighted values; the mean of the middle two where exactly half of the weight is below."""
    half, about = 0.5 * jnp.sum(weights), 1e-6  # sums of weights such as 0.1 are not exact
    lower = _first(values, weights, lambda below: below < (1.0 - about) * half)
    above = jnp.min(jnp.where((values > lower[None]) & (_column(weights) > 0), values, jnp.inf), axis=0)
    upper = jnp.where(_sum(weights, values <= lower[None]) > (1.0 + about) * half, lower, above)
    return jnp.where(half > 0, 0.5 * lower + 0.5 * jnp.where(jnp.isfinite(upper), upper, lower), 0.0)


def _middle(values: Array, present: Array, weights: Array, cut: Array) -> Array:
    """The weighted mean of the present values without the ``cut`` smallest and the ``cut`` largest."""
    count = jnp.sum(present)
    low = _first(values, present, lambda below: below <= cut)
    high = _first(values, present, lambda below: below <= count - 1 - cut)
    at_low, at_high = values == low[None], values == high[None]
    kept_low = (_sum(present, values <= low[None]) - cut) / jnp.maximum(_sum(present, at_low), 1.0)
    kept_high = (count - cut - _sum(present, values < high[None])) / jnp.maximum(_sum(present, at_high), 1.0)
    inside = jnp.where((values > low[None]) & (values < high[None]), 1.0, 0.0)
    shares = jnp.where(at_low, kept_low[None], jnp.where(at_high, kept_high[None], inside))
    return jnp.where(low == high, low, _mean(values, shares * _column(weights)))


def _nearest(values: Array, present: Array, weights: Array, center: Array, count: Array) -> Array:
    """The weighted mean of the ``count`` present values nearest to ``center``; equally near ones share a place."""
    apart = jnp.abs(values - center[None])
    edge = _first(apart, present, lambda below: below <= count - 1)[None]
    kept = (count - _sum(present, apart < edge)) / jnp.maximum(_sum(present, apart == edge), 1.0)
    shares = jnp.where(apart < edge, 1.0, jnp.where(apart == edge, kept[None], 0.0))
    return _mean(values, shares * _column(weights))


def _first(values: Array, weights: Array, few: Callable[[Array], Array]) -> Array:
    """The largest number such that ``few`` holds of the weight of the values below it."""

    def bit(i: Array, order: Array) -> Array:
        tried = order | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        return jnp.where(few(_sum(weights, values < _float(tried)[None])), tried, order)

    value = _float(lax.fori_loop(0, 32, bit, jnp.zeros(values.shape[1:], jnp.uint32)))
    # Where denormal numbers count as 0, the largest number of the rank of 0 is the first normal one.
    return jnp.where(jnp.abs(value) <= jnp.finfo(jnp.float32).tiny, 0.0, value)


def _float(order: Array) -> Array:
    """The float32 at this place in the order; beyond the infinities, those."""
    positive = order >> 31 == 1
    bits = jnp.where(positive, order ^ jnp.uint32(1 << 31), ~order)
    number = lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.isnan(number), jnp.where(positive, jnp.inf, -jnp.inf), number)


def _sum(weights: Array, chosen: Array) -> Array:
    """The weight of the chosen values: a product, since XLA's sums over a leading axis are slow on a CPU."""
    return jnp.tensordot(weights.astype(jnp.float32), chosen.astype(jnp.float32), axes=1)


def _mean(values: Array, weights: Array) -> Array:
    ones = jnp.ones(values.shape[0], jnp.float32)
    total = jnp.tensordot(ones, weights, axes=1)
    sums = jnp.tensordot(ones, jnp.where(weights > 0, weights * values, 0.0), axes=1)
    return jnp.where(total > 0, sums / jnp.where(total > 0, total, 1.0), 0.0)


def _column(weights: Array) -> Array:
    return weights[:, None, None]
