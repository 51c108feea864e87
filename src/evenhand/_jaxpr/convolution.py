r"""Convolution as patches times kernel, in any number of dimensions; or, for small windows, by interpolation.

:func:`convolution` is the rule of :func:`evenhand.lowering.lowered`; :func:`winograd` interpolates;
:func:`convolution_apart` leaves the kernel's derivative out, for gradients of single examples.

**Interpolation** takes fewer products than patches, and a third of their memory.

One axis. With :math:`n = k + m - 1` points, one of them at infinity, let :math:`E_l` be the :math:`n \times l`
matrix that evaluates a polynomial of :math:`l` coefficients there. The coefficients of a product of two
polynomials are :math:`E_n^{-1} [(E_k g) \odot (E_m h)]`, and the transpose of that map in :math:`h` gives
:math:`m` outputs of the convolution of a window :math:`g` with a stretch :math:`d` of :math:`n` inputs:

.. math:: y = E_m^\top [(E_k g) \odot (E_n^{-\top} d)].

Two axes: Kronecker products of these matrices. The products between the brackets become, summed over channels, one
matrix product per pair of points. Per axis :math:`n` products replace :math:`m k`: with :math:`m = 4`, a window of
3 x 3 takes 4 times fewer and one of 5 x 5 takes 6.25 times fewer.

The price is accuracy: sums of terms of unlike size. With the points 0, 1, -1, 1/2, -2, 2, -1/2 the result is off
by some 1e-6 of its size, derivatives by some 1e-5, where patches are off by 3e-7 (float32).

Milliseconds for the gradients in both operands in a loop, batch 10, on one core, patches / interpolation; "clients":
four side by side with their own kernels:

==========================  ============  ============
convolution                 in a loop     clients
==========================  ============  ============
14x14x32, 5x5x64            13.1 / 10.2   89 / 46
30x30x32, 3x3x64, valid     24.3 / 12.4   106 / 94
16x16x64, 3x3x64            15.0 / 6.2    70 / 45
8x8x128, 3x3x128            8.9 / 5.1     39.5 / 39.7
32x32x16, 4x4x32            23.8 / 9.5    116 / 78
16x16x16, 3x3x16            1.6 / 1.1     9.7 / 7.6
8x8x256, 3x3x256            46 / 27       188 / 203
4x4x256, 3x3x256, batch 32  32 / 24       134 / 188
4x4x256, 3x3x256 (patches)  8.4 / 12.0    40 / 115
6x6x16, 3x3x16 (patches)    0.2 / 0.3     0.8 / 2.1
==========================  ============  ============

Side by side, many channels on few pixels lose; on a CPU models of that size go one by one unless told otherwise. On two
cores for one device patches gain more: there it is 7.7 / 7.2, 11.6 / 11.0 and 7.4 / 6.5 for the first three.

Sources: S. Winograd, *Arithmetic Complexity of Computations* (1980); Lavin and Gray, *Fast Algorithms for
Convolutional Neural Networks*, CVPR 2016; the choice of points after Barabasz et al., *Error Analysis and Improving
the Accuracy of Winograd Convolution for Deep Neural Networks*, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from itertools import product
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from evenhand._jaxpr import JaxprEqn
from evenhand.types import Array

_Form = Callable[[Array, Array], Array]


# --- patches times kernel ---------------------------------------------------------------------------------------------


def convolution(equation: JaxprEqn) -> _Form | None:
    """The rule for ``conv_general_dilated``."""
    params: dict[str, Any] = equation.params
    x = cast("Any", equation.invars[0].aval)
    groups, channels = params["feature_group_count"], x.shape[params["dimension_numbers"].lhs_spec[1]]
    same_type = params["preferred_element_type"] in (None, x.dtype)
    if not jnp.issubdtype(x.dtype, jnp.floating) or not same_type or params["batch_group_count"] != 1:
        return None
    if cast("Any", equation.outvars[0].aval).size == 0:  # a window that is longer than the input fits nowhere
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
    x = _dilated(params, x)
    groups, channels = params["feature_group_count"], x.shape[-1]
    form = _convolve if groups == 1 else _depthwise if groups == channels else _grouped
    z = form(params, x, kernel)
    places = (outputs[0], *outputs[2:], outputs[1])
    return lax.transpose(z, [places.index(axis) for axis in range(z.ndim)])


def patches(params: dict[str, Any], window: Sequence[int], x: Array) -> Array:
    """The windows of all rows of a convolution's input, in reading order: ``(positions, window * channels)``."""
    inputs = params["dimension_numbers"].lhs_spec
    x = _dilated(params, lax.transpose(x, (inputs[0], *inputs[2:], inputs[1])))
    windows = jnp.concatenate(_shifted(params, window, x), axis=-1)
    return windows.reshape(math.prod(windows.shape[:-1]), windows.shape[-1])


def _convolve(params: dict[str, Any], x: Array, kernel: Array) -> Array:
    """``x (n, space..., channels)`` by ``kernel (window..., channels, features)`` as matrix products."""
    *window, channels, features = kernel.shape
    if {*params["window_strides"], *params["rhs_dilation"]} == {1} and params["precision"] is None:
        padded = _pad(x, [(*sides, 0) for sides in params["padding"]])
        if suits_winograd(padded, kernel):
            return winograd(padded, kernel)
    if channels == 1 and jax.default_backend() == "cpu":
        return _of_grey(params, x, kernel)
    patches = jnp.concatenate(_shifted(params, window, x), axis=-1)
    rows, width = math.prod(patches.shape[:-1]), math.prod(window) * channels
    z = jnp.dot(patches.reshape(rows, width), kernel.reshape(width, features), precision=params["precision"])
    return z.reshape(*patches.shape[:-1], features)


def _of_grey(params: dict[str, Any], x: Array, kernel: Array) -> Array:
    """Of one channel: patches in columns, which are shifted images; XLA copies rows of them number by number."""
    *window, _, features = kernel.shape
    shifted = jnp.stack(_shifted(params, window, x))
    columns = shifted.reshape(len(shifted), math.prod(shifted.shape[1:]))
    by_place = (((0,), (0,)), ((), ()))
    z = lax.dot_general(columns, kernel.reshape(-1, features), by_place, precision=params["precision"])
    return z.reshape(*shifted.shape[1:-1], features)


def _grouped(params: dict[str, Any], x: Array, kernel: Array) -> Array:
    *window, channels, features = kernel.shape
    patches, groups = jnp.concatenate(_shifted(params, window, x), axis=-1), params["feature_group_count"]
    rows, places = math.prod(patches.shape[:-1]), math.prod(window)
    z = jnp.einsum(
        "rpgc,pcgf->rgf",
        patches.reshape(rows, places, groups, channels),
        kernel.reshape(places, channels, groups, features // groups),
        precision=params["precision"],
    )
    return z.reshape(*patches.shape[:-1], features)


def _depthwise(params: dict[str, Any], x: Array, kernel: Array) -> Array:
    *window, _, features = kernel.shape
    shifted = _shifted(params, window, x)
    per_group = x.shape[-1], features // x.shape[-1]
    weights = kernel.reshape(len(shifted), *(1 for _ in x.shape[:-1]), *per_group)
    z = reduce(jnp.add, (part[..., None] * weight for part, weight in zip(shifted, weights, strict=True)))
    return z.reshape(*z.shape[:-2], features)


def _dilated(params: dict[str, Any], x: Array) -> Array:
    """``x`` with zeros between its numbers, where the convolution has them."""
    steps = params["lhs_dilation"]
    return x if set(steps) == {1} else _pad(x, [(0, 0, step - 1) for step in steps])


def _shifted(params: dict[str, Any], window: Sequence[int], x: Array) -> list[Array]:
    """For each place in a window, in reading order, what all windows have there."""
    if any(tuple(sides) != (0, 0) for sides in params["padding"]):
        x = _pad(x, [(*sides, 0) for sides in params["padding"]])
    dilation, strides = params["rhs_dilation"], params["window_strides"]
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


# --- interpolation ----------------------------------------------------------------------------------------------------

_POINTS = np.array([0, 1, -1, 1 / 2, -2, 2, -1 / 2])
_OUTPUTS = 4
_WINDOWS = (3, 4, 5)
_CHANNELS = 16
_TILES = 32


def suits_winograd(x: Array, kernel: Array) -> bool:
    """Whether :func:`winograd` is faster: small windows, enough channels and tiles, tiles that outputs fill."""
    *window, channels, features = kernel.shape
    if x.dtype != jnp.float32 or len(window) != 2 or min(channels, features) < _CHANNELS:
        return False
    if not set(window) <= set(_WINDOWS) or jax.default_backend() != "cpu":
        return False
    outputs = [max(length - size + 1, 0) for length, size in zip(x.shape[1:-1], window, strict=True)]
    tiles = math.prod(-(-size // _OUTPUTS) for size in outputs)
    products = tiles * math.prod(size + _OUTPUTS - 1 for size in window)
    return len(x) * tiles >= _TILES and products <= 0.4 * math.prod(outputs) * math.prod(window)


def winograd(x: Array, kernel: Array) -> Array:
    """``x (rows, height, width, channels)`` by ``kernel (high, wide, channels, features)``, without padding."""
    high, wide, channels, features = kernel.shape
    height, width = x.shape[1] - high + 1, x.shape[2] - wide + 1
    down, across = -(-height // _OUTPUTS), -(-width // _OUTPUTS)
    to_outputs, of_window, of_inputs = (
        np.kron(a, b).astype(np.float32) for a, b in zip(_transforms(high), _transforms(wide), strict=True)
    )
    points = len(to_outputs)
    matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    tiles = _tiles(x, (high, wide), (down, across))
    inputs = matmul(of_inputs, tiles.reshape(points, -1)).reshape(points, -1, channels)
    weights = matmul(of_window, kernel.reshape(high * wide, -1)).reshape(points, channels, features)
    z = matmul(inputs, weights).reshape(points, -1)
    # Contracted along the first axis of both, which other code of XLA multiplies, faster for 16 results.
    z = lax.dot_general(to_outputs, z, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    return _image(z.reshape(_OUTPUTS, _OUTPUTS, len(x), down, across, features))[:, :height, :width]


@cache
def _transforms(window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``E_m``, ``E_k`` and ``E_n`` inverted and transposed, for windows of ``k`` values."""
    size = window + _OUTPUTS - 1

    def evaluation(coefficients: int) -> np.ndarray:
        finite = np.vander(_POINTS[: size - 1], coefficients, increasing=True)
        return np.vstack([finite, np.eye(coefficients)[-1]])

    return evaluation(_OUTPUTS), evaluation(window), np.linalg.inv(evaluation(size)).T


def _tiles(x: Array, window: tuple[int, int], counts: tuple[int, int]) -> Array:
    """Overlapping tiles, ``_OUTPUTS`` apart: ``(place down, place across, rows, down, across, channels)``.

    Put together from blocks that do not overlap: so the transpose adds four terms, not one per place.
    """
    rows, *lengths, channels = x.shape
    ends = [(0, (count + 1) * _OUTPUTS - length, 0) for count, length in zip(counts, lengths, strict=True)]
    x = _pad(x, ends)
    x = x.reshape(rows, counts[0] + 1, _OUTPUTS, counts[1] + 1, _OUTPUTS, channels)
    x = x.transpose(2, 4, 0, 1, 3, 5)
    down, across = (size - 1 for size in window)
    x = jnp.concatenate([x[:, :, :, :-1], x[:down, :, :, 1:]], 0)
    return jnp.concatenate([x[:, :, :, :, :-1], x[:, :across, :, :, 1:]], 1)


@jax.custom_jvp
def _image(tiles: Array) -> Array:
    """Tiles side by side: ``(place down, place across, rows, down, across, features)`` as images of ``rows``."""
    *_, rows, down, across, features = tiles.shape
    return tiles.transpose(2, 3, 0, 4, 1, 5).reshape(rows, down * _OUTPUTS, across * _OUTPUTS, features)


@_image.defjvp
def _image_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The same, written so that the gradient is a slice for each place: XLA takes twice as long to pad and turn it.
    (tangent,), whole, gap = tangents, (0, 0, 0), _OUTPUTS - 1
    places = lax.split(tangent.reshape(-1, *tangent.shape[2:]), [1] * _OUTPUTS**2)
    apart = (
        lax.pad(place[0], jnp.zeros((), place.dtype), [whole, (i, gap - i, gap), (j, gap - j, gap), whole])
        for (i, j), place in zip(product(range(_OUTPUTS), repeat=2), places, strict=True)
    )
    return _image(*primals), reduce(jnp.add, apart)


# --- without the kernel's derivative ----------------------------------------------------------------------------------


class Convolution(NamedTuple):
    """A convolution ``z = patches(x) K``, with its operands in the layout of its equation.

    Attributes:
      apply: ``(x, kernel) -> z``, to be differentiated in ``x`` only.  Under ``vmap`` over ``x`` the examples are rows
        of one convolution.
      patches: ``x -> (positions, window * channels)``, the windows of all rows, in reading order, channels last.
      outputs: ``z -> (positions, features)``.
      kernel: ``(window * channels, features) -> kernel``.
      matrix: ``kernel -> (window * channels, features)``.
    """

    apply: Callable[[Array, Array], Array]
    patches: Callable[[Array], Array]
    outputs: Callable[[Array], Array]
    kernel: Callable[[Array], Array]
    matrix: Callable[[Array], Array]


def convolution_apart(equation: JaxprEqn) -> Convolution | None:
    """A ``conv_general_dilated`` without the derivative in its kernel; None for one in groups, or of unusual types."""
    function, params = convolution(equation), equation.params
    if function is None or params["feature_group_count"] != 1:
        return None
    inputs, weights, outputs = params["dimension_numbers"]
    last = (*weights[2:], weights[1], weights[0])
    shape: Sequence[int] = [equation.invars[1].aval.shape[axis] for axis in last]  # pyright: ignore[reportAttributeAccessIssue]

    def columns(z: Array) -> Array:
        z = lax.transpose(z, (outputs[0], *outputs[2:], outputs[1]))
        return z.reshape(-1, z.shape[-1])

    def kernel(matrix: Array) -> Array:
        return lax.transpose(matrix.reshape(shape), [last.index(axis) for axis in range(len(last))])

    def matrix(kernel: Array) -> Array:
        return lax.transpose(kernel, last).reshape(-1, shape[-1])

    apply = _of_inputs(function, inputs[0], outputs[0])
    return Convolution(apply, partial(patches, params, shape[:-2]), columns, kernel, matrix)


def _of_inputs(function: Callable[[Array, Array], Array], rows: int, results: int) -> Any:
    """``function(x, kernel)``, linear in ``x``, with the derivative in ``x`` only.

    The axis of a batch is ``rows`` in ``x`` and ``results`` in the result, and ``vmap`` over ``x`` makes it longer:
    how a convolution is computed best depends on how many rows it has.
    """

    def linear(x: Array, kernel: Array) -> Array:
        # As a derivative it is lowered; a value alone would stay native.
        return jax.jvp(lambda x: function(x, kernel), (x,), (x,))[1]

    def pull(given: Array, x: Array, kernel: Array) -> Array:
        return jax.vjp(lambda x: function(x, kernel), x)[1](given)[0]

    apply, back = _merging(linear, (rows,), results), _merging(pull, (results, rows), rows)
    layer = jax.custom_vjp(lambda x, kernel: apply(x, kernel))
    layer.defvjp(
        lambda x, kernel: (apply(x, kernel), (jnp.zeros_like(x), kernel)),
        lambda saved, given: (back(given, *saved), None),
    )
    return layer


def _merging(function: Callable[..., Array], axes: Sequence[int], result: int) -> Callable[..., Array]:
    """``function``, whose first operands have rows along ``axes``; under ``vmap`` its axis becomes part of the rows."""
    merged = custom_vmap(lambda *operands: function(*operands))

    @merged.def_vmap
    def _(size: int, batched: list[bool], *operands: Array) -> tuple[Array, bool]:
        if any(batched[len(axes) :]):
            in_axes = tuple(0 if is_batched else None for is_batched in batched)
            return jax.vmap(function, in_axes)(*operands), True
        rows = list(operands)
        for i, axis in enumerate(axes):
            operand = rows[i] if batched[i] else jnp.broadcast_to(rows[i], (size, *rows[i].shape))
            moved = jnp.moveaxis(operand, 0, axis)
            rows[i] = moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
        z = merged(*rows)
        z = z.reshape(*z.shape[:result], size, -1, *z.shape[result + 1 :])
        return jnp.moveaxis(z, result, 0), True

    return merged
