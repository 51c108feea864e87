"""The solvers of TERM against gradient descent in NumPy, and their draws and normalisers against expectations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

import evenhand as eh
from evenhand.centralized import Solver, batch, fit, grouped, stochastic
from evenhand.types import Model

minimize_scalar: Any = optimize.minimize_scalar  # SciPy declares no type of what it returns

# f_i(theta) = (theta - x_i)^2 / 2: the quadratic toy, one row per point.
QUADRATIC = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda theta, x: theta - x,
    losses=lambda outputs, y: 0.5 * jnp.square(outputs),
    metrics={},
)
POINTS = np.array([0.0, 0.2, 0.4, 1.5], np.float32)
LABELS = np.zeros(4, np.float32)
GROUPS = np.array([0, 0, 0, 1])
FROZEN = optax.sgd(0.0)


def tilted_loss(theta: float, t: float, points: np.ndarray = POINTS) -> float:
    f = 0.5 * np.square(theta - points.astype(float))
    return float(f.mean() if t == 0 else np.log(np.mean(np.exp(t * f))) / t)


def optimum(t: float) -> float:
    return float(minimize_scalar(lambda theta: tilted_loss(theta, t), bounds=(-1, 2), method="bounded").x)


def after_one_step(solver: Solver, state: Any, seeds: int) -> Any:
    """The state after one step, for many keys."""
    keys = jax.random.split(jax.random.key(0), seeds)
    x, y = jnp.asarray(POINTS), jnp.asarray(LABELS)
    return jax.jit(jax.vmap(lambda key: solver.step(state, x, y, jnp.int32(0), key)))(keys)


@pytest.mark.parametrize("t", [-1.0, 0.0, 0.5, 5.0])
def test_batch_term_equals_gradient_descent_in_numpy(t: float) -> None:
    theta = 0.0
    for _ in range(50):
        f = 0.5 * np.square(theta - POINTS.astype(float))
        w = np.exp(t * f) / np.sum(np.exp(t * f))
        theta -= 0.3 * np.sum(w * (theta - POINTS))
    found = fit(batch(QUADRATIC, eh.risks.tilted(t), optimiser=optax.sgd(0.3)), POINTS, LABELS, steps=50)
    np.testing.assert_allclose(found.params, theta, rtol=1e-5)
    other = fit(batch(QUADRATIC, eh.risks.tilted(t + 1), optimiser=optax.sgd(0.3)), POINTS, LABELS, steps=50)
    assert abs(float(other.params) - theta) > 1e-3


def test_batch_hierarchical_term_reaches_scipys_minimum() -> None:
    """The outer tilt over groups of unlike size, the inner one over rows; the minimum by a search of the formula."""
    t, tau = 4.0, -2.0

    def objective(theta: float) -> float:
        parts = [POINTS[g == GROUPS] for g in (0, 1)]
        risks = [tilted_loss(theta, tau, part) for part in parts]
        return float(np.log(np.mean(np.repeat(np.exp(t * np.array(risks)), [3, 1]))) / t)

    risk = eh.risks.hierarchical(eh.risks.tilted(t), eh.risks.tilted(tau), jnp.asarray(GROUPS), 2)
    found = fit(batch(QUADRATIC, risk, optimiser=optax.sgd(0.1)), POINTS, LABELS, steps=2000)
    np.testing.assert_allclose(
        found.params, minimize_scalar(objective, bounds=(-1, 2), method="bounded").x, atol=1e-4
    )
    assert abs(float(found.params) - optimum(t)) > 1e-2


def test_a_ramp_ends_where_its_last_tilt_does_and_may_be_interrupted() -> None:
    solver = batch(
        QUADRATIC,
        lambda step: eh.risks.tilted(3.0 * jnp.minimum(step / 100, 1.0)),
        optimiser=optax.sgd(0.2, momentum=0.5),
    )
    whole = fit(solver, POINTS, LABELS, steps=600)
    np.testing.assert_allclose(whole.params, optimum(3.0), atol=1e-4)
    half = fit(solver, POINTS, LABELS, steps=40)
    assert np.array_equal(fit(solver, POINTS, LABELS, steps=560, after=half).params, whole.params)
    noisy = stochastic(QUADRATIC, t=1.0, rate=0.5, batch_size=1, optimiser=optax.sgd(0.1))
    once, first = (fit(noisy, POINTS, LABELS, steps=steps, seed=5) for steps in (20, 10))
    assert np.array_equal(fit(noisy, POINTS, LABELS, steps=10, after=first).params, once.params)
    assert abs(float(half.params) - optimum(3.0)) > 1e-2


@pytest.mark.parametrize("two_batches", [False, True])
@pytest.mark.parametrize("t", [-1.0, 1.0])
def test_stochastic_term_reaches_the_optimum_of_batch_term(t: float, two_batches: bool) -> None:
    schedule = optax.sgd(optax.polynomial_schedule(0.2, 0.0, 1.0, 20_000))
    solver = stochastic(QUADRATIC, t=t, rate=0.1, batch_size=2, optimiser=schedule, two_batches=two_batches)
    found = [float(fit(solver, POINTS, LABELS, steps=20_000, seed=seed).params) for seed in range(3)]
    assert abs(np.mean(found) - optimum(t)) < 0.03
    assert abs(optimum(t) - optimum(0.0)) > 0.06, "plain descent ends elsewhere"


def test_a_stochastic_ramp_leaves_the_outlier_where_a_constant_tilt_stays() -> None:
    """From the outlier itself: at a constant tilt of -2 it has all the weight, and a ramp first moves to the mean."""
    points, begin = np.array([0.0, 0.1, 0.2, 5.0], np.float32), jnp.float32(5.0)

    def end(t: float | Callable[[jax.Array], jax.Array]) -> float:
        schedule = optax.sgd(optax.polynomial_schedule(0.1, 0.0, 1.0, 5_000))
        solver = stochastic(QUADRATIC, t=t, rate=0.5, batch_size=4, optimiser=schedule)
        return float(fit(solver, points, LABELS, steps=5_000, params=begin).params)

    assert abs(end(lambda step: -2.0 * jnp.minimum(step / 1000, 1.0)) - 0.1) < 0.1
    assert abs(end(-2.0) - 5.0) < 0.1


def test_ramps_tilt_by_the_number_of_the_step() -> None:
    """At rate 1 and frozen parameters, step n has the normaliser of a tilt of n; groups are drawn by theirs."""
    x, y = jnp.asarray(POINTS), jnp.asarray(LABELS)
    how = {"rate": 1.0, "batch_size": 2, "optimiser": FROZEN}
    ramp = stochastic(QUADRATIC, t=lambda step: 1.0 * step, **how)
    for number in (1, 3):
        fixed = stochastic(QUADRATIC, t=float(number), **how)
        states = [
            jax.jit(solver.step)(
                solver.init(jnp.float32(0.3), x, y), x, y, jnp.int32(number), jax.random.key(2)
            )
            for solver in (ramp, fixed)
        ]
        np.testing.assert_allclose(states[0].risk, states[1].risk, rtol=1e-6)
        np.testing.assert_allclose(states[0].weight, states[1].weight, rtol=1e-6)
    groups = {"groups": GROUPS, "tau": 0.0, **how}
    drawn = []
    for t in (lambda step: 100.0 * step, 0.0):
        solver = grouped(QUADRATIC, t=t, start=0.0, **groups)
        state = solver.init(jnp.float32(0.0), x, y)._replace(risks=jnp.array([0.0, 1.0]))
        keys = jax.random.split(jax.random.key(0), 50)
        step = jax.vmap(lambda key, solver=solver, state=state: solver.step(state, x, y, jnp.int32(1), key))
        drawn.append(float(np.mean(np.asarray(step(keys).risks)[:, 1] != 1.0)))
    assert drawn[0] == 1.0 > 0.6 > drawn[1]


@pytest.mark.parametrize(("t", "rate"), [(1.0, 0.5), (-2.0, 0.2)])
def test_the_normaliser_is_right_on_average(t: float, rate: float) -> None:
    """E11: E e^(t R+) = (1 - rate) e^(t R) + rate mean e^(t f), at frozen parameters; rounding the rate would show."""
    solver = stochastic(QUADRATIC, t=t, rate=rate, batch_size=1, optimiser=FROZEN)
    state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
    whole = np.mean(np.exp(t * 0.5 * np.square(0.3 - POINTS.astype(float))))
    np.testing.assert_allclose(state.risk, np.log(whole) / t, rtol=1e-5)
    state = state._replace(risk=jnp.float32(0.7 / t))
    found = np.asarray(np.exp(t * after_one_step(solver, state, 100_000).risk), float)
    error = found.std() / np.sqrt(found.size)
    assert abs(found.mean() - ((1 - rate) * np.exp(0.7) + rate * whole)) < 4 * error
    assert abs(found.mean() - ((0.9 - rate) * np.exp(0.7) + (rate + 0.1) * whole)) > 20 * error


def test_weights_use_the_normaliser_of_the_same_step() -> None:
    """With rate 1 and one row per batch every weight is 1; with the old normaliser it would be e^(t f - a)."""
    solver = stochastic(QUADRATIC, t=2.0, rate=1.0, batch_size=1, optimiser=FROZEN)
    state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
    np.testing.assert_allclose(after_one_step(solver, state, 50).weight, 1.0, rtol=1e-5)
    lazy = stochastic(QUADRATIC, t=2.0, rate=0.5, batch_size=1, optimiser=FROZEN)
    assert np.ptp(np.asarray(after_one_step(lazy, state, 50).weight)) > 0.1


@pytest.mark.parametrize("t", [2.0, -2.0, 0.0])
def test_groups_are_drawn_by_their_size_and_tilted_risk(t: float) -> None:
    """E12: P(g) is in proportion to |g| e^(t R_g), for either sign of t."""
    solver = grouped(
        QUADRATIC, groups=GROUPS, t=t, tau=0.0, rate=1.0, batch_size=1, optimiser=FROZEN, start=0.0
    )
    state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
    state = state._replace(risks=jnp.array([0.9, 0.2]))
    after = after_one_step(solver, state, 40_000)
    drawn = np.mean(np.asarray(after.risks[:, 1]) != np.float32(0.2))
    shares = np.array([3, 1]) * np.exp(t * np.array([0.9, 0.2]))
    expected = shares[1] / shares.sum()
    error = np.sqrt(expected * (1 - expected) / 40_000)
    assert abs(drawn - expected) < 4 * error
    unsized = np.exp(t * np.array([0.9, 0.2]))
    assert abs(drawn - unsized[1] / unsized.sum()) > 20 * error


@pytest.mark.parametrize(("t", "tau"), [(1.5, 0.0), (-1.0, 2.0)])
def test_the_grouped_step_follows_the_hierarchical_gradient_on_average(t: float, tau: float) -> None:
    """E12: frozen at exact estimates (rate so small that they stay), E step = -alpha grad J; here alpha = 1."""
    theta = 0.3
    exact = [tilted_loss(theta, tau, POINTS[g == GROUPS]) for g in (0, 1)]
    solver = grouped(
        QUADRATIC, groups=GROUPS, t=t, tau=tau, rate=1e-6, batch_size=1, optimiser=optax.sgd(1.0), start=0.0
    )
    state = solver.init(jnp.float32(theta), jnp.asarray(POINTS), jnp.asarray(LABELS))
    state = state._replace(risks=jnp.asarray(exact, jnp.float32))
    steps = np.asarray(after_one_step(solver, state, 100_000).params, float) - theta
    risk = eh.risks.hierarchical(eh.risks.tilted(t), eh.risks.tilted(tau), jnp.asarray(GROUPS), 2)
    weights = np.asarray(risk.weights(jnp.asarray(0.5 * np.square(theta - POINTS))), float)
    gradient = np.sum(weights * (theta - POINTS))
    error = steps.std() / np.sqrt(steps.size)
    assert abs(steps.mean() + gradient) < 4 * error
    assert abs(steps.mean() + np.mean(theta - POINTS)) > 10 * error


def test_rows_are_weighted_by_the_estimate_of_the_same_step() -> None:
    """One step by hand: R_g+ = log(.5 e^(2 .2) + .5 e^(2 f)) / 2 at f = .72, weight e^(2 (f - R_g+)), gradient -1.2."""
    solver = grouped(
        QUADRATIC, groups=GROUPS, t=0.0, tau=2.0, rate=0.5, batch_size=2, optimiser=optax.sgd(1.0), start=0.2
    )
    state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
    after = after_one_step(solver, state, 60)
    second = np.asarray(after.risks[:, 1]) != np.float32(0.2)
    new = np.log(0.5 * np.exp(0.4) + 0.5 * np.exp(1.44)) / 2
    np.testing.assert_allclose(after.risks[second, 1], new, rtol=1e-5)
    np.testing.assert_allclose(after.params[second], 0.3 + 1.2 * np.exp(2 * (0.72 - new)), rtol=1e-5)
    assert second.any() and abs(np.exp(2 * (0.72 - new)) - np.exp(2 * (0.72 - 0.2))) > 0.5


def test_the_second_batch_is_another_one() -> None:
    """At rate 1, a row that is in both batches alone has weight 1."""
    solver = stochastic(QUADRATIC, t=2.0, rate=1.0, batch_size=1, optimiser=FROZEN, two_batches=True)
    state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
    assert np.mean(np.abs(np.asarray(after_one_step(solver, state, 100).weight) - 1) > 1e-3) > 0.5


def test_a_group_that_was_never_drawn_begins_at_its_first_batch_or_where_the_paper_does() -> None:
    for start, first in ((None, 0.5 * np.square(0.3 - 1.5)), (0.0, 0.25 * 0.5 * np.square(0.3 - 1.5))):
        solver = grouped(
            QUADRATIC,
            groups=GROUPS,
            t=0.0,
            tau=0.0,
            rate=0.25,
            batch_size=3,
            optimiser=FROZEN,
            start=start,
        )
        state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
        risks = np.asarray(after_one_step(solver, state, 50).risks[:, 1])
        assert np.any(risks != 0)
        np.testing.assert_allclose(risks[risks != 0], first, rtol=1e-5)


def test_a_group_without_examples_is_never_drawn() -> None:
    solver = grouped(QUADRATIC, groups=2 * GROUPS, t=0.0, tau=0.0, rate=0.25, batch_size=3, optimiser=FROZEN)
    state = solver.init(jnp.float32(0.3), jnp.asarray(POINTS), jnp.asarray(LABELS))
    assert np.asarray(after_one_step(solver, state, 50).seen).any(axis=0).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: stochastic(QUADRATIC, t=np.inf, rate=0.5, batch_size=1, optimiser=FROZEN), "finite"),
        (lambda: stochastic(QUADRATIC, t=1.0, rate=0.0, batch_size=1, optimiser=FROZEN), "rate"),
        (
            lambda: grouped(
                QUADRATIC, groups=[0.5], t=1.0, tau=0.0, rate=0.5, batch_size=1, optimiser=FROZEN
            ),
            "whole numbers",
        ),
        (
            lambda: fit(
                grouped(QUADRATIC, groups=[0], t=1.0, tau=0.0, rate=0.5, batch_size=1, optimiser=FROZEN),
                POINTS,
                LABELS,
                steps=1,
            ),
            "got 4 rows",
        ),
        (
            lambda: fit(batch(QUADRATIC, eh.risks.mean(), optimiser=FROZEN), POINTS, LABELS[:2], steps=1),
            "one label per row",
        ),
        (lambda: batch(QUADRATIC, eh.risks.tilted, optimiser=FROZEN), "is the function itself: call it"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(eh.EvenhandError) as caught:
        make()
    assert words in str(caught.value)


def test_a_risk_by_step_may_come_from_a_text() -> None:
    """Functions of executed code have no module."""
    namespace: dict[str, Any] = {"eh": eh, "__name__": None}
    exec("ramp = lambda step: eh.risks.tilted(0.1 * step)", namespace)
    solver = batch(QUADRATIC, namespace["ramp"], optimiser=optax.sgd(0.3))
    assert np.isfinite(jax.tree.leaves(fit(solver, POINTS, LABELS, steps=2).params)[0]).all()
