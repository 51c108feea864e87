"""The rates of FedAlt and FedSim as numbers: how much the noise of their steps costs, and when alternating wins."""

from __future__ import annotations

from typing import NamedTuple

from evenhand.errors import EvenhandError, whole_number
from evenhand.theory.point_estimation import in_range

__all__ = ["PartialProblem", "fedalt_variance", "fedsim_variance"]


class PartialProblem(NamedTuple):
    r"""A federation with shared parameters :math:`u` and personal ones :math:`v_k`, as the rates see it.

    Attributes:
      clients: :math:`n`.
      cohort: :math:`m \le n`, clients per round, drawn without replacement.
      smooth_shared: :math:`L_u`, of :math:`\nabla_u F_k` in :math:`u`, in units of loss per squared distance.
      smooth_personal: :math:`L_v`, of :math:`\nabla_v F_k` in :math:`v`.
      coupling: :math:`\chi = \max(L_{uv}, L_{vu}) / \sqrt{L_u L_v}`, without a unit: how much the gradient of either
        part depends on the other; at most 1 for convex quadratics.
      noise_shared: :math:`\sigma_u^2`, the variance of a stochastic gradient in :math:`u`.
      noise_personal: :math:`\sigma_v^2`.
      diversity: :math:`\delta^2`, the mean squared distance between a client's gradient in :math:`u` and that of all.
    """

    clients: int
    cohort: int
    smooth_shared: float
    smooth_personal: float
    coupling: float
    noise_shared: float
    noise_personal: float
    diversity: float

    def shared_part(self, method: str) -> float:
        """What the noise of the shared step costs, which is the same in both methods; the numbers are checked."""
        whole_number(f"{method}: clients", self.clients, 1)
        whole_number(f"{method}: cohort", self.cohort, 1, self.clients)
        numbers = (self.coupling, self.noise_shared, self.noise_personal, self.diversity)
        smooth = (self.smooth_shared, self.smooth_personal)
        if not (in_range(*numbers, zero=True) and in_range(*smooth)):
            raise EvenhandError(
                f"{method}({self}): give numbers from 0 to 1e50, and smoothness above 0, from 1e-50."
            )
        sampled = self.diversity * (1.0 - self.cohort / self.clients)
        return (self.noise_shared + sampled) / (self.cohort * self.smooth_shared)


def fedalt_variance(problem: PartialProblem) -> float:
    r"""FedAlt's :math:`\sigma_1^2`: its rate is :math:`\sigma_1 \sqrt{\Delta F_0 / T}` after many rounds.

    .. math::
        \sigma_1^2 = \frac{\sigma_u^2 + \delta^2 (1 - m / n)}{m L_u}
        + \frac{\sigma_v^2 \, (m + \chi^2 (n - m))}{n L_v}

    For local steps of sizes :math:`\eta / (\tau_u L_u)` and :math:`\eta / (\tau_v L_v)`,

    .. math::
        \frac1T \sum_{t < T} \mathbb E \Big[ \frac{\|\nabla_u F\|^2}{L_u}
        + \frac m{n L_v} \frac1n \sum_k \|\nabla_v F_k\|^2 \Big]
        \lesssim \frac{\Delta F_0}{\eta T} + \eta \sigma_1^2 + O(\eta^2)

    up to absolute constants.  The first part of :math:`\sigma_1^2` is the noise and the sampling of the shared step,
    the second the noise of the personal steps; :math:`\chi^2 (n - m)` is for clients that were not drawn, whose
    personal parts the shared step does not see change.

    Args:
      problem: the federation's numbers.

    Returns:
      :math:`\sigma_1^2`, in units of loss.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: without coupling it equals :func:`fedsim_variance`.  It is the smaller one exactly where

    .. math::
        \frac{\sigma_v^2}{L_v} \Big( 1 - \frac{2 m}n \Big) < \frac{\sigma_u^2 + \delta^2 (1 - m / n)}{m L_u}

    so always when at least half of the clients take part.

    Differs from the slides, which give both rates as :math:`\sigma^2 / \sqrt t` and no constant.

    Example:
      >>> problem = PartialProblem(
      ...     clients=100, cohort=10, smooth_shared=1.0, smooth_personal=1.0, coupling=0.5,
      ...     noise_shared=1.0, noise_personal=0.1, diversity=1.0)
      >>> round(fedalt_variance(problem), 4), round(fedsim_variance(problem), 4)
      (0.2225, 0.25)

    Source: Pillutla et al., *Federated Learning with Partial Model Personalization*, ICML 2022, the theorem on FedAlt,
    without absolute constants.
    """
    n, m = problem.clients, problem.cohort
    shared = problem.shared_part("fedalt_variance")
    seen = (m + problem.coupling**2 * (n - m)) / n
    return shared + seen * problem.noise_personal / problem.smooth_personal


def fedsim_variance(problem: PartialProblem) -> float:
    r"""FedSim's :math:`\sigma_2^2`: its rate is :math:`\sigma_2 \sqrt{\Delta F_0 / T}` after many rounds.

    .. math::
        \sigma_2^2 = (1 + \chi^2) \Big( \frac{\sigma_u^2 + \delta^2 (1 - m / n)}{m L_u}
        + \frac{m \sigma_v^2}{n L_v} \Big)

    in place of :math:`\sigma_1^2` in :func:`fedalt_variance`.  Both gradients are taken at the old point, so the noise
    of both steps meets in the coupling of the two parts.

    Args:
      problem: the federation's numbers.

    Returns:
      :math:`\sigma_2^2`, in units of loss.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: without coupling it equals :func:`fedalt_variance`; see there which one is smaller.

    Example:
      >>> problem = PartialProblem(
      ...     clients=10, cohort=10, smooth_shared=1.0, smooth_personal=1.0, coupling=1.0,
      ...     noise_shared=1.0, noise_personal=0.0, diversity=5.0)
      >>> fedsim_variance(problem) / fedalt_variance(problem)
      2.0

    Source: as :func:`fedalt_variance`, the theorem on FedSim.
    """
    shared = problem.shared_part("fedsim_variance")
    personal = problem.cohort / problem.clients * problem.noise_personal / problem.smooth_personal
    return (1.0 + problem.coupling**2) * (shared + personal)
