"""Weightings of examples against loops in NumPy, and the solver that uses them against the plain ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import evenhand as eh
from evenhand.centralized import (
    Solver,
    Weighed,
    Weighting,
    fit,
    hard_mine,
    inverse_ratio,
    learn_to_reweight,
    mentornet_pd,
    random_weights,
    self_paced,
    weighted,
)
from evenhand.types import Array, Model

START = np.array([0.5, -0.3, 0.8], np.float32)
# f_i(theta) = (x_i theta - y_i)^2, so grad f_i = 2 (x_i theta - y_i) x_i; three of twelve examples are rare.
LINEAR = Model(
    init=lambda key: jnp.asarray(START),
    apply=lambda theta, x: x @ theta,
    losses=lambda outputs, y: jnp.square(outputs - y.astype(outputs.dtype)),
    metrics={},
)
X: Any = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y: Any = np.array([0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1], np.int32)
CLEAN_X = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
CLEAN_Y = np.array([0, 1, 0, 1], np.int32)
RATE = 0.05
SGD = optax.sgd(RATE)
PLAIN = Weighting(
    lambda model, x, y: (), lambda model, state, batch: (jnp.ones_like(batch.losses), state), "plain"
)


def seen(
    losses: Any, y: Any = None, *, progress: float = 0.0, seed: int = 0, params: Any = (), x: Any = None
) -> Weighed:
    """A batch as a weighting sees it."""
    losses = jnp.asarray(losses, jnp.float32)
    key, share = jax.random.key(seed), jnp.float32(progress)
    return Weighed(params, x=x, y=y, losses=losses, progress=share, key=key)


def residuals(theta: np.ndarray) -> np.ndarray:
    return X.astype(float) @ theta - Y


def in_numpy(weigh: Callable[[int, np.ndarray, np.ndarray], np.ndarray], steps: int) -> np.ndarray:
    """Descent along the mean of ``weigh(step, theta, losses)`` times the gradients."""
    theta = START.astype(float)
    for number in range(steps):
        errors = residuals(theta)
        weights = weigh(number, theta, errors**2)
        theta = theta - RATE * np.mean((weights * 2 * errors)[:, None] * X, axis=0)
    return theta


def in_library(weighting: Weighting, steps: int, planned: int | None = None) -> np.ndarray:
    solver = weighted(LINEAR, weighting, batch_size=None, optimiser=SGD, steps=planned or steps)
    return np.asarray(fit(solver, X, Y, steps=steps).params)


def assert_equals(weighting: Weighting, weigh: Any, steps: int, planned: int | None = None) -> None:
    """The library's descent is NumPy's, and differs from the plain one."""
    params = in_library(weighting, steps, planned)
    np.testing.assert_allclose(params, in_numpy(weigh, steps), rtol=2e-4, atol=1e-6)
    assert np.abs(params - in_numpy(lambda number, theta, losses: np.ones(12), steps)).max() > 1e-3


# --- the solver ---------------------------------------------------------------------------------------------------


def test_weights_of_one_are_stochastic_descent_bit_for_bit() -> None:
    plain = eh.centralized.stochastic(LINEAR, t=0.0, rate=0.5, batch_size=4, optimiser=SGD)
    ones, random = (
        weighted(LINEAR, weighting, batch_size=4, optimiser=SGD, steps=30)
        for weighting in (PLAIN, random_weights())
    )
    params = [np.asarray(fit(solver, X, Y, steps=30, seed=3).params) for solver in (plain, ones, random)]
    assert np.array_equal(params[0], params[1])
    assert np.abs(params[0] - params[2]).max() > 1e-2


def test_weights_of_one_on_all_examples_are_descent_on_the_mean() -> None:
    plain = eh.centralized.batch(LINEAR, eh.risks.mean(), optimiser=SGD)
    params = fit(plain, X, Y, steps=30).params
    np.testing.assert_allclose(in_library(PLAIN, 30), params, rtol=1e-5)
    assert np.abs(in_library(self_paced(), 30) - params).max() > 1e-2


def test_the_forward_pass_in_training_has_the_noise_of_stochastic_descent() -> None:
    noisy = LINEAR._replace(apply_train=lambda theta, x, key: x @ theta + jax.random.normal(key, x.shape[:1]))
    plain = eh.centralized.stochastic(noisy, t=0.0, rate=0.5, batch_size=4, optimiser=SGD)
    ones = weighted(noisy, PLAIN, batch_size=4, optimiser=SGD, steps=9)
    assert np.array_equal(fit(plain, X, Y, steps=9).params, fit(ones, X, Y, steps=9).params)


def test_weights_are_constants_of_the_gradient() -> None:
    """Weights that are the losses, or depend on the parameters: the derivative of f^2 is twice as long."""
    of_losses = Weighting(lambda *_: (), lambda model, state, batch: (batch.losses, state), "losses")
    assert_equals(of_losses, lambda number, theta, losses: losses, 3)
    of_params = of_losses._replace(
        weigh=lambda model, state, batch: (jnp.full(12, jnp.sum(jnp.square(batch.params - 1.0))), state)
    )
    assert_equals(of_params, lambda number, theta, losses: np.full(12, np.sum((theta - 1) ** 2)), 3)


def products(solver: Solver) -> int:
    """Matrix products in the program of a step."""
    x, y = jnp.asarray(X), jnp.asarray(Y)
    state = solver.init(jnp.zeros(3), x, y)
    program = jax.make_jaxpr(solver.step)(state, x, y, jnp.int32(0), jax.random.key(0))
    return str(program).count("dot_general")


def test_one_forward_pass_unless_the_weighting_needs_more() -> None:
    plain = products(eh.centralized.stochastic(LINEAR, t=0.0, rate=0.5, batch_size=4, optimiser=SGD))
    weightings = [inverse_ratio(), hard_mine(), self_paced(), mentornet_pd(), random_weights()]
    for weighting in weightings:
        assert products(weighted(LINEAR, weighting, batch_size=4, optimiser=SGD, steps=5)) == plain
    clean = learn_to_reweight(CLEAN_X, CLEAN_Y)
    assert products(weighted(LINEAR, clean, batch_size=4, optimiser=SGD, steps=5)) > plain


def test_a_training_in_two_parts_carries_the_state_of_the_weighting() -> None:
    solver = weighted(LINEAR, self_paced(), batch_size=5, optimiser=SGD, steps=20)
    whole, part = (fit(solver, X, Y, steps=steps, seed=2) for steps in (20, 9))
    rest = fit(solver, X, Y, steps=11, after=part)
    assert np.array_equal(whole.params, rest.params)
    assert float(whole.state.weighting) == float(rest.state.weighting)
    another = part._replace(state=part.state._replace(weighting=jnp.float32(100.0)))
    assert not np.array_equal(whole.params, fit(solver, X, Y, steps=11, after=another).params)


def test_progress_is_the_share_of_the_planned_steps() -> None:
    shown = Weighting(
        lambda *_: jnp.float32(-1.0),
        lambda model, state, batch: (jnp.ones_like(batch.losses), batch.progress),
        "shown",
    )
    solver = weighted(LINEAR, shown, batch_size=None, optimiser=SGD, steps=10)
    for steps, share in ((1, 0.0), (4, 0.3), (10, 0.9), (11, 1.0), (15, 1.0)):
        assert float(fit(solver, X, Y, steps=steps).state.weighting) == pytest.approx(share)


def test_the_state_shows_the_mean_weight() -> None:
    solver = weighted(LINEAR, self_paced(), batch_size=None, optimiser=SGD, steps=1)
    # At parameters of 0 the losses are nine 0 and three 1, whose 70th percentile is 0: nine of twelve count.
    assert float(fit(solver, X, Y, steps=1, params=jnp.zeros(3)).state.weight) == 0.75


def test_a_batch_without_weight_moves_nothing() -> None:
    none = PLAIN._replace(weigh=lambda model, state, batch: (jnp.zeros_like(batch.losses), state))
    solver = weighted(LINEAR, none, batch_size=None, optimiser=SGD, steps=3)
    ended = fit(solver, X, Y, steps=3, params=jnp.ones(3))
    assert np.array_equal(ended.params, np.ones(3)) and float(ended.state.weight) == 0.0


# --- weights by class ---------------------------------------------------------------------------------------------


def test_inverse_ratio_equals_the_loop_in_numpy() -> None:
    counts = Counter(Y.tolist())
    weights = np.array([12 / (2 * counts[label]) for label in Y.tolist()])
    assert_equals(inverse_ratio(), lambda number, theta, losses: weights, 20)


def test_inverse_ratio_is_the_papers_rule_scaled_to_a_mean_of_one() -> None:
    rare, common = 3 / 12, 9 / 12
    rule = np.where(Y == 1, common, 1 - common)
    weighting = inverse_ratio()
    y = jnp.asarray(Y)
    weights, _ = weighting.weigh(LINEAR, weighting.init(LINEAR, X, y), seen(np.zeros(12), y))
    np.testing.assert_allclose(weights, rule / (2 * rare * common), rtol=1e-6)


@lru_cache(maxsize=1)
def by_frequency() -> Callable[[Array, Array], Array]:
    def weights(y: Array, some: Array) -> Array:
        weighting = inverse_ratio()
        return weighting.weigh(LINEAR, weighting.init(LINEAR, y, y), seen(some, some))[0]

    return jax.jit(weights)


@given(st.lists(st.sampled_from([-1, 0, 3, 7]), min_size=9, max_size=9))
def test_inverse_ratio_gives_every_class_the_same_total(labels: list[int]) -> None:
    y = jnp.asarray(labels, jnp.int32)
    weights = np.asarray(by_frequency()(y, y), float)
    totals = [weights[np.array(labels) == label].sum() for label in set(labels)]
    np.testing.assert_allclose(totals, 9 / len(totals), rtol=1e-5)
    np.testing.assert_allclose(weights.mean(), 1.0, rtol=1e-5)


def test_inverse_ratio_counts_the_training_set_and_not_the_batch() -> None:
    weights = by_frequency()(jnp.asarray(Y), jnp.array([1, 1, 0, 5, -5], jnp.int32))
    np.testing.assert_allclose(weights, [2.0, 2.0, 2 / 3, 0.0, 0.0], rtol=1e-6)


def mined(losses: np.ndarray, rare: np.ndarray) -> np.ndarray:
    """Which examples are kept, by sorting a list."""
    common = sorted(np.flatnonzero(~rare), key=lambda i: -losses[i])
    kept = {*np.flatnonzero(rare), *common[: max(1, int(rare.sum()))]}
    return np.array([len(losses) / len(kept) if i in kept else 0.0 for i in range(len(losses))])


def test_hard_mine_equals_the_loop_in_numpy() -> None:
    for weighting in (hard_mine(), hard_mine(rare=1)):
        assert_equals(weighting, lambda number, theta, losses: mined(losses, Y == 1), 20)


@given(st.permutations(range(9)), st.lists(st.booleans(), min_size=9, max_size=9))
def test_hard_mine_keeps_the_rare_and_the_hardest(order: list[int], rare: list[bool]) -> None:
    losses, is_rare = np.array(order, float), np.array(rare)
    weights = by_hardness()(jnp.asarray(losses, jnp.float32), jnp.asarray(is_rare).astype(jnp.int32))
    np.testing.assert_allclose(weights, mined(losses, is_rare), rtol=1e-6)


@lru_cache(maxsize=1)
def by_hardness() -> Callable[[Array, Array], Array]:
    return jax.jit(lambda losses, y: hard_mine(rare=1).weigh(LINEAR, jnp.int32(1), seen(losses, y))[0])


@pytest.mark.parametrize(
    ("losses", "y", "weights"),
    [
        ([1.0, 3.0, 2.0, 0.0], [0, 0, 0, 0], [0.0, 4.0, 0.0, 0.0]),  # none is rare: the hardest alone
        ([1.0, 3.0, 2.0, 0.0], [1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0]),
        ([1.0, 3.0, 2.0, 0.0], [1, 0, 1, 1], [1.0, 1.0, 1.0, 1.0]),
        ([2.0, 2.0, 2.0, 0.0], [0, 0, 0, 1], [2.0, 0.0, 0.0, 2.0]),  # the first of equal losses
        ([1.0, np.inf, 2.0, 0.0], [0, 0, 0, 1], [0.0, 2.0, 0.0, 2.0]),
    ],
)
def test_hard_mine_at_its_edges(losses: list[float], y: list[int], weights: list[float]) -> None:
    assert hard_mine(rare=1).weigh(LINEAR, jnp.int32(1), seen(losses, jnp.array(y)))[0].tolist() == weights


def test_hard_mine_finds_the_rarest_class() -> None:
    for labels, rarest in (([2, 2, 0, 5, 5, 5, 0, 2], 0), ([1, 0, 1, 0], 0), ([4, 4], 4), ([-1, 1, 1], -1)):
        assert int(hard_mine().init(LINEAR, X, jnp.array(labels))) == rarest
    signs = hard_mine(rare=-1).init(LINEAR, X, jnp.array([1.0, 1.0, -1.0]))
    assert signs.dtype == jnp.float32 and float(signs) == -1.0


# --- weights by losses --------------------------------------------------------------------------------------------


class Moving:
    """A moving percentile in NumPy."""

    def __init__(self, percentile: float, momentum: float = 0.5) -> None:
        self.average, self.percentile, self.momentum = 0.0, percentile, momentum

    def excess(self, losses: np.ndarray) -> np.ndarray:
        newest = np.percentile(losses, self.percentile)
        self.average = self.momentum * self.average + (1 - self.momentum) * newest
        return losses - self.average


@pytest.mark.parametrize(("percentile", "momentum"), [(70.0, 0.5), (95.0, 0.5), (70.0, 0.9)])
def test_self_paced_equals_the_loop_in_numpy(percentile: float, momentum: float) -> None:
    moving = Moving(percentile, momentum)
    weighting = self_paced(percentile, momentum=momentum)
    assert_equals(weighting, lambda number, theta, losses: (moving.excess(losses) <= 0) * 1.0, 20)


def test_self_paced_is_plain_where_no_loss_is_above_the_percentile() -> None:
    """The whole range without momentum at once; with it as soon as the losses have fallen below their average."""
    np.testing.assert_allclose(
        in_library(self_paced(100.0, momentum=0.0), 20), in_library(PLAIN, 20), rtol=1e-6
    )
    paced = self_paced(100.0)
    _, average = paced.weigh(LINEAR, paced.init(LINEAR, X, Y), seen([4.0, 1.0]))
    assert float(average) == 2.0
    weights, average = paced.weigh(LINEAR, average, seen([2.0, 1.0]))
    assert weights.tolist() == [1.0, 1.0] and float(average) == 2.0
    assert paced.weigh(LINEAR, average, seen([2.1, 1.0]))[0].tolist() == [0.0, 1.0]


def test_self_paced_starts_from_an_average_of_zero() -> None:
    paced = self_paced(50.0)
    weights, average = paced.weigh(LINEAR, paced.init(LINEAR, X, Y), seen([1.0, 1.0, 1.0]))
    assert weights.tolist() == [0.0, 0.0, 0.0] and float(average) == 0.5


def curriculum(steps: int, gamma: float) -> Callable[[int, np.ndarray, np.ndarray], np.ndarray]:
    """MentorNet-PD without drop-out, by whole numbers."""
    moving = Moving(75.0)

    def weigh(number: int, theta: np.ndarray, losses: np.ndarray) -> np.ndarray:
        excess, percent = moving.excess(losses), 100 * number // steps
        if percent <= 18:
            return np.ones(12)
        return (excess <= 0) * 1.0 if percent < 90 else np.clip(1 - excess / gamma, 0, 1)

    return weigh


@pytest.mark.parametrize("steps", [40, 100])
def test_mentornet_pd_equals_the_loop_in_numpy(steps: int) -> None:
    weighting = mentornet_pd(75.0, gamma=0.3, early_dropout=0.0, late_dropout=0.0)
    assert_equals(weighting, curriculum(steps, 0.3), steps)
    early = int(0.19 * steps)
    np.testing.assert_allclose(in_library(weighting, early, steps), in_library(PLAIN, early), rtol=1e-6)


def test_mentornet_pd_is_self_paced_in_between() -> None:
    mentor = mentornet_pd(60.0, early_dropout=0.0, late_dropout=0.0)
    batch = seen([0.1, 2.0, 0.7, 1.4], progress=0.5)
    found, paced = (
        weighting.weigh(LINEAR, jnp.float32(0.4), batch) for weighting in (mentor, self_paced(60.0))
    )
    assert found[0].tolist() == paced[0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert float(found[1]) == float(paced[1])


def numbers_around(steps: int) -> np.ndarray:
    """Numbers of steps next to each whole percent of the training."""
    borders = -(-np.arange(101) * steps // 100)
    return np.unique(np.clip(borders[:, None] + np.arange(-1, 2), 0, steps - 1))


@pytest.mark.parametrize("steps", [7, 100, 1700, 3900, 39_000])
def test_progress_turns_into_whole_percents_exactly(steps: int) -> None:
    """Losses and an average whose weights tell the three parts of training apart, and the drop-outs their number."""
    numbers = numbers_around(steps)
    mentor = mentornet_pd(50.0, gamma=4.0)
    losses = jnp.full(40, 2.0)  # the average is 1 after the step: weights 1, then 0, then 3/4

    def weights(number: Array) -> Array:
        batch = seen(losses)._replace(progress=number.astype(jnp.float32) / steps, key=jax.random.key(0))
        return mentor.weigh(LINEAR, jnp.float32(0.0), batch)[0]

    values = np.asarray(jax.jit(jax.vmap(weights))(jnp.asarray(numbers, jnp.int32)))
    percents = 100 * numbers // steps
    parts = np.select([percents <= 18, percents < 90], [1.0, 0.0], 0.75)
    np.testing.assert_allclose(values.max(axis=1), parts)
    kept = np.where(percents < 17, 20, 38)
    np.testing.assert_allclose(values.sum(axis=1), kept * parts)


def test_example_drop_out_keeps_the_weights_of_a_random_part() -> None:
    """Of 12 examples 6, then 11 (11.4); each as often as any other, whatever its loss."""
    mentor, losses = mentornet_pd(), np.linspace(0.0, 2.0, 12)

    def weights(progress: float, seeds: int) -> np.ndarray:
        batch = seen(losses, progress=progress)
        keys = jax.random.split(jax.random.key(1), seeds)
        one = jax.vmap(lambda key: mentor.weigh(LINEAR, jnp.float32(0.0), batch._replace(key=key))[0])
        return np.asarray(jax.jit(one)(keys))

    early, later = weights(0.0, 4000), weights(0.17, 4000)
    assert set(early.sum(axis=1)) == {6.0} and set(later.sum(axis=1)) == {11.0}
    np.testing.assert_allclose(early.mean(axis=0), 0.5, atol=0.04)
    np.testing.assert_allclose(later.mean(axis=0), 11 / 12, atol=0.02)
    soft = np.clip(1 - (losses - 0.75), 0, 1)  # half of the 75th percentile, 1.5
    dropped = weights(0.95, 50)
    assert ((dropped == 0) | np.isclose(dropped, soft[None], atol=1e-6)).all()
    assert {int(count) for count in (dropped > 0).sum(axis=1)} == {np.sum(soft > 0) - 1, np.sum(soft > 0)}


def test_shares_of_a_batch_are_counted_exactly() -> None:
    """In float64, 100 (1 - 0.9) is less than 10."""
    mentor = mentornet_pd(early_dropout=0.9, late_dropout=0.05)
    assert float(mentor.weigh(LINEAR, jnp.float32(0.0), seen(np.zeros(100)))[0].sum()) == 10.0
    assert float(mentor.weigh(LINEAR, jnp.float32(0.0), seen(np.zeros(100), progress=0.2))[0].sum()) == 95.0
    assert float(mentor.weigh(LINEAR, jnp.float32(0.0), seen(np.zeros(1)))[0].sum()) == 0.0


# --- weights by chance --------------------------------------------------------------------------------------------


def test_random_weights_are_rectified_and_have_a_mean_of_one() -> None:
    """E max(0, z)^2 / (E max(0, z))^2 = pi, and half of them are 0."""
    weights = np.asarray(random_weights().weigh(LINEAR, (), seen(np.ones(40_000)))[0], float)
    assert weights.min() == 0.0
    np.testing.assert_allclose([weights.mean(), np.mean(weights == 0)], [1.0, 0.5], atol=0.01)
    np.testing.assert_allclose(np.mean(weights**2), np.pi, atol=0.05)


def test_random_weights_that_are_all_zero_stay_zero() -> None:
    sums = [float(random_weights().weigh(LINEAR, (), seen([1.0], seed=seed))[0].sum()) for seed in range(20)]
    assert set(sums) == {0.0, 1.0}


# --- weights by clean examples ------------------------------------------------------------------------------------


def reweighted(theta: np.ndarray, step: float, kappa: float | None) -> np.ndarray:
    """Inner products of gradients written down for squared errors."""
    gradients = 2 * residuals(theta)[:, None] * X
    ahead = theta if kappa is None else theta - step * gradients.mean(axis=0)
    clean = np.mean((2 * (CLEAN_X @ ahead - CLEAN_Y))[:, None] * CLEAN_X, axis=0)
    scores = gradients @ clean
    raw = np.maximum(scores if kappa is None else 1 / 12 + kappa * scores, 0)
    return 12 * raw / raw.sum() if raw.sum() > 0 else raw


@pytest.mark.parametrize(("step", "kappa"), [(1.0, None), (0.3, 0.1), (0.3, 1.0)])
def test_learn_to_reweight_equals_the_loop_in_numpy(step: float, kappa: float | None) -> None:
    weighting = learn_to_reweight(CLEAN_X, CLEAN_Y, step=step, kappa=kappa)
    assert_equals(weighting, lambda number, theta, losses: reweighted(theta, step, kappa), 8)


def test_learn_to_reweight_takes_models_with_a_gradient_of_their_own() -> None:
    """The inner products are those of gradients of single examples, which reverse mode gives."""
    model = eh.models.gru(5, embedding=2, hidden=3, layers=1)
    params = model.init(jax.random.key(0))
    tokens, following = jax.random.randint(jax.random.key(1), (2, 12, 4), 0, 5)
    following = following[:, 0]

    def gradient(x: Array, y: Array) -> Array:
        flat = jax.grad(lambda params: jnp.mean(model.losses(model.apply(params, x), y)))(params)
        return ravel_pytree(flat)[0]

    clean = gradient(tokens[:5], following[:5])
    scores = [float(gradient(tokens[i : i + 1], following[i : i + 1]) @ clean) for i in range(12)]
    raw = np.maximum(scores, 0)
    losses = model.losses(model.apply(params, tokens), following)
    batch = seen(losses, following, params=params, x=tokens)
    weights, _ = learn_to_reweight(tokens[:5], following[:5]).weigh(model, (), batch)
    np.testing.assert_allclose(weights, 12 * raw / raw.sum(), rtol=1e-4, atol=1e-6)
    assert 0 < np.sum(raw > 0) < 12


@pytest.mark.parametrize("kappa", [None, 0.7])
def test_learn_to_reweight_differentiates_the_virtual_step(kappa: float | None) -> None:
    """The definition, differentiated through the step by JAX, on a model whose gradients are not linear."""
    step, y = 0.4, jnp.asarray(Y)
    curved = LINEAR._replace(apply=lambda theta, x: jnp.tanh(x @ theta))
    theta = jnp.array([0.3, -0.2, 0.5])

    def losses(theta: Array, x: Any, y: Any) -> Array:
        return curved.losses(curved.apply(theta, jnp.asarray(x)), jnp.asarray(y))

    def validation(epsilon: Array) -> Array:
        gradient = jax.grad(lambda theta: jnp.sum(epsilon * losses(theta, X, Y)))(theta)
        return jnp.mean(losses(theta - step * gradient, CLEAN_X, CLEAN_Y))

    start = jnp.zeros(12) if kappa is None else jnp.full(12, 1 / 12)
    rate = 1.0 if kappa is None else kappa / step
    raw = np.maximum(np.asarray(start - rate * jax.grad(validation)(start)), 0)
    batch = seen(losses(theta, X, Y), y, params=theta, x=jnp.asarray(X))
    weighting = learn_to_reweight(CLEAN_X, CLEAN_Y, step=step, kappa=kappa)
    weights, _ = weighting.weigh(curved, (), batch)
    np.testing.assert_allclose(weights, 12 * raw / raw.sum(), rtol=1e-4, atol=1e-6)
    assert np.sum(raw > 0) > 1 and np.ptp(raw) > 0.01


def test_without_a_weight_of_the_clean_examples_reweighting_is_plain() -> None:
    none, some = (learn_to_reweight(CLEAN_X, CLEAN_Y, kappa=kappa) for kappa in (0.0, 0.5))
    np.testing.assert_allclose(in_library(none, 10), in_library(PLAIN, 10), rtol=1e-5)
    assert np.abs(in_library(some, 10) - in_library(PLAIN, 10)).max() > 1e-3


def test_the_virtual_step_size_cancels_from_weights_of_zero() -> None:
    batch = seen(np.ones(12), jnp.asarray(Y), params=jnp.asarray(START), x=jnp.asarray(X))
    weights = [
        learn_to_reweight(CLEAN_X, CLEAN_Y, step=step, kappa=kappa).weigh(LINEAR, (), batch)[0].tolist()
        for step, kappa in ((1.0, None), (0.1, None), (1.0, 0.5), (0.1, 0.5))
    ]
    assert weights[0] == weights[1] != weights[2] != weights[3]


def test_examples_that_all_harm_the_clean_ones_have_no_weight() -> None:
    x, y = jnp.ones((3, 3)), jnp.ones(3, jnp.int32)
    against = learn_to_reweight(np.ones((1, 3)), np.array([-1]))
    batch = seen(np.ones(3), y, params=jnp.zeros(3), x=x)
    assert against.weigh(LINEAR, (), batch)[0].tolist() == [0.0, 0.0, 0.0]
    for kappa in (0.0001, 100.0):
        weights = learn_to_reweight(np.ones((1, 3)), np.array([-1]), step=0.01, kappa=kappa)
        assert weights.weigh(LINEAR, (), batch)[0].tolist() == ([1.0] * 3 if kappa < 1 else [0.0] * 3)
    solver = weighted(LINEAR, against, batch_size=2, optimiser=SGD, steps=5)
    assert np.array_equal(fit(solver, x, y, steps=5, params=jnp.zeros(3)).params, np.zeros(3))


def test_noisy_labels_lose_their_weight_to_clean_examples() -> None:
    """Half of the labels are flipped in sign: the clean rows tell which, and descent on them all learns nothing."""
    draws = np.random.default_rng(3)
    x = draws.normal(size=(200, 3)).astype(np.float32)
    truth = np.array([1.0, -2.0, 0.5], np.float32)
    y = x @ truth * np.where(np.arange(200) < 100, 1, -1)
    clean = learn_to_reweight(x[:10], x[:10] @ truth)
    errors = [
        np.abs(np.asarray(fit(solver, x[10:], y[10:], steps=300).params) - truth).max()
        for solver in (
            weighted(LINEAR, weighting, batch_size=20, optimiser=SGD, steps=300)
            for weighting in (clean, PLAIN)
        )
    ]
    assert errors[0] < 0.5 and errors[1] > 1.0


def test_clean_examples_may_be_arguments_of_a_compiled_function() -> None:
    """As in a fit that is mapped over seeds, each with clean examples of its own."""
    batch = seen(np.ones(3), np.array([0, 1, 1]), params=jnp.zeros(3), x=X[:3])

    def weights(x: Any, y: Any) -> jax.Array:
        return learn_to_reweight(x, y).weigh(LINEAR, (), batch)[0]

    for x, y in ((CLEAN_X, CLEAN_Y), (-CLEAN_X, CLEAN_Y)):
        assert np.allclose(jax.jit(weights)(x, y), weights(x, y), atol=1e-6)
    assert not np.allclose(weights(CLEAN_X, CLEAN_Y), weights(-CLEAN_X, CLEAN_Y), atol=1e-3)


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: weighted(LINEAR, PLAIN, batch_size=0, optimiser=SGD, steps=5), "batch_size=0"),
        (lambda: weighted(LINEAR, PLAIN, batch_size=1, optimiser=SGD, steps=0), "steps=0"),
        (lambda: weighted(LINEAR, self_paced, batch_size=1, optimiser=SGD, steps=5), "weighting="),  # type: ignore[arg-type]
        (lambda: self_paced(101.0), r"self_paced\(percentile=101.0\)"),
        (lambda: self_paced(momentum=1.0), r"self_paced\(momentum=1.0\)"),
        (lambda: mentornet_pd(-1.0), r"mentornet_pd\(percentile=-1.0\)"),
        (lambda: mentornet_pd(gamma=0.0), r"mentornet_pd\(gamma=0.0\)"),
        (lambda: mentornet_pd(early_dropout=1.0), "but one is 1.0"),
        (lambda: mentornet_pd(late_dropout=-0.1), "but one is -0.1"),
        (lambda: hard_mine(rare=0.5), "rare=0.5"),  # type: ignore[arg-type]
        (
            lambda: hard_mine().init(LINEAR, X, jnp.ones((4, 2))),
            r"hard_mine\(\) weighs examples by their class",
        ),
        (lambda: inverse_ratio().init(LINEAR, X, jnp.ones((4, 2))), r"inverse_ratio\(\) weighs .* \(4, 2\)"),
        (lambda: learn_to_reweight(X, Y[:3]), "one label per clean validation example"),
        (lambda: learn_to_reweight(X[:0], Y[:0]), "one label per clean validation example"),
        (lambda: learn_to_reweight(X, Y, step=0.0), r"\(step=0.0\)"),
        (lambda: learn_to_reweight(X, Y, kappa=-1.0), r"\(kappa=-1.0\)"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        make()


def test_weights_of_another_shape_are_refused() -> None:
    wide = PLAIN._replace(weigh=lambda model, state, batch: (jnp.ones((1, 1)), state), name="wide")
    solver = weighted(LINEAR, wide, batch_size=None, optimiser=SGD, steps=1)
    with pytest.raises(eh.EvenhandError, match=r"wide returned weights of shape \(1, 1\) for 12 examples"):
        fit(solver, X, Y, steps=1)


def test_a_column_of_labels_is_one_class_per_example() -> None:
    for weighting in (inverse_ratio(), hard_mine()):
        results = []
        for y in (jnp.asarray(Y), jnp.asarray(Y)[:, None]):
            state = weighting.init(LINEAR, X, y)
            results.append(np.asarray(weighting.weigh(LINEAR, state, seen(np.arange(12), y))[0]))
        assert np.array_equal(*results)
