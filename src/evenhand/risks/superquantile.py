"""The superquantile (CVaR), the mean of the worst losses; the mean of the others; and two smoothed superquantiles."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, real_number
from evenhand.risks._population import bisected, check_tail, dual, linear, pinned
from evenhand.risks.value_at_risk import quantile
from evenhand.types import Array, Risk

__all__ = ["inverse_superquantile", "smoothed_superquantile", "squared_superquantile", "superquantile"]


def superquantile(theta: float) -> Risk:
    r"""CVaR: the mean of the worst fraction ``theta`` of the losses, with the boundary loss counted in part.

    .. math::
        \mathbb S_\theta(f; p) = \max\Big\{ \textstyle\sum_i \pi_i f_i : \pi \ge 0,\ \sum_i \pi_i = 1,\
        \pi_i \le \frac{p_i}{\theta} \Big\}
        = \min_\eta\ \eta + \frac1\theta \sum_i p_i \max(f_i - \eta, 0)

    The weights fill the largest losses up to their caps until they sum to 1: of ``n`` equally likely losses,
    ``ceil(theta n)`` have a weight.

    Args:
      theta: the tail fraction in [0, 1]; 1 is the mean, ``theta <= min p`` the maximum, and so is 0.  Older papers and
        codes give the level ``1 - theta`` instead.

    Raises:
      EvenhandError: ``theta`` outside [0, 1].

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
    check_tail(theta, "superquantile", zero=True)
    return linear(lambda losses, p: _capped_weights(losses, p, theta))


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
    if not 0.0 <= real_number(theta) < 1.0:
        raise EvenhandError(
            f"inverse_superquantile(theta={theta}): the fraction left out must lie in [0, 1)."
        )
    return linear(lambda losses, p: _capped_weights(-losses, p, 1.0 - theta))


def _capped_weights(losses: Array, p: Array, theta: float) -> Array:
    """The exact weights of :func:`superquantile`, for weights ``p`` that sum to 1."""
    if theta == 1.0:
        return p
    falling, tail = -pinned(losses), _binding(theta, p)
    order = jnp.argsort(falling)
    mass = jnp.concatenate([jnp.zeros(1, p.dtype), jnp.cumsum(p[order])]) / tail
    ranked = falling[order]
    above = mass[jnp.searchsorted(ranked, falling, side="left")]
    tied = mass[jnp.searchsorted(ranked, falling, side="right")] - above
    left = 1.0 - above
    # Where the boundary falls between two losses, the remainder is only the rounding error of the sum.
    share = jnp.where(left > 8 * jnp.finfo(p.dtype).eps, left, 0.0) / jnp.where(tied > 0, tied, 1.0)
    weights = p / tail * jnp.clip(share, 0.0, 1.0)
    return weights / jnp.where(jnp.any(p > 0), jnp.sum(weights), 1.0)


def _binding(theta: float, p: Array) -> Any:
    """A tail fraction with the same weights by which one can divide: below the smallest ``p``, no cap binds."""
    if theta >= _LEAST:
        return theta
    return jnp.maximum(theta, jnp.min(jnp.where(p > 0, p, 1.0)))


# --- smoothed by a penalty on weights that differ from the base weights ------------------------------------------

_LEAST = 1e-6
"""Tail fractions from here on can divide weights, and bound an interval that floats can halve."""
_STEEPEST = 1e30
"""The steepest slope of a weight in its loss; a steeper one would overflow a float32."""
_NEAR = 0.1
"""By what part of itself any weight may change where the smoothing counts as strong."""
_STEPS = 60
"""Halvings of an interval: more than the bits of a float32, or of a float64 of ordinary size."""


def smoothed_superquantile(theta: float, nu: float) -> Risk:
    r"""The superquantile smoothed by relative entropy, between the mean, the superquantile and the entropic risk.

    .. math::
        \mathbb S_\theta^\nu(f; p) = \max_\pi\Big\{ \sum_i \pi_i f_i - \nu \sum_i \pi_i \log\frac{\pi_i}{p_i} \Big\},
        \quad \pi_i = \min\Big\{\frac{p_i}{\theta},\ p_i e^{(f_i - \mu)/\nu}\Big\},\quad \sum_i \pi_i = 1

    with :math:`\pi` in the capped simplex of :func:`evenhand.risks.superquantile`.  The threshold :math:`\mu` is exact:
    capped losses are the largest ones, and for each number of them it has a closed form.

    Args:
      theta: the tail fraction in [0, 1]; once ``theta <= min p``, no cap binds and this is ``tilted(1 / nu)``.
      nu: the strength of the penalty, > 0, in units of loss; near 0 this is the superquantile, towards infinity the
        mean.

    Raises:
      EvenhandError: ``theta`` outside [0, 1], or ``nu`` not a finite number above 0.

    Example:
      >>> import jax.numpy as jnp
      >>> soft = smoothed_superquantile(0.4, nu=1.0)
      >>> [round(w, 4) for w in soft.weights(jnp.arange(1.0, 6.0)).tolist()]
      [0.016, 0.0436, 0.1184, 0.322, 0.5]

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, equations 14 and 15.
    """
    _check(theta, nu, "smoothed_superquantile")

    def total(weights: Array, losses: Array, p: Array) -> Array:
        ratio = jnp.where(weights > 0, weights / jnp.where(p > 0, p, 1.0), 1.0)
        usual = jnp.sum(weights * (losses - nu * jnp.log(ratio)))
        # Near the base weights, nu enlarges the rounding error of the weights' sum.  This form of the same divergence
        # is of second order in what the weights change; below the mean, nothing but rounding is left of it.
        change = jnp.where(p > 0, (weights - p) / jnp.where(p > 0, p, 1.0), 0.0)
        small = jnp.clip(change, -_NEAR, _NEAR)  # a weight of 0 would make a NaN, even where it is not chosen
        divergence = jnp.sum(p * ((1.0 + small) * jnp.log1p(small) - small))
        strong = jnp.maximum(jnp.sum(weights * losses) - nu * divergence, jnp.sum(p * losses))
        return jnp.where(jnp.max(jnp.abs(change)) < _NEAR, strong, usual)

    return dual(lambda losses, p: _entropic_weights(losses, p, theta, nu), total)


def squared_superquantile(theta: float, nu: float) -> Risk:
    r"""The superquantile smoothed by a squared distance; its weights are piecewise linear in the losses.

    .. math::
        \max_\pi\Big\{ \sum_i \pi_i f_i - \frac{\nu}{2 n^2} \sum_i \frac{(\pi_i - p_i)^2}{p_i} \Big\}, \quad
        \pi_i = p_i \operatorname{clip}\Big(1 + \frac{n^2}{\nu} (f_i - \eta),\ 0,\ \frac1\theta\Big)

    for ``n`` losses; with equal :math:`p_i = 1/n` the penalty is :math:`\frac{\nu}{2n} \|\pi - p\|^2`.

    Args:
      theta: the tail fraction in [0, 1]; at 0, no weight is capped.
      nu: the strength of the penalty, > 0.

    Raises:
      EvenhandError: ``theta`` outside [0, 1], or ``nu`` not a finite number above 0.

    Example:
      >>> import jax.numpy as jnp
      >>> soft = squared_superquantile(0.4, nu=50.0)
      >>> [round(w, 4) for w in soft.weights(jnp.arange(1.0, 6.0)).tolist()]
      [0.0, 0.1, 0.2, 0.3, 0.4]

    Source: K. Pillutla, *SQwash*, 2022; Laguel et al., *Superquantiles at Work*, 2021.
    """
    _check(theta, nu, "squared_superquantile")

    def weigh(losses: Array, p: Array) -> Array:
        slope = jnp.minimum(jnp.maximum(jnp.sum(p > 0), 1).astype(p.dtype) ** 2 / nu, _STEEPEST)
        return _squared_weights(losses, p, theta, slope)

    def total(weights: Array, losses: Array, p: Array) -> Array:
        strength = nu / jnp.maximum(jnp.sum(p > 0), 1).astype(p.dtype) ** 2
        distance = jnp.sum(jnp.square(weights - p) / jnp.where(p > 0, p, 1.0))
        return jnp.sum(weights * losses) - 0.5 * strength * distance

    return dual(weigh, total)


def _check(theta: float, nu: float, name: str) -> None:
    check_tail(theta, name, zero=True)
    if not 1e-37 < real_number(nu) < math.inf:
        raise EvenhandError(
            f"{name}(nu={nu}): the strength of smoothing must be a finite number above 1e-37."
        )


def _entropic_weights(losses: Array, p: Array, theta: float, nu: float) -> Array:
    if theta == 1.0:
        return p
    losses, tail = pinned(losses), _binding(theta, p)
    order = jnp.argsort(-losses)
    ranked, base = losses[order], p[order]
    # For each loss, the weight of it and the smaller ones relative to its own: from differences of neighbours, since
    # relative to a distant loss the differences of the others would be rounded away.
    fall = jnp.exp((jnp.append(ranked[1:], ranked[-1]) - ranked) / nu)

    def add(smaller: Array, terms: tuple[Array, Array]) -> tuple[Array, Array]:
        total = terms[0] + terms[1] * smaller
        return total, total

    _, below = jax.lax.scan(add, jnp.zeros((), p.dtype), (base, fall), reverse=True)
    # With the first k capped, the others share what is left.
    left = 1.0 - jnp.concatenate([jnp.zeros(1, p.dtype), jnp.cumsum(base)[:-1]]) / tail
    possible = (left > 8 * jnp.finfo(p.dtype).eps) & (below > 0)
    fits = possible & (left <= below / tail)
    first = jnp.argmax(fits)
    free = losses <= ranked[first]
    shares = jnp.where(free, p * jnp.exp(jnp.where(free, losses - ranked[first], 0.0) / nu), 0.0)
    total = jnp.sum(shares)
    weights = jnp.where(free, left[first] * shares / jnp.where(total > 0, total, 1.0), p / tail)
    return jnp.where(jnp.any(fits), weights, _capped_weights(losses, p, theta))


def _squared_weights(losses: Array, p: Array, theta: float, slope: Array) -> Array:
    losses, tail = pinned(losses), _binding(theta, p)

    def weights_at(eta: Array) -> Array:
        return p * jnp.clip(1.0 + slope * (losses - eta), 0.0, 1.0 / tail)

    # Relative to the quantile, whose weight is neither 0 nor capped: relative to a distant loss the differences of the
    # others would be rounded away.
    losses = jnp.where(p > 0, losses - jnp.where(jnp.any(p > 0), quantile(losses, p, tail), 0.0), 0.0)
    # At the upper end only losses above the quantile have weight; at the lower end all from the quantile up are capped.
    low, high = -(1.0 / tail - 1.0) / slope, 1.0 / slope
    low, high = bisected(low, high, _STEPS, lambda eta: jnp.sum(weights_at(eta)) > 1.0)
    # Interpolated linearly: where nu is small, the weights at two neighbouring floats may be far apart.
    heavy, light = weights_at(low), weights_at(high)
    more, less = jnp.sum(heavy), jnp.sum(light)
    share = jnp.clip((1.0 - less) / jnp.where(more > less, more - less, 1.0), 0.0, 1.0)
    weights = share * heavy + (1.0 - share) * light
    return weights / jnp.where(jnp.any(p > 0), jnp.sum(weights), 1.0)
