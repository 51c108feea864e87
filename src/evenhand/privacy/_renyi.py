"""Renyi divergences: what one use of a mechanism costs, with sampling, and what costs amount to.

Renyi differential privacy first, and epsilon of it; then concentrated differential privacy, whose costs are one number,
added over what is given away; last the moments of likelihood ratios that divergences after sampling come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from evenhand.errors import EvenhandError, real_number, truth_value
from evenhand.privacy import _checks as checks
from evenhand.privacy._checks import NDArray, Orders, Scheme

# --- Renyi differential privacy --------------------------------------------------------------------------


ORDERS: tuple[float, ...] = (
    *(1.1, 1.2, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25, 4.5, 4.75),
    *(half / 2.0 for half in range(10, 128)),
    *(128.0, 256.0, 512.0),
)
"""The orders with which the papers on AdaDPS and DP2 computed their epsilons."""


ORDERS_FEDERATED: tuple[float, ...] = (1.02, 1.06, *ORDERS)
"""The same for federated learning, where little noise makes the least orders the best."""


_TENTHS = {1.0 + tenth / 10.0 for tenth in range(1, 100)}
_LARGE = {float(order) for order in (72, 80, 88, 96, 112, 144, 160, 192, 224, 320, 384, 448, 640, 768, 1024)}


ORDERS_FINE: tuple[float, ...] = tuple(sorted(_TENTHS | _LARGE | {*ORDERS_FEDERATED}))
"""All of these, and those that other accountants try: the more orders, the smaller epsilon; used unless others are."""


class Spent(NamedTuple):
    """The privacy loss at a given delta.

    Attributes:
      epsilon: of :math:`(\\varepsilon, \\delta)`-differential privacy; 0 if nothing was, infinite if everything was.
      order: of the Renyi divergence that shows it; None where none was needed.
      at_edge: whether that is the least or the largest order tried: others might show a smaller epsilon.
    """

    epsilon: float
    order: float | None
    at_edge: bool


def rdp(
    *, noise_multiplier: float, rate: float = 1.0, sampling: Scheme = "poisson", orders: Orders = ORDERS
) -> NDArray:
    r"""Renyi divergences of the sampled Gaussian mechanism between neighbouring data sets, at each order.

    .. math::
        \mathrm{RDP}(\alpha) = \frac{\log A_\alpha}{\alpha - 1}, \qquad
        A_\alpha = \mathop{\mathbb E}_{z \sim \mathcal N(0, \sigma^2)} \big(1 - q + q\, e^{(2 z - 1) / (2 \sigma^2)}
        \big)^\alpha = \sum_{k=0}^\alpha \binom\alpha k (1 - q)^{\alpha - k} q^k e^{(k^2 - k) / (2 \sigma^2)},

    the sum where :math:`\alpha` is whole; else two series with generalised binomials, of which some are negative
    (Mironov et al., section 3.3).  :math:`\alpha / (2 \sigma^2)` at :math:`q = 1`, 0 at :math:`q = 0`.

    With ``sampling="fixed"`` it is a bound: that of Wang et al. (theorem 27),

    .. math::
        A_\alpha \le 1 + \sum_{k=2}^\alpha \binom\alpha k q^k \min\{4 \sqrt{B_{2 \lfloor k / 2 \rfloor}
        B_{2 \lceil k / 2 \rceil}},\ 2 e^{(k^2 - k) / (2 \sigma^2)}\}, \qquad B_k = \mathbb E (Z - 1)^k,

    with :math:`Z` the likelihood ratio; between whole orders, the line that joins :math:`\log A_\alpha`.

    Args:
      noise_multiplier: :math:`\sigma`, the noise's standard deviation over the sensitivity: how far one unit's being
        added or removed can move the sum, or, with ``sampling="fixed"``, its being replaced by another; 0: infinite.
      rate: :math:`q`, the chance with which a unit takes part; or the part of all units that does.
      sampling: whether units take part independently (neighbours: one unit added or removed), or a fixed number of
        them (neighbours: one unit replaced).
      orders: :math:`\alpha > 1`.

    Raises:
      EvenhandError: an argument out of range.

    Differs from the papers: terms that cancel are added by Euler's transformation, and moments are integrated, so that
    every order converges.  (dp-accounting 0.6 adds absolute values of the negative terms: at orders below 2 its values
    are up to several times as large, and some are missing.)  No value is above that without sampling.

    Example:
      >>> rdp(noise_multiplier=2.0, orders=[8]).round(6).tolist()
      [1.0]
      >>> [f"{value:.6e}" for value in rdp(noise_multiplier=1.0, rate=0.01, orders=[1.25, 2, 10.5])]
      ['1.053980e-04', '1.718134e-04', '1.883397e-01']
      >>> rdp(noise_multiplier=1.0, rate=0.01, orders=[2], sampling="fixed").round(6).tolist()
      [0.000544]

    Source: Mironov, Talwar and Zhang, *Renyi Differential Privacy of the Sampled Gaussian Mechanism*, 2019; Wang, Balle
    and Kasiviswanathan, *Subsampled Renyi Differential Privacy and Analytical Moments Accountant*, AISTATS 2019.
    """
    sigma, q = checks.noise("noise_multiplier", noise_multiplier), checks.rate("rate", rate)
    checks.one_of("sampling", sampling, ("poisson", "fixed"))
    alpha = checks.orders(orders)
    if q == 0.0 or sigma == 0.0:
        return np.full(alpha.shape, 0.0 if q == 0.0 else math.inf)
    unsampled = gaussian(sigma)(alpha)
    if q == 1.0:
        return unsampled
    if sampling == "fixed":
        moments = at_any_order(partial(fixed_gaussian_moments, sigma, q), alpha)
    else:
        moments = np.empty_like(alpha)
        is_whole = alpha == np.floor(alpha)
        if is_whole.any():
            whole = tuple(alpha[is_whole].astype(int).tolist())
            moments[is_whole] = poisson_moments(gaussian(sigma), q, 1.0, whole)
        if not is_whole.all():
            moments[~is_whole] = poisson_gaussian_moments(sigma, q, alpha[~is_whole])
    return np.clip(moments / (alpha - 1.0), 0.0, unsampled)


def amplified(
    curve: Curve, *, rate: float, kappa: float = 3.0, sampling: Scheme = "poisson", orders: Orders = ORDERS
) -> NDArray:
    r"""Privacy amplification by sampling: Renyi divergences of a mechanism on a sample, from those of the mechanism.

    .. math::
        \varepsilon'(\alpha) \le \frac1{\alpha - 1} \log \Big\{(1 - q)^{\alpha - 1} (\alpha q - q + 1)
        + \binom\alpha2 q^2 (1 - q)^{\alpha - 2} e^{\varepsilon(2)}
        + \kappa \sum_{\ell=3}^\alpha \binom\alpha\ell (1 - q)^{\alpha - \ell} q^\ell e^{(\ell - 1) \varepsilon(\ell)}
        \Big\}

    for Poisson sampling, and for a sample of fixed size (neighbours: one unit replaced)

    .. math::
        \varepsilon'(\alpha) \le \frac1{\alpha - 1} \log \Big\{1 + \binom\alpha2 q^2 \min\{4 (e^{\varepsilon(2)} - 1),
        2 e^{\varepsilon(2)}\} + 2 \sum_{\ell=3}^\alpha \binom\alpha\ell q^\ell e^{(\ell - 1) \varepsilon(\ell)} \Big\}.

    Args:
      curve: ``orders -> divergences``, :math:`\varepsilon(\ell)`; called with whole orders from 2, and with ``orders``.
      rate: :math:`q`.
      kappa: :math:`\kappa`: 3 for any mechanism, 1 for those of the Gaussian's kind (with Gaussian noise it gives
        :func:`rdp`).  Poisson sampling only.
      sampling: as in :func:`rdp`.
      orders: :math:`\alpha > 1`; between whole orders, the line that joins :math:`(\alpha - 1) \varepsilon'(\alpha)`.

    Raises:
      EvenhandError: an argument out of range.

    Differs from the papers: a bound above :math:`\varepsilon(\alpha)` itself is replaced by it, since sampling never
    gives more away.

    Example:
      >>> gaussian = lambda orders: orders / 2.0
      >>> [f"{value:.6e}" for value in amplified(gaussian, rate=0.01, kappa=1.0, orders=[2, 10])]
      ['1.718134e-04', '3.827042e-02']
      >>> [f"{value:.6e}" for value in amplified(gaussian, rate=0.01, orders=[2, 10])]
      ['1.718134e-04', '8.858837e-02']

    Source: Zhu and Wang, *Poisson Subsampled Renyi Differential Privacy*, ICML 2019; Wang, Balle and Kasiviswanathan,
    AISTATS 2019, theorem 9.
    """
    q, alpha = checks.rate("rate", rate), checks.orders(orders)
    checks.one_of("sampling", sampling, ("poisson", "fixed"))
    if checks.positive("kappa", kappa) < 1.0:
        raise EvenhandError(f"kappa={kappa}: give 1 for mechanisms of the Gaussian's kind, 3 for any.")
    if q == 0.0:
        return np.zeros_like(alpha)
    if q == 1.0:
        return np.asarray(curve(alpha), np.float64)

    whole = partial(poisson_moments, curve, q, float(kappa))
    if sampling == "fixed":
        whole = partial(fixed_moments, curve, q)
    return np.minimum(at_any_order(whole, alpha) / (alpha - 1.0), curve(alpha))


def epsilon_of_rdp(
    divergences: Sequence[float] | NDArray, *, orders: Orders, delta: float, classic: bool = False
) -> Spent:
    r"""Converts Renyi differential privacy to epsilon at a given delta, from the sum of all divergences.

    .. math::
        \varepsilon = \min_\alpha \Big[\mathrm{RDP}(\alpha) + \log \big(1 - \tfrac1\alpha\big)
        - \frac{\log (\delta \alpha)}{\alpha - 1}\Big], \qquad
        \text{classic: } \min_\alpha \Big[\mathrm{RDP}(\alpha) + \frac{\log (1 / \delta)}{\alpha - 1}\Big].

    Args:
      divergences: :math:`\mathrm{RDP}(\alpha)`, one for each of the ``orders``; infinite ones are left out.
      orders: :math:`\alpha > 1`; those up to 1.01 are left out, at which rounding tells.
      delta: :math:`\delta`.
      classic: the older rule, which is looser.

    Returns:
      The least epsilon, 0 where it would be negative or where some :math:`\delta^2 \ge 1 - e^{-\mathrm{RDP}(\alpha)}`.

    Raises:
      EvenhandError: delta is not between 0 and 1, or a divergence negative, not a number, or missing.

    Example:
      >>> costs = 12500 * rdp(noise_multiplier=1.0, rate=64 / 25000)
      >>> [round(epsilon_of_rdp(costs, orders=ORDERS, delta=4e-5, classic=old).epsilon, 3) for old in (False, True)]
      [1.513, 1.86]

    Source: Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, proposition 12;
    classic: Mironov, *Renyi Differential Privacy*, CSF 2017, proposition 3.
    """
    classic = truth_value("classic", classic)
    delta, alpha = checks.probability("delta", delta), checks.orders(orders)
    costs = np.asarray(divergences, np.float64)
    if costs.shape != alpha.shape or not np.all(costs >= 0.0):
        raise EvenhandError("divergences: give a number of at least 0 for each of the orders.")
    if np.any(delta**2 + np.expm1(-costs) >= 0.0):
        return Spent(0.0, None, False)
    gain = 0.0 if classic else np.log1p(-1.0 / alpha) - np.log(alpha) / (alpha - 1.0)
    epsilons = np.where(alpha > 1.01, costs + gain - math.log(delta) / (alpha - 1.0), math.inf)
    best = int(np.argmin(epsilons))
    epsilon, order = max(0.0, float(epsilons[best])), float(alpha[best])
    if epsilon in (0.0, math.inf):
        return Spent(epsilon, None, False)
    return Spent(epsilon, order, order in (float(alpha.min()), float(alpha.max())))


# --- concentrated differential privacy -------------------------------------------------------------------


def epsilon_of_zcdp(rho: float, *, delta: float, classic: bool = False) -> float:
    r"""Epsilon at a given delta of rho-zCDP, whose Renyi divergences are at most rho times alpha.

    .. math::
        \varepsilon = \min_{\alpha > 1} \Big[\rho \alpha + \frac{\log (1 / (\alpha \delta))}{\alpha - 1}
        + \log \big(1 - \tfrac1\alpha\big)\Big], \qquad
        \text{classic: } \rho + 2 \sqrt{\rho \log (1 / \delta)}.

    Args:
      rho: :math:`\rho \ge 0`; :math:`1 / (2 \sigma^2)` for Gaussian noise, and :math:`\varepsilon_c^2 / 2` for what the
        paper on Delta-FL calls :math:`\tfrac12 \varepsilon_c^2`-concentrated.
      delta: :math:`\delta`.
      classic: the older rule, which is looser.

    Raises:
      EvenhandError: an argument out of range.

    Example:
      >>> [round(epsilon_of_zcdp(c**2 / 2, delta=1e-5, classic=True), 5) for c in (0.1, 0.5, 1.0, 2.0)]
      [0.48485, 2.52426, 5.29853, 11.59705]
      >>> round(epsilon_of_zcdp(0.5, delta=1e-5), 5)
      4.72839

    Source: Bun and Steinke, *Concentrated Differential Privacy*, TCC 2016, proposition 1.3; Canonne, Kamath and
    Steinke, NeurIPS 2020, corollary 13.
    """
    classic = truth_value("classic", classic)
    delta = checks.probability("delta", delta)
    if not real_number(rho) >= 0.0:
        raise EvenhandError(
            f"rho={rho}: give a number of at least 0, 1 / (2 noise_multiplier^2) for Gaussian noise."
        )
    if rho == 0.0 or rho == math.inf:
        return rho
    if classic:
        return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
    from scipy.optimize import minimize_scalar

    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)
        return rho * (1.0 + excess) - math.log((1.0 + excess) * delta) / excess - math.log1p(1.0 / excess)

    centre = 0.5 * math.log(math.log(1.0 / delta) / rho)  # where the classic rule has its minimum
    ends = centre - 5.0, centre + 5.0
    best: Any = minimize_scalar(at, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(best.fun))


def joint(noise_multipliers: Sequence[float]) -> float:
    r"""The noise multiplier of one release with the same privacy loss as several of the same sample.

    .. math::
        \sigma = \Big(\sum_i \sigma_i^{-2}\Big)^{-1/2}

    What is computed from one sample is sampled once: its costs are added first, and the sum is amplified.  Two queries
    with the same noise are one with :math:`\sigma / \sqrt2`; a quantile with :math:`\rho_q` and an update with
    :math:`\rho_w = 1 / (2 \sigma_w^2)` are one with :math:`\rho_q + \rho_w`.

    Args:
      noise_multipliers: :math:`\sigma_i`, each over the sensitivity of what it hides; infinite: nothing is given away.

    Returns:
      :math:`\sigma`; 0 if one of them is, infinite if all are or there are none.

    Raises:
      EvenhandError: one is negative or not a number.

    Example:
      >>> round(joint([1.0, 1.0]), 6)
      0.707107
      >>> joint([3.0, 4.0])
      2.4

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023, the
    first ablation (one sample, two queries); Dong, Roth and Su, *Gaussian Differential Privacy*, 2022, corollary 3.3.
    """
    hiding = [checks.noise("noise_multipliers", z) for z in noise_multipliers if z != math.inf]
    if 0.0 in hiding:
        return 0.0
    total = sum(z**-2 for z in hiding)
    return math.inf if total == 0.0 else total**-0.5


# --- moments of likelihood ratios ------------------------------------------------------------------------
# Logarithms of moments of likelihood ratios between a mechanism's outputs on neighbouring data, after sampling.  What a
# mechanism of Renyi divergence D(alpha) says about a unit is in log E Z^alpha = (alpha - 1) D(alpha), with Z the
# likelihood ratio; all of this part is in terms of that logarithm, which is convex in alpha and 0 at 1.


Curve = Callable[[NDArray], NDArray]
"""``orders -> Renyi divergences``."""


_LARGEST_EXACT = 256
"""Least differences between a fixed cohort's bounds are told apart up to this power."""


_AVERAGED = 48
"""Partial sums of an alternating series that are averaged: each halves what is left of its error."""


_TINY = 1e-12
"""Below it, the logarithm of a sum near 1 is mostly rounding."""


def gaussian(noise_multiplier: float) -> Curve:
    """The divergences of Gaussian noise alone."""
    return lambda orders: orders / (2.0 * noise_multiplier**2)


def poisson_moments(curve: Curve, rate: float, kappa: float, orders: tuple[int, ...]) -> NDArray:
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


def fixed_moments(curve: Curve, rate: float, orders: tuple[int, ...]) -> NDArray:
    """Of any mechanism on a sample of a fixed size, at whole orders, where one unit is replaced by another."""
    power = _powers(orders)
    bounds = math.log(2.0) + (power - 1.0) * curve(power)
    bounds[0] = min(bounds[0], math.log(4.0) + float(_log_less_one(curve(power[:1]))[0]))
    return _log_one_plus_sum(_log_binomials(orders) + power * math.log(rate) + bounds)


def fixed_gaussian_moments(noise_multiplier: float, rate: float, orders: tuple[int, ...]) -> NDArray:
    """As :func:`fixed`, of Gaussian noise, of which central moments are known, too."""
    power = _powers(orders)
    bounds = math.log(2.0) + power * (power - 1.0) / (2.0 * noise_multiplier**2)
    central = _log_central_moments(noise_multiplier, min(int(power[-1]), _LARGEST_EXACT))
    for index in range(min(len(power), _LARGEST_EXACT - 1)):
        below, above = central[index // 2], central[min((index + 1) // 2, len(central) - 1)]
        bounds[index] = min(bounds[index], math.log(4.0) + 0.5 * (below + above))
    return _log_one_plus_sum(_log_binomials(orders) + power * math.log(rate) + bounds)


def poisson_gaussian_moments(noise_multiplier: float, rate: float, orders: NDArray) -> NDArray:
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
    log_q, log_p = math.log(rate), math.log1p(-rate)
    z = 0.5 - variance * (log_q - log_p)
    log_binomial = gammaln(alpha + 1.0) - gammaln(i + 1.0) - gammaln(j + 1.0)
    sign = gammasgn(j + 1.0) * weight
    left = i * log_q + j * log_p + (i**2 - i) / (2.0 * variance) + log_ndtr((z - i) / noise_multiplier)
    right = j * log_q + i * log_p + (j**2 - j) / (2.0 * variance) + log_ndtr((j - z) / noise_multiplier)
    terms = log_binomial[:, :, None] + np.stack([left, right], axis=2)
    moments = np.asarray(logsumexp(terms, axis=(1, 2), b=np.stack([sign, sign], axis=2)))
    tiny = moments < _TINY
    if tiny.any():
        whole = partial(poisson_moments, gaussian(noise_multiplier), rate, 1.0)
        moments[tiny] = at_any_order(whole, orders[tiny])
    return moments


def at_any_order(whole: Callable[[tuple[int, ...]], NDArray], orders: NDArray) -> NDArray:
    """Between whole orders on the line that joins them: an upper bound, since logarithms of moments are convex."""
    below, above = np.floor(orders).astype(int), np.ceil(orders).astype(int)
    needed = tuple(sorted({*below.tolist(), *above.tolist()} - {1}))
    moments = dict(zip(needed, whole(needed).tolist(), strict=True)) | {1: 0.0}
    low, high = (np.array([moments[order] for order in ends.tolist()]) for ends in (below, above))
    part = orders - below
    with np.errstate(invalid="ignore"):
        return np.where(part > 0.0, (1.0 - part) * low + part * high, low)


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
    # The integrand is largest within the root of the power of 0 or of power / noise.
    ends = 14.0 + math.ceil(math.sqrt(powers[-1]))
    x = np.arange(-ends, powers[-1] / noise_multiplier + ends, step)
    log_ratio = x / noise_multiplier - 0.5 / noise_multiplier**2
    with np.errstate(divide="ignore"):
        distance = np.where(log_ratio > 0.0, log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))
    density = -0.5 * x**2 + math.log(step) - 0.5 * math.log(2.0 * math.pi)
    return np.array([logsumexp(power * distance + density) for power in powers], np.float64)


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

    log_sum: Any = logsumexp(log_terms, axis=1)
    return np.logaddexp(0.0, log_sum)


def _log_less_one(log_value: NDArray) -> NDArray:
    """``log(exp(x) - 1)``, for ``x`` of at least 0."""
    with np.errstate(divide="ignore"):
        return log_value + np.log(-np.expm1(-log_value))
