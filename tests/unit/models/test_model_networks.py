"""The networks of the literature: sizes, forms of input, dropout, and the LSTM against NumPy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.models._networks import _Dropout, _DropoutCNN  # pyright: ignore[reportPrivateUsage]
from evenhand.types import Model

KEY = jax.random.key(0)
RNG = np.random.default_rng(4)


def abstract(model: Model) -> Any:
    return jax.eval_shape(model.init, KEY)


def size(model: Model) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(abstract(model)))


def filled(model: Model) -> Any:
    """Parameters drawn by NumPy: quicker than compiling the initialiser."""
    return jax.tree.map(lambda leaf: (0.1 * RNG.normal(size=leaf.shape)).astype(np.float32), abstract(model))


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: models.softmax_regression(4, classes=3), models.softmax_regression(4, classes=2)),
        (lambda: models.mlp(4, classes=3, hidden=(5, 2)), models.mlp(4, classes=3, hidden=(2, 5))),
        (models.cnn_femnist, models.cnn_femnist(hidden=0)),
        (lambda: models.lstm(vocabulary=9), models.gru(vocabulary=9)),
        (models.resnet20, models.resnet20(groups=4)),
    ],
    ids=lambda model: getattr(model, "name", "made"),
)
def test_a_model_that_is_made_again_has_the_same_functions_and_others_have_their_own(make, other: Model):
    """So what was compiled for the first serves the second, such as in a cell that is run again."""
    first, again = make(), make()
    assert first.name == again.name != other.name
    assert first.init is again.init and first.apply is again.apply
    assert first.init is not other.init and first.apply is not other.apply


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (models.softmax_regression(60, classes=10), 610),
        (models.softmax_regression(784, classes=10), 7_850),
        (models.mlp(784, hidden=(300, 100), classes=10), 266_610),
        (models.cnn_femnist(classes=10), 1_663_370),
        (models.cnn_femnist(), 1_690_046),
        (models.cnn_femnist(5, hidden=2048), 6_486_917),
        (models.cnn_femnist(hidden=0), 115_646),
        (models.softmax_regression(784, classes=62, bias=False), 48_608),
        (models.cnn_femnist_dropout(), 1_206_590),
        (models.cnn_cifar(), 1_626_442),
        (models.lstm(), 817_872),
        (models.lstm_classifier(300), 243_892),
        (models.lstm_classifier(300, classes=1), 243_861),
        (models.lstm_classifier(50, classes=1, hidden=50, layers=1, dense=0), (50 + 50 + 1) * 200 + 51),
        (models.lstm(hidden=100), 8 * 80 + (108 + 1) * 400 + (200 + 1) * 400 + 101 * 80),
    ],
)
def test_networks_have_the_published_numbers_of_parameters(model: Model, parameters: int) -> None:
    assert size(model) == parameters
    assert {leaf.dtype for leaf in jax.tree.leaves(abstract(model))} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("make", "shape", "classes"),
    [
        (models.cnn_femnist, (28, 28, 1), 62),
        (models.cnn_femnist_dropout, (28, 28, 1), 62),
        (models.cnn_cifar, (32, 32, 3), 10),
    ],
)
def test_images_may_be_flat(make: Any, shape: tuple[int, ...], classes: int) -> None:
    model = make()
    params = abstract(model)
    forms = [shape, (math.prod(shape),)] + [shape[:2]] * (shape[2] == 1)
    for form in forms:
        outputs = jax.eval_shape(model.apply, params, jnp.zeros((3, *form)))
        assert outputs.shape == (3, classes) and outputs.dtype == jnp.float32
    assert jax.eval_shape(model.apply, params, jnp.zeros((0, *shape))).shape == (0, classes)
    for wrong in [(shape[2], *shape[:2]), shape[:1], (30, 30, 1)]:
        with pytest.raises(EvenhandError, match="made for images"):
            jax.eval_shape(model.apply, params, jnp.zeros((3, *wrong)))


@pytest.mark.parametrize(
    ("model", "shape", "same"),
    [
        (models.cnn_femnist(), (28, 28, 1), True),
        (models.cnn_femnist(7, hidden=0), (28, 28, 1), False),
        (models.cnn_cifar(), (32, 32, 3), False),
    ],
)
def test_networks_are_the_layers_they_name(model: Model, shape: tuple[int, ...], same: bool) -> None:
    params, x = filled(model), RNG.random((2, *shape)).astype(np.float32)
    outputs = np.asarray(jax.jit(model.apply)(params, x.reshape(2, -1)))
    np.testing.assert_allclose(outputs, _by_numpy(params, x, same), rtol=1e-4, atol=1e-4)
    assert np.abs(outputs - _by_numpy(params, x.swapaxes(1, 2), same)).max() > 1e-2


def _by_numpy(params: Any, x: np.ndarray, same: bool) -> np.ndarray:
    for name in ("conv_0", "conv_1"):
        kernel = params[name]["kernel"]
        edge = kernel.shape[0] // 2 if same else 0
        x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
        x = np.maximum(
            0, np.einsum("nhwcij,ijco->nhwo", windows, kernel, optimize=True) + params[name]["bias"]
        )
        if same or name == "conv_1" or "dense" not in params:
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
    x = x.reshape(len(x), -1)
    if "dense" in params:
        x = np.maximum(0, x @ params["dense"]["kernel"] + params["dense"]["bias"])
    return x @ params["output"]["kernel"] + params["output"]["bias"]


def test_the_initial_values_of_cnns_have_not_changed() -> None:
    # The numbers date from before these networks were made of flax's convolutions.
    params = jax.jit(models.cnn_cifar().init)(jax.random.key(7))
    firsts = {
        "conv_0": [0.0032689033541828394, 0.008083020336925983],
        "conv_1": [-0.04401296377182007, -0.06967705488204956],
        "dense": [-0.017360227182507515, 0.016179503872990608],
        "output": [0.1528576761484146, -0.18058191239833832],
    }
    totals = {"conv_0": 59.2005114423082, "conv_1": 766.2424703879399, "output": 130.93291301048885}
    assert set(params) == set(firsts) and not any(layer["bias"].any() for layer in params.values())
    for name, values in firsts.items():
        np.testing.assert_allclose(params[name]["kernel"].ravel()[:2], values, rtol=1e-5)
    for name, total in totals.items():
        kernel = np.asarray(params[name]["kernel"], np.float64)
        np.testing.assert_allclose(np.abs(kernel).sum(), total, rtol=1e-7)


def test_dropout_acts_only_in_training() -> None:
    assert models.cnn_femnist().apply_train is None and models.lstm().apply_train is None
    model = models.cnn_femnist_dropout(classes=3)
    params, x = filled(model), RNG.random((2, 784)).astype(np.float32)
    assert model.apply_train is not None
    train = jax.jit(model.apply_train)
    one, same, other = (np.asarray(train(params, x, jax.random.key(k))) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert not np.allclose(one, _by_numpy(params, x.reshape(2, 28, 28, 1), same=False), rtol=1e-2)


def test_a_quarter_and_a_half_are_dropped() -> None:
    module = _DropoutCNN((16, 16, 1), classes=1)
    x = np.zeros((1, 256), np.float32)
    shapes = jax.eval_shape(lambda key: module.init(key, x, train=False), KEY)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    # All units of a layer are 1, so that the outputs count those that were kept.
    params["params"]["conv_1"]["bias"] += 1
    params["params"]["dense"]["kernel"][:, 0] = 1
    params["params"]["output"]["kernel"][0] = 1

    def count(key: jax.Array) -> jax.Array:
        return jnp.asarray(module.apply(params, x, train=True, rngs={"dropout": key}))[0, 0]

    counts = np.asarray(jax.jit(jax.vmap(count))(jax.random.split(KEY, 32))) * (0.75 / 2)
    kept = counts[counts > 0]
    np.testing.assert_allclose(kept / (6 * 6 * 64), 0.75, atol=0.04)
    assert 6 <= len(kept) <= 26
    assert np.asarray(module.apply(params, x, train=False))[0, 0] == 6 * 6 * 64


def test_units_are_dropped_independently() -> None:
    """Four units share a random word: their masks agree as often as by chance, 0.75^2 + 0.25^2."""
    x = jnp.ones((4, 4096))
    keep = np.asarray(_Dropout(0.25).apply({}, x, True, rngs={"dropout": KEY})) > 0
    groups = keep.reshape(4, -1)  # one byte of the words each
    for one, other in itertools.combinations(groups, 2):
        assert abs(np.mean(one == other) - 0.625) < 0.03
    assert abs(keep.mean() - 0.75) < 0.015
    odd = _Dropout(0.5).apply({}, jnp.ones((3, 7)), True, rngs={"dropout": KEY})
    assert set(np.asarray(odd).ravel().tolist()) == {0.0, 2.0}
    with pytest.raises(ValueError, match="1/256"):
        _Dropout(0.1).apply({}, x, True, rngs={"dropout": KEY})


def numpy_lstm(params: Any, tokens: np.ndarray) -> np.ndarray:
    return numpy_sequences(params, np.asarray(params["embedding"], float)[tokens])


def numpy_sequences(params: Any, vectors: np.ndarray) -> np.ndarray:
    sequence = [vectors[:, t] for t in range(vectors.shape[1])]
    for name in sorted(name for name in params if name.startswith("lstm")):
        kernel, bias = (np.asarray(params[name][k], float) for k in ("kernel", "bias"))
        hidden = kernel.shape[1] // 4
        h = c = np.zeros((len(vectors), hidden))
        for t, x in enumerate(sequence):
            i, j, f, o = np.split(np.concatenate([x, h], 1) @ kernel + bias, 4, axis=1)
            c = c / (1 + np.exp(-(f + 1))) + np.tanh(j) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
            sequence[t] = h
    if "dense" in params:
        sequence[-1] = sequence[-1] @ params["dense"]["kernel"] + params["dense"]["bias"]
    return sequence[-1] @ np.asarray(params["output"]["kernel"], float) + params["output"]["bias"]


TINY = models.lstm(vocabulary=6, embedding=3, hidden=5)
TOKENS: Any = RNG.integers(0, 6, (4, 7)).astype(np.int32)
NEXT = RNG.integers(0, 6, 4).astype(np.int32)


def tiny_loss(params: Any) -> jax.Array:
    return jnp.mean(TINY.losses(TINY.apply(params, jnp.asarray(TOKENS)), jnp.asarray(NEXT)))


tiny_grad = jax.jit(jax.grad(tiny_loss))


def test_lstm_equals_numpy() -> None:
    params = jax.tree.map(lambda leaf: 5 * leaf, filled(TINY))
    outputs = jax.jit(TINY.apply)(params, TOKENS)
    np.testing.assert_allclose(outputs, numpy_lstm(params, TOKENS), rtol=1e-4, atol=1e-5)
    assert not np.allclose(outputs, numpy_lstm(params, TOKENS[:, ::-1]), atol=1e-2)


def test_lstm_gradient_equals_differences() -> None:
    params = jax.tree.map(lambda leaf: 5 * leaf, filled(TINY))
    grads = tiny_grad(params)

    def loss(params: Any) -> float:
        z = numpy_lstm(params, TOKENS)
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(4), NEXT]))

    leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.astype(float), params))
    for index, grad in enumerate(jax.tree.leaves(grads)):
        direction = RNG.normal(size=grad.shape)
        ends = [
            loss(structure.unflatten([*leaves[:index], leaves[index] + e * direction, *leaves[index + 1 :]]))
            for e in (1e-5, -1e-5)
        ]
        expected = (ends[0] - ends[1]) / 2e-5
        assert abs(expected) > 1e-3
        np.testing.assert_allclose(np.sum(grad * direction), expected, rtol=1e-4, atol=1e-6)


def test_lstm_transposes_its_kernel_once_and_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The barrier around the transpose keeps XLA from making it at every step; without it the bits are the same."""
    params = filled(TINY)
    grads = tiny_grad(params)
    barriers = str(jax.make_jaxpr(jax.grad(tiny_loss))(params)).count("optimization_barrier")
    monkeypatch.setattr(jax.lax, "optimization_barrier", lambda value: value)
    bare = jax.grad(tiny_loss)
    assert barriers == str(jax.make_jaxpr(bare)(params)).count("optimization_barrier") + 2, (
        "one for each layer"
    )
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(jax.jit(bare)(params)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_lstm_runs_over_clients_and_has_hessian_products() -> None:
    w, v = filled(TINY), filled(TINY)
    points = [w, v, *(jax.tree.map(lambda a, b, e=e: a + np.float32(e) * b, w, v) for e in (0.02, -0.02))]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *points)
    together = jax.jit(jax.vmap(jax.grad(tiny_loss)))(stacked)
    alone = [tiny_grad(point) for point in points]
    for a, *b in zip(jax.tree.leaves(together), *map(jax.tree.leaves, alone), strict=True):
        np.testing.assert_allclose(a, np.stack(b), rtol=1e-4, atol=1e-6)
    product = jax.jit(lambda w, v: jax.jvp(jax.grad(tiny_loss), (w,), (v,))[1])(w, v)
    for a, up, down in zip(*map(jax.tree.leaves, (product, alone[2], alone[3])), strict=True):
        np.testing.assert_allclose(a, (up - down) / 0.04, atol=2e-4)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(product)) > 2e-3


def test_lstm_has_the_documented_initial_values() -> None:
    params = jax.jit(TINY.init)(KEY)
    assert params["embedding"].shape == (6, 3)
    for name, shape in (("lstm_0", (8, 20)), ("lstm_1", (10, 20))):
        kernel = np.asarray(params[name]["kernel"])
        limit = np.sqrt(6 / sum(shape))
        assert kernel.shape == shape and 0.9 * limit < np.abs(kernel).max() <= limit
        assert not np.asarray(params[name]["bias"]).any()


def test_lstm_refuses_what_is_no_text() -> None:
    params = filled(TINY)
    for wrong in (TOKENS.astype(np.float32), TOKENS[0], TOKENS[:, :0]):
        with pytest.raises(EvenhandError, match="integer tokens"):
            TINY.apply(params, wrong)
    for token in (6, -1):
        assert np.isnan(jax.jit(TINY.apply)(params, np.full((4, 7), token, np.int32))).all()


# --- sequences of vectors -----------------------------------------------------------------------------------


VECTORS: Any = RNG.normal(size=(6, 3)).astype(np.float32)


@pytest.mark.parametrize("dense", [0, 4])
@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_classifier_equals_numpy(layers: int, dense: int) -> None:
    model = models.lstm_classifier(3, classes=4, hidden=5, layers=layers, dense=dense)
    params = jax.tree.map(lambda leaf: 5 * leaf, filled(model))
    assert set(params) == {*(f"lstm_{i}" for i in range(layers)), *["dense"] * bool(dense), "output"}
    x = VECTORS[TOKENS]
    outputs = jax.jit(model.apply)(params, x)
    np.testing.assert_allclose(outputs, numpy_sequences(params, x), rtol=1e-4, atol=1e-5)
    assert not np.allclose(outputs, numpy_sequences(params, x[:, ::-1]), atol=1e-2)


def test_lstm_classifier_of_embedded_characters_is_lstm() -> None:
    """A table of vectors in the place of the trained one gives the same outputs, and is no parameter."""
    params = jax.tree.map(lambda leaf: 5 * leaf, filled(TINY))
    table = params.pop("embedding")
    model = models.embedded(models.lstm_classifier(3, classes=6, hidden=5, dense=0), table)
    assert jax.tree.structure(params) == jax.tree.structure(abstract(model))
    outputs = jax.jit(model.apply)(params, TOKENS)
    np.testing.assert_allclose(
        outputs, jax.jit(TINY.apply)({**params, "embedding": table}, TOKENS), rtol=1e-6, atol=1e-7
    )
    other = models.embedded(models.lstm_classifier(3, classes=6, hidden=5, dense=0), table[::-1])
    assert not np.allclose(outputs, jax.jit(other.apply)(params, TOKENS), atol=1e-2)


def test_one_logit_is_half_of_two() -> None:
    """Softmax over the logits (0, z) is the logistic loss of z, and the predictions are the same."""
    one = models.lstm_classifier(3, classes=1, hidden=5)
    params = filled(one)
    z = np.asarray(jax.jit(one.apply)(params, VECTORS[TOKENS]))
    y = jnp.array([0, 1, 1, 0], jnp.int32)
    two = models.lstm_classifier(3, classes=2, hidden=5)
    pair = np.concatenate([np.zeros_like(z), z], axis=1)
    np.testing.assert_allclose(one.losses(z, y), two.losses(pair, y), rtol=1e-6)
    np.testing.assert_array_equal(one.metrics["accuracy"](z, y), two.metrics["accuracy"](pair, y))
    assert not np.allclose(one.losses(z, y), one.losses(z, 1 - y))


def test_sequences_and_tokens_of_another_form_are_refused() -> None:
    model = models.lstm_classifier(3, hidden=5)
    params = filled(model)
    for wrong in (VECTORS, VECTORS[TOKENS][:, :0], VECTORS[TOKENS][..., :2]):
        with pytest.raises(EvenhandError, match="made for sequences"):
            model.apply(params, wrong)
    tokens = models.embedded(model, VECTORS)
    for wrong in (TOKENS.astype(np.float32), TOKENS[0], VECTORS[TOKENS]):
        with pytest.raises(EvenhandError, match="integer tokens"):
            tokens.apply(params, wrong)
    for token in (6, -1):
        assert np.isnan(jax.jit(tokens.apply)(params, np.full((4, 7), token, np.int32))).all()
    for table in (np.zeros(3), np.zeros((0, 3)), np.full((2, 3), np.inf)):
        with pytest.raises(EvenhandError, match="matrix of finite numbers"):
            models.embedded(model, table)
    with pytest.raises(EvenhandError, match="dense"):
        models.lstm_classifier(3, dense=-1)


def test_embedded_passes_dropout_on() -> None:
    """A model that draws in training still does."""
    plain = models.from_functions(
        init=lambda key: jnp.zeros(3),
        apply=lambda params, x: (x @ params).sum(1),
        losses=models.logistic,
        apply_train=lambda params, x, key: (x @ params).sum(1) + jax.random.normal(key, (len(x),)),
    )
    model = models.embedded(plain, VECTORS)
    assert (
        model.apply_train is not None
        and models.embedded(models.lstm_classifier(3), VECTORS).apply_train is None
    )
    outputs = [model.apply_train(np.ones(3, np.float32), TOKENS, jax.random.key(k)) for k in (0, 1)]
    noise = np.asarray(outputs[0]) - np.asarray(model.apply(np.ones(3, np.float32), TOKENS))
    np.testing.assert_allclose(noise, jax.random.normal(jax.random.key(0), (4,)), rtol=1e-3, atol=1e-4)
    assert not np.allclose(outputs[0], outputs[1])
