"""Concentrated differential privacy: costs that are one number, added over what is given away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evenhand.errors import EvenhandError
from evenhand.privacy._checks import noise, probability

__all__ = ["epsilon_of_zcdp", "joint"]


def epsilon_of_zcdp(rho: float, *, delta: float, classic: bool = False) -> float:
    r"""Epsilon at some delta of zero-concentrated differential privacy, whose divergences are at most rho times alpha.

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
    delta = probability("delta", delta)
    if not rho >= 0.0:
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
    best: Any = minimize_scalar(
        at, bounds=(centre - 5.0, centre + 5.0), method="bounded", options={"xatol": 1e-10}
    )
    return max(0.0, float(best.fun))


def joint(noise_multipliers: Sequence[float]) -> float:
    r"""The noise multiplier of one release that gives away as much as several of the same sample.

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
    total = 0.0
    for multiplier in noise_multipliers:
        if multiplier == 0.0:
            return 0.0
        if multiplier != math.inf:
            total += noise("noise_multipliers", multiplier) ** -2
    return math.inf if total == 0.0 else total**-0.5
