"""Consistent robust regression: least squares on labels less the few large errors that explain them best."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.centralized._design import check_linear, design, linear_params
from evenhand.centralized._solver import Solver
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Array, Key, Model, Params

__all__ = ["crr"]


class _Pursuit(NamedTuple):
    """The corruption ``b``, how far its last step went, and what stays: see :func:`crr`."""

    corruption: Array
    change: Array
    root: Array  # P = root root', (n, rank)
    gain: Array  # theta = gain root' (y - b), (features + 1, rank)
    residual: Array  # a = (I - P) y
    labels: Array


def crr(model: Model, *, corrupted: int, ridge: float = 1e-5, tolerance: float = 1e-5) -> Solver:
    r"""CRR (robust regression): linear regression with at most ``corrupted`` labels of arbitrary, estimated error.

    .. math::
        \min_{\theta, \; \|b\|_0 \le k} \|X \theta - (y - b)\|^2, \qquad
        b \leftarrow \mathrm{HT}_k\big( P b + (I - P) y \big), \qquad
        \theta = C^{-1} X^\top (y - b)

    with :math:`C = X^\top X + \lambda I` and :math:`P = X C^{-1} X^\top`; :math:`\mathrm{HT}_k` keeps the ``k`` numbers
    of largest magnitude, and :math:`b` starts at :math:`\mathbf 1`.  :math:`X` ends with a column of ones, so that
    :math:`\theta` is kernel and bias.  Each step is one update of :math:`b`; the comparison of TERM has at most 3,000.

    Args:
      model: ``eh.models.linear_regression(features)``; its initial parameters are not used.
      corrupted: :math:`k`, the number of examples whose labels may be wrong, e.g. the share of noise times ``n``.
      ridge: :math:`\lambda > 0`.
      tolerance: :math:`b` that moves by less than this is final: later steps change nothing.

    Raises:
      EvenhandError: another model, a number out of range, or more corrupted labels than examples.

    Edge cases: ``corrupted=0`` is ridge regression after one step.  Of equal magnitudes, the first are kept.

    Differs from the paper in its precision: factors of :math:`X` are computed in float64, steps in float32.  Each
    :math:`P b` is then off by 1e-7 of :math:`b`, and ``tolerance`` is at least that.  Directions of :math:`X` with less
    than 1e-6 of the largest singular value are left out.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> x = jnp.arange(20.0)[:, None] / 10
      >>> y = jnp.where(jnp.arange(20) % 5 == 0, 50.0, 2 * x[:, 0] + 1)  # four wrong labels
      >>> robust = crr(eh.models.linear_regression(features=1), corrupted=4)
      >>> params = eh.centralized.fit(robust, x, y, steps=100).params
      >>> [round(float(params["kernel"][0, 0]), 3), round(float(params["bias"][0]), 3)]
      [2.0, 1.0]

    Source: Bhatia, Jain, Kamalaruban and Kar, *Consistent Robust Regression*, NeurIPS 2017, algorithm 1, with the ridge
    and the start of the code of Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (table 7.2).
    """
    check_linear("crr", model)
    corrupted = whole_number("corrupted", corrupted, 0)
    if not 0.0 < real_number(ridge) < math.inf:
        raise EvenhandError(f"crr(ridge={ridge}): give a finite number above 0.")
    if not 0.0 <= real_number(tolerance) < math.inf:
        raise EvenhandError(f"crr(tolerance={tolerance}): give a finite number >= 0.")

    def init(params: Params, x: Array, y: Array) -> _Pursuit:
        if corrupted > x.shape[0]:
            raise EvenhandError(f"crr(corrupted={corrupted}): there are only {x.shape[0]} examples.")
        basis, stretch, axes, labels = design("crr", params, x, y)
        share = np.sqrt(np.square(stretch) / (np.square(stretch) + ridge))
        root = basis * share
        return _Pursuit(
            corruption=jnp.ones(len(labels), jnp.float32),
            change=jnp.float32(jnp.inf),
            root=jnp.asarray(root, jnp.float32),
            gain=jnp.asarray(axes * (share / stretch), jnp.float32),
            residual=jnp.asarray(labels - root @ (root.T @ labels), jnp.float32),
            labels=jnp.asarray(labels, jnp.float32),
        )

    def step(state: _Pursuit, x: Array, y: Array, number: Array, key: Key) -> _Pursuit:
        b = state.corruption
        moved = state.root @ (state.root.T @ b) + state.residual
        _, largest = lax.top_k(jnp.abs(moved), corrupted)
        sparse = jnp.zeros_like(moved).at[largest].set(moved[largest])
        # Below the rounding error of b, steps may go round in circles.
        least = jnp.maximum(tolerance, jnp.finfo(b.dtype).eps * jnp.linalg.norm(b))
        final = state.change <= least
        change = jnp.where(final, state.change, jnp.linalg.norm(sparse - b))
        return state._replace(corruption=jnp.where(final, b, sparse), change=change)

    def params_of(state: _Pursuit) -> Params:
        return linear_params(state.gain @ (state.root.T @ (state.labels - state.corruption)))

    return Solver(model, init, step, params_of)
