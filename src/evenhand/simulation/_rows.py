"""Training rows on the devices: all of them, where they fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from evenhand.data import FederatedDataset, Split
from evenhand.devices import everywhere
from evenhand.memory import aligned, is_aligned, is_mapped
from evenhand.rounds import malicious_clients, poisoned
from evenhand.simulation.program import Rows
from evenhand.types import Array, Attack, PyTree, Sampling

__all__ = ["Resident", "must_stream", "poison", "resident", "sent", "tabulated"]

NDArray = npt.NDArray[Any]

_SHARE = 3
"""One part in so many of an accelerator's memory may be filled with rows."""
_COPY = 2**30
"""Bytes that may be copied to where a CPU can use them in place; rows beyond, not aligned, are streamed."""


class Resident(NamedTuple):
    """All rows on every device."""

    rows: Rows

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """Rows for rounds from ``first`` on, and for how many of the ``count`` rounds asked for they serve."""
        return self.rows, count


def resident(
    data: FederatedDataset,
    attack: Attack | None,
    seed: int,
    mesh: Mesh | None = None,
    sampling: Sampling | None = None,
) -> Resident:
    """All training rows on the devices, those of malicious clients poisoned."""
    x, y = data.train.x, data.train.y
    malicious = malicious_clients(attack, data.client_ids, seed)
    if attack is not None and attack.rows is not None:
        x, y = x.copy(), y.copy()
        ids, offsets = np.flatnonzero(malicious), data.train.offsets
        poison(attack, seed, x, y, zip(ids, offsets[ids], offsets[ids + 1], strict=True))
    starts, sizes = data.train.offsets[:-1].astype(np.int32), data.train.sizes.astype(np.int32)
    if jax.default_backend() == "cpu":
        x, y = aligned(x), aligned(y)  # else each device would make a copy of its own
    table = tabulated(sampling, sizes)
    return Resident(Rows(*sent(mesh, (x, y)), *everywhere(mesh, (starts, sizes, malicious, table))))


def poison(
    attack: Attack, seed: int, x: NDArray, y: NDArray, windows: Iterable[tuple[Any, Any, Any]]
) -> None:
    """Overwrites the rows of some clients; ``windows`` are ``(client, first row, row after the last)``."""
    assert attack.rows is not None
    for client, first, end in windows:
        window = slice(int(first), int(end))
        x[window], y[window] = poisoned(attack.rows, x[window], y[window], seed, int(client))


def tabulated(sampling: Sampling | None, sizes: NDArray) -> PyTree:
    """What the sampling scheme makes of the clients' sizes once for all rounds."""
    if sampling is None or sampling.tabulate is None:
        return None
    return jax.tree.map(np.asarray, sampling.tabulate(jnp.asarray(sizes)))


def sent(mesh: Mesh | None, rows: tuple[NDArray, NDArray]) -> tuple[Array, Array]:
    """On the devices; a CPU uses them where they are."""
    return jax.device_put(rows) if mesh is None else everywhere(mesh, rows)


def must_stream(*splits: Split) -> bool:
    """Whether rows had better stay on the host: in a file, or too many for the device."""
    parts = [part for split in splits for part in (split.x, split.y)]
    if any(is_mapped(part) for part in parts):
        return True
    if jax.default_backend() == "cpu":
        return sum(part.nbytes for part in parts if not is_aligned(part)) > _COPY
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit is not None and sum(part.nbytes for part in parts) > limit / _SHARE
