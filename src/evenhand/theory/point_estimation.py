"""Federated point estimation: how much a client should listen to the others, with liars among them and without."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, real_number, whole_number

__all__ = ["LARGEST", "PointEstimation", "in_range", "penalty", "point_estimation"]

NDArray = npt.NDArray[Any]

LARGEST = 1e50
"""Squares and products of numbers up to this one, and down to its inverse, fit into a float."""


def in_range(*values: float, zero: bool = False) -> bool:
    """Whether all are numbers from 1e-50 to 1e50; ``zero``: from 0."""
    return all((0.0 if zero else 1.0 / LARGEST) <= real_number(value) <= LARGEST for value in values)


def penalty(lam: float) -> float:
    """The penalty ``lam``; infinity where it is so large that a float gives the same results for both.

    Raises:
      EvenhandError: it is negative, or no number.
    """
    number = real_number(lam)
    if not number >= 0.0:
        raise EvenhandError(Argument("lam", repr(lam)), ": give a number of at least 0, or infinity.")
    return math.inf if number > LARGEST else number


class PointEstimation(NamedTuple):
    """A federation of clients that estimate a number each; made by :func:`point_estimation`.

    Attributes:
      noise: variance of a client's mean, :math:`\\sigma_n^2 = \\sigma^2 / n`.
      spread: variance of benign clients' numbers, :math:`\\tau^2`.
      malicious_spread: of malicious clients', :math:`\\tau_a^2`.
      clients: :math:`K`.
      malicious: :math:`K_a` of them.
    """

    noise: float
    spread: float
    malicious_spread: float
    clients: int
    malicious: int

    @property
    def _apart(self) -> float:
        """S without the noise: a difference would lose its digits where the clients are much alike."""
        more = self.malicious * (self.malicious_spread - self.spread) / (self.clients - 1)
        return self.clients * self.spread + more

    @property
    def _other(self) -> float:
        """S: (K - 1) times the variance of what the mean of the others says of a benign client's number."""
        return self._apart + self.noise

    @property
    def best_lambda(self) -> float:
        """The penalty with the smallest error; infinite where all clients have the same number."""
        return math.inf if self._apart == 0.0 else self.clients * self.noise / self._apart

    @property
    def least_error(self) -> float:
        """The mean squared error at :attr:`best_lambda`: that of the posterior mean, so that nothing does better."""
        return 1.0 / (1.0 / self.noise + (self.clients - 1) / self._other)

    def error(self, lam: float) -> float:
        """The expected squared error of a benign client at any penalty, which may be infinite."""
        own = self._own_share(lam)
        return own**2 * self.noise + (1.0 - own) ** 2 * self._other / (self.clients - 1)

    def pooled_variance(self, lam: float) -> float:
        """The variance of the squared error over draws of everything; smallest where the error is."""
        return 2.0 * self.error(lam) ** 2

    def variance_within(self, lam: float) -> float:
        """The expected variance (ddof 0) of the squared error over the benign clients of one federation.

        Without malicious clients it is smallest at :attr:`best_lambda`; with them slightly above, because errors of
        benign clients are then correlated.
        """
        k, benign, lam = self.clients, self.clients - self.malicious, penalty(lam)
        share = 1.0 if lam == math.inf else lam / (1.0 + lam)
        total = (k * self.noise + benign * self.spread + self.malicious * self.malicious_spread) / k**2
        shared = share**2 * (total - 2.0 * self.spread / k) + 2.0 * share * (1.0 - share) * self.noise / k
        return 2.0 * (1.0 - 1.0 / benign) * (self.error(lam) ** 2 - shared**2)

    def minimisers(self, means: npt.ArrayLike, lam: float) -> NDArray:
        """Ditto's models: each client's mean, drawn to the mean of all; clients on the first axis."""
        means, lam = self._of_clients(means), penalty(lam)
        share = 1.0 if lam == math.inf else lam / (1.0 + lam)
        return (1.0 - share) * means + share * means.mean(axis=0)

    def posterior_means(self, means: npt.ArrayLike) -> NDArray:
        """What is best to believe of each client, were it benign, given its mean and the mean of the others'."""
        means = self._of_clients(means)
        others = (means.sum(axis=0) - means) / (self.clients - 1)
        least = self.least_error
        return least / self.noise * means + (self.clients - 1) * least / self._other * others

    def _of_clients(self, means: npt.ArrayLike) -> NDArray:
        """Their means as an array; refused if it has none of some client."""
        try:
            array = np.asarray(means, np.float64)
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.ndim == 0 or len(array) != self.clients:
            raise EvenhandError(f"means={means!r:.60}: give a number for each of the {self.clients} clients.")
        return array

    def _own_share(self, lam: float) -> float:
        lam = penalty(lam)
        return 1.0 / self.clients if lam == math.inf else (self.clients + lam) / ((1.0 + lam) * self.clients)


def point_estimation(
    *,
    sigma: float,
    examples: int,
    tau: float,
    clients: int,
    malicious: int = 0,
    malicious_tau: float | None = None,
) -> PointEstimation:
    r"""Federated point estimation: each client estimates its own number from noisy examples; the numbers are related.

    .. math::
        w_k = \theta + \mathcal N(0, \tau^2), \qquad x_{ki} = w_k + \mathcal N(0, \sigma^2), \qquad
        F_k(v) = \tfrac12 (v - \bar x_k)^2, \qquad
        \hat w_k(\lambda) = \frac{\bar x_k + \lambda w^*}{1 + \lambda}, \quad w^* = \frac1K \sum_k \bar x_k

    with a flat prior on :math:`\theta`; malicious clients have :math:`\tau_a^2` in place of :math:`\tau^2`.  With
    :math:`\sigma_n^2 = \sigma^2 / n`,

    .. math::
        S = K \tau^2 + \sigma_n^2 + \frac{K_a}{K - 1} (\tau_a^2 - \tau^2), \qquad
        \lambda^* = \frac{K \sigma_n^2}{S - \sigma_n^2}, \qquad
        \mathbb E (\hat w_k(\lambda) - w_k)^2 = a^2 \sigma_n^2 + (1 - a)^2 \frac{S}{K - 1}, \quad
        a = \frac{K + \lambda}{(1 + \lambda) K}

    so that :math:`\lambda^* = \sigma^2 / (n \tau^2)` where all are benign, and smaller with malicious clients.

    Args:
      sigma: :math:`\sigma > 0`.
      examples: :math:`n` per client.
      tau: :math:`\tau \ge 0`.
      clients: :math:`K`, at least 2.
      malicious: :math:`K_a < K`.
      malicious_tau: :math:`\tau_a`; None: ``tau``.

    Raises:
      EvenhandError: a number out of range.

    Differs from the paper, which shows that :math:`\lambda^*` also gives the least variance of test errors: that holds
    for the variance over draws, and within a federation only where all are benign.

    Example:
      >>> problem = point_estimation(sigma=0.8, examples=30, tau=0.1, clients=8)
      >>> round(problem.best_lambda, 4), round(problem.least_error, 6)
      (2.1333, 0.008624)
      >>> problem.error(0.0) > problem.error(float("inf")) > problem.least_error
      True

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, section 3.3 and
    appendix A.3.
    """
    examples = whole_number("examples", examples, 1)
    clients = whole_number("clients", clients, 2)
    malicious = whole_number("malicious", malicious, 0)
    tau_a = tau if malicious_tau is None else malicious_tau
    if not (in_range(sigma) and in_range(tau, tau_a, zero=True)):
        raise EvenhandError(
            f"sigma={sigma}, tau={tau}, malicious_tau={malicious_tau}: give finite numbers, sigma above 0; none above "
            "1e50, and sigma from 1e-50."
        )
    if malicious >= clients:
        raise EvenhandError(f"malicious={malicious} of {clients} clients: at least one must be benign.")
    return PointEstimation(sigma**2 / examples, tau**2, tau_a**2, clients, malicious)
