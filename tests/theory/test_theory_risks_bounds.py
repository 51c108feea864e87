"""Chernoff bounds with tilts of either sign, tails of fixed size, and cohorts that stand for a population.

Li et al., JMLR 2023; Pillutla et al., Machine Learning 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp

from evenhand.risks import superquantile, tilted, tilted_value_at_risk, value_at_risk

_T = np.concatenate([-np.logspace(3, -3, 4001), np.logspace(-3, 3, 4001)])


def _best(log_mgf: Callable[[np.ndarray], np.ndarray], gamma: float, t: np.ndarray) -> float:
    """The least of ``(E e^{tX} - 1) / (e^{t gamma} - 1)``, or for positive tilts of ``E e^{tX} / e^{t gamma}``."""
    with np.errstate(over="ignore", invalid="ignore"):
        bound = np.expm1(np.minimum(log_mgf(t), 700)) / np.expm1(np.minimum(t * gamma, 700))
    finite = (log_mgf(t) < 690) & (t * gamma < 690)
    return float(min(np.min(bound[finite]), 1.0 / gamma))


def _uniform(t: np.ndarray) -> np.ndarray:
    size = np.abs(t)
    return np.maximum(2 * t, 0) + np.log(-np.expm1(-2 * size)) - np.log(2 * size)


def _half_normal(t: np.ndarray) -> np.ndarray:
    s = math.sqrt(math.pi / 2)
    return math.log(2) + (s * t) ** 2 / 2 + log_ndtr(s * t)


@pytest.mark.parametrize(
    ("law", "bounds", "classical"),
    [
        (_uniform, {0.1: 0.993753, 0.25: 0.981280, 0.5: 0.954792, 1.0: 0.872154, 1.5: 0.629017}, 0.664554),
        (
            _half_normal,
            {0.1: 0.991698, 0.25: 0.974781, 0.5: 0.938108, 1.0: 0.830263, 1.5: 0.664811},
            0.832659,
        ),
    ],
)
def test_negative_tilts_bound_tails_that_positive_ones_cannot(
    law: Callable[[np.ndarray], np.ndarray], bounds: dict[float, float], classical: float
) -> None:
    """Theorem 27, numbers of the specification for two laws of mean 1; the classical bound below the mean says 1."""
    for gamma, bound in bounds.items():
        assert _best(law, gamma, _T) == pytest.approx(bound, abs=3e-6)
    t = _T[_T > 0]
    assert math.exp(np.min(law(t) - t * 1.5)) == pytest.approx(classical, abs=3e-6)
    for gamma in (0.1, 0.25, 0.5, 1.0):
        assert math.exp(np.min(law(t) - t * gamma)) > 0.999


_LOSSES = np.random.default_rng(0).exponential(size=(30, 8))


@jax.jit
def _tilts(t: jax.Array, f: jax.Array) -> jax.Array:
    return jax.vmap(lambda t: jax.vmap(tilted(t).value)(f))(t)


def _risks(t: np.ndarray, f: np.ndarray = _LOSSES) -> np.ndarray:
    with jax.enable_x64(True):
        return np.array(_tilts(jnp.asarray(t), jnp.asarray(f)))


def test_tails_of_losses_are_bounded_at_every_tilt() -> None:
    """Theorem 36 with the floor 0; a floor above some loss makes it false."""
    t = np.array([-20.0, -2.0, -0.3, 0.3, 2.0, 20.0])
    tilts = _risks(t)
    broken = False
    for gamma in (0.3, 1.0, 2.5):
        tail = np.mean(gamma <= _LOSSES, axis=1)
        for power, tilt in zip(t, tilts, strict=True):
            assert np.all(tail <= np.expm1(power * tilt) / math.expm1(power * gamma) + 1e-12)
            low = 0.25
            higher = np.expm1(power * (tilt - low)) / math.expm1(power * (gamma - low))
            broken = broken or bool(np.any(tail > higher + 1e-6))
        assert np.all(tail <= _LOSSES.mean(axis=1) / gamma + 1e-12)
    assert broken


def test_ranks_are_bounded_by_tilts() -> None:
    """Corollaries 7 and 6: the k-th smallest by every positive tilt, hence by TiVaR, hence by EVaR's form."""
    t = np.array([0.05, 0.3, 1.0, 4.0])
    ranked, tilts = np.sort(_LOSSES, axis=1), _risks(t)
    for k in (2, 5, 7):
        theta = 1 - k / 8
        with jax.enable_x64(True):
            least = np.array([tilted_value_at_risk(theta).value(jnp.asarray(f)) for f in _LOSSES[:8]])
        for power, tilt in zip(t[:, None], tilts, strict=True):
            bound = np.log1p(np.expm1(power * tilt) / theta) / power
            assert np.all(ranked[:, k - 1] <= bound + 1e-12)
            assert np.all(least <= bound[:8] + 1e-9)
            assert np.all(bound <= tilt - math.log(theta) / power + 1e-12)
        assert np.all(ranked[:8, k - 1] <= least + 1e-12)
        if k < 7:
            assert np.any(ranked[:8, k + 2] > least), "three ranks higher is not bounded so"


# --- hard thresholds, and cohorts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "theta", "selected"),
    [
        (5, 0.5, 3),
        (10, 0.25, 3),
        (7, 0.4, 3),
        (10, 0.5, 6),
        (100, 0.5, 51),
        (100, 0.8, 81),
        (100, 0.1, 11),
        (50, 0.1, 6),
    ],
)
def test_a_hard_threshold_is_nearly_the_superquantile(n: int, theta: float, selected: int) -> None:
    """Proposition 3, corrected: ``i* = ceil((1 - theta) n)``, the closed form, how many are selected."""
    f = np.sort(np.random.default_rng(n).uniform(size=n))
    f[-1] = 1.0
    with jax.enable_x64(True):
        quantile = float(jax.jit(value_at_risk(theta).value)(jnp.asarray(f)))
        exact = float(jax.jit(superquantile(theta).value)(jnp.asarray(f)))
        weights = np.array(jax.jit(superquantile(theta).weights)(jnp.asarray(f)))
    whole = math.floor(theta * n + 1e-9)
    index = n - whole
    assert quantile == f[index - 1]
    closed = f[index:].sum() / (theta * n) + (1 - whole / (theta * n)) * f[index - 1]
    assert exact == pytest.approx(closed, rel=1e-12)
    assert np.sum(f >= quantile) == selected
    integer = math.isclose(theta * n, round(theta * n))
    assert np.count_nonzero(weights) == selected - integer
    hard = f[f >= quantile].mean()
    assert 0 <= exact - hard <= 1.0 / (theta * n)
    assert exact - hard > 1e-6
    if integer:
        assert f[f > quantile].mean() == pytest.approx(exact, rel=1e-12), "with > it is exact"


def test_the_example_of_the_proposition() -> None:
    """Losses 1 to 5 and half of them: 4.2 against 4.0."""
    f = jnp.arange(1.0, 6.0)
    assert float(superquantile(0.5).value(f)) == pytest.approx(4.2)
    assert float(jnp.mean(f[f >= value_at_risk(0.5).value(f)])) == 4.0


@pytest.mark.parametrize(
    ("m", "theta", "bias"), [(10, 0.5, -0.024), (50, 0.5, -0.0029), (100, 0.1, -0.0012), (10, 0.1, -0.028)]
)
def test_cohorts_underestimate_the_tail(m: int, theta: float, bias: float) -> None:
    """Property 9, by drawing 4000 cohorts of 200 clients: the bias is below 0 and far within ``1 / sqrt(theta m)``."""
    rng = np.random.default_rng(0)
    f = rng.uniform(size=200).astype(np.float32)
    cohorts = rng.permuted(np.tile(f, (4000, 1)), axis=1)[:, :m]
    drawn = np.array(jax.jit(jax.vmap(superquantile(theta).value))(cohorts), np.float64)
    whole = float(superquantile(theta).value(jnp.asarray(f)))
    found, error = drawn.mean() - whole, drawn.std() / math.sqrt(len(drawn))
    assert found + 3 * error < 0 and abs(found) <= 1 / math.sqrt(theta * m)
    assert 0.4 < found / bias < 2
    assert drawn.var() <= 1 / (theta * m)
    unbiased = cohorts.mean(axis=1)
    assert abs(unbiased.mean() - f.mean()) < 4 * unbiased.std() / math.sqrt(len(drawn)), (
        "the mean is not biased"
    )


def test_the_bounds_are_about_the_librarys_risk() -> None:
    """The library's tilted risk is SciPy's log-sum-exp, of which the theorems above speak."""
    sums = np.asarray(logsumexp(2 * _LOSSES, axis=1))
    np.testing.assert_allclose(_risks(np.array([2.0]))[0], (sums - math.log(8)) / 2, rtol=1e-13)
