"""The constants of FedProx's convergence theorem as numbers, and the proximal weights that they call for.

Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, theorem 4 and its corollaries.
"""

from __future__ import annotations

import math
from typing import Any, cast

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import optimize, stats

import evenhand as eh
from evenhand.theory import dissimilarity_bound, fedprox_decrease, fedprox_mu, fedprox_rounds
from evenhand.types import Model


def rho(mu: float, gamma: float, B: float, K: float, L: float, L_minus: float) -> float:
    return fedprox_decrease(mu, B=B, lipschitz=L, cohort=K, gamma=gamma, concavity=L_minus)


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


# --- the proximal weights that it allows -------------------------------------------------------------------------

_MANY = {"B": 1.5, "gamma": 0.1, "cohort": 50.0, "lipschitz": 3.0}


@pytest.mark.parametrize("concavity", [0.0, 0.5, 20.0])
@pytest.mark.parametrize(
    "changed", [{}, {"B": 1.0, "gamma": 0.0}, {"B": 2.5, "cohort": 1e3}, {"lipschitz": 0.01}]
)
def test_least_and_best_weights_against_scipy(concavity: float, changed: dict[str, float]) -> None:
    given = {**_MANY, **changed, "concavity": concavity}
    found = fedprox_mu(**given)

    def at(log: float) -> float:
        return fedprox_decrease(concavity + math.exp(log), **given)

    root = cast(float, optimize.brentq(at, math.log(1e-3 * found.least), math.log(found.best)))
    assert concavity + math.exp(root) == pytest.approx(found.least, rel=1e-7)
    bounds = (root, root + 12)
    top = cast(Any, optimize.minimize_scalar(lambda log: -at(log), bounds=bounds, method="bounded"))
    assert -top.fun == pytest.approx(found.decrease, rel=1e-6)
    assert concavity + math.exp(top.x) == pytest.approx(found.best, rel=1e-2)
    grid = concavity + np.geomspace(1e-3, 1e6, 4000)
    rises = np.array([fedprox_decrease(mu, **given) > 0 for mu in grid])
    assert np.array_equal(rises, grid > found.least)


def test_without_concavity_the_weights_are_in_closed_form() -> None:
    """With a and b as printed: ``b / a``, ``2 b / a`` and ``a^2 / (4 b)``; they scale with L."""
    B, gamma, K, L = 1.5, 0.1, 50.0, 3.0
    a = 1 - gamma * B - math.sqrt(2 / K) * B * (1 + gamma)
    b = L * B * (1 + gamma) + L * B**2 * (1 + gamma) ** 2 * (0.5 + (2 * math.sqrt(2 * K) + 2) / K)
    assert fedprox_mu(**_MANY) == pytest.approx((b / a, 2 * b / a, a**2 / (4 * b)), rel=1e-9)
    ten_times = fedprox_mu(**{**_MANY, "lipschitz": 10 * L})
    assert ten_times == pytest.approx((10 * b / a, 20 * b / a, a**2 / (40 * b)), rel=1e-9)


@hypothesis.given(st.floats(0, 1), st.floats(1, 50), st.floats(1, 1e4), _L, st.sampled_from([0.0, 2.0]))
def test_there_is_a_weight_exactly_where_the_condition_holds(
    gamma: float, B: float, K: float, L: float, concavity: float
) -> None:
    slope = 1 - gamma * B - math.sqrt(2 / K) * B * (1 + gamma)
    hypothesis.assume(abs(slope) > 1e-6)
    found = fedprox_mu(B=B, gamma=gamma, cohort=K, lipschitz=L, concavity=concavity)
    assert math.isfinite(found.best) == math.isfinite(found.least) == (slope > 0) == (found.decrease > 0)
    assert found.least > concavity


def test_one_round_at_the_best_weight_decreases_a_quadratic_by_what_is_promised() -> None:
    """Two clients ``a (w - c)^2 / 2``, exact solves and all draws of 100: the expectation in closed form."""
    a, c, K, w = np.array([1.0, 2.0]), np.array([0.0, 1.0]), 100, 3.0

    def f(w: Any) -> Any:
        return np.mean(a / 2 * (np.asarray(w)[..., None] - c) ** 2, axis=-1)

    gradients = a * (w - c)
    squared = float(np.mean(gradients) ** 2)
    B = math.sqrt(np.mean(gradients**2) / squared)
    found = fedprox_mu(B=B, lipschitz=2.0, cohort=K)
    firsts = np.arange(K + 1)
    for mu in (found.best, 1.01 * found.least, 3 * found.best):
        ends = (a * c + mu * w) / (a + mu)
        expected = stats.binom.pmf(firsts, K, 0.5) @ f((firsts * ends[0] + (K - firsts) * ends[1]) / K)
        rho = fedprox_decrease(mu, B=B, lipschitz=2.0, cohort=K)
        assert expected <= f(w) - rho * squared < f(w)
    assert fedprox_decrease(found.best, B=B, lipschitz=2.0, cohort=K) == found.decrease > 0


def test_the_stated_number_of_rounds_suffices() -> None:
    # A gradient descent whose every step decreases f by rho ||grad f||^2 exactly: f = w^2 / 2, step s.
    step, w, epsilon = 0.1, 3.0, 1e-2
    decrease = step * (1 - step / 2)
    first, squares = w * w / 2, []
    rounds = fedprox_rounds(first, decrease, epsilon)
    assert rounds == math.ceil(first / (decrease * epsilon))
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
    bound = dissimilarity_bound
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


@pytest.mark.parametrize(
    "wrong",
    [
        *({"B": 0.9}, {"gamma": 1.1}, {"gamma": -0.1}, {"cohort": 0}, {"cohort": math.inf}),
        *({"lipschitz": 0.0}, {"concavity": -1.0}),
        *({"B": "a"}, {"gamma": None}, {"cohort": 1e200}, {"lipschitz": 1e200}, {"concavity": math.inf}),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(eh.EvenhandError, match="give"):
        fedprox_mu(**{**_MANY, **wrong})
    with pytest.raises(eh.EvenhandError, match="give"):
        fedprox_decrease(100.0, **{**_MANY, **wrong})


def test_other_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(eh.EvenhandError, match="above concavity=2"):
        fedprox_decrease(2.0, **_MANY, concavity=2.0)
    for mu in (1e300, 1e-300, "2"):
        with pytest.raises(eh.EvenhandError, match="above concavity=0, from 1e-50 to 1e50"):
            fedprox_decrease(cast(float, mu), **_MANY)
    outside = ((-1.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (math.nan, 1.0, 1.0), (math.inf, 1.0, 1.0))
    outside += ((1e300, 1e-300, 1.0), (1.0, 1e-320, 1e-10))
    for arguments in outside:
        with pytest.raises(eh.EvenhandError, match="gap of at least 0"):
            fedprox_rounds(*arguments)
    with pytest.raises(eh.EvenhandError, match="variance of at least 0"):
        dissimilarity_bound(-1.0, 1.0)
    with pytest.raises(eh.EvenhandError, match="from 1e-50 to 1e50"):
        dissimilarity_bound(math.inf, math.inf)


@hypothesis.given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0, 3))
def test_weights_of_any_scale_are_numbers(lipschitz: float, concavity: float, cohort: float) -> None:
    weights = fedprox_mu(B=1.0, lipschitz=10**lipschitz, cohort=100 * 10**cohort, concavity=10**concavity)
    assert 10**concavity < weights.least < weights.best < math.inf
    assert weights.decrease > 0.0
