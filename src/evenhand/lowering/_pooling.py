"""Maxima over windows that tile, as elementwise maxima of strided slices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from evenhand.types import Array

__all__ = ["maximum"]

_Sizes = tuple[int, ...]

_LARGEST = 9
"""Numbers in a window up to which slices are faster than the native form."""


def maximum(equation: JaxprEqn) -> Callable[[Array], Array] | None:
    """The rule for ``reduce_window_max``: small windows, side by side and without padding."""
    params, x = equation.params, cast("Any", equation.invars[0].aval)
    size: _Sizes = tuple(params["window_dimensions"])
    tiles = size == tuple(params["window_strides"]) and all(sides == (0, 0) for sides in params["padding"])
    dense = {*params["window_dilation"], *params["base_dilation"]} <= {1}
    fits = 2 <= math.prod(size) <= _LARGEST and jnp.issubdtype(x.dtype, jnp.floating)
    return partial(_maximum, size) if tiles and dense and fits else None


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _maximum(size: _Sizes, x: Array) -> Array:
    return reduce(jnp.maximum, _corners(x, size))


@_maximum.defjvp
def _maximum_jvp(size: _Sizes, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The transpose of strided slices pads and adds as many images as a window has numbers, and jnp.maximum shares
    # the gradient between equal values: one comparison per number is faster by far, and picks one of them.
    (x,), (dx,) = primals, tangents
    pooled = _maximum(size, x)
    last = math.prod(size) - 1
    place = jnp.full(pooled.shape, last, jnp.int32)
    for index, corner in reversed([*enumerate(_corners(x, size))][:last]):
        place = jnp.where(corner == pooled, jnp.int32(index), place)
    windows, axes = _windows(dx, size)
    places = jnp.arange(last + 1, dtype=jnp.int8)
    places = places.reshape([size[axis // 2] if axis in axes else 1 for axis in range(windows.ndim)])
    here = jnp.expand_dims(place.astype(jnp.int8), axes) == places
    return pooled, jnp.sum(jnp.where(here, windows, 0.0), axis=axes)


def _corners(x: Array, size: _Sizes) -> list[Array]:
    """For each place in a window, in reading order, what all windows have there."""
    whole = [length // step * step for length, step in zip(x.shape, size, strict=True)]
    return [lax.slice(x, place, whole, size) for place in product(*map(range, size))]


def _windows(x: Array, size: _Sizes) -> tuple[Array, _Sizes]:
    """``x`` with an axis for the place in the window after each of its own, and which axes those are."""
    counts = [length // step for length, step in zip(x.shape, size, strict=True)]
    whole = [count * step for count, step in zip(counts, size, strict=True)]
    shape = [length for pair in zip(counts, size, strict=True) for length in pair]
    return lax.slice(x, [0] * x.ndim, whole).reshape(shape), tuple(range(1, 2 * x.ndim, 2))
