"""MNIST, dealt to unlike clients."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import evenhand as eh

__all__ = ["Deal", "dealt", "mnist", "sizes_of"]

Deal = Literal["dirichlet", "two classes"]
NDArray: TypeAlias = npt.NDArray[Any]

_DIGITS = 10
_UNEVEN = 16.0
"""How many times as many images the largest client has as the smallest."""


def mnist(
    folder: Path,
    seed: int,
    *,
    deal: Deal,
    clients: int,
    images: int,
    alpha: float = 0.3,
) -> eh.data.FederatedDataset:
    """Training images of MNIST, 60 % of each client's for training, 20 % each for validation and testing.

    Clients have from a quarter to four times the typical number of images, the same numbers for every seed, so that
    all seeds run in one compiled program.

    Args:
      folder: with mnist.npz.
      seed: of the digits of each client, of its images and of the split.
      deal: shares of the digits by a Dirichlet draw for each client; or two digits, half of the images each.
      clients: how many.
      images: of all clients together, about.
      alpha: of the Dirichlet draws.

    Returns:
      Rows of 196 features: images of 14 x 14, the means of 2 x 2 pixels.
    """
    x, y = _images(folder / "mnist.npz")
    rows, client = dealt(y, seed, deal=deal, clients=clients, images=images, alpha=alpha)
    return eh.data.from_arrays(
        _pooled(x[rows]), y[rows], client, test_fraction=0.2, valid_fraction=0.2, seed=seed
    )


def dealt(
    y: NDArray, seed: int, *, deal: Deal, clients: int, images: int, alpha: float = 0.3
) -> tuple[NDArray, NDArray]:
    """Which images are dealt, no image twice, and to which client each of them; arguments as of :func:`mnist`."""
    random = np.random.default_rng(seed)
    sizes = sizes_of(random, clients, images)
    if deal == "dirichlet":
        shares = random.dirichlet(np.full(_DIGITS, alpha), clients)
    else:
        pairs = [random.choice(_DIGITS, 2, replace=False) for _ in range(clients)]
        shares = np.array([np.isin(np.arange(_DIGITS), pair) / 2 for pair in pairs])
    digits = [random.choice(_DIGITS, size, p=share) for size, share in zip(sizes, shares, strict=True)]
    return _rows(np.concatenate(digits), y, random), np.repeat(np.arange(clients), sizes)


def sizes_of(random: np.random.Generator, clients: int, images: int) -> NDArray:
    """How many images each client has, in random order: the same numbers for every seed."""
    sizes = np.geomspace(1.0, _UNEVEN, clients)
    return random.permutation(10 * np.maximum(np.round(images / 10 * sizes / sizes.sum()), 1).astype(int))


def _rows(digits: NDArray, y: NDArray, random: np.random.Generator) -> NDArray:
    """An image of each digit, no image twice."""
    rows = np.empty(len(digits), int)
    for digit in range(_DIGITS):
        wanted = np.flatnonzero(digits == digit)
        pool = np.flatnonzero(y == digit)
        if len(wanted) > len(pool):
            raise SystemExit(f"There are too few images of the digit {digit}: ask for fewer images.")
        rows[wanted] = random.choice(pool, len(wanted), replace=False)
    return rows


def _pooled(x: NDArray) -> NDArray:
    return x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)


@lru_cache(maxsize=1)
def _images(path: Path) -> tuple[NDArray, NDArray]:
    if not path.is_file():
        raise SystemExit(f"There is no {path}: say with --data-dir where it is.")
    with np.load(path, allow_pickle=False) as file:
        return file["x_train"] / np.float32(255), file["y_train"].astype(np.int32)
