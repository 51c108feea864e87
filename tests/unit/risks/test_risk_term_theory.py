"""TERM's theory of tails, quantiles and their minimisers; what is printed wrongly is shown to be wrong.

Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, theorems numbered as in the specification.  The theorems
assume nothing about how losses depend on parameters; here a set of parameters is a table with a row of losses for each.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, tilt
from scipy import optimize, special

from evenhand.risks import (
    entropic_value_at_risk,
    inverse_superquantile,
    kth_smallest,
    superquantile,
    tilted,
    tilted_value_at_risk,
    value_at_risk,
)
from evenhand.types import Risk

# SciPy declares no types of what they return.
logsumexp: Any = special.logsumexp
minimize_scalar: Any = optimize.minimize_scalar

_FIVE = np.array([[0.0, 1.0, 2.0, 3.0, 10.0]])
_T = np.concatenate([-np.logspace(1, -2, 16), np.logspace(-2, 1, 16)])


@jax.jit
def _tilts(t: jax.Array, table: jax.Array) -> jax.Array:
    return jax.vmap(lambda t: jax.vmap(tilted(t).value)(table))(t)


def _risks(t: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Tilted risks, ``(tilts, parameters)``."""
    with jax.enable_x64(True):
        return np.array(_tilts(jnp.asarray(t), jnp.asarray(table)))


@functools.cache
def _compiled(*risks: Risk) -> Any:
    return jax.jit(jax.vmap(lambda f: jnp.stack([risk.value(f) for risk in risks]), out_axes=1))


def _values(table: np.ndarray, *risks: Risk) -> np.ndarray:
    """Any risks, ``(risks, parameters)``."""
    with jax.enable_x64(True):
        return np.array(_compiled(*risks)(jnp.asarray(table)))


def _tail(table: np.ndarray, gamma: float) -> np.ndarray:
    """Definition 14 for each parameter: the share of losses of at least ``gamma``."""
    return np.mean(table >= gamma, axis=1)


def _bounds(t: np.ndarray, risks: np.ndarray, gamma: float, floor: float) -> np.ndarray:
    """Theorem 36's right side for each tilt."""
    return np.expm1(t * (risks - floor)) / np.expm1(t * (gamma - floor))


def _ladder(table: np.ndarray, gamma: float, floor: float | None = None) -> list[Any]:
    """``Q0`` to ``Q3`` of theorem 37 with the tilts of ``_T``."""
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
    table = np.random.default_rng(473).exponential(size=(6, 4))
    gamma = float(np.quantile(table, 0.5))
    least, along, chosen, bound = _ladder(table, gamma)
    assert (least, along, chosen) == (0.25, 0.5, 0.75) and 0.75 < bound < 0.76
    assert _ladder(table, gamma, floor=table.min() + 0.1)[3] < 0.75 - 1e-3


_THETA = np.round(np.linspace(-0.5, 1.5, 401), 6)
_THREE = np.stack([(_THETA + 0.2) ** 2, (_THETA - 0.2) ** 2 + 0.1, (_THETA - 1.2) ** 2], axis=1)
"""The three functions of figure 7.2."""


def test_tails_of_three_functions() -> None:
    """By hand: at most one function below the least median, 0.105625, two up to 0.49; approximation 1 is not exact."""
    for gamma, least in ((0.01, 2 / 3), (0.1056, 2 / 3), (0.1057, 1 / 3), (0.3, 1 / 3), (0.4899, 1 / 3)):
        assert _ladder(_THREE, gamma)[0] == pytest.approx(least, abs=1e-12), gamma
    # The bound's minimiser has the least tail at 0.3, but not at 0.2.
    np.testing.assert_allclose([_ladder(_THREE, gamma)[2] for gamma in (0.3, 0.2)], [1 / 3, 2 / 3])


_RANKS = (tilted(-math.inf), kth_smallest(1), kth_smallest(2), kth_smallest(3), tilted(math.inf))


@pytest.mark.parametrize("table", [_THREE, np.random.default_rng(1).normal(size=_THREE.shape)])
def test_the_least_tail_is_1_below_the_least_loss_and_0_above_the_least_worst_loss(table: np.ndarray) -> None:
    """Lemma 45, equation 7.69: the thresholds are the least of ranks 1 and n; and T8, rank (n + 1) / 2 the median."""
    low, first, middle, last, high = _values(table, *_RANKS)
    np.testing.assert_array_equal([first, middle, last], [low, np.median(table, axis=1), high])
    assert np.any(first < middle - 0.1), "rank (n - 1) / 2, as printed, is not the median"
    for end, below, above in ((low.min(), (1, 1), (0, 0.9)), (high.min(), (0.1, 1), (0, 0))):
        for gamma, (least, most) in ((end - 1e-9, below), (end + 1e-9, above)):
            assert least <= _tail(table, float(gamma)).min() <= most


def test_least_quantiles_undo_least_tails() -> None:
    """Lemma 30, corrected: the infimum of the thresholds with that tail, where the tail itself is larger already."""
    gammas = np.linspace(0.005, 0.5, 100)
    tails = np.array([_tail(_THREE, gamma).min() for gamma in gammas])
    third, two_thirds = np.min(_values(_THREE, value_at_risk(1 / 3), value_at_risk(2 / 3)), axis=1)
    for tail, least, infimum in ((1 / 3, third, 0.105625), (2 / 3, two_thirds, 0.0)):
        assert least == pytest.approx(infimum, abs=1e-12)
        assert 0 < gammas[np.isclose(tails, tail)].min() - least < 0.0051
    assert _tail(_THREE, 0.105625).min() == pytest.approx(2 / 3), "as printed, two_thirds would be 0.105625"


# --- TiVaR -------------------------------------------------------------------------------------------------------


def _tivar(theta: float, losses: np.ndarray, floor: float = 0.0) -> float:
    with jax.enable_x64(True):
        return float(tilted_value_at_risk(theta, floor=floor).value(jnp.asarray(losses)))


@pytest.mark.parametrize("floor", [-1.0, 0.4])
def test_tivar_is_where_the_best_tail_bound_is_its_fraction(floor: float) -> None:
    """Equation 7.202; with ``exp(-F t)``, as printed (T5), it is another, and for ``F < 0`` no bound of a tail."""
    losses = floor + np.array([0.05, 0.3, 0.9, 1.0, 2.5])
    t = np.concatenate([-np.logspace(1.5, -3, 4000), np.logspace(-3, 1.5, 4000)])
    risks = (logsumexp(np.outer(t, losses), axis=1) - math.log(5)) / t
    for theta in (0.6, 0.4):
        gamma = _tivar(theta, losses, floor)
        assert np.min(_bounds(t, risks, gamma, floor)) == pytest.approx(theta, abs=1e-5)
        assert abs(np.min(_bounds(t, risks, gamma, -floor)) - theta) > 0.02
    # All losses are at least the smallest, which the reversed sign denies.
    right, wrong = (np.min(_bounds(t, risks, float(losses.min()), end)) for end in (floor, -floor))
    assert right >= 1 and (floor > 0 or wrong < 1 - 1e-3)


_ENTROPIC = entropic_value_at_risk(0.6)


def test_lower_floors_loosen_tivar_up_to_evar() -> None:
    """Section 3.10: EVaR is what no floor at all gives, and floors near the losses are well below it."""
    found = [_tivar(0.6, _FIVE[0], floor) for floor in (0.0, -1.0, -3.0, -200.0)]
    entropic = float(_values(_FIVE, _ENTROPIC)[0, 0])
    assert np.all(np.diff(found[:3]) > 0.02) and found[2] < entropic - 1e-3
    assert found[3] == pytest.approx(entropic, abs=1e-9)


def test_large_fractions_lead_to_the_least_loss() -> None:
    """Section 10.4, and slowly if the floor is below it, where a superquantile leads to the mean, 3.2."""
    loose = [_tivar(theta, _FIVE[0], -1.0) for theta in (0.99, 0.9999, 0.999999, 1.0)]
    assert np.all(np.diff(loose) < -0.05) and loose[0] < 1 and loose[-1] == 0.0


def test_tivar_is_not_coherent() -> None:
    """Two losses of risk 0 sum to one of risk 1; it keeps scale, and shifts that the floor follows."""
    one, other = np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    assert [_tivar(0.5, part) for part in (one, other)] == [0.0, 0.0]
    assert _tivar(0.5, one + other) == pytest.approx(1.0, abs=1e-9)
    losses = np.array([0.1, 0.4, 0.5, 2.0])
    value = _tivar(0.5, losses)
    assert _tivar(0.5, 3 * losses) == pytest.approx(3 * value, rel=1e-7)
    assert _tivar(0.5, losses + 2, 2.0) == pytest.approx(value + 2, rel=1e-7)
    assert _tivar(0.5, losses + 2) > value + 2.01


_SIX = st.lists(st.floats(0, 20, width=32), min_size=6, max_size=6)
_COHERENT = (superquantile(0.6), _ENTROPIC)
_ORDERED = (inverse_superquantile(0.6), value_at_risk(0.6), superquantile(0.6))


@hypothesis.given(_SIX, _SIX)
def test_superquantiles_and_evar_are_coherent(one: list[float], other: list[float]) -> None:
    """No sum is worse than the sum of its parts; and inverse superquantiles lie below quantiles, others above."""
    table = np.array([one, other, np.add(one, other)])
    values = _values(table, *_COHERENT, *_ORDERED)
    assert np.all(values[:2, 2] <= values[:2, 0] + values[:2, 1] + 1e-9)
    assert np.all(np.diff(values[2:], axis=0) >= -1e-9)


def test_inverse_superquantiles_bound_no_quantile() -> None:
    """Section 2.4, by hand: the mean of the lowest 2.4 of six losses, the third of them, the mean of the worst 3.6."""
    table = np.tile(np.arange(6.0), (3, 1))
    found = _values(table, *_COHERENT, *_ORDERED)[2:, 0]
    np.testing.assert_allclose(found, [(0 + 1 + 0.4 * 2) / 2.4, 2.0, (5 + 4 + 3 + 0.6 * 2) / 3.6], atol=1e-12)


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


def _entropic(theta: float, s: float) -> float:
    """What lemma 47 has least over ``s = 1 / t``."""
    return _least(1 / s)[1] - s * math.log(theta)


def test_evars_minimiser_is_tilted() -> None:
    """Lemma 47: EVaR's slope vanishes at the minimiser of its best tilt, and not at that of half the tilt."""
    best = minimize_scalar(
        lambda s: _entropic(0.6, s), bounds=(0.01, 50), method="bounded", options={"xatol": 1e-9}
    )
    (best_theta, least), (other_theta, _) = _least(1 / best.x), _least(0.5 / best.x)
    found = measure(_ENTROPIC, [_losses(best_theta), _losses(other_theta)])
    slopes = np.sum(found.gradient * (_A * (np.array([[best_theta], [other_theta]]) - _X)), axis=1)
    assert abs(slopes[0]) < 1e-5 < 0.02 < abs(slopes[1])
    assert found.value[0] == pytest.approx(best.fun, abs=1e-9)
    assert least < found.value[0] - 0.05 and found.value[1] > found.value[0] + 1e-4


def test_evars_best_tilt_may_be_none_and_its_convexity_is_not_strong() -> None:
    """Lemma 47 assumes too much, convexity in ``1 / t`` does; and for small fractions its best tilt is infinite."""
    s = np.linspace(0.05, 40, 100)
    least = np.array([_least(1 / each)[1] for each in s])
    bends = np.diff(least, 2) / (s[1] - s[0]) ** 2
    assert np.all(bends >= -1e-6) and bends.max() > 0.1 and bends[-20:].max() < 1e-3 * bends.max()
    in_tilt = np.array([_entropic(0.6, 1 / t) for t in np.linspace(0.5, 20, 40)])
    assert np.diff(in_tilt, 2).min() < -1e-4, "not convex in the tilt itself"
    # Two losses tie where the worst is least: up to 2 of 8 the bound falls all the way to that.
    assert np.all(np.diff(least - s * math.log(0.125)) > 0)
    table = np.stack([_losses(theta) for theta in np.linspace(-3, 3, 61)])
    np.testing.assert_allclose(
        _values(table, entropic_value_at_risk(0.125))[0], table.max(axis=1), rtol=1e-12
    )


# --- entropies, and constants ------------------------------------------------------------------------------------


@hypothesis.given(
    st.lists(st.floats(-2, 2), min_size=5, max_size=5), st.lists(st.floats(0.05, 1), min_size=5, max_size=5)
)
def test_tilts_of_any_distribution_regularise_its_mean(losses: list[float], masses: list[float]) -> None:
    """Lemma 27, beyond the uniform distribution: ``R = E f + KL(p || w) / t``; and the divergence is not 0."""
    p, t = normal(masses), np.array([-3.0, -0.5, 0.5, 3.0])
    value, weights = tilt(t, losses, p)
    divergence = np.sum(p * np.log(p / weights), axis=1)
    np.testing.assert_allclose(value, p @ np.array(losses) + divergence / t, atol=1e-9)
    assert np.ptp(losses) < 0.5 or np.all(divergence > 1e-5)


def test_cross_entropies_of_mixtures() -> None:
    """T4: ``max H(q || w(-1)) - KL(q || u) / t - log sum e^-f`` is the risk; with ``w(1)``, as printed, it is not."""
    f, t, q = _FIVE[0] / 4, 1.5, np.random.default_rng(4).dirichlet(np.ones(5), 500)
    (risk, _, _, opposite), (best, w, printed, _) = tilt([t, -1.0, 1.0, -t], f)

    def dual(q: np.ndarray, w: np.ndarray) -> np.ndarray:
        return -q @ np.log(w) - np.sum(q * np.log(5 * q), axis=-1) / t

    constant = logsumexp(-f)
    assert dual(best, w) - constant == pytest.approx(risk, abs=1e-12)
    assert np.all(dual(q, w) - constant <= risk)
    assert np.all(dual(q, printed) <= logsumexp(f) - opposite) and logsumexp(f) - opposite > risk + 0.1


def test_a_constant_added_to_one_loss_moves_only_tilted_minimisers() -> None:
    """Section 2.2: the mean's minimiser does not see them; a constant of all losses moves neither."""
    each, same = (_THREE + shift for shift in (np.array([0.0, 0.0, 0.5]), 0.5))
    plain, *moved = (_THETA[np.argmin(_risks(_T, table)[-1])] for table in (_THREE, each, same))
    means = [_THETA[np.argmin(table.mean(axis=1))] for table in (_THREE, each, same)]
    assert means == [0.4, 0.4, 0.4]
    assert moved[1] == plain < moved[0] - 0.1
