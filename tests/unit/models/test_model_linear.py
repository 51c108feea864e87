"""Linear models and perceptrons against gradients derived by hand."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.types import Model

KEY = jax.random.key(0)
RNG = np.random.default_rng(3)
N, D, C = 9, 5, 3
# Models take NumPy's arrays as JAX's, and the formulas below need NumPy's.
X: Any = RNG.normal(size=(N, D)).astype(np.float32)
CLASSES: Any = RNG.integers(0, C, N).astype(np.int32)
SIGNS: Any = np.where(RNG.random(N) < 0.5, -1, 1).astype(np.int32)


def weights(outputs: int) -> dict[str, np.ndarray]:
    kernel, bias = RNG.normal(size=(D, outputs)), RNG.normal(size=outputs)
    return {"kernel": kernel.astype(np.float32), "bias": bias.astype(np.float32)}


def gradient(model: Model, params: Any, y: np.ndarray) -> Any:
    return jax.grad(lambda p: jnp.mean(model.losses(model.apply(p, jnp.asarray(X)), jnp.asarray(y))))(params)


def assert_gradient(found: Any, d_outputs: np.ndarray, extra: np.ndarray | float = 0.0) -> None:
    """``d_outputs`` is the mean loss's derivative by the outputs, ``(N, outputs)``."""
    np.testing.assert_allclose(found["kernel"], X.T.astype(float) @ d_outputs + extra, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["bias"], d_outputs.sum(0), rtol=1e-5, atol=1e-6)


def test_the_gradient_of_softmax_regression_equals_its_formula() -> None:
    model, params = models.softmax_regression(D, classes=C), weights(C)
    z = X.astype(float) @ params["kernel"] + params["bias"]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(
        model.losses(model.apply(params, X), CLASSES), -np.log(p[np.arange(N), CLASSES]), rtol=1e-5
    )
    assert_gradient(gradient(model, params, CLASSES), (p - np.eye(C)[CLASSES]) / N)
    with pytest.raises(AssertionError):
        assert_gradient(gradient(model, params, CLASSES), p / N)


def test_softmax_regression_without_a_bias_is_that_with_a_bias_of_zero() -> None:
    bare, params = models.softmax_regression(D, classes=C, bias=False), weights(C)
    kernel = {"kernel": params["kernel"]}
    assert set(jax.eval_shape(bare.init, KEY)) == {"kernel"} and bare.name.endswith("bias=False)")
    whole = models.softmax_regression(D, classes=C)
    np.testing.assert_array_equal(
        bare.apply(kernel, X), whole.apply({**kernel, "bias": np.zeros(C, np.float32)}, X)
    )
    assert not np.allclose(bare.apply(kernel, X), whole.apply(params, X))
    np.testing.assert_array_equal(bare.init(KEY)["kernel"], whole.init(KEY)["kernel"])


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_gradient_of_linear_regression_equals_its_formula(outputs: int) -> None:
    model, params = models.linear_regression(D, outputs=outputs), weights(outputs)
    y = RNG.normal(size=(N, outputs)).astype(np.float32)
    residual = X.astype(float) @ params["kernel"] + params["bias"] - y
    labels = y[:, 0] if outputs == 1 else y
    found = model.losses(model.apply(params, X), jnp.asarray(labels))
    np.testing.assert_allclose(found, (residual**2).mean(1), rtol=1e-4)
    assert_gradient(gradient(model, params, labels), 2 * residual / (N * outputs))
    with pytest.raises(AssertionError):
        assert_gradient(gradient(model, params, labels), residual / (N * outputs))


@pytest.mark.parametrize("regularization", [0.0, 0.3])
def test_the_gradient_of_the_svm_equals_its_formula(regularization: float) -> None:
    model, params = models.svm(D, regularization=regularization), weights(1)
    z = X.astype(float) @ params["kernel"] + params["bias"]
    margin = SIGNS[:, None] * z
    penalty = 0.5 * regularization * (params["kernel"] ** 2).sum()
    outputs = model.apply(params, X)
    np.testing.assert_allclose(
        model.losses(outputs, SIGNS), np.maximum(0, 1 - margin)[:, 0] + penalty, rtol=1e-5
    )
    np.testing.assert_array_equal(model.metrics["accuracy"](outputs, SIGNS), margin[:, 0] > 0)
    d_outputs = -SIGNS[:, None] * (margin < 1) / N
    assert (margin < 1).any() and (margin >= 1).any()
    assert_gradient(gradient(model, params, SIGNS), d_outputs, regularization * params["kernel"])
    if regularization:
        with pytest.raises(AssertionError):
            assert_gradient(gradient(model, params, SIGNS), d_outputs)


def test_the_sum_form_of_the_svm_is_a_multiple_of_the_mean() -> None:
    params = weights(1)
    model = models.svm(D, regularization=1 / N)
    z = (X.astype(float) @ params["kernel"] + params["bias"])[:, 0]
    total = 0.5 * (params["kernel"] ** 2).sum() + np.maximum(0, 1 - SIGNS * z).sum()
    np.testing.assert_allclose(N * model.losses(model.apply(params, X), SIGNS).mean(), total, rtol=1e-5)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "0.1", None])
def test_svm_refuses_a_penalty_that_is_no_number_of_at_least_0(weight: Any) -> None:
    with pytest.raises(EvenhandError, match="regularization"):
        models.svm(3, regularization=weight)


def test_the_mlp_equals_its_formula() -> None:
    model = models.mlp(D, hidden=(4, 6), classes=C)
    params = jax.tree.map(np.asarray, jax.jit(model.init)(KEY))
    h = X.astype(float)
    for name in ("dense_0", "dense_1"):
        h = np.maximum(0, h @ params[name]["kernel"] + params[name]["bias"])
    expected = h @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(model.apply(params, X), expected, rtol=1e-4, atol=1e-6)
    assert jax.tree.map(jnp.shape, params) == {
        "dense_0": {"kernel": (D, 4), "bias": (4,)},
        "dense_1": {"kernel": (4, 6), "bias": (6,)},
        "output": {"kernel": (6, C), "bias": (C,)},
    }


def test_initial_values_are_zero_or_glorot_uniform() -> None:
    for model in (models.linear_regression(D), models.svm(D)):
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(model.init(KEY)))
    for model in (models.softmax_regression(60, classes=10), models.mlp(60, hidden=(), classes=10)):
        params = model.init(KEY)
        params = params.get("output", params)
        limit = np.sqrt(6 / 70)
        assert params["kernel"].shape == (60, 10) and not np.asarray(params["bias"]).any()
        assert 0.98 * limit < np.abs(params["kernel"]).max() <= limit
        np.testing.assert_allclose(np.var(params["kernel"]), limit**2 / 3, rtol=0.15)


def test_rows_of_any_shape_are_flattened() -> None:
    model, params = models.softmax_regression(D, classes=C), weights(C)
    np.testing.assert_array_equal(model.apply(params, X.reshape(N, D, 1)), model.apply(params, X))
    assert model.apply(params, jnp.ones((2, D), jnp.uint8)).dtype == jnp.float32
    with pytest.raises(EvenhandError, match="features=4"):
        model.apply(params, X[:, :4])
