"""Tilts that change from step to step, in the stochastic solvers of TERM, against their formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.centralized import Solver, grouped, stochastic
from evenhand.types import Array, Model

# f_i = |y_i + theta|: a gradient of 1 everywhere, so that, frozen or not, a step shows its mean weight.
PLAIN = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda theta, x: jnp.broadcast_to(theta, x.shape[:1]),
    losses=lambda outputs, y: outputs + y,
    metrics={},
)
Ramp = Callable[[Array], Array]
# Up, down, through 0, a jump over it: in one ramp, so that each solver compiles once.
TILTS = np.array([0, 0.5, 1, 1.5, 3, 2, 1, 0, -1, -2, -0.1, 0, 0.1, 2, -2, 2, 40, -40, 1e-6, 1], np.float32)
STILL = optax.sgd(0.0)


def ramp(step: Array) -> Array:
    return jnp.asarray(TILTS)[step.astype(jnp.int32)]


def walk(solver: Solver, losses: np.ndarray, steps: int = len(TILTS)) -> list[Any]:
    """The initial state and those after each step, on rows of these losses."""
    x, y = jnp.zeros((len(losses), 1)), jnp.asarray(losses, jnp.float32)
    state = solver.init(jnp.float32(0.0), x, y)
    step = jax.jit(solver.step)
    states = [state]
    for number in range(steps):
        state = step(state, x, y, jnp.int32(number), jax.random.fold_in(jax.random.key(1), number))
        states.append(state)
    return states


def tilted_mean(losses: Any, weights: Any, t: float) -> float:
    """By its formula, in long double."""
    f, p = np.asarray(losses, np.longdouble), np.asarray(weights, np.longdouble)
    return float(p @ f if t == 0 else np.log(p @ np.exp(t * f)) / t)


@pytest.mark.parametrize("two_batches", [False, True])
def test_a_constant_loss_has_weight_1_under_any_ramp(two_batches: bool) -> None:
    solver = stochastic(PLAIN, t=ramp, rate=0.3, batch_size=2, optimiser=STILL, two_batches=two_batches)
    for state in walk(solver, np.full(4, 1.7)):
        np.testing.assert_allclose((state.weight, state.risk), (1.0, 1.7), rtol=1e-4)


def test_rows_of_a_group_have_weight_1_under_any_inner_ramp() -> None:
    """A step against a gradient of 1 is the weight; the step is too small to change the loss."""
    how = {"groups": np.zeros(2, int), "t": 0.0, "tau": ramp, "rate": 0.3, "batch_size": 2}
    states = walk(grouped(PLAIN, **how, optimiser=optax.sgd(1e-9), start=1.7), np.full(2, 1.7))
    np.testing.assert_allclose([state.risks for state in states], 1.7, rtol=1e-6)
    steps = np.diff([float(state.params) for state in states])
    np.testing.assert_allclose(steps, -1e-9, rtol=1e-4)


def test_a_ramp_averages_losses_at_the_tilt_of_the_step() -> None:
    """The new estimate shows which row was drawn, and is the formula of old and new at the tilt of the step."""
    losses, rate = np.array([0.2, 1.0, 2.5]), 0.4
    flat = walk(stochastic(PLAIN, t=ramp, rate=rate, batch_size=1, optimiser=STILL), losses)
    groups = {"groups": np.zeros(3, int), "t": 0.0, "tau": ramp, "rate": rate, "batch_size": 1}
    inner = walk(grouped(PLAIN, **groups, optimiser=STILL, start=1.3), losses)
    assert float(flat[0].risk) == pytest.approx(losses.mean(), rel=1e-6)

    def check(before: float, after: float, t: float) -> tuple[float, float]:
        candidates = [tilted_mean([before, f], [1 - rate, rate], t) for f in losses]
        row = int(np.argmin(np.abs(np.array(candidates) - after)))
        assert after == pytest.approx(candidates[row], rel=2e-5)
        return losses[row], candidates[row]

    for (before, after), t in zip(pairwise(flat), TILTS.astype(float), strict=True):
        loss, risk = check(float(before.risk), float(after.risk), t)
        assert float(after.weight) == pytest.approx(np.exp(t * (loss - risk)), rel=1e-3, abs=1e-6)
    for (before, after), t in zip(pairwise(inner), TILTS.astype(float), strict=True):
        check(float(before.risks[0]), float(after.risks[0]), t)
    assert len({round(float(state.risk), 3) for state in flat}) > 10


@pytest.mark.parametrize(
    ("which", "t", "unlike"),
    [
        ("t of stochastic", -1.5, 1.0),
        ("t of stochastic", 0.0, 1.0),
        ("t of grouped", 2.0, -20.0),
        ("tau", -1.5, 1.0),
    ],
)
def test_a_constant_ramp_is_the_tilt_itself(which: str, t: float, unlike: float) -> None:
    losses = np.array([0.2, 1.0, 2.5, 0.4])

    def end(tilt: float | Ramp) -> Any:
        how = {"rate": 0.4, "batch_size": 2, "optimiser": optax.sgd(0.01)}
        if which == "t of stochastic":
            return walk(stochastic(PLAIN, t=tilt, **how), losses)[-1].risk
        both = {"t": tilt, "tau": 0.5} if which == "t of grouped" else {"t": 0.5, "tau": tilt}
        return walk(grouped(PLAIN, groups=np.array([0, 1, 1, 0]), **both, **how), losses)[-1].risks

    fixed = end(t)
    np.testing.assert_allclose(end(lambda step: t + 0.0 * step), fixed, rtol=1e-6)
    assert np.max(np.abs(end(unlike) - fixed)) > 1e-3


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_huge_tilts_stay_finite_in_float32(sign: float) -> None:
    """|t f| up to 1e4, on the way from 0 and where it stays: no weight above |B| / rate."""
    losses, rate = np.array([0.0, 1.0, 50.0, 100.0]), 0.1

    def steep(step: Array) -> Array:
        return sign * 100.0 * jnp.minimum(step / 4, 1.0)

    for state in walk(stochastic(PLAIN, t=steep, rate=rate, batch_size=2, optimiser=STILL), losses):
        assert 0.0 <= float(state.weight) <= 2 / rate * 1.01
        assert 0.0 <= float(state.risk) <= 100.0
    groups = {"groups": np.array([0, 1, 0, 1]), "t": steep, "tau": steep, "rate": rate, "batch_size": 2}
    for state in walk(grouped(PLAIN, **groups, optimiser=optax.sgd(1e-3)), losses):
        assert np.isfinite(state.risks).all() and abs(float(state.params)) < len(TILTS) * 1e-3 * 2 / rate


def test_a_constant_inner_tilt_must_be_finite() -> None:
    with pytest.raises(eh.EvenhandError, match=r"grouped\(tau=inf\): a tilt must be finite"):
        grouped(PLAIN, groups=[0], t=0.0, tau=np.inf, rate=0.5, batch_size=1, optimiser=STILL)
