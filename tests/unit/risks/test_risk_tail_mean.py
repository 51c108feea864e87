"""The mean of a tail of whole losses, strict and not, against integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from risk_measures import measure, normal

from evenhand.risks import superquantile, tail_mean

_TENTHS = (3, 5, 9)


def _chosen(f: np.ndarray, rows: np.ndarray, tenths: int, strict: bool) -> np.ndarray:
    """Which losses count; masses are whole numbers, so that nothing is rounded."""
    present = np.flatnonzero(rows)
    fits = [f[k] for k in present if 10 * rows[f > f[k]].sum() <= tenths * rows.sum()]
    edge = min(fits)
    above = (f > edge) & (rows > 0)
    return above if strict and above.any() else (f >= edge) & (rows > 0)


@pytest.mark.parametrize("strict", [False, True])
def test_tails_of_many_cohorts_in_float32(strict: bool) -> None:
    """Equal and unequal weights, ties, absent clients; ``theta m`` whole (of 10) and not, rounded as 0.3 * 10 is."""
    rng = np.random.default_rng(0)
    for m in (10, 7):
        f = rng.permuted(np.tile(np.arange(m), (120, 1)), axis=1)
        f[60:] //= 3
        rows = np.ones((120, m), int)
        rows[30:60], rows[90:] = rng.integers(0, 4, (30, m)), rng.integers(0, 4, (30, m))
        rows[:, 0] = np.maximum(rows[:, 0], 1)
        for tenths in _TENTHS:
            found = measure(tail_mean(tenths / 10, strict=strict), f, rows, np.float32)
            chosen = np.stack([_chosen(*case, tenths, strict) for case in zip(f, rows, strict=True)])
            expected = normal(np.where(chosen, rows, 0))
            np.testing.assert_allclose(found.weights, expected, atol=1e-6)
            np.testing.assert_array_equal(found.weights > 0, chosen)
            np.testing.assert_allclose(found.value, np.sum(expected * f, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("m", [10, 50, 1000])
def test_a_strict_tail_has_theta_m_clients_where_that_is_whole_in_float32(m: int) -> None:
    """Then it is the superquantile; the other kind has one client more.  A tail below one client is the worst one."""
    f: Any = np.random.default_rng(m).permutation(m).astype(np.float32)
    for tenths in _TENTHS:
        theta, count = tenths / 10, tenths * m // 10
        strict = np.asarray(tail_mean(theta, strict=True).weights(f))
        assert np.count_nonzero(strict) == count
        assert np.count_nonzero(tail_mean(theta).weights(f)) == count + 1
        np.testing.assert_allclose(strict, superquantile(theta).weights(f), rtol=2e-4)
    for is_strict in (True, False):
        assert float(tail_mean(0.5 / m, strict=is_strict).value(f)) == m - 1


def test_a_strict_tail_without_any_loss_above_the_quantile_has_those_at_it() -> None:
    """If all tie, or the worst has more rows than the tail, those at the quantile count by their rows."""
    for f, rows, expected in (
        ([2.0, 2.0, 2.0], [1.0, 2.0, 0.0], [1 / 3, 2 / 3, 0.0]),
        ([1.0, 3.0, 3.0], [1.0, 2.0, 6.0], [0.0, 0.25, 0.75]),
        ([1.0, 2.0, 9.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]),
        ([-2.0, -1.0, 9.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]),
    ):
        found = measure(tail_mean(0.4, strict=True), f, rows)
        np.testing.assert_allclose(found.weights, expected, atol=1e-14)
        np.testing.assert_allclose(found.gradient, expected, atol=1e-14)
    # One loss above the quantile, and the fallback must not add those that equal it.
    found = measure(tail_mean(0.5, strict=True), [1.0, 2.0, 2.0, 3.0])
    np.testing.assert_allclose(found.weights, [0, 0, 0, 1.0], atol=1e-14)
