"""Models of nnx modules that hold their parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import evenhand as eh
from evenhand import models

KEY = jax.random.key(0)
X: Any = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)


class Net(nnx.Module):
    """Two dropouts that share a stream, layers in a list, and a count of its calls."""

    traced = 0

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 64, rngs=rngs), nnx.Linear(64, 3, rngs=rngs)])
        self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        type(self).traced += 1

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.second(self.first(nnx.relu(self.layers[0](x)))))


def model_of(module: Any) -> eh.types.Model:
    return models.from_flax(module, loss="cross_entropy", sample=X[:1])


def same(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def leaves(module: Any) -> list[Any]:
    """Parameters, keys and counts of a module, as arrays."""
    values = jax.tree.leaves(nnx.state(module))
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in values
    ]


def test_the_parameters_of_the_module_are_the_start_whatever_the_key() -> None:
    module = Net(nnx.Rngs(7))
    model = model_of(module)
    expected = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    for key in (KEY, jax.random.key(1)):
        assert same(model.init(key), expected)
    assert not same(model_of(Net).init(KEY), expected)
    module.eval()
    np.testing.assert_allclose(model.apply(expected, X), module(X), rtol=1e-6)


def test_a_module_and_the_function_that_makes_it_compute_the_same() -> None:
    module, drawn = model_of(Net(nnx.Rngs(7))), model_of(Net)
    params = drawn.init(jax.random.key(3))
    assert jax.tree.structure(params) == jax.tree.structure(module.init(KEY))
    np.testing.assert_array_equal(module.apply(params, X), drawn.apply(params, X))


def test_dropout_draws_from_the_key_of_the_step_whatever_the_module_drew_before() -> None:
    fresh, used = Net(nnx.Rngs(7)), Net(nnx.Rngs(7))
    used.train()
    used(X)
    used.eval()
    outputs = []
    for module in (fresh, used):
        model = model_of(module)
        assert model.apply_train is not None
        params, train = model.init(KEY), jax.jit(model.apply_train)
        one, again, other = (np.asarray(train(params, X, jax.random.key(k))) for k in (1, 1, 2))
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)
        assert not np.allclose(one, model.apply(params, X))
        outputs.append(one)
    np.testing.assert_array_equal(*outputs)


def test_two_dropouts_drop_different_units() -> None:
    layers = nnx.Linear(4, 4000, rngs=nnx.Rngs(1)), *(nnx.Dropout(0.5, rngs=nnx.Rngs(0)) for _ in range(2))
    twice = nnx.Sequential(*layers)
    model = models.from_flax(twice, loss=models.accuracy, sample=X[:1])
    assert model.apply_train is not None
    kept = model.apply_train(model.init(KEY), X[:1], KEY) != 0
    assert abs(float(jnp.mean(kept)) - 0.25) < 0.03


def test_the_module_is_never_changed_and_its_later_changes_do_not_count() -> None:
    module = Net(nnx.Rngs(7))
    module.eval()
    before = leaves(module)
    model = model_of(module)
    start, outputs = model.init(KEY), np.asarray(model.apply(model.init(KEY), X))
    assert model.apply_train is not None
    jax.grad(lambda p: jnp.sum(model.apply_train(p, X, KEY)))(start)  # pyright: ignore[reportOptionalCall]
    data = eh.data.from_arrays(X, Y, np.arange(6) % 2)
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.5, epochs=1, batch_size=2))
    run = eh.simulate(method, data, rounds=2)
    assert not same(run.params, start)
    for a, b in zip(leaves(module), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert module.first.deterministic
    module.layers[0].kernel[...] = jnp.zeros((4, 64))
    module.train()
    assert same(model.init(KEY), start)
    np.testing.assert_array_equal(model.apply(start, X), outputs)
    # A second run begins where the first did, though a run gives away the memory of its parameters.
    assert same(eh.simulate(method, data, rounds=2).params, run.params)
    assert same(eh.simulate(method, data, rounds=0).params, start)


def test_no_code_of_the_module_makes_it_again_at_a_trace() -> None:
    model = model_of(Net(nnx.Rngs(7)))
    made = Net.traced
    jax.eval_shape(model.apply, model.init(KEY), X)
    assert Net.traced == made
    jax.eval_shape(model_of(Net).apply, model.init(KEY), X)
    assert Net.traced > made


def test_a_shared_parameter_is_one_parameter() -> None:
    class Tied(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.inward = nnx.Linear(4, 4, rngs=rngs)
            self.outward = self.inward

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.outward(self.inward(x))

    module = Tied(nnx.Rngs(1))
    model = models.from_flax(module, loss=lambda outputs, y: outputs[:, 0], sample=X[:1])
    params = model.init(KEY)
    assert len(jax.tree.leaves(params)) == 2 and model.apply_train is None
    params["inward"]["kernel"] = jnp.eye(4)
    np.testing.assert_allclose(model.apply(params, X), X)


@pytest.mark.parametrize("flag", ["train", "deterministic"])
def test_a_flag_of_the_call_says_which_pass_it_is(flag: str) -> None:
    class Switched(nnx.Module):
        def __init__(self) -> None:
            self.scale = nnx.Param(jnp.ones(()))

    def by_train(self: Any, x: jax.Array, train: bool) -> jax.Array:
        return x * self.scale + float(train)

    def by_deterministic(self: Any, x: jax.Array, *, deterministic: bool) -> jax.Array:
        return x * self.scale + float(not deterministic)

    Switched.__call__ = {"train": by_train, "deterministic": by_deterministic}[flag]  # pyright: ignore
    model = models.from_flax(Switched(), loss=lambda outputs, y: outputs[:, 0], sample=X[:1])
    assert model.apply_train is not None
    params = model.init(KEY)
    np.testing.assert_array_equal(model.apply_train(params, X, KEY), model.apply(params, X) + 1)
