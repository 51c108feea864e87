"""The mean with weights that a risk derives from the clients' losses."""

from __future__ import annotations

from evenhand.aggregators.mean import mean
from evenhand.types import Array, Cohort, PyTree, Report, Risk, Sum

__all__ = ["risk_weighted"]


def risk_weighted(risk: Risk) -> Sum:
    r"""Weights uploads by how much their clients' losses count in a risk: the gradient of that risk over the cohort.

    .. math:: \Delta = \sum_k w_k \Delta_k, \qquad w = \texttt{risk.weights}(F_k(w^t); \omega_k)

    for losses :math:`F_k(w^t)` over all of a client's examples before it trains, and base weights :math:`\omega_k`
    from the method's sampling scheme (its number of examples, or 1).

    Args:
      risk: such as ``eh.risks.superquantile(0.5)`` (Delta-FL) or ``eh.risks.tilted(1.0)`` (TERM).

    Edge cases: a client of weight 0 is left out; without any client the direction is zero.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> worst = risk_weighted(eh.risks.superquantile(0.5))
      >>> step = eh.aggregators.aggregate(worst, jnp.array([4.0, 8.0]), losses=jnp.array([2.0, 1.0]))
      >>> float(step)
      4.0

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 3 and section 6.
    """

    def weigh(reports: Report, cohort: Cohort, state: PyTree) -> tuple[Array, PyTree]:
        return risk.weights(reports.loss, reports.weight), state

    return mean()._replace(weigh=weigh, needs_loss=True)
