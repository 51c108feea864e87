"""Models that are too large for this machine."""

from __future__ import annotations

import math
import os

import jax

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.types import Model

__all__ = ["check_size"]

_COPIES = 3
"""The server's model, a client's and the sum of the changes exist at the same time, whatever the method."""


def check_size(model: Model, data: FederatedDataset) -> None:
    """Checks by size alone that the machine can train the model; allocates nothing.

    Raises:
      EvenhandError: it cannot.
    """
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    needed = _COPIES * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    if needed <= (memory := _memory()):
        return
    classes = data.num_classes or 0
    # One odd label makes as many classes as it is large.
    cure = (
        f"its {classes:,} classes are the highest label and those below it, so number the labels from 0"
        if classes > data.train.rows
        else "give a smaller one"
    )
    raise EvenhandError(
        f"The model has {sum(math.prod(leaf.shape) for leaf in leaves):,} parameters, and training it takes "
        f"{needed / 2**30:,.0f} GiB at least, of which the machine has {memory / 2**30:,.0f}: {cure}."
    )


def _memory() -> float:
    """Bytes that the device has, or else the machine; infinite where neither is known."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit:
        return float(limit)
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return math.inf
