"""The entropic value at risk: the tightest Chernoff bound on a quantile."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from evenhand.risks._population import at, check_tail, risk
from evenhand.risks.mean import mean
from evenhand.risks.tilted import tilted
from evenhand.types import Array, Risk

__all__ = ["entropic_value_at_risk"]

_STEPS = 48
_DECADES = 4.0
"""The tilt is sought within this many powers of ten, either way, of 1 / (range of the losses)."""


def entropic_value_at_risk(theta: float) -> Risk:
    r"""EVaR: the tightest upper bound on the (1 - theta)-quantile from tilted risks with ``t > 0``.

    .. math:: \text{EVaR}_\theta(f; p) = \min_{t > 0} \Big\{ \tilde R(t; f) - \frac1t \log \theta \Big\}

    The weights :math:`w(t)` are those of the tilted risk at the minimising ``t``, which a bisection finds from
    :math:`\sum_i w_i \log (w_i / p_i) = -\log\theta`: near its minimum the function itself is too flat for float32.

    Args:
      theta: the tail fraction in (0, 1]; 1 gives the mean, values near ``min p`` the largest loss.

    Raises:
      EvenhandError: ``theta`` outside (0, 1].

    Edge cases: if all losses are equal, the value is that loss.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(entropic_value_at_risk(0.6).value(jnp.array([0.0, 1.0, 2.0, 3.0, 10.0]))), 3)
      7.218

    Source: Ahmadi-Javid, *Entropic Value-at-Risk*, 2012; Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023,
    equation for EVaR.
    """
    check_tail(theta, "entropic_value_at_risk")
    if theta == 1.0:
        return mean()

    def tilt(losses: Array, p: Array) -> Array:
        present = p > 0
        largest = jnp.max(jnp.where(present, losses, -jnp.inf))
        width = largest - jnp.min(jnp.where(present, losses, jnp.inf))
        width = jnp.where((width > 0) & jnp.isfinite(width), width, 1.0)

        def divergence(t: Array) -> Array:
            """The relative entropy of the weights to ``p``: it grows with ``t``, to ``-log theta`` at the minimum."""
            powers = jnp.where(present, t * (losses - largest), -jnp.inf)
            masses = p * jnp.exp(powers)
            total = jnp.sum(masses)
            total = jnp.where(total > 0, total, 1.0)
            return jnp.sum(jnp.where(masses > 0, masses * powers, 0.0)) / total - jnp.log(total)

        def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            below = divergence(10.0**middle / width) < -math.log(theta)
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        begin = (jnp.full_like(width, -_DECADES), jnp.full_like(width, _DECADES))
        low, high = jax.lax.fori_loop(0, _STEPS, halve, begin)
        return jax.lax.stop_gradient(10.0 ** (0.5 * (low + high)) / width)

    def weigh(losses: Array, p: Array) -> Array:
        return tilted(tilt(losses, p)).weights(losses, p)

    def value(losses: Array, p: Array) -> Array:
        t = tilt(losses, p)
        found = tilted(t).value(losses, p) - math.log(theta) / t
        largest = tilted(math.inf).value(losses, p)  # the limit of large t
        return at(jnp.minimum(found, largest), tilted(t).weights(losses, p), losses)

    return risk(value, weigh)
