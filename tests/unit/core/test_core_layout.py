"""Pictures with channels first are kept with channels last: the same numbers, with few transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from evenhand._jaxpr.layout import channels_last

X = jax.random.normal(jax.random.key(0), (2, 3, 8, 8))
K = jax.random.normal(jax.random.key(1), (4, 3, 3, 3)) / 5
M = jax.random.normal(jax.random.key(2), (5, 4, 3, 3)) / 6
B = jax.random.normal(jax.random.key(3), (1, 4, 1, 1))


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv(x, kernel, (stride, stride), "SAME")


def pool(x: jax.Array, by: str = "max") -> jax.Array:
    start, reduction = (-jnp.inf, lax.max) if by == "max" else (0.0, lax.add)
    return lax.reduce_window(x, start, reduction, (1, 1, 2, 1), (1, 1, 2, 1), "VALID")


def stack(x: jax.Array, k: jax.Array, m: jax.Array, b: jax.Array) -> jax.Array:
    y = pool(jax.nn.relu(conv(x, k) + b))
    return pool(jax.nn.gelu(conv(y, m)), "sum").reshape(len(x), -1)


FUNCTIONS: dict[str, Callable[..., jax.Array]] = {
    "stack": stack,
    "mean over pixels": lambda x, k, m, b: jnp.mean(jnp.tanh(conv(x, k, 2) * b), axis=(2, 3)),
    "sum over channels": lambda x, k, m, b: jnp.sum(conv(x, k), axis=1),
    "maximum over rows": lambda x, k, m, b: jnp.max(conv(x, k), axis=(0, 2)),
    "a skip": lambda x, k, m, b: jax.nn.relu(conv(x, k) + jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0)))),
    "a mask": lambda x, k, m, b: jnp.where(
        jax.random.bernoulli(jax.random.key(4), 0.5, (2, 4, 8, 8)), conv(x, k), 0.0
    ),
    "a product that needs the order": lambda x, k, m, b: jnp.einsum(
        "nchw,oc->nohw", conv(x, k), m[:, :, 0, 0]
    ),
    "a derivative of its own": lambda x, k, m, b: jax.nn.relu(conv(x, k)) * jax.nn.silu(conv(x, k)),
    "two results": lambda x, k, m, b: jnp.concatenate(
        [a.reshape(-1) for a in (conv(x, k), pool(conv(x, k)))]
    ),
    "no picture": lambda x, k, m, b: jnp.sin(x).reshape(2, -1) @ jnp.ones((192, 2)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_are_the_same(name: str) -> None:
    function = FUNCTIONS[name]
    turned = channels_last(function)
    assert np.allclose(turned(X, K, M, B), function(X, K, M, B), atol=1e-5)

    def loss(function: Callable[..., jax.Array]) -> Callable[..., Any]:
        return jax.jit(
            jax.grad(lambda *arguments: jnp.sum(jnp.cos(function(*arguments))), argnums=(0, 1, 2, 3))
        )

    for ours, theirs in zip(loss(turned)(X, K, M, B), loss(function)(X, K, M, B), strict=True):
        assert np.allclose(ours, theirs, atol=1e-4), name


def test_clients_side_by_side_have_their_own_kernels() -> None:
    kernels = jnp.stack([K, 2 * K])
    ours, theirs = (
        jax.vmap(f, (None, 0, None, None))(X, kernels, M, B) for f in (channels_last(stack), stack)
    )
    assert np.allclose(ours, theirs, atol=1e-5) and not np.allclose(ours[0], ours[1])


def test_a_picture_is_turned_once_and_turned_back_once() -> None:
    program = str(jax.make_jaxpr(channels_last(stack))(X, K, M, B))
    pictures = program.count("permutation=(0, 2, 3, 1)"), program.count("permutation=(0, 3, 1, 2)")
    assert pictures == (2, 1), "the picture and the bias, then before the reshape"
    assert program.count("lhs_spec=(0, 3, 1, 2)") == 2
    assert "lhs_spec=(0, 1, 2, 3)" in str(jax.make_jaxpr(stack)(X, K, M, B))
