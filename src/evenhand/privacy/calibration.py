"""How much noise, how many steps or how many clients a budget calls for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from evenhand.errors import Argument, EvenhandError
from evenhand.privacy._checks import checked_orders, checked_rate, count, noise, one_of, positive, probability
from evenhand.privacy.accounting import ACCOUNTANTS, spending, warn_at_edge
from evenhand.privacy.renyi import ORDERS_FINE, Spent
from evenhand.types import Release

__all__ = ["clients_for", "noise_for", "steps_for"]

_TOLERANCE = {"rdp": 1e-9, "pld": 1e-4}
"""By how much a noise multiplier may exceed the least one, relative to it; each value of "pld" takes a second."""
_MOST = 2**53
_LARGEST_NOISE = 2.0**60


def noise_for(
    *,
    epsilon: float,
    rate: float,
    steps: int,
    delta: float,
    accountant: Literal["rdp", "pld"] = "rdp",
    sampling: Literal["poisson", "fixed"] = "poisson",
    mechanism: Literal["gaussian", "concentrated"] = "gaussian",
    orders: Sequence[float] | None = None,
) -> float:
    r"""The least noise multiplier with which so many steps spend no more than a budget.

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
    budget, steps = positive("epsilon", epsilon), count("steps", steps)
    q, delta = checked_rate("rate", rate, least=math.ulp(0.0)), probability("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    tried = ORDERS_FINE if orders is None else tuple(checked_orders(orders).tolist())

    def at(sigma: float) -> Spent:
        return spending((Release(sigma, q, sampling, steps, mechanism),), delta, accountant, tried, 3.0)

    if at(0.0).epsilon <= budget:
        return 0.0
    start, factor = 1.0, 2.0
    if accountant == "pld":  # few values, each near the last
        start, factor = noise_for(epsilon=budget, rate=q, steps=steps, delta=delta), 1.05
    enough = _least_number(lambda sigma: at(sigma).epsilon, budget, start, factor, _TOLERANCE[accountant])
    if accountant == "rdp":
        warn_at_edge(at(enough), tried)
    return enough


def steps_for(
    *,
    epsilon: float,
    noise_multiplier: float,
    rate: float,
    delta: float,
    accountant: Literal["rdp", "pld"] = "rdp",
    sampling: Literal["poisson", "fixed"] = "poisson",
) -> int:
    r"""The largest number of steps that spends no more than a budget.

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
    budget, sigma = positive("epsilon", epsilon), noise("noise_multiplier", noise_multiplier)
    q, delta = checked_rate("rate", rate, least=math.ulp(0.0)), probability("delta", delta)

    def too_much(steps: int) -> bool:
        release = Release(sigma, q, sampling, steps)
        return spending((release,), delta, accountant, ORDERS_FINE, 3.0).epsilon > budget

    first = _least_whole(too_much, 1)
    if first is None:
        raise EvenhandError(
            Argument("epsilon", repr(epsilon)), ": more than 2^53 steps are within it: take less noise."
        )
    return first - 1


def clients_for(
    *,
    epsilon: float,
    noise_multiplier: float,
    cohort: int,
    steps: int,
    delta: float | None = None,
    accountant: Literal["rdp", "pld"] = "rdp",
    sampling: Literal["poisson", "fixed"] = "poisson",
) -> int:
    r"""The least number of clients among whom so many rounds with some noise spend no more than a budget.

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
      EvenhandError: as :func:`spent`; or no number of clients is enough.

    Example:
      >>> clients_for(epsilon=3.0, noise_multiplier=1.0, cohort=100, steps=1000, delta=1e-5)
      7043
      >>> clients_for(epsilon=3.0, noise_multiplier=5.0, cohort=100, steps=10, delta=1e-5)
      100

    Source: as of :func:`spent`.
    """
    budget, sigma = positive("epsilon", epsilon), positive("noise_multiplier", noise_multiplier)
    cohort, steps = count("cohort", cohort, 1), count("steps", steps)
    if delta is not None:
        probability("delta", delta)

    def enough(clients: int) -> bool:
        release = Release(sigma, cohort / clients, sampling, steps)
        chance = 1.0 / clients if delta is None else delta
        return spending((release,), chance, accountant, ORDERS_FINE, 3.0).epsilon <= budget

    fewest = _least_whole(enough, cohort if delta is not None else max(cohort, 2))
    if fewest is None:
        raise EvenhandError(
            Argument("epsilon", repr(epsilon)),
            f": no number of clients affords {steps} rounds within it: take more noise, or fewer rounds.",
        )
    return fewest


def _least_number(
    cost: Callable[[float], float], budget: float, start: float, factor: float, tolerance: float
) -> float:
    """The least ``x`` at which the falling cost is within the budget, or a little more."""
    enough, least = start, cost(start)
    while least > budget:
        enough *= factor
        least = cost(enough)
        if enough > _LARGEST_NOISE:
            raise EvenhandError(
                Argument("epsilon", repr(budget)), ": no amount of noise is enough: give a larger one."
            )
    few, most = enough / factor, cost(enough / factor)
    while most <= budget:
        enough, least = few, most
        few = enough / factor
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


def _least_whole(holds: Callable[[int], bool], start: int) -> int | None:
    """The least whole number from ``start`` on for which it holds, where it holds for all larger ones; or None."""
    if holds(start):
        return start
    fails, gap = start, 1
    while not holds(fails + gap):
        fails, gap = fails + gap, 2 * gap
        if fails + gap > _MOST:
            return None
    works = fails + gap
    while works - fails > 1:
        middle = (fails + works) // 2
        if holds(middle):
            works = middle
        else:
            fails = middle
    return works
