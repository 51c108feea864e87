"""TERM's theory of tails, quantiles and their minimisers; what is printed wrongly is shown to be wrong.

Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, theorems numbered as in the specification.  The theorems
ask nothing of how parameters make losses, so a set of parameters is a table here: a row of losses for each.
"""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, tilt
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from evenhand.risks import (
    entropic_value_at_risk,
    inverse_superquantile,
    kth_smallest,
    mean,
    superquantile,
    tilted,
    tilted_value_at_risk,
    value_at_risk,
)

_FIVE = (0.0, 1.0, 2.0, 3.0, 10.0)
_T = np.concatenate([-np.logspace(1, -2, 16), np.logspace(-2, 1, 16)])


@jax.jit
def _tilts(t: jax.Array, table: jax.Array) -> jax.Array:
    return jax.vmap(lambda t: jax.vmap(tilted(t).value)(table))(t)


def _risks(t: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Tilted risks, ``(tilts, parameters)``."""
    with jax.enable_x64(True):
        return np.array(_tilts(jnp.asarray(t), jnp.asarray(table)))


def _tail(table: np.ndarray, gamma: float) -> np.ndarray:
    """Definition 14 for each parameter: the share of losses of at least ``gamma``."""
    return np.mean(table >= gamma, axis=1)


def _bounds(t: np.ndarray, risks: np.ndarray, gamma: float, floor: float) -> np.ndarray:
    """Theorem 36's right side for each tilt."""
    return np.expm1(t * (risks - floor)) / np.expm1(t * (gamma - floor))


def _ladder(table: np.ndarray, gamma: float, floor: float | None = None) -> list[float]:
    """``Q0`` to ``Q3`` of theorem 37 with the tilts of ``_T``: of all parameters, of tilted minimisers, and its bound."""
    risks, tail = _risks(_T, table), _tail(table, gamma)
    minimisers, least = np.argmin(risks, axis=1), np.min(risks, axis=1)
    bounds = _bounds(_T, least, gamma, np.min(table) if floor is None else floor)
    best = np.argmin(bounds)
    return [tail.min(), tail[minimisers].min(), tail[minimisers[best]], bounds[best]]


# --- tails over parameters ---------------------------------------------------------------------------------------


@hypothesis.given(st.lists(st.integers(0, 12), min_size=24, max_size=24), st.integers(1, 12))
def test_tilted_minimisers_bound_the_least_tail(sevenths: list[int], gamma: int) -> None:
    """Theorem 37 for any table, and theorem 24: the least risk does not fall as the tilt grows."""
    table = np.reshape(sevenths, (6, 4)) / 7.0
    assert np.all(np.diff(np.min(_risks(_T, table), axis=1)) >= -1e-12)
    if gamma / 7.0 > table.min():
        assert np.all(np.diff(_ladder(table, gamma / 7.0)) >= -1e-9)


def test_no_two_tails_of_the_ladder_are_the_same() -> None:
    """Theorem 37 with three strict signs; a floor above the least loss makes its last sign false."""
    table = np.random.default_rng(327).exponential(size=(6, 4))
    gamma = float(np.quantile(table, 0.5))
    least, along, chosen, bound = _ladder(table, gamma)
    assert (least, along, chosen) == (0.25, 0.5, 0.75) and 0.75 < bound < 0.76
    assert _ladder(table, gamma, floor=table.min() + 0.1)[3] < 0.75 - 1e-3


_THETA = np.round(np.linspace(-0.5, 1.5, 401), 6)
_THREE = np.stack([(_THETA + 0.2) ** 2, (_THETA - 0.2) ** 2 + 0.1, (_THETA - 1.2) ** 2], axis=1)
"""The three functions of figure 7.2."""


def test_tails_of_three_functions() -> None:
    """By hand: at most one function below the least median, 0.105625, two up to 0.49; approximation 1 is but one."""
    for gamma, least in ((0.01, 2 / 3), (0.1056, 2 / 3), (0.1057, 1 / 3), (0.3, 1 / 3), (0.4899, 1 / 3)):
        assert _ladder(_THREE, gamma)[0] == pytest.approx(least, abs=1e-12), gamma
    assert _ladder(_THREE, 0.3)[2] == pytest.approx(1 / 3), (
        "here the minimiser of the bound has the least tail"
    )
    assert _ladder(_THREE, 0.2)[2] == pytest.approx(2 / 3), "and here not, by a third"


@pytest.mark.parametrize("table", [_THREE, _THREE - 0.7, np.random.default_rng(1).normal(size=(5, 7))])
def test_the_least_tail_is_all_below_the_least_loss_and_none_above_the_least_worst(table: np.ndarray) -> None:
    """Lemma 45 and equation 7.69; both thresholds are where they are said to be, which are ranks 1 and n."""
    number = table.shape[1]
    low, high = (float(np.min(measure(tilted(t), table).value)) for t in (-math.inf, math.inf))
    for rank, end in ((1, low), (number, high)):
        assert np.min(measure(kth_smallest(rank), table).value) == end
    tails = [_tail(table, gamma).min() for gamma in (low - 1e-9, low + 1e-9, high - 1e-9, high + 1e-9)]
    assert tails[0] == 1 and tails[1] < 1 and tails[2] > 0 and tails[3] == 0


def test_the_median_is_not_the_rank_that_is_printed() -> None:
    """T8: of an odd number it is rank ``(n + 1) / 2``, not ``(n - 1) / 2``."""
    medians = np.median(_THREE, axis=1)
    np.testing.assert_array_equal(measure(kth_smallest(2), _THREE).value, medians)
    assert np.all(measure(kth_smallest(1), _THREE).value < medians)


def test_least_quantiles_undo_least_tails() -> None:
    """Lemma 30, corrected: the infimum of the thresholds with that tail, where the tail itself is larger already."""
    gammas = np.linspace(0.005, 0.5, 100)
    tails = np.array([_tail(_THREE, gamma).min() for gamma in gammas])
    for gamma, infimum in ((0.05, 0.0), (0.3, 0.105625)):
        tail = _tail(_THREE, gamma).min()
        least = np.min(measure(value_at_risk(float(tail)), _THREE).value)
        assert least == pytest.approx(infimum, abs=1e-12)
        assert gammas[tails == tail].min() - least < 0.0051
    printed = float(_tail(_THREE, 0.105625).min())
    assert np.min(measure(value_at_risk(printed), _THREE).value) == 0.0, "as printed it would be 0.105625"


# --- TiVaR -------------------------------------------------------------------------------------------------------


def _tivar(theta: float, losses: np.ndarray, floor: float = 0.0) -> float:
    with jax.enable_x64(True):
        return float(tilted_value_at_risk(theta, floor=floor).value(jnp.asarray(losses)))


@pytest.mark.parametrize("floor", [-1.0, 0.4])
def test_tivar_is_where_the_best_tail_bound_is_its_fraction(floor: float) -> None:
    """Equation 7.202; with ``exp(-F t)`` for ``exp(F t)``, as printed (T5), it is another and bounds no tail."""
    losses = floor + np.array([0.05, 0.3, 0.9, 1.0, 2.5])
    t = np.concatenate([-np.logspace(1.5, -3, 4000), np.logspace(-3, 1.5, 4000)])
    risks = (logsumexp(np.outer(t, losses), axis=1) - math.log(5)) / t
    for theta in (0.6, 0.4):
        gamma = _tivar(theta, losses, floor)
        assert np.min(_bounds(t, risks, gamma, floor)) == pytest.approx(theta, abs=1e-5)
        assert abs(np.min(_bounds(t, risks, gamma, -floor)) - theta) > 0.02
    # Every loss of at least the smallest: a tail of 1, which a sign turned round says is less.
    smallest = float(losses.min())
    assert np.min(_bounds(t, risks, smallest, floor)) >= 1
    assert floor > 0 or np.min(_bounds(t, risks, smallest, -floor)) < 1 - 1e-3


def test_lower_floors_loosen_tivar_up_to_evar() -> None:
    """Section 3.10: from the quantile's side to EVaR, which is what no floor at all gives."""
    for theta in (0.6, 0.4):
        found = [_tivar(theta, np.array(_FIVE), floor) for floor in (0.0, -1.0, -3.0, -200.0)]
        entropic = float(measure(entropic_value_at_risk(theta), _FIVE).value)
        assert np.all(np.diff(found[:3]) > 0.02) and found[2] < entropic - 1e-3
        assert found[3] == pytest.approx(entropic, abs=1e-9)


def test_large_fractions_lead_to_the_least_loss_or_to_the_mean() -> None:
    """Section 10.4: TiVaR to the minimum, slowly if the floor is below it; superquantile and EVaR to the mean."""
    gaps = 10.0 ** -np.arange(2, 12, 3)
    loose = [_tivar(1 - gap, np.array(_FIVE), -1.0) for gap in gaps]
    assert np.all(np.diff(loose) < 0) and 0 < loose[-1] < 0.1 < loose[-2]
    for factory, slack in ((superquantile, 1e-9), (entropic_value_at_risk, 1e-4)):
        last = float(measure(factory(1 - 1e-11), _FIVE).value)
        assert last == pytest.approx(3.2, abs=slack)
        assert float(measure(factory(0.8), _FIVE).value) > 3.9


def test_tivar_is_not_coherent() -> None:
    """Two halves of no risk make one of 1; what it does keep is scale, and shifts that the floor follows."""
    one, other = np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    assert [_tivar(0.5, losses) for losses in (one, other, one + other)] == [0.0, 0.0, 1.0]
    losses = np.array([0.1, 0.4, 0.5, 2.0])
    value = _tivar(0.5, losses)
    assert _tivar(0.5, 3 * losses) == pytest.approx(3 * value, rel=1e-7)
    assert _tivar(0.5, losses + 2, 2.0) == pytest.approx(value + 2, rel=1e-7)
    assert _tivar(0.5, losses + 2) > value + 2.01


_LOSSES = st.lists(st.floats(0, 20, width=32), min_size=6, max_size=6)


@hypothesis.given(_LOSSES, _LOSSES)
def test_superquantiles_and_evar_are_coherent_where_tivar_is_not(
    one: list[float], other: list[float]
) -> None:
    """No sum is worse than the sum of the parts; the inverse superquantile is at most the quantile, CVaR at least."""
    table = np.array([one, other, np.add(one, other)])
    for risk in (_HALF, _ENTROPIC):
        value = measure(risk, table).value
        assert value[2] <= value[0] + value[1] + 1e-9
    low, middle, high = (measure(risk, table).value for risk in (_INVERSE, _QUANTILE, _HALF))
    assert np.all(low <= middle + 1e-9) and np.all(middle <= high + 1e-9)


_HALF, _ENTROPIC, _INVERSE, _QUANTILE = (
    factory(0.5) for factory in (superquantile, entropic_value_at_risk, inverse_superquantile, value_at_risk)
)


def test_inverse_superquantiles_bound_no_quantile() -> None:
    """Section 2.4: from the mean to the least loss, below the quantile from the first loss left out."""
    found = [
        [float(measure(factory(theta), _FIVE).value) for theta in (0.2, 0.4, 0.6, 0.79)]
        for factory in (inverse_superquantile, value_at_risk)
    ]
    np.testing.assert_allclose(found, [[1.5, 1.0, 0.5, 0.05 / 1.05], [3.0, 2.0, 1.0, 1.0]], atol=1e-12)
    assert float(measure(inverse_superquantile(0.0), _FIVE).value) == pytest.approx(3.2)
    assert float(measure(inverse_superquantile(0.9), _FIVE).value) == 0.0


# --- EVaR over parameters ----------------------------------------------------------------------------------------

_A, _X = np.random.default_rng(2).uniform(0.5, 2, 8), np.random.default_rng(3).normal(size=8)


def _losses(theta: float) -> np.ndarray:
    return _A / 2 * (theta - _X) ** 2


def _least(t: float) -> tuple[float, float]:
    """Minimiser and minimum of the tilted risk, by SciPy and the formula."""
    found = minimize_scalar(
        lambda theta: (logsumexp(t * _losses(theta)) - math.log(8)) / t,
        bounds=(-4, 4),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(found.x), float(found.fun)


@pytest.mark.parametrize("theta", [0.75, 0.5])
def test_evars_minimiser_is_tilted(theta: float) -> None:
    """Lemma 47: EVaR's slope vanishes at the minimiser of its tilt, and not at that of half of it."""
    best = minimize_scalar(
        lambda log: _least(math.exp(log))[1] - math.exp(-log) * math.log(theta),
        bounds=(-4, 4),
        method="bounded",
    )
    t = math.exp(best.x)
    (there, least), risk = _least(t), entropic_value_at_risk(theta)
    found = [measure(risk, _losses(at)) for at in (there, _least(t / 2)[0])]
    slopes = [
        float(part.gradient @ (_A * (at - _X)))
        for part, at in zip(found, (there, _least(t / 2)[0]), strict=True)
    ]
    assert abs(slopes[0]) < 1e-3 < 0.03 < abs(slopes[1])
    assert float(found[0].value) == pytest.approx(best.fun, abs=1e-7)
    assert least < float(found[0].value) - 0.05 and float(found[1].value) > float(found[0].value) + 1e-4
