r"""Gradients of single examples, from one traced program of the loss and one pass through it.

A leaf that a program uses once, in a product, a convolution or a look-up, belongs to a *layer*, also if it is reshaped
or transposed before.  All others are *copied*, which means that there is a gradient of each for every example: biases
and scales, kernels of convolutions in groups, leaves used twice, in slices, in loops or branches, or in functions that
bring derivatives of their own.

A layer that multiplies :math:`A_i`, ``(positions, inputs)``, by a matrix of parameters has the gradient
:math:`G_i = A_i^\top B_i` for example ``i``, where :math:`B_i`, ``(positions, outputs)``, is the loss's gradient in the
layer's outputs.  With one position, :math:`G_i = a_i b_i^\top` need not be formed: its norm is
:math:`\|a_i\| \|b_i\|`, and a weighted sum of all is one product.  With more, the :math:`G_i` are formed once, for both
norms and sum: norms from :math:`\langle A_i A_i^\top, B_i B_i^\top \rangle` would lose their digits where what the
positions add cancels, and a norm that is too small breaks the privacy guarantee.

From top to bottom: the accounts of a batch, which leaves belong to layers, and the accounts of single layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand._jaxpr import JaxprEqn, closed_call_p, jit_p, programs, remat_p
from evenhand._jaxpr.convolution import convolution_apart
from evenhand._jaxpr.lowering import as_lowered, outer
from evenhand.types import Array, Key, Model, Params

# --- the loss of one example as a program, and the accounts of a batch ------------------------------------------------


class ExampleRows(NamedTuple):
    """Examples: inputs, labels, and a key for each."""

    x: Array
    y: Array
    keys: Key


class Traced(NamedTuple):
    """The loss of one example.

    Attributes:
      program: of all leaves of the parameters, and an example's input, label and key.
      plan: which leaves belong to layers.
      numbers: how many numbers per example the accounts hold.
    """

    program: Any
    plan: LayerPlan
    numbers: int

    def accounts(
        self, leaves: Sequence[Array], rows: ExampleRows, divisors: Sequence[Array | None]
    ) -> list[LeafGradients | None]:
        """For each leaf, what the examples' gradients come to; None for one on which the loss does not depend."""
        layers, copied = self.plan.layers, {number: leaves[number] for number in self.plan.copied}
        taps = {number: jnp.zeros(layer.output.shape, layer.output.dtype) for number, layer in layers.items()}

        def loss(
            taps: dict[int, Array], copied: dict[int, Array], row: ExampleRows
        ) -> tuple[Array, dict[int, Array]]:
            used = [copied.get(number, leaf) for number, leaf in enumerate(leaves)]
            return run(self.program, self.plan, used, row, taps)

        slope = jax.vmap(jax.grad(loss, (0, 1), has_aux=True), (None, None, 0))
        (slopes, gradients), others = slope(taps, copied, rows)
        per_leaf: list[LeafGradients | None] = [None] * len(leaves)
        for number, layer in layers.items():
            per_leaf[number] = layer.account(others[number], slopes[number], divisors[number])
        for number, gradient in gradients.items():
            per_leaf[number] = formed(gradient, divisors[number])
        return per_leaf


def traced(model: Model, params: Params, rows: ExampleRows) -> Traced:
    """The loss of an example like those in ``rows``, in training.

    All leaves are copied where JAX stores the program in a way that is not known.
    """

    def loss(params: Params, row: ExampleRows) -> Array:
        if model.apply_train is None:
            outputs = model.apply(params, row.x[None])
        else:
            outputs = model.apply_train(params, row.x[None], row.keys)
        return model.losses(outputs, row.y[None])[0]

    leaves = jax.tree.map(_shape, jax.tree.leaves(params))
    row = jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), rows)
    program = jax.make_jaxpr(loss)(jax.tree.map(_shape, params), row)
    try:
        plan = plan_of(program, leaves)
        taps = {number: layer.output for number, layer in plan.layers.items()}
        jax.eval_shape(lambda leaves, row, taps: run(program, plan, leaves, row, taps), leaves, row, taps)
    except programs.UnknownForm:
        plan = LayerPlan({}, range(len(leaves)))
    sizes = [math.prod(leaves[number].shape) for number in plan.copied]
    return Traced(program, plan, sum(sizes) + sum(layer.numbers for layer in plan.layers.values()))


def _shape(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


# --- which leaves of the parameters are used in a layer of a known kind -----------------------------------------------

_ENTERED = {jit_p, closed_call_p, remat_p}
_RESHAPING = {lax.reshape_p, lax.transpose_p, lax.squeeze_p, lax.convert_element_type_p}


class LayerPlan(NamedTuple):
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


def plan_of(program: Any, shapes: Sequence[jax.ShapeDtypeStruct]) -> LayerPlan:
    """The plan for a program whose first arguments are leaves of these shapes; nothing is computed.

    Raises:
      UnknownForm: JAX stores the program in a way that is not known.
    """
    uses: dict[int, list[Layer | None]] = {}

    def step(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        matches = [operand for operand in operands if isinstance(operand, _Leaf)]
        if matches and equation.primitive in _RESHAPING and _is_floating(equation.outvars[0]):
            return [matches[0]._replace(views=(*matches[0].views, equation))]
        for leaf in matches:
            layer = _layer(equation, operands, leaf, shapes[leaf.number]) if len(matches) == 1 else None
            uses.setdefault(leaf.number, []).append(layer)
        return [object() for _ in equation.outvars]

    jaxpr = programs.opened(program)[0]
    leaves = [_Leaf(number, None) for number in range(len(shapes))]
    others = [object() for _ in jaxpr.invars[len(shapes) :]]
    results = _run(step, program, *leaves, *others)
    for leaf in results:
        if isinstance(leaf, _Leaf):
            uses.setdefault(leaf.number, []).append(None)
    layers = {
        number: matches[0] for number, matches in uses.items() if len(matches) == 1 and matches[0] is not None
    }
    return LayerPlan(layers, sorted(set(uses) - set(layers)))


def run(
    program: Any, plan: LayerPlan, leaves: Sequence[Array], others: Sequence[Array], taps: Mapping[int, Array]
) -> tuple[Array, dict[int, Array]]:
    """The program's result, with a tap added to the output of each layer, and the other operand of each layer."""
    operands_of: dict[int, Array] = {}

    def step(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        values = [operand.value if isinstance(operand, _Leaf) else operand for operand in operands]
        leaf = next((operand for operand in operands if isinstance(operand, _Leaf)), None)
        if leaf is None or leaf.number not in plan.layers:
            return as_lowered(equation, values)
        if equation.primitive in _RESHAPING:
            return [leaf._replace(value=programs.as_it_is(equation, values)[0])]
        number = leaf.number
        other = next(value for value, operand in zip(values, operands, strict=True) if operand is not leaf)
        operands_of[number] = other
        return [plan.layers[number].apply(other, leaf.value) + taps[number]]

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
    has_rule = make is not None and _is_floating(equation.outvars[0])
    return make(equation, place, _Views(leaf.views, shape.shape)) if make and has_rule else None


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

    def account(
        self, gradients: LeafGradients, leaf_of: Callable[[Array], Array], form: Callable[[Array], Array]
    ) -> LeafGradients:
        """The account, of the leaf as it is stored, of a layer that takes the leaf in another ``form``."""
        return gradients._replace(
            summed=lambda weights: self.stored(leaf_of(gradients.summed(weights))),
            along=lambda direction: gradients.along(form(self.used(direction))),
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

    def account(others: Array, slopes: Array, divided_by: Array | None) -> LeafGradients:
        examples = len(others)
        a = others.transpose(0, *(axis + 1 for axis in (*kept, *taken)))
        # What comes first in the result is what is left of the first operand.
        b = slopes.reshape(examples, outputs, positions).swapaxes(1, 2) if place == 0 else slopes

        def matrix(leaf: Array) -> Array:
            return leaf.transpose(order).reshape(inputs, outputs)

        divisor = None if divided_by is None else matrix(views.used(divided_by))
        shapes = (examples, positions, inputs), (examples, positions, outputs)
        gradients = multiplied(a.reshape(shapes[0]), b.reshape(shapes[1]), divisor)

        def leaf_of(total: Array) -> Array:
            parts = total.reshape([leaf.shape[axis] for axis in order])
            return parts.transpose([order.index(axis) for axis in range(leaf.ndim)])

        return views.account(gradients, leaf_of, matrix)

    held = inputs * outputs if positions != 1 else 0
    return Layer(apply, _output(equation), held, account)


def _convolution(equation: JaxprEqn, place: int, views: _Views) -> Layer | None:
    layer = convolution_apart(equation) if place == 1 else None
    if layer is None:
        return None

    def account(others: Array, slopes: Array, divided_by: Array | None) -> LeafGradients:
        matrix = None if divided_by is None else layer.matrix(views.used(divided_by))
        gradients = multiplied(jax.vmap(layer.patches)(others), jax.vmap(layer.outputs)(slopes), matrix)
        return views.account(gradients, layer.kernel, layer.matrix)

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

    def account(others: Array, slopes: Array, divided_by: Array | None) -> LeafGradients:
        ids = others.reshape(len(others), positions).astype(jnp.int32)
        ids = jnp.clip(ids, 0, rows - 1) if clipped else ids
        divisor = None if divided_by is None else views.used(divided_by).reshape(rows, width)
        gradients = looked_up(ids, slopes.reshape(len(others), positions, width), divisor, rows)
        return views.account(
            gradients, lambda total: total.reshape(table.shape), lambda leaf: leaf.reshape(rows, width)
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


# --- the gradients of one layer, from what went in and the gradient of what came out ----------------------------------

WeightedSum = Callable[[Array], Array]
"""``weights (b,) -> sum_i weights_i * g_i``; examples of weight 0 add nothing, be they infinite or not a number."""
Projection = Callable[[Array], Array]
"""``direction -> (b,)``: the inner products of the ``g_i`` with it."""


class LeafGradients(NamedTuple):
    """What the gradients of ``b`` examples with respect to one leaf come to, divided by ``divided_by``.

    Attributes:
      squares: ``(b,)``, their squared norms.
      summed: their weighted sum.
      along: their inner products with a direction.
    """

    squares: Array
    summed: WeightedSum
    along: Projection


class Layer(NamedTuple):
    """An equation in which a leaf of the parameters is used, and nothing else of them.

    Attributes:
      apply: ``(other operand, leaf) -> output`` for one example; not to be differentiated in the leaf.
      output: the shape and type of the output.
      numbers: how many numbers per example :attr:`account` holds at a time.
      account: ``(other operands, gradients of the outputs, divisor or None) -> LeafGradients``, examples first.
    """

    apply: Callable[[Array, Array], Array]
    output: jax.ShapeDtypeStruct
    numbers: int
    account: Callable[[Array, Array, Array | None], LeafGradients]


def formed(gradients: Array, divided_by: Array | None) -> LeafGradients:
    """The account of gradients ``(b, ...)`` that there are."""
    rows = _full(gradients).reshape(len(gradients), -1)
    if divided_by is not None:
        rows = rows / divided_by.reshape(1, -1).astype(rows.dtype)

    def summed(weights: Array) -> Array:
        used = jnp.where(weights[:, None] > 0, rows, 0.0)
        total = jnp.matmul(weights.astype(rows.dtype), used, precision=lax.Precision.HIGHEST)
        return total.reshape(gradients.shape[1:])

    def along(direction: Array) -> Array:
        return jnp.matmul(rows, direction.reshape(-1).astype(rows.dtype), precision=lax.Precision.HIGHEST)

    return LeafGradients(_squares(rows), summed, along)


def multiplied(inputs: Array, slopes: Array, divided_by: Array | None) -> LeafGradients:
    """The account of a matrix ``(in, out)``: inputs ``(b, positions, in)`` and slopes ``(b, positions, out)``."""
    inputs, slopes = _full(inputs), _full(slopes)
    if inputs.shape[1] != 1:
        products = jnp.einsum("bti,bto->bio", inputs, slopes, precision=lax.Precision.HIGHEST)
        return formed(products, divided_by)
    a, b = inputs[:, 0], slopes[:, 0]
    # The size of the slopes moves to the inputs: what is below 1e-19, whose square is 0, then is so in the product.
    size = _power_of_two(jnp.max(jnp.abs(b), axis=1, initial=0.0))[:, None]
    a, b = a * size, b * (1.0 / size)
    if divided_by is None:
        squares = _squares(a) * _squares(b)
    else:
        shares = jnp.matmul(_square(a), jnp.maximum(divided_by**-2, _LEAST), precision=lax.Precision.HIGHEST)
        squares = jnp.sum(shares * _square(b), axis=1)

    def summed(weights: Array) -> Array:
        factors = weights[:, None].astype(b.dtype)
        total = outer(jnp.where(factors > 0, a, 0.0), jnp.where(factors > 0, factors * b, 0.0))
        return total if divided_by is None else quotient(total, divided_by)

    def along(direction: Array) -> Array:
        once = direction if divided_by is None else direction / divided_by
        return jnp.sum(jnp.matmul(a, once.astype(a.dtype), precision=lax.Precision.HIGHEST) * b, axis=1)

    return LeafGradients(squares, summed, along)


def looked_up(ids: Array, slopes: Array, divided_by: Array | None, rows: int) -> LeafGradients:
    """The account of a table ``(rows, width)`` of which ``ids (b, positions)`` were read; ids beyond it are left out.

    The gradient's row for an id is the sum of the slopes ``(b, positions, width)`` where it was read.  It stands at the
    first of these positions, for both norm and sum: slopes that are added up anew would cancel to other digits.
    """
    inside = (ids >= 0) & (ids < rows)
    ids = jnp.where(inside, ids, 0)
    slopes = jnp.where(inside[:, :, None], _full(slopes), 0.0)
    if divided_by is not None:
        slopes = slopes / divided_by[ids]
    pairs = inside[:, :, None] & inside[:, None, :]
    same = (pairs & (ids[:, :, None] == ids[:, None, :])).astype(slopes.dtype)
    first = inside & (jnp.sum(jnp.tril(same, -1), axis=2) == 0)
    sums = jnp.einsum("bts,bsw->btw", same, slopes, precision=lax.Precision.HIGHEST)
    sums = jnp.where(first[:, :, None], sums, 0.0)
    squares = jnp.sum(jnp.sum(jnp.square(sums), axis=2), axis=1)

    def summed(weights: Array) -> Array:
        factors = weights[:, None, None].astype(sums.dtype)
        used = jnp.where(factors > 0, factors * sums, 0.0)
        width = sums.shape[2]
        table = jnp.zeros((rows, width), sums.dtype)
        return table.at[ids.reshape(-1)].add(used.reshape(-1, width))

    def along(direction: Array) -> Array:
        return jnp.sum(sums * direction.astype(sums.dtype)[ids], axis=(1, 2))

    return LeafGradients(squares, summed, along)


def full_type(*arrays: Array) -> Any:
    """float32, or float64 if one of the arrays has it."""
    return jnp.float64 if any(array.dtype == jnp.float64 for array in arrays) else jnp.float32


def quotient(total: Array, divided_by: Array) -> Array:
    """``total / divided_by``, and 0 where nothing came together, even over a divisor of 0."""
    return jnp.where(total == 0, 0.0, total / divided_by)


def _full(numbers: Array) -> Array:
    return numbers.astype(full_type(numbers))


def _squares(rows: Array) -> Array:
    return jnp.einsum("bn,bn->b", rows, rows, precision=lax.Precision.HIGHEST)


_LEAST = 2.0**-126
"""A square that float32 holds with all digits."""


def _square(numbers: Array) -> Array:
    """The squares, at least the least one where a number is not 0: a divisor may make it large again."""
    return jnp.where(numbers == 0, 0.0, jnp.maximum(jnp.square(numbers), _LEAST))


def _power_of_two(sizes: Array) -> Array:
    """The powers of two next to ``sizes``; division by one of them keeps all digits."""
    form = jnp.finfo(sizes.dtype)
    powers = lax.reduce_precision(sizes, form.nexp, 0)
    return jnp.clip(powers, form.tiny, 1.0 / form.tiny)
