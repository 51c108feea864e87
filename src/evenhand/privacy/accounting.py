"""What private methods spend: epsilon of everything that a run gives away."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

from evenhand.errors import EvenhandWarning
from evenhand.privacy._checks import checked_orders, count, probability
from evenhand.privacy._spending import spending
from evenhand.privacy.renyi import ORDERS_FINE, Spent
from evenhand.types import Release

__all__ = ["epsilon", "spent"]


def spent(
    releases: Sequence[Release],
    *,
    delta: float,
    accountant: Literal["rdp", "pld"] = "rdp",
    orders: Sequence[float] | None = None,
    kappa: float = 3.0,
) -> Spent:
    r"""Epsilon of everything that was given away, at some delta.

    .. math::
        \varepsilon = \min_\alpha \Big[\sum_r T_r\, \mathrm{RDP}_r(\alpha) + \log \big(1 - \tfrac1\alpha\big)
        - \frac{\log (\delta \alpha)}{\alpha - 1}\Big]

    with :math:`\mathrm{RDP}_r` of :func:`rdp` for Gaussian noise, of :func:`amplified` for concentrated mechanisms; or
    from the distribution of the privacy loss, which dp-accounting composes numerically.

    Args:
      releases: what was given away, as :class:`evenhand.types.Privacy` lists it for some number of rounds.
      delta: :math:`\delta`, between 0 and 1; well below 1 over the number of units.
      accountant: ``"rdp"``: an upper bound in milliseconds.  ``"pld"``: nearly exact, in seconds; needs
        ``pip install 'evenhand[privacy]'``; Gaussian noise and independent sampling only.
      orders: the orders of Renyi divergence to try; None: ``ORDERS_FINE``.
      kappa: of :func:`amplified`: 3 for any concentrated mechanism, 1 for those of the Gaussian's kind.

    Returns:
      Epsilon, and the order that shows it.  0 if nothing was given away, infinite if something was without noise.

    Raises:
      EvenhandError: a number out of range; releases that protect from different things; what an accountant cannot
        account for; the package dp-accounting is missing.

    Warns:
      EvenhandWarning: the best order is the least or the largest one tried.

    Differs from the paper: ``orders=ORDERS`` reproduces the tables on AdaDPS and DP2, ``ORDERS_FEDERATED`` the
    federated rows; the finer grid is never above them.

    Example:
      >>> from evenhand.types import Release
      >>> imdb = Release(noise_multiplier=1.0, rate=64 / 25000, times=12500)
      >>> from evenhand.privacy import ORDERS
      >>> found = spent([imdb], delta=4e-5, orders=ORDERS)
      >>> round(found.epsilon, 3), found.order, found.at_edge
      (1.513, 10.5, False)
      >>> both = [imdb, Release(noise_multiplier=5.0)]
      >>> spent(both, delta=4e-5).epsilon > spent([imdb], delta=4e-5).epsilon
      True

    Source: Mironov, *Renyi Differential Privacy*, CSF 2017; Canonne, Kamath and Steinke, *The Discrete Gaussian for
    Differential Privacy*, NeurIPS 2020; Koskela, Jalko and Honkela, *Computing Tight Differential Privacy Guarantees
    Using FFT*, AISTATS 2020.
    """
    tried = ORDERS_FINE if orders is None else tuple(checked_orders(orders).tolist())
    found = spending(releases, probability("delta", delta), accountant, tried, kappa)
    warn_at_edge(found, tried)
    return found


def epsilon(
    *,
    noise_multiplier: float,
    rate: float,
    steps: int,
    delta: float,
    accountant: Literal["rdp", "pld"] = "rdp",
    sampling: Literal["poisson", "fixed"] = "poisson",
) -> float:
    r"""Epsilon of Gaussian noise, used for so many steps on a new sample each: of DP-SGD, or of federated averaging.

    Args:
      noise_multiplier: :math:`\sigma`, the noise's standard deviation over the sensitivity; 0: infinite epsilon.
      rate: :math:`q`, the chance with which an example or a client takes part in a step; 1: all do.
      steps: :math:`T`, steps or rounds; 0: epsilon 0.
      delta: :math:`\delta`.
      accountant: as in :func:`spent`.
      sampling: whether units take part independently (neighbours: one added or removed), or a fixed number of them does
        (neighbours: one replaced, which may move a clipped sum by twice as much: the noise multiplier is over that).

    Raises:
      EvenhandError: as :func:`spent`.

    Warns:
      EvenhandWarning: as :func:`spent`.

    Differs from the paper: a smaller epsilon, of a finer grid of orders; ``spent`` takes the paper's.

    Example:
      >>> round(epsilon(noise_multiplier=1.0, rate=0.01, steps=1000, delta=1e-5), 4)
      2.1014
      >>> round(epsilon(noise_multiplier=1.0, rate=0.01, steps=1000, delta=1e-5, accountant="pld"), 4)
      1.8282
      >>> epsilon(noise_multiplier=1.0, rate=0.01, steps=0, delta=1e-5)
      0.0

    Source: Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016; Mironov, Talwar and Zhang, *Renyi
    Differential Privacy of the Sampled Gaussian Mechanism*, 2019.
    """
    releases = (Release(noise_multiplier, rate, sampling, count("steps", steps)),)
    found = spending(releases, probability("delta", delta), accountant, ORDERS_FINE, 3.0)
    warn_at_edge(found, ORDERS_FINE)
    return found.epsilon


def warn_at_edge(found: Spent, orders: Sequence[float]) -> None:
    """Warns where an order beyond those tried might show a smaller epsilon."""
    if found.at_edge:
        which = "smallest" if found.order == min(orders) else "largest"
        warnings.warn(
            f"epsilon={found.epsilon:.4g} comes from the {which} order tried, {found.order:g}: it is an upper bound, "
            "which other orders may lower.",
            EvenhandWarning,
            stacklevel=3,
        )
