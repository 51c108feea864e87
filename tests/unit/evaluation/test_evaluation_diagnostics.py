"""Dissimilarity and inexactness against closed forms on quadratics and gradients written in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand import aggregators, privacy
from evenhand.data._dataset import Split
from evenhand.errors import EvenhandError
from evenhand.evaluation import Dissimilarity, dissimilarity, follows_one_upload, inexactness, prepare
from evenhand.types import Model

quadratic = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: x[:, 0] / 2 * (w - x[:, 1]) ** 2,
    losses=lambda outputs, y: outputs,
    metrics={},
)
"""Rows ``(a, c)`` cost ``a / 2 (w - c)^2``."""

linear = Model(
    init=lambda key: {"w": jnp.zeros(3), "b": jnp.zeros(())},
    apply=lambda params, x: x @ params["w"] + params["b"],
    losses=lambda outputs, y: 0.5 * (outputs - y) ** 2,
    metrics={},
)


def quadratics(a: list[float], c: list[float], sizes: list[int]) -> Split:
    """Clients of the given sizes; all rows of a client are equal."""
    x = np.stack([np.repeat(a, sizes), np.repeat(c, sizes)], axis=1).astype(np.float32)
    return Split(x, np.zeros(len(x), np.float32), np.concatenate([[0], np.cumsum(sizes)]))


def regression(sizes: list[int], seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(sum(sizes), 3)), rng.normal(size=sum(sizes))
    return Split(x.astype(np.float32), y.astype(np.float32), np.concatenate([[0], np.cumsum(sizes)]))


def packed(v: np.ndarray) -> dict[str, jax.Array]:
    return {"w": jnp.asarray(v[:3], jnp.float32), "b": jnp.float32(v[3])}


def numpy_gradient(w: np.ndarray, b: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of the linear model's mean loss in float64: weights, then intercept."""
    residual = x.astype(np.float64) @ w + b - y
    return np.append(residual @ x, residual.sum()) / len(y)


def test_the_dissimilarity_of_two_quadratics_by_hand() -> None:
    found = dissimilarity(quadratic, jnp.float32(2.0), quadratics([1, 3], [0, 1], [5, 5]))
    assert isinstance(found, Dissimilarity)
    np.testing.assert_allclose(found.gradient_norms, [2, 3])
    assert found.global_gradient_norm == 2.5
    assert pytest.approx(1.0198039, abs=5e-8) == found.B
    assert found.gradient_variance == found.uniform_variance == pytest.approx(0.25, rel=1e-6)
    assert found.gradient_variance == pytest.approx((found.B**2 - 1) * 6.25)


def test_weights_are_shares_of_rows() -> None:
    found = dissimilarity(quadratic, jnp.float32(2.0), quadratics([1, 3], [0, 1], [1, 4]))
    # p = (0.2, 0.8), gradients (2, 3), mean 2.8.
    assert found.global_gradient_norm == pytest.approx(2.8, rel=1e-6)
    assert found.gradient_variance == pytest.approx(0.2 * 0.64 + 0.8 * 0.04, rel=1e-6)
    assert found.uniform_variance == pytest.approx((0.64 + 0.04) / 2, rel=1e-6)


@pytest.mark.parametrize("sizes", [[30, 1, 700, 12], [513, 512, 1], [4]])
def test_dissimilarity_equals_numpy(sizes: list[int]) -> None:
    split = regression(sizes)
    w, b = np.array([0.5, -1.0, 2.0]), 0.25
    gradients = np.stack([numpy_gradient(w, b, *split.client(k)) for k in range(len(sizes))])
    p = np.array(sizes) / sum(sizes)
    overall = p @ gradients
    found = dissimilarity(linear, {"w": jnp.asarray(w, jnp.float32), "b": jnp.float32(b)}, prepare(split))
    np.testing.assert_allclose(found.gradient_norms, np.linalg.norm(gradients, axis=1), rtol=1e-5)
    assert found.global_gradient_norm == pytest.approx(np.linalg.norm(overall), rel=1e-5)
    squares = np.sum(gradients**2, axis=1)
    assert pytest.approx(np.sqrt(p @ squares / np.sum(overall**2)), rel=1e-5) == found.B
    assert found.gradient_variance == pytest.approx(p @ squares - np.sum(overall**2), rel=1e-4, abs=1e-9)
    distances = np.sum((gradients - overall) ** 2, axis=1)
    assert found.uniform_variance == pytest.approx(distances.mean(), rel=1e-4, abs=1e-9)


@given(
    st.lists(st.floats(-3, 3, width=16), min_size=3, max_size=3),
    st.permutations([1, 7, 30]),  # one shape, compiled once
    st.floats(-5, 5, width=16),
)
def test_dissimilarity_is_at_least_one(centres: list[float], sizes: list[int], w: float) -> None:
    found = dissimilarity(quadratic, jnp.float32(w), quadratics([1, 2, 0.5], centres, sizes))
    assert found.B >= 1
    assert found.gradient_variance >= 0
    assert found.uniform_variance >= 0


def test_with_mixed_weights_it_can_fall_below_one() -> None:
    # With equal weights in the numerator and sizes in the denominator, it is no dissimilarity, and here below 1.
    found = dissimilarity(quadratic, jnp.float32(2.0), quadratics([1, 3], [0, 1], [1, 99]))
    mixed = np.sqrt(np.mean(found.gradient_norms**2)) / found.global_gradient_norm
    assert mixed < 0.9 < 1 <= found.B


def test_identical_clients_have_no_dissimilarity() -> None:
    rows = regression([40])
    twice = Split(np.tile(rows.x, (3, 1)), np.tile(rows.y, 3), np.array([0, 40, 80, 120]))
    params = {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.float32(0.25)}
    same = dissimilarity(linear, params, twice)
    assert pytest.approx(1.0, abs=1e-9) == same.B
    assert same.gradient_variance == pytest.approx(0, abs=1e-9)
    assert dissimilarity(linear, params, regression([40, 40, 40])).B > 1.001


def test_dissimilarity_at_stationary_points() -> None:
    common = dissimilarity(quadratic, jnp.float32(1.0), quadratics([1, 3], [1, 1], [2, 5]))
    assert (common.B, common.gradient_variance, common.global_gradient_norm) == (1, 0, 0)
    opposed = dissimilarity(quadratic, jnp.float32(0.0), quadratics([1, 1], [-1, 1], [3, 3]))
    assert (opposed.B, opposed.gradient_variance, opposed.global_gradient_norm) == (np.inf, 1, 0)


def test_clients_without_rows_do_not_count() -> None:
    params = jnp.float32(2.0)
    gaps = dissimilarity(quadratic, params, quadratics([9, 1, 9, 3], [9, 0, 9, 1], [0, 5, 0, 5]))
    full = dissimilarity(quadratic, params, quadratics([1, 3], [0, 1], [5, 5]))
    np.testing.assert_array_equal(gaps.gradient_norms, [np.nan, 2, np.nan, 3])
    assert gaps._replace(gradient_norms=0) == full._replace(gradient_norms=0)
    empty = dissimilarity(quadratic, params, quadratics([1], [1], [0]))
    assert np.isnan([empty.B, empty.gradient_variance, empty.global_gradient_norm]).all()


def descended(a: float, c: float, start: float, mu: float, rate: float, steps: int) -> float:
    """Full-batch descent on the proximal problem, in float64."""
    w = start
    for _ in range(steps):
        w -= rate * (a * (w - c) + mu * (w - start))
    return w


@pytest.mark.parametrize(
    ("client", "a", "c", "end", "gamma"), [(0, 1, 0, 1.32768, 0.32768), (1, 3, 1, 1.30832, 0.07776)]
)
def test_inexactness_of_a_few_steps(client: int, a: float, c: float, end: float, gamma: float) -> None:
    split = quadratics([1, 3], [0, 1], [4, 9])
    w = descended(a, c, 2.0, 1.0, 0.1, 5)
    assert w == pytest.approx(end)
    found = inexactness(quadratic, jnp.float32(2.0), jnp.float32(w), split, client, mu=1.0)
    assert found == pytest.approx(gamma, rel=1e-5) == abs(1 - 0.1 * (a + 1)) ** 5
    without = inexactness(quadratic, jnp.float32(2.0), jnp.float32(w), split, client)
    assert without == pytest.approx(abs(w - c) / abs(2 - c), rel=1e-5) != pytest.approx(gamma, rel=0.1)


def test_inexactness_of_exact_and_no_work() -> None:
    prepared = prepare(quadratics([1, 2], [0, 1], [3, 3]))
    start, mu = 3.0, 12.0
    for client, (a, c) in enumerate([(1, 0), (2, 1)]):
        exact = (a * c + mu * start) / (a + mu)
        gamma = inexactness(quadratic, jnp.float32(start), jnp.float32(exact), prepared, client, mu=mu)
        assert gamma == pytest.approx(0, abs=1e-5)
        # The distance moved is bounded by (1 + gamma) / mu times the gradient, for convex losses.
        assert abs(exact - start) <= (1 + gamma) / mu * a * abs(start - c)
        none = inexactness(quadratic, jnp.float32(start), jnp.float32(start), prepared, client, mu=mu)
        assert none == 1


def test_inexactness_at_a_stationary_point() -> None:
    split = quadratics([1], [2], [3])
    two = jnp.float32(2.0)
    assert inexactness(quadratic, two, two, split, 0, mu=1.0) == 0
    assert inexactness(quadratic, two, jnp.float32(2.5), split, 0, mu=1.0) == np.inf


def test_inexactness_is_of_clients_that_there_are_and_that_have_examples() -> None:
    split, two = quadratics([1, 2], [2, 2], [3, 0]), jnp.float32(2.0)
    assert np.isnan(inexactness(quadratic, two, two, split, 1))
    for client in (-1, 2):
        with pytest.raises(EvenhandError, match="from 0 to 1"):
            inexactness(quadratic, two, two, split, client)


def test_inexactness_equals_numpy() -> None:
    split = regression([20, 600])
    rng = np.random.default_rng(1)
    start, end, mu = rng.normal(size=4), rng.normal(size=4), 0.3
    for k in range(2):
        before, after = (numpy_gradient(v[:3], v[3], *split.client(k)) for v in (start, end))
        expected = np.linalg.norm(after + mu * (end - start)) / np.linalg.norm(before)
        found = inexactness(linear, packed(start), packed(end), split, k, mu=mu)
        assert found == pytest.approx(expected, rel=1e-5)


def test_means_follow_one_upload_and_aggregators_that_bound_it_do_not() -> None:
    """As in the table of docs/robustness.md, by what becomes of a huge upload."""
    mean, median = aggregators.mean(), aggregators.geometric_median()
    following = [mean, aggregators.bounded_weights(2, then=mean), aggregators.secure(mean)]
    bounded = [
        *(median, aggregators.geometric_median(start="mean"), aggregators.coordinate_median()),
        *(
            aggregators.centered_clipping(1.0),
            aggregators.clip(1.0),
            aggregators.clip(),
            aggregators.krum(30),
        ),
        *(aggregators.secure(median), aggregators.reject(10.0, then=mean), aggregators.trimmed_mean(0.2)),
        privacy.noisy_mean(1.0, noise_multiplier=0.1, rate=0.5),
    ]
    assert [follows_one_upload(aggregator) for aggregator in following] == [True] * len(following)
    assert [follows_one_upload(aggregator) for aggregator in bounded] == [False] * len(bounded)
