"""Whole numbers in place of real ones: their sums are exact, whatever the order, and can be masked.

Compiled programs have no integers of 64 bits, so a number modulo a power of two is a few limbs of 16 bits.
:class:`FixedPoint` encodes real numbers as limbs, and :func:`masked_sum` adds limbs as the protocol does, inside a
compiled simulation.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError, real_number, truth_value, whole_number
from evenhand.secure._primitives import NDArray
from evenhand.types import Array, Key, PyTree

# --- limbs -----------------------------------------------------------------------------------------------


LIMB_BITS = 16
"""Bits of a limb.  Limbs are uint32, so that those of 65,536 clients add up before anything has to be carried."""


_LIMB = 2**LIMB_BITS


def from_limbs(limbs: NDArray) -> NDArray:
    """Limbs ``(n, limbs)``, none above 16 bits, as one unsigned integer per number, uint32 or uint64 ``(n,)``."""
    count = limbs.shape[-1]
    kind = np.uint32 if count * LIMB_BITS <= 32 else np.uint64
    shifts = np.arange(count, dtype=kind) * kind(LIMB_BITS)
    return np.bitwise_or.reduce(limbs.astype(kind) << shifts, axis=-1)


def to_limbs(values: NDArray, count: int) -> NDArray:
    """The ``count`` lowest limbs of unsigned integers ``(n,)``, uint32 ``(n, count)``."""
    shifts = np.arange(count, dtype=values.dtype) * values.dtype.type(LIMB_BITS)
    return ((values[:, None] >> shifts) & values.dtype.type(_LIMB - 1)).astype(np.uint32)


def carried(limbs: Array) -> Array:
    """The same number with no limb above 16 bits; what overflows is dropped."""
    return jnp.stack(_carry([limbs[..., place] for place in range(limbs.shape[-1])], 0), axis=-1)


def negated(limbs: Array) -> Array:
    """Two's complement."""
    return jnp.stack(_negative([limbs[..., place] for place in range(limbs.shape[-1])]), axis=-1)


def _carry(places: list[Array], carry: int) -> list[Array]:
    """As :func:`carried`, of limbs in separate arrays, the lowest first, with ``carry`` added to the number."""
    over, limbs = jnp.full_like(places[0], carry), list[Array]()
    for place in places:
        limb = place + over
        limbs.append(limb & jnp.uint32(_LIMB - 1))
        over = limb >> jnp.uint32(LIMB_BITS)
    return limbs


def _negative(places: list[Array]) -> list[Array]:
    """As :func:`negated`, of limbs in separate arrays."""
    return _carry([jnp.uint32(_LIMB - 1) - place for place in places], 1)


# --- real numbers as whole ones --------------------------------------------------------------------------


_MOST_CLIENTS = 2**16 - 1


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
        count = int(ends[-1])
        # All leaves at once: each would be a cipher more to compile, and take its part of the draws again and again.
        # An even number of draws: JAX's generator takes nine times as long for an odd one.
        drawn = jax.random.uniform(key, (count + count % 2,)) if self.stochastic else jnp.full(count, 0.5)
        limbs = self._encoded(
            jnp.concatenate([leaf.reshape(-1).astype(jnp.float32) for leaf in leaves]), drawn[:count]
        )
        parts = zip(jnp.split(limbs, ends[:-1].tolist()), leaves, strict=True)
        return jax.tree.unflatten(structure, [part.reshape(*leaf.shape, self.limbs) for part, leaf in parts])

    def _encoded(self, x: Array, borders: Array) -> Array:
        """Limbs ``(n, limbs)`` of float32 numbers ``(n,)``, rounded up if the rest is above its border."""
        x = jnp.where(jnp.isnan(x), 0.0, x)
        exact = jnp.minimum(jnp.abs(x), jnp.float32(self.largest)) * jnp.float32(2.0**self.fraction)
        whole = jnp.floor(exact)
        rest = exact - whole  # there is one below 2**23 only, where float32 still counts in ones
        whole = whole + jnp.where(rest > borders, 1.0, 0.0)
        # Each limb by itself, from the whole number: exact in float32, as a limb has fewer bits, and one loop on a CPU.
        number = whole[:, None]
        bases = np.float32(2.0) ** np.arange(0, self.bits + 1, LIMB_BITS, dtype=np.float32)[None]
        above = jnp.floor(number / bases[:, :-1])
        limbs = (above - jnp.floor(number / bases[:, 1:]) * np.float32(_LIMB)).astype(jnp.int32)
        # Two's complement: a carry reaches a limb if all below it are zeros.
        carry = (above * bases[:, :-1] == number).astype(jnp.int32)
        opposite = (_LIMB - 1 - limbs + carry) & (_LIMB - 1)
        return jnp.where((x < 0)[:, None], opposite, limbs).astype(jnp.uint32)

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
    stochastic = truth_value("stochastic", stochastic)
    bits = whole_number("fixed_point(bits=)", bits, -(2**31))
    if bits not in (32, 64):
        raise EvenhandError(f"fixed_point(bits={bits}): give 32 or 64.")
    cohort = whole_number("fixed_point(cohort=)", cohort, 1)
    if cohort > _MOST_CLIENTS:
        raise EvenhandError(f"fixed_point(cohort={cohort}): give at most {_MOST_CLIENTS:,} clients.")
    if not 2.0**-60 <= real_number(largest) < 2.0**60:
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


# --- masked sums in a compiled simulation ----------------------------------------------------------------


def masked_sum(point: FixedPoint, lifted: PyTree, present: Array, key: Key) -> PyTree:
    """The sum of limbs as the protocol finds it: of masked uploads, from which the masks left over are then taken.

    It equals, to the bit, the sum without masks.  The masks come from JAX's generator, where clients on a network
    agree on keys and use AES: they are added and taken away in the same places.

    Args:
      point: of the limbs.
      lifted: uint32 limbs, leaves ``(m, ..., limbs)``.
      present: bool ``(m,)``, who sends their masked numbers; the others are lost after the masks were agreed.
      key: of the clients' secrets, which a simulation draws from its seed.

    Raises:
      EvenhandError: more than 65,536 clients, whose limbs could overflow.
    """
    if present.size > 2**LIMB_BITS:
        raise EvenhandError(
            f"A secure sum of {present.size:,} clients: at most {2**LIMB_BITS:,} can be added."
        )
    leaves, structure = jax.tree.flatten(lifted)
    flat = [leaf.reshape(leaf.shape[0], -1, point.limbs) for leaf in leaves]
    total = _exchanged(jnp.concatenate(flat, axis=1), present, key)[1]
    ends = np.cumsum([leaf.shape[1] for leaf in flat])[:-1].tolist()
    sums = [part.reshape(leaf.shape[1:]) for part, leaf in zip(jnp.split(total, ends), leaves, strict=True)]
    return jax.tree.unflatten(structure, sums)


def masked_words(lifted: PyTree, present: Array, key: Key) -> PyTree:
    """:func:`masked_sum` of whole numbers modulo ``2**32``, uint32 ``(m, ...)``: their sums, to the bit."""
    split = jax.tree.map(_limbs, lifted)
    return jax.tree.map(_word, masked_sum(_WORDS, split, present, key))


def masked_uploads(limbs: Array, key: Key) -> Array:
    """What the server gets of each client, ``(m, ..., limbs)``: its numbers, its own mask, and those shared in pairs.

    .. math:: y_k = x_k + b_k + \\sum_s r_{k, k + s} - \\sum_s r_{k - s, k} \\pmod{2^{bits}}

    Clients stand in a circle, and each shares masks with the next few, and so with the few before it.
    """
    return _exchanged(limbs, jnp.ones(limbs.shape[0], bool), key)[0]


def _exchanged(limbs: Array, present: Array, key: Key) -> tuple[Array, Array]:
    """``(uploads, total)``: what clients send, and what the server finds of those present."""
    m = limbs.shape[0]
    shifts = min(m - 1, math.ceil(1.5 * math.log2(m)))

    def step(carry: tuple[Array, Array], drawn: tuple[Array, Key]) -> tuple[tuple[Array, Array], None]:
        uploads, left = carry
        shift, key = drawn
        mask = jax.random.bits(key, limbs.shape, jnp.uint32) & jnp.uint32(2**LIMB_BITS - 1)
        before, after = (jnp.arange(m) - shift) % m, (jnp.arange(m) + shift) % m
        paired = shift > 0  # else it is the client's own
        minus = jnp.where(paired, mask[before], jnp.uint32(0))
        uploads = carried(uploads + mask + negated(minus))
        # A pair's mask is left over where one of the two is there: added, or subtracted.
        plus_left = _total(mask, present & ~(present[after] & paired))
        minus_left = _total(mask, ~present & present[after] & paired)
        return (uploads, carried(left + plus_left + negated(minus_left))), None

    begin = limbs, jnp.zeros(limbs.shape[1:], jnp.uint32)
    masks = jnp.arange(shifts + 1), jax.random.split(key, shifts + 1)
    (uploads, left), _ = jax.lax.scan(step, begin, masks)
    return uploads, carried(_total(uploads, present) + negated(left))


def _total(limbs: Array, chosen: Array) -> Array:
    where = chosen.reshape(chosen.shape + (1,) * (limbs.ndim - 1))
    return carried(jnp.sum(jnp.where(where, limbs, jnp.uint32(0)), axis=0))


_WORDS = fixed_point(32, largest=1.0, cohort=1)  # of which only the limbs count


def _limbs(words: Array) -> Array:
    places = [words >> (place * LIMB_BITS) for place in range(_WORDS.limbs)]
    return jnp.stack(places, axis=-1) & jnp.uint32(2**LIMB_BITS - 1)


def _word(limbs: Array) -> Array:
    low, high = jnp.moveaxis(carried(limbs), -1, 0)
    return low | (high << LIMB_BITS)
