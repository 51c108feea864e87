"""AFL's mixture of clients, moved towards those with the higher losses."""

from __future__ import annotations

import math

import jax.numpy as jnp

from evenhand.aggregators.risk_weighted import risk_weighted
from evenhand.errors import EvenhandError
from evenhand.risks import mean, project_simplex
from evenhand.types import Array, Cohort, PyTree, Report, Sum

__all__ = ["ascending_mixture"]


def ascending_mixture(step_size: float) -> Sum:
    r"""Weights uploads by a mixture over all clients that follows their losses by projected gradient ascent.

    .. math::
        \Delta = \sum_k \lambda_k \Delta_k, \qquad
        \lambda \leftarrow \Pi_\Lambda \big( \lambda + \gamma_\lambda (F_1(w^t), \dots, F_N(w^t)) \big)

    from :math:`\lambda = 1/N`; the ascent uses the losses of a round whose uploads still have the old weights.

    Args:
      step_size: :math:`\gamma_\lambda \ge 0`; 0 keeps the plain mean over clients.

    Raises:
      EvenhandError: ``step_size`` negative or not finite.

    Edge cases: meant for cohorts of all clients.  In a smaller cohort, the members' weights are scaled to sum to 1, and
    only they are updated.  A loss so large that its step is not finite updates nothing, and its client is left out of
    that round.

    Source: Mohri et al., *Agnostic Federated Learning*, ICML 2019, in the deterministic form that q-FFL is compared to.
    """
    if not 0.0 <= step_size < math.inf:
        raise EvenhandError(f"ascending_mixture(step_size={step_size}): give a finite number >= 0.")
    base = risk_weighted(mean())

    def init(like: PyTree, clients: int) -> Array:
        return jnp.full(clients, 1.0 / clients, jnp.float32)

    def weigh(reports: Report, cohort: Cohort, state: Array) -> tuple[Array, Array]:
        counts = cohort.present & jnp.isfinite(step_size * reports.loss)
        weights = jnp.where(counts, state[cohort.ids], 0.0)
        climbed = state.at[cohort.ids].add(jnp.where(counts, step_size * reports.loss, 0.0))
        return weights, project_simplex(climbed)

    return base._replace(init=init, weigh=weigh)
