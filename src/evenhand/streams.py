r"""Random keys and permutations: every draw is keyed by (seed, purpose, round, client).

Because each purpose has its own stream, turning a feature on never changes the draws of another: the same
seed gives the same cohorts, stragglers and mini-batches to every method, which is what a fair comparison needs.

What must be hidden from clients, such as noise and masks, comes from a root that cannot be computed from theirs.

A random permutation of ``0 .. n - 1`` is computed entry by entry, without ever being stored: local work needs shuffled
batches of clients whose sizes differ and are known only inside the compiled program, and a shuffle by sorting would pad
every client to the largest one.  The *swap-or-not* shuffle maps any single position ``i`` to its place in constant time
and memory, for any ``n``: in each of its rounds, with a random ``K_r < n`` and a random bit ``b_r``,

.. math::  i \leftarrow i' \text{ if } b_r(\max(i, i')) = 1, \quad i' = (K_r - i) \bmod n .

after a first random rotation.  Each round pairs up the positions and swaps each pair or leaves it, so it is a
permutation, and so is the composition.

Source: Hoang, Morris and Rogaway, *An enciphering scheme based on a card shuffle*, CRYPTO 2012.  Here the round
function is a 32-bit integer hash: statistically good, not secret.  Single positions are uniform; with 16 rounds a
pair of positions keeps its distance with probability 2**-16 beyond chance.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from evenhand.types import Array, Key

__all__ = [
    "MAX_PHASES",
    "MAX_ROUNDS",
    "Keys",
    "Purpose",
    "client_stream",
    "keys_of",
    "permutation_words",
    "permute",
    "root_key",
    "stream",
    "wrapped_key",
]

MAX_ROUNDS = 2**24
"""Rounds in one run, at most."""
MAX_PHASES = 16
"""Exchanges in one round, at most: one more would have the streams of another purpose."""


class Purpose(IntEnum):
    """What a stream is for.  The numbers are part of every saved run: never reuse one; below 16.

    ``AGGREGATOR``, ``SERVER``, ``NOISE`` and ``MASKS`` are streams of the secret root, all others of the shared one.
    """

    INIT = 0
    COHORT = 1
    WORK = 2
    PERSONAL = 3
    ATTACK = 4
    MALICIOUS = 5
    AGGREGATOR = 6
    SERVER = 7
    STRAGGLERS = 8
    EVALUATION = 9
    NOISE = 10
    MASKS = 11
    DROPOUTS = 12
    AVAILABILITY = 13
    COMPRESSION = 14


class Keys(NamedTuple):
    """The two roots of everything random in a run.

    Attributes:
      shared: clients may know it, and derive their mini-batches from it.
      secret: no client may know it; on real devices it must not come from a seed that others know.
    """

    shared: Key
    secret: Key


def keys_of(seed: int) -> Keys:
    """The roots of a simulated run: functions of its seed, neither of which can be computed from the other.

    Example:
      >>> roots = keys_of(0)
      >>> bool(roots.shared == jax.random.key(0)), bool(roots.shared == roots.secret)
      (True, False)
    """
    words = np.random.SeedSequence((seed, int(Purpose.NOISE))).generate_state(2)
    return Keys(root_key(seed), wrapped_key(words))


def root_key(seed: int) -> Key:
    """``jax.random.key(seed)`` of JAX's default generator, from words of NumPy: no program has to be compiled for it.

    As JAX does without 64-bit numbers, it takes the last 32 bits of a seed: that of a deployment may be longer.
    """
    return wrapped_key(np.array([0, int(seed) % 2**32], np.uint32))


def wrapped_key(words: Any) -> Key:
    """The key of two uint32 words, for the generator of all draws here, whatever ``jax_default_prng_impl`` is."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def stream(key: Key, purpose: Purpose, number: Array | int = 0, phase: int = 0) -> Key:
    """The key for ``purpose`` in one phase of one round.

    Args:
      key: one of the run's :class:`Keys`, or a client's key when a wrapper adds a purpose to it.
      purpose: which stream.
      number: the round, below :data:`MAX_ROUNDS`; may be a tracer.
      phase: which exchange of the round, below :data:`MAX_PHASES`.

    Example:
      >>> import jax
      >>> root = jax.random.key(0)
      >>> bool(stream(root, Purpose.WORK, 3) == stream(root, Purpose.COHORT, 3))
      False
    """
    # One counter for all three: each fold is a cipher that has to be compiled and run.
    prefix = (int(purpose) * MAX_PHASES + phase) * MAX_ROUNDS
    if isinstance(number, int):  # no programs for the conversion and the sum
        counter: Any = np.uint32((number + prefix) % 2**32)
        return jax.random.fold_in(key, counter if isinstance(key, Tracer) else jax.device_put(counter))
    return jax.random.fold_in(key, jnp.asarray(number).astype(jnp.uint32) + jnp.uint32(prefix))


def client_stream(key: Key, client: Array | int) -> Key:
    """The key of one client within a stream."""
    return jax.random.fold_in(key, client)


# --- permutations, computed entry by entry ------------------------------------------------------------------


_SHUFFLE_ROUNDS = 16


def permutation_words(key: Key) -> Array:
    """Two random uint32 words ``(2,)`` that stand for ``key`` in :func:`permute`; use each key once."""
    return jax.random.key_data(key)[:2]


@jax.jit
def permute(position: Array, size: Array, word: Array, epoch: Array) -> Array:
    """Where ``position`` goes under the permutation of ``0 .. size - 1`` that ``(word, epoch)`` selects.

    Args:
      position: int32, any shape, each in ``[0, size)``; positions outside give meaningless numbers.
      size: int32 scalar ``n`` in ``[1, 2**31)``; may be a tracer.
      word: ``(2,)`` uint32 from :func:`permutation_words`.
      epoch: int32 scalar; each epoch has its own permutation.

    Returns:
      int32, the shape of ``position``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> order = permute(jnp.arange(7), jnp.int32(7), permutation_words(jax.random.key(0)), jnp.int32(0))
      >>> sorted(order.tolist())
      [0, 1, 2, 3, 4, 5, 6]
    """
    # Without the barrier XLA:CPU folds a constant size of 1 into a kernel that it then fails to compile.
    n = lax.optimization_barrier(size).astype(jnp.uint32)
    start = _hash(word[0] + epoch.astype(jnp.uint32) * np.uint32(0x9E3779B9))
    constants = np.arange(1, _SHUFFLE_ROUNDS + 1, dtype=np.uint32) * np.uint32(0x85EBCA6B)
    salts = _hash(_hash(start ^ constants) ^ word[1])
    pivots = _remainder(_hash(salts + np.uint32(0x68E31DA4)), n)
    # A random rotation first: with the rounds alone, one position in 2**rounds would stay where it is.
    i = _remainder(position.astype(jnp.uint32) + _remainder(_hash(start ^ word[1]), n), n)

    def swap_or_not(i: Array, words: tuple[Array, Array]) -> tuple[Array, None]:
        pivot, salt = words
        partner = pivot + n - i
        partner = lax.min(partner, partner - n)  # a difference below 0 is a huge number
        return lax.select(_top_bit(lax.max(i, partner) ^ salt), partner, i), None

    # A loop compiles in half the time; on a CPU it is as fast, but elsewhere each iteration is a kernel to launch.
    unroll = 4 if jax.default_backend() == "cpu" else _SHUFFLE_ROUNDS
    i, _ = lax.scan(swap_or_not, i, (pivots, salts), unroll=unroll)
    return i.astype(jnp.int32)


def _remainder(x: Array, n: Array) -> Array:
    """``x % n`` of unsigned numbers in one operation: that of jax.numpy also asks for signs and zeros, in nine."""
    return lax.rem(x, lax.broadcast(n, x.shape))


def _top_bit(x: Array) -> Array:
    """Whether the top bit of :func:`_hash`, which its last step does not touch, is set."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    return (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B) >= np.uint32(2**31)


def _hash(x: Array) -> Array:
    """A bijection of uint32 in which every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
