"""TERM's theory of curvature and descent, with the library's solvers; what is printed wrongly is shown to be wrong.

Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, theorems numbered as in the specification.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from risk_measures import tilt
from scipy import special

from evenhand.centralized import Solver, batch, stochastic
from evenhand.risks import tilted
from evenhand.types import Model

logsumexp: Any = special.logsumexp  # SciPy declares no type of what it returns

# --- curvature ---------------------------------------------------------------------------------------------------

_THREE = np.array([[1.0, 1.0, 1.0], [-0.2, 0.2, 1.2], [0.0, 0.1, 0.0]])
"""Scales, centres and constants of the parabolas of figure 7.2: the outer two tie at 0.5, with slopes 1.4 and -1.4."""
_DOMINATED = np.array([[1.0, 0.5, 0.5], [0.0, 0.1, 0.2], [10.0, 0.0, 0.0]])
"""The first is the worst everywhere.  They bend by 2 and 1, and never lose all slopes, as assumption 9 asks."""
_GRID = np.round(np.linspace(-3, 4, 1401), 6)


@jax.jit
def _bends(parabolas: jax.Array, t: jax.Array, theta: jax.Array) -> jax.Array:
    def risk(theta: Any, t: Any) -> Any:
        return tilted(t).value(parabolas[0] * (theta - parabolas[1]) ** 2 + parabolas[2])

    bend = jax.grad(jax.grad(risk))
    return jax.vmap(lambda t: jax.vmap(lambda theta: bend(theta, t))(theta))(t)


def _curvature(parabolas: np.ndarray, t: list[float]) -> np.ndarray:
    """Second derivatives of tilted risks, ``(tilts, parameters)``."""
    with jax.enable_x64(True):
        return np.array(_bends(*(jnp.asarray(part) for part in (parabolas, t, _GRID))))


def test_negative_tilts_bend_no_more_upwards_but_downwards() -> None:
    """Lemma 24: at most the losses' own 2, and just that at tilt 0; but far below -2 too, so not 2-smooth."""
    bends = _curvature(_THREE, [-30.0, -3.0, -0.1, 0.0, 0.1])
    assert bends[:3].max() <= 2 + 1e-9 and bends[2].max() < 1.95 and bends[0].min() < -10
    np.testing.assert_allclose(bends[3], 2.0, rtol=1e-9)
    assert bends[4].min() > 2


def test_positive_tilts_bend_in_proportion_where_the_worst_losses_tie() -> None:
    """Lemma 24's limit is a quarter of the squared slopes' difference, 1.96; at most ``2 + 1.96 t`` on the way."""
    tilts = [1.0, 10.0, 100.0, 300.0, 400.0]
    most = _curvature(_THREE, tilts).max(axis=1)
    assert np.all(most <= 2 + 1.96 * np.array(tilts) + 1e-9)
    np.testing.assert_allclose(most[2:], 2 + 1.96 * np.array(tilts[2:]), rtol=1e-3)


def test_positive_tilts_bend_no_more_where_one_loss_is_the_worst() -> None:
    """Lemma 24, corrected: ``beta(t) / t`` may go to 0, at one parameter or, under assumption 9, at all of them."""
    tilts = [1.0, 10.0, 100.0, 300.0, 400.0]
    at_one = _curvature(_THREE, tilts)[:, _GRID == 0.4].ravel()
    everywhere = _curvature(_DOMINATED, tilts).max(axis=1)
    for bends in (at_one, everywhere):
        np.testing.assert_allclose(bends[2:], 2.0, rtol=1e-6)
    assert at_one[0] > 2.5


# --- minimisers in the plane -------------------------------------------------------------------------------------

_X = np.random.default_rng(0).normal(size=(6, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + 0.5
_SIGNS = np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
_LINEAR, _EXPONENTIAL, _LOGISTIC = np.array([[0, 0, 1, 0], [1, 1, 1, 0], [0.1, 0, 0, 1.0]])
"""``-theta @ T``; with an ``A(theta)`` on top; and losses of no such form, where ``A`` depends on the row (T6)."""


@jax.jit
def _parts(family: Any, t: Any, theta: Any) -> Any:
    def losses(theta: Any) -> Any:
        x = jnp.asarray(_X) @ theta
        shared = family[0] * 0.5 * theta @ theta + family[1] * jnp.sum(jnp.logaddexp(theta, 0.0))
        return shared - family[2] * x + family[3] * jnp.logaddexp(-jnp.asarray(_SIGNS) * x, 0.0)

    def risk(theta: Any) -> Any:
        return tilted(t).value(losses(theta))

    f = losses(theta)
    return f, tilted(t).weights(f), jax.jacobian(losses)(theta), jax.hessian(risk)(theta)


def _at(family: np.ndarray, t: float, theta: np.ndarray) -> list[np.ndarray]:
    """Losses, weights, the losses' slopes and the risk's Hessian."""
    with jax.enable_x64(True):
        return [
            np.array(part) for part in _parts(*(jnp.asarray(np.asarray(each)) for each in (family, t, theta)))
        ]


def _minimiser(family: np.ndarray, t: float, theta: np.ndarray) -> np.ndarray:
    """By Newton's method from close by."""
    slope = np.full_like(theta, np.inf)
    for _ in range(8):
        _, w, slopes, hessian = _at(family, t, theta)
        slope = w @ slopes
        theta = theta - np.linalg.solve(hessian, slope)
    assert np.linalg.norm(slope) < 1e-10
    return theta


def _moments(w: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Variance of losses, entropy of weights, and squared cosine of losses above -9 with ones."""
    above = w @ f + 9
    variance = w @ (f - w @ f) ** 2
    return np.array([variance, -np.sum(w * np.log(w)), above**2 / (above**2 + variance)])


@pytest.mark.parametrize("family", [_EXPONENTIAL, _LOGISTIC])
@pytest.mark.parametrize("t", [0.5, 2.0])
def test_minimisers_make_losses_more_alike(family: np.ndarray, t: float) -> None:
    """Lemma 43, theorems 25, 26 and 35 for any losses, by ``c = Cov_w(f, grad f)``; not with weights that move."""
    middle = _minimiser(family, t, np.array([0.3, 0.3]))
    f, w, slopes, hessian = _at(family, t, middle)
    c = (w * (f - w @ f)) @ slopes
    path = -np.linalg.solve(hessian, c)
    ends = [_minimiser(family, t + sign * 1e-4, middle) for sign in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, path, rtol=1e-5)

    fixed, moving = (
        [_at(family, t + sign * h, end)[:2] for sign, end in zip((1, -1), ends, strict=True)]
        for h in (0, 1e-4)
    )
    variance, _, cosine = (_moments(w, fixed[0][0]) - _moments(w, fixed[1][0])) / 2e-4
    _, entropy, _ = (_moments(*fixed[0][::-1]) - _moments(*fixed[1][::-1])) / 2e-4
    slope, above = 2 * c @ path, w @ f + 9
    whole = above**2 + w @ (f - w @ f) ** 2
    np.testing.assert_allclose(
        (variance, entropy, cosine), (slope, -(t**2) * slope / 2, -(above**2) * slope / whole**2), rtol=1e-5
    )
    assert variance < 0 < min(entropy, cosine)
    moved = (_moments(*moving[0][::-1]) - _moments(*moving[1][::-1]))[0] / 2e-4
    assert abs(moved - variance) > 1e-3 * abs(variance)


@pytest.mark.parametrize("t", [-1.5, 0.7])
def test_statistics_of_exponential_families_in_the_plane(t: float) -> None:
    """Lemmas 34, 35 and 44: slopes of ``Gamma`` and of the tilted mean of ``T``, by differences and by an integral."""
    theta, h = np.array([0.8, -0.4]), 1e-5

    def gamma_and_mean(t: float, theta: np.ndarray) -> np.ndarray:
        """``Gamma``, then the mean."""
        f, w, _, _ = _at(_LINEAR, t, theta)
        return np.array([np.log(np.mean(np.exp(t * f))), *(w @ _X)])

    def covariance(t: float) -> np.ndarray:
        w = _at(_LINEAR, t, theta)[1]
        return (_X - w @ _X).T @ (w[:, None] * (_X - w @ _X))

    mean, v = gamma_and_mean(t, theta)[1:], covariance(t)
    by_tilt = (gamma_and_mean(t + h, theta) - gamma_and_mean(t - h, theta)) / (2 * h)
    np.testing.assert_allclose(by_tilt, [-theta @ mean, *(-v @ theta)], rtol=1e-7)
    for step, slope, row in zip(np.eye(2), -t * mean, -t * v, strict=True):
        ends = gamma_and_mean(t, theta + h * step) - gamma_and_mean(t, theta - h * step)
        np.testing.assert_allclose(ends / (2 * h), [slope, *row], rtol=1e-7)
    nodes, shares = np.polynomial.legendre.leggauss(8)
    whole = sum(share * covariance(t + 1 + node) for node, share in zip(nodes, shares, strict=True))
    np.testing.assert_allclose(gamma_and_mean(t + 2, theta)[1:] - mean, -whole @ theta, rtol=1e-8)
    assert np.abs(2 * v - whole).max() > 0.05


# --- descent -----------------------------------------------------------------------------------------------------

_MODEL = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda theta, x: theta - x,
    losses=lambda outputs, y: jnp.square(outputs) + y,
    metrics={},
)
"""``(theta - x)^2 + y``: with these rows, the three functions."""
_ROWS = np.array([-0.2, 0.2, 1.2], np.float32), np.array([0.0, 0.1, 0.0], np.float32)


def _trace(solver: Solver, start: float, steps: int, rows: Any = _ROWS, risk: float | None = None) -> Any:
    """States from the first one, before any step, to the last; ``risk`` replaces the first estimate."""
    x, y = (jnp.asarray(part) for part in rows)

    def step(state: Any, number: Any) -> Any:
        return solver.step(state, x, y, number, jax.random.fold_in(jax.random.key(0), number)), state

    begin = solver.init(jnp.float32(start), x, y)
    begin = begin if risk is None else begin._replace(risk=jnp.float32(risk))
    return jax.jit(lambda begin: jax.lax.scan(step, begin, jnp.arange(steps + 1)))(begin)[1]


def _descend(t: float, rate: float, start: float, steps: int) -> np.ndarray:
    solver = batch(_MODEL, tilted(t), optimiser=optax.sgd(rate))
    return np.array(_trace(solver, start, steps).params, float)


def _risk(t: float, theta: np.ndarray) -> np.ndarray:
    """The tilted risk of the three functions at each parameter, by the formula in float64."""
    f = (theta[:, None] - _THREE[1]) ** 2 + _THREE[2]
    return np.array(logsumexp(t * f, axis=1) - math.log(3)) / t


def test_descent_on_positive_tilts_is_linear() -> None:
    """Theorem 29 with the constants of lemma 24, 2 and 1.96; a rate or a step that ignores the tilt fails."""
    for t in (0.5, 5.0, 40.0):
        curvature = 2 + 1.96 * t
        values = _risk(t, _descend(t, 1 / curvature, -1.0, 400))
        gap = values[:41] - values[-1]
        assert np.all(gap <= gap[0] * (1 - 2 / curvature) ** np.arange(41) + 1e-6)
    assert gap[10] > 1e-2 and gap[10] > gap[0] * (1 - 2 / (2 + 1.96 * 5.0)) ** 10
    assert np.ptp(_descend(40.0, 1 / 2, -1.0, 400)[-10:]) > 0.1


def test_descent_on_losses_that_are_not_convex_is_linear_where_gradients_are_long() -> None:
    """Theorem 30 for ``mu``-PL, as in its proof; for ``mu / 2``-PL (7.305), as printed, it is false for a square."""
    scales, level = np.array([1.0, 2.0]), np.array([0.5, 0.0], np.float32)
    model = _MODEL._replace(
        apply=lambda theta, x: x * (jnp.square(theta) + 3 * jnp.square(jnp.sin(theta))),
        losses=lambda outputs, y: outputs + y,
    )
    theta = np.linspace(-2.2, 2.2, 2000)
    g, slope = theta**2 + 3 * np.sin(theta) ** 2, 2 * theta + 3 * np.sin(2 * theta)
    mu = float(np.min(slope**2 / (2 * g)))  # of any mixture: its scale is at least 1
    for t in (0.1, 1.0):
        curvature = 2 * 8 + t * float(np.max(2 * np.abs(slope))) ** 2
        rows = scales.astype(np.float32), level
        solver = batch(model, tilted(t), optimiser=optax.sgd(1 / curvature))
        path = np.array(_trace(solver, 2.0, 300, rows).params, float)
        f = scales * (path**2 + 3 * np.sin(path) ** 2)[:, None] + level
        gap = np.array(logsumexp(t * f, axis=1) - logsumexp(t * level)) / t
        assert np.all(gap <= gap[0] * (1 - mu / curvature) ** np.arange(301) + 1e-6)
        assert gap[1] > gap[0] * (1 - 10 * mu / curvature)
    assert 2 + 6 * np.cos(2 * path[0]) < -1, "it begins where the losses bend downwards"
    row = np.zeros(1, np.float32), np.zeros(1, np.float32)
    square = _trace(batch(_MODEL, tilted(1.0), optimiser=optax.sgd(1 / 2)), 1.0, 1, row).params ** 2
    assert square[1] > (1 - 4 / 2) * square[0], "mu (f - f*) <= f'^2 holds up to mu = 4"


def test_descent_on_negative_tilts_does_not_depend_on_the_tilt() -> None:
    """Theorem 31 at the losses' own curvature, 2: tight in the first step, where a factor of 1.9 for 2 is too small."""
    for t in (-0.5, -20.0):
        theta = _descend(t, 1 / 2, 0.9, 400)[:41]
        slopes = np.array(
            [
                tilt([t], (each - _THREE[1]) ** 2 + _THREE[2])[1][0] @ (2 * (each - _THREE[1]))
                for each in theta
            ]
        )
        gap = _risk(t, theta[:1])[0] - _risk(t, _GRID).min()
        means = np.cumsum(slopes**2)[:40] / np.arange(1, 41)
        assert np.all(means <= 2 * 2 * gap / np.arange(1, 41) + 1e-9)
    assert means[0] > 1.9 * 2 * gap


def test_negative_tilts_are_reached_from_zero() -> None:
    """Section 3.1: from the same start, a ramp ends at the minimum on the path from 0, a cold start in another one."""
    cold = _descend(-20.0, 1 / 2, 0.9, 400)[-1]
    ramp = batch(_MODEL, lambda step: tilted(-20.0 * jnp.minimum(step / 300, 1.0)), optimiser=optax.sgd(0.5))
    warm = np.array(_trace(ramp, 0.9, 400).params, float)[-1]
    assert cold == pytest.approx(1.2, abs=0.01)
    assert warm == pytest.approx(-0.197725, abs=1e-4)


def test_a_batch_of_all_rows_alone_is_batch_term() -> None:
    """E11 at rate 1: half of the draws have both rows and make its step, whatever the normaliser was."""
    rows = tuple(part[1:] for part in _ROWS)
    solver = stochastic(_MODEL, t=1.5, rate=1.0, batch_size=2, optimiser=optax.sgd(0.1))
    x, y = (jnp.asarray(part) for part in rows)
    state = solver.init(jnp.float32(0.0), x, y)._replace(risk=jnp.float32(2.0))
    keys = jax.random.split(jax.random.key(0), 400)
    found = np.array(jax.jit(jax.vmap(lambda key: solver.step(state, x, y, jnp.int32(0), key)))(keys).params)
    for risk, share in ((tilted(1.5), 0.5), (tilted(0.0), 0.0)):
        expected = float(_trace(batch(_MODEL, risk, optimiser=optax.sgd(0.1)), 0.0, 1, rows).params[1])
        assert np.mean(np.abs(found - expected) < 1e-6) == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize("t", [3.0, -3.0])
def test_the_normaliser_lags_where_powers_fall(t: float) -> None:
    """Section 3.0: from losses of 9 to 0, by ``log(1 / (1 - rate))`` a step; where powers rise, at once."""
    nothing = np.zeros(1, np.float32), np.zeros(1, np.float32)
    solver = stochastic(_MODEL, t=t, rate=0.5, batch_size=1, optimiser=optax.sgd(0.0))
    states = _trace(solver, 0.0, 4, nothing, risk=9.0)
    if t > 0:
        np.testing.assert_allclose(-t * np.diff(states.risk), math.log(2), atol=1e-5)
        assert states.weight[1:].max() < 1e-9, "all weights are almost zero"
    else:
        np.testing.assert_allclose(states.weight[1:], [2, 4 / 3, 8 / 7, 16 / 15], rtol=1e-5)


def test_the_normaliser_of_the_analysed_schedule_lags() -> None:
    """Lemma 48 is false: with one row it is ten times the truth after step ``k_t + 1``; not for ``2 e M / mu``."""
    row = np.zeros(1, np.float32), np.zeros(1, np.float32)
    model = _MODEL._replace(losses=lambda r, y: 8.0 * jnp.hypot(r, 0.01) + 0.5 * r * r)

    def losses(theta: Any) -> Any:
        return 8.0 * np.hypot(theta, 0.01) + 0.5 * theta**2

    # On [-1, 1]: 1-strongly convex, slopes L = B of at most 9, and a range of 4 / t; M is t L B e^4.
    t = 4.0 / float(losses(1.0) - losses(0.0))
    m = t * 9.0**2 * math.exp(4.0)

    def ratios(last: float, steps: int) -> np.ndarray:
        """Of the normaliser's power to the truth's after each step; steps shrink after the last of the first phase."""

        def size(done: Any) -> Any:
            k = jnp.asarray(done + 1, jnp.float32)
            return jnp.where(k <= last, 1 / (m + 1), 2 * math.e / k)

        normaliser = {"rate": 1 - 1 / (2 * math.e), "batch_size": 1, "two_batches": True}
        states = _trace(stochastic(model, t=t, optimiser=optax.sgd(size), **normaliser), 1.0, steps, row)
        theta = np.array(states.params, float)
        assert np.all(np.abs(theta) <= 1)
        return np.exp(t * (np.array(states.risk, float) - losses(theta)))[1:]

    printed = max(k for k in range(1, 200) if k < 2 * math.e + math.e * m / k)
    found = ratios(printed, printed + 1)
    assert found[:-1].max() <= 2 * math.e and found[-1] > 10
    mended = int(2 * math.e * m)
    assert ratios(mended, mended + 100).max() <= 2 * math.e
