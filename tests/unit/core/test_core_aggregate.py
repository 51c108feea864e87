"""Reducing uploads outside a run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.aggregators import aggregate, mean, reduce_uploads
from evenhand.types import Stack, Sum, Upload

_RNG = np.random.default_rng(0)
_DELTAS = {"w": _RNG.normal(size=(5, 3, 2)).astype(np.float32), "b": _RNG.normal(size=5).astype(np.float32)}
_WEIGHTS: Any = np.array([3.0, 1.0, 10.0, 0.0, 2.0], np.float32)


def test_mean_is_weighted() -> None:
    direction = aggregate(mean(), _DELTAS, weights=_WEIGHTS)
    for name, deltas in _DELTAS.items():
        expected = np.average(deltas.astype(np.float64), axis=0, weights=_WEIGHTS)
        np.testing.assert_allclose(direction[name], expected, rtol=1e-5, atol=1e-6)
        assert direction[name].shape == deltas.shape[1:]
    plain = aggregate(mean(), _DELTAS)
    np.testing.assert_allclose(plain["w"], _DELTAS["w"].mean(axis=0), rtol=1e-5, atol=1e-6)
    assert np.abs(plain["w"] - direction["w"]).max() > 0.1


def test_clients_draw_noise_of_their_own() -> None:
    """The sum of 1 from each of 400 clients has the deviation 20; that of the same noise from all, 400."""
    rule = Sum(
        lambda like, clients: (),
        lambda upload, public, key: upload.delta + jax.random.normal(key, upload.delta.shape),
        lambda total, state, key: (total, state),
        publish=lambda state: (),
    )
    assert np.isclose(np.std(aggregate(rule, jnp.zeros((400, 300)))), 20.0, rtol=0.2)


def test_uploads_of_whole_numbers_count_as_real_ones() -> None:
    numbers = {"w": np.array([[0, 2], [5, 2]]), "b": np.array([True, False])}
    for rule in (
        mean(),
        eh.aggregators.geometric_median(),
        eh.aggregators.multi_krum(0),
        eh.aggregators.quantized(8),
    ):
        direction = aggregate(rule, numbers)
        real = aggregate(rule, jax.tree.map(np.float32, numbers))
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), direction, real))
    assert aggregate(mean(), numbers)["w"].tolist() == [2.5, 2.0]


@pytest.mark.parametrize("half", [jnp.bfloat16, jnp.float16])
def test_uploads_in_half_precision_are_reduced_in_float32(half: Any) -> None:
    """Weights of 1000 times 100 overflow float16."""
    for rule in (mean(), eh.aggregators.geometric_median(start="mean")):
        direction = aggregate(rule, jnp.full((10, 3), 100, half), weights=np.full(10, 1000.0))
        assert direction.dtype == half and direction.tolist() == [100.0] * 3


@pytest.mark.parametrize("numbers", [3, 3000])
def test_a_sum_in_half_precision_is_added_in_float32(numbers: int) -> None:
    """In a round: 256 + 1 is 256 in bfloat16; from a million numbers on, uploads are added one by one."""
    m = 400
    with jax.numpy_dtype_promotion("standard"):
        uploads = Upload(jnp.ones((m, numbers), jnp.bfloat16), jnp.ones(m), jnp.ones(m))
        keys = jax.random.split(jax.random.key(0), m)
        direction, _ = reduce_uploads(mean(), uploads, jnp.ones(m, bool), (), jax.random.key(1), keys)
    assert direction.dtype == jnp.bfloat16 and jnp.all(direction == 1)


def test_only_ratios_of_weights_count() -> None:
    one, other = (aggregate(mean(), _DELTAS, weights=c * _WEIGHTS)["w"] for c in (1.0, 0.001))
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_all_weights_zero_give_zeros() -> None:
    direction = aggregate(mean(), _DELTAS, weights=jnp.zeros(5))
    assert not np.asarray(direction["w"]).any()
    assert float(direction["b"]) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_an_upload_that_is_not_finite_is_left_out_of_the_mean(bad: float, weight: float) -> None:
    """So is one whose norm is not: 3e38 squared overflows float32."""
    deltas = np.arange(8, dtype=np.float32).reshape(4, 2)
    deltas[2, 0] = bad
    direction = aggregate(mean(), deltas, weights=jnp.array([1.0, 1.0, weight, 1.0]))
    np.testing.assert_allclose(direction, deltas[[0, 1, 3]].mean(axis=0), rtol=1e-6)
    deltas[2, 0] = 1e18
    assert float(aggregate(mean(), deltas)[0]) == pytest.approx(0.25e18), "a large finite upload counts"


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1e6])
def test_an_upload_with_an_invalid_weight_is_left_out_of_the_mean(weight: float) -> None:
    direction = aggregate(mean(), _DELTAS["w"], weights=jnp.array([1.0, weight, 1.0, 2.0, 3.0]))
    expected = np.average(_DELTAS["w"][[0, 2, 3, 4]], axis=0, weights=[1.0, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(direction, expected, rtol=1e-4, atol=1e-6)


def test_one_upload_is_returned() -> None:
    direction = aggregate(mean(), {"w": _DELTAS["w"][:1]}, weights=jnp.array([7.0]))
    np.testing.assert_allclose(direction["w"], _DELTAS["w"][0], rtol=1e-6)


_LOSS_WEIGHTED = mean()._replace(
    weigh=lambda reports, cohort, state: (reports.weight * reports.loss, state), needs_loss=True
)


def test_weights_may_depend_on_the_losses() -> None:
    losses = jnp.array([0.1, 2.0, 0.5, 3.0, 1.0])
    direction = aggregate(_LOSS_WEIGHTED, _DELTAS, weights=_WEIGHTS, losses=losses)
    expected = np.average(_DELTAS["w"], axis=0, weights=_WEIGHTS * losses)
    np.testing.assert_allclose(direction["w"], expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(eh.EvenhandError, match="losses="):
        aggregate(_LOSS_WEIGHTED, _DELTAS)


def test_the_second_pass_of_a_sum_sees_the_state_of_the_first() -> None:
    # The first pass finds the mean, the second the mean of the uploads within 1 of it.
    def lift(
        upload: Upload, public: tuple[jnp.ndarray, jnp.ndarray], key: object
    ) -> tuple[jnp.ndarray, jnp.ndarray]:
        number, centre = public
        near = jnp.where((number == 0) | (jnp.abs(upload.delta - centre) <= 1.0), 1.0, 0.0)
        return near * upload.delta, near

    def lower(total: Any, state: Any, key: Any) -> tuple[Any, Any]:
        centre = total[0] / total[1]
        return centre, (state[0] + 1, centre)

    def init(like: jnp.ndarray, clients: int) -> tuple[jnp.ndarray, jnp.ndarray]:
        return jnp.int32(0), jnp.zeros_like(like)

    trimmed = Sum(init, lift, lower, publish=lambda state: state, passes=2)
    deltas = np.array([0.0, 0.5, 0.5, 3.0], np.float32)
    assert float(aggregate(trimmed, deltas)) == pytest.approx(1 / 3)
    assert float(aggregate(trimmed._replace(passes=1), deltas)) == 1.0


def test_a_stack_sees_every_upload() -> None:
    largest = Stack(
        lambda like, clients: (),
        lambda uploads, present, state, key: (uploads.delta[jnp.argmax(uploads.weight)], state),
    )
    assert aggregate(largest, _DELTAS["w"], weights=_WEIGHTS).tolist() == _DELTAS["w"][2].tolist()


def test_draws_depend_on_the_seed() -> None:
    random = Stack(
        lambda like, clients: (),
        lambda uploads, present, state, key: (uploads.delta[0] + jax.random.normal(key), state),
    )
    draws = [float(aggregate(random, _DELTAS["b"], seed=seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("deltas", "weights", "words"),
    [
        ({"a": np.zeros((3, 2)), "b": np.zeros(4)}, None, "leading axes"),
        (np.zeros((0, 2)), None, "leading axes"),
        (np.float32(1.0), None, "leading axes"),
        ((), None, "leading axes"),
        (np.zeros((3, 2)), np.ones(2), r"must be \(3,\)"),
        (np.zeros((3, 2)), np.ones((3, 1)), r"must be \(3,\)"),
    ],
)
def test_uploads_that_do_not_fit_are_refused(deltas: Any, weights: Any, words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        aggregate(mean(), deltas, weights=weights)
