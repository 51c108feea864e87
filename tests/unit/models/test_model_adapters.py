"""Models that users bring: pure functions, flax linen, flax nnx."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evenhand import models
from evenhand.errors import EvenhandError

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 400)
X: Any = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(64)(x)))
        return nn.Dense(3)(x)


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool) -> jax.Array:
        return nn.Dropout(0.5)(nn.Dense(3)(x), deterministic=deterministic)


class NnxNet(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs, rate: float = 0.5) -> None:
        self.layers = nnx.List([nnx.Linear(4, 64, rngs=rngs), nnx.Linear(64, 3, rngs=rngs)])
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.again = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.again(self.dropout(nnx.relu(self.layers[0](x)))))


def nnx_net(rngs: nnx.Rngs) -> NnxNet:
    return NnxNet(rngs=rngs)


def size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_functions_are_passed_on_as_they_are() -> None:
    def init(key: jax.Array) -> jax.Array:
        return jnp.zeros(4)

    def apply(params: jax.Array, x: jax.Array) -> jax.Array:
        return x @ params

    model = models.from_functions(init, apply, models.hinge)
    assert model == (init, apply, models.hinge, {}, None, "", None)
    model = models.from_functions(
        init=init, apply=apply, losses=models.hinge, metrics={"accuracy": models.binary_accuracy}
    )
    assert model.metrics == {"accuracy": models.binary_accuracy}


@pytest.mark.parametrize("module", [Net(), Deterministic(), nnx_net])
def test_dropout_acts_only_in_training_and_follows_the_key(module: Any) -> None:
    model = models.from_flax(module, loss="cross_entropy", sample=X[:1])
    assert model.apply_train is not None
    params = jax.jit(model.init)(KEY)
    train = jax.jit(model.apply_train)
    first, same, other = (train(params, X, jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    apply = np.asarray(jax.jit(model.apply)(params, X))
    mean = np.mean(jax.jit(jax.vmap(model.apply_train, (None, None, 0)))(params, X, KEYS), axis=0)
    np.testing.assert_allclose(mean, apply, atol=0.35)
    assert np.abs(np.asarray(first) - apply).max() > 0.35


def test_equal_modules_are_one_model_so_that_runs_share_their_programs() -> None:
    """1 and 1.0 are equal and hash alike, and yet a module may compute another dtype with each."""

    class Scaled(nn.Module):
        by: Any

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(3)(x) * jnp.float32(np.ravel(self.by)[0])

    def apply(by: Any) -> Any:
        return models.from_flax(Scaled(by), loss="cross_entropy", sample=X[:1]).apply

    assert apply(2.0) is apply(2.0)
    assert len({apply(by) for by in (1, 1.0, True, 2.0)}) == 4
    assert models.mlp(4, classes=3) == models.mlp(4, classes=3) != models.mlp(4, classes=2)
    params = models.from_flax(Scaled(2.0), loss="cross_entropy", sample=X[:1]).init(KEY)
    np.testing.assert_array_equal(apply([2.0])(params, X), apply(2.0)(params, X))


@pytest.mark.parametrize("module", [Net(), nnx_net])
def test_parameters_are_plain_float32_dicts_that_follow_the_key(module: Any) -> None:
    model = models.from_flax(module, loss="cross_entropy", sample=X[:1])
    init = jax.jit(model.init)
    params, same, other = init(KEY), init(KEY), init(jax.random.key(1))
    assert isinstance(params, dict) and size(params) == 4 * 64 + 64 + 64 * 3 + 3
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params, other)), strict=True))


@pytest.mark.parametrize("module", [Net(), nnx_net])
def test_a_model_trains_within_vmap_and_scan(module: Any) -> None:
    model = models.from_flax(module, loss="cross_entropy", sample=X[:1])
    apply_train = model.apply_train
    assert apply_train is not None

    def step(params: Any, key: jax.Array) -> tuple[Any, None]:
        grads = jax.grad(lambda p: jnp.mean(model.losses(apply_train(p, X, key), jnp.asarray(Y))))(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), None

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = model.init(key)
        end, _ = jax.lax.scan(step, start, jax.random.split(key, 20))
        before, after = (jnp.mean(model.losses(model.apply(w, X), jnp.asarray(Y))) for w in (start, end))
        return before, after

    before, after = jax.jit(jax.vmap(run))(jax.random.split(KEY, 2))
    assert (after < before - 0.1).all() and before[0] != before[1]


def test_linen_and_nnx_agree_on_the_same_numbers() -> None:
    linen = models.from_flax(Net(), loss="cross_entropy", sample=X[:1])
    model = models.from_flax(nnx_net, loss="cross_entropy", sample=X[:1])
    params = jax.jit(linen.init)(KEY)
    moved = {"layers": {0: params["Dense_0"], 1: params["Dense_1"]}}
    assert jax.tree.structure(moved) == jax.tree.structure(jax.eval_shape(model.init, KEY))
    outputs = jax.jit(linen.apply)(params, X)
    np.testing.assert_allclose(jax.jit(model.apply)(moved, X), outputs, rtol=1e-5, atol=1e-6)
    moved["layers"][0]["bias"] += 1
    assert not np.allclose(jax.jit(model.apply)(moved, X), outputs, atol=1e-2)


def test_layers_of_an_nnx_module_drop_different_units() -> None:
    model = models.from_flax(
        lambda rngs: nnx.Sequential(
            nnx.Linear(4, 4000, rngs=rngs), nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        ),
        loss=models.accuracy,
        sample=X[:1],
    )
    assert model.apply_train is not None
    kept = model.apply_train(model.init(KEY), X[:1], KEY) != 0
    assert abs(float(jnp.mean(kept)) - 0.25) < 0.03


def test_without_randomness_a_model_has_no_training_pass() -> None:
    for module in (nn.Dense(3), lambda rngs: nnx.Linear(4, 3, rngs=rngs)):
        assert models.from_flax(module, loss="cross_entropy", sample=X[:1]).apply_train is None


def test_metrics_follow_the_loss_unless_given() -> None:
    def metrics(**arguments: Any) -> set[str]:
        return set(models.from_flax(nn.Dense(1), sample=X[:1], **arguments).metrics)

    assert metrics(loss="hinge") == {"accuracy"} == metrics(loss=models.logistic)
    assert metrics(loss="squared_error") == {"squared_error", "absolute_error"}
    assert metrics(loss=lambda outputs, y: outputs[:, 0]) == set() == metrics(loss="hinge", metrics={})
    assert metrics(loss="hinge", metrics={"mine": models.hinge}) == {"mine"}


class BatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))


class RowMean(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.mean(nn.Dense(3)(x), axis=0)


class AlwaysDrops(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Dense(3)(x)
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if train else x


class Narrow(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(5, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(x)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Noisy(), r"Noisy draws random numbers in training from another stream.*make_rng\(\"dropout\"\)"),
        (
            nn.Sequential([nn.Dense(3), nn.Dropout(0.5)]),
            r'Sequential fails on inputs float32\[., 4\] \(.*"deterministic".*\): give from_flax a sample',
        ),
        (Narrow(), r"Narrow fails on inputs float32\[., 4\] .*: give from_flax a sample"),
        (nn.Sequential([nn.relu]), "Sequential, which has no parameters"),
        (BatchNorm(), '"batch_stats".*GroupNorm or LayerNorm'),
        (lambda rngs: nnx.BatchNorm(4, rngs=rngs), "BatchStat.*GroupNorm or LayerNorm"),
        (RowMean(), "rows first, but for 2 inputs"),
        (AlwaysDrops(), "random numbers in evaluation.*train"),
        (nnx.BatchNorm(4, rngs=nnx.Rngs(0)), "BatchStat.*GroupNorm or LayerNorm"),
        (nnx.eval_shape(lambda: nnx_net(nnx.Rngs(0))), "shapes in place of arrays"),
        (lambda rngs: 3, "must return an nnx.Module, but it returned int"),
        (None, "linen module, an nnx module, or a function.*NoneType"),
    ],
)
def test_modules_that_cannot_be_federated_are_refused(module: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        models.from_flax(module, loss="cross_entropy", sample=X[:1])


def test_wrong_samples_and_losses_are_refused() -> None:
    with pytest.raises(EvenhandError, match="rows first"):
        models.from_flax(nn.Dense(3), loss="cross_entropy", sample=np.float32(1.0))
    with pytest.raises(EvenhandError, match="no loss named"):
        models.from_flax(nn.Dense(3), loss="l2", sample=X[:1])  # pyright: ignore[reportArgumentType]
