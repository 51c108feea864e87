"""Layers whose weights are not differentiated, and what the weights' gradient is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import JaxprEqn

from evenhand.lowering._convolution import convolution, patches
from evenhand.types import Array

__all__ = ["Convolution", "convolution_apart"]


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
    return Convolution(apply, partial(patches, params, tuple(shape[:-2])), columns, kernel, matrix)


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
            each = tuple(0 if is_batched else None for is_batched in batched)
            return jax.vmap(function, each)(*operands), True
        rows = list(operands)
        for i, axis in enumerate(axes):
            one = rows[i] if batched[i] else jnp.broadcast_to(rows[i], (size, *rows[i].shape))
            moved = jnp.moveaxis(one, 0, axis)
            rows[i] = moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
        z = merged(*rows)
        z = z.reshape(*z.shape[:result], size, -1, *z.shape[result + 1 :])
        return jnp.moveaxis(z, result, 0), True

    return merged
