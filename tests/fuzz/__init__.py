"""Fuzzed files: small valid ones with their structure changed, each made from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.archives import idx, npz
from fuzz.collected import collected, libsvm
from fuzz.leaf import leaf
from fuzz.tables import csv, parquet_table

FORMATS: dict[str, Callable[[random.Random, Path], Path]] = {
    "csv": csv,
    "parquet": parquet_table,
    "npz": npz,
    "leaf": leaf,
    "idx": idx,
    "libsvm": libsvm,
    "published": collected,
}

LATER = 10**6
"""From this number on, files are of the formats that came later, so that those of the first five stay the same."""

_FIRST = 5


def write(seed: int, folder: Path) -> tuple[str, Path, dict[str, Any]]:
    """File number ``seed`` in an empty ``folder``: its format, its path, and the options to load it with."""
    names = list(FORMATS)[_FIRST:] if seed >= LATER else list(FORMATS)[:_FIRST]
    name = names[seed % len(names)]
    rng = random.Random(seed)
    path = FORMATS[name](rng, folder)
    options: dict[str, Any] = rng.choice([{}, {}, {}, {}, {}, {"clients": 3}, {"regression": True}])
    return name, path, options
