"""L-BFGS on a risk of all examples: the solver that needs no step size."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import tree
from evenhand.centralized._solver import Solver, check_model
from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.lowering import lowered
from evenhand.types import Array, Key, Model, Params, PyTree, Risk

__all__ = ["RiskOf", "quasi_newton"]

RiskOf: TypeAlias = Callable[[Params, Array, Array], Risk]
"""``(params, x, y) -> risk``, such as one over the classes of the labels."""


class _Descent(NamedTuple):
    """``missed``: how many steps in turn did not descend; the second one began with the gradient alone."""

    params: Params
    optimiser: optax.OptState
    missed: Array


def quasi_newton(model: Model, risk: Risk | RiskOf, *, memory: int = 10) -> Solver:
    r"""L-BFGS with a line search on a risk of all examples.

    .. math::
        \theta \leftarrow \theta - \alpha H \nabla R(\theta), \qquad
        R(\theta) = \texttt{risk.value}(f_1(\theta), \dots, f_N(\theta))

    where :math:`H` approximates the inverse Hessian from the last ``memory`` steps, and the line search chooses
    :math:`\alpha` by the strong Wolfe conditions.

    Args:
      model: what is trained.
      risk: over all examples; or a function ``(params, x, y)`` that gives one.
      memory: the number of steps that :math:`H` is made of.

    Raises:
      EvenhandError: the model draws random numbers in training, such as dropout, which a line search cannot compare; or
        ``memory`` is not a whole number from 1 to 100.

    Edge cases: a step that does not lower the risk, or is not finite, is not taken, and the next begins with the
    gradient alone: a converged fit stays as it is.  For risks with kinks, such as the superquantile, it stops at a
    point from which no step descends.  A tilted risk with ``t < 0`` is not convex: the fit is the local minimum that
    the start leads to.

    Differs from the paper, which takes gradient steps of a fixed size.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> model = eh.models.linear_regression(features=1)
      >>> x, y = jnp.array([[0.0], [0.0], [1.0]]), jnp.array([0.0, 0.0, 3.0])
      >>> params = eh.centralized.fit(quasi_newton(model, eh.risks.tilted(1.0)), x, y, steps=20).params
      >>> model.apply(params, x)[:, 0].round(2)
      Array([0., 0., 3.], dtype=float32)

    Source: Liu and Nocedal, *On the Limited Memory BFGS Method for Large Scale Optimization*, 1989, as in optax.
    """
    check_model(model)
    expect("risk", risk, Risk | FunctionType, "eh.risks.tilted(1.0)")
    memory = whole_number("memory", memory, 1, 100)
    if model.apply_train is not None:
        raise EvenhandError(
            "quasi_newton() compares losses along a line, and this model draws random numbers in training, such as "
            "dropout: give batch(model, risk, optimiser=...) or another solver."
        )
    optimiser = optax.lbfgs(memory_size=memory)

    def init(params: Params, x: Array, y: Array) -> _Descent:
        return _Descent(params, optimiser.init(params), jnp.int32(0))

    def descend(state: _Descent, x: Array, y: Array) -> _Descent:
        def value(params: Params) -> Array:
            now = risk if isinstance(risk, Risk) else risk(params, x, y)
            return now.value(model.losses(lowered(model.apply)(params, x), y))

        before, gradient = jax.value_and_grad(value)(state.params)
        updates, memory = optimiser.update(
            gradient, state.optimiser, state.params, value=before, grad=gradient, value_fn=value
        )
        after = _Descent(tree.add(state.params, updates), memory, jnp.int32(0))
        # At the minimum the line search has nothing to find: rounding would move the parameters about.
        afresh = init(state.params, x, y)._replace(missed=state.missed + 1)
        return tree.select(value(after.params) < before, after, afresh)

    def is_done(state: _Descent) -> Array:
        # The second miss began with the gradient alone, so that each further step would miss, too.
        return state.missed >= 2

    def step(state: _Descent, x: Array, y: Array, number: Array, key: Key) -> _Descent:
        return lax.cond(is_done(state), lambda state, x, y: state, descend, state, x, y)

    return Solver(model, init, step, _params, is_done)


def _params(state: PyTree) -> Params:
    return state.params
