"""The clients: two of the plane for the toy suite, and MNIST dealt out so that each holds two digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import evenhand as eh

__all__ = ["BLACK", "MEAN", "SCALE", "WHITE", "deal", "mnist", "toy"]

NDArray: TypeAlias = npt.NDArray[Any]

MEAN, SCALE = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's pixels, from 0 to 1: what the images are normalised with."""

BLACK, WHITE = -MEAN / SCALE, (1.0 - MEAN) / SCALE
"""Pixels 0 and 1, normalised."""

_TOY: dict[int, tuple[tuple[tuple[float, float], float], ...]] = {
    1: (((0.5, 2.0), 0.5), ((2.5, 1.0), 0.5), ((1.0, 2.2), 0.5), ((2.2, 0.8), 0.5)),
    2: (((0.5, 2.0), 0.35), ((2.0, 1.0), 0.25), ((0.5, 2.0), 0.35), ((2.5, 1.8), 0.25)),
    3: (((1.0, 2.0), 1.0), ((2.5, 1.0), 0.3), ((1.0, 2.0), 1.0), ((2.5, 1.0), 0.3)),
}
"""Table IV: centre and standard deviation of classes 1 and 2 at client 1, then at client 2."""
_TOY_ROWS = {1: (100, 100), 2: (150, 50), 3: (150, 50)}


def toy(experiment: int, test_rows: int, seed: int) -> eh.data.FederatedDataset:
    """Table IV: two clients with two classes each, labelled 0 and 1.

    Args:
      experiment: 1, 2 or 3.
      test_rows: clean rows per class and client to test on, the same for every seed.
      seed: of the training rows.
    """
    rng, fresh = np.random.default_rng((experiment, seed)), np.random.default_rng(99)
    train, test = list[NDArray](), list[NDArray]()
    for place, (centre, deviation) in enumerate(_TOY[experiment]):
        train.append(rng.normal(centre, deviation, (_TOY_ROWS[experiment][place % 2], 2)))
        test.append(fresh.normal(centre, deviation, (test_rows, 2)))
    return _dataset(train, test, [0, 1, 0, 1], f"toy experiment {experiment}")


def mnist(folder: Path, clients: int, most: int | None, seed: int) -> eh.data.FederatedDataset:
    """MNIST, normalised and flat: each client holds two digits, each digit is cut into equal parts for its holders.

    Args:
      folder: the one with ``mnist.npz``.
      clients: how many; a multiple of 5.
      most: training images of a digit that a client keeps at most; None: all of its part.
      seed: of the deal and of the shuffles.

    Raises:
      SystemExit: there is no such file.
    """
    path = folder / "mnist.npz"
    if not path.is_file():
        raise SystemExit(
            f"There is no {path}: say with --data-dir where it is, or leave the suite mnist out."
        )
    with np.load(path, allow_pickle=False) as table:
        columns = {name: table[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    rng = np.random.default_rng((seed, 62))
    holds = deal(rng, clients, 10)
    parts: dict[str, list[NDArray]] = {}
    for split in ("train", "test"):
        x, y = columns[f"x_{split}"], columns[f"y_{split}"]
        own = [iter(np.array_split(rng.permutation(np.flatnonzero(y == k)), clients // 5)) for k in range(10)]
        rows = [next(own[k]) for k in holds.reshape(-1)]
        kept = [part[: most if split == "train" else None] for part in rows]
        parts[split] = [(x[part].reshape(len(part), -1) / 255.0 - MEAN) / SCALE for part in kept]
    return _dataset(parts["train"], parts["test"], holds.reshape(-1).tolist(), "MNIST, two digits per client")


def deal(rng: np.random.Generator, clients: int, classes: int) -> NDArray:
    """Two distinct classes for each client, ``(clients, 2)`` ascending, each class for as many clients.

    Every such deal of places to clients is as likely as any other: all of it is drawn again until no client has one
    class twice.
    """
    slots = np.repeat(np.arange(classes), 2 * clients // classes)
    while True:
        pairs = rng.permutation(slots).reshape(clients, 2)
        if (pairs[:, 0] != pairs[:, 1]).all():
            return np.sort(pairs, axis=1)


def _dataset(
    train: list[NDArray], test: list[NDArray], labels: list[int], name: str
) -> eh.data.FederatedDataset:
    """Client ``k`` from the parts ``2k`` and ``2k + 1``, each of one class."""
    clients = len(labels) // 2
    none = eh.data.Split(
        train[0][:0].astype(np.float32), np.zeros(0, np.int32), np.zeros(clients + 1, np.int64)
    )
    ids = tuple(str(k + 1) for k in range(clients))
    return eh.data.FederatedDataset(_split(train, labels), none, _split(test, labels), ids, name)


def _split(parts: list[NDArray], labels: list[int]) -> eh.data.Split:
    sizes = np.array([len(part) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])[::2]
    x = np.concatenate(parts).astype(np.float32)
    return eh.data.Split(x, np.repeat(np.array(labels, np.int32), sizes), offsets)
