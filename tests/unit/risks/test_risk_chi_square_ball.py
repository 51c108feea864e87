"""The chi-square ball against its dual, SciPy's optimiser, a bisection and the projection of the reference code."""

from __future__ import annotations

import functools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from risk_measures import measure, normal
from scipy.optimize import minimize, minimize_scalar

import evenhand as eh
from evenhand.risks import chi_square_ball, mean, squared_superquantile, tilted

_FIVE = (1.0, 2.0, 3.0, 4.0, 5.0)
_ball = functools.cache(chi_square_ball)  # the same risk is the same compiled program
_RADII = (1e-3, 0.1, 0.6, 2.0, 8.0)


@pytest.mark.parametrize(
    ("rho", "weights"),
    [
        (0.0, (0.2, 0.2, 0.2, 0.2, 0.2)),
        (0.0625, (0.1, 0.15, 0.2, 0.25, 0.3)),
        (0.25, (0, 0.1, 0.2, 0.3, 0.4)),
        (17 / 36, (0, 0, 1 / 6, 1 / 3, 1 / 2)),
        (47 / 81, (0, 0, 1 / 9, 1 / 3, 5 / 9)),
        (8 / 9, (0, 0, 0, 1 / 3, 2 / 3)),
        (2.0, (0, 0, 0, 0, 1)),
        (8e307, (0, 0, 0, 0, 1)),
    ],
)
def test_five_losses_by_hand(rho: float, weights: tuple[float, ...]) -> None:
    """Weights in proportion to ``max(f - eta, 0)`` for ``eta`` of -1, 1, 2, 2.5, 3 and 4, and the radii they have."""
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 4e-7)):
        risk = measure(_ball(rho), _FIVE, dtype=dtype)
        np.testing.assert_allclose(risk.weights, weights, atol=tolerance)
        assert risk.value == pytest.approx(np.dot(weights, _FIVE), rel=tolerance)


def _cases(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    f, p = rng.normal(size=(count, 7)), rng.uniform(0.05, 2.0, (count, 7))
    f[::4] = np.round(f[::4])
    f[::9, 1:] = f[::9, :1] - np.arange(6) // 3  # the largest loss is shared
    p[::5, 2] = 0.0
    return f, p


def _by_bisection(f: np.ndarray, p: np.ndarray, rho: float) -> np.ndarray:
    """The weights of every case from a bisection on the threshold, whose ratios vary more the higher it is."""
    p, f = normal(p), np.where(p > 0, f, -np.inf)
    top = f.max(axis=1)
    share = np.sum(p * (f == top[:, None]), axis=1)
    # The threshold as a distance from the largest loss: tiny ones are floats too.
    low, high = np.full(len(f), 1e-15), np.full(len(f), 1e4)

    def ratios(distance: np.ndarray) -> np.ndarray:
        above = np.maximum(f - top[:, None] + distance[:, None], 0)
        return above / np.sum(p * above, axis=1, keepdims=True)

    for _ in range(200):
        middle = np.sqrt(low * high)
        wide = np.sum(p * ratios(middle) ** 2, axis=1) > 1 + 2 * rho
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    tied = p * (f == top[:, None]) / share[:, None]
    return np.where((1 / share <= 1 + 2 * rho)[:, None], tied, p * ratios(low))


@pytest.mark.parametrize("rho", _RADII)
def test_weights_equal_bisection_and_the_value_equals_the_dual(rho: float) -> None:
    """Random cases, with ties and absent losses; the dual is ``min eta + sqrt((1 + 2 rho) E (f - eta)_+^2)``."""
    f, p = _cases(0, 200)
    risk, q = measure(_ball(rho), f, p), _by_bisection(f, p, rho)
    np.testing.assert_allclose(risk.weights, q, atol=2e-8)
    np.testing.assert_allclose(risk.gradient, risk.weights, atol=1e-13)
    np.testing.assert_allclose(risk.value, np.sum(q * f, axis=1), atol=1e-8)
    for case, (losses, masses) in enumerate(zip(f[:40], normal(p)[:40], strict=True)):

        def dual(eta: float, f: np.ndarray = losses, p: np.ndarray = masses) -> float:
            return eta + math.sqrt((1 + 2 * rho) * (p @ np.maximum(f - eta, 0) ** 2))

        lowest = losses.min() - 40 * np.ptp(losses) - 1
        least: Any = minimize_scalar(
            dual, bounds=(lowest, losses.max() + 1), method="bounded", options={"xatol": 1e-9}
        )
        assert risk.value[case] == pytest.approx(least.fun, abs=1e-6)


def test_no_weights_in_the_ball_have_a_larger_mean() -> None:
    """SciPy's sequential quadratic programs over the ball; they reach the value and do not pass it."""
    f, p = _cases(1, 12)
    for rho in (0.1, 0.6):
        values = measure(_ball(rho), f, p).value
        for losses, masses, value in zip(f, normal(p), values, strict=True):
            losses, masses = losses[masses > 0], masses[masses > 0]
            ball = {
                "type": "ineq",
                "fun": lambda q, p=masses, rho=rho: rho - 0.5 * np.sum((q - p) ** 2 / p),
            }
            simplex = {"type": "eq", "fun": lambda q: q.sum() - 1}
            best = minimize(
                lambda q, f=losses: -q @ f,
                masses,
                bounds=[(0, 1)] * len(losses),
                constraints=[ball, simplex],
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 300},
            )
            assert -best.fun == pytest.approx(value, abs=2e-6)


def test_a_small_radius_adds_standard_deviations() -> None:
    """``mean + sqrt(2 rho) std`` while no weight is 0, down to radii that 1 + 2 rho would round away in float32."""
    f, p = _cases(2, 20)
    p = normal(p)
    centre = np.sum(p * f, axis=1)
    deviation = np.sqrt(np.sum(p * (f - centre[:, None]) ** 2, axis=1))
    for rho in (1e-3, 1e-10, 1e-300):
        value = measure(_ball(rho), f, p).value
        np.testing.assert_allclose(value - centre, math.sqrt(2 * rho) * deviation, atol=1e-14, rtol=1e-5)
    narrow = measure(_ball(1e-8), np.subtract(_FIVE, 3), dtype=np.float32)
    assert narrow.value == pytest.approx(2e-4, rel=1e-3)
    np.testing.assert_allclose(measure(_ball(1e-300), _FIVE, dtype=np.float32).weights, 0.2, rtol=1e-6)
    wide = measure(_ball(2.0), f, p).value
    assert np.all(wide < centre + 2 * deviation - 1e-2)


def test_the_ends_are_the_mean_and_the_largest_loss() -> None:
    """Identities: the mean at 0, the largest from ``(1/P - 1) / 2`` on with ties shared, neither in between."""
    f, p = _cases(3, 40)
    for risk, rho in ((mean(), 0.0), (tilted(math.inf), 1e4)):
        same = measure(_ball(rho), f, p)
        np.testing.assert_allclose(same.weights, measure(risk, f, p).weights, atol=1e-13)
        assert np.abs(measure(_ball(0.3), f, p).weights - same.weights).max() > 0.1
    edge = (1 / 0.3 - 1) / 2
    shared = [measure(_ball(edge * by), [5.0, 1, 5, 2], [1.0, 5, 2, 2]).weights for by in (1.001, 0.9)]
    np.testing.assert_allclose(shared[0], [1 / 3, 0, 2 / 3, 0], atol=1e-13)
    assert shared[1][3] > 1e-3
    for kind in (
        np.float64,
        np.float32,
    ):  # numbers that are exact in binary: the largest loss is reached exactly
        exactly = measure(_ball(1.5), [1.0, 2.0, 3.0, 4.0], dtype=kind)
        assert exactly.weights.tolist() == [0, 0, 0, 1] and exactly.value == 4


def test_without_caps_the_squared_superquantile_has_the_ball_of_its_penalty() -> None:
    """One penalty matches the radius of one vector of losses; with caps, or for other losses, the two sets differ."""
    ball = measure(_ball(0.25), _FIVE).weights
    np.testing.assert_allclose(measure(squared_superquantile(0.4, 50.0), _FIVE).weights, ball, atol=1e-9)
    assert np.abs(measure(squared_superquantile(0.8, 50.0), _FIVE).weights - ball).max() > 0.1
    twice = np.multiply(2, _FIVE)
    np.testing.assert_allclose(measure(_ball(0.25), twice).weights, ball, atol=1e-13)
    assert np.abs(measure(squared_superquantile(0.4, 50.0), twice).weights - ball).max() > 0.05


def _projection(f: np.ndarray, rho: float) -> np.ndarray:
    """The point of the ball of equal base weights that is closest to ``f``: ``max(f - eta, 0) / (1 + lam n)``."""

    def simplex(shrink: float) -> np.ndarray:
        low, high = f.min() - shrink, f.max()
        for _ in range(200):
            eta = (low + high) / 2
            low, high = (eta, high) if np.maximum(f - eta, 0).sum() > shrink else (low, eta)
        return np.maximum(f - low, 0) / shrink

    low, high = 1.0, 1e9
    if np.sum((len(f) * simplex(1.0) - 1) ** 2) <= 2 * len(f) * rho:
        return simplex(1.0)
    for _ in range(200):
        shrink = math.sqrt(low * high)
        far = np.sum((len(f) * simplex(shrink) - 1) ** 2) > 2 * len(f) * rho
        low, high = (shrink, high) if far else (low, shrink)
    return simplex(high)


def test_the_reference_projects_losses_to_the_same_weights_where_the_ball_is_active() -> None:
    """Losses a few units apart; scaled by 0.01 they project to a point inside the ball, and the maximiser stays."""
    f = np.random.default_rng(4).uniform(0, 5, (5, 12))
    for rho in (0.2, 1.0):
        q = measure(_ball(rho), f).weights
        projected = np.array([_projection(losses, rho) for losses in f])
        np.testing.assert_allclose(projected, q, atol=1e-7)
        np.testing.assert_allclose(measure(_ball(rho), 0.01 * f).weights, q, atol=1e-12)
        assert np.abs(_projection(0.01 * f[0], rho) - q[0]).max() > 0.05


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_float32_is_exact_for_losses_of_any_size(rho: float) -> None:
    """Losses 1e-6 apart, shifted by 1e4, huge, and beside an outlier: against float64 on the same floats."""
    steps = np.random.default_rng(5).integers(0, 60, 30).astype(np.float32)
    scales = (steps * 1e-6, 1.0 + steps * 2.0**-20, 1e4 + steps / 512, steps * 1e33, steps * 1e-33)
    losses = np.array(scales, np.float32)
    exact, narrow = (measure(_ball(rho), losses, dtype=kind) for kind in (np.float64, np.float32))
    np.testing.assert_allclose(narrow.weights, exact.weights, atol=1e-6)
    np.testing.assert_allclose(narrow.value, exact.value, rtol=1e-6)
    assert np.all(exact.weights.max(axis=1) > 1.5 / 30)
    # An outlier is r standard deviations of its own indicator above the mean.
    for outlier in (1e6, 1e30):
        weights = measure(_ball(rho), np.append(steps[:29], outlier), dtype=np.float32).weights
        assert weights[-1] == pytest.approx((1 + math.sqrt(2 * rho * 29)) / 30, rel=1e-3)
    same = measure(_ball(rho), np.full(30, 1e4), np.arange(30.0), dtype=np.float32).weights
    np.testing.assert_allclose(same, np.arange(30) / 435, rtol=1e-6)


def test_many_losses_in_float32() -> None:
    """Against float64; most of the losses get no weight."""
    f = np.random.default_rng(6).exponential(size=100_000).astype(np.float32)
    exact, narrow = (measure(_ball(3.0), f, dtype=kind) for kind in (np.float64, np.float32))
    np.testing.assert_allclose(narrow.weights, exact.weights, atol=2e-9)
    assert 0.01 < np.mean(exact.weights > 0) < 0.5
    assert narrow.value == pytest.approx(exact.value, rel=1e-5)


_LOSSES = st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5)


@hypothesis.given(_LOSSES, _LOSSES, st.floats(0.01, 1000), st.sampled_from((0.3, 2.0)))
def test_the_risk_is_coherent(f: list[float], g: list[float], scale: float, rho: float) -> None:
    """Positively homogeneous, subadditive and within the ball, which is reached unless the largest losses take all."""
    risk = _ball(rho)
    both, one, other, scaled = measure(risk, np.array([np.add(f, g), f, g, np.multiply(scale, f)])).value
    assert both <= one + other + 1e-9
    assert scaled == pytest.approx(scale * one, rel=1e-9, abs=1e-9)
    q = measure(risk, f).weights
    distance = 0.1 * np.sum((5 * q - 1) ** 2)
    assert distance <= rho + 1e-9
    tops = np.max(f) - np.asarray(f) <= 1e-9 * np.ptp(f)
    if 5 / tops.sum() > 1 + 2 * rho and np.ptp(f) > 1e-9:
        assert distance == pytest.approx(rho, rel=1e-6)


def test_wrong_radii_are_refused() -> None:
    """A sentence with the number."""
    for rho in (-0.1, math.inf, math.nan):
        with pytest.raises(eh.EvenhandError, match=f"chi_square_ball.rho={rho}"):
            chi_square_ball(rho)


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_loss_that_is_no_number_makes_the_value_none(lost: float) -> None:
    """A model that diverged must not look perfect."""
    losses: Any = np.array([lost, 1.0], np.float32)
    assert np.isnan(eh.risks.chi_square_ball(0.5).value(losses))
