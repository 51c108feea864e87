"""Quantiles of losses: the value at risk and the k-th smallest loss."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.errors import whole_number
from evenhand.risks._population import among, check_tail, linear, pinned
from evenhand.types import Array, Risk

__all__ = ["kth_smallest", "quantile", "value_at_risk"]


def value_at_risk(theta: float) -> Risk:
    r"""The (1 - theta)-quantile: the smallest loss with at most a fraction ``theta`` of the losses above it.

    .. math:: Q_\theta(f; p) = \min\Big\{ v \in f : \sum_{i: f_i > v} p_i \le \theta \Big\}

    All weight is on losses that equal it.

    Args:
      theta: the fraction in (0, 1] that may be above; 1 gives the smallest loss, less than ``min p`` the largest.

    Raises:
      EvenhandError: ``theta`` outside (0, 1].

    Edge cases: with ``theta = 1 - k / n`` and equal weights it is the k-th smallest loss.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0])
      >>> [float(value_at_risk(theta).value(losses)) for theta in (0.8, 0.5, 0.2, 0.1)]
      [0.0, 2.0, 3.0, 10.0]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, equation for VaR; Pillutla et al., *Federated
    Learning with Superquantile Aggregation for Heterogeneous Data*, Machine Learning 2023, section 3.3.
    """
    check_tail(theta, "value_at_risk")

    def weigh(losses: Array, p: Array) -> Array:
        losses = pinned(losses)
        return among(losses == quantile(losses, p, theta), p)

    return linear(weigh)


def quantile(losses: Array, p: Array, theta: float) -> Array:
    """The value of :func:`value_at_risk`, for pinned losses and weights ``p`` that sum to 1."""
    order = jnp.argsort(losses)
    ranked, mass = losses[order], jnp.cumsum(p[order][::-1])[::-1]
    above = jnp.concatenate([mass, jnp.zeros(1, p.dtype)])[jnp.searchsorted(ranked, losses, side="right")]
    # A sum of n roundings may pass theta by a little.
    fits = (above <= theta + 8 * jnp.finfo(p.dtype).eps) & (p > 0)
    return jnp.min(jnp.where(fits, losses, jnp.inf))


def kth_smallest(k: int) -> Risk:
    r"""The ``k``-th smallest of the losses with a weight, :math:`R_{(k)}`; the largest if there are fewer than ``k``.

    Args:
      k: the rank, from 1.

    Raises:
      EvenhandError: ``k`` is not a whole number from 1.

    Example:
      >>> import jax.numpy as jnp
      >>> float(kth_smallest(2).value(jnp.array([5.0, 3.0, 4.0])))
      4.0

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, section on the k-loss.
    """
    whole_number("k", k, 1, 2**31 - 1)

    def weigh(losses: Array, p: Array) -> Array:
        losses = pinned(losses)
        ranked = jnp.sort(jnp.where(p > 0, losses, jnp.inf))
        rank = jnp.clip(jnp.minimum(k, jnp.sum(p > 0)) - 1, 0)
        return among(losses == ranked[rank], p)

    return linear(weigh)
