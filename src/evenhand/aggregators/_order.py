"""Order statistics of each coordinate over the uploads, by halving: exact, without sorting.

A float32 is an integer in disguise: with the sign bit flipped, or all bits of a negative number, larger numbers have
larger bits.  So the value of a rank is found bit by bit, from the highest: a bit is set if few enough uploads are below
what that makes.  Each step is a comparison and a product, in blocks that stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.types import Array, PyTree

__all__ = ["median", "middle", "nearest", "over_coordinates"]

_BLOCK = 128
"""Coordinates that a device works on at a time: with a hundred uploads, they fit into its first caches."""

OfColumns: TypeAlias = Callable[..., Array]
"""``(values (m, devices, block), *arguments) -> (devices, block)``."""


def over_coordinates(function: OfColumns, deltas: PyTree, *arguments: Array) -> PyTree:
    """A function of each coordinate's values over the uploads, in blocks, on all devices that hold coordinates."""

    def of_leaf(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
        devices, (m, size) = jax.device_count(), flat.shape
        blocks = max(1, -(-size // (devices * _BLOCK)))
        block = -(-size // (devices * blocks))
        padded = jnp.pad(flat, ((0, 0), (0, devices * blocks * block - size)))
        # The first axis of coordinates is the devices', so that each loops over its own.
        dealt = padded.reshape(m, devices, blocks, block)

        def of_block(i: Array) -> Array:
            return function(lax.dynamic_index_in_dim(dealt, i, axis=2, keepdims=False), *arguments)

        found = lax.map(of_block, jnp.arange(blocks))
        return jnp.moveaxis(found, 0, 1).reshape(-1)[:size].reshape(leaf.shape[1:]).astype(leaf.dtype)

    return jax.tree.map(of_leaf, deltas)


def median(values: Array, weights: Array) -> Array:
    """The middle of the weighted values; the mean of the middle two where exactly half of the weight is below."""
    half, about = 0.5 * jnp.sum(weights), 1e-6  # sums of weights such as 0.1 are not exact
    lower = _first(values, weights, lambda below: below < (1.0 - about) * half)
    above = jnp.min(jnp.where((values > lower[None]) & (_column(weights) > 0), values, jnp.inf), axis=0)
    upper = jnp.where(_sum(weights, values <= lower[None]) > (1.0 + about) * half, lower, above)
    return jnp.where(half > 0, 0.5 * lower + 0.5 * jnp.where(jnp.isfinite(upper), upper, lower), 0.0)


def middle(values: Array, present: Array, weights: Array, cut: Array) -> Array:
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


def nearest(values: Array, present: Array, weights: Array, center: Array, count: Array) -> Array:
    """The weighted mean of the ``count`` present values nearest to ``center``; equally near ones share a place."""
    apart = jnp.abs(values - center[None])
    edge = _first(apart, present, lambda below: below <= count - 1)[None]
    kept = (count - _sum(present, apart < edge)) / jnp.maximum(_sum(present, apart == edge), 1.0)
    shares = jnp.where(apart < edge, 1.0, jnp.where(apart == edge, kept[None], 0.0))
    return _mean(values, shares * _column(weights))


def _first(values: Array, weights: Array, few: Callable[[Array], Array]) -> Array:
    """The largest number such that ``few`` holds of the weight of the values below it."""

    def bit(i: Array, found: Array) -> Array:
        tried = found | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        return jnp.where(few(_sum(weights, values < _float(tried)[None])), tried, found)

    found = _float(lax.fori_loop(0, 32, bit, jnp.zeros(values.shape[1:], jnp.uint32)))
    # Where denormal numbers count as 0, the largest number of the rank of 0 is the first normal one.
    return jnp.where(jnp.abs(found) <= jnp.finfo(jnp.float32).tiny, 0.0, found)


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
