"""The tilted risk of TERM, which goes from the smallest loss through the mean to the largest."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError, real_number
from evenhand.risks._population import among, linear, log_weights, pinned, risk
from evenhand.types import Array, Risk

__all__ = ["tilted"]

_MOST = 3e38
"""Larger tilts count as infinite, as they would be in a float32."""
_NEAR = 1.0
"""Where ``|t| (max f - min f)`` is less, the risk is the mean plus a small term that must not be lost to rounding."""


def tilted(t: float | Array) -> Risk:
    r"""The t-tilted risk: softmax-weighted losses; fair for ``t > 0``, robust to outliers for ``t < 0``.

    .. math::
        \tilde R(t; f) = \frac1t \log \sum_i p_i e^{t f_i}, \qquad
        w_i = \frac{p_i e^{t f_i}}{\sum_j p_j e^{t f_j}} = \frac{\partial \tilde R}{\partial f_i}

    Its limits are the mean at ``t=0``, the largest loss at ``t=inf`` and the smallest at ``t=-inf``, where tied losses
    share the weight in proportion to ``p``.  Also known as the entropic risk with inverse temperature ``t``.

    Args:
      t: the tilt, finite or infinite, in units of 1/loss: losses ``a`` times as large are tilted ``a`` times as much.
        An array gives a tilt that may change while a program runs; it must be finite.

    Raises:
      EvenhandError: ``t`` is NaN, or no number.

    Edge cases: finite and exact in float32 for ``|t f|`` up to 1e4, since losses are measured from the one that
    dominates (the *smallest* for ``t < 0``), and for any small ``|t|``, where the mean is subtracted first.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0])
      >>> [round(float(tilted(t).value(losses)), 4) for t in (-1.0, 0.0, 1.0)]
      [1.1692, 3.2, 8.392]

    Source: Li et al., *Tilted Empirical Risk Minimization*, ICLR 2021, equations 2 and 4.
    """
    is_array = isinstance(t, jax.Array | np.ndarray) and not t.ndim and t.dtype.kind in {*"iufV"}
    if not is_array:
        number = real_number(t)
        if math.isnan(number):
            raise EvenhandError(f"tilted(t={t!r:.40}): the tilt must be a number, or plus or minus infinity.")
        t = number
        if abs(number) > _MOST:
            sign = math.copysign(1.0, number)
            return linear(lambda losses, p: _dominant(sign * pinned(losses), p))

    def weigh(losses: Array, p: Array) -> Array:
        _, powers = _shifted(losses, p, t)
        return among(p > 0, p * jnp.exp(powers))

    def value(losses: Array, p: Array) -> Array:
        tilt = jnp.asarray(t, losses.dtype)
        near = jnp.abs(tilt) * (_largest(losses, p) + _largest(-losses, p)) < _NEAR
        shift, powers = _shifted(losses, p, t)
        total = jax.scipy.special.logsumexp(jnp.where(near, 0.0, powers) + log_weights(p))
        far = shift + total / jnp.where(near, 1.0, tilt)
        return jnp.where(near, _near_mean(losses, p, tilt, near), far)

    return risk(value, weigh)


def _dominant(losses: Array, p: Array) -> Array:
    """Weights that are all on the largest loss."""
    return among(losses == _largest(losses, p), p)


def _shifted(losses: Array, p: Array, t: float | Array) -> tuple[Array, Array]:
    """The loss that dominates, and ``t`` times each loss's difference from it."""
    tilt = jnp.asarray(t, losses.dtype)
    shift = jax.lax.stop_gradient(jnp.where(tilt > 0, _largest(losses, p), -_largest(-losses, p)))
    return shift, jnp.where(p > 0, tilt * (losses - shift), 0.0)


def _largest(losses: Array, p: Array) -> Array:
    """The largest loss with a weight; 0 where there is none."""
    return jnp.where(jnp.any(p > 0), jnp.max(jnp.where(p > 0, losses, -jnp.inf)), 0.0)


def _near_mean(losses: Array, p: Array, tilt: Array, near: Array) -> Array:
    r"""``mean + log1p(u)/u * sum p d expm1(t d)/(t d)``, ``d`` the distance to the mean, ``u = sum p expm1(t d)``."""
    mean = jnp.sum(p * losses)
    distance = jnp.where(near & (p > 0), losses - mean, 0.0)
    power = tilt * distance
    u = jnp.sum(p * jnp.expm1(power))
    return mean + _over(jnp.log1p, u, -0.5, 1 / 3) * jnp.sum(
        p * distance * _over(jnp.expm1, power, 0.5, 1 / 6)
    )


def _over(function: Callable[[Array], Array], x: Array, slope: float, bend: float) -> Array:
    """``function(x) / x``, near 0 by its expansion ``1 + slope x + bend x^2``."""
    tiny = jnp.abs(x) < 1e-4
    return jnp.where(tiny, 1.0 + x * (slope + bend * x), function(x) / jnp.where(tiny, 1.0, x))
