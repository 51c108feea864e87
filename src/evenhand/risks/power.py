"""The power mean of q-FFL: losses weighted by their own q-th power."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, real_number
from evenhand.risks._population import among, log_weights, risk
from evenhand.types import Array, Risk

__all__ = ["positive", "power"]

_LEAST = 1e-10
"""Added to losses, so that 0 has a logarithm; as in the reference code."""


def power(q: float) -> Risk:
    r"""The q-FFL risk: a power mean of nonnegative losses.

    .. math::
        R_q(f; p) = \Big(\sum_i p_i f_i^{q+1}\Big)^{1/(q+1)}, \qquad
        w_i = \frac{p_i f_i^q}{\sum_j p_j f_j^q} \propto \frac{\partial R_q}{\partial f_i}

    It is the mean at ``q=0`` and tends to the largest loss as ``q`` grows.  Its minimisers are those of the objective
    :math:`\sum_i \frac{p_i}{q+1} f_i^{q+1}`.

    Args:
      q: how much large losses count, >= 0 and finite.

    Raises:
      EvenhandError: ``q`` negative or not finite.

    Edge cases: a loss below 0 counts as 0, and 1e-10 is added to each, except at ``q=0``; powers are computed from
    logarithms, so that no ``q`` overflows.  The weights are the *direction* of the gradient, which is shorter where
    losses differ.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(power(1.0).value(jnp.array([2.0, 0.5, 1.0]))), 4)
      1.3229
      >>> [round(w, 4) for w in power(1.0).weights(jnp.array([3.0, 1.0])).tolist()]
      [0.75, 0.25]

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, equation 2.
    """
    if not 0.0 <= real_number(q) < math.inf:
        raise EvenhandError(f"power(q={q}): q must be a finite number >= 0.")

    def logs(losses: Array, p: Array) -> Array:
        return jnp.log(jnp.where(p > 0, positive(losses), 1.0))

    def value(losses: Array, p: Array) -> Array:
        if q == 0:
            return jnp.sum(p * losses)
        whole = jax.scipy.special.logsumexp((q + 1.0) * logs(losses, p) + log_weights(p))
        return jnp.exp(whole / (q + 1.0))

    def weigh(losses: Array, p: Array) -> Array:
        if q == 0:
            return p
        powers = q * logs(losses, p)
        largest = jnp.max(jnp.where(p > 0, powers, -jnp.inf))
        return among(p > 0, p * jnp.exp(jnp.where(p > 0, powers - largest, 0.0)))

    return risk(value, weigh)


def positive(losses: Array) -> Array:
    """The numbers whose powers are taken: losses, at least 0, plus 1e-10."""
    return jnp.maximum(losses, 0.0) + _LEAST
