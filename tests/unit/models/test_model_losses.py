"""Losses and metrics against NumPy in float64, row by row."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.models.losses import default_metrics, resolve

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(7, 4)).astype(np.float32)
CLASSES = RNG.integers(0, 4, 7).astype(np.int32)
SCORES = RNG.normal(size=7).astype(np.float32)
SIGNS = np.where(RNG.random(7) < 0.5, -1, 1).astype(np.int32)
TARGETS = RNG.normal(size=7).astype(np.float32)

CASES = {
    "cross_entropy": (models.cross_entropy, LOGITS, CLASSES),
    "accuracy": (models.accuracy, LOGITS, CLASSES),
    "squared_error": (models.squared_error, SCORES[:, None], TARGETS),
    "absolute_error": (models.absolute_error, SCORES[:, None], TARGETS),
    "hinge": (models.hinge, SCORES, SIGNS),
    "logistic": (models.logistic, SCORES, SIGNS),
    "binary_accuracy": (models.binary_accuracy, SCORES, SIGNS),
}


def oracle(name: str) -> np.ndarray:
    z, margin = LOGITS.astype(float), SIGNS * SCORES.astype(float)
    error = SCORES.astype(float) - TARGETS
    return {
        "cross_entropy": np.log(np.exp(z).sum(1)) - z[np.arange(7), CLASSES],
        "accuracy": (z.argmax(1) == CLASSES).astype(float),
        "squared_error": error**2,
        "absolute_error": np.abs(error),
        "hinge": np.maximum(0, 1 - margin),
        "logistic": np.log(1 + np.exp(-margin)),
        "binary_accuracy": (margin > 0).astype(float),
    }[name]


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str) -> None:
    function, outputs, y = CASES[name]
    values = function(jnp.asarray(outputs), jnp.asarray(y))
    assert values.shape == (7,) and values.dtype == jnp.float32
    np.testing.assert_allclose(values, oracle(name), rtol=1e-6, atol=1e-6)
    assert len(set(oracle(name).tolist())) > 1


@pytest.mark.parametrize("name", CASES)
def test_a_row_changes_only_its_own_loss(name: str) -> None:
    function, outputs, y = CASES[name]
    before = np.asarray(function(outputs, y))
    changed = outputs.copy()
    changed[3] = -3 * changed[3] + np.arange(changed[3].size, dtype=np.float32).reshape(changed[3].shape)
    y_changed = y.copy()
    y_changed[3] = (y[3] + 1) % 4 if name in ("cross_entropy", "accuracy") else -2 * y[3]
    after = np.asarray(function(changed, y_changed))
    np.testing.assert_array_equal(np.delete(after, 3), np.delete(before, 3))
    if name not in ("accuracy", "binary_accuracy"):
        assert after[3] != before[3]


def test_large_logits_neither_overflow_nor_lose_digits() -> None:
    y = jnp.array([0, 1, 0])
    logits = jnp.array([[1e4, 1e4 - 5], [1e4, -1e4], [1e30, -1e30]])
    np.testing.assert_allclose(models.cross_entropy(logits, y), [np.log1p(np.exp(-5.0)), 2e4, 0], rtol=1e-6)
    np.testing.assert_allclose(
        models.logistic(jnp.array([1e4, -1e4]), jnp.array([0, 0])), [1e4, 0], rtol=1e-6
    )
    grad = jax.grad(lambda z: jnp.sum(models.cross_entropy(z, y)))(logits)
    assert np.isfinite(grad).all()


@pytest.mark.parametrize("function", [models.hinge, models.logistic, models.binary_accuracy])
def test_labels_may_be_signs_or_zero_and_one(function: Callable[..., jax.Array]) -> None:
    expected = function(SCORES, SIGNS)
    for labels in ((SIGNS + 1) // 2, SIGNS > 0, SIGNS.astype(np.float32)[:, None]):
        np.testing.assert_array_equal(function(SCORES[:, None], labels), expected)
    assert not np.array_equal(function(SCORES, -SIGNS), expected)


def test_hinge_has_no_slope_beyond_the_margin() -> None:
    slope = jax.vmap(jax.grad(lambda z, y: models.hinge(z[None], y[None])[0]))
    grads = slope(jnp.array([0.5, 1.0, 2.0, -0.5]), jnp.array([1, 1, 1, -1]))
    np.testing.assert_array_equal(grads, [-1, 0, 0, 1])


def test_squared_error_is_a_mean_over_components_without_one_half() -> None:
    outputs, y = RNG.normal(size=(2, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(models.squared_error(outputs, y), ((outputs - y) ** 2).mean(1), rtol=1e-6)


def test_sequences_are_averaged_within_their_row() -> None:
    logits = jnp.asarray(RNG.normal(size=(2, 5, 3)).astype(np.float32))
    labels = jnp.asarray(RNG.integers(0, 3, (2, 5)))
    flat = models.cross_entropy(logits.reshape(10, 3), labels.reshape(10))
    np.testing.assert_allclose(models.cross_entropy(logits, labels), flat.reshape(2, 5).mean(1), rtol=1e-6)


def test_labels_out_of_range_and_nan_outputs_give_nan() -> None:
    losses = models.cross_entropy(jnp.zeros((3, 4)), jnp.array([-1, 4, 0]))
    assert np.isnan(losses).tolist() == [True, True, False]
    nan = jnp.array([[jnp.nan, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(models.accuracy(nan, jnp.array([0, 0])), [np.nan, 1])
    np.testing.assert_array_equal(
        models.binary_accuracy(jnp.array([jnp.nan, 0.0, 1.0]), jnp.array([1, 1, 1])), [np.nan, 0, 1]
    )


def test_half_precision_is_summed_in_float32_and_no_rows_are_allowed() -> None:
    half = models.cross_entropy(jnp.zeros((2, 3), jnp.bfloat16), jnp.array([0, 1], jnp.uint8))
    assert half.dtype == jnp.float32
    assert models.cross_entropy(jnp.zeros((0, 3)), jnp.zeros(0, jnp.int32)).shape == (0,)


@pytest.mark.parametrize(
    ("function", "outputs", "y", "words"),
    [
        (models.cross_entropy, LOGITS, CLASSES.astype(np.float32), "integer class labels"),
        (models.cross_entropy, SCORES, CLASSES, "shape"),
        (models.accuracy, LOGITS, CLASSES[:5], "shape"),
        (models.squared_error, LOGITS, TARGETS, "one target per output"),
        (models.absolute_error, SCORES, TARGETS[:3], "one target per output"),
        (models.squared_error, np.zeros((2, 2, 3)), np.zeros((2, 3, 2)), "the order of axes"),
        (models.hinge, LOGITS, SIGNS, "cross_entropy"),
        (models.logistic, SCORES, SIGNS[:3], "one label per row"),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(
    function: Callable[..., jax.Array], outputs: np.ndarray, y: np.ndarray, words: str
) -> None:
    with pytest.raises(EvenhandError, match=words):
        function(outputs, y)


def test_names_stand_for_the_losses() -> None:
    for name in ("cross_entropy", "squared_error", "hinge", "logistic"):
        assert resolve(name) is CASES[name][0]
        assert default_metrics(resolve(name))
    assert resolve(models.accuracy) is models.accuracy and default_metrics(models.accuracy) == {}
    with pytest.raises(EvenhandError, match='no loss named "mse"'):
        resolve("mse")  # pyright: ignore[reportArgumentType]
