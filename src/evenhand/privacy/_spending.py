"""What releases spend, by either accountant, without a word about the orders tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.privacy._checks import checked_rate, count, noise, one_of
from evenhand.privacy.renyi import Spent, amplified, epsilon_of_rdp, rdp
from evenhand.types import Release

__all__ = ["ACCOUNTANTS", "spending"]

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
