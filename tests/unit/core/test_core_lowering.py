"""Lowered functions against the native ones: values, derivatives of all kinds, and what is left in the program."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from evenhand import local, models
from evenhand.data import Split
from evenhand.evaluation import _evaluate, evaluate_personal, prepare
from evenhand.lowering import lowered
from evenhand.types import ClientData, Model

RNG = np.random.default_rng(5)
START = RNG.bit_generator.state
KEY = jax.random.key(0)
Function = Callable[..., jax.Array]


@pytest.fixture(autouse=True)
def same_draws_in_any_order() -> None:
    RNG.bit_generator.state = START


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        scale = max(1.0, float(np.abs(np.asarray(other)).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


def score(function: Function, *operands: Any) -> jax.Array:
    return jnp.sum(jnp.sin(function(*operands)))


def gradients(function: Function, *operands: Any) -> Any:
    return jax.value_and_grad(partial(score, function), argnums=tuple(range(len(operands))))(*operands)


def program(function: Function, *operands: Any) -> str:
    return str(jax.make_jaxpr(partial(gradients, function))(*operands))


@jax.jit
def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pool(x: jax.Array) -> jax.Array:
    return nn.max_pool(x, (2, 2), (2, 2))


# --- convolutions ------------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Function, jax.Array, jax.Array]:
    rank = draw(st.integers(1, 3))
    space = "HWD"[:rank]

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    window, stretch, spread = each(1, 3), each(1, 2), each(1, 2)
    groups, channels, features = (draw(st.integers(1, 3)) for _ in range(3))
    reach = [(size - 1) * step + 1 for size, step in zip(window, stretch, strict=True)]
    sizes = [least + extra for least, extra in zip(reach, each(0, 4), strict=True)]
    sides = [(low, 1) for low in each(-1, 2)]
    padding = draw(st.sampled_from(["SAME", "VALID", sides] if spread == (1,) * rank else [sides]))
    numbers = ["".join(draw(st.permutations(letters + space))) for letters in ("NC", "IO", "NC")]
    x_lengths = {"N": 2, "C": channels * groups, **dict(zip(space, sizes, strict=True))}
    lengths = {"I": channels, "O": features * groups, **dict(zip(space, window, strict=True))}
    function = partial(
        lax.conv_general_dilated,
        window_strides=each(1, 3),
        padding=padding,
        lhs_dilation=spread,
        rhs_dilation=stretch,
        dimension_numbers=(numbers[0], numbers[1], numbers[2]),
        feature_group_count=groups,
    )
    x, kernel = (normal(*(a[k] for k in b)) for a, b in zip((x_lengths, lengths), numbers, strict=False))
    return function, x, kernel


@settings(max_examples=12)
@given(convolutions())
def test_convolutions_of_all_kinds_equal_the_native_ones(case: tuple[Function, jax.Array, jax.Array]) -> None:
    function, x, kernel = case
    assert "conv_general_dilated" not in program(lowered(function), x, kernel)
    native, ours = jax.jit(lambda *o: (gradients(function, *o), gradients(lowered(function), *o)))(x, kernel)
    close(ours, native)


def test_a_convolution_of_one_channel_puts_images_together() -> None:
    """The kernel's gradient is patches, as columns, times slopes; all derivatives are the native ones."""
    x, kernel, dx = normal(2, 7, 6, 1), normal(3, 2, 1, 4), normal(2, 7, 6, 1)
    for options in ({}, {"rhs_dilation": (2, 1)}, {"lhs_dilation": (1, 2)}):
        numbers = ("NHWC", "HWIO", "NHWC")
        function = partial(
            lax.conv_general_dilated,
            window_strides=(2, 1),
            padding=[(1, 0), (2, 1)],
            dimension_numbers=numbers,
            **options,
        )
        text = program(lowered(function), x, kernel)
        assert "conv_general_dilated" not in text and "dimension_numbers=(([0], [0]), ([], []))" in text
        for derivative in (
            gradients,
            lambda f, x, k: jax.jvp(lambda x: gradients(f, x, k), (x,), (dx,)),
        ):
            ours, native = (derivative(f, x, kernel) for f in (lowered(function), function))
            close(ours, native)


def test_a_window_that_fits_nowhere_gives_nothing() -> None:
    function = lowered(partial(lax.conv, window_strides=(1, 1), padding="VALID"))
    (z, slopes) = gradients(function, normal(2, 1, 6, 1), normal(3, 1, 3, 3))
    assert z == 0.0 and not any(map(np.any, slopes))


def test_a_wrong_convolution_is_not_close() -> None:
    x, kernel = normal(2, 5, 5, 2), normal(3, 3, 2, 4)
    for wrong in (kernel[::-1], kernel[:, ::-1], kernel.swapaxes(0, 1)):
        with pytest.raises(AssertionError):
            close(lowered(conv)(x, wrong), conv(x, kernel))


def test_clients_with_different_kernels_get_batched_products() -> None:
    x, kernels = normal(2, 3, 6, 6, 2), normal(2, 3, 3, 2, 4)
    both = [jax.vmap(partial(gradients, f)) for f in (lowered(conv), conv)]
    close(*(jax.jit(f)(x, kernels) for f in both))
    ours, native = (str(jax.make_jaxpr(f)(x, kernels)) for f in both)
    assert "conv_general_dilated" not in ours and "dimension_numbers=(([2], [1]), ([0], [0]))" in ours
    assert "feature_group_count=2" in native


@pytest.mark.parametrize(("axes", "convolves"), [((0, None), True), ((0, 0), False), ((None, 0), False)])
def test_values_alone_are_native_unless_clients_have_different_kernels(
    axes: tuple[int | None, int | None], convolves: bool
) -> None:
    x, kernel = normal(2, 3, 6, 6, 2), normal(2, 3, 3, 2, 4)
    operands = [a if axis == 0 else a[0] for a, axis in zip((x, kernel), axes, strict=True)]
    ours, native = (jax.jit(jax.vmap(f, axes)) for f in (lowered(conv), conv))
    close(ours(*operands), native(*operands))
    assert ("convolution(" in ours.lower(*operands).as_text("hlo")) == convolves


def test_derivatives_of_other_kinds_equal_the_native_ones() -> None:
    operands = normal(2, 5, 4, 2), normal(3, 3, 2, 3)
    along = normal(2, 5, 4, 2), normal(3, 3, 2, 3)

    def all_kinds(function: Function) -> list[Any]:
        whole = partial(score, lambda x, k: jnp.tanh(pool(function(x, k))))
        gradient = jax.grad(whole, (0, 1))

        def inner(x: jax.Array, k: jax.Array) -> jax.Array:
            return sum(map(jnp.vdot, gradient(x, k), along), jnp.float32(0))

        return [
            jax.jvp(function, operands, along),
            jax.jvp(whole, operands, along),
            jax.jvp(gradient, operands, along),
            jax.grad(inner, (0, 1))(*operands),
            jax.grad(lambda k: whole(operands[0], k))(operands[1]),
            jax.grad(lambda x: whole(x, operands[1]))(operands[0]),
        ]

    ours, native = (partial(all_kinds, function) for function in (lowered(conv), conv))
    assert ["conv_general_dilated" in str(jax.make_jaxpr(f)()) for f in (ours, native)] == [False, True]
    close(*jax.jit(lambda: (ours(), native()))(), tolerance=1e-4)


def test_the_first_layer_does_not_convolve_zeros() -> None:
    x, kernel = normal(2, 5, 5, 2), normal(3, 3, 2, 4)
    text = str(jax.make_jaxpr(jax.grad(lambda k: score(lowered(conv), x, k)))(kernel))
    assert text.count("dot_general") == 2  # forwards, and the gradient of the kernel


# --- pooling -----------------------------------------------------------------------------------------------------


@settings(max_examples=8)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_pooling_equals_the_native_form_also_for_ties(kh: int, kw: int, extra: int, infinite: bool) -> None:
    # Few distinct values, so that most windows have ties; the gradient goes to the first of them.
    x = jnp.asarray(RNG.integers(0, 3, (2, 2 * kh + extra, 2 * kw + extra, 3)), jnp.float32)
    x = jnp.where(x == 0, -jnp.inf, x) if infinite else x

    def function(x: jax.Array) -> jax.Array:
        return nn.max_pool(x, window_shape=(kh, kw), strides=(kh, kw))

    weight = normal(*jax.eval_shape(function, x).shape)

    @jax.jit
    def both(x: jax.Array) -> list[Any]:
        return [(f(x), jax.vjp(f, x)[1](weight)[0]) for f in (lowered(function), function)]

    for ours, native in zip(*both(x), strict=True):
        np.testing.assert_array_equal(ours, native)
    assert ("reduce_window" in program(lowered(function), x)) == (kh * kw == 1)


def test_pooling_differs_from_one_that_shares_gradients_among_ties() -> None:
    x = jnp.ones((1, 2, 2, 1))
    shared = jax.grad(lambda x: jnp.sum(jnp.max(x, axis=(1, 2))))(x)
    first = jax.grad(lambda x: jnp.sum(lowered(pool)(x)))(x)
    assert shared.ravel().tolist() == [0.25] * 4 and first.ravel().tolist() == [1, 0, 0, 0]


def test_pooling_keeps_nan_and_has_a_forward_derivative() -> None:
    x = jnp.array([jnp.nan, 1.0, -jnp.inf, -1.0]).reshape(1, 2, 2, 1)
    assert jnp.isnan(lowered(pool)(x)).all()
    x, dx = normal(2, 5, 4, 3), normal(2, 5, 4, 3)
    close(*(jax.jit(lambda x, dx, f=f: jax.jvp(f, (x,), (dx,)))(x, dx) for f in (lowered(pool), pool)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.max_pool(x, (3, 3), (2, 2), "SAME"),
        lambda x: nn.max_pool(x, (2, 2), (1, 1)),
        lambda x: nn.max_pool(x, (4, 4), (4, 4)),
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    ],
)
def test_pooling_that_is_faster_natively_stays(function: Function) -> None:
    x = normal(2, 8, 8, 3)
    assert program(lowered(function), x) == program(function, x)


# --- products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "columns", "changes"),
    [(784, 10, True), (128, 32, True), (784, 1, False), (784, 33, False), (60, 10, False)],
)
def test_products_with_few_columns_equal_the_native_ones(features: int, columns: int, changes: bool) -> None:
    x, w, dw = normal(4, features), 0.1 * normal(features, columns), normal(features, columns)
    assert ("optimization_barrier" in program(lowered(jnp.matmul), x, w)) == changes
    for derivative in (gradients, lambda f, x, w: jax.jvp(lambda w: gradients(f, x, w), (w,), (dw,))):
        ours, native = jax.jit(
            lambda *o, d=derivative: [d(f, *o) for f in (lowered(jnp.matmul), jnp.matmul)]
        )(x, w)
        close(ours, native)


@pytest.mark.parametrize(
    ("rows", "features", "turns"), [(2, 4096, True), (2, 4095, False), (513, 4096, False)]
)
def test_the_gradient_in_few_rows_is_taken_by_a_large_matrix_from_the_left(
    rows: int, features: int, turns: bool
) -> None:
    """In the compiled program, ``w`` is the first operand of the only product that gives as many numbers as ``x``."""
    x, w, dw = normal(rows, features), normal(features, 256) / 64, normal(features, 256) / 64
    text = jax.jit(jax.grad(partial(score, lowered(jnp.matmul)))).lower(x, w).compile().as_text() or ""
    from_the_left = re.search(rf"f32\[{features},{rows}\]\S* (dot|fusion)\(", text) is not None
    assert from_the_left == turns
    for derivative in (gradients, lambda f, x, w: jax.jvp(lambda w: gradients(f, x, w), (w,), (dw,))):
        ours, native = jax.jit(
            lambda *o, d=derivative: [d(f, *o) for f in (lowered(jnp.matmul), jnp.matmul)]
        )(x, w)
        close(ours, native)


@pytest.mark.parametrize(
    ("rows", "features", "columns", "turns"),
    [
        (10, 784, 128, True),
        (32, 48, 48, True),
        (33, 48, 48, False),
        (10, 48, 47, False),
        (2, 2**12, 64, False),
    ],
)
def test_the_gradient_of_a_small_matrix_multiplies_few_rows_that_are_transposed_first(
    rows: int, features: int, columns: int, turns: bool
) -> None:
    """``x^T`` is copied before ``x^T g``, and zeros are not multiplied where only the matrix is trained."""
    x, w = normal(rows, features), normal(features, columns) / 64
    dx, dw = normal(*x.shape), normal(*w.shape)

    def programs(argnums: int) -> list[str]:
        derivatives = (jax.grad(partial(score, f), argnums) for f in (lowered(jnp.matmul), jnp.matmul))
        return [str(jax.make_jaxpr(derivative)(x, w)) for derivative in derivatives]

    ours, native = programs(1)
    assert ("optimization_barrier" in ours, "optimization_barrier" in native) == (turns, False)
    assert ours.count("dot_general") == native.count("dot_general") == 2
    assert "optimization_barrier" not in programs(0)[0]

    def second(f: Function, x: jax.Array, w: jax.Array) -> Any:
        return jax.jvp(lambda x, w: gradients(f, x, w), (x, w), (dx, dw))

    def clients(f: Function, x: jax.Array, w: jax.Array) -> Any:
        return jax.vmap(partial(gradients, f, x))(jnp.stack([w, dw]))

    for derivative in (gradients, second, clients):
        both = jax.jit(lambda *o, d=derivative: [d(f, *o) for f in (lowered(jnp.matmul), jnp.matmul)])
        close(*both(x, w))


@pytest.mark.parametrize("columns", [8, 40])
def test_products_of_rows_in_two_axes_are_those_of_rows_in_one(columns: int) -> None:
    """Also where they are narrow, and under ``vmap`` over matrices."""
    x, w = normal(6, 5, 128), 0.1 * normal(128, columns)

    def slopes(text: str) -> list[str]:
        return [line for line in text.splitlines() if "dot_general" in line]

    assert all(" f32[6,5," not in line for line in slopes(program(lowered(jnp.matmul), x, w)))
    assert any("f32[6,5," in line for line in slopes(program(jnp.matmul, x, w)))
    for function in (
        lambda f, w: gradients(f, x, w),
        lambda f, w: jax.vmap(partial(gradients, f, x))(w[None]),
    ):
        ours, native = jax.jit(lambda w, g=function: [g(f, w) for f in (lowered(jnp.matmul), jnp.matmul)])(w)
        close(ours, native)


def test_a_product_with_a_vector_stays() -> None:
    for x, w in ((normal(4, 200), normal(200)), (normal(200), normal(200, 8)), (normal(200), normal(200))):
        assert "optimization_barrier" not in program(lowered(jnp.matmul), x, w)  # nor is there a warning
    assert lowered(jnp.matmul)(jnp.zeros((2, 3, 0)), jnp.zeros((0, 4))).shape == (2, 3, 4)


# --- whole programs ----------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Everything at once: strides, 1x1, depthwise, grouped, transposed and 1-D convolutions, pools, dropout."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.max_pool(nn.relu(nn.Conv(4, (2, 2))(x)), (2, 2), (2, 2))
        y = nn.GroupNorm(2)(nn.Conv(4, (2, 2), strides=2)(x))
        y = nn.Conv(4, (2, 2), feature_group_count=4)(y) + nn.Conv(4, (2, 2), feature_group_count=2)(y)
        x = nn.Dropout(0.3, deterministic=not train)(nn.relu(y + nn.Conv(4, (1, 1), strides=2)(x)))
        x = nn.max_pool(nn.ConvTranspose(4, (2, 2), strides=(2, 2))(x), (3, 3), (2, 2), "SAME")
        x = nn.Conv(4, (3,))(x.reshape(x.shape[0], -1, 4))
        return nn.remat(nn.Dense)(3)(x.reshape(x.shape[0], -1))


class Small(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.max_pool(nn.relu(nn.remat(nn.Conv)(4, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


class SmallNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(64, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.dropout(nnx.max_pool(nnx.relu(self.conv(x)), (2, 2), (2, 2)))
        return self.dense(x.reshape(x.shape[0], -1))


X, Y = normal(12, 8, 8, 1), jnp.asarray(RNG.integers(0, 3, 12), jnp.int32)


def users_model(module: Any) -> Model:
    return models.from_flax(module, loss="cross_entropy", sample=X[:1])


@pytest.mark.parametrize("module", [Residual(), Small(), SmallNnx])
def test_users_modules_have_the_same_gradients(module: Any) -> None:
    model = users_model(module)
    params = jax.tree.map(lambda leaf: normal(*leaf.shape), jax.eval_shape(model.init, KEY))
    train = model.apply_train
    apply: Function = model.apply if train is None else lambda params, x: train(params, x, KEY)

    def mean_loss(apply: Function, params: Any) -> jax.Array:
        return jnp.mean(model.losses(apply(params, X), Y))

    both = [partial(jax.value_and_grad(partial(mean_loss, f)), params) for f in (lowered(apply), apply)]
    close(*jax.jit(lambda: [f() for f in both])())
    assert ["conv_general_dilated" in str(jax.make_jaxpr(f)()) for f in both] == [False, True]
    assert program(lowered(model.apply), params, X) != program(model.apply, params, X)


def training(model: Model, wrap: Callable[[Function], Function], lanes: int) -> str:
    """The compiled program of local training, as a user's solver would have it without and with ``wrap``."""
    step = local.sgd(model, 0.1, steps=3, batch_size=4).solve
    client = ClientData(X, Y, jnp.int32(0), jnp.int32(12), jnp.float32(1), 12)

    def work(params: Any) -> Any:
        if wrap is lowered:
            return step(params, client, KEY, optax.identity())[0]

        def loss(w: Any) -> jax.Array:
            return jnp.mean(model.losses(wrap(model.apply)(w, X), Y))

        return lax.fori_loop(
            0, 3, lambda _, w: jax.tree.map(lambda a, g: a - g, w, jax.grad(loss)(w)), params
        )

    params = jax.eval_shape(model.init, KEY)
    if lanes:
        work = jax.vmap(work)
        params = jax.tree.map(lambda a: jax.ShapeDtypeStruct((lanes, *a.shape), a.dtype), params)
    return jax.jit(work).lower(params).as_text("hlo")


SLOW = re.compile(r"\b(convolution|reduce-window|select-and-scatter)\(")


@pytest.mark.parametrize("lanes", [0, 2])
def test_a_users_cnn_trains_without_convolutions_and_windows(lanes: int) -> None:
    model = users_model(Small())
    ours, native = (training(model, wrap, lanes) for wrap in (lowered, lambda f: f))
    assert " while(" in ours and " dot(" in ours and not SLOW.findall(ours)
    assert {"convolution", "reduce-window", "select-and-scatter"} <= set(SLOW.findall(native))


@pytest.mark.parametrize("lowers", [True, False])
def test_personal_evaluation_side_by_side_does_not_convolve(
    lowers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, seen = _evaluate._personal_program, list[tuple[Any, ...]]()

    def spy(*fixed: Any) -> Callable[..., jax.Array]:
        compiled = cached.__wrapped__(*fixed)  # equal models share what is cached

        def noted(*args: Any) -> jax.Array:
            seen.append((compiled, *args))
            return compiled(*args)

        return noted

    monkeypatch.setattr(_evaluate, "_personal_program", spy)
    if not lowers:
        monkeypatch.setattr(_evaluate, "lowered", lambda function: function)
    model = users_model(Small())
    params = jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 2))
    prepared = prepare(Split(np.asarray(X), np.asarray(Y), np.array([0, 5, 12])))
    one, two = (evaluate_personal(model, params, prepared, lanes=lanes) for lanes in (1, 2))
    close(two, one)
    compiled, *args = seen[-1]
    assert ("convolution(" in compiled._whole.lower(*args).as_text("hlo")) == (not lowers)


def test_with_nothing_to_lower_the_function_itself_is_called() -> None:
    calls: list[Any] = []

    def function(tree: dict[str, jax.Array], *, power: int) -> dict[str, Any]:
        calls.append(tree["a"])
        return {"b": tree["a"] ** power, "none": None}

    x = jnp.arange(3.0)
    outputs = lowered(partial(function, power=2))({"a": x})
    assert outputs["none"] is None and outputs["b"].tolist() == [0, 1, 4]
    assert calls[-1] is x and len(calls) == 2


def test_control_flow_is_followed_and_custom_derivatives_are_not() -> None:
    x, kernel = normal(2, 5, 5, 2), normal(3, 3, 2, 2)

    def repeated(x: jax.Array, kernel: jax.Array) -> jax.Array:
        def layer(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jnp.tanh(scale * lax.cond(scale > 1, conv, lambda x, k: conv(x, -k), x, kernel))
            return x, jnp.mean(x)

        x, sums = lax.scan(layer, x, jnp.array([0.5, 1.0, 2.0]))
        return x + sums[0]

    assert "conv_general_dilated" not in program(lowered(repeated), x, kernel)
    close(*jax.jit(lambda *o: [gradients(f, *o) for f in (lowered(repeated), repeated)])(x, kernel))

    custom = jax.custom_jvp(conv)
    custom.defjvp(lambda primals, tangents: (conv(*primals), 7 * conv(primals[0], tangents[1])))
    assert program(lowered(custom), x, kernel) == program(custom, x, kernel)


def test_closures_over_traced_arrays_and_integers_pass() -> None:
    images, kernels = normal(3, 2, 5, 5, 1), normal(3, 3, 3, 1, 2)

    def value(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.grad(lambda scale: score(lowered(lambda s: conv(image * s, kernel)), scale))(
            jnp.float32(1)
        )

    def native(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.grad(lambda scale: score(conv, image * scale, kernel))(jnp.float32(1))

    close(jax.jit(jax.vmap(value))(images, kernels), jax.jit(jax.vmap(native))(images, kernels))
    whole = lowered(lambda x: lax.reduce_window_max_p.bind(x, **_two_by_two()))(
        jnp.arange(16).reshape(1, 4, 4, 1)
    )
    assert whole.ravel().tolist() == [5, 7, 13, 15] and whole.dtype == jnp.int32


def _two_by_two() -> dict[str, Any]:
    ones, twos = (1, 1, 1, 1), (1, 2, 2, 1)
    return {
        "window_dimensions": twos,
        "window_strides": twos,
        "padding": ((0, 0),) * 4,
        "base_dilation": ones,
        "window_dilation": ones,
    }
