"""The masks of a secure sum inside a compiled simulation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.errors import EvenhandError
from evenhand.secure.fixed_point import FixedPoint, fixed_point
from evenhand.secure.limbs import LIMB_BITS, carried, negated
from evenhand.types import Array, Key, PyTree

__all__ = ["masked_sum", "masked_uploads", "masked_words"]

_WORDS = fixed_point(32, largest=1.0, cohort=1)  # of which only the limbs count


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


def _limbs(words: Array) -> Array:
    places = [words >> (place * LIMB_BITS) for place in range(_WORDS.limbs)]
    return jnp.stack(places, axis=-1) & jnp.uint32(2**LIMB_BITS - 1)


def _word(limbs: Array) -> Array:
    low, high = jnp.moveaxis(carried(limbs), -1, 0)
    return low | (high << LIMB_BITS)


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
    (uploads, left), _ = lax.scan(step, begin, masks)
    return uploads, carried(_total(uploads, present) + negated(left))


def _total(limbs: Array, chosen: Array) -> Array:
    where = chosen.reshape(chosen.shape + (1,) * (limbs.ndim - 1))
    return carried(jnp.sum(jnp.where(where, limbs, jnp.uint32(0)), axis=0))
