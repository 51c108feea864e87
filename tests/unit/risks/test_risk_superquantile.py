"""Superquantiles and quantiles against a linear program, the primal form and the numbers of their sources."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, value_of
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_matrix

import evenhand as eh
from evenhand.risks import inverse_superquantile, kth_smallest, mean, superquantile, value_at_risk

_FIVE = (1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize(
    ("theta", "weights", "value"),
    [
        (1.0, (0.2, 0.2, 0.2, 0.2, 0.2), 3.0),
        (0.8, (0, 0.25, 0.25, 0.25, 0.25), 3.5),
        (0.5, (0, 0, 0.2, 0.4, 0.4), 4.2),
        (0.4, (0, 0, 0, 0.5, 0.5), 4.5),
        (0.3, (0, 0, 0, 1 / 3, 2 / 3), 14 / 3),
        (0.2, (0, 0, 0, 0, 1), 5.0),
        (0.01, (0, 0, 0, 0, 1), 5.0),
        (1e-40, (0, 0, 0, 0, 1), 5.0),
        (0.0, (0, 0, 0, 0, 1), 5.0),
    ],
)
def test_superquantiles_of_five_losses(theta: float, weights: tuple[float, ...], value: float) -> None:
    """The table of the source's specification; in float32 the zeros are exact too."""
    found = measure(superquantile(theta), _FIVE)
    assert found.value == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(found.weights, weights, atol=1e-14)
    narrow = measure(superquantile(theta), _FIVE, dtype=np.float32)
    np.testing.assert_allclose(narrow.weights, weights, rtol=1e-6)


def test_weighted_losses_and_the_mean_of_the_two_largest() -> None:
    """Two more examples of the source: a weighted one, and the surface of its slides."""
    found = measure(superquantile(0.4), [1.0, 2.0, 3.0], [0.5, 0.3, 0.2])
    np.testing.assert_allclose(found.weights, [0, 0.5, 0.5], atol=1e-14)
    assert found.value == pytest.approx(2.5)
    pairs = [[1.0, 2.0, 0, 0], [-1.0, 2.0, 0, 0], [-1.0, -1.0, 0, 0]]
    np.testing.assert_allclose(value_of(superquantile(0.5), pairs), [1.5, 1.0, 0.0], atol=1e-15)


def _programs(f: np.ndarray, p: np.ndarray, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Values and weights of ``max pi @ f`` over the capped simplex: one sparse program for all cases."""
    rows = block_diag([csr_matrix(np.ones((1, f.shape[1])))] * len(f))
    caps = np.stack([np.zeros(f.size), (normal(p) / theta).ravel()], axis=1)
    found = linprog(-f.ravel(), A_eq=rows, b_eq=np.ones(len(f)), bounds=caps, method="highs")
    pi = found.x.reshape(f.shape)
    return np.sum(pi * f, axis=1), pi


_THETAS = (0.07, 0.25, 0.5, 0.77, 0.9)


@pytest.mark.parametrize("theta", _THETAS)
def test_superquantiles_solve_the_linear_program(theta: float) -> None:
    """1000 random weighted cases in all: values everywhere, weights where no losses tie."""
    rng = np.random.default_rng(round(100 * theta))
    f, p = rng.normal(size=(200, 8)), rng.uniform(0.05, 2.0, (200, 8))
    f[100:] = np.round(f[100:])
    p[::5, 3] = 0.0
    found = measure(superquantile(theta), f, p)
    value, pi = _programs(f, p, theta)
    np.testing.assert_allclose(found.value, value, atol=1e-9)
    np.testing.assert_allclose(found.weights[:100], pi[:100], atol=1e-9)
    np.testing.assert_allclose(found.gradient, found.weights, atol=1e-14)
    assert (found.weights <= normal(p) / theta + 1e-12).all()
    lowest = measure(inverse_superquantile(theta), f, p)
    np.testing.assert_allclose(lowest.value, -_programs(-f, p, 1 - theta)[0], atol=1e-9)


@pytest.mark.parametrize("theta", _THETAS)
def test_superquantiles_solve_the_primal_form(theta: float) -> None:
    """Rockafellar and Uryasev's minimum, which lies at one of the losses."""
    rng = np.random.default_rng(1)
    f, p = rng.normal(size=(200, 8)), rng.uniform(0.05, 2.0, (200, 8))
    excess = np.maximum(f[:, None, :] - f[:, :, None], 0.0)
    primal = np.min(f + np.einsum("bi,bei->be", normal(p), excess) / theta, axis=1)
    np.testing.assert_allclose(value_of(superquantile(theta), f, p), primal, atol=1e-12)


def test_ties_share_what_is_left_in_proportion() -> None:
    """By hand: 0.7 is left for three losses that tie, of weights 1, 2 and 4, behind one of weight 3."""
    found = measure(superquantile(0.5), [1.0, 2.0, 0.0, 1.0, 1.0], [1.0, 3.0, 10.0, 2.0, 4.0])
    np.testing.assert_allclose(found.weights, [0.1, 0.3, 0.0, 0.2, 0.4], atol=1e-14)
    equal = measure(superquantile(0.3), np.full(5, 7.0), [1.0, 2.0, 3.0, 4.0, 0.0])
    np.testing.assert_allclose(equal.weights, [0.1, 0.2, 0.3, 0.4, 0.0], atol=1e-14)


@pytest.mark.parametrize(("n", "dtype"), [(5, np.float64), (64, np.float32), (1000, np.float32)])
def test_as_many_losses_count_as_the_fraction_says(n: int, dtype: type) -> None:
    """The source's remark: ``ceil(theta n)``, in float32 too where the boundary falls between two losses."""
    f = np.random.default_rng(2).permutation(n)
    for tenths in (2, 5):
        found = measure(superquantile(tenths / 10), f, dtype=dtype)
        assert np.count_nonzero(found.weights) == -(-tenths * n // 10)
        np.testing.assert_allclose(found.weights.sum(), 1.0, rtol=1e-5)


_TAILS = [superquantile(theta) for theta in (0.05, 0.4, 0.9, 1.0)]
_WHOLE = mean()


@hypothesis.given(
    st.lists(st.floats(-50, 50), min_size=6, max_size=6), st.lists(st.floats(0.05, 1), min_size=6, max_size=6)
)
def test_smaller_tails_are_worse(losses: list[float], weights: list[float]) -> None:
    """Not increasing in the fraction, between mean and maximum, convex, positively homogeneous."""
    fs = np.array([losses, losses[::-1], np.add(losses, losses[::-1]) / 2, np.multiply(3.0, losses)])
    values = [value_of(risk, fs, weights) for risk in _TAILS]
    assert np.all(np.diff(values, axis=0) <= 1e-9)
    for value in values:
        assert value[2] <= (value[0] + value[1]) / 2 + 1e-9
        assert value[3] == pytest.approx(3 * value[0], abs=1e-9)
    np.testing.assert_allclose(values[-1], value_of(_WHOLE, fs, weights), atol=1e-9)
    assert values[0][0] <= max(losses) + 1e-9


def test_inverse_superquantiles_leave_the_worst_out() -> None:
    """The mean of the lowest losses, boundary in part; without any fraction the mean."""
    f = [0.0, 1.0, 2.0, 3.0, 10.0]
    for theta, value in ((0.0, 3.2), (0.2, 1.5), (0.4, 1.0), (0.5, (0 + 1 + 0.5 * 2) / 2.5), (0.8, 0.0)):
        assert value_of(inverse_superquantile(theta), f) == pytest.approx(value, abs=1e-14)


# --- quantiles ---------------------------------------------------------------------------------------------------


def _quantile(f: np.ndarray, p: np.ndarray, theta: float) -> float:
    return min(v for v in f if p[f > v].sum() <= theta + 1e-12)


def test_quantiles_are_the_least_loss_with_so_little_above() -> None:
    """The definition, loss by loss, on random weighted cases with and without ties."""
    rng = np.random.default_rng(3)
    f, p = rng.normal(size=(60, 8)), rng.uniform(0.05, 2.0, (60, 8))
    f[30:] = np.round(f[30:])
    for theta in _THETAS:
        found = measure(value_at_risk(theta), f, p)
        expected = [_quantile(*case, theta) for case in zip(f, normal(p), strict=True)]
        np.testing.assert_allclose(found.value, expected, rtol=1e-14)
        chosen = f == np.array(expected)[:, None]
        np.testing.assert_allclose(found.weights, normal(np.where(chosen, p, 0)), atol=1e-14)


@pytest.mark.parametrize(("n", "dtype"), [(5, np.float64), (5, np.float32), (1000, np.float32)])
def test_the_quantile_is_a_rank(n: int, dtype: type) -> None:
    """With ``theta = 1 - k / n`` the k-th smallest; also where ``1 - k / n`` is rounded up or down."""
    f = np.random.default_rng(4).permutation(n)
    for k in {1, n // 3, n - 1}:
        assert value_of(value_at_risk(1 - k / n), f, dtype=dtype) == k - 1
        assert value_of(kth_smallest(k), f, dtype=dtype) == k - 1


def test_quantiles_at_both_ends() -> None:
    """A fraction of 1 gives the smallest loss, and one below the least weight the largest."""
    f, p = [4.0, 2.0, 9.0, -1.0], [1.0, 1.0, 1.0, 0.0]
    assert [value_of(value_at_risk(theta), f, p) for theta in (1.0, 0.3)] == [2.0, 9.0]
    assert [value_of(kth_smallest(k), f, p) for k in (1, 2, 3, 4, 10)] == [2.0, 4.0, 9.0, 9.0, 9.0]


def test_at_a_fraction_of_zero_the_largest_losses_share_all_weight() -> None:
    """In proportion to their weights, if these are small and if a larger loss has none."""
    found = measure(superquantile(0.0), [3.0, 1.0, 9.0, 3.0], [1.0, 9.0, 0.0, 3.0])
    np.testing.assert_allclose(found.weights, [0.25, 0.0, 0.0, 0.75], atol=1e-14)
    assert found.value == 3.0
    rare = measure(superquantile(0.0), [1.0, 3.0], [1.0, 1e-20])
    np.testing.assert_allclose(rare.weights, [0.0, 1.0], atol=1e-14)


@pytest.mark.parametrize("factory", [superquantile, value_at_risk])
@pytest.mark.parametrize("theta", [2.0, -0.1, float("nan")])
def test_fractions_outside_their_range_are_refused(factory: Any, theta: float) -> None:
    """A sentence with the name and the fraction; 1 is a fraction, and 0 that of a maximum."""
    with pytest.raises(eh.EvenhandError, match=rf"{factory.__name__}\(theta={theta}\): the tail fraction"):
        factory(theta)
    factory(1.0)
    superquantile(0.0)
    with pytest.raises(eh.EvenhandError, match=r"value_at_risk\(theta=0.0\): the tail fraction"):
        value_at_risk(0.0)


def test_other_numbers_outside_their_range_are_refused() -> None:
    """Sentences with the name."""
    for theta in (-0.1, 1.0, float("nan")):
        with pytest.raises(eh.EvenhandError, match=r"must lie in \[0, 1\)"):
            inverse_superquantile(theta)
    refused: list[Any] = [0, -1, 1.5]
    for k in refused:
        with pytest.raises(eh.EvenhandError, match="k"):
            kth_smallest(k)
    assert float(kth_smallest(2).value(jnp.array([3.0, 1.0]))) == 3.0


@pytest.mark.parametrize("n", [10, 50, 100])
def test_a_whole_number_of_losses_has_a_weight_in_float32(n: int) -> None:
    """``theta n`` of them where that is whole: what rounding leaves of the boundary gets no weight."""
    losses: Any = np.random.default_rng(0).permutation(n).astype(np.float32)
    for tenth in range(1, 10):
        weights = np.asarray(superquantile(tenth / 10).weights(losses))
        assert np.count_nonzero(weights) == tenth * n // 10
