"""Stragglers: how many, who, and how much of their work they do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import evenhand as eh
from evenhand import local
from evenhand.streams import Purpose, stream
from evenhand.systems import stragglers
from evenhand.types import Array, ClientData, Model

_ROUNDS, _M = 2000, 10
# The gradient is 1 everywhere, so that plain descent counts its own steps.
_COUNTER = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: w + 0.0 * x,
    losses=lambda outputs, y: outputs,
    metrics={},
)


def _draws(fraction: float, m: int = _M) -> tuple[np.ndarray, np.ndarray]:
    """``(order, progress)`` of many rounds, ``(rounds, m)`` each; the cohort's ids are 100, 101, ..."""
    system, root = stragglers(fraction), jax.random.key(3)
    ids = 100 + jnp.arange(m, dtype=jnp.int32)
    draw = jax.vmap(lambda t: system.draw(stream(root, Purpose.STRAGGLERS, t), ids))
    order, progress = jax.jit(draw)(jnp.arange(_ROUNDS))
    return np.asarray(order), np.asarray(progress)


@pytest.fixture(scope="module")
def half() -> tuple[np.ndarray, np.ndarray]:
    return _draws(0.5)


def _steps(progress: np.ndarray, size: int, **work: int | None) -> np.ndarray:
    """How many local steps clients of ``size`` rows do, one per entry of ``progress``."""
    solve = local.sgd(_COUNTER, 1.0, **work).solve
    rows = jnp.zeros(size)

    def count(share: Array) -> Array:
        data = ClientData(rows, rows, jnp.int32(0), jnp.int32(size), share, size)
        return -solve(jnp.float32(0.0), data, jax.random.key(0), optax.identity())[0]

    return np.asarray(jax.jit(jax.vmap(count))(jnp.asarray(progress.ravel()))).astype(int)


@pytest.mark.parametrize(("fraction", "fast"), [(0.0, 10), (0.5, 5), (0.9, 1), (1.0, 0)])
def test_how_many_of_ten_are_fast(fraction: float, fast: int) -> None:
    assert stragglers(fraction).fast(10) == fast


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), [0.5], "0.5", None])
def test_a_share_outside_zero_to_one_is_refused(fraction: Any) -> None:
    with pytest.raises(eh.EvenhandError, match="share of slow clients"):
        stragglers(fraction)


def test_equal_shares_are_one_object() -> None:
    assert stragglers(0.5) is stragglers(0.5)
    assert stragglers(0.5) is not stragglers(0.4)


def test_the_fast_do_all_and_come_first(half: tuple[np.ndarray, np.ndarray]) -> None:
    order, progress = half
    assert np.array_equal(np.sort(order, axis=1), np.tile(np.arange(_M), (_ROUNDS, 1)))
    in_order = np.take_along_axis(progress, order, axis=1)
    assert (in_order[:, :5] >= 1).all()
    assert (in_order[:, 5:] < 1).all()
    assert (progress >= 0).all()


def test_who_is_fast_is_drawn_anew_and_fairly(half: tuple[np.ndarray, np.ndarray]) -> None:
    fast = half[1] >= 1
    deviation = 4.5 * np.sqrt(0.25 / _ROUNDS)
    assert np.abs(fast.mean(axis=0) - 0.5).max() < deviation
    again = (fast[1:] & fast[:-1]).mean()
    assert abs(again - 0.25) < deviation, "a round does not remember the one before"
    assert abs((fast & fast).mean() - 0.25) > deviation


def test_slow_shares_are_uniform_and_independent(half: tuple[np.ndarray, np.ndarray]) -> None:
    progress = half[1]
    shares = progress[progress < 1]
    assert stats.kstest(shares, "uniform").pvalue > 1e-3
    assert stats.kstest(shares**1.1, "uniform").pvalue < 1e-6
    both = (progress[:, 0] < 1) & (progress[:, 1] < 1)
    assert abs(np.corrcoef(progress[both, 0], progress[both, 1])[0, 1]) < 4.5 / np.sqrt(both.sum())


def test_a_client_keeps_its_share_wherever_it_stands() -> None:
    key, system = jax.random.key(0), stragglers(1.0)
    there = system.draw(key, jnp.array([4, 7, 9]))[1]
    moved = system.draw(key, jnp.array([9, 4, 1]))[1]
    assert moved[:2].tolist() == [float(there[2]), float(there[0])]
    assert float(moved[2]) != float(there[1])


def test_epochs_of_slow_clients_are_uniform(half: tuple[np.ndarray, np.ndarray]) -> None:
    shares = half[1][half[1] < 1]
    epochs, rest = np.divmod(_steps(shares, size=7, epochs=20, batch_size=4), 2)
    assert not rest.any(), "only whole epochs"
    assert epochs.min() == 1
    assert epochs.max() == 20
    assert stats.chisquare(np.bincount(epochs, minlength=21)[1:]).pvalue > 1e-3
    tolerance = 4.5 * epochs.std() / np.sqrt(len(epochs))
    assert abs(epochs.mean() - 10.5) < tolerance
    assert abs(epochs.mean() - 10.0) > tolerance, "not the {1, ..., 19} of the reference code"


@pytest.mark.parametrize(
    ("work", "most"),
    [({"epochs": 1, "batch_size": 4}, 3), ({"steps": 7, "batch_size": 4}, 7), ({"steps": 3}, 3)],
)
def test_one_epoch_or_steps_are_cut_into_steps(
    half: tuple[np.ndarray, np.ndarray], work: dict[str, int], most: int
) -> None:
    shares = half[1][half[1] < 1]
    steps = _steps(shares, size=10, **work)
    assert stats.chisquare(np.bincount(steps, minlength=most + 1)[1:]).pvalue > 1e-3
    assert steps.min() == 1
    assert steps.max() == most


def test_one_epoch_of_one_full_batch_cannot_be_cut() -> None:
    assert _steps(np.float32([0.0, 0.5, 1.0]), size=10, epochs=1).tolist() == [1, 1, 1]


def test_fast_clients_do_all_epochs() -> None:
    steps = _steps(np.float32([1.0, 2.0, np.nextafter(np.float32(1), np.float32(0)), 0.0]), size=7, epochs=20)
    assert steps.tolist() == [20, 20, 20, 1]


def test_a_cohort_of_one() -> None:
    assert (stragglers(0.4).fast(1), stragglers(0.6).fast(1)) == (1, 0)
    order, progress = _draws(0.4, m=1)
    assert not order.any()
    assert (progress >= 1).all()
