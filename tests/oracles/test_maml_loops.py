"""MAML, TR-MAML and TERM-MAML against loops in NumPy whose meta-gradients are differences of the meta-loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.algorithms import qmaml
from evenhand.types import Aggregator, Array, ClientData

# A tanh unit: its losses are neither linear nor quadratic in w, so that the inner step's Jacobian depends on w.
BEGIN = np.array([0.3, -0.4])
MODEL = eh.models.from_functions(
    init=lambda key: jnp.asarray(BEGIN, jnp.float32),
    apply=lambda w, x: jnp.tanh(x @ w),
    losses=lambda outputs, y: jnp.square(outputs - y),
)
SIZES = np.array([4, 6, 7, 1])
STEP, ROUNDS, T, CLIMB = 0.4, 6, 3.0, 0.2
EQUAL = eh.sampling.uniform(weighted=False)
OWNERS = np.repeat(np.arange(4), SIZES)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SIZES.sum(), 2)).astype(np.float32)
Y = (RNG.normal(size=SIZES.sum()) + OWNERS).astype(np.float32)
DATA = eh.data.from_arrays(X, Y, client=OWNERS, test_fraction=0.0)
MEAN, TILT = eh.aggregators.mean(), eh.aggregators.risk_weighted(eh.risks.tilted(T))


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(np.square(np.tanh(x @ w) - y)))


def slope(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    output = np.tanh(x @ w)
    return 2 * np.mean(((output - y) * (1 - output**2))[:, None] * x, axis=0)


def halves(k: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    x, y = (np.asarray(part, np.float64)[k == OWNERS] for part in (X, Y))
    half = SIZES[k] // 2
    return ((x[:half], y[:half]), (x[half:], y[half:])) if half else ((x, y), (x, y))


def meta_loss(w: np.ndarray, k: int) -> float:
    support, query = halves(k)
    return loss(w - STEP * slope(w, *support), *query)


def meta_gradient(w: np.ndarray, k: int) -> np.ndarray:
    """Central differences of the loss after the inner step."""
    nudges = 1e-5 * np.eye(2)
    return np.array([(meta_loss(w + d, k) - meta_loss(w - d, k)) / 2e-5 for d in nudges])


def first_order(w: np.ndarray, k: int) -> np.ndarray:
    support, query = halves(k)
    return slope(w - STEP * slope(w, *support), *query)


def project(y: np.ndarray) -> np.ndarray:
    low, high = y.min() - 1.0, y.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(y - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(y - low, 0)


def loop(method: str, rate: float, momentum: float = 0.0, gradient: Any = meta_gradient) -> np.ndarray:
    """Meta-training with all tasks in every step."""
    w, velocity, mixture = BEGIN, np.zeros(2), np.full(4, 0.25)
    for _ in range(ROUNDS):
        losses = np.array([meta_loss(w, k) for k in range(4)])
        tilt = np.exp(T * (losses - losses.max()))
        weights = {"MAML": np.full(4, 0.25), "TERM": tilt / tilt.sum(), "TR": mixture}[method]
        velocity = momentum * velocity + weights @ np.array([gradient(w, k) for k in range(4)])
        mixture = project(mixture + CLIMB * losses)
        w = w - rate * velocity
    return w


AGGREGATORS = {"MAML": MEAN, "TERM": TILT, "TR": eh.aggregators.ascending_mixture(CLIMB, unbiased=True)}


def trained(aggregator: Aggregator, **options: Any) -> np.ndarray:
    method = qmaml(MODEL, step_size=STEP, aggregator=aggregator, sampling=EQUAL, **options)
    return np.asarray(eh.simulate(method, DATA, rounds=ROUNDS, eval_every=ROUNDS).params)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_second_order_equals_differences_of_the_loss_after_the_step(name: str) -> None:
    expected = loop(name, 0.5)
    np.testing.assert_allclose(
        trained(AGGREGATORS[name], second_order=True, lipschitz=2.0), expected, atol=2e-5
    )
    others = [loop(other, 0.5) for other in AGGREGATORS if other != name]
    others += [loop(name, 0.5, gradient=first_order), loop(name, STEP)]
    assert all(np.abs(expected - other).max() > 1e-2 for other in others)


def test_first_order_is_the_gradient_at_the_adapted_model() -> None:
    """By default with a server step of the inner step's size, and the optimiser that is asked for."""
    np.testing.assert_allclose(trained(MEAN), loop("MAML", STEP, gradient=first_order), atol=2e-5)
    heavy = trained(TILT, second_order=True, lipschitz=1.0, server_opt=optax.sgd(0.2, momentum=0.5))
    np.testing.assert_allclose(heavy, loop("TERM", 0.2, 0.5), atol=2e-5)
    assert np.abs(loop("TERM", 0.2, 0.5) - loop("TERM", 0.2)).max() > 1e-2


def test_term_maml_of_a_small_tilt_is_maml_and_of_a_large_one_serves_the_worst_task() -> None:
    options: dict[str, Any] = {"second_order": True, "lipschitz": 2.0}
    maml = trained(MEAN, **options)
    for t in (0.0, 1e-6):
        tilt = eh.aggregators.risk_weighted(eh.risks.tilted(t))
        np.testing.assert_allclose(trained(tilt, **options), maml, atol=1e-5)
    plain, worst = (max(meta_loss(w, k) for k in range(4)) for w in (maml, trained(TILT, **options)))
    assert worst < plain - 0.01


def test_q_fedavgs_step_may_be_of_second_order_too() -> None:
    """One round of q = 1 by hand."""
    losses, slopes = (np.array([part(BEGIN, k) for k in range(4)]) for part in (meta_loss, meta_gradient))
    expected = BEGIN - losses @ slopes / np.sum(np.square(slopes).sum(axis=1) + losses / STEP)
    method = qmaml(MODEL, q=1.0, step_size=STEP, second_order=True, sampling=EQUAL)
    np.testing.assert_allclose(eh.simulate(method, DATA, rounds=1).params, expected, atol=1e-5)
    explicit = qmaml(
        MODEL,
        step_size=STEP,
        second_order=True,
        aggregator=eh.aggregators.qfedavg(1.0, 1 / STEP),
        sampling=EQUAL,
    )
    assert np.array_equal(
        eh.simulate(method, DATA, rounds=1).params, eh.simulate(explicit, DATA, rounds=1).params
    )


def uploads(losses: Any, step_size: float) -> list[np.ndarray]:
    """What the second client sends, first-order and second-order."""
    model = MODEL._replace(apply=lambda w, x: x @ w, losses=losses)
    size, start = jnp.int32(SIZES[1]), jnp.int32(SIZES[0])
    rows = ClientData(jnp.asarray(X), jnp.asarray(Y), start, size, jnp.float32(1.0), 7)
    sent = []
    for second in (False, True):
        method = qmaml(model, step_size=step_size, lipschitz=1.0, second_order=second, aggregator=MEAN)
        (phase,) = method.phases
        message = phase.broadcast(method.init(jnp.asarray(BEGIN, jnp.float32), 4), jnp.int32(1))
        sent.append(np.asarray(phase.work(message, (), rows, jax.random.key(0))[0]))
    return sent


def test_both_orders_agree_where_losses_are_linear_or_the_step_is_tiny() -> None:
    def linear(outputs: Array, y: Array) -> Array:
        return outputs * y

    def square(outputs: Array, y: Array) -> Array:
        return jnp.square(outputs - y)

    first, second = uploads(linear, 0.5)
    assert np.array_equal(first, second) and np.abs(first).max() > 0.1
    np.testing.assert_allclose(*uploads(square, 1e-9), rtol=1e-6)
    first, second = uploads(square, 0.5)
    # Quadratic losses: the inner step's Jacobian is that of the mean of 2 x x'.
    (x, _), _ = halves(1)
    np.testing.assert_allclose(second, (np.eye(2) - 0.5 * 2 * x.T @ x / len(x)) @ first, rtol=1e-5)
    assert np.abs(first - second).max() > 0.1


def test_only_aggregators_that_need_losses_are_given_those_after_the_step() -> None:
    rows = ClientData(jnp.asarray(X), jnp.asarray(Y), jnp.int32(4), jnp.int32(6), jnp.float32(1.0), 7)
    for aggregator, expected in ((MEAN, np.nan), (TILT, meta_loss(BEGIN, 1))):
        method = qmaml(MODEL, step_size=STEP, aggregator=aggregator)
        (phase,) = method.phases
        assert phase.aggregator is aggregator
        message = phase.broadcast(method.init(jnp.asarray(BEGIN, jnp.float32), 4), jnp.int32(1))
        np.testing.assert_allclose(phase.report(message, (), rows).loss, expected, rtol=1e-5)


def test_an_unbiased_mixture_weighs_the_members_of_a_cohort_by_their_share_of_all_clients() -> None:
    """Two of four clients: N / m times the sum of mixture times upload; the plain mixture scales to a mean."""
    rule, plain = (eh.aggregators.ascending_mixture(0.5, unbiased=unbiased) for unbiased in (True, False))
    cohort = eh.types.Cohort.of(jnp.array([1, 3]))
    reports = eh.types.Report(jnp.ones(2), jnp.array([0.4, 0.1]))
    mixture = jnp.array([0.1, 0.2, 0.3, 0.4])
    deltas = np.array([2.0, -3.0])

    def direction(rule: Any) -> tuple[float, Any]:
        weights, state = rule.weigh(reports, cohort, mixture)
        lifted = [
            rule.lift(eh.types.Upload(jnp.float32(delta), weight, jnp.float32(0.0)), (), jax.random.key(0))
            for delta, weight in zip(deltas, weights, strict=True)
        ]
        total = jax.tree.map(lambda a, b: a + b, *lifted)
        return float(rule.lower(total, state, jax.random.key(0))[0]), total

    step, total = direction(rule)
    np.testing.assert_allclose(step, 4 / 2 * (0.2 * 2.0 - 0.4 * 3.0), rtol=1e-6)
    np.testing.assert_allclose(direction(plain)[0], (0.2 * 2.0 - 0.4 * 3.0) / 0.6, rtol=1e-6)
    nothing = jax.tree.map(jnp.zeros_like, total)
    assert float(rule.lower(nothing, mixture, jax.random.key(0))[0]) == 0.0


def test_without_the_inner_step_there_is_one_order() -> None:
    methods = [
        qmaml(MODEL, q=1.0, step_size=STEP, adapt=False, second_order=second) for second in (False, True)
    ]
    first, second = (np.asarray(eh.simulate(method, DATA, rounds=1).params) for method in methods)
    assert np.array_equal(first, second) and np.abs(first - BEGIN).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"q": 0.0, "aggregator": MEAN}])
def test_the_step_is_that_of_q_fedavg_or_of_an_aggregator(options: dict[str, Any]) -> None:
    with pytest.raises(eh.EvenhandError, match="give either q=, for the step of q-FedAvg, or aggregator="):
        qmaml(MODEL, step_size=0.1, **options)
