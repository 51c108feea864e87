"""Runs a traced function with some of its primitives replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, TypeVarTuple, cast

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive
from jax.extend.core.primitives import closed_call_p, cond_p, jit_p, remat_p, scan_p

from evenhand.lowering._convolution import convolution
from evenhand.lowering._pooling import maximum
from evenhand.lowering._product import product
from evenhand.types import Array

__all__ = ["lowered", "scan_counts"]

_Arguments = TypeVarTuple("_Arguments")
_R = TypeVar("_R")
_Values = Sequence[Any]

_RULES: dict[Primitive, Callable[[JaxprEqn], Callable[..., Array] | None]] = {
    lax.conv_general_dilated_p: convolution,
    lax.reduce_window_max_p: maximum,
    lax.dot_general_p: product,
}
"""What stands in for a primitive: a function of its operands, or None where the primitive itself is faster."""


def lowered(function: Callable[[*_Arguments], _R]) -> Callable[[*_Arguments], _R]:
    """The same function of arrays, with what XLA does slowly in a loop or under ``vmap`` done another way.

    See :mod:`evenhand.lowering` for what that is.  All local training goes through here; a solver of your own
    that calls ``model.apply`` itself should call ``lowered(model.apply)``.

    Args:
      function: trees of arrays -> tree of arrays, pure and traceable; it is traced once more per call.

    Returns:
      A function with the same arguments and results up to rounding, to be transformed like any other; it calls
      ``function`` itself where there is nothing to replace.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model, x = models.cnn_femnist(), jnp.zeros((1, 784))
      >>> params = jax.eval_shape(model.init, jax.random.key(0))
      >>> def gradient(apply):
      ...     return str(jax.make_jaxpr(jax.grad(lambda w: jnp.sum(apply(w, x))))(params))
      >>> ["conv_general_dilated" in gradient(apply) for apply in (model.apply, lowered(model.apply))]
      [True, False]
    """

    @wraps(function)
    def call(*arguments: *_Arguments) -> _R:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _has_work(closed.jaxpr):
            return function(*arguments)
        outputs = _run(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return call


def _run(jaxpr: Jaxpr, consts: _Values, arguments: _Values) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        with equation.ctx.manager:
            outputs = _step(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _step(equation: JaxprEqn, operands: _Values) -> _Values:
    rule = _RULES.get(equation.primitive)
    function = rule(equation) if rule else None
    if function is not None:
        return [function(*operands)]
    if any(map(_has_work, _inner(equation))):
        return _structure(equation, operands)
    primitive = equation.primitive
    outputs = primitive.bind(*operands, **cast("dict[str, Any]", primitive.get_bind_params(equation.params)))
    return outputs if primitive.multiple_results else [outputs]


def _has_work(jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        rule = _RULES.get(equation.primitive)
        if (rule and rule(equation)) or any(map(_has_work, _inner(equation))):
            return True
    return False


def _inner(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs inside an equation that may be rewritten: not those that come with derivatives of their own."""
    primitive, params = equation.primitive, equation.params
    if primitive in (jit_p, closed_call_p, scan_p, remat_p):
        return [_open(params["call_jaxpr" if primitive is closed_call_p else "jaxpr"])[0]]
    if primitive is cond_p:
        return [branch.jaxpr for branch in params["branches"]]
    return []


def _structure(equation: JaxprEqn, operands: _Values) -> _Values:
    primitive, params = equation.primitive, equation.params
    if primitive is cond_p:
        branches = [_as_function(branch) for branch in params["branches"]]
        return lax.switch(operands[0], branches, *operands[1:])
    if primitive is scan_p:
        return _scan(params, operands)
    if primitive is remat_p:
        inner = _as_function(params["jaxpr"])
        return jax.checkpoint(inner, prevent_cse=params["prevent_cse"], policy=params["policy"])(*operands)
    return _as_function(params["call_jaxpr" if primitive is closed_call_p else "jaxpr"])(*operands)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # as JAX 0.12 keeps them
    return len(consts), len(carry)


def _scan(params: dict[str, Any], operands: _Values) -> _Values:
    num_consts, num_carry = scan_counts(params)
    consts, begin = operands[:num_consts], operands[num_consts : num_consts + num_carry]
    inner = _as_function(params["jaxpr"])

    def body(carry: _Values, row: _Values) -> tuple[_Values, _Values]:
        outputs = inner(*consts, *carry, *row)
        return outputs[:num_carry], outputs[num_carry:]

    end, rows = lax.scan(
        body,
        begin,
        operands[num_consts + num_carry :],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*end, *rows]


def _as_function(program: Jaxpr | ClosedJaxpr) -> Callable[..., list[Any]]:
    return partial(_call, *_open(program))


def _call(jaxpr: Jaxpr, consts: _Values, *operands: Any) -> list[Any]:
    return _run(jaxpr, consts, operands)


def _open(program: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, _Values]:
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
