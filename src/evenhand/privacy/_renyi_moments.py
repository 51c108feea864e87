"""Logarithms of moments of likelihood ratios between a mechanism's outputs on neighbouring data, after sampling.

What a mechanism of Renyi divergence ``D(alpha)`` says about a unit is in ``log E Z^alpha = (alpha - 1) D(alpha)``, with
``Z`` the likelihood ratio; everything here is in terms of that logarithm, which is convex in ``alpha`` and 0 at 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["Curve", "at_any_order", "fixed", "fixed_gaussian", "poisson", "poisson_gaussian"]

NDArray = npt.NDArray[np.float64]
Curve = Callable[[NDArray], NDArray]
"""``orders -> Renyi divergences``."""

_LARGEST_EXACT = 256
"""Least differences between a fixed cohort's bounds are told apart up to this power."""
_AVERAGED = 48
"""Partial sums of an alternating series that are averaged: each halves what is left of its error."""

_TINY = 1e-12
"""Below it, the logarithm of a sum near 1 is mostly rounding."""


@lru_cache(maxsize=8)
def _log_binomials(orders: tuple[int, ...]) -> NDArray:
    """``log C(order, power)``, one row an order and one column a power from 2; -inf beyond the order."""
    from scipy.special import gammaln

    alpha, power = np.asarray(orders, np.float64)[:, None], _powers(orders)
    return gammaln(alpha + 1.0) - gammaln(power + 1.0) - gammaln(alpha - power + 1.0)


def _powers(orders: tuple[int, ...]) -> NDArray:
    return np.arange(2.0, max((2, *orders)) + 1.0)


def _log_one_plus_sum(log_terms: NDArray) -> NDArray:
    """``log(1 + sum of exp(terms))`` of each row, exact also where the sum is far below 1."""
    from scipy.special import logsumexp

    return np.logaddexp(0.0, logsumexp(log_terms, axis=1))


def _log_less_one(log_value: NDArray) -> NDArray:
    """``log(exp(x) - 1)``, for ``x`` of at least 0."""
    with np.errstate(divide="ignore"):
        return log_value + np.log(-np.expm1(-log_value))


def poisson(curve: Curve, rate: float, kappa: float, orders: tuple[int, ...]) -> NDArray:
    """Of a mechanism on a Poisson sample, at whole orders; ``kappa`` multiplies the terms from the third power on.

    Its binomial weights add up to 1 with those of the powers 0 and 1, so that all terms less their weights are what is
    above 1.
    """
    power = _powers(orders)
    moments = (power - 1.0) * curve(power)
    excess = _log_less_one(moments + np.where(power > 2.0, math.log(kappa), 0.0))
    alpha = np.asarray(orders, np.float64)[:, None]
    weights = _log_binomials(orders) + power * math.log(rate) + (alpha - power) * math.log1p(-rate)
    return _log_one_plus_sum(weights + excess)


def fixed(curve: Curve, rate: float, orders: tuple[int, ...]) -> NDArray:
    """Of any mechanism on a sample of a fixed size, at whole orders, where one unit is replaced by another."""
    power = _powers(orders)
    bounds = math.log(2.0) + (power - 1.0) * curve(power)
    bounds[0] = min(bounds[0], math.log(4.0) + float(_log_less_one(curve(power[:1]))[0]))
    return _log_one_plus_sum(_log_binomials(orders) + power * math.log(rate) + bounds)


def fixed_gaussian(noise_multiplier: float, rate: float, orders: tuple[int, ...]) -> NDArray:
    """As :func:`fixed`, of Gaussian noise, of which central moments are known, too."""
    power = _powers(orders)
    bounds = math.log(2.0) + power * (power - 1.0) / (2.0 * noise_multiplier**2)
    central = _log_central_moments(noise_multiplier, min(int(power[-1]), _LARGEST_EXACT))
    for index in range(min(len(power), _LARGEST_EXACT - 1)):
        below, above = central[index // 2], central[min((index + 1) // 2, len(central) - 1)]
        bounds[index] = min(bounds[index], math.log(4.0) + 0.5 * (below + above))
    return _log_one_plus_sum(_log_binomials(orders) + power * math.log(rate) + bounds)


@lru_cache(maxsize=8)
def _log_central_moments(noise_multiplier: float, largest: int) -> NDArray:
    """``log E (Z - 1)^power`` for powers 2, 4, ... up to ``largest`` and one more, ``Z`` of Gaussian noise.

    Differences of moments would cancel; the integrand is positive, and the trapezoidal rule exact to rounding.
    """
    from scipy.special import logsumexp

    powers = np.arange(2.0, largest + 3.0, 2.0)
    if noise_multiplier < 0.25:  # far above the other bound, and costly
        return np.full(len(powers), math.inf)
    step = 0.1
    x = np.arange(-14.0, powers[-1] / noise_multiplier + 14.0, step)
    log_ratio = x / noise_multiplier - 0.5 / noise_multiplier**2
    with np.errstate(divide="ignore"):
        distance = np.where(log_ratio > 0.0, log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))
    density = -0.5 * x**2 + math.log(step) - 0.5 * math.log(2.0 * math.pi)
    return np.array([float(logsumexp(power * distance + density)) for power in powers])


def poisson_gaussian(noise_multiplier: float, rate: float, orders: NDArray) -> NDArray:
    """Of Gaussian noise on a Poisson sample, at orders that are not whole: a series on each half of the line.

    From the order on its terms change their sign each time and shrink slowly, so that partial sums are averaged
    (Euler's transformation).  Where the sum is 1 but for rounding, the bound of :func:`at_any_order` takes its place.
    """
    from scipy.special import bdtrc, gammaln, gammasgn, log_ndtr, logsumexp

    direct = math.ceil(orders.max()) + 32
    i = np.arange(direct + _AVERAGED, dtype=np.float64)
    weight = np.ones_like(i)
    weight[direct:] = bdtrc(np.arange(_AVERAGED), _AVERAGED, 0.5)
    alpha = orders[:, None]
    j, variance = alpha - i, noise_multiplier**2
    log_odds = math.log(rate) - math.log1p(-rate)
    z = 0.5 - variance * log_odds
    log_binomial = gammaln(alpha + 1.0) - gammaln(i + 1.0) - gammaln(j + 1.0)
    sign = gammasgn(j + 1.0) * weight
    log_q, log_p = math.log(rate), math.log1p(-rate)
    left = i * log_q + j * log_p + (i**2 - i) / (2.0 * variance) + log_ndtr((z - i) / noise_multiplier)
    right = j * log_q + i * log_p + (j**2 - j) / (2.0 * variance) + log_ndtr((j - z) / noise_multiplier)
    terms = log_binomial[:, :, None] + np.stack([left, right], axis=2)
    moments = np.asarray(logsumexp(terms, axis=(1, 2), b=np.stack([sign, sign], axis=2)))
    tiny = moments < _TINY
    if tiny.any():
        moments[tiny] = at_any_order(
            lambda whole: poisson(lambda power: power / (2.0 * variance), rate, 1.0, whole), orders[tiny]
        )
    return moments


def at_any_order(whole: Callable[[tuple[int, ...]], NDArray], orders: NDArray) -> NDArray:
    """Between whole orders on the line that joins them: an upper bound, since logarithms of moments are convex."""
    below, above = np.floor(orders).astype(int), np.ceil(orders).astype(int)
    needed = tuple(sorted({*below.tolist(), *above.tolist()} - {1}))
    moments = dict(zip(needed, whole(needed).tolist(), strict=True)) | {1: 0.0}
    low = np.array([moments[order] for order in below.tolist()])
    high = np.array([moments[order] for order in above.tolist()])
    part = orders - below
    with np.errstate(invalid="ignore"):
        return np.where(part > 0.0, (1.0 - part) * low + part * high, low)
