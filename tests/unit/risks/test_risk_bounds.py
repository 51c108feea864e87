"""Bounds of quantiles, TiVaR and EVaR, against the table of their source, dense grids and each other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, value_of
from scipy.special import logsumexp

import evenhand as eh
from evenhand.risks import entropic_value_at_risk, superquantile, tilted_value_at_risk, value_at_risk

_FIVE = (0.0, 1.0, 2.0, 3.0, 10.0)
_KINDS = (value_at_risk, tilted_value_at_risk, superquantile, entropic_value_at_risk)
_RISKS = {theta: [kind(theta) for kind in _KINDS] for theta in (0.8, 0.6, 0.4, 0.2)}
_GRID = np.concatenate([-np.logspace(3, -4, 4000), np.logspace(-4, 3, 4000)])


@pytest.mark.parametrize(
    ("theta", "values", "lower_floor"),
    [
        (0.8, (0.0, 1.0, 4.0, 5.800943), 3.508630),
        (0.6, (1.0, 4.634483, 5.0, 7.217788), 5.993916),
        (0.4, (2.0, 7.869266, 6.5, 8.587786), 8.274398),
        (0.2, (3.0, 10.0, 10.0, 10.0), 10.0),
    ],
)
def test_bounds_of_five_losses(theta: float, values: tuple[float, ...], lower_floor: float) -> None:
    """The table of the source's specification; a lower floor is looser."""
    found = [float(value_of(risk, _FIVE)) for risk in _RISKS[theta]]
    np.testing.assert_allclose(found, values, atol=6e-7)
    lower = float(value_of(tilted_value_at_risk(theta, floor=-1.0), _FIVE))
    assert lower == pytest.approx(lower_floor, abs=6e-7)
    assert lower > found[1] or theta == 0.2


def _cases(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(count, 6)), rng.uniform(0.2, 2.0, (count, 6))


def _tilts(f: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tilts in units of the range, and the tilted risk at each."""
    t = _GRID / np.ptp(f)
    return t, logsumexp(t[:, None] * f, b=p, axis=1) / t


@pytest.mark.parametrize("theta", [0.8, 0.4])
def test_both_bounds_are_minima_over_tilts(theta: float) -> None:
    """Grids of 8000 tilts in float64: no tilt is better, and some is nearly as good."""
    f, p = _cases(0, 20)
    _, tivar, _, evar = (value_of(risk, f, p) for risk in _RISKS[theta])
    for case, (losses, masses) in enumerate(zip(f, normal(p), strict=True)):
        t, tilted = _tilts(losses, masses)
        power = t * tilted
        bracket = 1 + np.expm1(np.minimum(power, 30)) / theta
        positive = bracket > 1e-6
        logs = np.log(bracket[positive]) + np.maximum(power[positive] - 30, 0)
        best = np.min(logs / t[positive])
        best = min(best, losses.max(), masses @ losses / theta)
        assert best - 1e-3 * np.ptp(losses) <= tivar[case] <= best + 1e-9
        best = np.min((tilted - np.log(theta) / t)[t > 0])
        assert best - 1e-3 * np.ptp(losses) <= evar[case] <= best + 1e-9


def test_bounds_are_in_order() -> None:
    """Quantile <= TiVaR <= EVaR and quantile <= superquantile <= EVaR; TiVaR and superquantile have no order."""
    f = _cases(1, 20)[0]
    found = {theta: [value_of(risk, f) for risk in _RISKS[theta]] for theta in (0.8, 0.4)}
    below, above = False, False
    for var, tivar, cvar, evar in found.values():
        for less, more in ((var, tivar), (tivar, evar), (var, cvar), (cvar, evar)):
            assert np.all(less <= more + 1e-7)
        below, above = below or bool(np.any(tivar < cvar - 1e-2)), above or bool(np.any(tivar > cvar + 1e-2))
    assert below and above
    for kind in range(4):
        assert np.all(found[0.4][kind] >= found[0.8][kind] - 1e-7)


@pytest.mark.parametrize("theta", [0.8, 0.4])
def test_both_gradients_are_slopes(theta: float) -> None:
    """Central differences; TiVaR's gradient is longer than its weights."""
    f, p = _cases(2, 8)
    for risk in _RISKS[theta][1::2]:
        found = measure(risk, f, p)
        for i, step in enumerate(1e-4 * np.eye(6)):
            slope = (value_of(risk, f + step, p) - value_of(risk, f - step, p)) / 2e-4
            np.testing.assert_allclose(slope, found.gradient[:, i], atol=1e-4)
    length = measure(_RISKS[theta][1], f, p).gradient.sum(axis=1)
    assert np.all(length > 1 - 1e-12) and length.max() > 1.1


def test_losses_at_the_floor_are_exact() -> None:
    """Where a share ``1 - theta`` of losses equals the floor, TiVaR is the smallest of the others; naively 0.0367."""
    naive = np.log((np.mean(np.exp(-1000.0 * np.array(_FIVE))) - (1 - 0.8)) / 0.8 + 1e-16) / -1000
    assert naive < 0.05
    for f, theta, value in [
        (_FIVE, 0.8, 1.0),
        ((0.0, 0.0, 5.0, 6.0, 7.0), 0.6, 5.0),
        ((0.0, 0.0, 0.0, 5.0, 6.0), 0.8, 0.0),
        ((0.0, 0.0, 0.0, 0.0, 0.0), 0.4, 0.0),
        ((2.0, 2.0, 2.0, 2.0, 2.0), 0.8, 2.0),
        ((3.0, 2.0, 4.0, 9.0, 2.5), 1.0, 2.0),
    ]:
        for dtype in (np.float64, np.float32):
            assert value_of(_risk(theta), f, dtype=dtype) == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert not measure(_risk(0.8), (0.0, 0.0, 0.0, 5.0, 6.0)).gradient.any()


def _risk(theta: float) -> eh.types.Risk:
    return _RISKS[theta][1] if theta in _RISKS else tilted_value_at_risk(theta)


def test_evar_of_a_whole_population_is_the_mean() -> None:
    """EVaR is the mean at a fraction of 1 and close to it just below; at a small one it is the largest loss."""
    f = (3.0, 2.0, 4.0, 9.0, 2.5)
    assert float(value_of(entropic_value_at_risk(1.0), f)) == pytest.approx(4.1)
    near = float(value_of(entropic_value_at_risk(0.9999), f))
    assert 4.1 < near < 4.15
    assert float(value_of(entropic_value_at_risk(0.01), f, dtype=np.float32)) == 9.0


def test_losses_below_the_floor_are_refused_or_give_nan() -> None:
    """A sentence outside compiled code; NaN inside."""
    risk = tilted_value_at_risk(0.5)
    with pytest.raises(eh.EvenhandError, match=r"smallest loss, -1, is below the floor"):
        risk.value(jnp.array([1.0, -1.0]))
    assert np.isnan(jax.jit(risk.value)(jnp.array([1.0, -1.0])))
    lower = tilted_value_at_risk(0.5, floor=-1.0)
    assert float(jax.jit(lower.value)(jnp.array([1.0, -1.0]))) == pytest.approx(1.0)
    assert float(risk.value(jnp.array([1.0, -1.0]), jnp.array([1.0, 0.0]))) == pytest.approx(1.0)


@pytest.mark.parametrize("factory", [tilted_value_at_risk, entropic_value_at_risk])
def test_wrong_fractions_and_floors_are_refused(factory: Any) -> None:
    """Sentences with the name and the number."""
    for theta in (0.0, 2.0, float("nan")):
        with pytest.raises(eh.EvenhandError, match=f"{factory.__name__}.theta={theta}"):
            factory(theta)
    with pytest.raises(eh.EvenhandError, match="finite lower bound"):
        tilted_value_at_risk(0.5, floor=-np.inf)
