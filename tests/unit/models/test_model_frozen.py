"""Models of which some parameters are frozen."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError

KEY = jax.random.key(0)
RNG = np.random.default_rng(2)
X: Any = RNG.normal(size=(60, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 60).astype(np.int32)
DATA = eh.data.from_arrays(X, Y, np.arange(60) % 5, test_fraction=0.2)
MODEL = models.mlp(4, classes=3, hidden=(8, 6))
START = jax.tree.map(np.asarray, MODEL.init(jax.random.key(7)))
FROZEN = ("dense_0", "dense_1/bias")


def frozen_model(frozen: Any = FROZEN, model: eh.types.Model = MODEL, params: Any = START) -> eh.types.Model:
    return models.freeze(model._replace(init=lambda key: jax.tree.map(jnp.array, params)), params, frozen)


def paths(params: Any) -> set[str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree.leaves_with_path(params)
    }


def close(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), a, b)


def same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


# --- parts and whole ----------------------------------------------------------------------------------------------


def test_the_parameters_are_those_that_no_pattern_takes() -> None:
    params = frozen_model().init(KEY)
    assert paths(params) == {"dense_1/kernel", "output/kernel", "output/bias"}
    assert paths(frozen_model("*/bias").init(KEY)) == {"dense_0/kernel", "dense_1/kernel", "output/kernel"}
    assert paths(frozen_model(["dense_*"]).init(KEY)) == {"output/kernel", "output/bias"}
    # The others are drawn as the model draws them.
    drawn = models.freeze(MODEL, START, FROZEN).init(KEY)
    same(drawn["output"], MODEL.init(KEY)["output"])


def test_outputs_are_those_of_the_whole_and_thaw_gives_it() -> None:
    frozen = frozen_model()
    params = jax.tree.map(lambda leaf: leaf + 1.0, frozen.init(KEY))
    whole = models.thaw(frozen, params)
    assert paths(whole) == paths(START)
    same(whole["dense_0"], START["dense_0"])
    same(whole["output"], params["output"])
    same(frozen.apply(params, X), MODEL.apply(whole, X))
    assert not np.allclose(frozen.apply(params, X), MODEL.apply(START, X))


def test_freezing_nothing_is_the_model() -> None:
    assert models.freeze(MODEL, START, ()) is MODEL
    assert models.freeze(MODEL, START, []) is MODEL


def test_values_are_kept_whatever_becomes_of_the_callers_arrays() -> None:
    params = jax.tree.map(np.array, START)
    frozen = frozen_model(params=params)
    params["dense_0"]["kernel"][:] = 0.0
    same(models.thaw(frozen, frozen.init(KEY))["dense_0"], START["dense_0"])
    gone = jax.tree.map(jnp.array, START)
    frozen = frozen_model(params=gone)
    started = frozen.init(KEY)
    gone["dense_0"]["kernel"].delete()
    same(models.thaw(frozen, started)["dense_0"], START["dense_0"])


def test_a_frozen_model_can_be_frozen_further_given_another_loss_or_units() -> None:
    once = frozen_model("dense_0")
    twice = models.freeze(once, once.init(KEY), "dense_1")
    params = twice.init(KEY)
    assert paths(params) == {"output/kernel", "output/bias"}
    same(models.thaw(twice, params), START)
    judged = models.with_loss(twice, models.losses.focal(gamma=2.0))
    same(models.thaw(judged, params), START)
    line = models.linear_regression(4)
    weights = {"kernel": np.ones((4, 1), np.float32), "bias": np.zeros(1, np.float32)}
    units = models.standardized(models.freeze(line, weights, "kernel"), mean=3.0, deviation=2.0)
    same(models.thaw(units, {"bias": np.ones(1, np.float32)}), {**weights, "bias": np.ones(1, np.float32)})


def test_trees_of_any_kind_can_be_frozen_in_part() -> None:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        (first, second), scale = params
        return (x @ first) * scale["by"][None] + second[None]

    start = ((jnp.ones((4, 3)), jnp.arange(3.0)), {"by": jnp.ones(3)})
    model = models.from_functions(lambda key: start, apply, models.cross_entropy)
    frozen = models.freeze(model, start, ("0/0", "1"))
    params = frozen.init(KEY)
    assert paths(params) == {"0/1"}
    same(models.thaw(frozen, params), start)
    same(frozen.apply(params, X), apply(start, X))


def test_dropout_of_a_frozen_model_draws_from_the_key_of_the_step() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            hidden = nn.Dense(32, name="inward")(x)
            return nn.Dense(3, name="outward")(nn.Dropout(0.5, deterministic=not train)(hidden))

    model = models.from_flax(Net(), loss="cross_entropy", sample=X[:1])
    start = model.init(KEY)
    frozen = models.freeze(model, start, "inward")
    assert frozen.apply_train is not None and model.apply_train is not None
    params = {"outward": start["outward"]}
    same(frozen.apply_train(params, X, KEY), model.apply_train(start, X, KEY))
    assert not np.allclose(frozen.apply_train(params, X, KEY), frozen.apply(params, X))
    assert models.freeze(MODEL, START, "dense_0").apply_train is None


# --- training is that of the whole with a mask ----------------------------------------------------------------------


def masked(optimiser: optax.GradientTransformation, frozen: Any = FROZEN) -> optax.GradientTransformation:
    """Zeroes the gradients of what is frozen."""
    names = (frozen,) if isinstance(frozen, str) else frozen

    def zeroed(tree: Any) -> Any:
        def kept(path: Any, leaf: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return leaf * 0 if any(f"{name}/".startswith(f"{word}/") for word in names) else leaf

        return jax.tree.map_with_path(kept, tree)

    mask = optax.stateless(lambda updates, params: zeroed(updates))
    return optax.chain(mask, optimiser)


METHODS = {
    "fedavg": lambda work: eh.algorithms.fedavg(work),
    "ditto": lambda work: eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.5),
}


@pytest.mark.parametrize("method", METHODS)
def test_training_is_that_of_the_whole_with_zeros_for_gradients(method: str) -> None:
    def trained(model: eh.types.Model, optimiser: optax.GradientTransformation) -> Any:
        work = eh.local.sgd(model, optimiser, epochs=2, batch_size=4)
        return eh.simulate(METHODS[method](work), DATA, rounds=3, start=model.init(KEY))

    frozen = frozen_model()
    whole = trained(MODEL._replace(init=lambda key: jax.tree.map(jnp.array, START)), masked(optax.sgd(0.3)))
    part = trained(frozen, optax.sgd(0.3))
    close(models.thaw(frozen, part.params), whole.params)
    same(models.thaw(frozen, part.params)["dense_0"], START["dense_0"])
    assert not np.allclose(whole.params["output"]["kernel"], START["output"]["kernel"], atol=1e-2)
    for split in ("train", "test"):
        np.testing.assert_allclose(part.clients[split]["loss"], whole.clients[split]["loss"], rtol=1e-4)
    if method == "ditto":
        for client in range(5):
            close(models.thaw(frozen, part.personal_params(client)), whole.personal_params(client))


def private_steps(model: eh.types.Model, split: Any, clip: float) -> Any:
    """Gradients of single examples by hand, clipped and added, for three steps on all rows."""
    params, x, y = model.init(KEY), jnp.asarray(split.x), jnp.asarray(split.y)
    count = len(x)
    for _ in range(3):
        one = lambda params, x, y: model.losses(model.apply(params, x[None]), y[None])[0]  # noqa: E731
        rows = jax.vmap(jax.grad(one), (None, 0, 0))(params, x, y)
        norms = jnp.sqrt(sum(jnp.sum(leaf.reshape(count, -1) ** 2, axis=1) for leaf in jax.tree.leaves(rows)))
        scale = jnp.minimum(1.0, clip / norms)
        means = jax.tree.map(lambda leaf, scale=scale: jnp.tensordot(scale, leaf, 1) / count, rows)
        params = jax.tree.map(lambda leaf, mean: leaf - 0.5 * mean, params, means)
    return params


def test_a_clip_sees_the_trained_coordinates_alone() -> None:
    frozen = frozen_model()
    data = eh.data.from_arrays(X, Y, np.zeros(60, np.int32))
    work = eh.privacy.dp_sgd(frozen, 0.5, clip=0.2, noise_multiplier=0.0, rate=1.0, steps=3)
    run = eh.simulate(eh.algorithms.alone(work), data, rounds=1, start=frozen.init(KEY))
    params = run.personal_params(0)
    close(params, private_steps(frozen, data.train, 0.2))
    # A clip of the whole gradient, of which frozen coordinates are a part, would cut more.
    whole = private_steps(MODEL._replace(init=lambda key: START), data.train, 0.2)
    assert np.abs(np.asarray(params["output"]["kernel"]) - whole["output"]["kernel"]).max() > 1e-3


def test_frozen_parameters_are_neither_sent_nor_kept() -> None:
    def run_of(model: eh.types.Model) -> Any:
        work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
        return eh.simulate(
            eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.5), DATA, rounds=1
        )

    def numbers_of(tree: Any) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    frozen, whole = run_of(frozen_model("dense_*")), run_of(MODEL)
    trained, constant = 6 * 3 + 3, 4 * 8 + 8 + 8 * 6 + 6
    assert (numbers_of(frozen.params), numbers_of(whole.params)) == (trained, trained + constant)
    for way in ("down", "up"):
        assert whole.info["floats"][way] - frozen.info["floats"][way] == constant
    kept = [numbers_of(run.state.clients) for run in (frozen, whole)]
    assert kept[1] - kept[0] == 5 * constant and kept[0] >= 5 * trained


# --- adapters and what is refused -------------------------------------------------------------------------------------


def test_a_module_that_holds_its_parameters_is_frozen_in_one_call() -> None:
    module = nnx.Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(1)), nnx.Linear(8, 3, rngs=nnx.Rngs(2)))
    model = models.from_flax(module, loss="cross_entropy", sample=X[:1], frozen="layers/0")
    params = model.init(KEY)
    assert paths(params) == {"layers/1/kernel", "layers/1/bias"}
    same(models.thaw(model, params), nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    same(model.apply(params, X), module(X))
    assert models.from_flax(module, loss="cross_entropy", sample=X[:1], frozen=()).name == "Sequential"


def test_an_equinox_module_is_frozen_in_one_call_and_comes_back_whole() -> None:
    eqx: Any = pytest.importorskip("equinox")
    module = eqx.nn.MLP(4, 3, width_size=8, depth=1, key=KEY)
    model = models.from_equinox(module, loss="cross_entropy", sample=X[:1], frozen="layers/0")
    params = model.init(KEY)
    assert paths(params) == {"layers/1/weight", "layers/1/bias"}
    back = models.to_equinox(module, models.thaw(model, params))
    np.testing.assert_array_equal(back.layers[0].weight, module.layers[0].weight)
    with pytest.raises(EvenhandError, match="have no layers/0/weight"):
        models.to_equinox(module, params)
    with pytest.raises(EvenhandError, match=r"from_equinox\(frozen='layers/0'\).*drawn from a key"):
        models.from_equinox(lambda key: module, loss="cross_entropy", sample=X[:1], frozen="layers/0")


@pytest.mark.parametrize("module", [nn.Dense(3), lambda rngs: nnx.Linear(4, 3, rngs=rngs)])
def test_what_is_drawn_from_a_key_has_no_values_to_keep(module: Any) -> None:
    with pytest.raises(
        EvenhandError, match=r"from_flax\(frozen='kernel'\).*eh\.models\.freeze\(model, params"
    ):
        models.from_flax(module, loss="cross_entropy", sample=X[:1], frozen="kernel")


@pytest.mark.parametrize(
    ("frozen", "words"),
    [
        (
            "dense0",
            r"frozen='dense0': no parameter has that path \(perhaps you meant dense_0\); the model has dense_0",
        ),
        (("output", "head"), "frozen='head': no parameter has that path"),
        ("*", "frozen='\\*': that is all parameters of mlp.*nothing is left to train"),
        (("dense_*", "output"), "nothing is left to train"),
        (3, "3 does not say which parameters: give paths"),
        (lambda params: params, "does not say which parameters"),
    ],
)
def test_patterns_that_take_nothing_or_everything_are_refused(frozen: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        models.freeze(MODEL, START, frozen)


def test_other_parameters_and_models_are_refused() -> None:
    with pytest.raises(EvenhandError, match=r"params has dense_0/bias.*and the model has .*output/kernel"):
        models.freeze(MODEL, {"dense_0": START["dense_0"]}, "dense_0")
    narrow = {**START, "output": {"bias": np.zeros(2, np.float32), "kernel": START["output"]["kernel"]}}
    with pytest.raises(EvenhandError, match=r"shape \(2,\) at output/bias, and the model has \(3,\)"):
        models.freeze(MODEL, narrow, "dense_0")
    with pytest.raises(EvenhandError, match="model= got an instance of flax's Dense"):
        models.freeze(nn.Dense(3), START, "dense_0")  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError, match=r"no parameter of mlp.* is frozen"):
        models.thaw(MODEL, START)
    with pytest.raises(EvenhandError, match="have no dense_1/kernel"):
        models.thaw(frozen_model(), {"output": {"kernel": START["output"]["kernel"]}})
    with pytest.raises(EvenhandError, match=r"thaw: params has shape \(1,\) at .*, and freeze\(mlp"):
        models.thaw(frozen_model(), jax.tree.map(lambda leaf: np.ones(1), frozen_model().init(KEY)))
