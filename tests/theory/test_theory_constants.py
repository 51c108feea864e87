"""The constants of FedProx's convergence theorem as numbers: they are formulas, in no part of the library.

Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, theorem 4 and its corollaries.
"""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import evenhand as eh
from evenhand.types import Model


def rho(mu: float, gamma: float, B: float, K: float, L: float, L_minus: float) -> float:
    """The expected decrease of ``f`` in one round, per unit of its squared gradient."""
    bar = mu - L_minus
    inexact = 1 + gamma
    return (
        1 / mu
        - gamma * B / mu
        - B * inexact * math.sqrt(2) / (bar * math.sqrt(K))
        - L * B * inexact / (bar * mu)
        - L * inexact**2 * B**2 / (2 * bar**2)
        - L * B**2 * inexact**2 / (bar**2 * K) * (2 * math.sqrt(2 * K) + 2)
    )


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((6, 0, 1, 100, 1, 0), 0.0930174764),
        ((60, 0, 1, 100, 1, 0), 0.0138088544),
        ((600, 0, 10, 400, 1, 0), 2.808160991e-4),
        ((600, 0, 10, 10000, 1, 0), 1.256385442e-3),
        ((2, 0, 1, 10, 1, 0), -0.3722135955),
        ((10, 0.1, 2, 1000, 1, 1), 0.0092831398),
        ((10, 0.5, 2, 1e6, 1, 0), -0.0756790025),
    ],
)
def test_the_expected_decrease_by_numbers(arguments: tuple[float, ...], value: float) -> None:
    assert rho(*arguments) == pytest.approx(value, rel=1e-8)


_MU = st.floats(0.01, 1e4)
_L = st.floats(0.01, 10)


@hypothesis.given(_MU, st.floats(0, 1), st.floats(1, 50), st.floats(1, 1e4), _L)
def test_too_much_dissimilarity_leaves_no_decrease(
    mu: float, gamma: float, B: float, K: float, L: float
) -> None:
    if gamma * B >= 1 or math.sqrt(K) <= B or gamma * B + math.sqrt(2) * B * (1 + gamma) / math.sqrt(K) >= 1:
        assert rho(mu, gamma, B, K, L, 0.0) <= 0
    # Conversely, a large enough mu always helps.
    elif gamma * B + math.sqrt(2) * B * (1 + gamma) / math.sqrt(K) < 0.99:
        assert rho(1e6 * L * B**2, gamma, B, K, L, 0.0) > 0


def test_the_condition_on_the_cohort_is_sharper_than_stated() -> None:
    # B < sqrt(K) is necessary, not sufficient: without inexactness it must be below sqrt(K / 2).
    K = 100.0
    assert all(rho(mu, 0, 0.8 * math.sqrt(K), K, 1, 0) < 0 for mu in (1, 1e2, 1e4, 1e6, 1e8))
    assert rho(1e6, 0, 0.7 * math.sqrt(K), K, 1, 0) > 0


@pytest.mark.parametrize(
    ("share", "scaled"),
    [
        (0.5, {(10, 400): 0.02808, (50, 1e4): 0.03358, (500, 1e6): 0.03479}),
        (0.4, {(8, 400): 0.05096, (40, 1e4): 0.05701, (400, 1e6): 0.05835}),
        (0.25, {(5, 400): 0.0842, (25, 1e4): 0.0919, (250, 1e6): 0.0937}),
    ],
)
def test_the_rate_of_the_convex_case(share: float, scaled: dict[tuple[float, float], float]) -> None:
    for (B, K), value in scaled.items():
        assert pytest.approx(share * math.sqrt(K)) == B
        exact = rho(6 * B**2, 0, B, K, 1, 0) * B**2
        assert exact == pytest.approx(value, abs=6e-5)
        # The stated 1 / (24 L B^2) holds where the cohort is large enough, not up to B = sqrt(K) / 2.
        assert (exact >= 1 / 24) == (share < 0.47)


def test_the_stated_number_of_rounds_suffices() -> None:
    # A gradient descent whose every step decreases f by rho ||grad f||^2 exactly: f = w^2 / 2, step s.
    step, w, epsilon = 0.1, 3.0, 1e-2
    decrease = step * (1 - step / 2)
    first, squares = w * w / 2, []
    rounds = math.ceil(first / (decrease * epsilon))
    for _ in range(rounds):
        squares.append(w * w)
        assert (w - step * w) ** 2 / 2 <= w * w / 2 - decrease * w * w + 1e-12
        w -= step * w
    assert sum(squares) / rounds <= epsilon
    assert sum(squares) / rounds <= first / (decrease * rounds) + 1e-12
    assert sum(squares[:30]) / 30 > epsilon, "fewer rounds do not always suffice"


@hypothesis.given(_MU, st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(1, 5), st.floats(10, 1e4))
def test_the_least_exact_client_decides(mu: float, gammas: list[float], B: float, K: float) -> None:
    values = [rho(mu, gamma, B, K, 1.0, 0.0) for gamma in gammas]
    assert rho(mu, max(gammas), B, K, 1.0, 0.0) <= min(values) + 1e-12 * max(map(abs, values))


def test_bounded_variance_bounds_the_dissimilarity() -> None:
    def bound(variance: float, epsilon: float) -> float:
        return math.sqrt(1 + variance / epsilon)

    assert bound(3, 1) == 2
    # On f_1 = w^2 / 2, f_2 = 3 (w - 1)^2 / 2 the measured B meets the bound with its own V and gradient.
    model = Model(
        init=lambda key: np.float32(0.0),
        apply=lambda w, x: x[:, 0] / 2 * (w - x[:, 1]) ** 2,
        losses=lambda outputs, y: outputs,
        metrics={},
    )
    rows = eh.data.Split(np.array([[1, 0], [3, 1]], np.float32), np.zeros(2, np.float32), np.array([0, 1, 2]))
    for w in (-1.0, 0.6, 2.0):
        found = eh.evaluation.dissimilarity(model, np.float32(w), rows)
        squared = found.global_gradient_norm**2
        assert pytest.approx(bound(found.gradient_variance, squared), rel=1e-6) == found.B
        assert bound(found.gradient_variance, squared / 2) > found.B
        assert bound(found.gradient_variance, 2 * squared) < found.B
