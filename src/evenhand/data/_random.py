"""Random streams of the data package: one per (seed, purpose), so that no two steps share their draws."""

from __future__ import annotations

import operator
import zlib

import numpy as np

from evenhand.errors import EvenhandError

__all__ = ["generator"]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator for ``purpose``; a partition and a split with the same seed draw from different streams."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise EvenhandError(f"seed must be a whole number of at least 0, not {seed!r}.")
    return np.random.default_rng([number, zlib.crc32(purpose.encode())])
