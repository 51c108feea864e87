"""Running a solver on centralised data."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt
import optax
from jax import lax

from evenhand._platform import check_process
from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.lowering import lowered
from evenhand.streams import Purpose, stream
from evenhand.types import Array, Key, Model, Params, PyTree


class Solver(NamedTuple):
    """A way to train one model; made by :func:`evenhand.centralized.batch` and its siblings.

    Attributes:
      model: what is trained.
      init: ``(params, x, y) -> state``.
      step: ``(state, x, y, number, key) -> state``; ``number`` counts the steps from 0.
      params: ``state -> params``.
    """

    model: Model
    init: Callable[[Params, Array, Array], PyTree]
    step: Callable[[PyTree, Array, Array, Array, Key], PyTree]
    params: Callable[[PyTree], Params]


class Fit(NamedTuple):
    """The result of :func:`fit`: the trained parameters, and the solver's state, from which training can continue.

    Attributes:
      params: as in the model.
      state: the solver's.
      steps: the number of steps done.
      seed: decides the batches of later steps.
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
    after: Fit | None = None,
) -> Fit:
    """Trains on all examples, in one compiled loop.

    Args:
      solver: what is run.
      x: features, ``(n, ...)``.
      y: labels, ``(n, ...)``.
      steps: the number of steps.
      seed: decides the initial parameters, if none are given, and the batches; None: 0, or that of ``after``.
      params: where to start; None: the model's own initial ones.
      after: an earlier fit to continue, with the batches that would have come next.

    Raises:
      EvenhandError: no examples, not one label per example, or ``steps`` is not a whole number from 0.

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
    check_process()
    expect("solver", solver, Solver, "eh.centralized.batch(model, risk, optimiser=optax.sgd(0.1))")
    x, y = jnp.asarray(x), jnp.asarray(y)
    if not x.ndim or not x.shape[0] or y.shape[:1] != x.shape[:1]:
        raise EvenhandError(
            f"fit() got x of shape {x.shape} and y of shape {y.shape}: give one label per row."
        )
    whole_number("steps", steps, 0, 10**9)
    if seed is None:
        seed = 0 if after is None else after.seed
    # Batches are keyed by the step's number, so that a fit in two parts draws those of one in a single part.
    root = jax.random.key(seed)
    if after is None:
        initial = solver.model.init(stream(root, Purpose.INIT)) if params is None else params
        state, first = solver.init(initial, x, y), 0
    else:
        state, first = after.state, after.steps
    state = _steps(solver.step)(state, x, y, root, jnp.int32(first), jnp.int32(steps))
    return Fit(solver.params(state), state, first + steps, seed)


def check_parts(model: object, optimiser: object) -> None:
    """Checks that each part of a solver is of the kind that its argument takes."""
    expect("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)")
    expect("optimiser", optimiser, optax.GradientTransformation, "optax.sgd(0.1)")


@lru_cache(maxsize=16)  # a cache of JAX's would keep every solver that ever ran
def _steps(step: Any) -> Callable[..., PyTree]:
    """``(state, x, y, root, first, count)`` -> the state after these steps."""

    def steps(state: PyTree, x: Array, y: Array, root: Key, first: Array, count: Array) -> PyTree:
        def body(number: Array, state: PyTree) -> PyTree:
            return step(state, x, y, number, stream(root, Purpose.WORK, number))

        return lax.fori_loop(first, first + count, body, state)

    return jax.jit(steps)


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
