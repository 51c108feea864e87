"""Sums in float32 that remember what rounding has lost."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evenhand.types import Array

__all__ = ["Total", "add", "sum_of"]


class Total(NamedTuple):
    """A running sum and what rounding has lost of it so far (Neumaier)."""

    sum: Array
    lost: Array


def add(total: Total, values: Array) -> Total:
    """Adds the sum over the last axis of ``values``."""
    term = jnp.sum(values, axis=-1)
    new = total.sum + term
    lost = jnp.where(jnp.abs(total.sum) >= jnp.abs(term), (total.sum - new) + term, (term - new) + total.sum)
    return Total(new, total.lost + lost)


def sum_of(total: Total) -> Array:
    """The sum."""
    # After an infinity the correction is NaN and the sum is right without it.
    return jnp.where(jnp.isfinite(total.sum), total.sum + total.lost, total.sum)
