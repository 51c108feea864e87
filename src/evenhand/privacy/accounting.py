"""What private methods spend: epsilon of everything that a run gives away, and what a budget of it calls for.

:func:`spent` adds up releases; :func:`epsilon` is the same for equal ones; :func:`account` does it for the guarantee of
a method.  :func:`noise_for`, :func:`steps_for` and :func:`clients_for` look for the noise, the steps and the clients
with which a budget is kept.  Both accountants, of Renyi divergences and of privacy losses, are in the last part.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from evenhand.errors import Argument, EvenhandError, EvenhandWarning
from evenhand.privacy import _checks as checks
from evenhand.privacy._checks import Accountant, NDArray, Orders, Scheme
from evenhand.privacy._renyi import ORDERS_FINE, Spent, amplified, epsilon_of_rdp, gaussian, rdp
from evenhand.text import counted
from evenhand.types import Privacy, Release

__all__ = ["Account", "account", "clients_for", "epsilon", "noise_for", "spent", "steps_for", "usual_delta"]


# --- epsilon of releases ---------------------------------------------------------------------------------


def spent(
    releases: Sequence[Release],
    *,
    delta: float,
    accountant: Accountant = "rdp",
    orders: Orders | None = None,
    kappa: float = 3.0,
) -> Spent:
    r"""Total epsilon of several releases, at a given delta.

    .. math::
        \varepsilon = \min_\alpha \Big[\sum_r T_r\, \mathrm{RDP}_r(\alpha) + \log \big(1 - \tfrac1\alpha\big)
        - \frac{\log (\delta \alpha)}{\alpha - 1}\Big]

    with :math:`\mathrm{RDP}_r` of :func:`rdp` for Gaussian noise, of :func:`amplified` for concentrated mechanisms; or
    from the distribution of the privacy loss.  Gaussian releases in which all units take part are together one with
    :math:`m = \sqrt{\sum_r T_r / z_r^2}`, whose :math:`\varepsilon` solves

    .. math::
        \delta = \Phi\big(\tfrac m2 - \tfrac\varepsilon m\big)
        - e^\varepsilon\, \Phi\big(- \tfrac m2 - \tfrac\varepsilon m\big);

    with releases on samples among them, dp-accounting composes the distributions numerically.

    Args:
      releases: what was given away, as :class:`evenhand.types.Privacy` lists it for some number of rounds.
      delta: :math:`\delta`, between 0 and 1; well below 1 over the number of units.
      accountant: ``"rdp"``: an upper bound in milliseconds.  ``"pld"``: for Gaussian noise only, and never above
        ``"rdp"``.  It is exact, at any delta and epsilon, if all units take part in all releases.  On samples, which
        must be independent, it takes seconds, at most ten million steps, and ``pip install 'evenhand[privacy]'``.  It
        is then within 1e-6 of the exact epsilon (compared at epsilon 6 to 48), and equals ``"rdp"`` at a delta below
        about 1e-14 and where losses are too large, or too many, to be counted.
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
    Using FFT*, AISTATS 2020; Balle and Wang, *Improving the Gaussian Mechanism for Differential Privacy*, ICML 2018.
    """
    tried = ORDERS_FINE if orders is None else tuple(checks.orders(orders).tolist())
    return _warned(_spending(releases, checks.probability("delta", delta), accountant, tried, kappa), tried)


def epsilon(
    *,
    noise_multiplier: float,
    rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "rdp",
    sampling: Scheme = "poisson",
) -> float:
    r"""Epsilon of DP-SGD or DP-FedAvg: Gaussian noise in a number of steps, each on a new sample.

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
    releases = (Release(noise_multiplier, rate, sampling, checks.count("steps", steps)),)
    total = _spending(releases, checks.probability("delta", delta), accountant, ORDERS_FINE)
    return _warned(total, ORDERS_FINE).epsilon


def _warned(total: Spent, orders: Orders) -> Spent:
    """The same, with a warning where an order beyond those tried might show a smaller epsilon."""
    if total.at_edge:
        which = "smallest" if total.order == min(orders) else "largest"
        warnings.warn(
            f"epsilon={total.epsilon:.4g} comes from the {which} order tried, {total.order:g}: it is an upper bound, "
            "which other orders may lower.",
            EvenhandWarning,
            stacklevel=3,
        )
    return total


# --- the account of a guarantee ----------------------------------------------------------------------------


class Account(NamedTuple):
    r"""A differential-privacy guarantee with its epsilon and delta, after some number of rounds.

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
      unprotected: what the guarantee does not cover.
    """

    epsilon: float
    delta: float
    accountant: Accountant
    rounds: int
    unit: str
    neighbours: str
    releases: tuple[Release, ...]
    released: tuple[str, ...]
    public: tuple[str, ...]
    unprotected: tuple[str, ...]

    def in_words(self) -> dict[str, Any]:
        """The same as numbers and sentences, for reports and files."""
        words = self._asdict() | {"releases": tuple(map(_words, self.releases))}
        del words["rounds"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in words.items()}

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
    privacy: Privacy, *, rounds: int, units: int, delta: float | None = None, accountant: Accountant = "rdp"
) -> Account:
    r"""The privacy budget that a method has spent after a number of rounds.

    Args:
      privacy: its guarantee.
      rounds: how many.
      units: clients or training examples, whichever are protected.
      delta: :math:`\delta`; None: the promise's own, or else :func:`usual_delta`.
      accountant: ``"rdp"`` or ``"pld"``, as in :func:`evenhand.privacy.epsilon`.

    Raises:
      EvenhandError: ``delta`` outside (0, 1), or ``rounds`` that are no whole number from 0.

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
    checks.probability("account(delta=)", delta)
    releases = privacy.releases(checks.count("account(rounds=)", rounds))
    least = spent(releases, delta=delta, accountant=accountant).epsilon
    words: dict[str, Any] = privacy._asdict() | {"delta": delta, "releases": releases}
    return Account(epsilon=least, accountant=accountant, rounds=rounds, **words)


def usual_delta(units: int) -> float:
    r"""The default delta: the largest power of ten that is at most one over the number of units.

    Delta is the chance of a breach of privacy, which should be below that.

    Edge cases: 0.1 for a single unit, which has nobody to hide among.

    Example:
      >>> usual_delta(100), usual_delta(25_000)
      (0.01, 1e-05)

    Source: the rule of the code of Li et al., *Differentially Private Adaptive Optimization with Delayed
    Preconditioners*, ICLR 2023.
    """
    units = checks.count("units", units)
    return float(f"1e-{len(str(max(units - 1, 1)))}")


# --- how much a budget calls for -------------------------------------------------------------------------


_TOLERANCE = {"rdp": 1e-9, "pld": 1e-4}
"""By how much a noise multiplier may exceed the least one, relative to it; each value of "pld" takes a second."""
_LARGEST_NOISE = 2.0**60


def noise_for(
    *,
    epsilon: float,
    rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "rdp",
    sampling: Scheme = "poisson",
    mechanism: Literal["gaussian", "concentrated"] = "gaussian",
    orders: Orders | None = None,
) -> float:
    r"""The smallest noise multiplier with which a number of steps stays within a privacy budget.

    .. math::
        \min \{\sigma \ge 0 : \varepsilon(\sigma, q, T, \delta) \le \varepsilon\}

    Args:
      epsilon: :math:`\varepsilon > 0`, the budget.
      rate: :math:`q`, above 0.
      steps: :math:`T`; 0: no noise is needed.
      delta: :math:`\delta`.
      accountant: as in :func:`spent`.
      sampling: as in :func:`epsilon`.
      mechanism: ``"concentrated"``: the noise of which only divergences are known, such as discrete noise; its
        :math:`\rho` is :math:`1 / (2 \sigma^2)`, of all that one round gives away.
      orders: as in :func:`spent`.

    Returns:
      :math:`\sigma`, at most a part of 1e-9 (``"pld"``: 1e-4) above the least: :func:`epsilon` of it is within the
      budget.

    Raises:
      EvenhandError: as :func:`spent`; or no noise is enough.

    Warns:
      EvenhandWarning: as :func:`spent`: less noise may do.

    Example:
      >>> sigma = noise_for(epsilon=3.0, rate=0.01, steps=1000, delta=1e-5)
      >>> round(sigma, 4)
      0.8646
      >>> noise_for(epsilon=3.0, rate=0.01, steps=0, delta=1e-5)
      0.0

    Source: as of :func:`spent`.
    """
    budget, steps = checks.positive("epsilon", epsilon), checks.count("steps", steps)
    q, delta = checks.rate("rate", rate, least=math.ulp(0.0)), checks.probability("delta", delta)
    tried = ORDERS_FINE if orders is None else tuple(checks.orders(orders).tolist())

    def at(sigma: float) -> Spent:
        return _spending((Release(sigma, q, sampling, steps, mechanism),), delta, accountant, tried)

    if at(0.0).epsilon <= budget:
        return 0.0
    start, factor = 1.0, 2.0
    if accountant == "pld":  # few values, each near the last
        start, factor = noise_for(epsilon=budget, rate=q, steps=steps, delta=delta), 1.05
    enough = _least_number(lambda sigma: at(sigma).epsilon, budget, start, factor, _TOLERANCE[accountant])
    if accountant == "rdp":
        _warned(at(enough), tried)
    return enough


def steps_for(
    *,
    epsilon: float,
    noise_multiplier: float,
    rate: float,
    delta: float,
    accountant: Accountant = "rdp",
    sampling: Scheme = "poisson",
) -> int:
    r"""The largest number of steps that stays within a privacy budget.

    .. math::
        \max \{T : \varepsilon(\sigma, q, T, \delta) \le \varepsilon\}

    Args:
      epsilon: :math:`\varepsilon > 0`, the budget.
      noise_multiplier: :math:`\sigma`.
      rate: :math:`q`, above 0.
      delta: :math:`\delta`.
      accountant: as in :func:`spent`; ``"pld"`` takes up to a minute.
      sampling: as in :func:`epsilon`.

    Returns:
      :math:`T`; 0 if one step is too much.

    Raises:
      EvenhandError: as :func:`spent`; or more than 2^53 steps are within the budget.

    Example:
      >>> steps_for(epsilon=3.0, noise_multiplier=1.0, rate=0.01, delta=1e-5)
      2195

    Source: as of :func:`spent`.
    """
    budget, sigma = checks.positive("epsilon", epsilon), checks.noise("noise_multiplier", noise_multiplier)
    q, delta = checks.rate("rate", rate, least=math.ulp(0.0)), checks.probability("delta", delta)

    def too_much(steps: int) -> bool:
        release = Release(sigma, q, sampling, steps)
        return _spending((release,), delta, accountant, ORDERS_FINE).epsilon > budget

    return _least_whole(too_much, 1, epsilon, "more than 2^53 steps stay within it: use less noise") - 1


def clients_for(
    *,
    epsilon: float,
    noise_multiplier: float,
    cohort: int,
    steps: int,
    delta: float | None = None,
    accountant: Accountant = "rdp",
    sampling: Scheme = "poisson",
) -> int:
    r"""The least number of clients for which rounds with a given noise stay, by an accountant, within a privacy budget.

    .. math::
        \min \{K \ge m : \varepsilon(\sigma, m / K, T, \delta) \le \varepsilon\}

    Args:
      epsilon: :math:`\varepsilon > 0`, the budget.
      noise_multiplier: :math:`\sigma`, above 0.
      cohort: :math:`m`, the number of clients expected in a round, at least 1; or of examples in a batch.
      steps: :math:`T`, rounds.
      delta: :math:`\delta`; None: :math:`1 / K`, at least 2 clients.
      accountant: as in :func:`spent`; ``"pld"`` takes up to a minute.
      sampling: as in :func:`epsilon`.

    Raises:
      EvenhandError: as :func:`spent`; or no number of clients is enough for the accountant.

    Edge cases: with little noise, the bound of ``"rdp"`` may exceed a budget that ``"pld"`` keeps with many clients.

    Example:
      >>> clients_for(epsilon=3.0, noise_multiplier=1.0, cohort=100, steps=1000, delta=1e-5)
      7043
      >>> clients_for(epsilon=3.0, noise_multiplier=5.0, cohort=100, steps=10, delta=1e-5)
      100

    Source: as of :func:`spent`.
    """
    budget, sigma = checks.positive("epsilon", epsilon), checks.positive("noise_multiplier", noise_multiplier)
    cohort, steps = checks.count("cohort", cohort, 1), checks.count("steps", steps)
    if delta is not None:
        checks.probability("delta", delta)

    def enough(clients: int) -> bool:
        chance = 1.0 / clients if delta is None else delta
        release = Release(sigma, cohort / clients, sampling, steps)
        return _spending((release,), chance, accountant, ORDERS_FINE).epsilon <= budget

    other = (
        ", or accountant='pld', which bounds it more closely"
        if (accountant, sampling) == ("rdp", "poisson")
        else ""
    )
    reason = (
        f"no number of clients keeps {counted(steps, 'round')} within it by the accountant {accountant!r}: use more "
        f"noise, or fewer rounds{other}"
    )
    return _least_whole(enough, cohort if delta is not None else max(cohort, 2), epsilon, reason)


def _least_number(
    cost: Callable[[float], float], budget: float, start: float, factor: float, tolerance: float
) -> float:
    """The least ``x`` at which the falling cost is within the budget, or a little more."""
    enough, least = start, cost(start)
    while least > budget:
        enough *= factor
        least = cost(enough)
        if enough > _LARGEST_NOISE:
            raise _unaffordable(budget, "no amount of noise is enough: give a larger one")
    few, most = enough / factor, cost(enough / factor)
    while most <= budget:
        enough, least, few = few, most, few / factor
        most = cost(few)
        if few < 1.0 / _LARGEST_NOISE:
            return enough
    turn = 0
    while enough > few * (1.0 + tolerance):
        middle, turn = _between(few, most, enough, least, budget, turn, tolerance), turn + 1
        value = cost(middle)
        if value <= budget:
            enough, least = middle, value
        else:
            few, most = middle, value
    return enough


def _between(
    few: float, most: float, enough: float, least: float, budget: float, turn: int, tolerance: float
) -> float:
    """Where a power of ``x`` through both ends meets the budget, a little to either end in turn; or the middle."""
    if turn % 3 == 2 or most == math.inf or least <= 0.0:
        return math.sqrt(few * enough)
    part = math.log(most / budget) / math.log(most / least)
    meets = few * (enough / few) ** part * (1.0 + (0.45 if turn % 3 == 0 else -0.45) * tolerance)
    nearest = 1.0 + tolerance / 4.0
    return min(max(meets, few * nearest), enough / nearest)


def _least_whole(holds: Callable[[int], bool], start: int, epsilon: float, reason: str) -> int:
    """The least whole number from ``start`` on for which it holds, where it holds for all larger ones.

    Raises:
      EvenhandError: it holds for none; the sentence gives the ``reason``.
    """
    if holds(start):
        return start
    fails, gap = start, 1
    while not holds(fails + gap):
        fails, gap = fails + gap, 2 * gap
        if fails + gap > 2**53:
            raise _unaffordable(epsilon, reason)
    return fails + 1 + bisect_left(range(fails + 1, fails + gap), True, key=holds)


def _unaffordable(epsilon: float, reason: str) -> EvenhandError:
    return EvenhandError(Argument("epsilon", repr(epsilon)), f": {reason}.")


# --- the two accountants ---------------------------------------------------------------------------------


_INTERVAL = 1e-4
"""The largest steps in which losses are counted; dp-accounting's default."""


_FINEST = 1e-9
"""The smallest such steps: multiples of smaller ones are not exact enough."""


_PARTS = 4.0
"""At least as many of them are in the usual loss of a release: rounding up each of many smaller losses adds up."""


_STEPS = 2e5
"""About as many of them one release may take: fewer where there is hardly any noise, and losses are large."""


_MOST_PARTS = 4e6
"""About as many of them the sum of all releases may take: more would fill the memory."""


_MOST_TIMES = 10**7
"""The most compositions of a sampled release, which take dp-accounting some 20 s; 1e8 took memory and minutes."""


def _spending(
    releases: Sequence[Release], delta: float, accountant: str, orders: tuple[float, ...], kappa: float = 3.0
) -> Spent:
    """The costs of all releases, added, at ``delta``."""
    checks.one_of("accountant", accountant, ("rdp", "pld"))
    plain = list[Release]()
    for release in releases:
        noise = checks.noise("noise_multiplier", release.noise_multiplier)
        rate, times = checks.rate("rate", release.rate), checks.count("times", release.times)
        plain.append(release._replace(noise_multiplier=noise, rate=rate, times=times))
        checks.one_of("sampling", release.sampling, ("poisson", "fixed"))
        checks.one_of("mechanism", release.mechanism, ("gaussian", "concentrated"))
    costly = [release for release in plain if release.times > 0 and release.rate > 0.0]
    # Also where all take part: a unit that is replaced may move by twice as much as one that is added.
    if len({release.sampling for release in costly}) > 1:
        raise EvenhandError(
            "Samples drawn independently and samples of a fixed size have different guarantees (a unit added or "
            "removed; a unit replaced), so their costs cannot be added: give all releases the same sampling (at rate "
            "1, 'poisson' is 'fixed' with half the noise multiplier)."
        )
    if not costly:
        return Spent(0.0, None, False)
    if any(release.noise_multiplier == 0.0 for release in costly):
        return Spent(math.inf, None, False)
    by_losses = _by_losses(costly, delta) if accountant == "pld" else None
    total = sum(release.times * _cost(release._replace(times=1), orders, kappa) for release in costly)
    by_orders = epsilon_of_rdp(np.asarray(total), orders=orders, delta=delta)
    # Rare losses are left out, so that a delta below about 1e-14 has no epsilon of losses.
    return by_orders if by_losses is None else Spent(min(by_losses, by_orders.epsilon), None, False)


@lru_cache(maxsize=64)
def _cost(release: Release, orders: tuple[float, ...], kappa: float) -> NDArray:
    sigma, rate, sampling, _, mechanism = release
    if mechanism == "gaussian":
        return rdp(noise_multiplier=sigma, rate=rate, sampling=sampling, orders=orders)
    return amplified(gaussian(sigma), rate=rate, kappa=kappa, sampling=sampling, orders=orders)


def _by_losses(releases: Sequence[Release], delta: float) -> float:
    for release in releases:
        if release.mechanism == "concentrated":
            raise EvenhandError(
                "accountant='pld' needs the distribution of the noise, but of a concentrated mechanism only "
                "Renyi divergences are known: use accountant='rdp'."
            )
        if release.sampling == "fixed" and release.rate < 1.0:
            raise EvenhandError(
                "accountant='pld' supports only samples that are drawn independently: use accountant='rdp' for "
                "sampling='fixed'."
            )
        if release.rate < 1.0 and release.times > _MOST_TIMES:
            raise EvenhandError(
                f"accountant='pld' supports at most {_MOST_TIMES:,} steps on samples, but these are {release.times:,}: "
                "use accountant='rdp'."
            )
    to_all = [release for release in releases if release.rate == 1.0]
    sampled = [release for release in releases if release.rate < 1.0]
    effect = math.hypot(*(math.sqrt(release.times) / release.noise_multiplier for release in to_all))
    if not sampled:
        return _gaussian_epsilon(effect, delta)
    try:
        import dp_accounting as events
    except ImportError as error:
        raise EvenhandError(
            "accountant='pld' needs the package dp-accounting for samples, which is not installed: "
            "pip install 'evenhand[privacy]', or use accountant='rdp'."
        ) from error
    together = [Release(1.0 / effect)] if to_all else []
    accountant = events.pld.PLDAccountant(value_discretization_interval=_interval([*together, *sampled]))
    for release in (*together, *sampled):
        event = events.GaussianDpEvent(release.noise_multiplier)
        if release.rate < 1.0:
            event = events.PoissonSampledDpEvent(release.rate, event)
        try:
            accountant.compose(event, release.times)
        except (OverflowError, ValueError):  # losses far below one step, or above the logarithm of any float
            return math.inf
    return float(accountant.get_epsilon(delta))


def _gaussian_epsilon(effect: float, delta: float) -> float:
    r"""The least epsilon of Gaussian noise of deviation 1 on what a unit changes by ``effect``.

    With :math:`a = m / 2 - \varepsilon / m`, the exponential and the tail in delta, which may overflow, become
    :math:`\delta = \frac12 e^{-a^2 / 2} (\mathrm{erfcx}(-a / \sqrt2) - \mathrm{erfcx}((m - a) / \sqrt2))`.
    """
    from scipy.optimize import brentq  # slow to import, and most runs need none
    from scipy.special import erfcx

    def excess(a: float) -> float:
        near, far = float(erfcx(-a / math.sqrt(2.0))), float(erfcx((effect - a) / math.sqrt(2.0)))
        # Rounded up, also where both are almost equal.
        return math.log(near - far + 1e-14 * near) - 0.5 * a * a - math.log(2.0 * delta)

    most = min(effect / 2.0, 9.0)  # beyond 9, delta is 1 in floats
    if excess(most) <= 0.0:
        return effect * (effect / 2.0 - most)
    a: Any = brentq(excess, -math.sqrt(-2.0 * math.log(delta)), most, xtol=1e-12)
    return effect * (effect / 2.0 - float(a) + 1e-11)


def _interval(releases: Sequence[Release]) -> float:
    """The steps in which losses are counted: a part of the least usual loss, unless that makes too many of them."""
    usual, largest, width = math.inf, 0.0, 0.0
    for sigma, rate, _, times, _ in releases:
        largest = max(largest, 0.5 / sigma**2 + 8.0 / sigma)
        square = rate**2 * math.expm1(min(1.0 / sigma / sigma, 300.0))
        most = math.log1p(rate * math.expm1(min(0.5 / sigma / sigma + 8.0 / sigma, 300.0)))
        usual = min(usual, math.sqrt(square))
        # About the range that dp-accounting keeps of their sum; losses are between -most and most.
        width += times * min(square / most, 2.0 * most) if most else 0.0
    wanted = min(_INTERVAL, max(_FINEST, usual / _PARTS, width / _STEPS))
    return max(wanted, largest / _STEPS, min(largest, width / _MOST_PARTS))
