"""Delta-FL's theory as numbers: the biases of cohorts and of smoothing, and the step sizes of its two rates."""

from __future__ import annotations

import math
from typing import NamedTuple

from evenhand.errors import EvenhandError, whole_number
from evenhand.theory.point_estimation import in_range

__all__ = [
    "DeltaFlConvex",
    "cohort_bias",
    "cohort_variance",
    "delta_fl_convex",
    "delta_fl_step",
    "smoothed_lipschitz",
    "smoothing_bias",
]


# --- biases ------------------------------------------------------------------------------------------------------


def cohort_bias(*, largest_loss: float, theta: float, cohort: int, nu: float = 0.0) -> float:
    r"""Bias of partial participation: how far the expected tail mean of a cohort may be from that of all clients.

    .. math:: |\bar F^\nu_\theta(w) - F_\theta(w)| \le \frac B{\sqrt{\theta m}} + 2 \nu \log m

    Training minimises :math:`\bar F^\nu_\theta`, the mean over cohorts of their (smoothed) tail means.

    Args:
      largest_loss: :math:`B`, such that all losses are in :math:`[0, B]`.
      theta: :math:`\theta`, the fraction of clients that counts.
      cohort: :math:`m`, clients per round.
      nu: :math:`\nu`, of the smoothing, in units of loss.

    Returns:
      A bound in units of loss.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: the bias itself is never above 0, as a cohort's tail mean underestimates, and mostly far smaller: of
    200 losses spread evenly over [0, 1] and cohorts of 50 at :math:`\theta = 1/2` it is -0.003, the bound 0.2.

    Example:
      >>> cohort_bias(largest_loss=1.0, theta=0.5, cohort=50)
      0.2

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, equation 12 and property 9.
    """
    _positive("largest_loss", largest_loss)
    _fraction(theta, cohort)
    return largest_loss / math.sqrt(theta * cohort) + 2.0 * _at_least(nu, "nu") * math.log(cohort)


def cohort_variance(*, slope: float, theta: float, cohort: int) -> float:
    r"""Bound on the variance over cohorts of the gradient of a cohort's tail mean: :math:`8 G^2 / (\theta m)`.

    Args:
      slope: :math:`G`, the largest norm of a client's gradient.
      theta, cohort: as in :func:`cohort_bias`.

    Returns:
      A bound on :math:`\mathbb E_S \|\nabla F^\nu_{\theta, S} - \nabla \bar F^\nu_\theta\|^2`, in units of :math:`G^2`.

    Raises:
      EvenhandError: a number out of range.

    Example:
      >>> cohort_variance(slope=1.0, theta=0.5, cohort=64)
      0.25

    Source: as :func:`cohort_bias`, property 9.
    """
    _positive("slope", slope)
    _fraction(theta, cohort)
    return 8.0 * slope**2 / (theta * cohort)


def smoothing_bias(*, nu: float, theta: float, clients: int) -> float:
    r"""How far below the tail mean its smoothed version may lie.

    .. math:: 0 \le F_\theta(w) - F^\nu_\theta(w) \le \nu \log \min(n, 1 / \theta)

    Args:
      nu: :math:`\nu \ge 0`, as ``eh.algorithms.delta_fl(nu=)``.
      theta: :math:`\theta`.
      clients: :math:`n`, over which the tail mean is taken.

    Returns:
      A bound in units of loss.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: met where :math:`\theta n` is a whole number, the losses of the tail are equal, and all others lie far
    below them; 0 at :math:`\theta = 1`.

    Differs from the paper, which states :math:`2 \nu \log n`, a bound that follows from this one.

    Example:
      >>> round(smoothing_bias(nu=0.1, theta=0.5, clients=100), 6)
      0.069315

    Source: as :func:`cohort_bias`, section 5.2; the sharper bound: weights of at most :math:`1 / (\theta n)`
    diverge from equal ones by at most :math:`\log(1 / \theta)`.
    """
    _fraction(theta, clients)
    return _at_least(nu, "nu") * math.log(min(clients, 1.0 / theta))


def smoothed_lipschitz(*, lipschitz: float, slope: float, nu: float, ridge: float = 0.0) -> float:
    r"""Lipschitz constant of the gradient of the smoothed tail mean: :math:`L' = L + \lambda + G^2 / \nu`.

    Args:
      lipschitz: :math:`L`, of the gradient of every client's loss, in units of loss per squared distance.
      slope: :math:`G`, the largest norm of a client's gradient.
      nu: :math:`\nu > 0`.
      ridge: :math:`\lambda`, of the penalty :math:`\frac\lambda2 \|w\|^2`.

    Raises:
      EvenhandError: a number out of range.

    Example:
      >>> smoothed_lipschitz(lipschitz=1.0, slope=2.0, nu=0.5)
      9.0

    Source: as :func:`cohort_bias`, property 10.
    """
    _at_least(lipschitz, "lipschitz")
    _positive("nu", nu)
    return lipschitz + _at_least(ridge, "ridge") + _positive("slope", slope) ** 2 / nu


# --- step sizes --------------------------------------------------------------------------------------------------


def delta_fl_step(*, gap: float, lipschitz: float, slope: float, rounds: int, local_steps: int = 1) -> float:
    r"""The step size of local work for which Delta-FL's sublinear rate holds, for losses that need not be convex.

    .. math::
        \gamma = \min \Big\{ \frac1{4 \tau L}, \; \frac1{\tau \sqrt T} \sqrt{\frac{\Delta F_0}{L G^2}}, \;
        \frac1{\tau T^{1/3}} \Big( \frac{\Delta F_0}{32 L^2 G^2 (1 - 1 / \tau)} \Big)^{1/3} \Big\}

    Args:
      gap: :math:`\Delta F_0 = \bar F_\theta(w^0) - \inf \bar F_\theta`, in units of loss.
      lipschitz: :math:`L`, as in :func:`smoothed_lipschitz`.
      slope: :math:`G`.
      rounds: :math:`T`.
      local_steps: :math:`\tau`, full gradient steps per round.

    Returns:
      :math:`\gamma`, in units of :math:`1 / L`.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: with one local step the third term, which is for the drift of clients, is infinite.

    Example:
      >>> round(delta_fl_step(gap=1.0, lipschitz=1.0, slope=1.0, rounds=1000, local_steps=5), 8)
      0.00632456

    Source: as :func:`cohort_bias`, theorem 7.
    """
    for name, value in (("gap", gap), ("lipschitz", lipschitz), ("slope", slope)):
        _positive(name, value)
    rounds = whole_number("rounds", rounds, 1)
    tau = whole_number("local_steps", local_steps, 1)
    drift = 32.0 * (lipschitz * slope) ** 2 * (1.0 - 1.0 / tau)
    return min(
        1.0 / (4.0 * tau * lipschitz),
        math.sqrt(gap / (rounds * lipschitz)) / (tau * slope),
        (gap / (rounds * drift)) ** (1.0 / 3.0) / tau if tau > 1 else math.inf,
    )


class DeltaFlConvex(NamedTuple):
    r"""The numbers for which Delta-FL's rate on convex losses holds; made by :func:`delta_fl_convex`.

    Attributes:
      nu: :math:`\nu`, of the smoothing, in units of loss.
      step: :math:`\gamma`, of local work on losses with the ridge.
      growth: :math:`(1 - \gamma \lambda \tau / 2)^{-1}`, by which the weight of a round in the averaged model exceeds
        that of the round before.
      rounds: :math:`16 \kappa^{3/2}`, which the rate needs at least.
    """

    nu: float
    step: float
    growth: float
    rounds: float


def delta_fl_convex(
    *,
    distance: float,
    lipschitz: float,
    slope: float,
    ridge: float,
    theta: float,
    cohort: int,
    rounds: int,
    local_steps: int = 1,
) -> DeltaFlConvex:
    r"""The smoothing and the step size for which Delta-FL's rate on convex losses with a ridge holds.

    With :math:`\kappa = (L + \lambda) / \lambda`, :math:`C = \lambda^2 \Delta_0 / G^2` and
    :math:`\ell(x) = \max(1, \log x)`,

    .. math::
        \nu = \frac{8 G^2 \delta}\lambda \max(1, 32 \kappa^2 \delta), \qquad
        \delta = \min \Big\{ \frac1{16 \kappa^{3/2}}, \; \frac1T \ell\Big(\frac{C T}{\log m}\Big), \;
        \frac1T \ell\Big(\frac{C T^2}{\kappa^2 \log m}\Big) \Big\}

    .. math::
        \gamma = \min \Big\{ \frac1{4 \tau L'}, \; \frac1{8 \tau \kappa \sqrt{2 \lambda L'}}, \;
        \frac{\ell(C \theta m T)}{\lambda \tau T}, \;
        \frac{\ell\big(C T^2 / (\kappa^2 (1 - 1 / \tau))\big)}{\lambda \tau T} \Big\}, \qquad
        L' = L + \lambda + \frac{G^2}\nu

    Args:
      distance: :math:`\Delta_0 = \|w^0 - w^*\|^2`, squared.
      lipschitz: :math:`L > \lambda`.
      slope: :math:`G`.
      ridge: :math:`\lambda > 0`.
      theta, cohort: :math:`\theta` and :math:`m`.
      rounds: :math:`T`.
      local_steps: :math:`\tau`.

    Raises:
      EvenhandError: a number out of range, or fewer rounds than the rate needs.

    Edge cases: with one client per round or one local step the terms in :math:`\log m` or :math:`1 - 1/\tau` are left
    out.

    Differs from the paper, which squares the last term of :math:`\gamma`: the lemma that it follows from does not.

    Example:
      >>> given = {"distance": 1.0, "lipschitz": 1.0, "slope": 1.0, "ridge": 0.5, "theta": 0.5, "cohort": 20}
      >>> numbers = delta_fl_convex(**given, rounds=2000)
      >>> round(numbers.nu, 4), round(numbers.step, 6), round(numbers.rounds, 1)
      (0.0409, 0.008183, 83.1)

    Source: as :func:`cohort_bias`, theorems 5 and 8.
    """
    for name, value in (("distance", distance), ("slope", slope), ("ridge", ridge), ("lipschitz", lipschitz)):
        _positive(name, value)
    _fraction(theta, cohort)
    tau = whole_number("local_steps", local_steps, 1)
    if ridge >= lipschitz:
        raise EvenhandError(
            f"ridge={ridge:g}, lipschitz={lipschitz:g}: the rate is for a ridge below lipschitz."
        )
    kappa = (lipschitz + ridge) / ridge
    needed = 16.0 * kappa**1.5
    if whole_number("rounds", rounds, 1) < needed:
        raise EvenhandError(f"rounds={rounds}: the rate holds from {math.ceil(needed)} rounds on.")
    ratio, logarithm = ridge**2 * distance / slope**2, math.log(cohort)
    delta = min(
        1.0 / needed,
        _over(ratio * rounds, logarithm) / rounds,
        _over(ratio * rounds**2, kappa**2 * logarithm) / rounds,
    )
    nu = 8.0 * slope**2 * delta / ridge * max(1.0, 32.0 * kappa**2 * delta)
    smooth = smoothed_lipschitz(lipschitz=lipschitz, slope=slope, nu=nu, ridge=ridge)
    step = min(
        1.0 / (4.0 * tau * smooth),
        1.0 / (8.0 * tau * kappa * math.sqrt(2.0 * ridge * smooth)),
        _over(ratio * theta * cohort * rounds, 1.0) / (ridge * tau * rounds),
        _over(ratio * rounds**2, kappa**2 * (1.0 - 1.0 / tau)) / (ridge * tau * rounds),
    )
    return DeltaFlConvex(nu, step, 1.0 / (1.0 - step * ridge * tau / 2.0), needed)


def _over(a: float, b: float) -> float:
    """``max(1, log(a / b))``; infinite where ``b`` is 0."""
    return math.inf if b == 0.0 else max(1.0, math.log(a / b))


def _positive(name: str, value: float) -> float:
    if not in_range(value):
        raise EvenhandError(f"{name}={value}: give a finite number above 0, from 1e-50 to 1e50.")
    return value


def _at_least(value: float, name: str) -> float:
    if not in_range(value, zero=True):
        raise EvenhandError(f"{name}={value}: give a finite number of at least 0, and at most 1e50.")
    return value


def _fraction(theta: float, clients: int) -> None:
    """Checks the fraction that counts, and of how many clients."""
    if not (in_range(theta) and theta <= 1.0):
        raise EvenhandError(f"theta={theta}: give a fraction above 0 and at most 1, from 1e-50.")
    whole_number("cohort or clients", clients, 1)
