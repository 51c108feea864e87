r"""Per-example gradients of single layers, from what went in and the gradient of what came out.

A layer that multiplies :math:`A_i`, ``(positions, inputs)``, by a matrix of parameters has the gradient
:math:`G_i = A_i^\top B_i` for example ``i``, where :math:`B_i`, ``(positions, outputs)``, is the loss's gradient in the
layer's outputs.  With one position, :math:`G_i = a_i b_i^\top` need not be formed: its norm is
:math:`\|a_i\| \|b_i\|`, and a weighted sum of all is one product.  With more, the :math:`G_i` are formed once, for both
norms and sum: norms from :math:`\langle A_i A_i^\top, B_i B_i^\top \rangle` would lose their digits where what the
positions add cancels, and a norm that is too small breaks the promise of privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.lowering import outer
from evenhand.types import Array

__all__ = ["Account", "Along", "Layer", "Sum", "formed", "full_type", "looked_up", "multiplied"]

Sum = Callable[[Array], Array]
"""``weights (b,) -> sum_i weights_i * g_i``; examples of weight 0 add nothing, be they infinite or not a number."""

Along = Callable[[Array], Array]
"""``direction -> (b,)``: the inner products of the ``g_i`` with it."""


class Account(NamedTuple):
    """What the gradients of ``b`` examples with respect to one leaf come to, divided by ``divided_by``.

    Attributes:
      squares: ``(b,)``, their squared norms.
      summed: their weighted sum.
      along: their inner products with a direction.
    """

    squares: Array
    summed: Sum
    along: Along


class Layer(NamedTuple):
    """An equation in which a leaf of the parameters is used, and nothing else of them.

    Attributes:
      apply: ``(other operand, leaf) -> output`` for one example; not to be differentiated in the leaf.
      output: the shape and type of the output.
      numbers: how many numbers per example :attr:`account` holds at a time.
      account: ``(other operands, gradients of the outputs, divisor or None) -> Account``, examples first.
    """

    apply: Callable[[Array, Array], Array]
    output: jax.ShapeDtypeStruct
    numbers: int
    account: Callable[[Array, Array, Array | None], Account]


def formed(gradients: Array, divided_by: Array | None) -> Account:
    """The account of gradients ``(b, ...)`` that there are."""
    each = _full(gradients).reshape(len(gradients), -1)
    if divided_by is not None:
        each = each / divided_by.reshape(1, -1).astype(each.dtype)

    def summed(weights: Array) -> Array:
        used = jnp.where(weights[:, None] > 0, each, 0.0)
        total = jnp.matmul(weights.astype(each.dtype), used, precision=lax.Precision.HIGHEST)
        return total.reshape(gradients.shape[1:])

    def along(direction: Array) -> Array:
        return jnp.matmul(each, direction.reshape(-1).astype(each.dtype), precision=lax.Precision.HIGHEST)

    return Account(_squares(each), summed, along)


def multiplied(inputs: Array, slopes: Array, divided_by: Array | None) -> Account:
    """The account of a matrix ``(in, out)``: inputs ``(b, positions, in)`` and slopes ``(b, positions, out)``."""
    inputs, slopes = _full(inputs), _full(slopes)
    if inputs.shape[1] != 1:
        products = jnp.einsum("bti,bto->bio", inputs, slopes, precision=lax.Precision.HIGHEST)
        return formed(products, divided_by)
    a, b = inputs[:, 0], slopes[:, 0]
    if divided_by is None:
        squares = _squares(a) * _squares(b)
    else:
        shares = jnp.matmul(jnp.square(a), divided_by**-2, precision=lax.Precision.HIGHEST)
        squares = jnp.sum(shares * jnp.square(b), axis=1)

    def summed(weights: Array) -> Array:
        factors = weights[:, None].astype(b.dtype)
        total = outer(jnp.where(factors > 0, a, 0.0), jnp.where(factors > 0, factors * b, 0.0))
        return total if divided_by is None else quotient(total, divided_by)

    def along(direction: Array) -> Array:
        once = direction if divided_by is None else direction / divided_by
        return jnp.sum(jnp.matmul(a, once.astype(a.dtype), precision=lax.Precision.HIGHEST) * b, axis=1)

    return Account(squares, summed, along)


def looked_up(ids: Array, slopes: Array, divided_by: Array | None, rows: int) -> Account:
    """The account of a table ``(rows, width)`` of which ``ids (b, positions)`` were read; ids beyond it are left out.

    The gradient's row for an id is the sum of the slopes ``(b, positions, width)`` where it was read.  Every position
    gets this sum, and its square counts once for each id.
    """
    inside = (ids >= 0) & (ids < rows)
    ids = jnp.where(inside, ids, 0)
    slopes = jnp.where(inside[:, :, None], _full(slopes), 0.0)
    if divided_by is not None:
        slopes = slopes / divided_by[ids]
    pairs = inside[:, :, None] & inside[:, None, :]
    same = (pairs & (ids[:, :, None] == ids[:, None, :])).astype(slopes.dtype)
    sums = jnp.einsum("bts,bsw->btw", same, slopes, precision=lax.Precision.HIGHEST)
    times = jnp.maximum(jnp.sum(same, axis=2), 1.0)
    squares = jnp.sum(jnp.sum(jnp.square(sums), axis=2) / times, axis=1)

    def summed(weights: Array) -> Array:
        factors = weights[:, None, None].astype(slopes.dtype)
        used = jnp.where(factors > 0, factors * slopes, 0.0)
        width = slopes.shape[2]
        table = jnp.zeros((rows, width), slopes.dtype)
        return table.at[ids.reshape(-1)].add(used.reshape(-1, width))

    def along(direction: Array) -> Array:
        return jnp.sum(slopes * direction.astype(slopes.dtype)[ids], axis=(1, 2))

    return Account(squares, summed, along)


def full_type(*arrays: Array) -> Any:
    """float32, or float64 if one of the arrays has it."""
    return jnp.float64 if any(array.dtype == jnp.float64 for array in arrays) else jnp.float32


def quotient(total: Array, divided_by: Array) -> Array:
    """``total / divided_by``, and 0 where nothing came together, even over a divisor of 0."""
    return jnp.where(total == 0, 0.0, total / divided_by)


def _full(numbers: Array) -> Array:
    return numbers.astype(full_type(numbers))


def _squares(each: Array) -> Array:
    return jnp.einsum("bn,bn->b", each, each, precision=lax.Precision.HIGHEST)
