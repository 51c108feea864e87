"""Validation examples for data that came without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._random import generator
from evenhand.errors import EvenhandError

__all__ = ["hold_out"]


def hold_out(data: FederatedDataset, fraction: float = 0.2, *, seed: int = 0) -> FederatedDataset:
    """The data with a share of each client's training examples, drawn at random, as validation examples.

    Each client keeps at least one training example; a client with few may get no validation example.

    Args:
      data: clients without validation examples.
      fraction: the share, in (0, 1).
      seed: decides which examples are taken.

    Raises:
      EvenhandError: there are validation examples already, or the fraction is out of range.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=4)
      >>> hold_out(data, 0.25)
      <FederatedDataset 'digits': 4 clients, 1078 + 359 + 360 rows, x float32 (64,), 10 classes>
    """
    if data.valid.rows:
        raise EvenhandError(f"{data.name} has {data.valid.rows:,} validation examples already: use those.")
    if not 0 < fraction < 1:
        raise EvenhandError(f"hold_out(fraction={fraction}): give a number between 0 and 1, such as 0.2.")
    sizes, offsets = data.train.sizes, data.train.offsets
    client = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((generator(seed, "hold out").random(len(client)), client))
    rank = np.arange(len(client)) - offsets[:-1][client]
    kept = np.maximum(1, sizes - np.floor(np.round(fraction * sizes, 6)).astype(np.int64))
    stays = rank < kept[client]

    def part(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Split:
        rows = np.sort(order[chosen])  # in the order of the data
        counts = np.bincount(client[rows], minlength=len(sizes))
        return Split(data.train.x[rows], data.train.y[rows], np.concatenate([[0], np.cumsum(counts)]))

    return replace(data, train=part(stays), valid=part(~stays))
