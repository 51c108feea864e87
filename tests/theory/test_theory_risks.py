"""The identities of tilted risks, each with a value at which it does not hold, and the toy of three functions.

Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023.  Groups (E9, E10) are in tests/unit/risks.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from evenhand.risks import tilted

_TS = (-30.0, -3.0, -0.5, -1e-3, 1e-3, 0.5, 3.0, 30.0)
_F = np.random.default_rng(0).normal(size=(40, 6))
_N = _F.shape[1]


@jax.jit
def _tilt(t: Any, f: Any) -> Any:
    risk = tilted(t)
    return jax.vmap(risk.value)(f), jax.vmap(risk.weights)(f)


def _risk(t: float, f: np.ndarray = _F) -> np.ndarray:
    with jax.enable_x64(True):
        return np.array(_tilt(jnp.asarray(float(t)), jnp.asarray(f))[0])


def _weights(t: float, f: np.ndarray = _F) -> np.ndarray:
    with jax.enable_x64(True):
        return np.array(_tilt(jnp.asarray(float(t)), jnp.asarray(f))[1])


def test_e1_the_risk_grows_with_the_tilt_from_the_least_to_the_largest_loss() -> None:
    """Theorem 23; and in between it is neither."""
    values = np.array([_risk(t) for t in _TS])
    assert (np.diff(values, axis=0) > 0).all()
    assert (values >= _F.min(axis=1) - 1e-12).all() and (values <= _F.max(axis=1) + 1e-12).all()
    assert (values[2:6] > _F.min(axis=1) + 1e-2).all() and (values[2:6] < _F.max(axis=1) - 1e-2).all()


def test_e2_the_mean_its_slope_and_the_distance_to_the_extremes() -> None:
    """Mean at 0, slope ``Var / 2`` (not ``Var``), and ``log n / |t|`` at most to the extremes (half is not enough)."""
    np.testing.assert_allclose(_risk(0.0), _F.mean(axis=1), atol=1e-14)
    slope = (_risk(1e-4) - _risk(-1e-4)) / 2e-4
    np.testing.assert_allclose(slope, _F.var(axis=1) / 2, atol=1e-6)
    assert np.abs(slope - _F.var(axis=1)).min() > 1e-2
    for t in (0.5, 3.0, 30.0):
        assert (_F.max(axis=1) - np.log(_N) / t <= _risk(t) + 1e-12).all()
        assert (_risk(-t) <= _F.min(axis=1) + np.log(_N) / t + 1e-12).all()
    assert (_F.max(axis=1) - np.log(_N) / 2 / 30 > _risk(30.0)).any()


@pytest.mark.parametrize("t", _TS)
def test_e3_shift_scale_and_sign(t: float) -> None:
    """``R(f + c) = R(f) + c``, ``R(t; a f) = a R(a t; f)``, ``R(-t; f) = -R(t; -f)``; not ``a R(t; f)``."""
    np.testing.assert_allclose(_risk(t, _F + 1.7), _risk(t) + 1.7, atol=1e-12)
    np.testing.assert_allclose(_risk(t, 2.5 * _F), 2.5 * _risk(2.5 * t), atol=1e-12)
    np.testing.assert_allclose(_risk(-t), -_risk(t, -_F), atol=1e-12)
    assert abs(t) < 1 or np.abs(_risk(t, 2.5 * _F) - 2.5 * _risk(t)).max() > 1e-3


def _model(theta: Any) -> Any:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)))
    return jnp.logaddexp(x @ theta, 0.0) + 0.1 * jnp.sum(theta**2)


@pytest.mark.parametrize("t", [-2.0, 0.0, 1.5])
def test_e4_gradient_and_hessian(t: float) -> None:
    """Equations 7.25 and 7.13: weighted gradients; and ``t`` times their covariance on top of weighted Hessians."""
    with jax.enable_x64(True):
        theta = jnp.asarray([0.3, -1.0, 0.6])

        def objective(theta: Any) -> Any:
            return tilted(t).value(_model(theta))

        gradient, hessian = jax.jit(lambda x: (jax.grad(objective)(x), jax.hessian(objective)(x)))(theta)
        each, curved = jax.jit(lambda x: (jax.jacobian(_model)(x), jax.hessian(_model)(x)))(theta)
        w = np.array(tilted(t).weights(_model(theta)))
    each, mean = np.array(each), w @ np.array(each)
    np.testing.assert_allclose(gradient, mean, atol=1e-12)
    plain = np.einsum("i,ijk->jk", w, np.array(curved))
    spread = np.einsum("i,ij,ik->jk", w, each - mean, each - mean)
    np.testing.assert_allclose(hessian, plain + t * spread, atol=1e-11)
    assert t == 0 or np.abs(np.array(hessian) - plain).max() > 1e-2


def test_e5_the_risk_of_lipschitz_losses_is_lipschitz() -> None:
    """Lemma 22: with the losses' own constant, whatever the tilt; the mean of half the losses' is not enough."""
    rng = np.random.default_rng(2)
    slopes = rng.uniform(-2, 2, (40, 6))
    steps = []
    for t in _TS:
        moved = np.abs(_risk(t, _F + 0.1 * slopes) - _risk(t))
        assert (moved <= 0.1 * np.abs(slopes).max(axis=1) + 1e-12).all()
        steps.append(moved)
    assert (np.array(steps) > 0.1 * np.abs(slopes).mean(axis=1)).any()


@pytest.mark.parametrize("t", _TS)
def test_e6_the_distance_to_the_mean_is_a_divergence(t: float) -> None:
    """``R - mean = KL(u || w) / t`` for either sign; with the arguments of the divergence swapped it is not."""
    w = _weights(t)
    u = 1 / _N
    right = np.sum(u * np.log(u / w), axis=1) / t
    np.testing.assert_allclose(_risk(t) - _F.mean(axis=1), right, atol=1e-11)
    assert abs(t) < 0.1 or np.abs(np.sum(w * np.log(w / u), axis=1) / t - right).max() > 1e-3


@pytest.mark.parametrize("t", [0.5, 3.0])
def test_e7_the_risk_is_the_worst_mixture_less_its_divergence(t: float) -> None:
    """The dual form for positive tilts: none exceeds it, the weights reach it; for negative ones some exceed it."""

    def dual(q: np.ndarray, t: float) -> np.ndarray:
        return np.sum(q * _F, axis=-1) - np.sum(q * np.log(_N * q), axis=-1) / t

    q = np.random.default_rng(3).dirichlet(np.ones(_N), (200, 1))
    assert (dual(q, t) <= _risk(t) + 1e-12).all()
    np.testing.assert_allclose(dual(_weights(t), t), _risk(t), atol=1e-12)
    assert (dual(q, -t) > _risk(-t)).any()


@pytest.mark.parametrize("t", _TS)
def test_e8_the_risk_is_a_cross_entropy_of_renyi(t: float) -> None:
    """``R(t) = H_{1-t}(u || e^-f) = H_{1-t}(u || w(-1)) - log sum e^-f``; with ``w(1)``, as printed, it is not."""

    def entropy(q: np.ndarray) -> np.ndarray:
        return np.log(np.mean(q**-t, axis=1)) / t

    log_total = np.log(np.sum(np.exp(-_F), axis=1))
    np.testing.assert_allclose(entropy(np.exp(-_F)), _risk(t), atol=1e-9)
    np.testing.assert_allclose(entropy(_weights(-1.0)) - log_total, _risk(t), atol=1e-9)
    assert np.abs(entropy(_weights(1.0)) - _risk(t)).max() > 0.1


# --- three functions of one parameter ----------------------------------------------------------------------------

_PATH = {
    0.0: (0.400000, 0.380000),
    0.1: (0.408412, 0.382020),
    1.0: (0.453868, 0.395899),
    5.0: (0.494523, 0.429896),
    20.0: (0.499982, 0.469789),
    100.0: (0.500000, 0.485945),
    -0.1: (0.390488, 0.377825),
    -0.5: (0.337400, 0.366915),
    -1.0: (0.224506, 0.344596),
    -2.0: (0.030156, 0.273207),
    -5.0: (-0.076083, 0.161083),
    -20.0: (-0.197725, 0.054651),
    -100.0: (-0.200000, 0.010986),
}


def _three(theta: np.ndarray) -> np.ndarray:
    return np.stack([(theta + 0.2) ** 2, (theta - 0.2) ** 2 + 0.1, (theta - 1.2) ** 2], axis=-1)


def _follow(sign: int) -> dict[float, tuple[float, float]]:
    """Local minima along the path from 0, each searched near the one before: on a grid, then on finer ones."""
    found, theta = {}, 0.4
    stops = sorted((t for t in _PATH if sign * t > 0), key=abs)
    for t in sorted({*stops, *(sign * np.logspace(-2, 2, 120))}, key=abs):
        width = 0.03
        for _ in range(5):
            grid = theta + width * np.linspace(-1, 1, 41)
            theta = float(grid[np.argmin(_risk(t, _three(grid)))])
            width /= 12
        found[float(t)] = (theta, float(_risk(t, _three(np.array([theta])))[0]))
    return {t: found[t] for t in stops}


def test_minima_of_three_functions_along_the_path() -> None:
    """The table of the specification (figure 7.2); the minimum grows with the tilt (theorem 24)."""
    found = {0.0: (0.4, float(_risk(0.0, _three(np.array([0.4])))[0])), **_follow(1), **_follow(-1)}
    for t, (theta, value) in _PATH.items():
        # At a minimum, the error of the argument is about the square root of the error of the value.
        assert found[t] == (pytest.approx(theta, abs=3e-6), pytest.approx(value, abs=1e-6)), t
    values = [value for _, (_, value) in sorted(found.items())]
    assert np.all(np.diff(values) > 0)


def test_limits_of_three_functions() -> None:
    """The largest is least at 0.5, where it is 0.49; the median is least at 0.125."""
    assert _three(np.array(0.5)).max() == pytest.approx(0.49)
    found = minimize_scalar(
        lambda theta: float(_three(np.array(theta)).max()), bounds=(-1, 2), method="bounded"
    )
    worst = cast(Any, found)
    assert worst.x == pytest.approx(0.5, abs=1e-5)
    found = minimize_scalar(
        lambda theta: float(np.sort(_three(np.array(theta)))[1]), bounds=(-0.1, 0.3), method="bounded"
    )
    middle = cast(Any, found)
    assert (middle.x, middle.fun) == (pytest.approx(0.125, abs=1e-4), pytest.approx(0.105625, abs=1e-4))
