"""What private methods spend: epsilon of everything that a run gives away, and the account of a promise.

:func:`spent` adds up releases; :func:`epsilon` is the same for equal ones; :func:`account` does it for the promise of
a method.  Both accountants, of Renyi divergences and of privacy losses, are in :func:`spending`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, EvenhandWarning
from evenhand.privacy._checks import checked_orders, checked_rate, count, noise, one_of, probability
from evenhand.privacy.renyi import ORDERS_FINE, Spent, amplified, epsilon_of_rdp, rdp
from evenhand.text import counted
from evenhand.types import Privacy, Release

__all__ = ["ACCOUNTANTS", "Account", "account", "epsilon", "spending", "spent", "usual_delta"]


# --- epsilon of releases ---------------------------------------------------------------------------------


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
      >>> total = spent([imdb], delta=4e-5, orders=ORDERS)
      >>> round(total.epsilon, 3), total.order, total.at_edge
      (1.513, 10.5, False)
      >>> both = [imdb, Release(noise_multiplier=5.0)]
      >>> spent(both, delta=4e-5).epsilon > spent([imdb], delta=4e-5).epsilon
      True

    Source: Mironov, *Renyi Differential Privacy*, CSF 2017; Canonne, Kamath and Steinke, *The Discrete Gaussian for
    Differential Privacy*, NeurIPS 2020; Koskela, Jalko and Honkela, *Computing Tight Differential Privacy Guarantees
    Using FFT*, AISTATS 2020.
    """
    tried = ORDERS_FINE if orders is None else tuple(checked_orders(orders).tolist())
    total = spending(releases, probability("delta", delta), accountant, tried, kappa)
    warn_at_edge(total, tried)
    return total


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
    total = spending(releases, probability("delta", delta), accountant, ORDERS_FINE, 3.0)
    warn_at_edge(total, ORDERS_FINE)
    return total.epsilon


def warn_at_edge(total: Spent, orders: Sequence[float]) -> None:
    """Warns where an order beyond those tried might show a smaller epsilon."""
    if total.at_edge:
        which = "smallest" if total.order == min(orders) else "largest"
        warnings.warn(
            f"epsilon={total.epsilon:.4g} comes from the {which} order tried, {total.order:g}: it is an upper bound, "
            "which other orders may lower.",
            EvenhandWarning,
            stacklevel=3,
        )


# --- the account of a promise ----------------------------------------------------------------------------


class Account(NamedTuple):
    r"""A promise of differential privacy with its numbers, after so many rounds.

    Attributes:
      epsilon: :math:`\varepsilon`; infinite where nothing hides what is given away.
      delta: :math:`\delta`.
      accountant: what found :math:`\varepsilon`.
      rounds: how many.
      unit: what is protected, a ``"client"`` or an ``"example"``.
      neighbours: the relation between data sets that cannot be told apart.
      releases: all that was given away, and under how much noise.
      released: what that is.
      public: what is taken to be known already.
      unprotected: what the promise does not cover.
    """

    epsilon: float
    delta: float
    accountant: Literal["rdp", "pld"]
    rounds: int
    unit: str
    neighbours: str
    releases: tuple[Release, ...]
    released: tuple[str, ...]
    public: tuple[str, ...]
    unprotected: tuple[str, ...]

    def in_words(self) -> dict[str, Any]:
        """The same as numbers and sentences, for reports and files."""
        words = {
            name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()
        }
        del words["rounds"]
        return words | {"releases": [_words(release) for release in self.releases]}

    def __str__(self) -> str:
        return (
            f"({self.epsilon:.4g}, {self.delta:g})-differentially private for {self.neighbours}, "
            f"after {counted(self.rounds, 'round')}"
        )


def _words(release: Release) -> str:
    sample = {
        "poisson": f"each taking part with probability {release.rate:g}, independently",
        "fixed": f"a share of {release.rate:g} of them, drawn without replacement",
    }[release.sampling]
    sample = "all of them" if release.rate == 1.0 else sample
    return f"{release.times:,} times, noise of {release.noise_multiplier:g} times the sensitivity; {sample}"


def account(
    privacy: Privacy,
    *,
    rounds: int,
    units: int,
    delta: float | None = None,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> Account:
    r"""What a method has spent after some rounds.

    Args:
      privacy: its promise.
      rounds: how many.
      units: clients or training examples, whichever are protected.
      delta: :math:`\delta`; None: the promise's own, or else :func:`usual_delta`.
      accountant: ``"rdp"`` or ``"pld"``, as in :func:`evenhand.privacy.epsilon`.

    Raises:
      EvenhandError: ``delta`` outside (0, 1).

    Example:
      >>> import evenhand as eh
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1)
      >>> method = eh.privacy.dp_fedavg(work, clip=1.0, noise_multiplier=1.0, rate=0.01)
      >>> assert method.privacy is not None
      >>> total = account(method.privacy, rounds=1000, units=10_000, delta=1e-5)
      >>> round(total.epsilon, 4), total.unit
      (2.1014, 'client')
    """
    delta = privacy.delta if delta is None else delta
    delta = usual_delta(units) if delta is None else delta
    if not 0.0 < delta < 1.0:
        raise EvenhandError(f"account(delta={delta}): give a probability between 0 and 1, below 1 / {units}.")
    releases = privacy.releases(rounds)
    return Account(
        epsilon=spent(releases, delta=delta, accountant=accountant).epsilon,
        delta=delta,
        accountant=accountant,
        rounds=rounds,
        unit=privacy.unit,
        neighbours=privacy.neighbours,
        releases=releases,
        released=privacy.released,
        public=privacy.public,
        unprotected=privacy.unprotected,
    )


def usual_delta(units: int) -> float:
    r"""The largest power of ten that is at most one in so many units: the chance of a breach should be below that.

    Edge cases: 0.1 for a single unit, which has nobody to hide among.

    Example:
      >>> usual_delta(100), usual_delta(25_000)
      (0.01, 1e-05)

    Source: the rule of the code of Li et al., *Differentially Private Adaptive Optimization with Delayed
    Preconditioners*, ICLR 2023.
    """
    digits = len(str(max(units - 1, 1)))
    return float(f"1e-{digits}")


# --- the two accountants ---------------------------------------------------------------------------------


ACCOUNTANTS = ("rdp", "pld")


_INTERVAL = 1e-4
"""The steps in which losses are counted; dp-accounting's default."""


_STEPS = 2e5
"""About as many of them one release may take: fewer where there is hardly any noise, and losses are large."""


def spending(
    releases: Sequence[Release], delta: float, accountant: str, orders: tuple[float, ...], kappa: float
) -> Spent:
    """The costs of all releases, added, at ``delta``."""
    one_of("accountant", accountant, ACCOUNTANTS)
    costly = [release for release in map(_checked, releases) if release.times > 0 and release.rate > 0.0]
    if len({release.sampling for release in costly if release.rate < 1.0}) > 1:
        raise EvenhandError(
            "Samples drawn independently and samples of a fixed size protect from different things (a unit added or "
            "removed; a unit replaced), and their costs cannot be added: give all releases the same sampling."
        )
    if not costly:
        return Spent(0.0, None, False)
    if any(release.noise_multiplier == 0.0 for release in costly):
        return Spent(math.inf, None, False)
    if accountant == "pld":
        return Spent(_by_losses(costly, delta), None, False)
    total = sum(release.times * _cost(release._replace(times=1), orders, kappa) for release in costly)
    return epsilon_of_rdp(np.asarray(total), orders=orders, delta=delta)


def _checked(release: Release) -> Release:
    noise("noise_multiplier", release.noise_multiplier)
    checked_rate("rate", release.rate)
    count("times", release.times)
    one_of("sampling", release.sampling, ("poisson", "fixed"))
    one_of("mechanism", release.mechanism, ("gaussian", "concentrated"))
    return release


@lru_cache(maxsize=64)
def _cost(release: Release, orders: tuple[float, ...], kappa: float) -> npt.NDArray[np.float64]:
    sigma, rate, sampling, _, mechanism = release
    if mechanism == "gaussian":
        return rdp(noise_multiplier=sigma, rate=rate, sampling=sampling, orders=orders)
    return amplified(
        lambda alpha: alpha / (2.0 * sigma**2), rate=rate, kappa=kappa, sampling=sampling, orders=orders
    )


def _by_losses(releases: Sequence[Release], delta: float) -> float:
    for release in releases:
        if release.mechanism == "concentrated":
            raise EvenhandError(
                "accountant='pld' needs the distribution of the noise, and of a concentrated mechanism only "
                "Renyi divergences are known: take accountant='rdp'."
            )
        if release.sampling == "fixed" and release.rate < 1.0:
            raise EvenhandError(
                "accountant='pld' knows only samples that are drawn independently: take accountant='rdp' for "
                "sampling='fixed'."
            )
    events = _dp_accounting()
    least = min(release.noise_multiplier for release in releases)
    interval = max(_INTERVAL, (0.5 / least**2 + 8.0 / least) / _STEPS)
    accountant = events.pld.PLDAccountant(value_discretization_interval=interval)
    for release in releases:
        event = events.GaussianDpEvent(release.noise_multiplier)
        if release.rate < 1.0:
            event = events.PoissonSampledDpEvent(release.rate, event)
        accountant.compose(event, release.times)
    return float(accountant.get_epsilon(delta))


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise EvenhandError(
            "accountant='pld' needs the package dp-accounting, which is not installed: "
            "pip install 'evenhand[privacy]', or take accountant='rdp'."
        ) from error
    return dp_accounting
