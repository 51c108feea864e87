"""Whole numbers in place of real ones: their sums are exact, whatever the order, and can be masked."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError, whole_number
from evenhand.secure.limbs import LIMB_BITS, carried, negated
from evenhand.types import Array, Key, PyTree

__all__ = ["FixedPoint", "fixed_point"]

_MOST = 2**16 - 1
_FEWEST_STEPS = 2**8
"""Between 0 and 1, or the largest number."""


class FixedPoint(NamedTuple):
    """How real numbers become whole ones modulo a power of two.

    Attributes:
      bits: the modulus is ``2**bits``.
      fraction: one is ``2**fraction``.
      largest: beyond which numbers are clipped, in float32.
      cohort: so many clients' sum cannot wrap around.
      stochastic: whether the rest is rounded up with the probability that keeps the mean (to ``2**-23`` of a step), or
        to the nearest.
    """

    bits: int
    fraction: int
    largest: float
    cohort: int
    stochastic: bool

    @property
    def limbs(self) -> int:
        """Limbs of a number, the lowest first."""
        return self.bits // LIMB_BITS

    @property
    def reach(self) -> float:
        """The largest number that the modulus has room for, in float32: what a client can add that clips nothing.

        It is between ``cohort * largest`` and twice that.
        """
        return float(np.nextafter(np.float32(2.0 ** (self.bits - 1 - self.fraction)), np.float32(0.0)))

    def encode(self, tree: PyTree, key: Key) -> PyTree:
        """Limbs of ``round(clip(x) * 2**fraction)`` modulo ``2**bits``, uint32 ``(..., limbs)``; NaN is encoded as 0.

        Args:
          tree: of real numbers ``x``, in leaves of any shape.
          key: of the rounding.
        """
        leaves, structure = jax.tree.flatten(tree)
        ends = np.cumsum([leaf.size for leaf in leaves])
        # One draw for all leaves: each would be a cipher more to compile.
        drawn = jax.random.uniform(key, (int(ends[-1]),)) if self.stochastic else jnp.full(ends[-1], 0.5)
        borders = jnp.split(drawn, ends[:-1].tolist())
        limbs = [
            self._encoded(leaf, border.reshape(leaf.shape))
            for leaf, border in zip(leaves, borders, strict=True)
        ]
        return jax.tree.unflatten(structure, limbs)

    def _encoded(self, x: Array, border: Array) -> Array:
        x = jnp.where(jnp.isnan(x), 0.0, x).astype(jnp.float32)
        exact = jnp.minimum(jnp.abs(x), jnp.float32(self.largest)) * jnp.float32(2.0**self.fraction)
        whole = jnp.floor(exact)
        rest = exact - whole  # there is one below 2**23 only, where float32 still counts in ones
        whole = whole + jnp.where(rest > border, 1.0, 0.0)
        limbs: list[Array] = []
        for place in reversed(range(self.limbs)):
            base = 2.0 ** (place * LIMB_BITS)
            limb = jnp.floor(whole * jnp.float32(1 / base))
            whole = whole - limb * jnp.float32(base)
            limbs.append(limb.astype(jnp.uint32))
        found = jnp.stack(limbs[::-1], axis=-1)
        return jnp.where((x < 0)[..., None], negated(found), found)

    def decode(self, total: Array) -> Array:
        """The real numbers of a sum of limbs, float32: those up to half of the modulus are positive."""
        limbs = carried(total)
        negative = limbs[..., -1] >= 2 ** (LIMB_BITS - 1)
        limbs = jnp.where(negative[..., None], negated(limbs), limbs).astype(jnp.float32)
        value = jnp.zeros(limbs.shape[:-1], jnp.float32)
        for place in reversed(range(self.limbs)):
            value = value + limbs[..., place] * jnp.float32(2.0 ** (place * LIMB_BITS - self.fraction))
        return jnp.where(negative, -value, value)

    def wrap_probability(self, std: float) -> float:
        """The probability that a sum wraps around once noise of this standard deviation, of the sum, is added to it.

        Without noise it is 0.  With Gaussian noise, this is that of the worst sum of ``cohort`` numbers.
        """
        if std <= 0:
            return 0.0
        half, most = 2.0 ** (self.bits - 1 - self.fraction), self.cohort * self.largest
        above, below = (math.erfc(room / (std * math.sqrt(2.0))) for room in (half - most, half + most))
        return 0.5 * (above + below)


def fixed_point(
    bits: int = 64, *, largest: float = 2.0**20, cohort: int = 2**13, stochastic: bool = True
) -> FixedPoint:
    """The finest fixed point with which the sum of a cohort's numbers cannot wrap around.

    Args:
      bits: of the modulus ``2**bits``: 32 or 64.
      largest: beyond which a client clips its numbers; at least ``2**-60``.
      cohort: clients that are summed, at most; up to 65,535.
      stochastic: round at random, so that the mean is kept; or to the nearest.

    Raises:
      EvenhandError: too little would be left of the numbers, or an argument makes no sense.

    Example:
      >>> fixed_point(32, largest=1.0, cohort=100).fraction
      24
    """
    if bits not in (32, 64):
        raise EvenhandError(f"fixed_point(bits={bits}): give 32 or 64.")
    whole_number("fixed_point(cohort=)", cohort, 1)
    if cohort > _MOST:
        raise EvenhandError(f"fixed_point(cohort={cohort}): give at most {_MOST:,} clients.")
    if not 2.0**-60 <= largest < 2.0**60:
        raise EvenhandError(
            f"fixed_point(largest={largest}): give a number from 2**-60 up to, not including, 2**60."
        )
    largest = float(np.float32(largest))
    fraction = bits - 1 - math.ceil(math.log2(largest * cohort))
    while cohort * math.ceil(Fraction(largest) * Fraction(2) ** fraction) >= 2 ** (bits - 1):
        fraction -= 1
    if min(Fraction(largest), 1) * Fraction(2) ** fraction < _FEWEST_STEPS:
        raise EvenhandError(
            f"With {bits} bits, {cohort} clients and numbers up to {largest:g}, too little would be left after "
            "rounding: give more bits, fewer clients or a lower largest."
        )
    return FixedPoint(bits, fraction, largest, cohort, stochastic)
