"""The mean of the losses from a quantile up: given the quantile, each client knows whether it counts."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.risks._population import among, check_tail, linear, pinned
from evenhand.risks.value_at_risk import quantile
from evenhand.types import Array, Risk

__all__ = ["tail_mean"]


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
