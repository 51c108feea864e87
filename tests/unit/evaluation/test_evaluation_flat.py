"""The flat pass against a loop over clients in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import tree
from evenhand.data._dataset import Split
from evenhand.errors import EvenhandError
from evenhand.evaluation import _evaluate, evaluate, evaluate_personal, mean_loss, per_client, prepare
from evenhand.types import Model

softmax = Model(
    init=lambda key: {"w": jax.random.normal(key, (3, 4)), "b": jnp.zeros(4)},
    apply=lambda params, x: x @ params["w"] + params["b"][None],
    losses=lambda outputs, y: -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1)[:, 0],
    metrics={"accuracy": lambda outputs, y: jnp.argmax(outputs, axis=-1) == y},
)


def classes(sizes: list[int], seed: int = 0) -> Split:
    """Three features and four classes at random."""
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    y = rng.integers(0, 4, rows).astype(np.int32)
    return Split(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def numpy_softmax(params: dict, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses and hits of the softmax model in float64, row by row."""
    logits = x.astype(np.float64) @ np.asarray(params["w"], np.float64) + np.asarray(params["b"], np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    return losses, (logits.argmax(axis=1) == y).astype(np.float64)


PARAMS = softmax.init(jax.random.key(3))
RAGGED = [7, 0, 1, 130, 300, 2, 0, 45]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 128 rows, so that a few hundred rows make several."""
    monkeypatch.setattr(_evaluate, "_CHUNK_ROWS", (128, 128))


def looped(split: Split, params_of: Callable[[int], Any] = lambda k: PARAMS) -> dict[str, np.ndarray]:
    rows = [numpy_softmax(params_of(k), *split.client(k)) for k in range(len(split.sizes))]
    return {
        name: np.array([row[i].mean() if row[i].size else np.nan for row in rows])
        for i, name in enumerate(("loss", "accuracy"))
    }


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    "sizes",
    [RAGGED, [1], [128, 128], [127, 0], [129], [100, 28, 128, 1]],
)
@pytest.mark.usefixtures("small_chunks")
def test_equals_a_loop_over_clients(sizes: list[int]) -> None:
    split = classes(sizes)
    found = evaluate(softmax, PARAMS, split)
    assert_same(found, looped(split))
    assert all(values.shape == (len(sizes),) and values.dtype == np.float64 for values in found.values())
    loss, _ = numpy_softmax(PARAMS, split.x, split.y)
    assert float(mean_loss(softmax, PARAMS, prepare(split))) == pytest.approx(loss.mean(), rel=1e-6)


@pytest.mark.usefixtures("small_chunks")
def test_each_row_goes_to_its_own_client() -> None:
    split = classes(RAGGED)
    moved = split._replace(offsets=np.maximum(split.offsets - 1, 0))
    moved.offsets[-1] = split.offsets[-1]
    with pytest.raises(AssertionError):
        assert_same(evaluate(softmax, PARAMS, moved), looped(split))


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(classes([200, 150, 250]))
    whole = per_client(softmax, PARAMS, prepared)
    monkeypatch.setattr(_evaluate, "_CHUNK_ROWS", (128, 128))
    assert_same(per_client(softmax, PARAMS, prepared), whole)


def test_chunks_fit_the_rows() -> None:
    assert [
        _evaluate.chunk_rows(np.zeros(shape)) for shape in [(1,), (1, 60), (1, 28, 28), (1, 32, 32, 3)]
    ] == [
        4096,
        4096,
        512,
        128,
    ]
    assert _evaluate.chunk_rows(np.zeros((1, 10_000_000))) == 128


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_metrics_without_rows_are_not_numbers(sizes: list[int]) -> None:
    prepared = prepare(classes(sizes))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(sizes)) if sizes else leaf[None], PARAMS)
    for found in (per_client(softmax, PARAMS, prepared), evaluate_personal(softmax, states, prepared)):
        assert list(found) == ["loss", "accuracy"]
        assert all(values.shape == (len(sizes),) and np.isnan(values).all() for values in found.values())
    assert np.isnan(mean_loss(softmax, PARAMS, prepared))


def test_a_second_pass_neither_compiles_nor_moves_the_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(classes([40, 60]))
    x, y = cast("tuple[Any, Any]", (prepared.x, prepared.y))
    assert prepare(Split(x, y, prepared.offsets)).x is prepared.x
    made, compiled = _evaluate._Apart._compile, list[Any]()

    def noted(self: Any, arguments: Any) -> Any:
        compiled.append(self)
        return made(self, arguments)

    monkeypatch.setattr(_evaluate._Apart, "_compile", noted)
    per_client(softmax, PARAMS, prepared)
    before = len(compiled)
    again = softmax._replace(metrics=dict(softmax.metrics))
    per_client(again, tree.scale(2.0, PARAMS), prepared)
    assert len(compiled) == before
    per_client(again, PARAMS, prepare(classes([40, 61])))
    assert len(compiled) == before + 1


@pytest.mark.usefixtures("small_chunks")
def test_mean_loss_is_traceable_and_differentiable() -> None:
    split = classes([70, 90, 141])
    prepared = prepare(split)
    traced = jax.jit(lambda params: mean_loss(softmax, params, prepared))
    losses, _ = numpy_softmax(PARAMS, split.x, split.y)
    assert float(traced(PARAMS)) == pytest.approx(losses.mean(), rel=1e-6)
    slope = jax.grad(lambda scale: mean_loss(softmax, tree.scale(scale, PARAMS), prepared))(1.0)
    ahead, behind = (
        numpy_softmax(
            {name: np.float64(by) * np.asarray(leaf) for name, leaf in PARAMS.items()}, split.x, split.y
        )
        for by in (1 + 1e-6, 1 - 1e-6)
    )
    assert float(slope) == pytest.approx((ahead[0].mean() - behind[0].mean()) / 2e-6, rel=1e-3)


ROW_IS_LOSS = Model(lambda key: jnp.float32(1.0), lambda w, x: w * x, lambda outputs, y: outputs, {})


@pytest.mark.parametrize("value", [0.1, 1.0, 3.3e-5, 1e4])
def test_long_sums_stay_accurate(value: float) -> None:
    rows = 1_000_001
    x = np.full(rows, value, np.float32)
    x[::1000] *= 977
    split = Split(x, np.zeros(rows, np.float32), np.array([0, 1, rows]))
    exact = x.astype(np.float64)
    prepared = prepare(split)
    assert float(mean_loss(ROW_IS_LOSS, jnp.float32(1.0), prepared)) == pytest.approx(exact.mean(), rel=1e-6)
    found = per_client(ROW_IS_LOSS, jnp.float32(1.0), prepared)["loss"]
    np.testing.assert_allclose(found, [exact[0], exact[1:].mean()], rtol=1e-12)
    states = jnp.ones(2)
    personal = evaluate_personal(ROW_IS_LOSS, states, prepared)["loss"]
    np.testing.assert_allclose(personal, [exact[0], exact[1:].mean()], rtol=1e-6)
    # Plain float32 addition, one row after the other, is not good enough.
    naive = np.cumsum(x, dtype=np.float32)[-1] / rows
    assert value == 1.0 or abs(naive / exact.mean() - 1) > 1e-5


def test_infinities_stay_with_their_client() -> None:
    x = np.array([1.0, np.inf, 2.0, np.nan, 3.0], np.float32)
    prepared = prepare(Split(x, np.zeros(5, np.float32), np.array([0, 1, 3, 4, 5])))
    expected = [1.0, np.inf, np.nan, 3.0]
    np.testing.assert_array_equal(per_client(ROW_IS_LOSS, jnp.float32(1.0), prepared)["loss"], expected)
    np.testing.assert_array_equal(evaluate_personal(ROW_IS_LOSS, jnp.ones(4), prepared)["loss"], expected)
    assert np.isnan(mean_loss(ROW_IS_LOSS, jnp.float32(1.0), prepared))
    finite = prepare(Split(x[:3], np.zeros(3, np.float32), np.array([0, 3])))
    assert mean_loss(ROW_IS_LOSS, jnp.float32(1.0), finite) == np.inf


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.usefixtures("small_chunks")
def test_personal_equals_a_loop(lanes: int) -> None:
    split = classes(RAGGED)
    keys = jax.random.split(jax.random.key(5), len(RAGGED))
    stacked = jax.vmap(softmax.init)(keys)
    expected = looped(split, lambda k: tree.take(stacked, jnp.asarray(k)))
    assert_same(evaluate_personal(softmax, stacked, prepare(split), lanes=lanes), expected)
    with pytest.raises(AssertionError):
        assert_same(evaluate(softmax, PARAMS, split), expected)


def test_personal_from_a_function_of_the_client() -> None:
    split = classes([20, 30, 0, 4])
    found = evaluate_personal(
        softmax,
        PARAMS,
        prepare(split),
        params_of=lambda state, k: tree.scale(1.0 / (1 + k).astype(jnp.float32), state),
    )
    assert_same(found, looped(split, lambda k: tree.scale(1 / (1 + k), PARAMS)))


def test_reduced_losses_are_refused() -> None:
    reduced = softmax._replace(metrics={"error": lambda outputs, y: jnp.mean(outputs)})
    with pytest.raises(EvenhandError, match=r"'error' gives an array of shape \(\) for 9 examples"):
        evaluate(reduced, PARAMS, classes([9]))
