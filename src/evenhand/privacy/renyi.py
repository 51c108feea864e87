"""Renyi differential privacy: what one use of a mechanism costs, with sampling, and what costs amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.privacy import _renyi_moments
from evenhand.privacy._checks import checked_orders, checked_rate, noise, one_of, positive, probability

__all__ = [
    "ORDERS",
    "ORDERS_FEDERATED",
    "ORDERS_FINE",
    "Spent",
    "amplified",
    "epsilon_of_rdp",
    "rdp",
]

NDArray = npt.NDArray[np.float64]

ORDERS: tuple[float, ...] = (
    *(1.1, 1.2, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25, 4.5, 4.75),
    *(half / 2.0 for half in range(10, 128)),
    *(128.0, 256.0, 512.0),
)
"""The orders with which the papers on AdaDPS and DP2 computed their epsilons."""

ORDERS_FEDERATED: tuple[float, ...] = (1.02, 1.06, *ORDERS)
"""The same for federated learning, where little noise makes the least orders the best."""

ORDERS_FINE: tuple[float, ...] = tuple(
    sorted(
        {
            *ORDERS_FEDERATED,
            *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
            *(
                float(order)
                for order in (72, 80, 88, 96, 112, 144, 160, 192, 224, 320, 384, 448, 640, 768, 1024)
            ),
        }
    )
)
"""All of these, and those that other accountants try: the more orders, the smaller epsilon; used unless others are."""


class Spent(NamedTuple):
    """What has been given away, at some delta.

    Attributes:
      epsilon: of :math:`(\\varepsilon, \\delta)`-differential privacy; 0 if nothing was, infinite if everything was.
      order: of the Renyi divergence that shows it; None where none was needed.
      at_edge: whether that is the least or the largest order tried: others might show a smaller epsilon.
    """

    epsilon: float
    order: float | None
    at_edge: bool


def rdp(
    *,
    noise_multiplier: float,
    rate: float = 1.0,
    sampling: Literal["poisson", "fixed"] = "poisson",
    orders: Sequence[float] = ORDERS,
) -> NDArray:
    r"""Renyi divergences between what Gaussian noise on a sample gives away about neighbouring data, at each order.

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
    sigma, q = noise("noise_multiplier", noise_multiplier), checked_rate("rate", rate)
    one_of("sampling", sampling, ("poisson", "fixed"))
    alpha = checked_orders(orders)
    if q == 0.0 or sigma == 0.0:
        return np.full(alpha.shape, 0.0 if q == 0.0 else math.inf)
    unsampled = alpha / (2.0 * sigma**2)
    if q == 1.0:
        return unsampled
    if sampling == "fixed":
        moments = _renyi_moments.at_any_order(
            lambda whole: _renyi_moments.fixed_gaussian(sigma, q, whole), alpha
        )
    else:
        moments = np.empty_like(alpha)
        is_whole = alpha == np.floor(alpha)
        if is_whole.any():
            whole = tuple(int(order) for order in alpha[is_whole])
            moments[is_whole] = _renyi_moments.poisson(lambda power: power / (2.0 * sigma**2), q, 1.0, whole)
        if not is_whole.all():
            moments[~is_whole] = _renyi_moments.poisson_gaussian(sigma, q, alpha[~is_whole])
    return np.clip(moments / (alpha - 1.0), 0.0, unsampled)


def amplified(
    curve: _renyi_moments.Curve,
    *,
    rate: float,
    kappa: float = 3.0,
    sampling: Literal["poisson", "fixed"] = "poisson",
    orders: Sequence[float] = ORDERS,
) -> NDArray:
    r"""Renyi divergences of any mechanism on a sample, from those of the mechanism alone.

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
    q, alpha = checked_rate("rate", rate), checked_orders(orders)
    one_of("sampling", sampling, ("poisson", "fixed"))
    if positive("kappa", kappa) < 1.0:
        raise EvenhandError(f"kappa={kappa}: give 1 for mechanisms of the Gaussian's kind, 3 for any.")
    if q == 0.0:
        return np.zeros_like(alpha)
    if q == 1.0:
        return np.asarray(curve(alpha), np.float64)

    def whole(orders: tuple[int, ...]) -> NDArray:
        if sampling == "fixed":
            return _renyi_moments.fixed(curve, q, orders)
        return _renyi_moments.poisson(curve, q, float(kappa), orders)

    return np.minimum(_renyi_moments.at_any_order(whole, alpha) / (alpha - 1.0), curve(alpha))


def epsilon_of_rdp(
    divergences: Sequence[float] | NDArray, *, orders: Sequence[float], delta: float, classic: bool = False
) -> Spent:
    r"""Epsilon at some delta, from Renyi divergences that were added over all that was given away.

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
    delta, alpha = probability("delta", delta), checked_orders(orders)
    costs = np.asarray(divergences, np.float64)
    if costs.shape != alpha.shape or not np.all(costs >= 0.0):
        raise EvenhandError("divergences: give a number of at least 0 for each of the orders.")
    if np.any(delta**2 + np.expm1(-costs) >= 0.0):
        return Spent(0.0, None, False)
    gain = 0.0 if classic else np.log1p(-1.0 / alpha) - np.log(alpha) / (alpha - 1.0)
    epsilons = np.where(alpha > 1.01, costs + gain - math.log(delta) / (alpha - 1.0), math.inf)
    best = int(np.argmin(epsilons))
    if epsilons[best] == math.inf:
        return Spent(math.inf, None, False)
    if epsilons[best] <= 0.0:
        return Spent(0.0, None, False)
    order = float(alpha[best])
    return Spent(float(epsilons[best]), order, order in (float(alpha.min()), float(alpha.max())))
