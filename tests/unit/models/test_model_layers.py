"""Convolution and pooling against flax's own, under every transformation that clients are trained with."""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from evenhand.errors import EvenhandError
from evenhand.models import PatchConv, max_pool
from evenhand.models._layers import glorot_uniform, image_rows, vector_rows

RNG = np.random.default_rng(1)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def flax_pool(x: jax.Array) -> jax.Array:
    return nn.max_pool(x, (2, 2), (2, 2))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel_size", [(3, 3), (5, 5), (2, 4)])
def test_convolution_equals_flax(kernel_size: tuple[int, int], padding: str) -> None:
    x = normal(3, 7, 6, 2)
    ours = PatchConv(4, kernel_size, padding)  # pyright: ignore[reportArgumentType]
    theirs = nn.Conv(4, kernel_size, padding=padding)
    params = {"params": {"kernel": normal(*kernel_size, 2, 4), "bias": normal(4)}}
    a, b = (jax.jit(layer.apply)(params, x) for layer in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_convolution_starts_as_flax_does() -> None:
    x = jnp.zeros((1, 7, 6, 2))
    ours, theirs = (
        jax.jit(layer.init)(jax.random.key(0), x)["params"]
        for layer in (PatchConv(32, (3, 3)), nn.Conv(32, (3, 3)))
    )
    assert set(ours) == set(theirs) == {"kernel", "bias"}
    np.testing.assert_array_equal(ours["kernel"], theirs["kernel"])
    np.testing.assert_array_equal(ours["bias"], theirs["bias"])


def test_a_flipped_kernel_is_another_convolution() -> None:
    x, layer = normal(2, 5, 5, 2), PatchConv(3, (3, 3))
    kernel, bias = normal(3, 3, 2, 3), jnp.zeros(3)
    outputs = jax.jit(layer.apply)({"params": {"kernel": kernel, "bias": bias}}, x)
    apply = jax.jit(nn.Conv(3, (3, 3)).apply)
    for other in (kernel.transpose(1, 0, 2, 3), kernel[::-1], kernel[:, ::-1]):
        changed = apply({"params": {"kernel": other, "bias": bias}}, x)
        assert np.abs(np.asarray(outputs) - np.asarray(changed)).max() > 0.1


def test_gradients_equal_flax_also_in_a_loop_over_clients() -> None:
    x, p = normal(2, 3, 6, 5, 2), {"kernel": normal(2, 3, 3, 2, 4), "bias": normal(2, 4)}

    def loss(layer: nn.Module, params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(layer.apply({"params": params}, x)))

    grad = jax.grad(partial(loss, PatchConv(4, (3, 3))), argnums=(0, 1))
    in_loop = jax.jit(
        lambda p, x: lax.map(lambda a: jax.vmap(grad)(*a), jax.tree.map(lambda a: a[None], (p, x)))
    )
    stacked = in_loop(p, x)
    reference = jax.jit(jax.grad(partial(loss, nn.Conv(4, (3, 3))), argnums=(0, 1)))
    for client in range(2):
        one = jax.tree.map(lambda leaf, k=client: leaf[k], p)
        expected = reference(one, x[client])
        for a, b in zip(jax.tree.leaves(stacked), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a[0, client], b, rtol=1e-4, atol=1e-4)


def test_clients_side_by_side_make_one_batched_product_and_no_convolution() -> None:
    x, kernels, bias = normal(2, 3, 6, 6, 2), normal(2, 3, 3, 2, 4), jnp.zeros((2, 4))

    def program(layer: nn.Module) -> str:
        def loss(kernel: jax.Array, bias: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.sum(layer.apply({"params": {"kernel": kernel, "bias": bias}}, x) ** 2)

        return str(jax.make_jaxpr(jax.vmap(jax.grad(loss)))(kernels, bias, x))

    ours = program(PatchConv(4, (3, 3)))
    assert "conv_general_dilated" not in ours and "gather" not in ours
    assert "dimension_numbers=(([2], [1]), ([0], [0]))" in ours
    assert "conv_general_dilated" in program(nn.Conv(4, (3, 3)))


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (2, 7, 5, 3), (1, 2, 3, 1)])
def test_pooling_equals_flax_in_value_and_gradient(shape: tuple[int, ...]) -> None:
    # Few distinct values, so that most windows have ties; the gradient goes to the first of them.
    x = jnp.asarray(RNG.integers(0, 3, shape), jnp.float32)
    weight = normal(shape[0], shape[1] // 2, shape[2] // 2, shape[3])
    both = [jax.jit(lambda x, f=f: (f(x), jax.vjp(f, x)[1](weight)[0]))(x) for f in (max_pool, flax_pool)]
    np.testing.assert_array_equal(both[0][0], both[1][0])
    np.testing.assert_array_equal(both[0][1], both[1][1])
    assert np.asarray(both[0][1]).any()


def test_pooling_gradient_has_a_reference_that_differs() -> None:
    x = jnp.ones((1, 2, 2, 1))
    shared = jax.grad(lambda x: jnp.sum(jnp.max(x, axis=(1, 2))))(x)
    first = jax.grad(lambda x: jnp.sum(max_pool(x)))(x)
    assert shared.ravel().tolist() == [0.25] * 4 and first.ravel().tolist() == [1, 0, 0, 0]


def test_pooling_keeps_nan_and_has_a_forward_derivative() -> None:
    x = jnp.array([jnp.nan, 1.0, -jnp.inf, -1.0]).reshape(1, 2, 2, 1)
    assert jnp.isnan(max_pool(x)).all()
    x, dx = normal(2, 5, 4, 3), normal(2, 5, 4, 3)
    ours, theirs = (jax.jit(lambda x, dx, f=f: jax.jvp(f, (x,), (dx,)))(x, dx) for f in (max_pool, flax_pool))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("shape", [(6, 64), (3, 2, 2, 48)])
def test_glorot_uniform_draws_what_flax_draws(shape: tuple[int, ...]) -> None:
    key = jax.random.key(3)
    expected = nn.initializers.glorot_uniform()(key, shape, jnp.float32)
    np.testing.assert_allclose(glorot_uniform(key, shape), expected, rtol=1e-6, atol=1e-6)
    assert not np.array_equal(glorot_uniform(jax.random.key(4), shape), expected)


def test_rows_are_brought_into_shape_or_refused() -> None:
    x = np.arange(2 * 12).reshape(2, 2, 3, 2).astype(np.uint8)
    assert vector_rows(x, 12).shape == (2, 12) and vector_rows(x, 12).dtype == jnp.float32
    np.testing.assert_array_equal(image_rows(x.reshape(2, 12), (2, 3, 2)), x)
    assert image_rows(np.zeros((4, 2, 3)), (2, 3, 1)).shape == (4, 2, 3, 1)
    for wrong in (x.transpose(0, 3, 1, 2), x[:, :1], x.reshape(-1)):
        with pytest.raises(EvenhandError, match="made for images of shape"):
            image_rows(wrong, (2, 3, 2))
    with pytest.raises(EvenhandError, match="made for 10 features"):
        vector_rows(x, 10)


def test_convolution_refuses_what_it_cannot_do() -> None:
    with pytest.raises(EvenhandError, match="rows, height, width, channels"):
        PatchConv(3, (3, 3)).init(jax.random.key(0), jnp.zeros((4, 4, 1)))
    with pytest.raises(EvenhandError, match="5x5 convolution"):
        PatchConv(3, (5, 5), "VALID").init(jax.random.key(0), jnp.zeros((1, 4, 9, 1)))
