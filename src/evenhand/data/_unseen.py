"""Clients set aside before training, to see how a method serves clients that it never saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._random import generator
from evenhand.errors import EvenhandError

__all__ = ["hold_out_clients"]


def hold_out_clients(
    data: FederatedDataset, fraction: float = 0.2, *, seed: int = 0
) -> tuple[FederatedDataset, FederatedDataset]:
    """``(seen, unseen)``: the data of the clients to train on, and of a share of all clients, drawn at random.

    Args:
      data: all clients.
      fraction: the share that is set aside, in (0, 1), rounded to whole clients; at least one client is on each side.
      seed: decides which clients these are.

    Raises:
      EvenhandError: the fraction is out of range, or there is one client only.

    Example:
      >>> import evenhand as eh
      >>> seen, unseen = hold_out_clients(eh.data.load("digits", clients=10), 0.3)
      >>> seen.num_clients, unseen.num_clients
      (7, 3)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(eh.algorithms.fedavg(work), seen, rounds=5)
      >>> run.serve(unseen).client_metrics("test")["accuracy"].shape
      (3,)
    """
    if not 0 < fraction < 1:
        raise EvenhandError(
            f"hold_out_clients(fraction={fraction}): give a number between 0 and 1, such as 0.2."
        )
    if data.num_clients < 2:
        raise EvenhandError(
            f"{data.name} has one client only, which cannot be trained on and set aside, too."
        )
    count = int(np.clip(round(fraction * data.num_clients), 1, data.num_clients - 1))
    order = generator(seed, "hold out clients").permutation(data.num_clients)
    return _of(data, np.sort(order[count:])), _of(data, np.sort(order[:count]))


def _of(data: FederatedDataset, clients: NDArray) -> FederatedDataset:
    def part(split: Split) -> Split:
        rows = np.concatenate([np.arange(*split.offsets[k : k + 2]) for k in clients])
        offsets = np.concatenate([[0], np.cumsum(split.sizes[clients])])
        return Split(split.x[rows], split.y[rows], offsets)

    train, valid, test = (part(split) for split in (data.train, data.valid, data.test))
    names = tuple(data.client_ids[k] for k in clients)
    return replace(data, train=train, valid=valid, test=test, client_ids=names)
