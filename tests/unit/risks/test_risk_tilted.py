"""The tilted risk against the numbers of its sources and against its formula."""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, tilt, tilt_by_hand

import evenhand as eh
from evenhand.risks import mean, superquantile, tilted

_FIVE = (0.0, 1.0, 2.0, 3.0, 10.0)
_CLASSES = (0.1, 0.5, 2.0, 0.3, 1.2)
_TABLE = {
    -5: (0.320535, (0.993262, 0.006693, 0.000045, 0, 0)),
    -1: (1.169219, (0.643895, 0.236876, 0.087142, 0.032058, 0.000029)),
    -0.5: (1.638076, (0.453663, 0.275161, 0.166893, 0.101226, 0.003057)),
    -0.1: (2.659817, (0.260942, 0.236110, 0.213641, 0.193311, 0.095995)),
    0.1: (3.913276, (0.135232, 0.149454, 0.165172, 0.182544, 0.367598)),
    0.5: (6.909626, (0.006319, 0.010418, 0.017176, 0.028318, 0.937770)),
    1: (8.391977, (0.000045, 0.000123, 0.000335, 0.000911, 0.998586)),
}


def test_tilts_of_five_losses() -> None:
    """The table of the source's specification, to its six digits; at 0.5 it prints 6.909627 for 6.9096261."""
    value, weights = tilt(list(_TABLE), _FIVE)
    for row, (expected, each) in enumerate(_TABLE.values()):
        assert value[row] == pytest.approx(expected, abs=6e-7)
        np.testing.assert_allclose(weights[row], each, atol=6e-7)
    (large,), (nearly,) = tilt([5], _FIVE)
    assert large == pytest.approx(9.678112, abs=6e-7)
    assert nearly[-1] > 1 - 1e-14


@pytest.mark.parametrize("t", [0.0, math.inf, -math.inf])
def test_limits_share_ties_in_proportion_to_the_weights(t: float) -> None:
    """By hand: the mean; the largest and the smallest loss, each of them twice."""
    f, p = [1.0, 3.0, 1.0, 3.0, 2.0], [1.0, 2.0, 3.0, 6.0, 4.0]
    expected = {
        0.0: (36 / 16, normal(p)),
        math.inf: (3.0, [0, 0.25, 0, 0.75, 0]),
        -math.inf: (1.0, [0.25, 0, 0.75, 0, 0]),
    }[t]
    found = measure(tilted(t), f, p)
    assert found.value == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(found.weights, expected[1], atol=1e-12)
    np.testing.assert_allclose(found.gradient, expected[1], atol=1e-12)


def test_tilts_of_any_weighted_losses() -> None:
    """The formula in long double, on random losses, weights and tilts of eleven orders of magnitude."""
    rng = np.random.default_rng(0)
    ts = [sign * 10.0**power for power in range(-8, 3) for sign in (1, -1)]
    for _ in range(20):
        f, p = rng.normal(size=6), rng.uniform(0.1, 2.0, 6)
        value, weights = tilt(ts, f, p)
        expected = [tilt_by_hand(t, f, p) for t in ts]
        # What the formula itself loses where the tilt is small.
        np.testing.assert_allclose(value, expected, atol=1e-10, rtol=0)
        soft = normal(p * np.exp(np.outer(ts, f) - np.max(np.outer(ts, f), axis=1, keepdims=True)))
        np.testing.assert_allclose(weights, soft, atol=1e-12)


# --- what float32 can hold ---------------------------------------------------------------------------------------


def test_large_tilts_are_finite_and_exact_in_float32() -> None:
    """Long double; the plain form overflows, and measured from the largest loss whatever the sign it underflows."""
    f = np.array([0.02, 3.1, 25.0], np.float32)
    ts = [50.0, 100.0, -50.0, -100.0]
    value, weights = tilt(ts, f, dtype=np.float32)
    np.testing.assert_allclose(value, [24.978027, 24.989014, 0.041972246, 0.030986123], rtol=1e-6)
    assert np.isfinite(weights).all()
    with np.errstate(over="ignore", divide="ignore"):
        assert np.isinf(np.log(np.mean(np.exp(np.float32(50) * f))))
        assert np.isinf(np.log(np.mean(np.exp(np.float32(-50) * (f - f.max())))))


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0, 1e4])
def test_tilted_losses_up_to_ten_thousand(size: float) -> None:
    """Long double of the same float32 losses, ``|t f|`` from 0.1 to 1e4 and either sign."""
    rng = np.random.default_rng(1)
    f = rng.uniform(-size, size, 6).astype(np.float32)
    ts = [sign * np.float32(product / size) for product in (0.1, 1, 30, 1e3, 1e4) for sign in (1, -1)]
    value, weights = tilt(ts, f, dtype=np.float32)
    np.testing.assert_allclose(value, [tilt_by_hand(float(t), f) for t in ts], atol=4e-7 * size)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-6)


def test_tiny_tilts_in_float32() -> None:
    """Mean plus ``t/2`` variances; the plain form is off by a tenth and more."""
    f = np.array(_CLASSES, np.float32)
    ts = [sign * t for t in (1e-3, 1e-5, 1e-6, 1e-7, 1e-8) for sign in (1, -1)]
    value, _ = tilt(ts, f, dtype=np.float32)
    np.testing.assert_allclose(value, 0.82 + np.array(ts) / 2 * 0.4856, atol=3e-7)
    plain = np.log(np.mean(np.exp(np.float32(1e-8) * f))) / np.float32(1e-8)
    assert abs(plain - 0.82) > 0.1


def test_the_two_forms_meet() -> None:
    """Long double, on either side of a product of tilt and range of 1, where the mean is no longer taken out."""
    f = np.array([5.0, 5.3, 6.0, 5.1], np.float32)
    ts = [sign * (1 + gap) for gap in (-1e-3, 1e-3, 0.5, -0.5, 9.0) for sign in (1, -1)]
    value, _ = tilt(ts, f, dtype=np.float32)
    np.testing.assert_allclose(value, [tilt_by_hand(t, f) for t in ts], rtol=3e-7)


# --- small tilts, invariances ------------------------------------------------------------------------------------


def test_the_derivative_in_the_tilt() -> None:
    """``KL(w || p) / t^2`` with the numbers of FedTilt's T5; half the variance at 0."""
    with jax.enable_x64(True):
        f = jnp.asarray(_CLASSES)
        slope = jax.jit(jax.vmap(jax.grad(lambda t: tilted(t).value(f))))
        found = np.array(slope(jnp.asarray([1.0, -2.0, 0.0, 1e-9])))
    np.testing.assert_allclose(found, [0.271002000, 0.093183607, 0.2428, 0.2428], atol=1e-9)


def test_small_tilts_are_the_mean_and_a_little_variance() -> None:
    """FedTilt's T6; and at a tilt of 1 the expansion does not hold."""
    ts = [1e-3, 1e-6, 1e-9, 1.0]
    value, _ = tilt(ts, _CLASSES)
    np.testing.assert_allclose(
        value[:3], [0.820242838366, 0.8200002428, 0.820000000243], atol=6e-13, rtol=6e-11
    )
    np.testing.assert_allclose(value[:2], 0.82 + np.array(ts[:2]) / 2 * 0.4856, atol=1e-6)
    assert abs(value[3] - (0.82 + 0.4856 / 2)) > 0.01


def test_copies_of_every_loss_change_nothing() -> None:
    """FedTilt's T7 d; a copy of one loss does."""
    once, twice = (tilt([-2.0, 0.0, 3.0], _CLASSES * times)[0] for times in (1, 3))
    np.testing.assert_allclose(once, twice, atol=1e-14)
    assert np.abs(tilt([-2.0, 0.0, 3.0], (*_CLASSES, 2.0))[0] - once).min() > 1e-3


def test_equal_losses_are_that_loss() -> None:
    """FedTilt's T7 f: every tilt, with the weights of a mean."""
    value, weights = tilt([-1e4, -1.0, 1e-8, 0.0, 1.0, 1e4], [0.7] * 4, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(value, 0.7, rtol=1e-14)
    np.testing.assert_allclose(weights, [[0.1, 0.2, 0.3, 0.4]] * 6, atol=1e-14)


_LOSSES = st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5)


@hypothesis.given(_LOSSES, st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=6, unique=True))
def test_the_risk_grows_with_the_tilt_between_the_extremes(losses: list[float], ts: list[float]) -> None:
    """The theorem; and it grows strictly where losses and tilts are well apart."""
    value, _ = tilt(sorted(ts), losses)
    assert np.all(np.diff(value) >= -1e-11)
    assert min(losses) - 1e-11 <= value[0] and value[-1] <= max(losses) + 1e-11
    low, high = tilt([-0.1, 0.1, 0.0, 0.2, 1.0, 2.0], losses)[0][:2]
    if np.ptp(losses) > 1:
        assert high > low


# --- absent losses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [-math.inf, -3.0, 0.0, 1e-9, 2.0, math.inf])
@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e9])
def test_padding_of_weight_zero_has_no_effect(t: float, filler: float) -> None:
    """The same risk of the losses without the padding."""
    padded = measure(tilted(t), [*_CLASSES, filler, filler], [1, 2, 3, 4, 5, 0, 0])
    short = measure(tilted(t), _CLASSES, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(padded.value, short.value, rtol=1e-13)
    for with_padding, unpadded in ((padded.weights, short.weights), (padded.gradient, short.gradient)):
        np.testing.assert_allclose(with_padding, [*unpadded, 0, 0], atol=1e-13)


def test_the_risk_of_no_losses_is_zero() -> None:
    """The law of a risk."""
    for t in (-1.0, 0.0, 3.0, math.inf):
        nothing = measure(tilted(t), _FIVE, np.zeros(5))
        assert not any(np.any(part) for part in nothing)


def test_a_single_loss_is_itself() -> None:
    """The law of a risk."""
    value, weights = tilt([-7.0, 0.0, 1e-8, 7.0], [3.25])
    assert value.tolist() == [3.25] * 4
    assert weights.tolist() == [[1.0]] * 4


def test_whole_numbers_are_losses_too() -> None:
    """The mean of 1 and 2."""
    value = mean().value(jnp.array([1, 2]))
    assert float(value) == 1.5
    assert value.dtype == jnp.float32


def test_wrong_tilts_losses_and_weights_are_refused() -> None:
    """Sentences that say what was given and what to give."""
    with pytest.raises(eh.EvenhandError, match="t=nan"):
        tilted(math.nan)
    risk = superquantile(0.5)
    for losses in (jnp.zeros(0), jnp.float32(1.0), jnp.zeros((2, 2))):
        with pytest.raises(eh.EvenhandError, match="vector of at least one loss"):
            risk.value(losses)
    for weights in (jnp.ones(2), jnp.ones((3, 1)), jnp.float32(1.0)):
        with pytest.raises(eh.EvenhandError, match="one weight per loss"):
            risk.weights(jnp.ones(3), weights)
