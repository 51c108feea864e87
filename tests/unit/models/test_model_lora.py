"""Models with low-rank factors: what they compute, which parameters get factors, and what is refused."""

from __future__ import annotations

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

KEY = jax.random.key(0)
RNG = np.random.default_rng(5)
X: Any = RNG.normal(size=(60, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 60).astype(np.int32)
DATA = eh.data.from_arrays(X, Y, np.arange(60) % 5, test_fraction=0.2)
MODEL = models.mlp(4, classes=3, hidden=(8, 6))
START = jax.tree.map(np.asarray, MODEL.init(jax.random.key(7)))


def moved(params: Any, size: float = 0.5) -> Any:
    """Parameters at which no factor is zero."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: leaf + jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) * size, params
    )


def shapes(params: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(params)
    }


def same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a: Any, b: Any, rtol: float = 2e-5) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=2e-6), a, b)


# --- what is computed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", ["both", "b"])
def test_the_first_model_is_the_pretrained_one_bit_for_bit(train: Any) -> None:
    small = models.lora(MODEL, START, rank=2, on="*", alpha=16.0, train=train)
    params = small.init(KEY)
    same(small.apply(params, X), MODEL.apply(START, X))
    same(models.thaw(small, params), START)
    assert not np.allclose(small.apply(moved(params), X), MODEL.apply(START, X), atol=0.1)


def test_weights_are_those_of_the_pretrained_model_plus_the_scaled_product() -> None:
    small = models.lora(MODEL, START, rank=3, on=("dense_0", "dense_1"), alpha=6.0, also="output")
    params = moved(small.init(KEY))
    whole = models.thaw(small, params)
    for layer in ("dense_0", "dense_1"):
        a, b = (np.asarray(params[layer]["kernel"][part], np.float64) for part in "ab")
        np.testing.assert_allclose(
            whole[layer]["kernel"], START[layer]["kernel"] + 2.0 * (b @ a).T, atol=1e-5
        )
        same(whole[layer]["bias"], START[layer]["bias"])
    same(whole["output"], params["output"])
    close(small.apply(params, X), MODEL.apply(whole, X))


def test_a_is_gaussian_with_one_over_the_inputs_as_its_variance_and_b_is_zero() -> None:
    wide = models.mlp(400, classes=3, hidden=(50,))
    small = models.lora(wide, wide.init(KEY), rank=50, on="dense_0/kernel")
    factors = small.init(KEY)["dense_0"]["kernel"]
    assert not np.any(factors["b"])
    a = np.asarray(factors["a"]) * 20.0
    assert a.shape == (50, 400)
    assert abs(a.mean()) < 0.03 and abs(a.std() - 1) < 0.02 and abs((a**4).mean() - 3) < 0.2
    assert np.any(factors["a"] != small.init(jax.random.key(1))["dense_0"]["kernel"]["a"])


def test_gradients_are_those_of_the_chain_rule_on_a_linear_model() -> None:
    line = models.linear_regression(4, outputs=3)
    start = {"kernel": RNG.normal(size=(4, 3)).astype(np.float32), "bias": np.zeros(3, np.float32)}
    targets: Any = RNG.normal(size=(60, 3)).astype(np.float32)
    small = models.lora(line, start, rank=2, on="kernel", alpha=3.0)
    params = moved(small.init(KEY))

    def loss(params: Any) -> jax.Array:
        return jnp.mean(small.losses(small.apply(params, X), targets))

    gradient = jax.grad(loss)(params)["kernel"]
    a, b = (np.asarray(params["kernel"][part], np.float64) for part in "ab")
    weights = start["kernel"].T + 1.5 * b @ a
    # The mean over rows and components of (x W^T - y)^2.
    slope = 2.0 * (X @ weights.T - targets).T @ X / targets.size
    np.testing.assert_allclose(gradient["a"], 1.5 * b.T @ slope, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient["b"], 1.5 * slope @ a.T, rtol=1e-4, atol=1e-5)


def test_a_fixed_a_is_drawn_from_the_seed_and_is_no_parameter() -> None:
    def made(seed: int) -> eh.types.Model:
        return models.lora(MODEL, START, rank=2, on="dense_0", train="b", seed=seed)

    params = made(3).init(KEY)
    assert shapes(params) == {"dense_0/kernel/b": (8, 2)}
    same(params, made(3).init(jax.random.key(1)))
    params = moved(params)
    same(models.thaw(made(3), params), models.thaw(made(3), params))
    kernels = [np.asarray(models.thaw(made(seed), params)["dense_0"]["kernel"]) for seed in (3, 4)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1


def test_dropout_draws_from_the_key_of_the_step() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            hidden = nn.Dense(32, name="attention")(x)
            return nn.Dense(3, name="outward")(nn.Dropout(0.5, deterministic=not train)(hidden))

    model = models.from_flax(Net(), loss="cross_entropy", sample=X[:1])
    start = model.init(KEY)
    small = models.lora(model, start, rank=2)
    params = moved(small.init(KEY))
    assert small.apply_train is not None and model.apply_train is not None
    close(small.apply_train(params, X, KEY), model.apply_train(models.thaw(small, params), X, KEY))
    assert not np.allclose(small.apply_train(params, X, KEY), small.apply(params, X), atol=0.1)
    assert models.lora(MODEL, START, rank=2, on="*").apply_train is None


def test_weights_of_16_bits_have_factors_of_32() -> None:
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), START)
    model = MODEL._replace(init=lambda key: half)
    small = models.lora(model, half, rank=2, on="dense_0")
    params = small.init(KEY)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    assert models.thaw(small, moved(params))["dense_0"]["kernel"].dtype == jnp.bfloat16
    same(models.thaw(small, params), half)


# --- which parameters have factors ----------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention whose queries are wider than the inputs, so that shapes alone do not tell the axes."""

    biased: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.MultiHeadDotProductAttention(
            num_heads=2, qkv_features=10, use_bias=self.biased, name="attention"
        )(x[..., None] * jnp.arange(1.0, 7.0)[None, None])
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(hidden).reshape(x.shape[0], -1))


@pytest.mark.parametrize("biased", [True, False])
def test_kernels_of_attention_are_grouped_into_inputs_and_outputs(biased: bool) -> None:
    model = models.from_flax(Block(biased), loss="cross_entropy", sample=X[:1])
    start = model.init(KEY)
    assert start["attention"]["query"]["kernel"].shape == (6, 2, 5)
    small = models.lora(model, start, rank=2)
    params = moved(small.init(KEY))
    ways = {f"attention/{name}/kernel/a": (2, 6) for name in ("query", "key", "value")}
    ways |= {f"attention/{name}/kernel/b": (10, 2) for name in ("query", "key", "value")}
    assert shapes(params) == ways | {"attention/out/kernel/a": (2, 10), "attention/out/kernel/b": (6, 2)}
    whole = models.thaw(small, params)
    for name, rows in (("query", 6), ("out", 10)):
        a, b = (np.asarray(params["attention"][name]["kernel"][part]) for part in "ab")
        change = whole["attention"][name]["kernel"] - start["attention"][name]["kernel"]
        np.testing.assert_allclose(np.asarray(change).reshape(rows, -1), (b @ a).T, atol=2e-6)


def test_an_nnx_module_has_the_same_kernels() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attn = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
            self.head = nnx.Linear(8, 3, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(self.attn(jnp.repeat(x[:, :, None], 8, axis=2)).mean(axis=1))

    net = Net(nnx.Rngs(0))
    model = models.from_flax(net, loss="cross_entropy", sample=X[:1])
    small = models.lora(model, model.init(KEY), rank=4)
    assert shapes(small.init(KEY))["attn/query/kernel/b"] == (8, 4)
    same(small.apply(small.init(KEY), X), net(X))


def test_names_and_axes_decide_what_is_a_matrix() -> None:
    start = {
        "conv": {"kernel": jnp.ones((3, 3, 4, 5)), "bias": jnp.ones(5)},
        "spread": {"kernel": jnp.ones((4, 2, 3)), "bias": jnp.ones((2, 3))},
        "torch": {"weight": jnp.ones((6, 4, 3, 3)), "in_proj_weight": jnp.ones((12, 4))},
        "plain": [jnp.ones((4, 3)), jnp.ones((2, 4, 3))],
        "norm": {"scale": jnp.ones((4, 4)), "bias": jnp.ones((4, 4))},
    }
    model = models.from_functions(lambda key: start, lambda params, x: x, models.cross_entropy)
    small = models.lora(model, start, rank=1, on="*")
    assert shapes(small.init(KEY)) == {
        "conv/kernel/a": (1, 36),
        "conv/kernel/b": (5, 1),
        "spread/kernel/a": (1, 4),
        "spread/kernel/b": (6, 1),
        "torch/weight/a": (1, 36),
        "torch/weight/b": (6, 1),
        "torch/in_proj_weight/a": (1, 4),
        "torch/in_proj_weight/b": (12, 1),
        "plain/0/a": (1, 4),
        "plain/0/b": (3, 1),
    }
    params = moved(small.init(KEY))
    whole = models.thaw(small, params)
    assert jax.tree.structure(whole) == jax.tree.structure(start)
    a, b = (np.asarray(params["torch"]["in_proj_weight"][part]) for part in "ab")
    np.testing.assert_allclose(whole["torch"]["in_proj_weight"], 1.0 + b @ a, rtol=1e-6)


def test_attention_is_a_word_in_names_of_any_case() -> None:
    def chosen(on: Any, *names: str) -> set[str]:
        start = {name: {"weight": jnp.ones((3, 3))} for name in (*names, "mlp")}
        model = models.from_functions(lambda key: start, lambda params, x: x, models.cross_entropy)
        return set(models.lora(model, start, rank=1, on=on).init(KEY))

    names = ("self_attn", "MultiHeadDotProductAttention_0", "attention", "c_attn")
    assert chosen("attention", *names) == set(names)
    assert chosen(("attention", "ml*"), *names) == {*names, "mlp"}
    assert chosen(["mlp"], *names) == {"mlp"}


def test_also_trains_in_full_what_on_would_give_factors() -> None:
    small = models.lora(MODEL, START, rank=2, on="*", also=("output", "*/bias"))
    params = small.init(KEY)
    assert {name for name in shapes(params) if name[-2:] not in ("/a", "/b")} == {
        "dense_0/bias",
        "dense_1/bias",
        "output/bias",
        "output/kernel",
    }
    same(params["output"], START["output"])


def test_an_equinox_module_comes_back_with_the_product_in_its_weights() -> None:
    eqx: Any = pytest.importorskip("equinox")
    module = eqx.nn.MLP(4, 3, width_size=8, depth=1, key=KEY)
    model = models.from_equinox(module, loss="cross_entropy", sample=X[:1])
    small = models.lora(model, model.init(KEY), rank=2, on="layers/0")
    params = moved(small.init(KEY))
    assert shapes(params) == {"layers/0/weight/a": (2, 4), "layers/0/weight/b": (8, 2)}
    back = models.to_equinox(module, models.thaw(small, params))
    close(jax.vmap(back)(X), small.apply(params, X))


# --- around and inside other models ---------------------------------------------------------------------------------


def test_frozen_models_losses_and_units_go_around_factors_and_inside() -> None:
    inside = models.freeze(MODEL, START, "dense_0")
    small = models.lora(inside, inside.init(jax.random.key(7)), rank=2, on="dense_1")
    params = moved(small.init(KEY))
    whole = models.thaw(small, params)
    close(small.apply(params, X), MODEL.apply(whole, X))
    same(whole["dense_0"], START["dense_0"])

    both = models.lora(MODEL, START, rank=2, on=("dense_0", "dense_1"))
    begin = moved(both.init(KEY))
    around = models.freeze(both, begin, "*/a")
    assert all(name.endswith("/b") for name in shapes(around.init(KEY)))
    close(
        around.apply({name: {"kernel": {"b": begin[name]["kernel"]["b"]}} for name in begin}, X),
        both.apply(begin, X),
    )
    judged = models.with_loss(both, models.losses.focal(gamma=2.0))
    same(models.thaw(judged, begin), models.thaw(both, begin))

    line = models.linear_regression(4)
    weights = {"kernel": np.ones((4, 1), np.float32), "bias": np.zeros(1, np.float32)}
    units = models.standardized(models.lora(line, weights, rank=1, on="kernel"), mean=3.0, deviation=2.0)
    params = moved(units.init(KEY))
    close(
        units.apply(params, X),
        3.0 + 2.0 * np.asarray(line.apply(models.thaw(units, params), X)),
    )


def test_running_statistics_are_measured_with_the_product_in_the_weights() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            hidden = nn.Dense(8, name="inward")(x)
            return nn.Dense(3, name="outward")(nn.BatchNorm(not train, momentum=0.5, name="norm")(hidden))

    model = models.from_flax(Net(), loss="cross_entropy", sample=X[:1], state="average")
    start = model.init(KEY)
    small = models.lora(model, start, rank=2, on="inward")
    begin = moved(small.init(KEY), 0.2)
    assert model.statistics is not None and set(small.init(KEY)) == {"inward", "norm"}
    begin["norm"] = small.init(KEY)["norm"]
    work = eh.local.sgd(small, 0.0, steps=1)
    alone = eh.data.from_arrays(X, Y, np.zeros(60, np.int32))
    run = eh.simulate(eh.algorithms.fedavg(work), alone, rounds=1, start=begin)
    hidden = np.asarray(alone.train.x) @ np.asarray(models.thaw(small, begin)["inward"]["kernel"])
    hidden += np.asarray(start["inward"]["bias"])
    np.testing.assert_allclose(run.params["norm"]["mean"], 0.5 * hidden.mean(axis=0), atol=1e-5)
    same(run.params["inward"], begin["inward"])


# --- local work and methods -----------------------------------------------------------------------------------------


def test_examples_gradients_are_clipped_over_both_factors() -> None:
    small = models.lora(MODEL, START, rank=2, on=("dense_0", "dense_1"), also="output/bias")
    begin = moved(small.init(KEY))
    data = eh.data.from_arrays(X, Y, np.zeros(60, np.int32))
    work = eh.privacy.dp_sgd(small, 0.5, clip=0.9, noise_multiplier=0.0, rate=1.0, steps=2)
    run = eh.simulate(eh.algorithms.alone(work), data, rounds=1, start=begin)

    params, x, y = begin, jnp.asarray(data.train.x), jnp.asarray(data.train.y)
    cut = 0
    for _ in range(2):

        def loss(params: Any, x: Any, y: Any) -> jax.Array:
            return small.losses(small.apply(params, x[None]), y[None])[0]

        rows = [jax.grad(loss)(params, x[i], y[i]) for i in range(len(x))]
        total = jax.tree.map(jnp.zeros_like, params)
        for row in rows:
            norm = np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(row)))
            cut += norm > 0.9
            scale = 0.9 / max(0.9, norm)
            total = jax.tree.map(lambda t, g, s=scale: t + s * g, total, row)
        params = jax.tree.map(lambda w, t: w - 0.5 * t / len(x), params, total)
    close(run.personal_params(0), params, rtol=1e-4)
    assert 0 < cut < 2 * len(x), "the clip cuts some, and not all"


def test_what_is_frozen_is_neither_sent_nor_kept() -> None:
    def run_of(**how: Any) -> Any:
        model = models.lora(MODEL, START, rank=2, on=("dense_0", "dense_1"), also="output", **how)
        work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
        method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.5)
        run = eh.simulate(method, DATA, rounds=2)
        kept = sum(leaf.size for leaf in jax.tree.leaves(run.state.clients))
        return run.info["floats"], kept, run

    output = 6 * 3 + 3
    b, a = 2 * (8 + 6), 2 * (4 + 8)
    traffic, kept, run = run_of()
    assert (traffic["down"], traffic["up"]) == (a + b + output, a + b + output + 1)
    assert kept == 5 * (a + b + output)
    assert models.thaw(run.algorithm.model, run.personal_params(1))["dense_0"]["kernel"].shape == (4, 8)
    traffic, kept, run = run_of(train="b")
    assert (traffic["down"], traffic["up"]) == (b + output, b + output + 1)
    assert kept == 5 * (b + output)


def test_each_client_may_keep_its_own_b() -> None:
    small = models.lora(MODEL, START, rank=2, on="dense_0")
    work = eh.local.sgd(small, 0.5, epochs=1, batch_size=4)
    run = eh.simulate(eh.personalization.fedalt(work, personal="*/b"), DATA, rounds=2)
    assert run.info["floats"]["up"] == 2 * 4 + 1
    b = [np.asarray(run.personal_params(k)["dense_0"]["kernel"]["b"]) for k in range(2)]
    assert np.abs(b[0] - b[1]).max() > 1e-3


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {},
            "on='attention': no parameter is below a name that contains attention or attn; the model has dense_0",
        ),
        ({"on": "dense0"}, r"on='dense0': no parameter has that path \(perhaps you meant dense_0\)"),
        ({"on": "*/bias"}, r"on='\*/bias': these patterns take no matrix, only dense_0/bias"),
        ({"on": "output", "also": "output"}, "take no matrix, only nothing that is not in also="),
        ({"on": 3}, "3 does not say which parameters"),
        ({"on": "*", "also": "head"}, "also='head': no parameter has that path"),
        (
            {"on": "*", "rank": 4},
            r"lora\(rank=4\): output/kernel has 6 inputs and 3 outputs.*also='output/kernel'",
        ),
        ({"on": "*", "rank": 0}, r"lora\(rank=\)=0: give a whole number from 1"),
        ({"on": "*", "rank": 2.5}, r"lora\(rank=\)=2.5: give a whole number"),
        ({"on": "*", "alpha": 0.0}, r"lora\(alpha=0.0\): give a finite number above 0, such as alpha=2"),
        ({"on": "*", "alpha": "big"}, "alpha='big'"),
        ({"on": "*", "train": "a"}, r"lora\(train='a'\): give 'both', or 'b'"),
        ({"on": "*", "seed": -1}, r"lora\(seed=\)=-1: give a whole number from 0"),
    ],
)
def test_arguments_that_make_no_factors_are_refused(how: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        models.lora(MODEL, START, **{"rank": 2, **how})


def test_other_parameters_and_models_are_refused() -> None:
    with pytest.raises(EvenhandError, match="params has no array at dense_1/bias, and the model has shape"):
        models.lora(MODEL, {"dense_0": START["dense_0"]}, rank=2, on="*")
    wide = {**START, "output": {"bias": np.zeros(5, np.float32), "kernel": START["output"]["kernel"]}}
    with pytest.raises(EvenhandError, match=r"shape \(5,\) at output/bias, and the model has shape \(3,\)"):
        models.lora(MODEL, wide, rank=2, on="*")
    with pytest.raises(EvenhandError, match=r"params has shape .* at head, and the model has no array"):
        models.lora(MODEL, {**START, "head": np.zeros(2)}, rank=2, on="*")
    with pytest.raises(EvenhandError, match="model= got an instance of flax's Dense"):
        models.lora(nn.Dense(3), START)  # pyright: ignore[reportArgumentType]
    small = models.lora(MODEL, START, rank=2, on="dense_0")
    with pytest.raises(EvenhandError, match="have no dense_0/kernel/b, which this model has"):
        models.thaw(small, {"dense_0": {"kernel": {"a": np.zeros((2, 4))}}})
    with pytest.raises(EvenhandError, match="have no dense_0/kernel/a, which this model has"):
        models.thaw(small, START)
    with pytest.raises(EvenhandError, match=r"thaw: params has shape \(1,\) at dense_0/kernel/a"):
        models.thaw(small, jax.tree.map(lambda leaf: np.ones(1), small.init(KEY)))


@pytest.mark.parametrize(
    ("shapes", "is_stack"),
    [
        ({"kernel": (3, 4, 5), "bias": (3, 5)}, True),
        ({"kernel": (3, 8, 2, 4), "bias": (3, 2, 4)}, True),
        ({"weight": (3, 5, 4), "bias": (3, 5)}, True),
        ({"kernel": (8, 2, 4), "bias": (2, 4)}, False),
        ({"kernel": (2, 4, 8), "bias": (8,)}, False),
        ({"weight": (5, 4, 3, 3), "bias": (5, 1, 1)}, False),
    ],
    ids=str,
)
def test_a_stack_of_layers_is_no_matrix(shapes: dict[str, tuple[int, ...]], is_stack: bool) -> None:
    """As nn.scan and vmap make them; kernels of attention and convolutions of equinox are none."""
    model = models.from_functions(
        init=lambda key: {"block": {name: jnp.zeros(shape) for name, shape in shapes.items()}},
        apply=lambda params, x: x[:, :1],
        losses=models.cross_entropy,
    )
    params = model.init(jax.random.key(0))
    if not is_stack:
        models.lora(model, params, rank=1, on="*")
        return
    with pytest.raises(EvenhandError, match="that is a stack of 3 layers"):
        models.lora(model, params, rank=1, on="*")
