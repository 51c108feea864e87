"""The rates of FedAlt and FedSim: on quadratics the noise that stays is known exactly, from a linear recursion.

Pillutla et al., *Federated Learning with Partial Model Personalization*, ICML 2022.  Client ``k`` has the loss
``L_u u^2 / 2 + c u v_k + L_v v_k^2 / 2 - b_k u`` with ``c = chi sqrt(L_u L_v)``; all of it is NumPy.
"""

from __future__ import annotations

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import evenhand as eh
from evenhand.theory import PartialProblem, fedalt_variance, fedsim_variance

_BASE = PartialProblem(
    clients=4,
    cohort=2,
    smooth_shared=2.0,
    smooth_personal=0.5,
    coupling=0.0,
    noise_shared=1.0,
    noise_personal=0.7,
    diversity=0.0,
)


def _left(problem: PartialProblem, eta: float, alternating: bool, spread: float = 0.0) -> float:
    """The mean of ``|grad_u F|^2 / L_u + m / (n L_v) mean_k |grad_v F_k|^2`` once steps and noise are in balance.

    One local step of each part; the state is the distance from the minimum.  ``spread``: of the ``b_k``, which are plus
    and minus it, so that clients differ by ``spread^2`` in the square.
    """
    n, m = problem.clients, problem.cohort
    lu, lv = problem.smooth_shared, problem.smooth_personal
    c = problem.coupling * math.sqrt(lu * lv)
    b = spread * np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    step_u, step_v = eta / lu, eta / lv
    size = n + 1
    unit = np.eye(size)
    second = np.zeros((size**2, size**2))
    added = np.zeros((size, size))
    cohorts = list(itertools.combinations(range(n), m))
    for cohort in cohorts:
        chosen = np.isin(np.arange(n), cohort)
        # v first: x -> A x + noise; then u from the old v, or the new one.
        of_v = unit.copy()
        of_v[1:][chosen] -= step_v * (c * unit[0] + lv * unit[1:][chosen])
        noise_v = np.diag(np.concatenate([[0.0], chosen * step_v**2 * problem.noise_personal]))
        gradient = lu * unit[0] + c * unit[1:][chosen].mean(axis=0)
        of_u = unit - step_u * np.outer(unit[0], gradient)
        if alternating:
            moved, noise = of_u @ of_v, of_u @ noise_v @ of_u.T
        else:
            moved, noise = of_v + of_u - unit, noise_v
        drift = step_u * b[chosen].mean()
        noise = noise + np.outer(unit[0], unit[0]) * (step_u**2 * problem.noise_shared / m + drift**2)
        second += np.kron(moved, moved) / len(cohorts)
        added += noise / len(cohorts)
    covariance = np.linalg.solve(np.eye(size**2) - second, added.ravel()).reshape(size, size)
    shared = lu * unit[0] + c * unit[1:].mean(axis=0)
    personal = c * unit[0] + lv * unit[1:]
    squares = np.einsum("ki,ij,kj->k", personal, covariance, personal)
    return float(shared @ covariance @ shared / lu + m / (n * lv) * squares.mean())


@pytest.mark.parametrize("cohort", [1, 2, 4])
@pytest.mark.parametrize("spread", [0.0, 1.5])
@pytest.mark.parametrize("eta", [0.01, 0.4])
def test_without_coupling_the_noise_that_stays_is_the_constant_itself(
    cohort: int, spread: float, eta: float
) -> None:
    """``eta / (2 - eta)`` times both: each term of them shows.  Draws without replacement vary by ``n / (n - 1)``."""
    problem = _BASE._replace(cohort=cohort, diversity=spread**2 * 4 / 3)
    for variance, alternating in ((fedalt_variance, True), (fedsim_variance, False)):
        left = _left(problem, eta, alternating, spread)
        assert left * (2 - eta) / eta == pytest.approx(variance(problem), rel=1e-9)
    if spread and cohort < 4:
        assert fedsim_variance(problem) > 1.2 * fedsim_variance(problem._replace(diversity=0.0))


@pytest.mark.parametrize("coupling", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("cohort", [1, 2, 4])
@pytest.mark.parametrize("noises", [(1.0, 0.1), (0.1, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_with_coupling_the_constants_bound_it(
    coupling: float, cohort: int, noises: tuple[float, float]
) -> None:
    """Up to their absolute constant, here 1; small steps leave the same noise in both methods."""
    shared, personal = noises
    problem = _BASE._replace(coupling=coupling, cohort=cohort, noise_shared=shared, noise_personal=personal)
    for eta in (0.01, 0.1):
        for variance, alternating in ((fedalt_variance, True), (fedsim_variance, False)):
            assert _left(problem, eta, alternating) <= eta * variance(problem)
    small = [_left(problem, 1e-4, alternating) for alternating in (True, False)]
    assert small[0] == pytest.approx(small[1], rel=1e-3)


def test_steps_of_full_length_leave_less_noise_where_parts_alternate() -> None:
    """As the constants say where half of the clients take part or more; the more so, the stronger the coupling."""
    for cohort in (2, 4):
        ratios = []
        for coupling in (0.1, 0.5, 0.9):
            problem = _BASE._replace(coupling=coupling, cohort=cohort, noise_personal=0.1)
            assert fedalt_variance(problem) < fedsim_variance(problem)
            ratios.append(_left(problem, 0.9, True) / _left(problem, 0.9, False))
        assert 1 > ratios[0] > ratios[1] > ratios[2] and ratios[2] < 0.8


@hypothesis.given(
    st.integers(1, 50), st.integers(0, 50), st.floats(0.05, 1), *[st.floats(0.01, 10) for _ in range(5)]
)
def test_alternating_has_the_smaller_constant_exactly_where_the_source_says(
    m: int, rest: int, chi: float, lu: float, lv: float, su: float, sv: float, delta: float
) -> None:
    n = m + rest
    problem = PartialProblem(n, m, lu, lv, chi, su, sv, delta)
    personal, shared = sv / lv * (1 - 2 * m / n), (su + delta * (1 - m / n)) / (m * lu)
    hypothesis.assume(abs(personal - shared) > 1e-6 * (abs(personal) + shared))
    assert (fedalt_variance(problem) < fedsim_variance(problem)) == (personal < shared)
    difference = fedalt_variance(problem) - fedsim_variance(problem)
    assert difference == pytest.approx(chi**2 * (personal - shared), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cohort": 5},
        {"cohort": 0},
        {"smooth_shared": 0.0},
        {"coupling": -0.1},
        {"noise_personal": math.nan},
        {"coupling": 1e200},
        {"diversity": "1"},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    for variance in (fedalt_variance, fedsim_variance):
        with pytest.raises(eh.EvenhandError, match="give"):
            variance(_BASE._replace(**wrong))
