"""Random streams of the data package: one per (seed, purpose), so that no two steps share their draws."""

from __future__ import annotations

import zlib

import numpy as np

from evenhand.errors import whole_number

__all__ = ["generator"]

_LARGEST = 2**128 - 1
"""The largest seed; NumPy takes any, but one of millions of digits is a mistake."""


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator for ``purpose``; a partition and a split with the same seed draw from different streams."""
    return np.random.default_rng([whole_number("seed", seed, 0, _LARGEST), zlib.crc32(purpose.encode())])
