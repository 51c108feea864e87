"""The superquantile (CVaR): the mean of the worst losses; and the mean of the others."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.errors import EvenhandError
from evenhand.risks._population import check_tail, linear, pinned
from evenhand.types import Array, Risk

__all__ = ["capped_weights", "inverse_superquantile", "superquantile"]


def superquantile(theta: float) -> Risk:
    r"""The mean of the worst fraction ``theta`` of the losses, with the boundary loss counted in part.

    .. math::
        \mathbb S_\theta(f; p) = \max\Big\{ \textstyle\sum_i \pi_i f_i : \pi \ge 0,\ \sum_i \pi_i = 1,\
        \pi_i \le \frac{p_i}{\theta} \Big\}
        = \min_\eta\ \eta + \frac1\theta \sum_i p_i \max(f_i - \eta, 0)

    The weights fill the largest losses up to their caps until they sum to 1: of ``n`` equally likely losses,
    ``ceil(theta n)`` have a weight.

    Args:
      theta: the tail fraction in (0, 1]; 1 is the mean, ``theta <= min p`` the maximum.  Older papers and codes
        give the level ``1 - theta`` instead.

    Raises:
      EvenhandError: ``theta`` outside (0, 1].

    Edge cases: losses tied at the boundary share the remaining weight in proportion to ``p``, so that the weights do
    not depend on the order of the losses.

    Example:
      >>> import jax.numpy as jnp
      >>> worst = superquantile(0.5)
      >>> [round(w, 3) for w in worst.weights(jnp.arange(1.0, 6.0)).tolist()]
      [0.0, 0.0, 0.2, 0.4, 0.4]
      >>> round(float(worst.value(jnp.arange(1.0, 6.0))), 3)
      4.2

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, section 3.3; Rockafellar and Uryasev, *Optimization of Conditional Value-at-Risk*, 2000.
    """
    check_tail(theta, "superquantile")
    return linear(lambda losses, p: capped_weights(losses, p, theta))


def inverse_superquantile(theta: float) -> Risk:
    r"""The mean of the losses without the worst fraction ``theta``: inverse CVaR, robust to the largest losses.

    .. math:: R(f; p) = -\mathbb S_{1-\theta}(-f; p)

    Args:
      theta: the fraction in [0, 1) that is left out; 0 is the mean.

    Raises:
      EvenhandError: ``theta`` outside [0, 1).

    Example:
      >>> import jax.numpy as jnp
      >>> float(inverse_superquantile(0.2).value(jnp.array([0.0, 1.0, 2.0, 3.0, 100.0])))
      1.5

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, section on related risks.
    """
    if not 0.0 <= theta < 1.0:
        raise EvenhandError(
            f"inverse_superquantile(theta={theta}): the fraction left out must lie in [0, 1)."
        )
    return linear(lambda losses, p: capped_weights(-losses, p, 1.0 - theta))


def capped_weights(losses: Array, p: Array, theta: float) -> Array:
    """The exact weights of :func:`superquantile`, for weights ``p`` that sum to 1."""
    if theta == 1.0:
        return p
    falling = -pinned(losses)
    order = jnp.argsort(falling)
    mass = jnp.concatenate([jnp.zeros(1, p.dtype), jnp.cumsum(p[order])]) / theta
    ranked = falling[order]
    above = mass[jnp.searchsorted(ranked, falling, side="left")]
    tied = mass[jnp.searchsorted(ranked, falling, side="right")] - above
    left = 1.0 - above
    # Where the boundary falls between two losses, the remainder is only the rounding error of the sum.
    share = jnp.where(left > 8 * jnp.finfo(p.dtype).eps, left, 0.0) / jnp.where(tied > 0, tied, 1.0)
    weights = p / theta * jnp.clip(share, 0.0, 1.0)
    return weights / jnp.where(jnp.any(p > 0), jnp.sum(weights), 1.0)
