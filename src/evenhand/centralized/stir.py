"""STIR: absolute errors by reweighted least squares, whose weights are truncated at a bound that grows in stages."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.centralized._design import check_linear, design, linear_params
from evenhand.centralized._solver import Solver
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Array, Key, Model, Params

__all__ = ["stir"]


class _Stage(NamedTuple):
    """Where the solver is, in the coordinates of the design's factors, and what stays: see :func:`stir`."""

    position: Array  # diag(stretch) axes' theta, (rank,)
    change: Array
    stage: Array
    last: Array
    basis: Array
    unstretched: Array  # theta = unstretched @ position, (features + 1, rank)
    labels: Array


def stir(model: Model, *, m: float = 0.001, eta: float = 10.0, stages: int = 100) -> Solver:
    r"""STIR: truncated iteratively reweighted least squares, linear regression with absolute errors at its end.

    .. math::
        \theta \leftarrow (X^\top S X)^{-1} X^\top S y, \qquad
        S = \mathrm{diag}(s), \quad s_i = \min\big( 1 / |x_i^\top \theta - y_i|, M \big)

    from :math:`\theta = 0`, until :math:`\theta` moves by at most :math:`2 / (\eta M)`; then
    :math:`M \leftarrow \eta M`, and so on.  :math:`X` ends with a column of ones, so that :math:`\theta` is kernel and
    bias.  Each step solves for :math:`\theta` once; a few hundred steps suffice.

    Args:
      model: ``eh.models.linear_regression(features)``; its initial parameters are not used.
      m: :math:`M` at first, > 0; weights of residuals below ``1 / m`` are equal, as in least squares.
      eta: :math:`\eta > 1`, the growth of :math:`M` from stage to stage.
      stages: the number of values that :math:`M` takes; once :math:`\theta` has settled in the last, steps change
        nothing.

    Raises:
      EvenhandError: another model, or a number out of range.

    Edge cases: ``stages=1`` with a small ``m`` is least squares.  Where :math:`X` has no full column rank,
    :math:`\theta` is that of least norm, the limit of the ridge of 1e-20 in the code of TERM.

    Differs from the paper in its precision: factors of :math:`X` are computed in float64, steps in float32, in which
    residuals below 1e-6 of the largest label are rounding errors.  :math:`M` therefore ends at the inverse of those at
    most, and the result minimises Huber's loss of that width; in float64 it would be the absolute error itself.
    Differs from the code of TERM in that every stage solves at least once.  There a stage starts with the last move of
    the stage before, so that for residuals below ``1 / (eta * m)`` all stages end at least squares; only rounding
    errors of a singular :math:`X^\top S X` keep it going.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> x = jnp.arange(20.0)[:, None] / 10
      >>> y = jnp.where(jnp.arange(20) % 5 == 0, 50.0, 2 * x[:, 0] + 1)  # four wrong labels
      >>> robust = stir(eh.models.linear_regression(features=1))
      >>> params = eh.centralized.fit(robust, x, y, steps=200).params
      >>> [round(float(params["kernel"][0, 0]), 3), round(float(params["bias"][0]), 3)]
      [2.0, 1.0]

    Source: Mukhoty, Gopakumar, Jain and Kar, *Globally-convergent Iteratively Reweighted Least Squares for Robust
    Regression Problems*, AISTATS 2019, algorithm 1, with the schedule of Li et al., *On Tilted Losses in Machine
    Learning*, JMLR 2023 (table 7.2).
    """
    check_linear("stir", model)
    if not 0.0 < real_number(m) < math.inf:
        raise EvenhandError(f"stir(m={m}): the first bound on the weights must be a finite number above 0.")
    if not 1.0 < real_number(eta) < math.inf:
        raise EvenhandError(f"stir(eta={eta}): the growth of the bound must be a finite number above 1.")
    stages = whole_number("stages", stages, 1)

    def init(params: Params, x: Array, y: Array) -> _Stage:
        basis, stretch, axes, labels = design("stir", params, x, y)
        # Weights further apart would leave no digit of the equations' solution in float32.
        largest = 1.0 / (8.0 * float(np.finfo(np.float32).eps) * max(np.abs(labels).max(), 1e-30))
        last = min(stages - 1, max(0, math.floor(math.log(largest / m, eta))))
        return _Stage(
            position=jnp.zeros(len(stretch), jnp.float32),
            change=jnp.float32(jnp.inf),
            stage=jnp.int32(0),
            last=jnp.int32(last),
            basis=jnp.asarray(basis, jnp.float32),
            unstretched=jnp.asarray(axes / stretch, jnp.float32),
            labels=jnp.asarray(labels, jnp.float32),
        )

    def bound(stage: Array) -> Array:
        return m * jnp.float32(eta) ** stage.astype(jnp.float32)

    def step(state: _Stage, x: Array, y: Array, number: Array, key: Key) -> _Stage:
        weights = jnp.linalg.norm(state.unstretched @ state.position)
        rounding = 4.0 * jnp.finfo(jnp.float32).eps * weights

        def settled(stage: Array) -> Array:
            return state.change <= jnp.maximum(2.0 / (eta * bound(stage)), rounding)

        over = settled(state.stage)
        final = over & (state.stage == state.last)
        stage = state.stage + (over & ~final).astype(jnp.int32)
        residual = state.labels - state.basis @ state.position
        s = 1.0 / jnp.maximum(jnp.abs(residual), 1.0 / bound(stage))
        # The move, not theta itself: it shrinks, and with it the error of the solution.
        factor = jax.scipy.linalg.cho_factor(state.basis.T @ (s[:, None] * state.basis))
        move = jax.scipy.linalg.cho_solve(factor, state.basis.T @ (s * residual))
        change = jnp.linalg.norm(state.unstretched @ move)
        return state._replace(
            position=jnp.where(final, state.position, state.position + move),
            change=jnp.where(final, state.change, change),
            stage=stage,
        )

    return Solver(model, init, step, lambda state: linear_params(state.unstretched @ state.position))
