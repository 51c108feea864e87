"""Pictures with channels first, kept with channels last between the operations that allow it.

PyTorch puts channels first, ``(n, c, h, w)``, and the products that :mod:`.convolution` makes want them last.  Turned
around each convolution, a small network takes half as long again; here a picture is turned once, by its first
convolution, and turned back where an operation depends on the order, such as a reshape before a dense layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from evenhand._jaxpr import JaxprEqn
from evenhand._jaxpr.programs import as_it_is, evaluate, inner, opened
from evenhand.types import Array

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

_ELEMENTWISE = {
    *(
        "abs",
        "add",
        "and",
        "clamp",
        "convert_element_type",
        "copy",
        "cos",
        "div",
        "eq",
        "erf",
        "exp",
        "exp2",
        "expm1",
    ),
    *(
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
    ),
    *(
        "not",
        "or",
        "pow",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tanh",
        "xor",
    ),
}
_WINDOWS = {"reduce_window_max", "reduce_window_min", "reduce_window_sum"}
_REDUCTIONS = {"reduce_max", "reduce_min", "reduce_sum"}


class _Turned(NamedTuple):
    """A picture ``(n, c, h, w)`` that lies in memory as ``(n, h, w, c)``."""

    array: Array


def channels_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of arrays, with its pictures turned; its results are the same up to the order of sums.

    Example:
      >>> import jax.numpy as jnp
      >>> def pooled(x, kernel):
      ...     return jax.nn.relu(lax.conv(x, kernel, (1, 1), "SAME")).mean((2, 3))
      >>> x, kernel = jnp.ones((2, 3, 4, 4)), jnp.ones((5, 3, 3, 3))
      >>> bool(jnp.allclose(channels_last(pooled)(x, kernel), pooled(x, kernel)))
      True
    """

    def turned(*arguments: Any) -> Any:
        program, form = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _run(program, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(form), list(map(_plain, results)))

    return turned


def _run(program: Any, arguments: Sequence[Any]) -> list[Any]:
    return evaluate(*opened(program), arguments, _step)


def _plain(value: Any) -> Any:
    return lax.transpose(value.array, _FIRST) if isinstance(value, _Turned) else value


def _last(value: Any) -> Any:
    """The value with its channels last, if it is a picture; numbers stay as they are."""
    if isinstance(value, _Turned):
        return value.array
    return lax.transpose(value, _LAST) if jnp.ndim(value) == 4 else value


def _step(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    name = equation.primitive.name
    if name == "conv_general_dilated" and _is_channels_first(equation):
        return [_convolved(equation, operands)]
    if name == "jit":  # its operations may be ours; those of other calls bring derivatives of their own
        return _run(inner(equation)[0], operands)
    if any(isinstance(value, _Turned) for value in operands):
        if name in _ELEMENTWISE:  # of arrays with as many axes, and of numbers
            return [_Turned(as_it_is(equation, list(map(_last, operands)))[0])]
        if name in _WINDOWS:
            return [_Turned(_bound(equation, operands[0].array, _windows(equation.params)))]
        if name in _REDUCTIONS:
            return [_reduced(equation, operands[0].array)]
        if name == "custom_jvp_call" and len(operands) == 1 and _is_elementwise(inner(equation)[0]):
            return [_anywhere(equation, operands[0].array)]
    return as_it_is(equation, list(map(_plain, operands)))


def _bound(equation: JaxprEqn, x: Array, params: dict[str, Any]) -> Array:
    primitive: Any = equation.primitive
    return primitive.bind(x, **params)


def _is_channels_first(equation: JaxprEqn) -> bool:
    numbers = equation.params["dimension_numbers"]
    return numbers.lhs_spec == numbers.out_spec == (0, 1, 2, 3)


def _convolved(equation: JaxprEqn, operands: list[Any]) -> _Turned:
    numbers = equation.params["dimension_numbers"]._replace(lhs_spec=_FIRST, out_spec=_FIRST)
    primitive: Any = equation.primitive
    params = {**equation.params, "dimension_numbers": numbers}
    return _Turned(primitive.bind(_last(operands[0]), _plain(operands[1]), **params))


def _windows(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a window whose entries, one for each axis, are turned."""
    axes = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return {**params, **{name: tuple(params[name][axis] for axis in _LAST) for name in axes}}


def _reduced(equation: JaxprEqn, x: Array) -> Array:
    axes = equation.params["axes"]
    kept = [axis for axis in _LAST if axis not in axes]
    params = {**equation.params, "axes": tuple(sorted(_LAST.index(axis) for axis in axes))}
    # What is left lies in the order of the turned picture.
    return lax.transpose(_bound(equation, x, params), [kept.index(axis) for axis in sorted(kept)])


def _is_elementwise(program: Any) -> bool:
    """Whether every operation of a program of one array works number by number."""
    jaxpr: Any = opened(program)[0]
    shapes = {variable.aval.shape for variable in (*jaxpr.invars, *jaxpr.outvars)}
    return len(jaxpr.outvars) == len(shapes) == 1 and all(
        equation.primitive.name in _ELEMENTWISE
        or (equation.primitive.name == "jit" and all(map(_is_elementwise, inner(equation))))
        for equation in jaxpr.eqns
    )


def _anywhere(equation: JaxprEqn, x: Array) -> _Turned:
    """An elementwise function with a derivative of its own, and that derivative, of a turned picture."""
    program, shape = inner(equation)[0], cast("Any", equation.invars[0].aval)

    # Not reshaped to the form that the program was traced for: XLA then finds the place of each number by divisions.
    @jax.custom_jvp
    def function(x: Array) -> Array:
        return _last(_run(program, [_Turned(x)])[0])

    @function.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        given = jax.ShapeDtypeStruct(shape.shape, shape.dtype)
        derivative = jax.make_jaxpr(partial(jax.jvp, lambda x: as_it_is(equation, [x])[0]))(
            (given,), (given,)
        )
        value, slope = map(_last, _run(derivative, [_Turned(*primals), _Turned(*tangents)]))
        return value, slope

    return _Turned(function(x))
