"""Smoothed superquantiles against bisection, breakpoints and the numbers of their sources."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, tilt, value_of
from scipy import optimize

import evenhand as eh
from evenhand.risks import smoothed_superquantile, squared_superquantile, superquantile

brentq: Any = optimize.brentq  # SciPy declares no type of what it returns

_FIVE = (1.0, 2.0, 3.0, 4.0, 5.0)
_SOFT = {
    (0.4, 1.0): ((0.0160293, 0.0435722, 0.1184414, 0.3219571, 0.5), 3.8038041),
    (0.4, 0.1): ((0.0, 1e-9, 2.27e-5, 0.4999773, 0.5), 4.4083732),
    (0.5, 0.5): ((0.0031752, 0.0234621, 0.1733627, 0.4, 0.4), 3.9370343),
    (0.8, 2.0): ((0.0943852, 0.1556148, 0.25, 0.25, 0.25), 3.2907514),
    (0.2, 1.0): ((0.0116562, 0.0316849, 0.0861285, 0.2341217, 0.6364086), 3.8424765),
    (0.05, 1.0): ((0.0116562, 0.0316849, 0.0861285, 0.2341217, 0.6364086), 3.8424765),
}


@pytest.mark.parametrize(("theta", "nu"), list(_SOFT))
def test_entropic_smoothing_of_five_losses(theta: float, nu: float) -> None:
    """The numbers of the source's specification."""
    found = measure(smoothed_superquantile(theta, nu), _FIVE)
    weights, value = _SOFT[theta, nu]
    np.testing.assert_allclose(found.weights, weights, atol=6e-8)
    assert found.value == pytest.approx(value, abs=6e-8)


def test_entropic_smoothing_of_weighted_losses() -> None:
    """The weighted example of the source's specification."""
    found = measure(smoothed_superquantile(0.4, 0.5), [1.0, 2.0, 3.0], [0.5, 0.3, 0.2])
    np.testing.assert_allclose(found.weights, [0.0920228, 0.4079772, 0.5], atol=6e-8)
    assert found.value == pytest.approx(2.1940701, abs=6e-8)


@pytest.mark.parametrize(
    ("nu", "weights", "value"),
    [
        (1.0, (0, 0, 0, 0.5, 0.5), 4.47),
        (10.0, (0, 0, 0, 0.5, 0.5), 4.2),
        (50.0, (0, 0.1, 0.2, 0.3, 0.4), 3.5),
    ],
)
def test_squared_smoothing_of_five_losses(nu: float, weights: tuple[float, ...], value: float) -> None:
    """The numbers of the source's specification."""
    found = measure(squared_superquantile(0.4, nu), _FIVE)
    np.testing.assert_allclose(found.weights, weights, atol=1e-12)
    assert found.value == pytest.approx(value, abs=1e-12)


def _cases(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    f, p = rng.normal(size=(count, 7)), rng.uniform(0.05, 2.0, (count, 7))
    f[::4] = np.round(f[::4])
    p[::5, 2] = 0.0
    return f, p


def _by_bisection(f: np.ndarray, p: np.ndarray, theta: float, nu: float) -> np.ndarray:
    """The weights of every case from a bisection on the threshold."""
    p = normal(p)

    def of(mu: np.ndarray) -> np.ndarray:
        return p * np.exp(np.minimum((f - mu[:, None]) / nu, -math.log(theta)))

    low, high = f.min(axis=1) - 50 * nu, f.max(axis=1) + 50 * nu
    for _ in range(200):
        middle = (low + high) / 2
        heavy = of(middle).sum(axis=1) > 1
        low, high = np.where(heavy, middle, low), np.where(heavy, high, middle)
    return of((low + high) / 2)


@pytest.mark.parametrize(("theta", "nu"), [(0.1, 0.3), (0.35, 0.05), (0.35, 1.0), (0.6, 0.3), (0.9, 5.0)])
def test_entropic_smoothing_equals_bisection(theta: float, nu: float) -> None:
    """2000 random weighted cases in all, some with ties, some with an absent loss; Danskin's gradient."""
    f, p = _cases(0, 400)
    found, pi = measure(smoothed_superquantile(theta, nu), f, p), _by_bisection(f, p, theta, nu)
    np.testing.assert_allclose(found.weights, pi, atol=1e-11)
    np.testing.assert_allclose(found.gradient, pi, atol=1e-11)
    ratio = np.where(pi > 0, pi / np.where(p > 0, normal(p), 1.0), 1.0)
    np.testing.assert_allclose(found.value, np.sum(pi * (f - nu * np.log(ratio)), axis=1), atol=1e-11)


@pytest.mark.parametrize("theta", [0.35])
def test_smoothing_loses_little(theta: float) -> None:
    """The sandwich ``0 <= S - S^nu <= nu log min(n, 1 / theta)`` for equal weights; the limits in ``nu``."""
    f, _ = _cases(1, 100)
    sharp = measure(superquantile(theta), f)
    for nu in (0.1, 3.0):
        lost = sharp.value - value_of(smoothed_superquantile(theta, nu), f)
        assert lost.min() >= -1e-12 and lost.max() <= nu * math.log(min(7, 1 / theta)) + 1e-12
        assert nu < 1 or lost.max() > 1e-2
    f = f[1::4]  # no ties
    sharp = measure(superquantile(theta), f)
    for factory in (smoothed_superquantile, squared_superquantile):
        np.testing.assert_allclose(measure(factory(theta, 1e-7), f).weights, sharp.weights, atol=1e-9)
        np.testing.assert_allclose(measure(factory(theta, 1e9), f).weights, 1 / 7, atol=1e-7)


@pytest.mark.parametrize("factory", [smoothed_superquantile, squared_superquantile])
def test_weak_smoothing_is_exact_in_float32(factory: Any) -> None:
    """The sharp weights: thresholds next to the losses are coarser than the strength."""
    for nu in (1e-2, 1e-7):
        found = measure(factory(0.3, nu), [1000.0, 1001.0, 1002.0, 1003.0, 1010.0], dtype=np.float32)
        np.testing.assert_allclose(found.weights, [0, 0, 0, 1 / 3, 2 / 3], atol=1e-6)


@pytest.mark.parametrize("nu", [1e2, 1e4, 1e6, 1e9, 1e30])
def test_strong_smoothing_is_exact_in_float32(nu: float) -> None:
    """The mean and half the variance over the strength, up to terms of third order."""
    f, p = _cases(6, 20)
    q = normal(p)
    mean = np.sum(q * f, axis=1)
    variance = np.sum(q * np.square(f - mean[:, None]), axis=1)
    found = value_of(smoothed_superquantile(0.5, nu), f, p, dtype=np.float32)
    np.testing.assert_allclose(found, mean + variance / (2 * nu), atol=2e-6 if nu > 1e3 else 2e-4)
    assert nu > 1e2 or np.abs(found - mean).max() > 3e-3


def test_without_caps_smoothing_is_a_tilt() -> None:
    """The entropic risk of inverse temperature ``1 / nu``, once the fraction is at most the least weight."""
    f, p = np.random.default_rng(2).normal(size=5), np.array([1.0, 2.0, 1.5, 1.0, 3.0])
    value, weights = tilt([1 / 0.7], f, p)
    found = measure(smoothed_superquantile(1 / 8.5, 0.7), f, p)
    assert found.value == pytest.approx(value[0], rel=1e-12)
    np.testing.assert_allclose(found.weights, weights[0], atol=1e-12)
    assert np.abs(measure(smoothed_superquantile(0.5, 0.7), f, p).weights - weights[0]).max() > 1e-2


def test_the_whole_population_keeps_its_weights() -> None:
    """No smoothing where there is nothing to choose: a fraction of 1."""
    f, p = _cases(3, 5)
    for factory in (smoothed_superquantile, squared_superquantile):
        found = measure(factory(1.0, 0.3), f, p)
        np.testing.assert_allclose(found.weights, normal(p), atol=1e-12)
        np.testing.assert_allclose(found.value, np.sum(normal(p) * np.where(p > 0, f, 0), axis=1), atol=1e-12)


@pytest.mark.parametrize(("theta", "nu"), [(0.35, 2.0), (0.35, 60.0), (0.8, 20.0)])
def test_squared_smoothing_equals_a_root(theta: float, nu: float) -> None:
    """Brent's root of the sum of weights, of random weighted cases; and no nearby feasible weights are better."""
    f, p = _cases(4, 60)
    found = measure(squared_superquantile(theta, nu), f, p)
    rng = np.random.default_rng(5)
    for case, (losses, masses) in enumerate(zip(f, normal(p), strict=True)):
        n = int(np.count_nonzero(masses))

        def of(eta: float, losses: np.ndarray = losses, q: np.ndarray = masses, n: int = n) -> np.ndarray:
            return q * np.clip(1 + n**2 / nu * (losses - eta), 0, 1 / theta)

        pi = of(brentq(lambda eta, of=of: of(eta).sum() - 1, -1e3, 1e3, xtol=1e-14))
        np.testing.assert_allclose(found.weights[case], pi, atol=1e-9)
        present = masses > 0

        def gain(pi: np.ndarray, losses: np.ndarray = losses, q: np.ndarray = masses, n: int = n) -> float:
            present = q > 0
            return float(pi @ losses - nu / (2 * n**2) * np.sum((pi - q)[present] ** 2 / q[present]))

        assert found.value[case] == pytest.approx(gain(pi), abs=1e-9)
        nearby = 0.9 * pi + 0.1 * normal(np.where(present, masses * rng.uniform(size=7), 0))
        if (nearby <= masses / theta).all():
            assert gain(nearby) < gain(pi)
    np.testing.assert_allclose(found.gradient, found.weights, atol=1e-13)


@pytest.mark.parametrize("factory", [smoothed_superquantile, squared_superquantile])
def test_wrong_strengths_and_fractions_are_refused(factory: Any) -> None:
    """Sentences with the name and the number."""
    for nu in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(eh.EvenhandError, match=f"{factory.__name__}.nu={nu}"):
            factory(0.5, nu)
    for theta in (-0.1, 2.0):
        with pytest.raises(eh.EvenhandError, match=f"{factory.__name__}.theta={theta}"):
            factory(theta, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factory", [smoothed_superquantile, squared_superquantile])
def test_tails_below_every_weight_are_those_of_the_smallest(factory: Any, dtype: type) -> None:
    """No cap binds any more: at 0, and at fractions by which no float32 can be divided."""
    p = [1.0, 2.0, 0.0, 3.0, 4.0]
    nu = 1.0 if factory is smoothed_superquantile else 20.0
    least = measure(factory(0.1, nu), _FIVE, p, dtype=dtype)
    for theta in (0.0, 1e-42, 1e-30, 1e-7):
        found = measure(factory(theta, nu), _FIVE, p, dtype=dtype)
        np.testing.assert_allclose(found.weights, least.weights, atol=1e-6)
        assert found.value == pytest.approx(least.value, rel=1e-6)
    far = measure(factory(0.9, nu), _FIVE, p, dtype=dtype)
    assert np.abs(far.weights - least.weights).max() > 0.01


@pytest.mark.parametrize("far", [1e6, 1e8, 1e30])
def test_one_loss_far_off_does_not_blur_the_others(far: float) -> None:
    """An outlier's loss is capped; the others get what they get beside a loss of 50, which is capped too."""
    honest = np.sort(np.random.default_rng(0).uniform(0, 3, 20))
    for make in (eh.risks.smoothed_superquantile, eh.risks.squared_superquantile):
        near, with_outlier = (
            make(0.5, 0.1).weights(jnp.asarray(np.append(honest, loss))) for loss in (50.0, far)
        )
        np.testing.assert_allclose(with_outlier, near, atol=1e-6)
        assert float(jnp.max(with_outlier)) <= 1 / (0.5 * 21) + 1e-6


def test_almost_no_smoothing_of_many_losses_is_the_superquantile() -> None:
    losses = jnp.asarray(np.random.default_rng(1).uniform(0, 3, 300))
    exact = eh.risks.superquantile(0.9).value(losses)
    for nu in (1e-6, 1e-9, 2e-37):
        np.testing.assert_allclose(eh.risks.smoothed_superquantile(0.9, nu).value(losses), exact, rtol=1e-6)
        np.testing.assert_allclose(eh.risks.squared_superquantile(0.9, nu).value(losses), exact, rtol=1e-5)


def test_a_loss_of_weight_zero_makes_no_nan_on_the_way() -> None:
    risk, losses = eh.risks.smoothed_superquantile(0.5, 0.01), jnp.array([1.0, 2.0, 3.0, 10.0])
    assert float(risk.weights(losses)[0]) == 0.0
    with jax.debug_nans(True):
        value, gradient = jax.value_and_grad(risk.value)(losses)
    assert np.isfinite(value) and np.isfinite(gradient).all()
