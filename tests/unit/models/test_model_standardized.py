"""Models that are trained on standardised targets and judged in the targets' own units."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError

MEAN, DEVIATION = 250_000.0, 40_000.0


def rows(clients: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets in standard units, and clients that differ."""
    random = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), 12)
    x = random.normal(size=(len(client), 3))
    y = x @ [0.5, -0.2, 0.1] + 0.3 * client / clients + 0.1 * random.normal(size=len(client))
    return x, y, client


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """One training in standard units, and the same in own units; both as their users would write them."""
    x, y, client = rows()
    runs: list[Any] = []
    for model, targets in (
        (models.linear_regression(3), y),
        (
            models.standardized(models.linear_regression(3), mean=MEAN, deviation=DEVIATION),
            MEAN + DEVIATION * y,
        ),
    ):
        work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
        data = eh.data.from_arrays(x, targets, client, test_fraction=0.25)
        method = eh.personalization.ditto(eh.algorithms.qfedavg(work, q=1.0), work, lam=1.0)
        runs.append(eh.simulate(method, data, rounds=3, seed=0, eval_every=1))
    return runs[0], runs[1]


def test_training_is_that_on_standardised_targets(pair: tuple[Any, Any]) -> None:
    """q-FedAvg weighs clients by their losses, so the losses that it is trained by are in standard units, too."""
    for one, other in zip(jax.tree.leaves(pair[0].params), jax.tree.leaves(pair[1].params), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert np.abs(pair[0].params["kernel"]).max() > 0.1


@pytest.mark.parametrize("split", ["train", "test"])
def test_all_that_is_reported_is_in_own_units(pair: tuple[Any, Any], split: str) -> None:
    """A squared error is the deviation squared times the one in standard units, an absolute error the deviation."""
    for name, factor in (
        ("loss", DEVIATION**2),
        ("squared_error", DEVIATION**2),
        ("absolute_error", DEVIATION),
        ("global_loss", DEVIATION**2),
    ):
        standard, own = (run.client_metrics(split)[name] for run in pair)
        np.testing.assert_allclose(own, factor * standard, rtol=1e-3)
        for run, scale in zip(pair, (factor, 1.0), strict=True):
            assert run.history[f"{split}_{name}"][-1] * scale == pytest.approx(
                pair[1].history[f"{split}_{name}"][-1], rel=1e-3
            )


def test_predictions_are_in_own_units(pair: tuple[Any, Any]) -> None:
    """The oracle is the linear model in NumPy."""
    x, _, _ = rows()
    params = pair[1].params
    model = models.standardized(models.linear_regression(3), mean=MEAN, deviation=DEVIATION)
    expected = MEAN + DEVIATION * (x @ np.asarray(params["kernel"]) + np.asarray(params["bias"]))
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x, jnp.float32)), expected, rtol=1e-5)
    start = model.apply(model.init(jax.random.key(0)), jnp.ones((1, 3)))
    assert start.tolist() == [[MEAN]]


def test_a_forward_pass_of_training_is_scaled_too() -> None:
    inner = models.from_functions(
        init=lambda key: jnp.zeros(()),
        apply=lambda w, x: x,
        losses=models.absolute_error,
        apply_train=lambda w, x, key: x + 1.0,
    )
    model = models.standardized(inner, mean=10.0, deviation=2.0)
    x = jnp.array([[1.0], [2.0]])
    assert model.apply(jnp.zeros(()), x).tolist() == [[12.0], [14.0]]
    assert model.apply_train is not None
    outputs = model.apply_train(jnp.zeros(()), x, jax.random.key(0))
    assert outputs.tolist() == [[14.0], [16.0]]
    y = jnp.array([10.0, 20.0])
    assert model.losses(outputs, y).tolist() == [2.0, 2.0]
    assert model.metrics["loss"](outputs, y).tolist() == [4.0, 4.0]
    assert models.standardized(inner._replace(apply_train=None), mean=0, deviation=1).apply_train is None


def test_equal_models_share_compiled_programs() -> None:
    one, other = (models.standardized(models.linear_regression(3), mean=1.0, deviation=2.0) for _ in range(2))
    assert (hash(one.apply), hash(one.losses)) == (hash(other.apply), hash(other.losses))
    assert (one.apply, one.losses) == (other.apply, other.losses)
    third = models.standardized(models.linear_regression(3), mean=1.0, deviation=3.0)
    assert third.apply != one.apply and third.losses != one.losses


@pytest.mark.parametrize("numbers", [(0.0, 0.0), (0.0, -1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_a_scale_that_is_none_is_refused(numbers: tuple[float, float]) -> None:
    with pytest.raises(EvenhandError, match="give finite numbers, and a deviation above 0"):
        models.standardized(models.linear_regression(2), mean=numbers[0], deviation=numbers[1])


@pytest.mark.parametrize(
    ("model", "kind"), [(models.svm(3), "Margin"), (models.pca(3, components=1), "Reconstruction")]
)
def test_outputs_that_are_no_array_are_refused(model: Any, kind: str) -> None:
    scaled = models.standardized(model, mean=1.0, deviation=2.0)
    with pytest.raises(EvenhandError, match=f"whose outputs are one array, but these are a {kind}"):
        scaled.apply(scaled.init(jax.random.key(0)), jnp.ones((2, 3)))
