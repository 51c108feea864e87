"""Mini-batch descent: which rows each step sees, and how the optimiser uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import local, streams
from evenhand.errors import EvenhandError
from evenhand.types import Array, ClientData, Key, Model

_SIZES = (1, 3, 8, 17, 5, 12)
_STARTS = (0, 1, 4, 12, 29, 34)
_ROWS = 46
# The gradient of a row's loss is that row, so that with one-hot rows a gradient shows the rows of the batch.
_TELLTALE = Model(
    init=lambda key: jnp.zeros(_ROWS), apply=lambda w, x: x @ w, losses=lambda outputs, y: outputs, metrics={}
)


def _recorder(most: int) -> optax.GradientTransformation:
    """A correction that changes nothing and keeps the first ``most`` gradients, and their number, in its state."""

    def init(params: Any) -> Any:
        return jnp.int32(0), jnp.zeros((most, *params.shape))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count, seen = state
        return updates, (count + 1, seen.at[count].set(updates))

    return optax.GradientTransformation(init, update)


def _watch(
    model: Model, x: np.ndarray, most: int, **work: Any
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """``(client, key, progress) -> (params, gradients)`` of the local work on that client's rows."""
    solve = local.sgd(model, work.pop("client_opt", 1.0), **work).solve
    rows, starts, sizes = jnp.asarray(x), jnp.array(_STARTS), jnp.array(_SIZES)

    @jax.jit
    def run(client: Array, key: Key) -> Any:
        data = ClientData(
            rows, jnp.zeros(len(rows)), starts[client], sizes[client], jnp.float32(1.0), max(_SIZES)
        )
        return solve(model.init(key), data, key, _recorder(most))

    def watch(client: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        params, (count, seen) = run(jnp.int32(client), jax.random.key(seed))
        assert count <= most
        return np.asarray(params), np.asarray(seen)[: int(count)]

    return watch


def _check_batches(gradients: np.ndarray, client: int, batch_size: int, passes: float) -> list[list[int]]:
    """Each step's rows, after checking that they are what they must be."""
    start, size = _STARTS[client], _SIZES[client]
    assert (gradients[:, :start] == 0).all(), "another client's rows"
    assert (gradients[:, start + size :] == 0).all(), "another client's rows"
    batches = [np.flatnonzero(gradient).tolist() for gradient in gradients]
    for gradient, batch in zip(gradients, batches, strict=True):
        np.testing.assert_allclose(gradient[batch], 1 / len(batch), rtol=1e-6)
    per_epoch = -(-size // batch_size)
    assert len(batches) == round(passes * per_epoch)
    for begin in range(0, len(batches), per_epoch):
        epoch = batches[begin : begin + per_epoch]
        seen = sorted(row for batch in epoch for row in batch)
        assert len(set(seen)) == len(seen), "a row twice in one pass"
        if len(epoch) == per_epoch:
            assert seen == list(range(start, start + size)), "not every row in a pass"
            assert [len(batch) for batch in epoch[:-1]] == [min(batch_size, size)] * (per_epoch - 1)
            assert len(epoch[-1]) == size - (per_epoch - 1) * batch_size
    return batches


@pytest.mark.parametrize("batch_size", [4, 5, 100])
def test_each_epoch_sees_every_row_once(batch_size: int) -> None:
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 15, epochs=3, batch_size=batch_size)
    for client in range(len(_SIZES)):
        params, gradients = watch(client)
        _check_batches(gradients, client, batch_size, passes=3)
        np.testing.assert_allclose(params, -gradients.sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_batches_of_a_share_see_every_row_once(share: float) -> None:
    """``max(1, floor(share * size))`` rows, counted in tenths."""
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 60, epochs=2, batch_size=share)
    for client, size in enumerate(_SIZES):
        gradients = watch(client)[1]
        _check_batches(gradients, client, max(1, round(10 * share) * size // 10), passes=2)
    # One step on a tenth of the rows, the baseline of RFA.
    (gradient,) = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 1, steps=1, batch_size=share)(3)[1]
    assert np.count_nonzero(gradient) == max(1, round(10 * share) * _SIZES[3] // 10)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.009, 0.018])
def test_a_share_of_any_size_is_rounded_down(share: float) -> None:
    schedule = local.batches(steps=1, batch_size=share)
    sizes, zero = jnp.arange(30_000), jnp.int32(0)
    count = jax.vmap(
        lambda n: schedule.effort(ClientData(sizes, sizes, zero, n, jnp.float32(1.0), 30_000)).rows
    )
    expected = np.maximum(round(1000 * share) * np.arange(30_000) // 1000, 1)
    expected[0] = 0
    np.testing.assert_array_equal(count(sizes), expected)


@pytest.mark.parametrize("share", [1.0, 1.5, 0.0, -0.5, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(EvenhandError, match="or a share of a client's examples between 0 and 1"):
        local.batches(epochs=1, batch_size=share)


def test_a_row_counts_more_in_a_smaller_batch() -> None:
    # 5 rows in batches of 4: the last row is a batch of one.
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 2, epochs=1, batch_size=4)
    params, _ = watch(client=4)
    assert sorted(-params[29:34]) == [0.25, 0.25, 0.25, 0.25, 1.0]


def test_each_epoch_and_key_has_another_order() -> None:
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 15, epochs=3, batch_size=4)
    _, gradients = watch(3, seed=0)
    epochs = [gradients[i : i + 5].tobytes() for i in (0, 5, 10)]
    assert len(set(epochs)) == 3
    assert watch(3, seed=0)[1].tobytes() == gradients.tobytes(), "the same key, the same order"
    assert watch(3, seed=1)[1].tobytes() != gradients.tobytes()


def test_steps_continue_into_the_next_epoch() -> None:
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 7, steps=7, batch_size=4)
    for client, size in enumerate(_SIZES):
        batches = _check_batches(watch(client)[1], client, 4, passes=7 / -(-size // 4))
        assert len(batches) == 7


def test_steps_and_epochs_agree_where_they_mean_the_same() -> None:
    rows = np.eye(_ROWS, dtype=np.float32)
    steps = _watch(_TELLTALE, rows, 15, steps=15, batch_size=4)
    epochs = _watch(_TELLTALE, rows, 15, epochs=3, batch_size=4)
    assert np.array_equal(steps(3)[0], epochs(3)[0]), "17 rows: 5 batches a pass"
    assert not np.array_equal(steps(5)[0], epochs(5)[0]), "12 rows: 3 batches a pass"


def test_a_full_batch_holds_every_row() -> None:
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 2, epochs=2)
    for client, size in enumerate(_SIZES):
        gradients = watch(client)[1]
        expected = np.zeros((2, _ROWS))
        expected[:, _STARTS[client] : _STARTS[client] + size] = 1 / size
        np.testing.assert_allclose(gradients, expected, rtol=1e-6)


def test_other_clients_rows_are_never_touched() -> None:
    rows = np.full((_ROWS, _ROWS), np.nan, np.float32)
    rows[29:34] = np.eye(_ROWS)[29:34]
    for work in ({"epochs": 2, "batch_size": 4}, {"epochs": 2}):
        watch = _watch(_TELLTALE, rows, 6, **work)
        assert np.isfinite(watch(4)[0]).all()
        assert np.isnan(watch(5)[0]).any(), "rows of other clients show as NaN"


# --- optimisers --------------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(4)
_X, _Y = _RNG.normal(size=(17, 3)), _RNG.normal(size=17)
_LEAST_SQUARES = Model(
    init=lambda key: jnp.array([0.5, -1.0, 2.0]),
    apply=lambda w, x: x @ w,
    losses=lambda outputs, y: 0.5 * (outputs - y) ** 2,
    metrics={},
)
_W0 = np.array([0.5, -1.0, 2.0])


@pytest.mark.parametrize(
    "step",
    [
        -0.1,
        float("nan"),
        float("inf"),
        True,
        10**400,
        np.array([0.1, 0.2]),
        jnp.array([0.1]),
        jnp.array(1j),
        np.array("x"),
        jnp.float32(-1),
    ],
)
def test_an_invalid_step_size_is_refused(step: Any) -> None:
    with pytest.raises(eh.EvenhandError, match=r"got the step .*: give a finite number >= 0"):
        local.sgd(_TELLTALE, step, epochs=1)


@pytest.mark.parametrize(
    "step", [0.25, np.float32(0.25), np.array(0.25), jnp.float32(0.25), jnp.float16(0.25)]
)
def test_a_step_size_of_any_library_means_plain_descent(step: Any) -> None:
    assert local.sgd(_TELLTALE, step, epochs=1).step_size == 0.25
    assert local.sgd(_TELLTALE, 0, epochs=1).step_size == 0.0
    assert local.sgd(_TELLTALE, optax.sgd(0.25), epochs=1).step_size is None


def test_a_step_size_may_be_an_argument_of_a_compiled_function() -> None:
    sizes: list[float | None] = []

    @jax.jit
    def trained(step: Array) -> Array:
        work = local.sgd(_LEAST_SQUARES, step, steps=1)
        sizes.append(work.step_size)
        return _solved(work)

    np.testing.assert_allclose(trained(0.1), _trained(optax.sgd(0.1), steps=1), rtol=1e-6)
    assert sizes == [None]
    assert not np.allclose(trained(0.2), _trained(optax.sgd(0.1), steps=1), rtol=1e-3)


def _trained(client_opt: optax.GradientTransformation, **work: Any) -> np.ndarray:
    return np.asarray(jax.jit(lambda: _solved(local.sgd(_LEAST_SQUARES, client_opt, **work)))())


def _solved(work: local.Work) -> Array:
    x, y = jnp.asarray(_X, jnp.float32), jnp.asarray(_Y, jnp.float32)
    data = ClientData(x, y, jnp.int32(0), jnp.int32(17), jnp.float32(1.0), 17)
    return work.solve(jnp.asarray(_W0, jnp.float32), data, jax.random.key(6), optax.identity())[0]


def _batches(epochs: int, batch_size: int) -> list[np.ndarray]:
    """The rows of each step, by the documented shuffle."""
    word = streams.permutation_words(jax.random.key(6))
    orders = [
        np.asarray(streams.permute(jnp.arange(17), jnp.int32(17), word, jnp.int32(epoch)))
        for epoch in range(epochs)
    ]
    return [order[i : i + batch_size] for order in orders for i in range(0, 17, batch_size)]


def _gradient(w: np.ndarray, batch: np.ndarray | slice) -> np.ndarray:
    x, y = _X[batch], _Y[batch]
    return x.T @ (x @ w - y) / len(y)


def _descent(batches: list[Any], rate: float, momentum: float = 0.0) -> np.ndarray:
    w, velocity = _W0.copy(), np.zeros(3)
    for batch in batches:
        velocity = momentum * velocity + _gradient(w, batch)
        w = w - rate * velocity
    return w


def test_plain_descent_equals_numpy() -> None:
    np.testing.assert_allclose(
        _trained(optax.sgd(0.1), epochs=3, batch_size=5), _descent(_batches(3, 5), 0.1), rtol=1e-5
    )
    wrong = _descent([np.arange(i, min(i + 5, 17)) for i in (0, 5, 10, 15)] * 3, 0.1)
    assert np.abs(wrong - _descent(_batches(3, 5), 0.1)).max() > 1e-3, "the order of rows matters"


def test_momentum_equals_numpy() -> None:
    trained = _trained(optax.sgd(0.1, momentum=0.8), epochs=3, batch_size=5)
    np.testing.assert_allclose(trained, _descent(_batches(3, 5), 0.1, 0.8), rtol=1e-5)
    assert np.abs(trained - _descent(_batches(3, 5), 0.1)).max() > 1e-2


def test_full_batches_with_momentum_equal_numpy() -> None:
    trained = _trained(optax.sgd(0.1, momentum=0.8), epochs=6)
    np.testing.assert_allclose(trained, _descent([slice(None)] * 6, 0.1, 0.8), rtol=1e-5)


def test_adam_equals_numpy() -> None:
    w, m, v = _W0.copy(), np.zeros(3), np.zeros(3)
    for t, batch in enumerate(_batches(2, 5), start=1):
        gradient = _gradient(w, batch)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w = w - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        trained = _trained(optax.adam(0.05), epochs=2, batch_size=5)
    np.testing.assert_allclose(trained, w, rtol=1e-4)


# --- keys of the training pass -----------------------------------------------------------------------------------


def _noisy(w: Array, x: Array, key: Key) -> Array:
    return (x @ w) * jax.random.uniform(key)


_DROPOUT = _TELLTALE._replace(apply_train=_noisy)


@pytest.mark.parametrize("work", [{"epochs": 3, "batch_size": 4}, {"steps": 9}])
def test_each_step_draws_its_own_noise(work: dict[str, int]) -> None:
    watch = _watch(_DROPOUT, np.eye(_ROWS, dtype=np.float32), 9, **work)
    noise = watch(5)[1].sum(axis=1)
    assert len(set(noise.tolist())) == 9
    assert ((noise > 0) & (noise < 1)).all()
    assert watch(5)[1].sum(axis=1).tolist() == noise.tolist()
    assert not set(watch(5, seed=1)[1].sum(axis=1).tolist()) & set(noise.tolist())


def test_without_a_training_pass_there_is_no_noise() -> None:
    watch = _watch(_TELLTALE, np.eye(_ROWS, dtype=np.float32), 9, epochs=3, batch_size=4)
    np.testing.assert_allclose(watch(5)[1].sum(axis=1), 1.0, rtol=1e-6)


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ({}, "exactly one of epochs= and steps="),
        ({"epochs": 1, "steps": 1}, "exactly one of epochs= and steps="),
        ({"epochs": 0}, "epochs=0"),
        ({"steps": -1}, "steps=-1"),
        ({"epochs": 1, "batch_size": 0}, "batch_size=0"),
    ],
)
def test_wrong_amounts_of_work_are_refused(work: dict[str, Any], words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        local.sgd(_TELLTALE, 0.1, **work)
