"""The human-aligned risk against an integral of the paper's density over ranks, and its relation to the paper's sum."""

from __future__ import annotations

import functools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from risk_measures import measure, normal, value_of
from scipy.integrate import quad

import evenhand as eh
from evenhand.risks import human_risk, mean

_human = functools.cache(human_risk)  # the same risk is the same compiled program
_PAIRS = ((0.01, 0.0), (0.4, 0.3), (0.0, 0.5), (1.0, 0.0))


def _density(F: Any, a: float, b: float) -> Any:
    """The paper's ``w(F)``."""
    return (3 - 3 * b) / (a**2 - a + 1) * (3 * F**2 - 2 * (a + 1) * F + a) + 1


def _by_integrals(f: np.ndarray, p: np.ndarray, a: float, b: float) -> np.ndarray:
    """Weights of one vector: the integral of the density over each value's jump of the distribution function."""
    p = normal(p)
    weights = np.zeros(len(f))
    for level in np.unique(f[p > 0]):
        tied = (f == level) & (p > 0)
        ends = p[(f < level) & (p > 0)].sum(), p[(f <= level) & (p > 0)].sum()
        weights[tied] = quad(_density, *ends, args=(a, b))[0] * p[tied] / p[tied].sum()
    return weights


@pytest.mark.parametrize(("a", "b"), _PAIRS)
def test_weights_are_integrals_of_the_density(a: float, b: float) -> None:
    """SciPy's quadrature, of random weighted losses with ties and absent ones."""
    rng = np.random.default_rng(0)
    f, p = rng.normal(size=(30, 8)), rng.uniform(0.05, 2.0, (30, 8))
    f[::3] = np.round(f[::3])
    p[::4, 2] = 0.0
    risk = measure(_human(a, b), f, p)
    expected = np.array([_by_integrals(*case, a, b) for case in zip(f, p, strict=True)])
    np.testing.assert_allclose(risk.weights, expected, atol=1e-13)
    np.testing.assert_allclose(risk.gradient, expected, atol=1e-13)
    np.testing.assert_allclose(risk.value, np.sum(expected * f, axis=1), atol=1e-12)
    assert expected.min() >= 0 and np.abs(expected - normal(p)).max() > 0.1


def test_five_losses_by_hand() -> None:
    """``G(F) = F + 3 F (F - 1)^2`` for ``a = 1`` and ``b = 0``, and ``F + 3 F^2 (F - 1)`` for ``a = 0``."""
    losses = (3.0, 1.0, 5.0, 2.0, 4.0)
    small = np.array([0.584, 0.248, 0.056, 0.008, 0.104])
    for weights, a in ((small, 1.0), (small[::-1], 0.0)):
        risk = measure(_human(a, 0.0), losses)
        np.testing.assert_allclose(risk.weights, weights[[2, 0, 4, 1, 3]], atol=1e-14)
        assert risk.value == pytest.approx(weights @ np.arange(1, 6))


def test_the_density_has_its_least_value_and_its_fixed_point_where_they_are_said_to_be() -> None:
    """Ten thousand losses in order: the least weight is b, where ``F = (a + 1) / 3``; the first ``a n`` weigh ``a``."""
    n = 10_000
    for a, b in ((0.4, 0.3), (0.25, 0.0)):
        weights = n * measure(_human(a, b), np.arange(n, dtype=float)).weights
        steep = (3 - 3 * b) / (a * a - a + 1)
        assert weights.min() == pytest.approx(b, abs=1e-6) and np.all(weights >= 0)
        assert np.argmin(weights) / n == pytest.approx((a + 1) / 3, abs=2e-4)
        np.testing.assert_allclose(weights[[0, -1]], [1 + steep * a, 1 + steep * (1 - a)], atol=2e-3)
        assert weights[: int(a * n)].mean() == pytest.approx(1, abs=1e-9)
        assert weights.mean() == pytest.approx(1, abs=1e-12)


def test_the_density_one_is_the_mean() -> None:
    """Identity at ``b = 1``, whatever ``a``, to the bit; not at 0.9."""
    f, p = np.random.default_rng(1).normal(size=(4, 6)), np.random.default_rng(2).uniform(0.1, 1, (4, 6))
    plain = measure(mean(), f, p)
    np.testing.assert_array_equal(measure(_human(0.2, 1.0), f, p).weights, plain.weights)
    assert np.abs(measure(_human(0.2, 0.9), f, p).weights - plain.weights).max() > 1e-2


@pytest.mark.parametrize("a", [0.01, 0.4, 1.0])
def test_the_papers_weights_are_close_and_do_not_sum_to_one(a: float) -> None:
    """The documented bound on one weight and the sum of the paper's; a bound of a third would not hold."""
    for n, b in ((10, 0.0), (1000, 0.0), (1000, 0.6)):
        steep = (3 - 3 * b) / (a * a - a + 1)
        ours = measure(_human(a, b), np.arange(n, dtype=float)).weights
        theirs = _density(np.arange(1, n + 1) / n, a, b) / n
        bound = steep * max(1 + a, 2 - a) / n**2
        assert bound / 3 < np.abs(ours - theirs).max() <= bound
        assert theirs.sum() == pytest.approx(1 + steep * ((0.5 - a) / n + 0.5 / n**2), rel=1e-12)
        if (a, b) == (0.01, 0.0):
            assert theirs.sum() == pytest.approx({10: 1.164, 1000: 1.0015}[n], abs=5e-4 if n == 10 else 5e-5)


def test_ranks_and_not_the_sorting_permutation() -> None:
    """The permutation that sorts is the inverse of the ranks: the same for two losses, another for a cycle of three."""
    losses, swapped = np.array([2.0, 3.0, 1.0]), np.array([2.0, 1.0])
    by_rank = np.diff([0.0, *((F + 3 * F**2 * (F - 1)) for F in (1 / 3, 2 / 3, 1.0))])
    weights = measure(_human(0.0, 0.0), losses).weights
    np.testing.assert_allclose(weights, by_rank[np.argsort(np.argsort(losses))], atol=1e-14)
    assert np.abs(weights - by_rank[np.argsort(losses)]).max() > 0.2
    assert np.array_equal(np.argsort(swapped), np.argsort(np.argsort(swapped)))


_LOSSES = st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5)


@hypothesis.given(_LOSSES, _LOSSES, st.sampled_from(_PAIRS[:2]))
def test_the_risk_is_monotone_and_additive_in_one_order(
    f: list[float], g: list[float], pair: tuple[float, float]
) -> None:
    """A Choquet integral: it rises with every loss, and adds up for losses that are in the same order."""
    risk = _human(*pair)
    low, high = np.minimum(f, g), np.maximum(f, g)
    ordered = np.sort(f), np.sort(g)
    values = value_of(risk, np.array([low, high, *ordered, sum(ordered)]))
    assert values[0] <= values[1] + 1e-9
    assert values[2] + values[3] == pytest.approx(values[4], abs=1e-9)


def test_the_risk_is_not_convex() -> None:
    """What its documentation says: the middle of two vectors has a larger risk than both."""
    risk, a, b = _human(1.0, 0.0), np.array([0.0, 1.0, 1.0]), np.array([1.0, 0.0, 1.0])
    ends, middle = value_of(risk, np.array([a, b])), value_of(risk, (a + b) / 2)
    assert middle > ends.max() + 0.1


def test_float32_is_exact_for_many_losses_of_any_size() -> None:
    """Against float64: 100,000 losses, whose increments of ``G`` a float32 could not hold; large and close ones."""
    f = np.random.default_rng(3).permutation(100_000).astype(np.float32)
    exact, narrow = (measure(_human(0.01, 0.0), f, dtype=kind) for kind in (np.float64, np.float32))
    np.testing.assert_allclose(narrow.weights, exact.weights, atol=1e-5 * 4e-5)
    assert narrow.weights.min() >= 0
    assert narrow.weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    five = np.array([3, 1, 5, 2, 4], np.float32)
    weights = measure(_human(0.01, 0.0), five, dtype=np.float32).weights
    for losses in (five * np.float32(1e-6), 1e4 + five / 512, five * np.float32(1e33)):
        np.testing.assert_array_equal(measure(_human(0.01, 0.0), losses, dtype=np.float32).weights, weights)


def test_wrong_parameters_are_refused() -> None:
    """Sentences with the name and the number."""
    for number in (-0.1, 1.1, math.nan):
        with pytest.raises(eh.EvenhandError, match=f"human_risk.a={number}"):
            human_risk(number, 0.5)
        with pytest.raises(eh.EvenhandError, match=f"human_risk.b={number}"):
            human_risk(0.5, number)
