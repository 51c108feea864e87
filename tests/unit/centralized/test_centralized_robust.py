"""CRR and STIR against their algorithms in NumPy and float64, and against what they must find."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import evenhand as eh
from evenhand.centralized import Solver, crr, fit, stir

ROWS, FEATURES = 200, 24
MODEL = eh.models.linear_regression(features=FEATURES)


def fingerprints(share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Like QSAR's: binary features, two of them always 0 and one a copy; labels of which a share is N(5, 5)."""
    rng = np.random.default_rng(seed)
    x = (rng.random((ROWS, FEATURES)) < 0.3).astype(float)
    x[:, :2], x[:, 2] = 0.0, x[:, 3]
    weights = rng.normal(size=FEATURES)
    y = x @ weights + 0.5 + 0.1 * rng.normal(size=ROWS)
    wrong = int(share * ROWS)
    y[:wrong] = rng.normal(5.0, 5.0, wrong)
    return x, y.astype(np.float32).astype(float), np.append(weights, 0.5)


def with_ones(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1))])


def weights_of(solver: Solver, x: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
    params = fit(solver, x, y, steps=steps).params
    assert params["kernel"].shape == (x.shape[1], 1) and params["bias"].shape == (1,)
    return np.append(params["kernel"][:, 0], params["bias"]).astype(float)


# --- CRR ---------------------------------------------------------------------------------------------------------


def crr_loop(x: np.ndarray, y: np.ndarray, k: int, steps: int, ridge: float = 1e-5) -> np.ndarray:
    """Inverses and thresholds as in the formulas, in float64."""
    x = with_ones(x)
    inverse = np.linalg.inv(x.T @ x + ridge * np.eye(x.shape[1]))
    projection, b = x @ inverse @ x.T, np.ones(len(y))
    for _ in range(steps):
        moved = projection @ b + (y - projection @ y)
        order = np.argsort(-np.abs(moved), kind="stable")
        new = np.zeros(len(y))
        new[order[:k]] = moved[order[:k]]
        if np.linalg.norm(new - b) <= 1e-5:
            return inverse @ x.T @ (y - new)
        b = new
    return inverse @ x.T @ (y - b)


@pytest.mark.parametrize(("share", "corrupted"), [(0.2, 30), (0.4, 80), (0.8, 180)])
def test_crr_equals_its_algorithm_step_by_step_and_at_its_end(share: float, corrupted: int) -> None:
    x, y, _ = fingerprints(share)
    for steps in (1, 2, 5, 3000):
        expected = crr_loop(x, y, corrupted, steps)
        other = crr_loop(x, y, corrupted + 15, steps)
        found = weights_of(crr(MODEL, corrupted=corrupted), x, y, steps)
        np.testing.assert_allclose(found, expected, atol=1e-3)
        np.testing.assert_allclose(with_ones(x) @ found, with_ones(x) @ expected, atol=1e-3)
        assert np.abs(expected - other).max() > 1e-2


def test_crr_recovers_weights_that_least_squares_misses() -> None:
    x, y, weights = fingerprints(0.2)
    found = weights_of(crr(MODEL, corrupted=50), x, y, 1000)
    plain = np.linalg.lstsq(with_ones(x), y, rcond=None)[0]
    predicted, true, missed = (with_ones(x) @ each for each in (found, weights, plain))
    assert np.sqrt(np.mean(np.square(predicted - true))) < 0.1 < np.sqrt(np.mean(np.square(missed - true)))


def test_crr_without_corruption_is_ridge_regression() -> None:
    x, y, _ = fingerprints(0.0)
    x = x[:, 3:]
    model = eh.models.linear_regression(features=x.shape[1])
    for ridge in (1e-5, 3.0):
        design = with_ones(x)
        expected = np.linalg.solve(design.T @ design + ridge * np.eye(design.shape[1]), design.T @ y)
        found = weights_of(crr(model, corrupted=0, ridge=ridge), x, y, 1)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    # b starts at 1, which the column of ones explains.
    start, end = (weights_of(crr(model, corrupted=0), x, y, steps) for steps in (0, 1))
    np.testing.assert_allclose(start, end - np.eye(len(end))[-1], atol=1e-5)


def test_crr_and_stir_stay_where_they_have_settled_and_may_be_interrupted() -> None:
    x, y, _ = fingerprints(0.2)
    for solver in (crr(MODEL, corrupted=50), stir(MODEL)):
        long = fit(solver, x, y, steps=600)
        further = fit(solver, x, y, steps=50, after=long)
        assert all(np.array_equal(long.params[name], further.params[name]) for name in long.params)
        half = fit(solver, x, y, steps=6, after=fit(solver, x, y, steps=4))
        whole = fit(solver, x, y, steps=10)
        assert all(np.array_equal(half.params[name], whole.params[name]) for name in whole.params)
        assert np.abs(whole.params["kernel"] - long.params["kernel"]).max() > 1e-5
    early = fit(crr(MODEL, corrupted=50, tolerance=10.0), x, y, steps=600).params["kernel"]
    late = fit(crr(MODEL, corrupted=50), x, y, steps=600).params["kernel"]
    assert np.abs(early - late).max() > 1e-3


# --- STIR --------------------------------------------------------------------------------------------------------


def stir_loop(x: np.ndarray, y: np.ndarray, steps: int, last: float = 1e9) -> np.ndarray:
    """Normal equations with a ridge of 1e-20 in float64; every bound solves at least once."""
    x, m, eta = with_ones(x), 0.001, 10.0
    theta, move = np.zeros(x.shape[1]), np.inf
    for _ in range(steps):
        if move <= 2 / (eta * m):
            if m * eta > last:
                break
            m *= eta
        with np.errstate(divide="ignore"):
            s = np.minimum(1 / np.abs(x @ theta - y), m)
        new = np.linalg.solve(x.T @ (s[:, None] * x) + 1e-20 * np.eye(x.shape[1]), x.T @ (s * y))
        theta, move = new, np.linalg.norm(new - theta)
    return theta


def absolute(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least absolute errors by a linear programme: residuals as differences of two nonnegative parts."""
    x = with_ones(x)
    rows, columns = x.shape
    equal = np.hstack([x, np.eye(rows), -np.eye(rows)])
    bounds = [(None, None)] * columns + [(0, None)] * (2 * rows)
    cost = np.append(np.zeros(columns), np.ones(2 * rows))
    return linprog(cost, A_eq=equal, b_eq=y, bounds=bounds, method="highs").x[:columns]


def test_stir_equals_its_algorithm_step_by_step() -> None:
    x, y, _ = fingerprints(0.4)
    x = x[:, 3:]  # without the columns that leave the equations of the formula singular
    model = eh.models.linear_regression(features=x.shape[1])
    expected = {steps: stir_loop(x, y, steps) for steps in (1, 3, 5, 8, 12, 20)}
    for steps, weights in expected.items():
        np.testing.assert_allclose(weights_of(stir(model), x, y, steps), weights, atol=2e-4)
    moves = [np.abs(expected[a] - expected[b]).max() for a, b in ((3, 5), (5, 8), (8, 12), (12, 20))]
    assert min(moves) > 1e-3


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_stir_ends_at_least_absolute_errors(share: float) -> None:
    x, y, _ = fingerprints(share)
    found = weights_of(stir(MODEL), x, y, 300)
    design = with_ones(x)
    best = np.abs(design @ absolute(x, y) - y).mean()
    plain = np.abs(design @ np.linalg.lstsq(design, y, rcond=None)[0] - y).mean()
    assert best <= np.abs(design @ found - y).mean() + 1e-9 < best * (1 + 1e-4) < plain
    # Of equal predictions, the least norm: nothing for columns of 0, halves for copies.
    assert np.abs(found[:2]).max() < 1e-6
    np.testing.assert_allclose(found[2], found[3], atol=1e-5)


def test_stir_fits_labels_that_are_all_0() -> None:
    x, y, _ = fingerprints(0.2)
    assert not weights_of(stir(MODEL), x, np.zeros_like(y), 4).any()


def test_one_stage_of_stir_is_least_squares() -> None:
    x, y, _ = fingerprints(0.2)
    expected = np.linalg.pinv(with_ones(x)) @ y
    np.testing.assert_allclose(weights_of(stir(MODEL, stages=1), x, y, 4), expected, atol=1e-5)
    further = weights_of(stir(MODEL, stages=5), x, y, 60)
    assert np.abs(further - expected).max() > 0.1
    # Copies may differ by their rounding in float32, which says nothing about the labels.
    x[:, 3] = np.float32(1e4 * np.random.default_rng(1).normal(size=ROWS))
    x[:, 2] = np.float32(x[:, 3] / 3)
    assert np.abs(weights_of(stir(MODEL, stages=1), x, y, 4)[2:4]).max() < 1.0
    x, y, _ = fingerprints(0.2)
    # Residuals below 1 / m have equal weights; with a large m there are none.
    np.testing.assert_allclose(
        weights_of(stir(MODEL, m=1e4, stages=1), x, y, 300), weights_of(stir(MODEL), x, y, 300), atol=1e-2
    )


def test_the_growth_of_stirs_bound_matters_on_the_way_only() -> None:
    x, y, _ = fingerprints(0.2)
    slow, fast = (weights_of(stir(MODEL, eta=eta), x, y, 6) for eta in (2.0, 10.0))
    assert np.abs(slow - fast).max() > 1e-2
    slow, fast = (weights_of(stir(MODEL, eta=eta), x, y, 400) for eta in (2.0, 10.0))
    np.testing.assert_allclose(slow, fast, atol=1e-3)


PLANE = eh.models.linear_regression(features=2)
SOLVERS = (crr(PLANE, corrupted=6), stir(PLANE))


@settings(max_examples=10, deadline=None, phases=[Phase.generate])
@given(st.integers(0, 1000), st.tuples(*[st.floats(-10.0, 10.0)] * 3))
def test_labels_that_a_plane_is_added_to_move_the_weights_by_the_plane(
    seed: int, plane: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(30, 2)), rng.standard_t(2.0, 30)
    for solver in SOLVERS:
        weights, moved = (weights_of(solver, x, each, 300) for each in (y, y + with_ones(x) @ plane))
        np.testing.assert_allclose(moved, weights + plane, atol=1e-2)


# --- what both refuse --------------------------------------------------------------------------------------------

OTHERS = {
    "two outputs": eh.models.linear_regression(features=FEATURES, outputs=2),
    "classes": eh.models.softmax_regression(features=FEATURES, classes=2),
    "another loss": MODEL._replace(losses=lambda outputs, y: jnp.abs(outputs[:, 0] - y)),
    "no name": MODEL._replace(name=""),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("make", [lambda model: crr(model, corrupted=3), stir], ids=["crr", "stir"])
def test_models_without_a_closed_form_are_refused(name: str, make: Any) -> None:
    with pytest.raises(
        eh.EvenhandError, match=r"in closed form, and cannot train .*linear_regression\(features\)"
    ):
        make(OTHERS[name])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: crr(MODEL, corrupted=-1), "corrupted"),
        (lambda: crr(MODEL, corrupted=1, ridge=0.0), r"crr\(ridge=0.0\): give a finite number above 0"),
        (
            lambda: crr(MODEL, corrupted=1, tolerance=-1.0),
            r"crr\(tolerance=-1.0\): give a finite number >= 0",
        ),
        (lambda: stir(MODEL, m=0.0), r"stir\(m=0.0\): the first bound on the weights"),
        (lambda: stir(MODEL, eta=1.0), r"stir\(eta=1.0\): the growth of the bound"),
        (lambda: stir(MODEL, stages=0), "stages"),
        (
            lambda: fit(crr(MODEL, corrupted=5), np.ones((4, FEATURES)), np.ones(4), steps=1),
            r"crr\(corrupted=5\): there are only 4 examples",
        ),
        (
            lambda: fit(stir(MODEL), np.ones((4, FEATURES)), np.array([1.0, np.nan, 1.0, 1.0]), steps=1),
            r"stir\(\) got features or labels that are NaN or infinite",
        ),
        (
            lambda: fit(stir(MODEL), np.ones((4, 3)), np.ones(4), steps=1),
            r"stir\(\) got x of shape \(4, 3\) and y of shape \(4,\), but its model takes 24 features",
        ),
        (
            lambda: fit(crr(MODEL, corrupted=1), np.ones((4, FEATURES)), np.ones((4, 2)), steps=1),
            r"crr\(\) got x of shape \(4, 24\) and y of shape \(4, 2\)",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        make()
