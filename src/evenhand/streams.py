"""Independent streams of randomness: every draw is keyed by (seed, purpose, round, client).

Because each purpose has a stream of its own, turning a feature on never changes the draws of another: the same
seed gives the same cohorts, stragglers and mini-batches to every method, which is what a fair comparison needs.
"""

from __future__ import annotations

from enum import IntEnum

import jax
import jax.numpy as jnp

from evenhand.types import Array, Key

__all__ = ["MAX_ROUNDS", "Purpose", "client_stream", "stream"]

MAX_ROUNDS = 2**24
"""Rounds in one run, at most."""


class Purpose(IntEnum):
    """What a stream is for.  The numbers are part of every saved run: never reuse one; below 16."""

    INIT = 0
    COHORT = 1
    WORK = 2
    PERSONAL = 3
    ATTACK = 4
    LIARS = 5
    AGGREGATOR = 6
    SERVER = 7
    STRAGGLERS = 8
    EVALUATION = 9


def stream(key: Key, purpose: Purpose, number: Array | int = 0, phase: int = 0) -> Key:
    """The key for ``purpose`` in one phase of one round.

    Args:
      key: the run's key, ``jax.random.key(seed)``, or a client's key when a wrapper adds a purpose to it.
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
