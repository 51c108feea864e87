"""What all tests share of compiled programs, those in docstrings included.

``conftest.py`` registers these fixtures, since its own do not reach docstrings, which are in another folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import jax
import pytest

# The more programs a process has, the longer each new one takes to compile: twice as long after 3,000 small ones.
# Their number shows in the memory maps, of which each takes dozens; Linux gives a process 65,530.
_MOST_MAPS = 8_000


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Programs of earlier modules are let go; the persistent cache spares their compilation."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()


def in_turns(make: Callable[[], Any], turns: int) -> Callable[[], Any]:
    """A function that makes something new every so many calls, which lets go of what the last has gathered."""
    calls, kept = count(), list[Any]()

    def made() -> Any:
        if next(calls) % turns == 0 or not kept:
            kept[:] = [make()]
        return kept[0]

    return made
