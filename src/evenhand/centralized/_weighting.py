"""Weights of single examples that depend on labels, on losses or on clean examples, and the solver that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand.centralized._solver import Solver, check_parts, weighted_gradient
from evenhand.centralized._solvers import descended
from evenhand.errors import EvenhandError, expect, real_number, whole_number
from evenhand.local import rows_in
from evenhand.text import short
from evenhand.types import Array, Key, Model, Params, PyTree


class Weighed(NamedTuple):
    """What a weighting sees of a step.

    Attributes:
      params: the model's parameters before the step.
      x: the batch's features, ``(m, ...)``.
      y: its labels, ``(m, ...)``.
      losses: its losses at these parameters, ``(m,)``.
      progress: the share of the steps that are done, in [0, 1); 1 in steps beyond the planned ones.
      key: for this step's random numbers.
    """

    params: Params
    x: Array
    y: Array
    losses: Array
    progress: Array
    key: Key


class Weighting(NamedTuple):
    """How much each example of a batch counts.

    A step is along :math:`\\frac1m \\sum_i w_i \\nabla f_i`, with the weights held constant: weights of 1 are plain
    training, and a batch whose weights are all 0 has a gradient of 0.

    Attributes:
      init: ``(model, x, y) -> state``, given all training examples.
      weigh: ``(model, state, batch) -> (weights, state)``; weights are ``(m,)`` and nonnegative.
      name: as an expression makes it, such as ``"self_paced(percentile=70)"``.
    """

    init: Callable[[Model, Array, Array], PyTree]
    weigh: Callable[[Model, PyTree, Weighed], tuple[Array, PyTree]]
    name: str
    __repr__ = short


class _Weighted(NamedTuple):
    """``weight`` is the mean weight of the last batch; ``weighting`` is the state of the weighting."""

    params: Params
    optimiser: optax.OptState
    weighting: PyTree
    weight: Array


def weighted(
    model: Model,
    weighting: Weighting,
    *,
    batch_size: int | float | None,
    optimiser: optax.GradientTransformation,
    steps: int,
) -> Solver:
    r"""Stochastic gradient descent in which a weighting decides how much each example of a batch counts.

    .. math::
        \theta \leftarrow \theta - \frac{\alpha}{|B|} \sum_{i \in B} w_i \nabla f_i(\theta), \qquad
        w = \texttt{weighting.weigh}(\text{batch } B \text{ at } \theta)

    The weights are constants of the gradient.  One forward pass gives both the losses that the weighting sees and the
    gradient.

    Args:
      model: what is trained.
      weighting: such as ``eh.centralized.self_paced(percentile=70)``.
      batch_size: :math:`|B|`, examples per batch, drawn uniformly with replacement; a number below 1 is the share of
        all examples, rounded down to at least one example; None: all examples in each step.
      optimiser: takes that gradient.
      steps: the planned number of steps, by which a weighting measures progress; give ``fit`` the same number.

    Raises:
      EvenhandError: a number out of range, or a weighting that does not return one weight per example.

    Edge cases: if all weights are 1, this is stochastic gradient descent with the batches of
    ``stochastic(t=0)``, or, with ``batch_size=None``, gradient descent.  If all weights of a batch are 0, so is its
    gradient; an optimiser with momentum still moves.  The state's ``weight`` is the mean weight of the last batch: near
    0, training stalls.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x, y = jnp.ones((10, 1)), jnp.array([0.0] * 9 + [1.0])  # nine rows against one
      >>> even = eh.centralized.inverse_ratio()
      >>> solver = weighted(model, even, batch_size=None, optimiser=optax.sgd(0.1), steps=100)
      >>> params = eh.centralized.fit(solver, x, y, steps=100).params
      >>> round(float(model.apply(params, x)[0, 0]), 3)
      0.5

    Source: the baselines of Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, that weigh examples
    (tables 7.4, 7.7 and 7.8, figure 7.14).
    """
    check_parts(model, optimiser)
    expect("weighting", weighting, Weighting, "eh.centralized.self_paced(percentile=70)")
    rows_of = None if batch_size is None else rows_in(batch_size, "all examples")
    steps = whole_number("steps", steps, 1, 10**9)

    def init(params: Params, x: Array, y: Array) -> _Weighted:
        return _Weighted(params, optimiser.init(params), weighting.init(model, x, y), jnp.float32(1.0))

    def step(state: _Weighted, x: Array, y: Array, number: Array, key: Key) -> _Weighted:
        # Split like the key of stochastic(), whose batches these are.
        draw_key, weighing_key, work_key = jax.random.split(key, 3)
        if rows_of is not None:
            rows = jax.random.randint(draw_key, (int(rows_of(x.shape[0])),), 0, x.shape[0])
            x, y = x[rows], y[rows]
        progress = jnp.minimum(number.astype(jnp.float32) / steps, 1.0)

        def weigh(losses: Array) -> tuple[Array, PyTree]:
            batch = Weighed(state.params, x=x, y=y, losses=losses, progress=progress, key=weighing_key)
            weights, after = weighting.weigh(model, state.weighting, batch)
            if weights.shape != losses.shape:
                raise EvenhandError(
                    f"{weighting.name} returned weights of shape {weights.shape} for {losses.shape[0]} examples: "
                    "return one weight per example."
                )
            return weights, (after, jnp.mean(weights).astype(jnp.float32))

        gradient, (after, weight) = weighted_gradient(model, state.params, x, y, weigh, work_key)
        return descended(optimiser, state, gradient)._replace(weighting=after, weight=weight)

    return Solver(model, init, step, lambda state: state.params)


# --- shared by the weightings -------------------------------------------------------------------------------------


def stateless(model: Model, x: Array, y: Array) -> tuple[()]:
    """The state of a weighting that has none."""
    return ()


def normalised(weights: Array) -> Array:
    """Nonnegative weights scaled to a mean of 1; weights that are all 0 stay 0."""
    mean = jnp.mean(weights)
    return weights / jnp.where(mean > 0, mean, 1.0)


def one_class_each(name: str, y: Array) -> Array:
    """Labels as ``(m,)``, checked to be one class per example."""
    if y.size != y.shape[0]:
        raise EvenhandError(
            f"{name}() weighs examples by their class, but the labels have shape {y.shape}: "
            "give one class per example."
        )
    return y.reshape(-1)


def moved_percentile(average: Array, losses: Array, percentile: float, momentum: float) -> Array:
    """The moving average of the percentiles of batches, after another batch."""
    return momentum * average + (1.0 - momentum) * jnp.percentile(losses, percentile)


def check_moving(name: str, percentile: float, momentum: float) -> None:
    """Checks the percentile and the momentum of a moving percentile."""
    if not 0.0 <= real_number(percentile) <= 100.0:
        raise EvenhandError(f"{name}(percentile={percentile}): a percentile lies in [0, 100].")
    if not 0.0 <= real_number(momentum) < 1.0:
        raise EvenhandError(f"{name}(momentum={momentum}): the share of earlier batches must lie in [0, 1).")
