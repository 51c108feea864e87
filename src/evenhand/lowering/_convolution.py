"""Convolution as patches times kernel, in any number of dimensions; or, for small windows, by interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import JaxprEqn

from evenhand.lowering import _winograd
from evenhand.types import Array

__all__ = ["convolution", "patches"]

_Form = Callable[[Array, Array], Array]
_Sizes = tuple[int, ...]
_Padding = tuple[tuple[int, int], ...]


def convolution(equation: JaxprEqn) -> _Form | None:
    """The rule for ``conv_general_dilated``."""
    params: dict[str, Any] = equation.params
    x = cast("Any", equation.invars[0].aval)
    groups, channels = params["feature_group_count"], x.shape[params["dimension_numbers"].lhs_spec[1]]
    same_type = params["preferred_element_type"] in (None, x.dtype)
    if not jnp.issubdtype(x.dtype, jnp.floating) or not same_type or params["batch_group_count"] != 1:
        return None
    native, products = partial(_native, params), partial(_products, params)
    return _dispatch(native, products, native if 1 < groups < channels else products)


def _dispatch(native: _Form, products: _Form, own_kernels: _Form) -> _Form:
    """``native`` for values alone, ``own_kernels`` for those under ``vmap`` over kernels, else ``products``."""
    value = custom_vmap(native)

    @value.def_vmap
    def _(axis_size: int, batched: list[bool], x: Array, kernel: Array) -> tuple[Array, bool]:
        form = own_kernels if batched[1] else native
        return jax.vmap(form, tuple(0 if is_batched else None for is_batched in batched))(x, kernel), True

    function = jax.custom_jvp(lambda x, kernel: value(x, kernel))

    @partial(function.defjvp, symbolic_zeros=True)
    def _(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
        moving = [index for index in (0, 1) if not isinstance(tangents[index], SymbolicZero)]

        def along(*moved: Array) -> Array:
            operands = dict(enumerate(primals)) | dict(zip(moving, moved, strict=True))
            return products(operands[0], operands[1])

        return jax.jvp(along, [primals[index] for index in moving], [tangents[index] for index in moving])

    return function


def _native(params: dict[str, Any], x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated_p.bind(x, kernel, **params)


def _products(params: dict[str, Any], x: Array, kernel: Array) -> Array:
    """Brings the operands into the layout channels last, and the result out of it."""
    inputs, weights, outputs = params["dimension_numbers"]
    x = lax.transpose(x, (inputs[0], *inputs[2:], inputs[1]))
    kernel = lax.transpose(kernel, (*weights[2:], weights[1], weights[0]))
    if set(params["lhs_dilation"]) != {1}:
        x = _pad(x, [(0, 0, step - 1) for step in params["lhs_dilation"]])
    groups, channels = params["feature_group_count"], x.shape[-1]
    arguments = params["window_strides"], params["padding"], params["rhs_dilation"]
    if groups == 1:
        z = _convolve(x, kernel, *arguments, params["precision"])
    elif groups == channels:
        z = _depthwise(x, kernel, *arguments)
    else:
        z = _grouped(x, kernel, *arguments, groups, params["precision"])
    places = (outputs[0], *outputs[2:], outputs[1])
    return lax.transpose(z, [places.index(axis) for axis in range(z.ndim)])


def patches(params: dict[str, Any], window: _Sizes, x: Array) -> Array:
    """The windows of all rows of a convolution's input, in reading order: ``(positions, window * channels)``."""
    inputs = params["dimension_numbers"].lhs_spec
    x = lax.transpose(x, (inputs[0], *inputs[2:], inputs[1]))
    if set(params["lhs_dilation"]) != {1}:
        x = _pad(x, [(0, 0, step - 1) for step in params["lhs_dilation"]])
    shifted = _shifted(x, window, params["window_strides"], params["padding"], params["rhs_dilation"])
    found = jnp.concatenate(shifted, axis=-1)
    return found.reshape(math.prod(found.shape[:-1]), found.shape[-1])


def _convolve(
    x: Array, kernel: Array, strides: _Sizes, padding: _Padding, dilation: _Sizes, precision: Any
) -> Array:
    """``x (n, space..., channels)`` by ``kernel (window..., channels, features)`` as matrix products."""
    *window, channels, features = kernel.shape
    if {*strides, *dilation} == {1} and precision is None:
        padded = _pad(x, [(*sides, 0) for sides in padding])
        if _winograd.suits(padded, kernel):
            return _winograd.convolve(padded, kernel)
    patches = jnp.concatenate(_shifted(x, tuple(window), strides, padding, dilation), axis=-1)
    rows, width = math.prod(patches.shape[:-1]), math.prod(window) * channels
    z = jnp.dot(patches.reshape(rows, width), kernel.reshape(width, features), precision=precision)
    return z.reshape(*patches.shape[:-1], features)


def _grouped(
    x: Array,
    kernel: Array,
    strides: _Sizes,
    padding: _Padding,
    dilation: _Sizes,
    groups: int,
    precision: Any,
) -> Array:
    *window, channels, features = kernel.shape
    patches = jnp.concatenate(_shifted(x, tuple(window), strides, padding, dilation), axis=-1)
    rows, places = math.prod(patches.shape[:-1]), math.prod(window)
    z = jnp.einsum(
        "rpgc,pcgf->rgf",
        patches.reshape(rows, places, groups, channels),
        kernel.reshape(places, channels, groups, features // groups),
        precision=precision,
    )
    return z.reshape(*patches.shape[:-1], features)


def _depthwise(x: Array, kernel: Array, strides: _Sizes, padding: _Padding, dilation: _Sizes) -> Array:
    *window, _, features = kernel.shape
    shifted = _shifted(x, tuple(window), strides, padding, dilation)
    each = x.shape[-1], features // x.shape[-1]
    weights = kernel.reshape(len(shifted), *(1 for _ in x.shape[:-1]), *each)
    z = reduce(jnp.add, (part[..., None] * weight for part, weight in zip(shifted, weights, strict=True)))
    return z.reshape(*z.shape[:-2], features)


def _shifted(x: Array, window: _Sizes, strides: _Sizes, padding: _Padding, dilation: _Sizes) -> list[Array]:
    """For each place in a window, in reading order, what all windows have there."""
    if any(tuple(sides) != (0, 0) for sides in padding):
        x = _pad(x, [(*sides, 0) for sides in padding])
    reach = [(size - 1) * step for size, step in zip(window, dilation, strict=True)]
    ends = [max(length - far, 0) for length, far in zip(x.shape[1:-1], reach, strict=True)]
    slices: list[Array] = []
    for place in product(*map(range, window)):
        starts = [i * step for i, step in zip(place, dilation, strict=True)]
        limits = [start + end for start, end in zip(starts, ends, strict=True)]
        slices.append(lax.slice(x, (0, *starts, 0), (x.shape[0], *limits, x.shape[-1]), (1, *strides, 1)))
    return slices


def _pad(x: Array, space: list[tuple[int, int, int]]) -> Array:
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *space, (0, 0, 0)])
