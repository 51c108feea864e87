# The base of this package, which its public modules build upon.
"""What a solver is, and the gradient of weighted losses that all solvers take."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import local
from evenhand.errors import EvenhandError, expect
from evenhand.lowering import lowered
from evenhand.types import Array, Key, Model, Params, PyTree, Risk


class Solver(NamedTuple):
    """A way to train one model; made by :func:`evenhand.centralized.batch` and its siblings.

    Attributes:
      model: what is trained.
      init: ``(params, x, y) -> state``.
      step: ``(state, x, y, number, key) -> state``; ``number`` counts the steps from 0.
      params: ``state -> params``.
      is_done: ``state -> bool``, whether no further step changes the state; None: there is always another step.
    """

    model: Model
    init: Callable[[Params, Array, Array], PyTree]
    step: Callable[[PyTree, Array, Array, Array, Key], PyTree]
    params: Callable[[PyTree], Params]
    is_done: Callable[[PyTree], Array] | None = None


def check_model(model: object) -> None:
    """Checks that ``model`` is one."""
    local.check_model(model)
    assert isinstance(model, Model)
    local.check_rows_apart(model, "centralized", "its solvers weigh the loss of each example by itself")


def check_parts(model: object, optimiser: object) -> None:
    """Checks that each part of a solver is of the kind that its argument takes."""
    check_model(model)
    expect("optimiser", optimiser, optax.GradientTransformation, "optax.sgd(0.1)")


def check_risk(risk: Risk | Callable[[Array], Risk]) -> None:
    """Refuses a factory of risks that was not called: it would take the number of the step for its parameter."""
    # Code that is executed from a text has no module.
    if isinstance(risk, FunctionType) and str(risk.__module__).startswith("evenhand.risks"):
        raise EvenhandError(
            f"risk={risk.__name__} is the function itself: call it, as in eh.risks.tilted(1.0)."
        )


def weighted_gradient(
    model: Model, params: Params, x: Array, y: Array, weigh: Callable[[Array], tuple[Array, PyTree]], key: Key
) -> tuple[Params, PyTree]:
    """``(mean of weights * gradients of losses, the rest of weigh(losses))``, with the weights held constant."""

    def total(params: Params) -> tuple[Array, PyTree]:
        if model.apply_train is None:
            outputs = lowered(model.apply)(params, x)
        else:
            outputs = lowered(model.apply_train)(params, x, key)
        # Weighed within the pass that is differentiated, so that the model is applied to the examples once.
        losses = model.losses(outputs, y)
        weights, others = weigh(lax.stop_gradient(losses))
        return jnp.mean(lax.stop_gradient(weights) * losses), others

    return jax.grad(total, has_aux=True)(params)
