"""Runs a traced function with some of its primitives replaced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, TypeVarTuple

import jax
from jax import lax
from jax.extend.core import JaxprEqn, Primitive
from jax.extend.core.primitives import closed_call_p, cond_p, jit_p, remat_p, scan_p

from evenhand import programs
from evenhand.lowering._convolution import convolution
from evenhand.lowering._pooling import maximum
from evenhand.lowering._product import product
from evenhand.types import Array

__all__ = ["as_lowered", "lowered"]

_Arguments = TypeVarTuple("_Arguments")
_R = TypeVar("_R")

_RULES: dict[Primitive, Callable[[JaxprEqn], Callable[..., Array] | None]] = {
    lax.conv_general_dilated_p: convolution,
    lax.reduce_window_max_p: maximum,
    lax.dot_general_p: product,
}
"""What stands in for a primitive: a function of its operands, or None where the primitive itself is faster."""
_ENTERED = {jit_p, closed_call_p, scan_p, remat_p, cond_p}


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
        outputs = _lowered(closed, jax.tree.leaves(arguments))
        if outputs is None:
            return function(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return call


def _lowered(program: Any, arguments: Sequence[Any]) -> list[Any] | None:
    """The results; None where there is nothing to replace, or no knowing how."""
    try:
        return _run(program, *arguments) if _has_work(program) else None
    except (
        Exception
    ) as error:  # the function itself has been traced: what fails is the walk through its program
        warnings.warn(
            f"JAX {jax.__version__} keeps programs in a way that Evenhand does not know ({error!r}): convolutions and"
            f" pooling are left to XLA, which makes local training on a CPU several times slower.",
            stacklevel=3,
        )
        return None


def _run(program: Any, *operands: Any) -> list[Any]:
    return programs.evaluate(*programs.opened(program), operands, as_lowered)


def as_lowered(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation, by the rules of :func:`lowered`: what :func:`evenhand.programs.as_it_is` is without.

    Raises:
      UnknownForm: the equation has an inner program to be lowered, in a form that is not known.
    """
    rule = _RULES.get(equation.primitive)
    function = rule(equation) if rule else None
    if function is not None:
        return [function(*operands)]
    if not any(map(_has_work, _inner(equation))):
        return programs.as_it_is(equation, operands)
    if equation.primitive is remat_p:
        params = equation.params
        inner = partial(_run, params["jaxpr"])
        return jax.checkpoint(inner, prevent_cse=params["prevent_cse"], policy=params["policy"])(*operands)
    return programs.again(equation, operands, _run)


def _has_work(program: Any) -> bool:
    for equation in programs.opened(program)[0].eqns:
        rule = _RULES.get(equation.primitive)
        if (rule and rule(equation)) or any(map(_has_work, _inner(equation))):
            return True
    return False


def _inner(equation: JaxprEqn) -> list[Any]:
    """The programs inside an equation that may be rewritten: not those that come with derivatives of their own."""
    return programs.inner(equation) if equation.primitive in _ENTERED else []
