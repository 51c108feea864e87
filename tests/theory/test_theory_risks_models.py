"""Tilted risks of exponential families: how the minimiser, its variance and its entropy move with the tilt.

Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, on mean estimation ``f_i = theta^2 / 2 - theta x_i``.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from evenhand.risks import tilted

_X = np.array([0.5, 1.0, 2.0, 4.0])
_H = 1e-5


@jax.jit
def _parts(t: Any, theta: Any) -> Any:
    def scaled(t: Any, theta: Any) -> Any:
        return t * tilted(t).value(0.5 * theta**2 - theta * jnp.asarray(_X, theta.dtype))

    risk, f = tilted(t), 0.5 * theta**2 - theta * jnp.asarray(_X, theta.dtype)
    slopes = jax.grad(scaled, (0, 1))(t, theta)
    bends = jax.hessian(scaled, (0, 1))(t, theta)
    return risk.value(f), risk.weights(f), slopes, bends


def _at(t: float, theta: float) -> Any:
    with jax.enable_x64(True):
        return jax.tree.map(np.array, _parts(jnp.asarray(t), jnp.asarray(theta)))


def _losses(theta: float) -> np.ndarray:
    return 0.5 * theta**2 - theta * _X


def _solve(t: float) -> float:
    """Lemma 42: where the gradient of ``A`` is the tilted mean."""
    tight: Any = {"xtol": 1e-14, "rtol": 1e-14}
    return cast(float, brentq(lambda theta: theta - _at(t, theta)[1] @ _X, 0.0, 5.0, **tight))


def _spread(w: np.ndarray, x: np.ndarray) -> float:
    return float(w @ (x - w @ x) ** 2)


_TABLE = {
    -0.2: (3.059264, -2.885053, -7.835426, 15.851053, -81.1958, None),
    0.0: (1.875000, -1.757812, -3.369141, 6.317139, -22.7022, 0.0),
    0.2: (1.433583, -1.325668, -1.450502, 2.606961, -5.27546, 0.105509),
    1.0: (0.929125, -0.769363, -0.282519, 0.377187, -0.229382, 0.114691),
    5.0: (0.603117, -0.355170, -0.025778, 0.019773, -0.001690, 0.021128),
}


@pytest.mark.parametrize("t", list(_TABLE))
def test_the_path_of_a_mean_estimate(t: float) -> None:
    """The specification's table: minimiser, minimum, slope (lemma 43), variance, and theorems 25 and 26."""
    theta = _solve(t)
    value, w, _, _ = _at(t, theta)
    ends = [_solve(t + sign * _H) for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * _H)
    v = _spread(w, _X)
    assert slope == pytest.approx(-v * theta / (1 + t * v), rel=1e-6)

    frozen = [_spread(w, _losses(end)) for end in ends]
    variance = (frozen[0] - frozen[1]) / (2 * _H)
    assert variance == pytest.approx(-2 * theta * v * v * theta / (1 + t * v), rel=1e-5)
    entropies = [-np.sum(q * np.log(q)) for q in (_at(t, end)[1] for end in ends)]
    entropy = (entropies[0] - entropies[1]) / (2 * _H)
    expected = _TABLE[t]
    found = (theta, value, slope, _spread(w, _losses(theta)), variance)
    np.testing.assert_allclose(found, expected[:5], rtol=5e-6, atol=1e-6)
    assert variance <= 0
    if expected[5] is not None:
        assert entropy == pytest.approx(expected[5], abs=2e-6)
        assert entropy == pytest.approx(t**2 * theta * v * v * theta / (1 + t * v), abs=1e-6)


def test_weights_that_move_give_another_derivative() -> None:
    """Theorem 25 is of weights frozen at the tilt: with weights that follow, the slope of the variance is another."""
    t = 1.0
    ends = [_solve(t + sign * _H) for sign in (1, -1)]
    moving = [
        _spread(_at(t + sign * _H, end)[1], _losses(end)) for sign, end in zip((1, -1), ends, strict=True)
    ]
    assert abs((moving[0] - moving[1]) / (2 * _H) - _TABLE[t][4]) > 0.05


@pytest.mark.parametrize("t", [0.0, 0.2, 1.0, 5.0])
def test_losses_become_more_alike(t: float) -> None:
    """Theorem 35: with frozen weights the cosine of ``f - min`` with ones does not fall as the tilt grows."""
    w, low = _at(t, _solve(t))[1], -10.0

    def cosine(theta: float) -> float:
        above = _losses(theta) - low
        return w @ above / np.sqrt(w @ above**2)

    assert cosine(_solve(t + 0.01)) >= cosine(_solve(t)) >= cosine(max(_solve(t - 0.01), 0.0))


@pytest.mark.parametrize(("t", "theta"), [(-0.7, 0.4), (0.3, 1.1), (2.0, -0.5)])
def test_derivatives_of_the_scaled_risk(t: float, theta: float) -> None:
    """Lemmas 36 to 40 for ``t R``, by automatic differentiation through the library's value."""
    _, w, (by_t, by_theta), ((tt, t_theta), (_, theta_theta)) = _at(t, theta)
    mean, v = w @ _X, _spread(w, _X)
    assert float(by_t) == pytest.approx(0.5 * theta**2 - theta * mean, abs=1e-10)
    assert float(tt) == pytest.approx(theta * v * theta, abs=1e-10)
    assert float(by_theta) == pytest.approx(t * theta - t * mean, abs=1e-10)
    assert float(theta_theta) == pytest.approx(t + t**2 * v, abs=1e-10)
    assert float(t_theta) == pytest.approx(theta - mean + t * v * theta, abs=1e-10)


def test_positive_tilts_keep_strong_convexity() -> None:
    """Lemma 23: curvature at least that of each loss, here 1; a negative tilt loses it."""
    for t in (0.1, 1.0, 10.0):
        bends = [float(_at(t, theta)[3][1][1]) / t for theta in np.linspace(-1, 3, 9)]
        assert min(bends) >= 1 - 1e-9 and max(bends) > 1.01
    assert min(float(_at(-1.0, theta)[3][1][1]) / -1.0 for theta in np.linspace(-1, 3, 9)) < 0
