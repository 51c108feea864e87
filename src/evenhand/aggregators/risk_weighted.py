"""The mean with weights that a risk makes of the clients' losses."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators.mean import mean
from evenhand.types import Array, PyTree, Report, Risk, Sum, Upload

__all__ = ["counted", "risk_weighted", "trusted"]


def risk_weighted(risk: Risk) -> Sum:
    r"""Uploads weighted by how much their clients' losses count in a risk: the gradient of that risk of the cohort.

    .. math:: \Delta = \sum_k w_k \Delta_k, \qquad w = \texttt{risk.weights}(F_k(w^t); \omega_k)

    for losses :math:`F_k(w^t)` over all of a client's rows before it trains, and base weights :math:`\omega_k`
    that the method's sampling scheme gives it (its rows, or 1).

    Args:
      risk: such as ``eh.risks.superquantile(0.5)`` (Delta-FL) or ``eh.risks.tilted(1.0)`` (TERM).

    Edge cases: a client whose loss, weight or change is not a finite number is left out, as is one of weight 0 or less,
    whatever it sends (a change whose norm overflows float32 is none either); without any client the direction is zero.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> worst = risk_weighted(eh.risks.superquantile(0.5))
      >>> step = eh.aggregators.aggregate(worst, jnp.array([4.0, 8.0]), losses=jnp.array([2.0, 1.0]))
      >>> float(step)
      4.0

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 3 and section 6.
    """

    def weigh(reports: Report, ids: Array, state: PyTree) -> tuple[Array, PyTree]:
        return risk.weights(reports.loss, trusted(reports)), state

    base = mean()

    def lift(upload: Upload, state: PyTree) -> PyTree:
        return counted(upload, base.lift(upload, state))

    return base._replace(lift=lift, weigh=weigh, needs_loss=True)


def trusted(reports: Report) -> Array:
    """The reported weights, 0 for clients whose loss or weight is not a finite number, or whose weight is below 0."""
    sane = jnp.isfinite(reports.loss) & jnp.isfinite(reports.weight) & (reports.weight > 0)
    return jnp.where(sane, reports.weight, 0.0)


def counted(upload: Upload, lifted: PyTree) -> PyTree:
    """What is summed of an upload; nothing at all if it has no weight, or a change that is not a finite number."""
    sane = (upload.weight > 0) & jnp.isfinite(tree.norm(upload.delta))
    return tree.select(sane, lifted, tree.zeros_like(lifted))
