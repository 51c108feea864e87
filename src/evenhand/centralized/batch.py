"""Gradient descent on a risk of all examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand.centralized._fit import Solver, check_parts, weighted_gradient
from evenhand.types import Array, Key, Model, Params, PyTree, Risk

__all__ = ["batch"]


class _Descent(NamedTuple):
    params: Params
    optimiser: optax.OptState


def batch(
    model: Model, risk: Risk | Callable[[Array], Risk], *, optimiser: optax.GradientTransformation
) -> Solver:
    r"""Gradient descent on a risk of all examples: batch TERM, flat or hierarchical, or any other risk.

    .. math::
        \theta \leftarrow \theta - \alpha \sum_i w_i \nabla f_i(\theta), \qquad w = \texttt{risk.weights}(f(\theta))

    Args:
      model: what is trained.
      risk: over all examples, such as ``eh.risks.tilted(t)`` or ``eh.risks.hierarchical(outer, inner, groups, n)``;
        or a function of the step number that gives one, to ramp a tilt:
        ``lambda step: eh.risks.tilted(jnp.minimum(step / 1000, 1.0) * -2.0)``.
      optimiser: takes that gradient, e.g. ``optax.sgd(0.1)``.

    Edge cases: for ``t < 0`` the tilted risk is not convex even if the losses are: if they are large at the start, ramp
    the tilt from ``t = 0``.

    Where a risk's weights are only the direction of its gradient (``power``, TiVaR), the step uses the weights, which
    sum to 1, and not the gradient's length.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x, y = jnp.array([[0.0], [0.0], [1.0]]), jnp.array([0.0, 0.0, 3.0])
      >>> worst = batch(model, eh.risks.tilted(50.0), optimiser=optax.sgd(0.05))
      >>> params = eh.centralized.fit(worst, x, y, steps=2000).params
      >>> losses = model.losses(model.apply(params, x), y)
      >>> bool(losses.max() < 0.01)
      True

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the batch solvers of TERM and of hierarchical
    TERM.
    """
    check_parts(model, optimiser)

    def init(params: Params, x: Array, y: Array) -> _Descent:
        return _Descent(params, optimiser.init(params))

    def step(state: _Descent, x: Array, y: Array, number: Array, key: Key) -> _Descent:
        now = risk if isinstance(risk, Risk) else risk(number.astype(jnp.float32))

        def weigh(losses: Array) -> tuple[Array, PyTree]:
            return losses.shape[0] * now.weights(losses), ()

        gradient, _ = weighted_gradient(model, state.params, x, y, weigh, key)
        updates, memory = optimiser.update(gradient, state.optimiser, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
        return _Descent(params, memory)

    return Solver(model, init, step, lambda state: state.params)
