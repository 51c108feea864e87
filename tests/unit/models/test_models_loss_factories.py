"""Huber, focal and generalised cross-entropy against NumPy in float64, and models that are given another loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.models.losses import Loss, focal, generalized_cross_entropy, huber
from evenhand.simulation.saving import described

RNG = np.random.default_rng(0)
# Losses take NumPy's arrays as JAX's, and the formulas below need NumPy's.
LOGITS: Any = (3.0 * RNG.normal(size=(9, 4))).astype(np.float32)
CLASSES: Any = RNG.integers(0, 4, 9).astype(np.int32)
SCORES: Any = (3.0 * RNG.normal(size=9)).astype(np.float32)
SIGNS: Any = np.where(np.arange(9) % 3 == 0, -1, 1).astype(np.int32)
EXTREMES = np.array([-1e4, -300.0, -90.0, -20.0, 0.0, 20.0, 90.0, 300.0, 1e4], np.float32)

GAMMAS, QS, DELTAS = (0.0, 0.3, 1.0, 2.0, 5.0), (0.0, 1e-8, 0.3, 0.7, 1.0), (0.1, 1.0, math.inf)
FACTORS = (0.3, 2.0, 0.0, 1.0)


def focal_loss(p: np.ndarray, gamma: float, alpha: np.ndarray | float = 1.0) -> np.ndarray:
    return -alpha * (1 - p) ** gamma * np.log(p)


def box_cox(p: np.ndarray, q: float) -> np.ndarray:
    return (1 - p**q) / q if q else -np.log(p)


def huber_loss(r: np.ndarray, delta: float) -> np.ndarray:
    small = np.abs(r) <= delta
    return np.where(small, r**2 / 2, 0.0 if delta == math.inf else delta * (np.abs(r) - delta / 2))


def of_classes(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The probability of each label."""
    return np.exp(log_softmax(z.astype(float), axis=1))[np.arange(len(z)), y]


def of_signs(z: np.ndarray, s: np.ndarray) -> np.ndarray:
    return expit(s * z.astype(float))


@partial(jax.jit, static_argnums=0)
def both(loss: Loss, outputs: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    """The losses, and each one's gradient with respect to its outputs."""
    return loss(outputs, y), jax.grad(lambda z: jnp.sum(loss(z, y)))(outputs)


def slopes(loss: Loss, outputs: np.ndarray, y: Any) -> np.ndarray:
    return np.asarray(both(loss, outputs, y)[1])


@partial(jax.jit, static_argnums=0)
def curvatures(loss: Loss, outputs: Any, y: Any) -> jax.Array:
    """The derivative of the gradients along a direction that moves every output by another number."""
    direction = jnp.linspace(0.5, 1.5, outputs.size).reshape(outputs.shape)
    return jax.jvp(lambda z: both(loss, z, y)[1], (outputs,), (direction,))[1]


def differences(oracle: Callable[[np.ndarray], np.ndarray], outputs: np.ndarray) -> np.ndarray:
    """The same by central differences in float64."""
    z, h, columns = outputs.astype(float), 1e-5, []
    for j in range(math.prod(z.shape[1:])):
        step = h * np.eye(math.prod(z.shape[1:]))[j].reshape(z.shape[1:])
        columns.append((oracle(z + step) - oracle(z - step)) / (2 * h))
    return np.stack(columns, axis=-1).reshape(z.shape)


# --- values and gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", GAMMAS)
def test_focal_loss(gamma: float) -> None:
    alpha = np.array(FACTORS)[CLASSES]
    for loss, oracle in (
        (focal(gamma), lambda z: focal_loss(of_classes(z, CLASSES), gamma)),
        (focal(gamma, FACTORS), lambda z: focal_loss(of_classes(z, CLASSES), gamma, alpha)),
    ):
        np.testing.assert_allclose(loss(LOGITS, CLASSES), oracle(LOGITS), rtol=1e-5)
        np.testing.assert_allclose(
            slopes(loss, LOGITS, CLASSES), differences(oracle, LOGITS), rtol=1e-4, atol=1e-7
        )
    # The gradient in the log odds s, as the docstring has it.
    p = of_signs(SCORES, SIGNS)
    analytic = SIGNS * -((1 - p) ** gamma) * (1 - p - gamma * p * np.log(p))
    np.testing.assert_allclose(focal(gamma)(SCORES, SIGNS), focal_loss(p, gamma), rtol=1e-5)
    np.testing.assert_allclose(slopes(focal(gamma), SCORES, SIGNS), analytic, rtol=1e-4)


def test_a_number_alpha_weighs_label_one_and_its_complement_label_zero() -> None:
    p, labels = of_signs(SCORES, SIGNS), (SIGNS + 1) // 2
    expected = focal_loss(p, 2.0, np.where(SIGNS > 0, 0.05, 0.95))
    pair = np.stack([np.zeros(9, np.float32), SCORES], axis=1)
    for outputs, y in ((SCORES, labels), (SCORES[:, None], SIGNS), (pair, labels)):
        np.testing.assert_allclose(focal(2.0, 0.05)(outputs, y), expected, rtol=1e-5)
        np.testing.assert_array_equal(focal(2.0, (0.95, 0.05))(outputs, y), focal(2.0, 0.05)(outputs, y))
    assert not np.allclose(focal(2.0, 0.95)(SCORES, SIGNS), expected)
    # 0.5 halves the loss without factors, and None is no factor.
    np.testing.assert_allclose(2 * focal(2.0, 0.5)(SCORES, SIGNS), focal(2.0)(SCORES, SIGNS), rtol=1e-6)


@pytest.mark.parametrize("q", QS)
def test_generalized_cross_entropy(q: float) -> None:
    """The gradients of one logit are those of the code of TERM: ``h (1 - h)^q`` for label 0, ``(h - 1) h^q`` for 1."""
    loss = generalized_cross_entropy(q)
    exact = 0.0 if q < 1e-6 else q  # in float64, 1 - p^q has lost its digits long before
    np.testing.assert_allclose(loss(LOGITS, CLASSES), box_cox(of_classes(LOGITS, CLASSES), exact), rtol=2e-5)
    np.testing.assert_allclose(
        slopes(loss, LOGITS, CLASSES),
        differences(lambda z: box_cox(of_classes(z, CLASSES), exact), LOGITS),
        rtol=1e-4,
        atol=1e-7,
    )
    h = expit(SCORES.astype(float))
    np.testing.assert_allclose(loss(SCORES, SIGNS), box_cox(of_signs(SCORES, SIGNS), exact), rtol=2e-5)
    np.testing.assert_allclose(
        slopes(loss, SCORES, SIGNS), np.where(SIGNS > 0, (h - 1) * h**q, h * (1 - h) ** q), rtol=1e-4
    )


@pytest.mark.parametrize("delta", DELTAS)
def test_huber_loss(delta: float) -> None:
    y, r = jnp.ones(9), SCORES.astype(float) - 1
    np.testing.assert_allclose(huber(delta)(SCORES[:, None], y), huber_loss(r, delta), rtol=1e-5)
    np.testing.assert_allclose(slopes(huber(delta), SCORES, y), np.clip(r, -delta, delta), rtol=1e-5)
    assert (np.abs(r) > 1).any() and (np.abs(r) < 1).any()
    # At the kink, and the curvature at 0.
    at = jax.grad(lambda z: huber(1.0)(z[None], jnp.zeros(1))[0])
    assert [float(at(jnp.float32(z))) for z in (-1.0, 0.0, 1.0, 3.0)] == [-1.0, 0.0, 1.0, 1.0]
    assert [float(jax.grad(at)(jnp.float32(z))) for z in (0.0, 0.5, 2.0)] == [1.0, 1.0, 0.0]


def test_huber_is_a_mean_over_components() -> None:
    outputs, y = RNG.normal(size=(2, 5, 3)).astype(np.float32)
    expected = huber_loss((outputs - y).astype(float), 0.7).mean(axis=1)
    np.testing.assert_allclose(huber(0.7)(outputs, y), expected, rtol=1e-5)


# --- identities, each with a value at which it fails -------------------------------------------------------------


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=12, max_size=12),
    labels=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    gamma=st.sampled_from(GAMMAS),
    q=st.sampled_from(QS),
)
def test_losses_of_classes_are_between_their_limits(
    logits: list[float], labels: list[int], gamma: float, q: float
) -> None:
    z, y = np.array(logits, np.float32).reshape(4, 3), np.array(labels, np.int32)
    p, cross_entropy = of_classes(z, y), -log_softmax(z.astype(float), axis=1)[np.arange(4), y]
    tolerance = 1e-5 * (1 + cross_entropy)
    for loss, least in ((focal(gamma), 0 * p), (generalized_cross_entropy(q), 1 - p - tolerance)):
        values = np.asarray(both(loss, z, y)[0])
        assert (values >= least).all() and (values <= cross_entropy + tolerance).all()
    np.testing.assert_allclose(both(focal(0.0), z, y)[0], cross_entropy, rtol=1e-4, atol=1e-5)
    same = models.cross_entropy(jnp.asarray(z), jnp.asarray(y))
    np.testing.assert_allclose(both(focal(0.0), z, y)[0], same, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both(generalized_cross_entropy(1.0), z, y)[0], 1 - p, rtol=1e-4, atol=1e-6)


@given(
    scores=st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4),
    labels=st.lists(st.booleans(), min_size=4, max_size=4),
    gamma=st.sampled_from((0.3, 2.0)),
    q=st.sampled_from((0.0, 0.7)),
)
def test_one_logit_is_the_second_of_two(
    scores: list[float], labels: list[bool], gamma: float, q: float
) -> None:
    z, y = np.array(scores, np.float32), np.array(labels, np.int32)
    pair = np.stack([np.zeros(4, np.float32), z], axis=1)
    for loss in (focal(gamma), focal(gamma, 0.2), generalized_cross_entropy(q)):
        values, slope = both(loss, z, y)
        of_pair, slope_of_pair = both(loss, pair, y)
        np.testing.assert_allclose(of_pair, values, rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(slope_of_pair[:, 1], slope, rtol=1e-4, atol=1e-30)
        np.testing.assert_allclose(slope_of_pair[:, 0], -slope, rtol=1e-4, atol=1e-30)
        np.testing.assert_array_equal(both(loss, z[:, None], 2 * y - 1)[0], values)


@given(
    residuals=st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4),
    delta=st.floats(2**-10, 1e4, width=32),
)
def test_huber_is_below_both_of_its_limits(residuals: list[float], delta: float) -> None:
    r, y = jnp.array(residuals, jnp.float32), jnp.zeros(4)
    values, half = np.asarray(huber(delta)(r, y)), np.asarray(huber(math.inf)(r, y))
    np.testing.assert_allclose(half, 0.5 * np.asarray(models.squared_error(r, y)), rtol=1e-6)
    assert (values <= half * (1 + 1e-6)).all() and (values >= 0).all()
    assert (values <= delta * np.asarray(models.absolute_error(r, y)) * (1 + 1e-6)).all()


def test_hyper_parameters_matter() -> None:
    """The degenerate cases equal one another, and no others do."""
    for family in (map(focal, GAMMAS), map(generalized_cross_entropy, (0.0, 0.3, 0.7, 1.0))):
        for one, other in itertools.combinations([np.asarray(loss(LOGITS, CLASSES)) for loss in family], 2):
            assert not np.allclose(one, other, rtol=0.02)
    # Continuous at 0, explicitly and from above.
    for q in (1e-40, 1e-31, 1e-29, 1e-12, 1e-7):
        np.testing.assert_allclose(
            generalized_cross_entropy(q)(LOGITS, CLASSES), focal(0.0)(LOGITS, CLASSES), rtol=1e-5
        )
    assert not np.allclose(huber(1.0)(SCORES, jnp.zeros(9)), huber(math.inf)(SCORES, jnp.zeros(9)))


# --- extremes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [focal(0.0), focal(0.3), focal(1.0), focal(2.0, 0.25), *map(generalized_cross_entropy, QS)],
    ids=str,
)
def test_certain_and_impossible_labels_give_finite_losses_gradients_and_curvatures(loss: Loss) -> None:
    labels = jnp.ones(9, jnp.int32)
    wide = np.stack([np.zeros(9, np.float32), EXTREMES, np.full(9, -1e4, np.float32)], axis=1)
    for outputs, tested in ((EXTREMES, loss), (wide[:, :2], loss), (wide, loss)):
        if outputs.shape[1:] == (3,) and "alpha" in loss.name:
            tested = focal(2.0, (0.75, 0.25, 1.0))
        for numbers in (*both(tested, outputs, labels), curvatures(tested, outputs, labels)):
            assert np.isfinite(numbers).all()
    sure = slopes(loss, EXTREMES, labels)
    assert sure[-1] == 0 and loss(EXTREMES, labels)[-1] == 0
    if loss.name.startswith("focal"):  # as steep as cross-entropy where the label seems impossible
        assert sure[0] == pytest.approx(-0.25 if "alpha" in loss.name else -1.0)
        np.testing.assert_allclose(loss(EXTREMES, labels)[0], 1e4 * abs(sure[0]), rtol=1e-6)


def test_small_probabilities_keep_their_digits() -> None:
    """Where ``1 - p`` rounds to 1 in float32, in one logit and in many."""
    s = np.array([20.0, 40.0], np.float32)
    odds = np.exp(-s.astype(float))
    for loss, expected in (
        (focal(0.5), odds**1.5),
        (generalized_cross_entropy(0.7), odds),
        (generalized_cross_entropy(1.0), odds),
    ):
        for outputs in (s, np.stack([np.zeros(2, np.float32), s, np.full(2, -1e4, np.float32)], axis=1)):
            np.testing.assert_allclose(loss(outputs, jnp.ones(2, jnp.int32)), expected, rtol=1e-5)


def test_labels_out_of_range_give_nan_and_sequences_a_mean() -> None:
    logits = RNG.normal(size=(2, 5, 3)).astype(np.float32)
    labels = jnp.asarray(RNG.integers(0, 3, (2, 5)))
    for loss in (focal(2.0), focal(2.0, (1.0, 2.0, 3.0)), generalized_cross_entropy(0.7)):
        flat = np.asarray(loss(logits.reshape(10, 3), labels.reshape(10)))
        np.testing.assert_allclose(loss(logits, labels), flat.reshape(2, 5).mean(axis=1), rtol=1e-6)
        assert np.isnan(loss(np.zeros((3, 3), np.float32), jnp.array([-1, 3, 0]))).tolist() == [
            True,
            True,
            False,
        ]
        assert loss(jnp.zeros((0, 3)), jnp.zeros(0, jnp.int32)).shape == (0,)
        assert loss(jnp.zeros((2, 3), jnp.bfloat16), jnp.zeros(2, jnp.int32)).dtype == jnp.float32


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: huber(0.0), r"huber\(delta=0.0\): give a number above 0"),
        (lambda: huber(math.nan), r"huber\(delta=nan\)"),
        (lambda: focal(-1.0), r"focal\(gamma=-1.0\): give a number from 0"),
        (lambda: focal(math.inf), r"focal\(gamma=inf\)"),
        (lambda: focal(2.0, 1.5), r"focal\(alpha=1.5\): give a number from 0 to 1"),
        (lambda: focal(2.0, (1.0, -1.0)), r"focal\(alpha=-1.0\)"),
        (lambda: focal(2.0, (1.0,)), "one factor per class"),
        (lambda: focal(2.0, (0.0, 0.0)), "one that is above 0"),
        (lambda: focal("2"), r"focal\(gamma='2'\)"),  # pyright: ignore[reportArgumentType]
        (lambda: generalized_cross_entropy(1.1), r"generalized_cross_entropy\(q=1.1\): .* from 0 to 1"),
        (lambda: focal(2.0, 0.3)(LOGITS, CLASSES), "2 factors alpha, and the outputs are of 4 classes"),
        (lambda: focal(2.0, FACTORS)(SCORES, SIGNS), "4 factors alpha, and the outputs are of 2 classes"),
        (lambda: focal()(LOGITS, CLASSES.astype(np.float32)), "focal needs integer class labels"),
        (lambda: generalized_cross_entropy()(LOGITS, CLASSES[:5]), "generalized_cross_entropy needs logits"),
        (lambda: huber()(LOGITS, CLASSES), "huber needs one target per output"),
        (
            lambda: focal()(models.Margin(jnp.zeros(9), jnp.zeros(9)), SIGNS),
            "one array, but these are a Margin",
        ),
        (lambda: models.hinge({"score": SCORES}, SIGNS), "these are a dict"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_settings_and_shapes_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        make()


# --- losses as values, and models with them ----------------------------------------------------------------------


def test_equal_losses_are_one_static_argument_and_others_are_not() -> None:
    traced: list[Loss] = []

    def sum_of(loss: Loss, z: Any, y: Any) -> Any:
        traced.append(loss)
        return jnp.sum(loss(z, y))

    compiled = jax.jit(sum_of, static_argnums=0)
    made = [focal(2.0), focal(2), focal(2.0, None), focal(2.0, 0.5), focal(2.0, (0.5, 0.5)), focal(1.0)]
    made += [huber(1.0), huber(1), generalized_cross_entropy(1.0), generalized_cross_entropy(1)]
    assert len(set(made)) == 6
    values = [float(compiled(loss, SCORES, SIGNS)) for loss in made]
    assert [loss.name for loss in traced] == [
        *("focal(gamma=2)", "focal(gamma=2, alpha=0.5)", "focal(gamma=2, alpha=(0.5, 0.5))"),
        *("focal(gamma=1)", "huber(delta=1)", "generalized_cross_entropy(q=1)"),
    ]
    assert values[0] == values[2] and values[3] == values[4] and len(set(values)) == 5


def test_names_are_expressions_that_make_the_loss_again() -> None:
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
    for loss in (
        huber(math.inf),
        huber(1 / 3),
        focal(1e-7, (1.0, 0.1 + 0.2)),
        focal(0.5, 0.05),
        generalized_cross_entropy(0.7),
    ):
        assert eh.expressions.parse(loss.name, Loss, work.model, work) == loss
        assert str(loss) == f"<Loss {loss.name}>"
    assert sorted(eh.expressions.factories(Loss)) == ["focal", "generalized_cross_entropy", "huber"]


def test_metrics_go_by_the_shape_of_the_outputs() -> None:
    for loss in (focal(), generalized_cross_entropy()):
        right = loss.metrics["accuracy"]
        np.testing.assert_array_equal(right(LOGITS, CLASSES), models.accuracy(LOGITS, CLASSES))
        np.testing.assert_array_equal(right(SCORES, SIGNS), models.binary_accuracy(SCORES, SIGNS))
        np.testing.assert_array_equal(right(SCORES[:, None], SIGNS), models.binary_accuracy(SCORES, SIGNS))
    assert set(huber().metrics) == {"squared_error", "absolute_error"}


def test_adapters_take_a_loss() -> None:
    model = models.from_flax(nn.Dense(3), loss=focal(2.0), sample=np.zeros((1, 4), np.float32))
    assert model.losses == focal(2.0) and set(model.metrics) == {"accuracy"}
    bare = models.from_functions(lambda key: jnp.zeros(2), lambda w, x: x @ w, huber(1.0))
    assert bare.losses(jnp.array([3.0]), jnp.zeros(1)).tolist() == [2.5]
    assert set(bare.metrics) == {"squared_error", "absolute_error"}
    assert models.from_functions(lambda key: 0.0, lambda w, x: x, huber(1.0), metrics={}).metrics == {}
    for wrong in (huber, focal, generalized_cross_entropy):
        with pytest.raises(EvenhandError, match=f"call it, {wrong.__name__}"):
            models.from_flax(nn.Dense(3), loss=wrong, sample=LOGITS)  # pyright: ignore[reportArgumentType]


def test_a_model_with_another_loss_keeps_all_else() -> None:
    plain = models.softmax_regression(4, classes=3)
    model = models.with_loss(plain, focal(2.0))
    assert model == models.with_loss(plain, focal(2)) and model.losses == focal(2.0)
    assert model._replace(losses=plain.losses, name=plain.name) == plain
    assert model.name == "softmax_regression(features=4, classes=3, loss=focal(gamma=2))"
    again = models.with_loss(model, generalized_cross_entropy(0.5)).name
    assert again == "softmax_regression(features=4, classes=3, loss=generalized_cross_entropy(q=0.5))"
    assert models.with_loss(plain, "cross_entropy").losses is models.cross_entropy
    bare = plain._replace(metrics={}, name="")
    assert set(models.with_loss(bare, huber()).metrics) == {"squared_error", "absolute_error"}
    assert models.with_loss(bare, huber()).name == ""
    mine = plain._replace(metrics={"mine": models.accuracy}, name="Net")
    assert set(models.with_loss(mine, huber()).metrics) == {"mine"}
    assert models.with_loss(mine, huber()).name == "Net(loss=huber(delta=1))"
    scaled = models.standardized(
        models.with_loss(models.linear_regression(2), huber(1.0)), mean=5, deviation=2
    )
    assert scaled.losses(jnp.array([[11.0]]), jnp.array([5.0])).tolist() == [2.5]
    assert scaled.metrics["loss"](jnp.array([[11.0]]), jnp.array([5.0])).tolist() == [5.5]


def test_a_standardised_model_is_trained_by_the_loss_and_reports_what_it_did() -> None:
    plain = models.standardized(models.linear_regression(2), mean=5, deviation=2)
    scaled = models.with_loss(plain, huber(1.0))
    outputs, y = jnp.array([[11.0]]), jnp.array([5.0])
    assert scaled.losses(outputs, y).tolist() == [2.5] != plain.losses(outputs, y).tolist()
    assert scaled.metrics["loss"](outputs, y).tolist() == plain.metrics["loss"](outputs, y).tolist() == [36.0]
    model = described(scaled.name)
    assert model is not None and model.losses == scaled.losses


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        (models.svm(3), focal(), "loss=focal.* does not fit svm.*score and a penalty"),
        (
            models.linear_regression(3),
            focal(),
            r"is for classes, and linear_regression\(.*\) for real targets",
        ),
        (models.softmax_regression(3, classes=2), huber(), "is for real targets, and softmax.* for classes"),
        (models.softmax_regression(3, classes=2), "l2", 'no loss named "l2"'),
        (models.softmax_regression(3, classes=2), 3, "give a function"),
        (nn.Dense(3), focal(), "eh.models.softmax_regression"),
    ],
)
def test_a_loss_that_does_not_fit_the_model_is_refused(model: Any, loss: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        models.with_loss(model, loss)


@pytest.mark.parametrize(
    "model",
    [
        models.with_loss(models.softmax_regression(3, classes=2), focal(2.0, (0.5, 1.0))),
        models.with_loss(models.mlp(3, classes=2, hidden=(4,)), "cross_entropy"),
        models.standardized(
            models.with_loss(models.linear_regression(3), huber(math.inf)), mean=1.5, deviation=2
        ),
    ],
    ids=str,
)
def test_a_model_with_a_loss_is_known_by_its_name(model: eh.Model) -> None:
    other = described(model.name)
    assert other is not None and other.name == model.name and other.losses == model.losses


def test_a_loss_of_the_users_own_is_not_taken_for_one_of_the_library() -> None:
    def hinge(outputs: Any, y: Any) -> Any:
        return jnp.square(outputs[:, 0])

    plain = models.softmax_regression(3, classes=2)
    for loss in (hinge, lambda outputs, y: outputs[:, 0]):
        name = models.with_loss(plain, loss).name
        assert name.endswith(", loss=function)") and described(name) is None
    for text in ("eval('1')", "open('x')", "huber(1)(2)", "focal(gamma=-1)", "focal(mu=1)", "3"):
        assert described(f"softmax_regression(features=3, classes=2, loss={text})") is None


def test_training_uses_the_loss() -> None:
    """One step of plain descent on all rows is that of the loss's gradient; focal and cross-entropy differ."""
    data = eh.testing.toy_data()
    plain = models.softmax_regression(4, classes=3)
    params = plain.init(jax.random.key(0))
    steps: list[np.ndarray] = []
    for loss in (focal(2.0), focal(0.0)):
        method = eh.algorithms.fedavg(
            eh.local.sgd(models.with_loss(plain, loss), 0.5, epochs=1, batch_size=None)
        )
        run = eh.simulate(method, data, rounds=1, start=params)
        bias, kernel = np.asarray(params["bias"]), np.asarray(params["kernel"])
        x, y = np.asarray(data.train.x), np.asarray(data.train.y)

        def oracle(z: np.ndarray, y: np.ndarray = y, loss: Loss = loss) -> np.ndarray:
            return focal_loss(of_classes(z, y), 2.0 if loss == focal(2.0) else 0.0)

        # Clients weigh as their rows, so one full step of each is one step on the mean over all rows.
        slope = differences(oracle, x @ kernel + bias)
        np.testing.assert_allclose(run.params["bias"], bias - 0.5 * slope.mean(axis=0), atol=1e-5)
        steps.append(np.asarray(run.params["bias"]))
    assert np.abs(steps[0] - steps[1]).max() > 1e-2
