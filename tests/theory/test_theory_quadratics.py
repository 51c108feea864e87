"""FedProx, FedAvg and FedDane on quadratics, where everything is known in closed form.

Client ``k`` has ``F_k(w) = a_k (w - c_k)^2 / 2``: its rows are pairs ``(a, c)``, one row a client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand import local
from evenhand.aggregators import aggregate, mean
from evenhand.sampling import proportional
from evenhand.types import Algorithm, Array, ClientData, Key, Model

MODEL = Model(
    init=lambda key: jnp.float32(2.0),
    apply=lambda w, x: x[:, 0] / 2 * (w - x[:, 1]) ** 2,
    losses=lambda outputs, y: outputs,
    metrics={},
)


def _exact(params: Array, data: ClientData, key: Key, correction: Any) -> Any:
    """Solves the corrected local problem, a parabola, from its slope at two points."""
    state = correction.init(params)
    slope, _ = correction.update(local.full_gradient(MODEL, params, data), state, params)
    further, state = correction.update(local.full_gradient(MODEL, params + 1.0, data), state, params + 1.0)
    return params - slope / (further - slope), state


def _clients(a: tuple[float, ...], c: tuple[float, ...]) -> eh.data.FederatedDataset:
    rows, count = np.stack([a, c], axis=1).astype(np.float32), len(a)
    train = eh.data.Split(rows, np.zeros(count, np.float32), np.arange(count + 1))
    none = eh.data.Split(rows[:0], np.zeros(0, np.float32), np.zeros(count + 1, int))
    return eh.data.FederatedDataset(train, none, none, tuple(map(str, range(count))))


def _trained(method: Algorithm) -> Callable[[Array, Array, Array], Array]:
    """``(w, a, c) -> (K,)``: what the clients' local work makes of the broadcast ``w``."""
    phase = method.phases[-1]

    def all_clients(w: Array, a: Array, c: Array) -> Array:
        state = method.init(w, a.shape[0])

        def one(a: Array, c: Array) -> Array:
            rows = jnp.stack([a, c])[None]
            data = ClientData(rows, jnp.zeros(1), jnp.int32(0), jnp.int32(1), jnp.float32(1.0), 1)
            return w + phase.work(phase.broadcast(state, jnp.int32(0)), (), data, jax.random.key(0))[0]

        return jax.vmap(one)(a, c)

    return jax.jit(all_clients)


@cache
def _exact_fedprox(mu: float) -> Callable[[Array, Array, Array], Array]:
    return _trained(eh.algorithms.fedprox(eh.local.Work(MODEL, _exact), mu=mu))


def _f(w: np.ndarray | float, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.mean(a / 2 * (np.asarray(w)[..., None] - c) ** 2, axis=-1)


# --- one round's descent (theorem) -------------------------------------------------------------------------------

_A, _C = np.array([1.0, 2.0]), np.array([0.0, 1.0])


def test_one_round_decreases_the_objective_as_the_theorem_says() -> None:
    w, mu, K, L = 3.0, 12.0, 100, 2.0
    w1, w2 = np.asarray(_exact_fedprox(mu)(jnp.float32(w), jnp.float32(_A), jnp.float32(_C)), np.float64)
    firsts = np.arange(K + 1)
    expected = stats.binom.pmf(firsts, K, 0.5) @ _f((firsts * w1 + (K - firsts) * w2) / K, _A, _C)
    assert expected == pytest.approx(3.3961761110, rel=1e-6)
    measured = eh.evaluation.dissimilarity(MODEL, jnp.float32(w), _clients((1.0, 2.0), (0.0, 1.0)).train)
    assert pytest.approx(1.0101525446, rel=1e-6) == measured.B
    rho = eh.theory.fedprox_decrease(mu, B=measured.B, lipschitz=L, cohort=K)
    bound = _f(w, _A, _C) - rho * measured.global_gradient_norm**2
    assert rho == pytest.approx(0.0460205186, rel=1e-6)
    assert bound == pytest.approx(3.6862486469, rel=1e-6)
    assert expected <= bound < _f(w, _A, _C)


def test_the_expectation_is_that_of_the_sampling_scheme() -> None:
    w1, w2 = np.asarray(_exact_fedprox(12.0)(jnp.float32(3.0), jnp.float32(_A), jnp.float32(_C)))
    ends = jnp.array([w1, w2])

    def one_round(key: Key) -> Array:
        cohort = proportional().draw(key, jnp.array([1, 1], jnp.int32), 100)
        return aggregate(mean(), ends[cohort.ids])

    after = np.asarray(jax.jit(jax.vmap(one_round))(jax.random.split(jax.random.key(0), 4000)), np.float64)
    values = _f(after, _A, _C)
    tolerance = 4.5 * values.std() / np.sqrt(len(values))
    assert abs(values.mean() - 3.3961761110) < tolerance
    full_participation = float(_f((w1 + w2) / 2, _A, _C))
    assert full_participation < values.mean(), "a random cohort costs a little"


def test_without_a_proximal_term_one_round_can_overshoot() -> None:
    # Both clients jump to their own minimisers, and the average is worse than where they started.
    a, c = np.array([1.0, 100.0]), np.array([0.0, 1.0])
    for mu, worse in ((0.0, True), (300.0, False)):
        w = np.asarray(_exact_fedprox(mu)(jnp.float32(0.95), jnp.float32(a), jnp.float32(c))).mean()
        assert bool(_f(w, a, c) > _f(0.95, a, c)) == worse


# --- bounds on one client's step ---------------------------------------------------------------------------------


def test_bounds_of_the_proof_by_numbers() -> None:
    ends = np.asarray(_exact_fedprox(12.0)(jnp.float32(3.0), jnp.float32(_A), jnp.float32(_C)), np.float64)
    moved, gradients = np.abs(ends - 3.0), np.abs(_A * (3.0 - _C))
    np.testing.assert_allclose(moved, [0.23077, 0.28571], atol=1e-5)
    np.testing.assert_allclose(gradients / 12.0, [0.25, 0.33333], atol=1e-5)


@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_inexact_work_stays_within_the_bounds_of_the_proof(mu: float) -> None:
    rng = np.random.default_rng(0)
    a, c = (jnp.asarray(values, jnp.float32) for values in (rng.uniform(0.1, 3, 50), rng.normal(size=50)))
    w = 1.3
    start = eh.algorithms.fedprox(eh.local.sgd(MODEL, 0.1, steps=4), mu=mu)
    ends = np.asarray(_trained(start)(jnp.float32(w), a, c), np.float64)
    best = np.asarray(_exact_fedprox(mu)(jnp.float32(w), a, c), np.float64)
    a, c = np.asarray(a, np.float64), np.asarray(c, np.float64)
    gradient = np.abs(a * (w - c))
    gamma = np.abs(a * (ends - c) + mu * (ends - w)) / gradient
    assert (gamma > 0).all() and (gamma < 1).all()
    assert (np.abs(ends - w) <= (1 + gamma) / mu * gradient + 1e-6).all()
    assert (np.abs(best - ends) <= gamma / mu * gradient + 1e-6).all()
    assert not (np.abs(best - ends) <= 0.1 * gamma / mu * gradient).all(), "the bound is not vacuous"


# --- closed forms of local work ----------------------------------------------------------------------------------


def test_five_proximal_steps_by_numbers() -> None:
    a, c, mu, rate, steps = np.array([1.0, 3.0]), np.array([0.0, 1.0]), 1.0, 0.1, 5
    method = eh.algorithms.fedprox(eh.local.sgd(MODEL, rate, steps=steps), mu=mu)
    ends = np.asarray(_trained(method)(jnp.float32(2.0), jnp.float32(a), jnp.float32(c)))
    best = (a * c + mu * 2.0) / (a + mu)
    np.testing.assert_allclose(ends, best + (1 - rate * (a + mu)) ** steps * (2.0 - best), rtol=1e-6)
    np.testing.assert_allclose(ends, [1.32768, 1.30832], rtol=1e-6)
    rows = _clients((1.0, 3.0), (0.0, 1.0)).train
    for k, gamma in enumerate((0.32768, 0.07776)):
        found = eh.evaluation.inexactness(MODEL, jnp.float32(2.0), jnp.float32(ends[k]), rows, k, mu=mu)
        assert found == pytest.approx(gamma, rel=1e-5)
        assert eh.evaluation.inexactness(
            MODEL, jnp.float32(2.0), jnp.float32(ends[k]), rows, k
        ) != pytest.approx(gamma, rel=1e-2), "of the proximal problem, not of F_k"
    twice = (a * c + 2 * mu * 2.0) / (a + 2 * mu)
    wrong = twice + (1 - rate * (a + 2 * mu)) ** steps * (2.0 - twice)
    assert np.abs(wrong - ends).max() > 0.05, "the pull is mu, not 2 mu"


def test_fedavg_is_the_case_mu_zero() -> None:
    a, c = jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])
    work = eh.local.sgd(MODEL, 0.1, steps=5)
    fedavg = _trained(eh.algorithms.fedavg(work))(jnp.float32(2.0), a, c)
    fedprox = _trained(eh.algorithms.fedprox(work, mu=0.0))(jnp.float32(2.0), a, c)
    assert np.array_equal(fedavg, fedprox)
    np.testing.assert_allclose(fedavg, [2 * 0.9**5, 1 + 0.7**5], rtol=1e-6)


def test_the_first_step_of_a_round_is_fedavgs() -> None:
    a, c = jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])
    work = eh.local.sgd(MODEL, 0.1, steps=1)
    fedavg = _trained(eh.algorithms.fedavg(work))(jnp.float32(2.0), a, c)
    fedprox = _trained(eh.algorithms.fedprox(work, mu=1.0))(jnp.float32(2.0), a, c)
    assert np.array_equal(fedavg, fedprox)


def test_a_large_mu_turns_an_exact_solve_into_a_gradient_step() -> None:
    a, c = jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])
    gradients = np.array([2.0, 3.0])
    for mu, tolerance in ((10.0, 0.31), (1000.0, 5e-3)):
        moved = mu * (2.0 - np.asarray(_exact_fedprox(mu)(jnp.float32(2.0), a, c), np.float64))
        np.testing.assert_allclose(moved, gradients, rtol=tolerance)
    assert (
        np.abs(10 * (2.0 - np.asarray(_exact_fedprox(10.0)(jnp.float32(2.0), a, c))) - gradients).max() > 0.1
    )


# --- fixed points of whole runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "fixed_point", "rounds"), [(0.1, 0.515625, 30), (1.0, 0.6, 60), (10.0, 0.7173913, 300)]
)
def test_fixed_point_of_exact_fedprox(mu: float, fixed_point: float, rounds: int) -> None:
    data = _clients((1.0, 3.0), (0.0, 1.0))
    method = eh.algorithms.fedprox(eh.local.Work(MODEL, _exact), mu=mu)
    run = eh.simulate(method, data, rounds=rounds, eval_every=rounds)
    assert float(run.params) == pytest.approx(fixed_point, abs=2e-5)
    a, c = np.array([1.0, 3.0]), np.array([0.0, 1.0])
    assert fixed_point == pytest.approx(np.sum(a * c / (a + mu)) / np.sum(a / (a + mu)), rel=1e-6)
    assert abs(fixed_point - 0.75) > 0.03, "not the minimiser of f"


def test_the_bias_fades_as_mu_grows() -> None:
    a, c = np.array([1.0, 3.0]), np.array([0.0, 1.0])
    ends = [
        float(np.asarray(_exact_fedprox(mu)(jnp.float32(w), jnp.float32(a), jnp.float32(c))).mean())
        for mu, w in ((1e-4, 0.5000125), (1000.0, 0.7496256))
    ]
    assert ends == pytest.approx([0.5, 0.7496256], abs=2e-5), "both are fixed points"
    moved = float(np.asarray(_exact_fedprox(1.0)(jnp.float32(0.75), jnp.float32(a), jnp.float32(c))).mean())
    assert abs(moved - 0.75) > 0.01, "the minimiser is not one at mu = 1"


def test_exact_feddane_with_all_clients_is_dane() -> None:
    # DANE's step: w - mean_k of grad f / (a_k + mu); its fixed point is the minimiser of f, whatever mu.
    data, a, c = _clients((1.0, 3.0), (0.0, 1.0)), np.array([1.0, 3.0]), np.array([0.0, 1.0])
    method = eh.algorithms.feddane(eh.local.Work(MODEL, _exact), mu=1.0)
    watched = list(eh.simulation.iterate(method, data, rounds=40, eval_every=1))
    w = 2.0
    for run in watched[:4]:
        assert float(run.params) == pytest.approx(w, rel=1e-5)
        w = w - np.mean(a * (w - c)) * np.mean(1 / (a + 1.0))
    assert float(watched[-1].params) == pytest.approx(0.75, abs=1e-5)


# --- dissimilarity and convexity ---------------------------------------------------------------------------------


def test_dissimilarity_by_numbers() -> None:
    found = eh.evaluation.dissimilarity(MODEL, jnp.float32(2.0), _clients((1.0, 3.0), (0.0, 1.0)).train)
    assert pytest.approx(1.0198039, rel=1e-7) == found.B
    assert found.gradient_variance == pytest.approx(0.25)
    assert found.gradient_variance == pytest.approx((found.B**2 - 1) * found.global_gradient_norm**2)
    same = eh.evaluation.dissimilarity(MODEL, jnp.float32(2.0), _clients((2.0, 2.0), (1.0, 1.0)).train)
    assert (same.B, same.gradient_variance) == (1.0, 0.0)


def test_the_proximal_term_makes_a_concave_loss_convex() -> None:
    # F = -w^2 / 2 with mu = 3/2: h'' = 1/2, and plain steps find its minimiser.
    a, c, w = jnp.array([-1.0]), jnp.array([0.0]), jnp.float32(1.0)
    rows = ClientData(jnp.array([[-1.0, 0.0]]), jnp.zeros(1), jnp.int32(0), jnp.int32(1), jnp.float32(1.0), 1)
    pull = cast(Any, local.proximal(1.5, w))

    def slope(at: float) -> float:
        params = jnp.float32(at)
        gradient = local.full_gradient(MODEL, params, rows)
        return float(pull.update(gradient, pull.init(w), params)[0])

    assert slope(2.0) - slope(1.0) == pytest.approx(0.5)
    work = eh.local.sgd(MODEL, 0.5, steps=80)
    found = float(_trained(eh.algorithms.fedprox(work, mu=1.5))(w, a, c)[0])
    assert found == pytest.approx(1.5 / 0.5, rel=1e-4)
    assert abs(float(_trained(eh.algorithms.fedprox(work, mu=0.5))(w, a, c)[0])) > 1e3, "still concave"


# --- stragglers and the synthetic federation ---------------------------------------------------------------------


def test_numbers_of_the_straggler_simulation() -> None:
    cohort = eh.types.Cohort.of(jnp.arange(10))
    drawn = [eh.systems.stragglers(share).draw(jax.random.key(0), cohort, False) for share in (0.0, 0.5, 0.9)]
    assert [len(fast.ids) for fast in drawn] == [10, 5, 1]
    # A step on F = w is 1 long: one round shows the mean number of epochs of 400 clients, 200 of them slow.
    slope = MODEL._replace(apply=lambda w, x: w + 0.0 * x[:, 0], init=lambda key: jnp.float32(0.0))
    method = eh.algorithms.fedprox(eh.local.sgd(slope, 1.0, epochs=20), mu=0.0)
    data = _clients((1.0,) * 400, (0.0,) * 400)
    mean_epochs = -float(eh.simulate(method, data, rounds=1, systems=eh.systems.stragglers(0.5)).params)
    tolerance = 4.5 * np.sqrt((20**2 - 1) / 12 / 200) / 2
    assert abs(mean_epochs - (20 + 10.5) / 2) < tolerance
    assert min(abs(mean_epochs - 20), abs(mean_epochs - 10.5)) > tolerance, "all fast, or all slow"


def test_later_features_of_a_synthetic_client_vary_less() -> None:
    data = eh.data.synthetic(1.0, 1.0, clients=3, seed=0, max_size=6000, size_sigma=9.0)
    x = data.train.client(int(np.argmax(data.train.sizes)))[0]
    variance = x.var(axis=0, ddof=1)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(expected[[0, 1, 2, 59]], [1, 0.4353, 0.2676, 0.00735], rtol=1e-3)
    tolerance = 4.5 * np.sqrt(2 / len(x))
    np.testing.assert_allclose(variance, expected, rtol=tolerance)
    assert np.abs(variance / expected**0.5 - 1).max() > tolerance


def test_a_common_shift_of_a_softmax_model_changes_no_label() -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(200, 60)), rng.normal(size=(60, 10)), rng.normal(size=10)
    labels = np.argmax(x @ w + b, axis=1)
    assert np.array_equal(np.argmax(x @ (w + 3.0) + b + 3.0, axis=1), labels)
    uneven = w + 3.0 * (np.arange(10) == 4)
    assert not np.array_equal(np.argmax(x @ uneven + b, axis=1), labels)
    shifted, plain = (eh.data.synthetic(alpha, 1.0, clients=4, seed=1, max_size=80) for alpha in (5.0, 0.0))
    assert np.array_equal(shifted.train.y, plain.train.y)
