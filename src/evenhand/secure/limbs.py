"""Whole numbers modulo a power of two as limbs, in programs that have no integers of 64 bits."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.types import Array

__all__ = ["LIMB_BITS", "carried", "from_limbs", "negated", "to_limbs"]

NDArray: TypeAlias = npt.NDArray[Any]

LIMB_BITS = 16
"""Bits of a limb.  Limbs are uint32, so that those of 65,536 clients add up before anything has to be carried."""

_LIMB = 2**LIMB_BITS


def from_limbs(limbs: NDArray) -> NDArray:
    """Limbs ``(n, limbs)``, none above 16 bits, as one unsigned integer per number, uint32 or uint64 ``(n,)``."""
    count = limbs.shape[-1]
    kind = np.uint32 if count * LIMB_BITS <= 32 else np.uint64
    value = np.zeros(limbs.shape[:-1], kind)
    for place in range(count):
        value |= limbs[..., place].astype(kind) << kind(place * LIMB_BITS)
    return value


def to_limbs(values: NDArray, count: int) -> NDArray:
    """The ``count`` lowest limbs of unsigned integers ``(n,)``, uint32 ``(n, count)``."""
    shifts = np.arange(count, dtype=values.dtype) * values.dtype.type(LIMB_BITS)
    return ((values[:, None] >> shifts) & values.dtype.type(_LIMB - 1)).astype(np.uint32)


def carried(limbs: Array) -> Array:
    """The same number with no limb above 16 bits; what overflows is dropped."""
    carry, found = jnp.zeros(limbs.shape[:-1], jnp.uint32), list[Array]()
    for place in range(limbs.shape[-1]):
        limb = limbs[..., place] + carry
        found.append(limb & jnp.uint32(_LIMB - 1))
        carry = limb >> jnp.uint32(LIMB_BITS)
    return jnp.stack(found, axis=-1)


def negated(limbs: Array) -> Array:
    """Two's complement."""
    return carried((jnp.uint32(_LIMB - 1) - limbs).at[..., 0].add(jnp.uint32(1)))
