"""Running a solver on rows in one place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt
import optax
from jax import lax

from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.lowering import lowered
from evenhand.streams import Purpose, stream
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["Fit", "Solver", "check_parts", "fit", "weighted_gradient"]


class Solver(NamedTuple):
    """A way to train one model; made by :func:`evenhand.centralized.batch` and its siblings.

    Attributes:
      model: what is trained.
      init: ``(params, x, y) -> state``.
      step: ``(state, x, y, number, key) -> state``, step ``number`` from 0.
      params: ``state -> params``.
    """

    model: Model
    init: Callable[[Params, Array, Array], PyTree]
    step: Callable[[PyTree, Array, Array, Array, Key], PyTree]
    params: Callable[[PyTree], Params]


class Fit(NamedTuple):
    """What :func:`fit` leaves: the trained parameters, and the solver's state, from which one may go on.

    Attributes:
      params: as in the model.
      state: the solver's.
      steps: how many steps are done.
      seed: decides what comes next.
    """

    params: Params
    state: PyTree
    steps: int
    seed: int


def fit(
    solver: Solver,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    steps: int,
    seed: int | None = None,
    params: Params | None = None,
    go_on: Fit | None = None,
) -> Fit:
    """Trains on all rows, in one compiled loop.

    Args:
      solver: how.
      x: features, ``(n, ...)``.
      y: labels, ``(n, ...)``.
      steps: how many steps.
      seed: decides the initial parameters, if none are given, and the batches; None: 0, or that of ``go_on``.
      params: where to start; None: the model's own initial ones.
      go_on: an earlier fit to go on from, with the batches that would have come next.

    Raises:
      EvenhandError: no rows, as many labels as rows are not there, or ``steps`` is not a whole number from 0.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x = jnp.arange(10.0)[:, None] / 10
      >>> y = jnp.where(jnp.arange(10) == 9, 50.0, 2 * x[:, 0])  # a line, and an outlier
      >>> ramp = lambda step: eh.risks.tilted(-2.0 * jnp.minimum(step / 500, 1.0))
      >>> robust = eh.centralized.batch(model, ramp, optimiser=optax.sgd(0.05))
      >>> kernel = fit(robust, x, y, steps=1000).params["kernel"]
      >>> bool(abs(kernel[0, 0] - 2.0) < 0.1)
      True
    """
    expect("solver", solver, Solver, "eh.centralized.batch(model, risk, optimiser=optax.sgd(0.1))")
    x, y = jnp.asarray(x), jnp.asarray(y)
    if not x.ndim or not x.shape[0] or y.shape[:1] != x.shape[:1]:
        raise EvenhandError(
            f"fit() got x of shape {x.shape} and y of shape {y.shape}: give one label per row."
        )
    whole_number("steps", steps, 0, 10**9)
    if seed is None:
        seed = 0 if go_on is None else go_on.seed
    root = jax.random.key(seed)
    if go_on is None:
        own = solver.model.init(stream(root, Purpose.INIT)) if params is None else params
        state, first = solver.init(own, x, y), 0
    else:
        state, first = go_on.state, go_on.steps
    state = _steps(solver.step, state, x, y, root, jnp.int32(first), jnp.int32(steps))
    return Fit(solver.params(state), state, first + steps, seed)


def check_parts(model: object, optimiser: object) -> None:
    """The parts of a solver are what their arguments' names say."""
    expect("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)")
    expect("optimiser", optimiser, optax.GradientTransformation, "optax.sgd(0.1)")


@partial(jax.jit, static_argnums=0)
def _steps(step: Any, state: PyTree, x: Array, y: Array, root: Key, first: Array, count: Array) -> PyTree:
    def body(number: Array, state: PyTree) -> PyTree:
        return step(state, x, y, number, stream(root, Purpose.WORK, number))

    return lax.fori_loop(first, first + count, body, state)


def weighted_gradient(
    model: Model, params: Params, x: Array, y: Array, weigh: Callable[[Array], tuple[Array, PyTree]], key: Key
) -> tuple[Params, PyTree]:
    """``(mean of weights * gradients of losses, what else weigh told)``: weights are made of the losses, and fixed."""

    def total(params: Params) -> tuple[Array, PyTree]:
        if model.apply_train is None:
            outputs = lowered(model.apply)(params, x)
        else:
            outputs = lowered(model.apply_train)(params, x, key)
        losses = model.losses(outputs, y)
        weights, told = weigh(lax.stop_gradient(losses))
        return jnp.mean(lax.stop_gradient(weights) * losses), told

    return jax.grad(total, has_aux=True)(params)
