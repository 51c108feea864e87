"""The worst mean under weights within a chi-square distance of the base weights: robustly regularised risk."""

from __future__ import annotations

import math

import jax.numpy as jnp

from evenhand.errors import EvenhandError, real_number
from evenhand.risks._population import dual, linear, pinned
from evenhand.types import Array, Risk

__all__ = ["chi_square_ball"]

_WIDEST = 1e30
"""The largest variance of the ratios of weights; a larger one might overflow a float32."""


def chi_square_ball(rho: float) -> Risk:
    r"""The largest mean of the losses under weights within a chi-square ball around the base weights.

    .. math::
        R_\rho(f; p) = \max_q\Big\{ \sum_i q_i f_i : q \ge 0,\ \sum_i q_i = 1,\
        \frac12 \sum_i p_i \Big(\frac{q_i}{p_i} - 1\Big)^2 \le \rho \Big\}, \qquad
        q_i = \frac{p_i \max(f_i - \eta, 0)}{\sum_j p_j \max(f_j - \eta, 0)}

    For ``n`` losses that count equally the ball is :math:`\frac1{2n} \sum_i (n q_i - 1)^2 \le \rho`.  The value is the
    mean plus :math:`\sqrt{2 \rho}` standard deviations while no weight is 0: it penalises variance.  The losses above
    :math:`\eta`, of total weight :math:`P`, mean :math:`\mu` and standard deviation :math:`\sigma`, determine it:

    .. math:: \eta = \mu - \frac{\sigma}{\sqrt{(1 + 2 \rho) P - 1}}

    Args:
      rho: the radius :math:`\rho`, >= 0 and finite.  0 is the mean; from :math:`(1/P - 1)/2` on, with :math:`P` the
        base weight of the largest loss and its ties, the risk is the largest loss.

    Raises:
      EvenhandError: ``rho`` negative or not finite.

    Edge cases: equal losses have the base weights; largest losses that are tied share the weight in proportion to
    ``p``.  Exact in float32 for losses close together or far from 0, since only differences of neighbours are added up.
    ``rho`` has no unit: losses twice as large have the same weights.

    Differs from the paper: there the radius is :math:`\rho / n`, here and in the reference code it is ``rho``.  That
    code projects the vector of losses onto the ball instead.  Where the projection reaches the boundary of the ball it
    is the maximiser above, :math:`\max(f_i - \eta, 0)` up to scale; losses that differ by little project to a point
    inside of it, with weights that depend on the unit of the losses.  :func:`evenhand.risks.squared_superquantile` uses
    the same distance as a penalty, in another set: it caps each weight and has no radius.

    Example:
      >>> import jax.numpy as jnp
      >>> ball = chi_square_ball(0.25)
      >>> [round(w, 4) for w in ball.weights(jnp.arange(1.0, 6.0)).tolist()]
      [0.0, 0.1, 0.2, 0.3, 0.4]
      >>> round(float(ball.value(jnp.arange(1.0, 6.0))), 4)
      4.0

    Source: Duchi and Namkoong, *Variance-based Regularization with Convex Objectives*, JMLR 2019; RobustRegRisk in
    table 7.7 of Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023.
    """
    if not 0.0 <= real_number(rho) < math.inf:
        raise EvenhandError(f"chi_square_ball(rho={rho}): the radius rho must be a finite number >= 0.")
    if rho == 0:
        return linear(lambda losses, p: p)
    variance = min(2.0 * rho, _WIDEST)

    def total(weights: Array, losses: Array, p: Array) -> Array:
        # Not of weights above 0 alone: a loss that is no number makes all weights NaN, and so the value.
        return jnp.sum(jnp.where(weights == 0, 0.0, weights * losses))

    return dual(lambda losses, p: _ball_weights(losses, p, variance), total)


def _ball_weights(losses: Array, p: Array, variance: float) -> Array:
    """The weights for ratios ``q / p`` of a variance of at most ``variance``, and for ``p`` that sums to 1."""
    losses, present = pinned(losses), p > 0
    # The distance of each loss from the largest, in units of their range: its square neither overflows nor vanishes.
    depth = jnp.where(present, jnp.max(jnp.where(present, losses, -jnp.inf)) - losses, 0.0)
    deepest = jnp.max(depth)
    depth = depth / jnp.where(deepest > 0, deepest, 1.0)
    share, centre, bottom, reach = _active_set(depth, p, variance)
    tilt = jnp.where(reach > 0, (centre - depth) / jnp.where(reach > 0, reach, 1.0), 0.0)
    weights = jnp.where(depth <= bottom, p / share * jnp.maximum(1.0 + tilt, 0.0), 0.0)
    return weights / jnp.where(jnp.any(present), jnp.sum(weights), 1.0)


def _active_set(depth: Array, p: Array, variance: float) -> tuple[Array, Array, Array, Array]:
    """Of the losses above the threshold: weight, mean and largest depth, and the threshold's depth below the mean."""
    order = jnp.argsort(depth)
    ranked, base = depth[order], p[order]
    mass, none = jnp.cumsum(base), jnp.zeros(1, p.dtype)
    left = jnp.concatenate([jnp.cumsum(base[::-1])[::-1][1:], none])
    # For the k largest losses, sums of terms that are never negative: their distances to the next loss, and the squares
    # of those to their own mean.  Differences of large sums would be rounded away.
    above = jnp.cumsum(mass * jnp.concatenate([jnp.diff(ranked), none]))
    before, earlier = jnp.concatenate([none, mass[:-1]]), jnp.concatenate([none, above[:-1]])
    weight = jnp.where(before > 0, base / jnp.where(before > 0, before * mass, 1.0), 0.0)
    squares = jnp.cumsum(weight * jnp.square(earlier))
    # With the next loss for the threshold, the ratios vary enough.
    room = variance * mass - left
    fits = (above > 0) & (squares * mass <= jnp.square(above) * room)
    last = jnp.where(jnp.any(fits), jnp.argmax(fits), p.shape[0] - 1)
    share = jnp.where(mass[last] > 0, mass[last], 1.0)
    reach = jnp.where(squares[last] > 0, jnp.sqrt(squares[last] / (share * room[last])), 0.0)
    return share, jnp.cumsum(base * ranked)[last] / share, ranked[last], reach
