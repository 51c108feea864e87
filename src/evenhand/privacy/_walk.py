"""Which leaves of the parameters are used in a layer of a known kind, found in the traced program of the loss.

A leaf that a program uses once, in a product, a convolution or a look-up, belongs to a *layer*, also if it is reshaped
or transposed before.  All others are *copied*, which means that there is a gradient of each for every example: biases
and scales, kernels of convolutions in groups, leaves used twice, in slices, in loops or branches, or in functions that
bring derivatives of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn
from jax.extend.core.primitives import closed_call_p, jit_p, remat_p

from evenhand import programs
from evenhand.lowering import as_lowered, convolution_apart
from evenhand.privacy._layers import Account, Layer, looked_up, multiplied
from evenhand.types import Array

__all__ = ["Plan", "plan_of", "run"]

_ENTERED = {jit_p, closed_call_p, remat_p}
_RESHAPING = {lax.reshape_p, lax.transpose_p, lax.squeeze_p, lax.convert_element_type_p}


class Plan(NamedTuple):
    """What becomes of each leaf, by its number.

    Attributes:
      layers: the leaves that belong to a layer.
      copied: the other leaves on which the loss depends.
    """

    layers: Mapping[int, Layer]
    copied: Sequence[int]


class _Leaf(NamedTuple):
    """A leaf of the parameters on its way through a program.

    Attributes:
      number: which one.
      value: the leaf, reshaped so far.
      views: the equations that reshaped it.
    """

    number: int
    value: Any
    views: tuple[JaxprEqn, ...] = ()


def plan_of(program: Any, shapes: Sequence[jax.ShapeDtypeStruct]) -> Plan:
    """The plan for a program whose first arguments are leaves of these shapes; nothing is computed.

    Raises:
      UnknownForm: JAX stores the program in a way that is not known.
    """
    uses: dict[int, list[Layer | None]] = {}

    def step(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        found = [operand for operand in operands if isinstance(operand, _Leaf)]
        if found and equation.primitive in _RESHAPING and _is_floating(equation.outvars[0]):
            return [found[0]._replace(views=(*found[0].views, equation))]
        for leaf in found:
            layer = _layer(equation, operands, leaf, shapes[leaf.number]) if len(found) == 1 else None
            uses.setdefault(leaf.number, []).append(layer)
        return [object() for _ in equation.outvars]

    jaxpr = programs.opened(program)[0]
    leaves = [_Leaf(number, None) for number in range(len(shapes))]
    others = [object() for _ in jaxpr.invars[len(shapes) :]]
    results = _run(step, program, *leaves, *others)
    for leaf in results:
        if isinstance(leaf, _Leaf):
            uses.setdefault(leaf.number, []).append(None)
    layers = {number: found[0] for number, found in uses.items() if len(found) == 1 and found[0] is not None}
    return Plan(layers, sorted(set(uses) - set(layers)))


def run(
    program: Any, plan: Plan, leaves: Sequence[Array], others: Sequence[Array], taps: Mapping[int, Array]
) -> tuple[Array, dict[int, Array]]:
    """The program's result, with a tap added to the output of each layer, and the other operand of each layer."""
    operands_of: dict[int, Array] = {}

    def step(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        values = [operand.value if isinstance(operand, _Leaf) else operand for operand in operands]
        found = next((operand for operand in operands if isinstance(operand, _Leaf)), None)
        if found is None or found.number not in plan.layers:
            return as_lowered(equation, values)
        if equation.primitive in _RESHAPING:
            return [found._replace(value=programs.as_it_is(equation, values)[0])]
        number = found.number
        other = next(value for value, operand in zip(values, operands, strict=True) if operand is not found)
        operands_of[number] = other
        return [plan.layers[number].apply(other, found.value) + taps[number]]

    marked = [_Leaf(number, leaf) for number, leaf in enumerate(leaves)]
    (loss,) = _run(step, program, *marked, *others)
    return loss, operands_of


def _run(step: Callable[[JaxprEqn, list[Any]], Sequence[Any]], program: Any, *operands: Any) -> list[Any]:
    def entering(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive is remat_p:
            return _run(step, equation.params["jaxpr"], *operands)
        if equation.primitive in _ENTERED:
            return programs.again(equation, operands, partial(_run, step))
        return step(equation, operands)

    return programs.evaluate(*programs.opened(program), operands, entering)


def _layer(
    equation: JaxprEqn, operands: Sequence[Any], leaf: _Leaf, shape: jax.ShapeDtypeStruct
) -> Layer | None:
    """The layer that an equation is for the leaf among its operands."""
    make = _MAKERS.get(equation.primitive)
    place = next(i for i, operand in enumerate(operands) if operand is leaf)
    known = make is not None and _is_floating(equation.outvars[0])
    return make(equation, place, _Views(leaf.views, shape.shape)) if make and known else None


class _Views(NamedTuple):
    """The shape that a leaf is used in, and its own."""

    equations: tuple[JaxprEqn, ...]
    shape: tuple[int, ...]

    def used(self, leaf: Array) -> Array:
        """A leaf in the shape that it is used in."""
        for equation in self.equations:
            if equation.primitive is not lax.convert_element_type_p:
                (leaf,) = programs.as_it_is(equation, [leaf])
        return leaf

    def stored(self, used: Array) -> Array:
        """The reverse of :meth:`used`."""
        if not self.equations:
            return used
        return jax.linear_transpose(self.used, jax.ShapeDtypeStruct(self.shape, used.dtype))(used)[0]

    def account(self, account: Account) -> Account:
        """The same account, of the leaf as it is stored."""
        return account._replace(
            summed=lambda weights: self.stored(account.summed(weights)),
            along=lambda direction: account.along(self.used(direction)),
        )


def _product(equation: JaxprEqn, place: int, views: _Views) -> Layer | None:
    """``dot_general`` without axes of a batch."""
    contracted, batch = equation.params["dimension_numbers"]
    if batch[0] or batch[1]:
        return None
    leaf, other = (_aval(equation.invars[i]) for i in (place, 1 - place))
    inner, taken = contracted[place], contracted[1 - place]
    free = [axis for axis in range(leaf.ndim) if axis not in inner]
    kept = [axis for axis in range(other.ndim) if axis not in taken]
    order = (*inner, *free)
    inputs, outputs = (math.prod(leaf.shape[axis] for axis in axes) for axes in (inner, free))
    positions = math.prod(other.shape[axis] for axis in kept)

    def apply(other: Array, leaf: Array) -> Array:
        return programs.as_it_is(equation, [leaf, other] if place == 0 else [other, leaf])[0]

    def account(others: Array, slopes: Array, divided_by: Array | None) -> Account:
        examples = len(others)
        a = others.transpose(0, *(axis + 1 for axis in (*kept, *taken)))
        # What comes first in the result is what is left of the first operand.
        b = slopes.reshape(examples, outputs, positions).swapaxes(1, 2) if place == 0 else slopes

        def matrix(leaf: Array) -> Array:
            return leaf.transpose(order).reshape(inputs, outputs)

        divisor = None if divided_by is None else matrix(views.used(divided_by))
        shapes = (examples, positions, inputs), (examples, positions, outputs)
        found = multiplied(a.reshape(shapes[0]), b.reshape(shapes[1]), divisor)

        def stored(weights: Array) -> Array:
            total = found.summed(weights).reshape([leaf.shape[axis] for axis in order])
            return total.transpose([order.index(axis) for axis in range(leaf.ndim)])

        return views.account(found._replace(summed=stored, along=lambda leaf: found.along(matrix(leaf))))

    held = inputs * outputs if positions != 1 else 0
    return Layer(apply, _output(equation), held, account)


def _convolution(equation: JaxprEqn, place: int, views: _Views) -> Layer | None:
    layer = convolution_apart(equation) if place == 1 else None
    if layer is None:
        return None

    def account(others: Array, slopes: Array, divided_by: Array | None) -> Account:
        matrix = None if divided_by is None else layer.matrix(views.used(divided_by))
        found = multiplied(jax.vmap(layer.patches)(others), jax.vmap(layer.outputs)(slopes), matrix)
        return views.account(
            found._replace(
                summed=lambda weights: layer.kernel(found.summed(weights)),
                along=lambda leaf: found.along(layer.matrix(leaf)),
            )
        )

    patches = jax.eval_shape(layer.patches, _aval(equation.invars[0]))
    return Layer(layer.apply, _output(equation), math.prod(views.shape) + patches.size, account)


def _look_up(equation: JaxprEqn, place: int, views: _Views) -> Layer | None:
    """``gather`` of whole rows of a table, if there are more rows than positions squared."""
    params, table, ids = equation.params, _aval(equation.invars[0]), _aval(equation.invars[1])
    numbers, rows = params["dimension_numbers"], table.shape[0]
    whole = (1, *table.shape[1:])
    index_only = numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
    leading = numbers.offset_dims == tuple(range(ids.ndim - 1, ids.ndim + table.ndim - 2))
    plain = not numbers.operand_batching_dims and params["slice_sizes"] == whole and ids.shape[-1] == 1
    positions, width = math.prod(ids.shape), math.prod(table.shape[1:])
    if place or not (index_only and leading and plain) or positions**2 > rows * width:
        return None
    clipped = params["mode"] == lax.GatherScatterMode.CLIP

    def account(others: Array, slopes: Array, divided_by: Array | None) -> Account:
        ids = others.reshape(len(others), positions).astype(jnp.int32)
        ids = jnp.clip(ids, 0, rows - 1) if clipped else ids
        divisor = None if divided_by is None else views.used(divided_by).reshape(rows, width)
        found = looked_up(ids, slopes.reshape(len(others), positions, width), divisor, rows)
        return views.account(
            found._replace(
                summed=lambda weights: found.summed(weights).reshape(table.shape),
                along=lambda leaf: found.along(leaf.reshape(rows, width)),
            )
        )

    def apply(ids: Array, table: Array) -> Array:
        return programs.as_it_is(equation, [table, ids])[0]

    return Layer(apply, _output(equation), positions * (positions + width), account)


_MAKERS: dict[Any, Callable[[JaxprEqn, int, _Views], Layer | None]] = {
    lax.dot_general_p: _product,
    lax.conv_general_dilated_p: _convolution,
    lax.gather_p: _look_up,
}


def _aval(atom: Any) -> Any:
    return atom.aval


def _is_floating(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)


def _output(equation: JaxprEqn) -> jax.ShapeDtypeStruct:
    aval = _aval(equation.outvars[0])
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
