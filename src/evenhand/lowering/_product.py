"""Matrix products with few columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from evenhand.types import Array

__all__ = ["outer", "product"]

_MATRICES = (((1,), (0,)), ((), ()))
_FEWEST_FEATURES = 128
_COLUMNS = (2, 32)
"""Fewest and most columns for which the gradient is faster this way."""


def product(equation: JaxprEqn) -> Callable[[Array, Array], Array] | None:
    """The rule for ``dot_general``: a product of two matrices, the second one tall and narrow, on the CPU."""
    x, w = (cast("Any", operand.aval) for operand in equation.invars)
    if equation.params["dimension_numbers"] != _MATRICES or jax.default_backend() != "cpu":
        return None
    if w.ndim != 2:  # a vector
        return None
    tall = w.shape[0] >= _FEWEST_FEATURES and _COLUMNS[0] <= w.shape[1] <= _COLUMNS[1]
    floating = all(jnp.issubdtype(operand.dtype, jnp.floating) for operand in (x, w))
    return partial(_matmul, equation.params) if tall and floating else None


def _matmul(params: dict[str, Any], x: Array, w: Array) -> Array:
    # XLA would fold the transpose into the product and make x^T g of it, which is slower than (g^T x)^T.
    return lax.dot_general_p.bind(x, _apart(w.T).T, **params)


def outer(a: Array, b: Array) -> Array:
    """``a^T b`` of ``a (n, rows)`` and ``b (n, columns)``, in full precision, and transposed where that is faster."""
    highest = lax.Precision.HIGHEST
    narrow = a.shape[1] >= _FEWEST_FEATURES and _COLUMNS[0] <= b.shape[1] <= _COLUMNS[1]
    if narrow and jax.default_backend() == "cpu":
        return lax.optimization_barrier(jnp.matmul(b.T, a, precision=highest)).T
    return jnp.matmul(a.T, b, precision=highest)


@jax.custom_jvp
def _apart(x: Array) -> Array:
    """The identity, whose derivative the compiler does not merge with what comes before or after."""
    return x


@_apart.defjvp
def _apart_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], lax.optimization_barrier(tangents[0])
