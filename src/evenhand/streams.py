"""Independent streams of randomness: every draw is keyed by (seed, purpose, round, client).

Because each purpose has its own stream, turning a feature on never changes the draws of another: the same
seed gives the same cohorts, stragglers and mini-batches to every method, which is what a fair comparison needs.

What must be hidden from clients, such as noise and masks, comes from a root that cannot be computed from theirs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.types import Array, Key

__all__ = ["MAX_ROUNDS", "Keys", "Purpose", "client_stream", "keys_of", "stream"]

MAX_ROUNDS = 2**24
"""Rounds in one run, at most."""


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
    return Keys(jax.random.key(seed), jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32)))


def stream(key: Key, purpose: Purpose, number: Array | int = 0, phase: int = 0) -> Key:
    """The key for ``purpose`` in one phase of one round.

    Args:
      key: one of the run's :class:`Keys`, or a client's key when a wrapper adds a purpose to it.
      purpose: which stream.
      number: the round, below :data:`MAX_ROUNDS`; may be a tracer.
      phase: which exchange of the round, below 16.

    Example:
      >>> import jax
      >>> root = jax.random.key(0)
      >>> bool(stream(root, Purpose.WORK, 3) == stream(root, Purpose.COHORT, 3))
      False
    """
    # One counter for all three: each fold is a cipher that has to be compiled and run.
    prefix = (int(purpose) * 16 + phase) * MAX_ROUNDS
    return jax.random.fold_in(key, jnp.asarray(number).astype(jnp.uint32) + jnp.uint32(prefix))


def client_stream(key: Key, client: Array | int) -> Key:
    """The key of one client within a stream."""
    return jax.random.fold_in(key, client)
