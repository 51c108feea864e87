"""What the models share: initialisers, shapes of inputs, the affine layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Array, Key

__all__ = ["Affine", "check_sizes", "glorot_uniform", "image_rows", "vector_rows", "zeros"]

Initializer: TypeAlias = Callable[..., Array]

zeros: Initializer = nn.initializers.zeros_init()


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Checks that the widths of a model, by argument name, are whole numbers in range.

    Raises:
      EvenhandError: one of them is not.
    """
    for name, size in sizes.items():
        whole_number(name, size, 1)


def glorot_uniform(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """``U(-a, a)``, ``a^2 = 6 / (fan_in + fan_out)``, the same numbers as from flax's initialiser of that name."""
    limit = math.sqrt(6.0 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
    # Drawn flat: on the CPU, XLA takes six times longer to compile the draw of a small matrix.
    draw = jax.random.uniform(key, (math.prod(shape),), dtype, -limit, limit)
    return draw.reshape(tuple(shape))


class Affine(nn.Module):
    """``x @ kernel + bias`` of rows flattened to ``features`` numbers; parameters ``kernel`` and ``bias``.

    Attributes:
      features: numbers per example.
      outputs: outputs per example.
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

    Rows may be flat, or lack the axis of a single channel; channels first is refused, since it would be
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
