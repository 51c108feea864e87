"""FedProx's convergence theorem as numbers: how much a round decreases the objective, and the mu that it calls for."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from evenhand.errors import EvenhandError, real_number
from evenhand.theory.point_estimation import LARGEST, in_range

__all__ = [
    "ProximalWeights",
    "dissimilarity_bound",
    "fedprox_decrease",
    "fedprox_mu",
    "fedprox_rounds",
]


class ProximalWeights(NamedTuple):
    r"""The proximal weights for which the theorem guarantees a decrease; made by :func:`fedprox_mu`.

    Attributes:
      least: every :math:`\mu` above it decreases the objective in expectation; infinite where none does.
      best: the :math:`\mu` with the largest guaranteed decrease; infinite if there is none.
      decrease: :math:`\rho` at ``best``; 0 where none is.
    """

    least: float
    best: float
    decrease: float


def fedprox_decrease(
    mu: float, *, B: float, lipschitz: float, cohort: float, gamma: float = 0.0, concavity: float = 0.0
) -> float:
    r"""FedProx's :math:`\rho`, the expected decrease of the objective in a round per squared norm of its gradient.

    .. math::
        \mathbb E f(w^{t+1}) \le f(w^t) - \rho \|\nabla f(w^t)\|^2, \qquad
        \rho = \frac{1 - \gamma B}\mu - \frac{\sqrt2 B (1 + \gamma)}{\bar\mu \sqrt K}
        - \frac{L B (1 + \gamma)}{\bar\mu \mu} - \frac{L (1 + \gamma)^2 B^2}{2 \bar\mu^2}
        - \frac{L B^2 (1 + \gamma)^2}{\bar\mu^2 K} \big( 2 \sqrt{2 K} + 2 \big), \qquad \bar\mu = \mu - L_-

    Args:
      mu: :math:`\mu > L_-`, in units of loss per squared distance, as :math:`L`.
      B: the dissimilarity of the clients' gradients, at least 1, without a unit: ``eh.evaluation.dissimilarity``.
      lipschitz: :math:`L`, of the gradient of every :math:`F_k`.
      cohort: :math:`K`, clients per round, drawn with probabilities :math:`p_k` and replacement.
      gamma: :math:`\gamma \in [0, 1]`, how inexactly clients solve their local problems, 0 for exactly:
        ``eh.evaluation.inexactness``; of different clients, the largest.
      concavity: :math:`L_- \ge 0`, such that no second derivative of an :math:`F_k` is below :math:`-L_-`; 0 for convex
        losses.

    Returns:
      :math:`\rho`, in units of :math:`1 / \mu`; negative where nothing is guaranteed.

    Raises:
      EvenhandError: a number out of range.

    Example:
      >>> round(fedprox_decrease(6.0, B=1.0, lipschitz=1.0, cohort=100), 6)
      0.093017
      >>> fedprox_decrease(2.0, B=1.0, lipschitz=1.0, cohort=10) < 0
      True

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, theorem 4 and its corollary for
    inexactnesses that differ.
    """
    _check(B, lipschitz, cohort, gamma, concavity)
    if not (in_range(mu) and concavity < mu):
        raise EvenhandError(
            f"fedprox_decrease(mu={mu}): give a number above concavity={concavity:g}, from 1e-50 to 1e50."
        )
    return _decrease(mu, concavity, _coefficients(B, lipschitz, cohort, gamma))


def fedprox_mu(
    *, B: float, lipschitz: float, cohort: float, gamma: float = 0.0, concavity: float = 0.0
) -> ProximalWeights:
    r"""The proximal weights for which :func:`fedprox_decrease` is positive, and the one for which it is largest.

    With :math:`a = 1 - \gamma B - \sqrt{2 / K} B (1 + \gamma)` and, for convex losses,

    .. math::
        \rho = \frac a\mu - \frac b{\mu^2}, \qquad
        b = L B (1 + \gamma) + L B^2 (1 + \gamma)^2 \Big( \frac12 + \frac{2 \sqrt{2 K} + 2}K \Big), \qquad
        \mu_\text{least} = \frac ba, \quad \mu_\text{best} = \frac{2 b}a, \quad \rho_\text{best} = \frac{a^2}{4 b}

    Args:
      B, lipschitz, cohort, gamma, concavity: as in :func:`fedprox_decrease`.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: where :math:`a \le 0`, clients are too dissimilar, inexact or few for any guarantee: both weights
    are infinite.  For 10 clients a round and exact work that is so from :math:`B = \sqrt 5` on.

    Differs from the paper, which states :math:`\mu \approx 6 L B^2` for convex losses, :math:`\gamma = 0` and
    :math:`1 \ll B \le 0.5 \sqrt K`, where :math:`\rho \approx 1 / (24 L B^2)`: the exact :math:`\rho` falls short of
    that from :math:`B \approx 0.47 \sqrt K` on.

    Example:
      >>> weights = fedprox_mu(B=1.2, lipschitz=0.5, cohort=100)
      >>> round(weights.least, 3), round(weights.best, 3), round(weights.decrease, 3)
      (1.419, 2.838, 0.146)
      >>> fedprox_mu(B=2.3, lipschitz=0.5, cohort=10).best
      inf

    Source: as :func:`fedprox_decrease`; the paper's choice: its corollary for convex losses.
    """
    _check(B, lipschitz, cohort, gamma, concavity)
    first, per_bar, per_both, per_square = parts = _coefficients(B, lipschitz, cohort, gamma)
    slope = first - per_bar
    if slope <= 0.0:
        return ProximalWeights(math.inf, math.inf, 0.0)
    # In powers of mu - L_-: mu (mu - L_-)^2 rho, and the numerator of rho's derivative.
    square, line, rest = slope, per_bar * concavity + per_both + per_square, per_square * concavity
    least = concavity + (line + math.sqrt(line**2 + 4.0 * square * rest)) / (2.0 * square)
    bar, mu = np.poly1d([1.0, 0.0]), np.poly1d([1.0, concavity])
    derivative = (
        -first * bar**3 + per_bar * mu**2 * bar + per_both * (mu + bar) * bar + 2.0 * per_square * mu**2
    )
    stationary = derivative.roots
    candidates = [float(root.real) + concavity for root in stationary if abs(root.imag) < 1e-6 * abs(root)]
    decreases = [(_decrease(mu, concavity, parts), mu) for mu in candidates if mu > least]
    decrease, best = max(decreases)
    return ProximalWeights(least, best, decrease)


def fedprox_rounds(gap: float, decrease: float, epsilon: float) -> int:
    r"""Rounds after which the mean squared gradient is at most :math:`\epsilon`: :math:`\lceil \Delta / (\rho \epsilon)
    \rceil`.

    Args:
      gap: :math:`\Delta = f(w^0) - f^*`, in units of loss.
      decrease: :math:`\rho > 0`, of :func:`fedprox_decrease` with a :math:`B` that holds on the whole way.
      epsilon: :math:`\epsilon > 0`, in units of a squared gradient.

    Raises:
      EvenhandError: a number out of range.

    Example:
      >>> fedprox_rounds(2.3, fedprox_decrease(6.0, B=1.0, lipschitz=1.0, cohort=100), 0.01)
      2473

    Source: as :func:`fedprox_decrease`, the theorem on the rate.
    """
    if not (in_range(gap, zero=True) and in_range(decrease, epsilon)):
        raise EvenhandError(
            f"fedprox_rounds(gap={gap}, decrease={decrease}, epsilon={epsilon}): give a finite gap of at least 0, and "
            "two numbers above 0; none above 1e50, and those two from 1e-50."
        )
    return math.ceil(gap / (decrease * epsilon))


def dissimilarity_bound(variance: float, epsilon: float) -> float:
    r"""Bound on the dissimilarity while gradients are long: :math:`B \le \sqrt{1 + \sigma^2 / \epsilon}`.

    Args:
      variance: :math:`\sigma^2 \ge \mathbb E_k \|\nabla F_k - \nabla f\|^2`, in units of a squared gradient.
      epsilon: :math:`\epsilon > 0`, where :math:`\|\nabla f\|^2 > \epsilon`.

    Raises:
      EvenhandError: a number out of range.

    Example:
      >>> dissimilarity_bound(3.0, 1.0)
      2.0

    Source: as :func:`fedprox_decrease`, the corollary on bounded variance.
    """
    if not (real_number(variance) >= 0.0 and in_range(epsilon)):
        raise EvenhandError(
            f"dissimilarity_bound({variance}, {epsilon}): give a variance of at least 0, and a number above 0, from "
            "1e-50 to 1e50."
        )
    return math.sqrt(1.0 + variance / epsilon)


def _check(B: float, lipschitz: float, cohort: float, gamma: float, concavity: float) -> None:
    """Checks the theorem's numbers."""
    at_least_1 = all(1.0 <= real_number(number) <= LARGEST for number in (B, cohort))
    if not (at_least_1 and 0.0 <= real_number(gamma) <= 1.0):
        raise EvenhandError(
            f"B={B}, gamma={gamma}, cohort={cohort}: give a B and a cohort from 1 to 1e50, and a gamma from 0 to 1."
        )
    if not (in_range(lipschitz) and in_range(concavity, zero=True)):
        raise EvenhandError(
            f"lipschitz={lipschitz}, concavity={concavity}: give numbers up to 1e50, the first from "
            "1e-50 and the second from 0."
        )


def _decrease(mu: float, concavity: float, parts: tuple[float, float, float, float]) -> float:
    """Rho, of the :func:`_coefficients`."""
    first, per_bar, per_both, per_square = parts
    bar = mu - concavity
    return first / mu - per_bar / bar - per_both / (bar * mu) - per_square / bar**2


def _coefficients(
    B: float, lipschitz: float, cohort: float, gamma: float
) -> tuple[float, float, float, float]:
    """What of rho is divided by mu, by mu - L_-, by their product, and by the square of mu - L_-."""
    inexact = B * (1.0 + gamma)
    sampled = (2.0 * math.sqrt(2.0 * cohort) + 2.0) / cohort
    square = lipschitz * inexact**2 * (0.5 + sampled)
    # NumPy's own numbers would take a polynomial for an array.
    return (
        float(1.0 - gamma * B),
        math.sqrt(2.0 / cohort) * float(inexact),
        float(lipschitz * inexact),
        float(square),
    )
