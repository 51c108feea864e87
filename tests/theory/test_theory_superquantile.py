"""Delta-FL's theory: bias and variance of cohorts, smoothness, drift of clients, envelopes, and sizes of steps.

Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine Learning 2023,
numbered as in the specification.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import hypergeom

import evenhand as eh
from evenhand import local
from evenhand.risks import smoothed_superquantile, superquantile
from evenhand.theory import (
    cohort_bias,
    cohort_variance,
    delta_fl_convex,
    delta_fl_step,
    smoothed_lipschitz,
    smoothing_bias,
)
from evenhand.types import ClientData, Model, Report, Risk


def _risk(theta: float, nu: float) -> Risk:
    return smoothed_superquantile(theta, nu) if nu > 0 else superquantile(theta)


def _measure(risk: Risk, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values ``(cases,)`` and weights ``(cases, n)`` in float64."""
    with jax.enable_x64(True):
        both = jax.jit(jax.vmap(lambda f: (risk.value(f), risk.weights(f))))(jnp.asarray(losses))
        return np.array(both[0]), np.array(both[1])


# --- cohorts -----------------------------------------------------------------------------------------------------


def test_cohorts_of_two_kinds_of_clients_in_closed_form() -> None:
    """Property 9 (smoothed too) and proposition 11, exactly; a smaller order of bias or variance is refuted.

    Of 200 clients the share ``theta`` has loss 1 and slope 1, the others 0 and -1.  A cohort is then known by how many
    of the first kind it has, a hypergeometric number, and its risk by the mass that these get.
    """
    m, theta = 50, 0.3
    high = np.arange(m + 1)
    chance = hypergeom.pmf(high, 200, round(200 * theta), m)
    losses = (np.arange(m) < high[:, None]).astype(float)
    cap = np.minimum(high / (theta * m), 1)
    for nu in (0.0, 2.0):
        value, weights = _measure(_risk(theta, nu), losses)
        # The mass without caps is that of a tilt; caps clip it.
        rise = math.exp(1 / nu) if nu > 0 else 1e300
        mass = np.clip(
            high * rise / (high * rise + m - high), 1 - np.minimum((m - high) / (theta * m), 1), cap
        )
        np.testing.assert_allclose((weights * losses).sum(axis=1), mass, atol=1e-12)

        bias = chance @ value - 1.0
        root = 1 / math.sqrt(theta * m)
        bound = cohort_bias(largest_loss=1.0, theta=theta, cohort=m, nu=nu)
        assert bound == pytest.approx(root + 2 * nu * math.log(m)) and -bound <= bias < 0
        slope = 2 * mass - 1
        variance = chance @ slope**2 - (chance @ slope) ** 2
        assert variance <= cohort_variance(slope=1.0, theta=theta, cohort=m) == pytest.approx(8 / (theta * m))
        if nu == 0:
            assert -bias > 0.2 * root and variance > 0.3 / (theta * m), "no smaller order"
        if nu == 2:
            assert -bias > root, "smoothing has a price of its own"

        for ridge in (0.0, -3.0, 10.0):
            second = chance @ (mass * (1 + ridge) ** 2 + (1 - mass) * (ridge - 1) ** 2)
            whole = (chance @ slope + ridge) ** 2
            assert second <= (4 + 8 / (theta * m)) + whole
            assert second <= (1 + 8 / (theta * m)) + whole, "1 is enough for 4"
            assert second > whole
        assert second > 4 + 8 / (theta * m), "not without the gradient of the whole"


def _dual(f: np.ndarray, theta: float, nu: float) -> float:
    """The risk as a minimum over thresholds of a mean, found by SciPy."""

    def of(eta: float) -> float:
        x = f - eta
        if nu == 0:
            return float(eta + np.maximum(x, 0).mean() / theta)
        free = np.minimum(x / nu - 1, -math.log(theta))
        return float(eta + np.mean(np.exp(free) * (x - nu * free)))

    found = minimize_scalar(of, bounds=(-30, 30), method="bounded", options={"xatol": 1e-12, "maxiter": 500})
    return float(cast(Any, found).fun)


@pytest.mark.parametrize("nu", [0.0, 0.3])
def test_all_cohorts_of_three_underestimate(nu: float) -> None:
    """Section 10.5: 56 cohorts of 8 clients.  A mean's minimum is at least the mean of minima; not biased: the mean."""
    f = np.random.default_rng(0).uniform(0, 3, 8)
    cohorts = f[np.array(list(itertools.combinations(range(8), 3)))]
    value, _ = _measure(_risk(0.4, nu), cohorts)
    np.testing.assert_allclose(value[::9], [_dual(each, 0.4, nu) for each in cohorts[::9]], atol=1e-8)
    assert value.mean() < _dual(f, 0.4, nu) - 1e-2
    bias = abs(value.mean() - _dual(f, 0.4, 0))
    assert bias <= cohort_bias(largest_loss=3.0, theta=0.4, cohort=3, nu=nu)
    assert _measure(_risk(1.0, nu), cohorts)[0].mean() == pytest.approx(f.mean(), abs=1e-12)


# --- smoothness --------------------------------------------------------------------------------------------------


def _slope(risk: Risk, losses: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """The composition's gradients ``(cases, d)``, by Danskin, from those of the losses ``(cases, n, d)``."""
    return np.einsum("ck,ckd->cd", _measure(risk, losses)[1], slopes)


def test_the_smoothed_tail_of_lines_bends_by_their_squared_slope() -> None:
    """Property 10 with L = 0 is tight: four lines of slopes 3 and -3 that tie; the sharp tail has a kink there."""
    sides, nu = np.array([3.0, 3.0, -3.0, -3.0]), 0.05
    slopes = np.broadcast_to(sides[:, None], (4001, 4, 1))
    w = np.linspace(-1, 1, 4001)
    soft, sharp = (
        _slope(each, w[:, None] * sides, slopes)[:, 0]
        for each in (smoothed_superquantile(0.5, nu), superquantile(0.5))
    )
    steepest = np.abs(np.diff(soft) / np.diff(w)).max()
    bound = smoothed_lipschitz(lipschitz=0.0, slope=3.0, nu=nu)
    assert 0.999 * bound < steepest <= bound * (1 + 1e-9)
    assert np.abs(np.diff(sharp) / np.diff(w)).max() > 30 * 9 / nu, (
        "3 in 1 / 2000, however small the distance"
    )


def test_the_smoothed_tail_of_parabolas_bends_little_more_than_they() -> None:
    """Property 10: at most ``L + G^2 / nu`` between any two points of a ball; L, or twice that, is not enough."""
    rng = np.random.default_rng(1)
    roots = rng.normal(size=(7, 3, 3))
    bends = np.einsum("kij,kil->kjl", roots, roots) / 3
    centres = 2 * rng.normal(size=(7, 3))

    def parts(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = w[:, None] - centres
        slopes = np.einsum("kij,nkj->nki", bends, away)
        return 0.5 * np.sum(away * slopes, axis=2), slopes

    at = rng.normal(size=(400, 3))
    at /= np.maximum(1, np.linalg.norm(at, axis=1, keepdims=True))
    by = 1e-5 * rng.normal(size=at.shape)
    top = np.linalg.eigvalsh(bends).max()
    steep = np.linalg.norm(parts(at)[1], axis=-1).max() + 1e-3
    nu = 0.3
    both = _slope(smoothed_superquantile(0.35, nu), *parts(np.concatenate([at + by, at])))
    most = np.max(np.linalg.norm(both[:400] - both[400:], axis=1) / np.linalg.norm(by, axis=1))
    assert 2 * top < most <= smoothed_lipschitz(lipschitz=top, slope=steep, nu=nu)
    with_ridge = smoothed_lipschitz(lipschitz=top, slope=steep, nu=nu, ridge=0.7)
    assert with_ridge == pytest.approx(top + 0.7 + steep**2 / nu)


@pytest.mark.parametrize(("theta", "n"), [(0.5, 4), (0.25, 8), (0.1, 6), (1.0, 5)])
def test_smoothing_takes_at_most_the_divergence_of_the_tail(theta: float, n: int) -> None:
    """On parabolas it lies between 0 and the bound, which is met where the tail is far above the rest."""
    nu, rng = 0.3, np.random.default_rng(0)
    bound = smoothing_bias(nu=nu, theta=theta, clients=n)
    assert bound == pytest.approx(nu * math.log(min(n, 1 / theta)))
    losses = rng.uniform(0.5, 2, (200, n)) / 2 * (rng.normal(size=(200, 1)) - 2 * rng.normal(size=n)) ** 2
    gap = _measure(_risk(theta, 0.0), losses)[0] - _measure(_risk(theta, nu), losses)[0]
    assert (gap >= -1e-9).all() and (gap <= bound + 1e-9).all()
    far = np.where(np.arange(n) < max(1, round(theta * n)), 100.0, 0.0)[None]
    met = _measure(_risk(theta, 0.0), far)[0] - _measure(_risk(theta, nu), far)[0]
    assert met[0] == pytest.approx(bound, abs=1e-9)
    assert gap.min() < 0.9 * bound or theta == 1


# --- sizes of steps ----------------------------------------------------------------------------------------------


def test_the_step_of_a_sublinear_rate() -> None:
    """Lemma 14 and its numbers, against SciPy's minimum; theorem 7's step is a case of it, without its last term wrong.

    ``phi = A / (gamma T) + B gamma + C gamma^2`` on ``(0, top]``.
    """

    def parts(a: float, b: float, c: float, t: float, top: float) -> tuple[float, ...]:
        def phi(step: float) -> float:
            return a / (step * t) + b * step + c * step**2

        step = min(top, math.sqrt(a / (b * t)), (a / (c * t)) ** (1 / 3))
        loose = phi(min(top, math.sqrt(a / (b * t))))
        found = minimize_scalar(lambda u: phi(top * math.exp(u)), bounds=(-30, 0), method="bounded")
        best = cast(Any, found).fun
        bound = a / (top * t) + 2 * math.sqrt(a * b / t) + 2 * c ** (1 / 3) * (a / t) ** (2 / 3)
        return step, phi(step), best, bound, loose

    step, value, best, bound, _ = parts(1, 2, 3, 100, 0.5)
    assert (step, value, bound) == pytest.approx((0.0707107, 0.297843, 0.436729), abs=1e-6)
    assert best <= value + 1e-9
    rows = [parts(*np.exp(row)) for row in np.random.default_rng(2).normal(0, 3, (300, 5))]
    assert all(best <= value * (1 + 1e-4) <= bound * (1 + 2e-4) for _, value, best, bound, _ in rows)
    assert any(loose > bound for *_, bound, loose in rows), "each candidate is needed"

    tau, rounds = 5, 1000
    found = parts(1 / tau, tau, 32 * tau * (tau - 1), rounds, 1 / (4 * tau))[0]
    assert found == pytest.approx(0.00632456, abs=1e-8)
    for gap, lipschitz, slope, rounds in (
        (1, 1, 1, 1000),
        (1, 1, 1, 50),
        (0.3, 2, 5, 10**6),
        (9, 0.1, 0.2, 50),
        (1, 3, 0.01, 9),
    ):
        for tau in (1, 4):
            drift = 32 * tau * (tau - 1) * (lipschitz * slope) ** 2
            expected = (
                parts(gap / tau, tau * lipschitz * slope**2, drift, rounds, 1 / (4 * tau * lipschitz))[0]
                if (drift)
                else min(1 / (4 * lipschitz), math.sqrt(gap / (lipschitz * slope**2 * rounds)))
            )
            found = delta_fl_step(gap=gap, lipschitz=lipschitz, slope=slope, rounds=rounds, local_steps=tau)
            assert found == pytest.approx(expected, rel=1e-12)


def test_the_step_of_a_linear_rate() -> None:
    """Lemma 13 and its numbers; false where the largest step allowed is short of ``log 2 / (lambda T)``."""

    def parts(a: float, b: float, c: float, x: float, top: float) -> tuple[float, ...]:
        first, second = max(1.0, math.log(a * x / b)), max(1.0, math.log(a * x * x / c))
        step = min(top, first / x, second / x)
        noise = b * step + c * step**2
        bound = 2 * a * math.exp(-x * top) + 3 * b * first / x + 3 * c * (second / x) ** 2
        return step, a / math.expm1(x * step) + noise, 2 * a * math.exp(-x * step) + noise, bound

    numbers = (0.2208584, 0.3097975, 0.3496369, 1.0292640)
    assert parts(10, 1, 1, 0.5 * 50, 1.0) == pytest.approx(numbers, abs=1e-7)
    for row in np.exp(np.random.default_rng(3).normal(0, 3, (300, 5))):
        a, b, c, x = row[:4]
        _, value, _, bound = parts(a, b, c, x, (math.log(2) + row[4]) / x)
        assert value <= bound * (1 + 1e-9)
    _, value, _, bound = parts(1.0, 1e-3, 1e-3, 1.0, 0.1)
    assert value > bound


def test_the_step_of_the_sublinear_rate_on_a_parabola() -> None:
    """``L w^2 / 2``, whose envelope has the slope ``2 L w / 3``: the rate holds, and not with a step too small."""
    lipschitz, start = 2.0, 3.0
    gap, slope = lipschitz * start**2 / 2, lipschitz * start
    for rounds in (30, 300, 3000):
        step = delta_fl_step(gap=gap, lipschitz=lipschitz, slope=slope, rounds=rounds)
        bound = math.sqrt(gap * lipschitz * slope**2 / rounds) + gap * lipschitz / rounds
        for factor in (1.0, 0.01):
            w = start * (1 - factor * step * lipschitz) ** np.arange(rounds)
            assert (np.mean((2 / 3 * lipschitz * w) ** 2) <= bound) == (factor == 1)


def test_the_numbers_of_the_linear_rate_on_two_parabolas() -> None:
    """All of the formula anew, and the averaged model of a run of it, which a step too small leaves far behind."""
    curves, centres, ridge, theta, m, rounds, start = (
        np.array([1.0, 2.0]),
        np.array([-1.0, 1.0]),
        0.5,
        0.6,
        2,
        400,
        2.0,
    )
    lipschitz, slope = 2.0, 6.0  # on [-1, 2]
    w_grid = np.linspace(-2, 2, 4001)[:, None]
    values = (
        _measure(_risk(theta, 0.0), curves / 2 * (w_grid - centres) ** 2)[0] + ridge / 2 * w_grid[:, 0] ** 2
    )
    best = float(w_grid[values.argmin(), 0])
    distance = (start - best) ** 2
    given: dict[str, Any] = {"distance": distance, "lipschitz": lipschitz, "slope": slope, "ridge": ridge}
    found = delta_fl_convex(**given, theta=theta, cohort=m, rounds=rounds)

    def at_least(x: float) -> float:
        return max(1.0, math.log(x))

    kappa, ratio = (lipschitz + ridge) / ridge, ridge**2 * distance / slope**2
    delta = min(
        1 / (16 * kappa**1.5),
        at_least(ratio * rounds / math.log(m)) / rounds,
        at_least(ratio * rounds**2 / (kappa**2 * math.log(m))) / rounds,
    )
    nu = 8 * slope**2 * delta / ridge * max(1, 32 * kappa**2 * delta)
    smooth = lipschitz + ridge + slope**2 / nu
    step = min(
        1 / (4 * smooth),
        1 / (8 * kappa * math.sqrt(2 * ridge * smooth)),
        at_least(ratio * theta * m * rounds) / (ridge * rounds),
    )
    assert found == pytest.approx((nu, step, 1 / (1 - step * ridge / 2), 16 * kappa**1.5), rel=1e-9)
    several = delta_fl_convex(**given, theta=theta, cohort=m, rounds=10**5, local_steps=4)
    drift = at_least(ratio * 10**10 / (kappa**2 * 0.75)) / (ridge * 4 * 10**5)
    assert several.step <= drift and several.growth == pytest.approx(1 / (1 - several.step * ridge * 2))
    alone = delta_fl_convex(**given, theta=1.0, cohort=1, rounds=rounds)
    assert alone.nu == pytest.approx(8 * slope**2 / ridge * 2 * kappa**0.5 / (16 * kappa**1.5), rel=1e-9)

    weigh = jax.jit(smoothed_superquantile(theta, nu).weights)
    gaps = {}
    for factor in (1.0, 0.01):
        w, mean, total, weight = start, 0.0, 0.0, 1.0
        for _ in range(rounds):
            total += weight
            mean += weight / total * (w - mean)
            weight *= found.growth
            pi = np.asarray(weigh(jnp.asarray(curves / 2 * (w - centres) ** 2)), np.float64)
            w -= factor * step * (pi @ (curves * (w - centres)) + ridge * w)
        gaps[factor] = np.interp(mean, w_grid[:, 0], values) - values.min()
    bound = ridge * distance * math.exp(-rounds / found.rounds) + slope**2 / (ridge * rounds)
    assert gaps[1.0] < bound < gaps[0.01]


@pytest.mark.parametrize(
    ("numbers", "least"),
    [
        ((1.0, 1.0, 6.0, 0.5, 0.01, 1000, 3000, 1), (1, 0)),
        ((1.0, 4.0, 6.0, 0.01, 1.0, 1000, 10**6, 1), (1, 1)),
        ((89.0, 1.0, 1.0, 1e-4, 0.5, 20, 25 * 10**6, 1), (2, 1)),
        ((1.0, 1.0, 6.0, 0.9, 0.01, 1, 10**8, 1), (0, 2)),
        ((1.0, 4.0, 0.1, 0.01, 1.0, 1000, 10**8, 4), (1, 3)),
    ],
)
def test_any_term_of_the_linear_rate_can_be_the_least(
    numbers: tuple[Any, ...], least: tuple[int, int]
) -> None:
    """The smoothing has three bounds and the step four."""
    distance, lipschitz, slope, ridge, theta, m, rounds, tau = numbers
    kappa, ratio = (lipschitz + ridge) / ridge, ridge**2 * distance / slope**2

    def at_least(a: float, b: float) -> float:
        return max(1.0, math.log(a / b)) if b else math.inf

    deltas = [
        1 / (16 * kappa**1.5),
        at_least(ratio * rounds, math.log(m)) / rounds,
        at_least(ratio * rounds**2, kappa**2 * math.log(m)) / rounds,
    ]
    nu = 8 * slope**2 * min(deltas) / ridge * max(1, 32 * kappa**2 * min(deltas))
    smooth = lipschitz + ridge + slope**2 / nu
    steps = [
        1 / (4 * tau * smooth),
        1 / (8 * tau * kappa * math.sqrt(2 * ridge * smooth)),
        at_least(ratio * theta * m * rounds, 1.0) / (ridge * tau * rounds),
        at_least(ratio * rounds**2, kappa**2 * (1 - 1 / tau)) / (ridge * tau * rounds),
    ]
    assert (int(np.argmin(deltas)), int(np.argmin(steps))) == least
    rate = delta_fl_convex(
        distance=distance,
        lipschitz=lipschitz,
        slope=slope,
        ridge=ridge,
        theta=theta,
        cohort=m,
        rounds=rounds,
        local_steps=tau,
    )
    growth = 1 / (1 - min(steps) * ridge * tau / 2)
    assert rate == pytest.approx((nu, min(steps), growth, 16 * kappa**1.5), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: cohort_bias(largest_loss=0.0, theta=0.5, cohort=9), "above 0"),
        (lambda: cohort_bias(largest_loss=1.0, theta=0.5, cohort=9, nu=-1.0), "at least 0"),
        (lambda: cohort_variance(slope=1.0, theta=1.5, cohort=9), "at most 1"),
        (lambda: smoothing_bias(nu=0.1, theta=0.0, clients=9), "at most 1"),
        (lambda: smoothed_lipschitz(lipschitz=1.0, slope=1.0, nu=0.0), "above 0"),
        (lambda: delta_fl_step(gap=-1.0, lipschitz=1.0, slope=1.0, rounds=9), "above 0"),
        (lambda: delta_fl_step(gap=1.0, lipschitz=1.0, slope=1.0, rounds=0), "whole number"),
        (lambda: cohort_bias(largest_loss="1", theta=0.5, cohort=9), "above 0"),  # pyright: ignore[reportArgumentType]
        (lambda: cohort_bias(largest_loss=1.0, theta=0.5, cohort=9, nu=1e200), "at most 1e50"),
        (lambda: cohort_variance(slope=1.0, theta=1e-320, cohort=9), "from 1e-50"),
        (lambda: cohort_variance(slope=1e200, theta=0.5, cohort=9), "from 1e-50 to 1e50"),
        (lambda: delta_fl_step(gap=1.0, lipschitz=1.0, slope=1e-200, rounds=9), "from 1e-50 to 1e50"),
        (lambda: _convex(slope=1e200), "slope=1e.200: give a finite number above 0, from 1e-50 to 1e50"),
        (lambda: _convex(ridge=2.0), "ridge below lipschitz"),
        (lambda: _convex(rounds=10), "from 84 rounds on"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, wrong: str) -> None:
    with pytest.raises(eh.EvenhandError, match=wrong):
        make()


def _convex(ridge: float = 0.5, rounds: int = 2000, slope: float = 1.0) -> Any:
    given: dict[str, Any] = {"distance": 1.0, "lipschitz": 1.0, "slope": slope, "theta": 0.5}
    return delta_fl_convex(**given, ridge=ridge, cohort=20, rounds=rounds)


# --- drift, and envelopes ----------------------------------------------------------------------------------------

_CENTRES = np.array([-30.0, -1.0, 20.0, 40.0])
_SOFT = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: jnp.hypot(w - x, 1.0),
    losses=lambda outputs, y: outputs,
    metrics={},
)
"""``hypot(w - c, 1)``: bends by at most 1 and has slopes below 1."""


def _drifts(rate: float, tau: int) -> tuple[np.ndarray, np.ndarray]:
    """How far clients are after 0 to ``tau - 1`` steps, without and with momentum; weights of all cohorts of two."""

    # A straggler stops after as many steps as its progress allows.
    def one(momentum: Any, done: Any, c: Any) -> Any:
        phase, message = of(momentum)
        data = ClientData(c[None], jnp.zeros(1), jnp.int32(0), jnp.int32(1), (done - 0.5) / tau, 1)
        return phase.work(message, (), data, jax.random.key(0))[0], phase.report(message, (), data).loss

    def of(momentum: Any) -> Any:
        work = eh.local.sgd(_SOFT, optax.sgd(rate, momentum=momentum), steps=tau)
        method = eh.algorithms.delta_fl(work, theta=0.5, nu=0.2)
        (phase,) = method.phases
        return phase, phase.broadcast(method.init(jnp.float32(0.0), 4), jnp.int32(0))

    grid = jnp.meshgrid(
        jnp.array([0.0, 0.9]), jnp.arange(1.0, tau), jnp.array(_CENTRES, jnp.float32), indexing="ij"
    )
    moved, losses = (
        np.array(part).reshape(2, tau - 1, 4) for part in jax.jit(jax.vmap(one))(*(x.ravel() for x in grid))
    )
    ids = jnp.array(list(itertools.combinations(range(4), 2)))
    weigh = of(0.0)[0].aggregator.weigh
    assert weigh is not None
    weights_of = jax.jit(jax.vmap(lambda ids, loss: weigh(Report(jnp.ones(2), loss), ids, ())[0]))
    weights = np.zeros((6, 4))
    np.put_along_axis(weights, np.array(ids), np.array(weights_of(ids, losses[0, 0][ids])), axis=1)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    return np.concatenate([np.zeros((2, 1, 4)), moved], axis=1), weights


def test_clients_drift_as_far_as_their_steps_reach() -> None:
    """Proposition 12 at its largest step; ``(2 tau - 1) / (6 tau)`` is enough for its 8, and not with momentum."""
    tau = 8
    rate = 1 / (4 * tau)
    sharp = rate**2 * tau * (tau - 1) * (2 * tau - 1) / 6
    path = [np.zeros(4)]
    for _ in range(tau - 1):
        path.append(path[-1] - rate * (path[-1] - _CENTRES) / np.hypot(path[-1] - _CENTRES, 1))
    moved, weights = _drifts(rate, tau)
    np.testing.assert_allclose(moved[0], path, atol=1e-6)
    total, heavy = (np.sum(weights.mean(axis=0) @ np.square(each).T) for each in moved)
    assert 0.95 * sharp < total <= sharp < 8 * tau**2 * (tau - 1) * rate**2
    assert heavy > 5 * sharp


_WAVES = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: x[:, 0] * jnp.cos(w) + x[:, 1] + 0.05 * w * w,
    losses=lambda outputs, y: outputs,
    metrics={},
)
_ROWS = np.array([[1.0, 1.0], [0.5, 1.1], [-0.1, 1.0]])


def test_a_proximal_solve_gives_the_slope_of_the_envelope() -> None:
    """Section 10.7: ``mu (w - prox w)``, by the library's solver on a smoothed tail; below L there is a kink."""
    risk = smoothed_superquantile(0.5, 0.4)
    z = np.linspace(-8, 8, 4001)
    values = _measure(risk, _ROWS[:, 0] * np.cos(z)[:, None] + _ROWS[:, 1] + 0.05 * z[:, None] ** 2)[0]

    def envelope(mu: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        all_of_them = values + mu / 2 * np.square(z - w[:, None])
        return all_of_them.min(axis=1), z[all_of_them.argmin(axis=1)]

    mu, w, h = 2.0, np.linspace(-3.1, 3.3, 17), 0.02
    work = local.sgd(_WAVES, 0.1, steps=300, risk=risk)
    data = ClientData(
        jnp.asarray(_ROWS, jnp.float32), jnp.zeros(3), jnp.int32(0), jnp.int32(3), jnp.float32(1.0), 3
    )

    def near(w: Any) -> Any:
        return work.solve(w, data, jax.random.key(0), local.proximal(mu, w))[0]

    prox = np.array(jax.jit(jax.vmap(near))(jnp.asarray(w, jnp.float32)))
    phi, nearest = envelope(mu, w)
    np.testing.assert_allclose(prox, nearest, atol=4e-3)
    slope = (envelope(mu, w + h)[0] - envelope(mu, w - h)[0]) / (2 * h)
    np.testing.assert_allclose(mu * (w - prox), slope, atol=5e-3)
    assert np.all(phi <= np.interp(w, z, values)) and np.ptp(w - prox) > 0.1
    assert envelope(mu, z[::20])[0].min() == pytest.approx(values.min(), abs=1e-3)
    sides = {each: envelope(each, np.array([-2 * h, -h, h, 2 * h]))[0] for each in (2.0, 0.2)}
    kinks = {each: (y[3] - y[2]) / h - (y[1] - y[0]) / h for each, y in sides.items()}
    assert abs(kinks[2.0]) < 0.15 and kinks[0.2] < -0.5
