"""The human-aligned risk of cumulative prospect theory, which weights losses by their rank."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.errors import EvenhandError, real_number
from evenhand.risks._population import linear, pinned
from evenhand.types import Array, Risk

__all__ = ["human_risk"]


def human_risk(a: float, b: float) -> Risk:
    r"""The human-aligned risk: weights by rank, larger for the smallest and the largest losses than between them.

    .. math::
        R(f; p) = \sum_i \big(G(F_i) - G(F_{i-1})\big) f_i, \qquad
        G(F) = F + \frac{3 - 3b}{a^2 - a + 1} \big(F^3 - (a+1) F^2 + a F\big)

    for losses in ascending order, with :math:`F_i = p_1 + \dots + p_i` their empirical distribution function.  The
    density of the weights is that of the paper,

    .. math:: w(F) = G'(F) = \frac{3 - 3b}{a^2 - a + 1} \big(3 F^2 - 2 (a+1) F + a\big) + 1

    It falls from :math:`1 + k a` at the smallest loss, with :math:`k = (3-3b)/(a^2-a+1)`, to ``b`` at
    :math:`F = (a+1)/3`, and rises to :math:`1 + k (1 - a)` at the largest.

    Args:
      a: the fixed point of :math:`G` in [0, 1]: the fraction ``a`` of smallest losses has a total weight of ``a``.  The
        smaller it is, the more the large losses count and the less the small ones.
      b: the least density, in [0, 1]; 1 is the mean.

    Raises:
      EvenhandError: ``a`` or ``b`` outside [0, 1].

    Edge cases: tied losses share the weight of their ranks in proportion to ``p``, so that the weights do not depend on
    the order of the losses.  The risk rises with every loss, and lies between the smallest and the largest; it is not
    convex, since the smallest losses count more than the ones that follow.

    Differs from the paper: there the weight of the i-th smallest of ``N`` losses is :math:`w(i/N)/N`, the value of the
    density at the right end of an interval over which it is integrated here.  No weight differs by more than
    :math:`k \max(1 + a, 2 - a) / N^2`, but those of the paper sum to :math:`1 + k\big((\tfrac12 - a)/N +
    1/(2 N^2)\big)`: with ``a=0.01`` and ``b=0`` to 1.164 for ``N = 10``, to 1.0015 for ``N = 1000``.  The code of
    TERM's authors uses the permutation that sorts the losses in place of their ranks.

    Example:
      >>> import jax.numpy as jnp
      >>> human = human_risk(0.4, 0.3)
      >>> [round(w, 4) for w in human.weights(jnp.arange(1.0, 6.0)).tolist()]
      [0.2884, 0.1116, 0.0674, 0.1558, 0.3768]

    Source: Leqi, Prasad and Ravikumar, *On Human-Aligned Risk Minimization*, NeurIPS 2019; HRM in table 7.7 of Li et
    al., *On Tilted Losses in Machine Learning*, JMLR 2023.
    """
    for name, number in (("a", a), ("b", b)):
        if not 0.0 <= real_number(number) <= 1.0:
            raise EvenhandError(f"human_risk({name}={number}): {name} must lie in [0, 1].")
    bend = (3.0 - 3.0 * b) / (a * a - a + 1.0)

    def weigh(losses: Array, p: Array) -> Array:
        if b == 1.0:
            return p
        losses = pinned(losses)
        order = jnp.argsort(losses)
        ranked = losses[order]
        mass = jnp.concatenate([jnp.zeros(1, p.dtype), jnp.cumsum(p[order])])
        low = mass[jnp.searchsorted(ranked, losses, side="left")]
        high = mass[jnp.searchsorted(ranked, losses, side="right")]
        # The mean density between two values of F; a difference of two values of G would lose the digits of small p.
        density = 1.0 + bend * (low * low + low * high + high * high - (a + 1.0) * (low + high) + a)
        weights = p * jnp.maximum(density, 0.0)
        return weights / jnp.where(jnp.any(p > 0), jnp.sum(weights), 1.0)

    return linear(weigh)
