"""Arithmetic on trees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import tree
from evenhand.build import mean_of
from evenhand.types import Upload


def _tree(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    shapes = {"w": np.zeros((3, 2)), "inner": (np.zeros(4), np.zeros(()))}
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)


def _flat(value: object) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(value)])


def test_add_and_subtract() -> None:
    a, b = _tree(0), _tree(1)
    assert np.array_equal(_flat(tree.add(a, b)), _flat(a) + _flat(b))
    assert np.array_equal(_flat(tree.subtract(a, b)), _flat(a) - _flat(b))
    assert jax.tree.structure(tree.add(a, b)) == jax.tree.structure(a)


def test_scale_and_zeros() -> None:
    a = _tree(0)
    assert np.array_equal(_flat(tree.scale(-3.0, a)), -3 * _flat(a))
    assert np.array_equal(_flat(tree.scale(jnp.float32(0.5), a)), _flat(a) / 2)
    zeros = tree.zeros_like({"half": jnp.ones(2, jnp.bfloat16), "count": jnp.int32(3)})
    assert zeros["half"].dtype == jnp.bfloat16
    assert zeros["count"].dtype == jnp.int32
    assert not _flat(zeros).any()


@pytest.mark.parametrize("factor", [2.0, jnp.float32(2.0)])
def test_scale_keeps_the_type_of_a_leaf(factor: Any) -> None:
    with jax.numpy_dtype_promotion("standard"):
        scaled = tree.scale(factor, {"half": jnp.ones(2, jnp.bfloat16), "full": jnp.ones(2)})
    assert scaled["half"].dtype == jnp.bfloat16
    assert scaled["full"].dtype == jnp.float32
    assert _flat(scaled).tolist() == [2.0] * 4


def test_select_ignores_the_tree_that_is_not_chosen() -> None:
    good, bad = {"w": jnp.ones(2)}, {"w": jnp.array([jnp.nan, jnp.inf])}
    assert tree.select(jnp.array(True), good, bad)["w"].tolist() == [1.0, 1.0]
    assert tree.select(jnp.array(False), bad, good)["w"].tolist() == [1.0, 1.0]
    assert np.isnan(tree.select(jnp.array(True), bad, good)["w"][0])


def test_take() -> None:
    stack = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.arange(3)}
    assert tree.take(stack, jnp.int32(1))["a"].tolist() == [2.0, 3.0]
    assert tree.take(stack, jnp.array([2, 0]))["b"].tolist() == [2, 0]


def test_norm() -> None:
    a = _tree(2)
    assert float(tree.norm(a)) == pytest.approx(np.linalg.norm(_flat(a)), rel=1e-6)
    assert float(tree.norm(())) == 0.0
    assert float(tree.norm({"w": jnp.full(4, 300.0, jnp.float16)})) == pytest.approx(600.0), "no overflow"


def test_whole_numbers_and_truth_values_are_averaged_as_real_numbers() -> None:
    values, weights = np.array([[3, 0], [6, 1], [0, 1]]), jnp.array([1.0, 2.0, 0.0])
    uploads = Upload(
        {name: jnp.asarray(values, name) for name in ("int32", "uint8", "float32")}, weights, weights
    )
    for mean in (tree.weighted_mean(uploads.delta, weights), mean_of(uploads, weights > 0, weighted=True)):
        assert all(np.array_equal(leaf, np.array([5.0, 2 / 3], np.float32)) for leaf in mean.values())
    odd = tree.weighted_mean(jnp.array([True, False, True]), jnp.ones(3))
    assert odd == jnp.float32(2 / 3)
    half = jnp.ones((3, 2), jnp.bfloat16)
    assert tree.weighted_mean(half, weights).dtype == tree.real(half).dtype == jnp.bfloat16


def test_weighted_mean() -> None:
    stack = {"w": jnp.asarray(np.random.default_rng(3).normal(size=(5, 3)), jnp.float32)}
    weights = jnp.array([3.0, 0.0, 1.0, 7.0, 2.0])
    expected = np.average(np.asarray(stack["w"], np.float64), axis=0, weights=np.asarray(weights))
    np.testing.assert_allclose(tree.weighted_mean(stack, weights)["w"], expected, rtol=1e-6)
    assert np.abs(expected - np.mean(stack["w"], axis=0)).max() > 0.1, "the weights matter"
    assert tree.weighted_mean(stack, jnp.zeros(5))["w"].tolist() == [0.0] * 3
    assert np.isnan(tree.weighted_mean(stack, weights.at[1].set(jnp.nan))["w"]).all()
