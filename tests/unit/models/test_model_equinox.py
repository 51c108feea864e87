"""Models of equinox modules, which take one example."""

from __future__ import annotations

import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError

eqx: Any = pytest.importorskip("equinox")

KEY = jax.random.key(0)
X: Any = np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12, dtype=np.int32) % 3


class Net(eqx.Module):
    """Dropout between two layers, and an integer array that is no parameter."""

    inward: Any
    outward: Any
    dropout: Any
    order: jax.Array

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.inward = eqx.nn.Linear(4, 64, key=first)
        self.outward = eqx.nn.Linear(64, 3, key=second)
        self.dropout = eqx.nn.Dropout(0.5)
        self.order = jnp.array([3, 2, 1, 0])

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        key, _ = jax.random.split(key)
        hidden = jax.nn.relu(self.inward(x[self.order]))
        return self.outward(self.dropout(hidden, key=key))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.relu(nn.Dense(8)(x))
        return nn.Dense(3)(hidden)


def perceptron(key: jax.Array) -> Any:
    return eqx.nn.MLP(4, 3, width_size=8, depth=1, key=key)


def model_of(module: Any, loss: Any = "cross_entropy") -> eh.types.Model:
    return models.from_equinox(module, loss=loss, sample=X[:1])


def same(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_the_arrays_of_a_module_are_the_start_and_a_function_draws_them() -> None:
    module = Net(jax.random.key(7))
    params = model_of(module).init(KEY)
    assert same(params, model_of(module).init(jax.random.key(1)))
    assert set(params) == {"inward", "outward"}
    np.testing.assert_array_equal(params["inward"]["weight"], module.inward.weight)
    drawn = model_of(Net)
    assert same(drawn.init(jax.random.key(7)), params) and not same(drawn.init(KEY), params)


def test_each_row_is_what_the_module_makes_of_it_in_evaluation() -> None:
    module = Net(jax.random.key(7))
    model = model_of(module)
    still = eqx.nn.inference_mode(module)
    rows = np.stack([still(row, key=KEY) for row in X])
    np.testing.assert_allclose(model.apply(model.init(KEY), X), rows, rtol=1e-5, atol=1e-6)
    assert model.apply(model.init(KEY), X[:0]).shape == (0, 3)


def test_in_training_each_row_has_a_key_of_its_own_from_that_of_the_step() -> None:
    model = model_of(Net(jax.random.key(7)))
    assert model.apply_train is not None
    params, train = model.init(KEY), jax.jit(model.apply_train)
    rows = np.repeat(X[:1], 6, axis=0)
    first, again, other = (np.asarray(train(params, rows, jax.random.key(k))) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(np.unique(first.round(5), axis=0)) == 6
    mean = np.mean(
        jax.vmap(model.apply_train, (None, None, 0))(params, X, jax.random.split(KEY, 400)), axis=0
    )
    np.testing.assert_allclose(mean, model.apply(params, X), atol=0.35)


def test_flags_of_the_module_do_not_decide_which_pass_it_is() -> None:
    module = eqx.nn.inference_mode(Net(jax.random.key(7)))
    model, other = model_of(module), model_of(Net(jax.random.key(7)))
    assert model.apply_train is not None and other.apply_train is not None
    params = model.init(KEY)
    np.testing.assert_array_equal(model.apply_train(params, X, KEY), other.apply_train(params, X, KEY))


def test_a_module_that_draws_nothing_has_no_pass_of_its_own_for_training() -> None:
    assert model_of(perceptron).apply_train is None
    normal = eqx.nn.Sequential([eqx.nn.LayerNorm(4), eqx.nn.Linear(4, 3, key=KEY)])
    assert model_of(normal).apply_train is None
    dropped = eqx.nn.Sequential([eqx.nn.Linear(4, 3, key=KEY), eqx.nn.Dropout(0.5)])
    assert model_of(dropped).apply_train is not None


@pytest.mark.parametrize("module", [perceptron(KEY), Net], ids=["instance", "drawn"])
def test_a_model_that_was_sent_to_another_process_is_the_same(module: Any) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    model = model_of(module)
    sent = cloudpickle.loads(cloudpickle.dumps(model))
    params = sent.init(KEY)
    assert same(params, model.init(KEY))
    assert same(sent.apply(params, X), model.apply(params, X))


def as_equinox(params: Any) -> Any:
    """Linen's parameters as those of the perceptron."""
    layers = (params["Dense_0"], params["Dense_1"])
    return {
        "layers": {i: {"weight": layer["kernel"].T, "bias": layer["bias"]} for i, layer in enumerate(layers)}
    }


@pytest.mark.parametrize("method", ["fedavg", "fedalt", "dp_sgd"])
def test_training_is_that_of_the_same_network_in_flax(method: str) -> None:
    def trained(model: eh.types.Model, head: str, start: Any) -> Any:
        if method == "dp_sgd":
            work = eh.privacy.dp_sgd(model, 0.5, clip=0.5, noise_multiplier=0.0, rate=0.5, steps=3)
            algorithm = eh.algorithms.fedavg(work)
        else:
            work = eh.local.sgd(model, 0.5, epochs=2, batch_size=2)
            averaged = eh.algorithms.fedavg(work)
            algorithm = averaged if method == "fedavg" else eh.personalization.fedalt(work, personal=head)
        data = eh.data.from_arrays(X, Y, np.arange(12) % 3)
        return eh.simulate(algorithm, data, rounds=3, start=start).params

    linen = models.from_flax(Linen(), loss="cross_entropy", sample=X[:1])
    start = jax.tree.map(np.asarray, linen.init(KEY))
    expected = as_equinox(trained(linen, "Dense_1", start))
    params = trained(model_of(perceptron), "layers/1", as_equinox(start))
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    assert not same(params, as_equinox(start))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), params, expected)


def test_a_trained_module_comes_back_and_the_first_one_is_not_changed() -> None:
    module = Net(jax.random.key(7))
    before = jax.tree.map(lambda leaf: np.array(leaf), eqx.filter(module, eqx.is_array))
    model = model_of(module)
    data = eh.data.from_arrays(X, Y, np.arange(12) % 3)
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.5, epochs=1, batch_size=2))
    run = eh.simulate(method, data, rounds=2)
    assert same(run.params, eh.simulate(method, data, rounds=2).params)  # the start is still there
    trained = models.to_equinox(module, run.params)
    assert isinstance(trained, Net) and trained.dropout.inference is module.dropout.inference
    still = eqx.nn.inference_mode(trained)
    rows = np.stack([still(row, key=KEY) for row in X])
    np.testing.assert_allclose(model.apply(run.params, X), rows, rtol=1e-5, atol=1e-6)
    assert same(before, jax.tree.map(lambda leaf: np.array(leaf), eqx.filter(module, eqx.is_array)))
    assert same(models.to_equinox(Net, run.params).inward.weight, run.params["inward"]["weight"])


def test_parameters_of_another_module_do_not_become_one() -> None:
    module = Net(jax.random.key(7))
    params = model_of(module).init(KEY)
    with pytest.raises(EvenhandError, match="has no array layers/0/bias"):
        models.to_equinox(module, model_of(perceptron).init(KEY))
    with pytest.raises(EvenhandError, match="have no inward/bias"):
        models.to_equinox(module, {**params, "inward": {"weight": params["inward"]["weight"]}})
    with pytest.raises(EvenhandError, match=r"inward/bias has shape \(\), and that of Net has \(64,\)"):
        models.to_equinox(module, {**params, "inward": {**params["inward"], "bias": jnp.float32(0.0)}})


class Keyless(eqx.Module):
    dropout: Any = eqx.nn.Dropout(0.5)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dropout(x)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (eqx.nn.BatchNorm(4, "batch", mode="batch"), "state in .*GroupNorm or LayerNorm"),
        (eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="batch"), "got tuple"),
        (
            lambda key: eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "b", mode="batch"),
            "GroupNorm or LayerNorm",
        ),
        (Keyless(), "give its __call__ an argument key"),
        (
            eqx.nn.Linear(7, 3, key=KEY),
            r"Linear fails on inputs float32\[., 4\] .*: give from_equinox a sample",
        ),
        (eqx.nn.Lambda(jnp.tanh), "Lambda, which has no parameters"),
        (Net, None),
        (eqx.nn.MLP, "got the class MLP itself"),
        (lambda key: 3, "must return an equinox.Module, but it returned int"),
        (None, "from_equinox got NoneType: give an equinox module, or a function"),
    ],
)
def test_modules_that_cannot_be_federated_are_refused(module: Any, words: str | None) -> None:
    if words is None:
        model_of(module)  # a class whose only argument is a key is a function that makes a module
        return
    with pytest.raises(EvenhandError, match=words):
        model_of(module)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda module: models.from_flax(module, loss="cross_entropy", sample=X[:1]),
        lambda module: models.from_flax(type(module), loss="cross_entropy", sample=X[:1]),
        lambda module: models.from_flax(lambda rngs: module, loss="cross_entropy", sample=X[:1]),
        lambda module: models.from_functions(module, module, models.hinge),
        lambda module: models.from_functions(lambda key: module, module, models.hinge),
        lambda module: eh.local.sgd(module, 0.1, epochs=1),
        lambda module: eh.centralized.fit(module, X, Y),
    ],
)
def test_a_module_in_the_wrong_place_gets_the_right_call(mistake: Any) -> None:
    with pytest.raises(EvenhandError, match=r"equinox.*eh\.models\.from_equinox"):
        mistake(perceptron(KEY))


@pytest.mark.parametrize("module", [nn.Dense(3), nnx.Linear(4, 3, rngs=nnx.Rngs(0))])
def test_a_module_of_flax_gets_the_right_call(module: Any) -> None:
    with pytest.raises(EvenhandError, match=r"a module of flax: give it to eh\.models\.from_flax"):
        models.from_equinox(module, loss="cross_entropy", sample=X[:1])


def test_functions_of_equinox_without_arrays_are_functions() -> None:
    apply = eqx.Partial(lambda scale, params, x: scale * (x @ params), 2.0)
    model = models.from_functions(lambda key: jnp.ones((4, 3)), apply, models.hinge)
    np.testing.assert_allclose(model.apply(jnp.ones((4, 3)), X), 2 * X @ np.ones((4, 3)), rtol=1e-5)


def test_without_equinox_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = perceptron(KEY)
    monkeypatch.setitem(sys.modules, "equinox", None)
    for call in (lambda: model_of(module), lambda: models.to_equinox(module, {})):
        with pytest.raises(EvenhandError, match=r"pip install 'evenhand\[equinox\]'"):
            call()
