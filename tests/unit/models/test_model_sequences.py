"""The GRU and the transformer: layers against NumPy, gradients against differences, causality, sizes, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.types import Model

KEY = jax.random.key(2)
RNG = np.random.default_rng(4)
TOKENS = RNG.integers(0, 6, (4, 7)).astype(np.int32)
NEXT = RNG.integers(0, 6, 4).astype(np.int32)
EACH = RNG.integers(0, 6, (4, 7)).astype(np.int32)

GRU = models.gru(vocabulary=6, embedding=3, hidden=5)
SIZES: dict[str, Any] = {"vocabulary": 6, "length": 9, "width": 8, "heads": 2, "layers": 2}
LAST, ALL = models.transformer(**SIZES), models.transformer(**SIZES, predicts="all")


def filled(model: Model, scale: float = 0.4) -> Any:
    shapes = jax.eval_shape(model.init, KEY)
    return jax.tree.map(lambda leaf: (scale * RNG.normal(size=leaf.shape)).astype(np.float32), shapes)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# --- in NumPy ---------------------------------------------------------------------------------------------------------


def numpy_gru(params: Any, tokens: np.ndarray) -> np.ndarray:
    """Step by step, gate by gate."""
    sequence = [np.asarray(params["embedding"], float)[tokens[:, t]] for t in range(tokens.shape[1])]
    for name in ("gru_0", "gru_1"):
        own = {key: np.asarray(leaf, float) for key, leaf in params[name].items()}
        width = len(own["bias_n"])
        k, u, b = (np.split(own[key], 3, axis=-1) for key in ("kernel", "recurrent", "bias"))
        h = np.zeros((len(tokens), width))
        for t, x in enumerate(sequence):
            r, z = (sigmoid(x @ k[i] + h @ u[i] + b[i]) for i in (0, 1))
            n = np.tanh(x @ k[2] + b[2] + r * (h @ u[2] + own["bias_n"]))
            h = (1 - z) * n + z * h
            sequence[t] = h
    return sequence[-1] @ params["output"]["kernel"] + params["output"]["bias"]


def numpy_transformer(params: Any, tokens: np.ndarray) -> np.ndarray:
    """Row by row, head by head and place by place; the outputs at all places."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)

    def norm(x: np.ndarray, own: Any) -> np.ndarray:
        unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return unit * own["scale"] + own["bias"]

    def attention(x: np.ndarray, own: Any) -> np.ndarray:
        out = np.zeros_like(x)
        for head in range(2):
            q, k, v = (
                x @ own[part]["kernel"][:, head] + own[part]["bias"][head]
                for part in ("query", "key", "value")
            )
            for t in range(len(x)):
                scores = k[: t + 1] @ q[t] / np.sqrt(q.shape[1])
                weights = np.exp(scores - scores.max())
                out[t] += (weights / weights.sum()) @ v[: t + 1] @ own["out"]["kernel"][head]
        return out + own["out"]["bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    rows = list[np.ndarray]()
    for row in tokens:
        x = p["tokens"]["embedding"][row] + p["places"][: len(row)]
        for name in ("block_0", "block_1"):
            own = p[name]
            x = x + attention(norm(x, own["norm_0"]), own["attention"])
            wide = gelu(norm(x, own["norm_1"]) @ own["wide"]["kernel"] + own["wide"]["bias"])
            x = x + wide @ own["narrow"]["kernel"] + own["narrow"]["bias"]
        rows.append(norm(x, p["norm"]) @ p["output"]["kernel"] + p["output"]["bias"])
    return np.stack(rows)


# --- layers -----------------------------------------------------------------------------------------------------------


def test_gru_equals_numpy() -> None:
    params = filled(GRU)
    outputs = jax.jit(GRU.apply)(params, TOKENS)
    np.testing.assert_allclose(outputs, numpy_gru(params, TOKENS), rtol=1e-4, atol=1e-5)
    assert not np.allclose(outputs, numpy_gru(params, TOKENS[:, ::-1]), atol=1e-2)


def test_gru_gradient_equals_differences() -> None:
    """Of each leaf along a random direction; the gradient is written by hand."""
    params = filled(GRU)
    grads = jax.jit(
        jax.grad(lambda w: jnp.mean(GRU.losses(GRU.apply(w, jnp.asarray(TOKENS)), jnp.asarray(NEXT))))
    )(params)

    def loss(params: Any) -> float:
        z = numpy_gru(params, TOKENS)
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(4), NEXT]))

    leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.astype(float), params))
    for index, gradient in enumerate(jax.tree.leaves(grads)):
        direction = RNG.normal(size=gradient.shape)
        ends = [
            loss(structure.unflatten([*leaves[:index], leaves[index] + e * direction, *leaves[index + 1 :]]))
            for e in (1e-5, -1e-5)
        ]
        expected = (ends[0] - ends[1]) / 2e-5
        assert abs(expected) > 1e-3
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-4, atol=1e-6)


def test_transformer_equals_numpy_at_all_places_and_at_the_last() -> None:
    params = filled(ALL)
    expected = numpy_transformer(params, TOKENS)
    np.testing.assert_allclose(jax.jit(ALL.apply)(params, TOKENS), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(jax.jit(LAST.apply)(params, TOKENS), expected[:, -1], rtol=1e-3, atol=1e-4)


def test_a_place_sees_nothing_after_it() -> None:
    params, apply = filled(ALL), jax.jit(ALL.apply)
    other = TOKENS.copy()
    other[:, 4] = (other[:, 4] + 1) % 6
    before, after = apply(params, TOKENS), apply(params, other)
    assert np.array_equal(before[:, :4], after[:, :4])
    assert (np.abs(before[:, 4:] - after[:, 4:]).max((0, 2)) > 1e-3).all()


def test_losses_of_all_places_are_their_means() -> None:
    outputs = RNG.normal(size=(4, 7, 6)).astype(np.float32)
    log_p = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_p, EACH[..., None], axis=-1)[..., 0]
    losses = ALL.losses(jnp.asarray(outputs), jnp.asarray(EACH))
    np.testing.assert_allclose(losses, -chosen.mean(1), rtol=1e-5)
    right = ALL.metrics["accuracy"](jnp.asarray(outputs), jnp.asarray(EACH))
    np.testing.assert_allclose(right, (outputs.argmax(-1) == EACH).mean(1), rtol=1e-6)


# --- sizes, training, errors ------------------------------------------------------------------------------------------


def test_networks_have_the_documented_numbers_of_parameters() -> None:
    def count(model: Model) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))

    layer = sum(3 * 256 * (inputs + 256) + 4 * 256 for inputs in (8, 256))
    assert count(models.gru()) == 80 * 8 + layer + 257 * 80 == 619_216
    block = 4 * (64 * 64 + 64) + 4 * 64 + (64 * 256 + 256) + (256 * 64 + 64)
    assert count(models.transformer()) == 160 * 64 + 2 * block + 2 * 64 + 65 * 80 == 115_536


@pytest.mark.parametrize("name", ["gru", "next", "all"])
def test_clients_learn_the_next_token(name: str) -> None:
    """Each token is the last one plus 1."""
    model = {
        "gru": models.gru(5, embedding=4, hidden=8, layers=1),
        "next": models.transformer(5, length=6, width=8, heads=2, layers=1),
        "all": models.transformer(5, length=6, width=8, heads=2, layers=1, predicts="all"),
    }[name]
    starts = RNG.integers(0, 5, 60)
    texts = ((starts[:, None] + np.arange(7)) % 5).astype(np.int32)
    y = texts[:, 1:] if name == "all" else texts[:, -1]
    data = eh.data.from_arrays(texts[:, :6], y, np.repeat(np.arange(6), 10))
    run = eh.simulate(eh.algorithms.fedavg(eh.local.sgd(model, 0.5, epochs=4, batch_size=5)), data, rounds=12)
    assert run.history["test_accuracy"][-1] > 0.9


def test_a_diverged_transformer_is_no_better_at_any_place() -> None:
    outputs, y = jnp.full((2, 3, 6), jnp.nan), jnp.zeros((2, 3), jnp.int32)
    assert jnp.isnan(ALL.metrics["accuracy"](outputs, y)).all() and jnp.isnan(ALL.losses(outputs, y)).all()
    assert jnp.isfinite(ALL.losses(jnp.zeros_like(outputs), y)).all()
    assert jnp.isnan(ALL.losses(jnp.zeros_like(outputs), y - 1)).all(), "no token has the number -1"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: models.transformer(width=10, heads=4),
            "width=10, heads=4.: give a width that is a multiple",
        ),
        (lambda: models.transformer(predicts="last"), "predicts='last'.: give 'next' or 'all'"),  # pyright: ignore[reportArgumentType]
        (lambda: models.gru(0), "vocabulary"),
        (
            lambda: ALL.losses(jnp.zeros((4, 7, 6)), jnp.asarray(NEXT)),
            r"needs a label for each place, of shape \(4, 7\), but labels have shape \(4,\)",
        ),
        (
            lambda: GRU.apply(filled(GRU), jnp.ones((2, 3))),
            "The GRU needs integer tokens of shape .rows, length.",
        ),
        (
            lambda: LAST.apply(filled(LAST), jnp.ones((2, 0), jnp.int32)),
            "The transformer needs integer tokens",
        ),
        (
            lambda: LAST.apply(filled(LAST), jnp.ones((2, 10), jnp.int32)),
            "made for 9 places, but a sequence has 10: make it with length=10",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        call()


def test_a_token_outside_the_vocabulary_gives_no_number() -> None:
    single = models.transformer(1, length=3, width=4, heads=1, layers=1)
    for model in (GRU, LAST, single):
        params = jax.tree.map(np.asarray, filled(model))
        outputs = model.apply(params, jnp.array([[7] * 3, [-1] * 3]))
        assert np.isnan(outputs).all()
