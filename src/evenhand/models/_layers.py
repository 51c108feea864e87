r"""Layers that stay fast inside a compiled loop and under ``vmap`` over clients.

On the CPU, XLA runs the gradient of a convolution inside a loop ten to two hundred times slower than outside
one, and ``vmap`` over clients, each with its own kernel, makes a grouped convolution of it, which is slow
everywhere.  Patches times kernel is the same function, one matrix product, and one *batched* product under
``vmap``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError
from evenhand.types import Array, Key

__all__ = ["Affine", "PatchConv", "glorot_uniform", "image_rows", "max_pool", "vector_rows", "zeros"]

Initializer: TypeAlias = Callable[..., Array]

zeros: Initializer = nn.initializers.zeros_init()
lecun_normal: Initializer = nn.initializers.lecun_normal()


def glorot_uniform(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """``U(-a, a)``, ``a^2 = 6 / (fan_in + fan_out)``, number for number flax's initialiser of that name."""
    limit = math.sqrt(6.0 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
    # Drawn flat: on the CPU, XLA takes six times longer to compile the draw of a small matrix.
    draw = jax.random.uniform(key, (math.prod(shape),), dtype, -limit, limit)
    return draw.reshape(tuple(shape))


class PatchConv(nn.Module):
    r"""Two-dimensional convolution of stride 1 as patches times kernel.

    .. math:: z_{n,h,w,o} = b_o + \sum_{i,j,c} x_{n,h+i,w+j,c} \, K_{i,j,c,o}

    The same function as ``flax.linen.Conv``, with parameters of the same names, shapes and initial law, so
    that one can stand in for the other.  It holds ``rows * height * width * kh * kw * channels`` numbers
    while it works: evaluate large data sets in chunks of some hundred rows.

    Attributes:
      features: output channels.
      kernel_size: ``(kh, kw)``.
      padding: ``"SAME"`` (zeros around, size kept) or ``"VALID"`` (no padding).
      kernel_init: initialiser of the kernel ``(kh, kw, channels, features)``.
      bias_init: initialiser of the bias ``(features,)``.

    Called with ``x`` of shape ``(n, height, width, channels)``, it returns ``(n, height', width',
    features)``.

    Raises:
      EvenhandError: ``x`` is not of rank 4, or smaller than the kernel under ``"VALID"``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> layer = models.PatchConv(features=8, kernel_size=(3, 3), padding="VALID")
      >>> images = jnp.ones((2, 5, 5, 1))
      >>> jax.eval_shape(layer.init_with_output, jax.random.key(0), images)[0].shape
      (2, 3, 3, 8)
    """

    features: int
    kernel_size: tuple[int, int]
    padding: Literal["SAME", "VALID"] = "SAME"
    kernel_init: Initializer = lecun_normal
    bias_init: Initializer = zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if x.ndim != 4:
            raise EvenhandError(
                f"A convolution needs images (rows, height, width, channels), but they have shape {x.shape}."
            )
        kh, kw, channels = *self.kernel_size, x.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (kh, kw, channels, self.features), jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        patches = _patches(x, self.kernel_size, self.padding)
        outputs = patches.reshape(-1, kh * kw * channels) @ kernel.reshape(-1, self.features)
        return outputs.reshape(*patches.shape[:3], self.features) + bias[None, None, None, :]


def _patches(x: Array, kernel_size: tuple[int, int], padding: Literal["SAME", "VALID"]) -> Array:
    """All windows, ``(n, height', width', kh * kw * channels)``."""
    kh, kw = kernel_size
    if padding == "SAME":
        around = [(0, 0), *(((k - 1) // 2, k // 2) for k in kernel_size), (0, 0)]
        x = jnp.pad(x, around)
    height, width = x.shape[1] - kh + 1, x.shape[2] - kw + 1
    if height < 1 or width < 1:
        raise EvenhandError(
            f"A {kh}x{kw} convolution without padding needs images at least that large, but they are "
            f"{x.shape[1]}x{x.shape[2]}."
        )
    windows = [x[:, i : i + height, j : j + width] for i in range(kh) for j in range(kw)]
    return jnp.concatenate(windows, axis=-1)


def max_pool(x: Array) -> Array:
    """Maximum over windows of 2 by 2, stride 2; an odd last line or column is dropped.

    Equal to ``flax.linen.max_pool(x, (2, 2), (2, 2))`` in value and gradient: of equal values the first in
    reading order gets all of it, and a NaN stays.

    Args:
      x: ``(n, height, width, channels)``.

    Returns:
      ``(n, height // 2, width // 2, channels)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1)).ravel()
      Array([ 5.,  7., 13., 15.], dtype=float32)
    """
    return _pool(x)


@jax.custom_jvp
def _pool(x: Array) -> Array:
    corners = _corners(x)
    return jnp.maximum(jnp.maximum(corners[0], corners[1]), jnp.maximum(corners[2], corners[3]))


@_pool.defjvp
def _pool_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The transpose of strided slices pads and adds four images, and jnp.maximum shares the gradient between
    # equal values: one comparison per input is faster by far, and picks one of them.
    (x,), (dx,) = primals, tangents
    pooled = _pool(x)
    first, second, third, _ = (corner == pooled for corner in _corners(x))
    place = jnp.where(first, 0, jnp.where(second, 1, jnp.where(third, 2, 3))).astype(jnp.int8)
    places = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    n, height, width, channels = pooled.shape
    windows = dx[:, : 2 * height, : 2 * width].reshape(n, height, 2, width, 2, channels)
    return pooled, jnp.sum(jnp.where(place[:, :, None, :, None] == places, windows, 0.0), axis=(2, 4))


def _corners(x: Array) -> list[Array]:
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    return [x[:, i:height:2, j:width:2] for i in range(2) for j in range(2)]


class Affine(nn.Module):
    """``x @ kernel + bias`` of rows flattened to ``features`` numbers; parameters ``kernel`` and ``bias``.

    Attributes:
      features: numbers per row.
      outputs: outputs per row.
      kernel_init: initialiser of the kernel ``(features, outputs)``; the bias starts at 0.
    """

    features: int
    outputs: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", self.kernel_init, (self.features, self.outputs), jnp.float32)
        bias = self.param("bias", zeros, (self.outputs,), jnp.float32)
        return vector_rows(x, self.features) @ kernel + bias[None, :]


def vector_rows(x: Array, features: int) -> Array:
    """Rows of any shape as float32 vectors, ``(n, features)``."""
    x = jnp.asarray(x)
    if x.ndim == 0 or math.prod(x.shape[1:]) != features:
        raise EvenhandError(
            f"The model was made for {features} features per row, but a row has shape {x.shape[1:]}; "
            f"give it features={math.prod(x.shape[1:])} or other data."
        )
    return x.reshape(x.shape[0], features).astype(jnp.float32)


def image_rows(x: Array, shape: tuple[int, int, int]) -> Array:
    """Rows as float32 images ``(n, height, width, channels)``.

    Rows may be flat, or lack the axis of a single channel; channels first is refused, for it would be
    scrambled.
    """
    x = jnp.asarray(x)
    allowed = [shape, (math.prod(shape),)] + [shape[:2]] * (shape[2] == 1)
    if x.shape[1:] not in allowed:
        raise EvenhandError(
            f"The model was made for images of shape {shape} (height, width, channels), or flat rows of "
            f"{math.prod(shape)} numbers, but a row has shape {x.shape[1:]}."
        )
    return x.reshape(x.shape[0], *shape).astype(jnp.float32)
