"""The aggregators of q-FFL: uploads weighted by powers of the losses, with a step that adapts to the curvature."""

from __future__ import annotations

import math

import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators.risk_weighted import risk_weighted
from evenhand.errors import EvenhandError
from evenhand.risks.mean import mean
from evenhand.risks.power import positive, power
from evenhand.types import Array, Key, PyTree, Sum, Upload

__all__ = ["loss_powers", "qfedavg"]


def qfedavg(q: float, lipschitz: float) -> Sum:
    r"""q-FedAvg's step: uploads weighted by the q-th power of their loss, divided by a bound on the curvature.

    .. math::
        \Delta w_k = -L \Delta_k, \qquad h_k = q F_k^{q-1} \|\Delta w_k\|^2 + L F_k^q, \qquad
        \Delta = -\frac{\sum_k \omega_k F_k^q \Delta w_k}{\sum_k \omega_k h_k}

    with :math:`F_k` the loss at the broadcast model and :math:`\omega_k` the weight from the sampling scheme.

    Args:
      q: how much high losses count, >= 0; 0 is exactly the mean.
      lipschitz: :math:`L`, one over the clients' step size; not to be retuned for each ``q``.

    Raises:
      EvenhandError: ``q`` or ``lipschitz`` out of range.

    Edge cases: 1e-10 is added to each loss; all powers are divided by the largest, which leaves the step unchanged, so
    that no ``q`` overflows.  A loss below 0 counts as 0: add a constant to losses that can be negative.  The step is
    shorter than the mean of the uploads, by a factor of :math:`1 + q L \|\Delta\|^2 / F` for identical clients: about
    ``1/q`` for large ``q``, and almost 0 if a client of loss 0 still moves while ``q < 1``, as the formula has it.
    Sums are in float32, where the reference code has float64: only the powers' common factor needed that range.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[-0.2, 0.1], [0.3, -0.4]])
      >>> step = eh.aggregators.aggregate(qfedavg(1.0, 10.0), deltas, losses=jnp.array([2.0, 0.5]))
      >>> [round(x, 4) for x in step.tolist()]
      [-0.0455, 0.0]

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, algorithm 2.
    """
    _check(q, "qfedavg")
    if not 0.0 < lipschitz < math.inf:
        raise EvenhandError(f"qfedavg(lipschitz={lipschitz}): give one over the clients' step size, above 0.")

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        lifted = tree.scale(upload.weight, upload.delta), upload.weight
        if q != 0:
            square = lipschitz * jnp.square(tree.norm(upload.delta))
            lifted = lifted[0], _times(upload.weight, 1.0 + q * square / positive(upload.loss))
        return lifted

    # Scaling the powers to sum to 1 leaves the step unchanged: both of its sums contain them.
    return risk_weighted(power(q))._replace(lift=lift)


def loss_powers(q: float) -> Sum:
    r"""The gradient of the q-FFL objective itself, for a server step of fixed size.

    .. math:: \Delta = \frac{\sum_k \omega_k F_k^q \Delta_k}{\sum_k \omega_k}

    Args:
      q: how much high losses count, >= 0.

    Raises:
      EvenhandError: ``q`` out of range.

    Edge cases: powers are not rescaled: with a large ``q``, large losses overflow to infinity.

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, figure 4 (FedSGD on q-FFL).
    """
    _check(q, "loss_powers")

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        share = upload.weight if q == 0 else _times(upload.weight, positive(upload.loss) ** q)
        return tree.scale(share, upload.delta), upload.weight

    return risk_weighted(mean())._replace(lift=lift)


def _times(weight: Array, factor: Array) -> Array:
    """The product; 0 for weight 0, even if the factor overflows."""
    return jnp.where(weight > 0, weight * factor, 0.0)


def _check(q: float, name: str) -> None:
    if not 0.0 <= q < math.inf:
        raise EvenhandError(f"{name}(q={q}): q must be a finite number >= 0.")
