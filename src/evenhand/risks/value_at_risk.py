"""Quantiles of losses: the value at risk, the k-th smallest loss, and the mean of the losses from a quantile up."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.errors import truth_value, whole_number
from evenhand.risks._population import among, check_tail, linear, pinned
from evenhand.types import Array, Risk

__all__ = ["kth_smallest", "quantile", "tail_mean", "value_at_risk"]


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
    k = whole_number("k", k, 1, 2**31 - 1)

    def weigh(losses: Array, p: Array) -> Array:
        losses = pinned(losses)
        ranked = jnp.sort(jnp.where(p > 0, losses, jnp.inf))
        rank = jnp.clip(jnp.minimum(k, jnp.sum(p > 0)) - 1, 0)
        return among(losses == ranked[rank], p)

    return linear(weigh)


def tail_mean(theta: float, *, strict: bool = False) -> Risk:
    r"""The mean of the losses at or above the (1 - theta)-quantile: a superquantile that counts no loss in part.

    .. math::
        \hat F_\theta = \sum_i \hat\pi_i f_i, \qquad \hat\pi_i \propto p_i \mathbb 1\{ f_i \ge Q_\theta(f; p) \}

    Args:
      theta: the tail fraction in (0, 1]; 1 is the mean.
      strict: only the losses above the quantile.  Where ``theta n`` is a whole number and no losses tie, that is
        the exact superquantile, while ``>=`` takes one loss more.

    Raises:
      EvenhandError: ``theta`` outside (0, 1].

    Edge cases: where no loss is above the quantile, ``strict`` takes those that equal it.  For nonnegative losses the
    value is at most :math:`\max f / (\theta n)` below the superquantile.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.arange(1.0, 5.0)
      >>> [float(tail_mean(0.5, strict=strict).value(losses)) for strict in (False, True)]
      [3.0, 3.5]

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 1 and equation 10.
    """
    strict = truth_value("strict", strict)
    check_tail(theta, "tail_mean")

    def weigh(losses: Array, p: Array) -> Array:
        if theta == 1.0:
            return p
        losses = pinned(losses)
        edge = quantile(losses, p, theta)
        above = losses > edge
        none_above = ~jnp.any(above & (p > 0))
        return among((above | ((losses == edge) & none_above)) if strict else losses >= edge, p)

    return linear(weigh)


def quantile(losses: Array, p: Array, theta: float) -> Array:
    """The value of :func:`value_at_risk`, for pinned losses and weights ``p`` that sum to 1."""
    order = jnp.argsort(losses)
    ranked, mass = losses[order], jnp.cumsum(p[order][::-1])[::-1]
    above = jnp.concatenate([mass, jnp.zeros(1, p.dtype)])[jnp.searchsorted(ranked, losses, side="right")]
    # A sum of n roundings may pass theta by a little.
    fits = (above <= theta + 8 * jnp.finfo(p.dtype).eps) & (p > 0)
    return jnp.min(jnp.where(fits, losses, jnp.inf))
