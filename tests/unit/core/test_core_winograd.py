"""Small windows by interpolation: the algebra in NumPy, native convolutions, and the error of float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from evenhand._jaxpr.convolution import _transforms, suits_winograd, winograd
from evenhand.lowering import lowered

RNG = np.random.default_rng(3)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def conv(x: jax.Array, kernel: jax.Array, padding: str = "VALID", precision: Any = None) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (1, 1), padding, dimension_numbers=numbers, precision=precision
    )


def error(one: Any, other: Any) -> float:
    """Root mean square of the difference, in units of the other's."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.sqrt(np.mean((one - other) ** 2) / np.mean(other**2)))


@pytest.mark.parametrize("window", [3, 4, 5])
def test_one_axis_is_a_correlation(window: int) -> None:
    """``np.correlate`` of a stretch with a window, from products at the points."""
    to_outputs, of_window, of_inputs = _transforms(window)
    d, g = RNG.normal(size=window + 3), RNG.normal(size=window)
    np.testing.assert_allclose(
        to_outputs.T @ ((of_window @ g) * (of_inputs @ d)),
        np.correlate(d, g, "valid"),
        rtol=1e-12,
        atol=1e-12,
    )


@settings(max_examples=8)
@given(st.integers(3, 5), st.integers(3, 5), st.integers(6, 17), st.integers(6, 17), st.integers(0, 2))
def test_any_size_equals_the_native_one(high: int, wide: int, height: int, width: int, rows: int) -> None:
    """Also sizes that fill the last tile in part, and no rows at all."""
    x, kernel = normal(rows, height, width, 2), normal(high, wide, 2, 3)
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
    close(jax.jit(winograd)(x, kernel), conv(x, kernel))


@pytest.mark.parametrize(("size", "window"), [(28, 3), (14, 5)])
def test_values_and_derivatives_are_as_accurate_as_documented(size: int, window: int) -> None:
    x, kernel, seed = (
        normal(4, size, size, 32),
        normal(window, window, 32, 16) / 20,
        normal(4, size, size, 16),
    )

    same = partial(conv, padding="SAME")

    def derivatives(x: jax.Array, kernel: jax.Array, function: Any) -> Any:
        z, back = jax.vjp(function, x, kernel)
        return z, *back(seed.astype(z.dtype)), jax.jvp(partial(function, x), (kernel,), (kernel,))

    with jax.enable_x64(True):
        double = jnp.asarray(np.asarray(x, np.float64)), jnp.asarray(np.asarray(kernel, np.float64))
        exact = jax.tree.leaves(derivatives(*double, same))
    ours = jax.tree.leaves(jax.jit(partial(derivatives, function=lowered(same)))(x, kernel))
    errors = [error(a, b) for a, b in zip(ours, exact, strict=True)]
    assert 1e-6 < max(errors) < 2e-5
    high = partial(same, precision=lax.Precision.HIGHEST)
    patches = jax.tree.leaves(jax.jit(partial(derivatives, function=lowered(high)))(x, kernel))
    assert max(error(a, b) for a, b in zip(patches, exact, strict=True)) < 1e-6


def test_clients_with_different_kernels_equal_the_native_form() -> None:
    x, kernels = normal(3, 4, 14, 14, 16), normal(3, 3, 3, 16, 16)
    ours = jax.jit(jax.vmap(lowered(conv)))(x, kernels)
    assert error(ours, jnp.stack([conv(*each) for each in zip(x, kernels, strict=True)])) < 1e-5


@pytest.mark.parametrize(
    ("x", "kernel", "suits"),
    [
        ((1, 30, 30, 32), (3, 3, 32, 64), True),
        ((4, 18, 18, 32), (5, 5, 32, 64), True),
        ((8, 12, 12, 16), (3, 5, 16, 16), True),
        ((2, 30, 30, 3), (3, 3, 3, 64), False),  # few channels: the transforms cost more than they save
        ((2, 30, 30, 32), (3, 3, 32, 8), False),
        ((2, 30, 30, 32), (1, 1, 32, 64), False),
        ((2, 30, 30, 32), (7, 7, 32, 64), False),
        ((2, 3, 3, 32), (3, 3, 32, 64), False),  # one output in a tile of sixteen
        ((20, 8, 8, 16), (3, 3, 16, 16), False),  # 6 x 6 outputs fill about half of 2 x 2 tiles of 4 x 4
        ((10, 6, 6, 256), (3, 3, 256, 256), False),  # ten tiles: the kernel's transform is most of the work
        ((2, 100, 32), (5, 32, 64), False),
        ((2, 2, 2, 32), (3, 3, 32, 64), False),
    ],
)
def test_it_is_used_only_where_it_saves_work(
    x: tuple[int, ...], kernel: tuple[int, ...], suits: bool
) -> None:
    assert suits_winograd(jnp.zeros(x), jnp.zeros(kernel)) == suits
    with jax.enable_x64(True):
        assert not suits_winograd(jnp.zeros(x, jnp.float64), jnp.zeros(kernel, jnp.float64))


def test_strides_and_dilation_equal_the_native_form() -> None:
    x, kernel = normal(1, 30, 30, 16), normal(3, 3, 16, 16)
    numbers = ("NHWC", "HWIO", "NHWC")
    for strides, dilation in (((2, 1), (1, 1)), ((1, 1), (1, 2))):
        function = partial(
            lax.conv_general_dilated,
            window_strides=strides,
            padding="SAME",
            rhs_dilation=dilation,
            dimension_numbers=numbers,
        )
        ours, native = (jax.jit(jax.vjp(f, x, kernel)[1]) for f in (lowered(function), function))
        seed = normal(*function(x, kernel).shape)
        assert error(ours(seed)[1], native(seed)[1]) < 1e-6
