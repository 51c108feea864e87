"""A stand-in for Vehicle: 23 devices of its sizes and form, made of MNIST's training images."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import evenhand as eh

__all__ = ["Label", "devices", "sizes_like_vehicle"]

NDArray: TypeAlias = npt.NDArray[Any]
Label: TypeAlias = Literal["parity", "half"]


def devices(
    folder: Path,
    seed: int,
    *,
    sizes: tuple[int, ...],
    features: int,
    alpha: float,
    label: Label,
    held_out: float,
) -> eh.data.FederatedDataset:
    """MNIST's training images dealt to devices, without replacement, each with a Dirichlet draw of digits.

    A device's features are its images' principal components, z-scored over all its rows, as the code for Vehicle
    does; one that does not vary on a device is 0 there.  Labels are 0 and 1, which a support vector machine takes for
    -1 and +1.

    Args:
      folder: has ``mnist.npz``.
      seed: of the devices' digits, and of which of their rows are for training, validation and testing.
      sizes: rows of each device.
      features: how many principal components, of all training images.
      alpha: of the Dirichlet draw.
      label: "parity": 1 for odd digits; "half": 1 for 5 to 9.
      held_out: share of a device's rows for validation, and as much for testing.

    Raises:
      SystemExit: there is no such file.
    """
    x, digits = _components(folder / "mnist.npz", features)
    dealt = _deal(digits, sizes, alpha, np.random.default_rng([seed, 23]))
    rows = np.concatenate(dealt)
    return eh.data.from_arrays(
        np.concatenate([_standardised(x[each]) for each in dealt]),
        digits[rows] % 2 if label == "parity" else (digits[rows] >= 5).astype(np.int32),
        np.repeat(np.arange(len(sizes)), sizes),
        test_fraction=held_out,
        valid_fraction=held_out,
        seed=seed,
        name="MNIST in Vehicle's form",
    )


def sizes_like_vehicle(count: int, mean: float, deviation: float) -> tuple[int, ...]:
    """Quantiles of a normal law, stretched to the deviation: all seeds have the same sizes, and compile once.

    Args:
      count: how many devices.
      mean: of the sizes.
      deviation: of the sizes, dividing by their number.
    """
    ranks = np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
    return tuple(np.rint(mean + deviation * ranks / ranks.std()).astype(int).tolist())


@lru_cache(maxsize=1)
def _components(path: Path, features: int) -> tuple[NDArray, NDArray]:
    if not path.is_file():
        raise SystemExit(f"There is no {path}: say with --data-dir where it is.")
    with np.load(path, allow_pickle=False) as file:
        pixels, digits = file["x_train"], file["y_train"].astype(np.int32)
    x = pixels.reshape(len(pixels), -1) / np.float32(255)
    x = x - x.mean(axis=0)
    # eigh has the largest last.
    axes = np.linalg.eigh(x.T @ x)[1][:, : -features - 1 : -1]
    return x @ axes, digits


def _standardised(x: NDArray) -> NDArray:
    spread = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(spread > 0, spread, np.inf)


def _deal(digits: NDArray, sizes: tuple[int, ...], alpha: float, random: np.random.Generator) -> list[NDArray]:
    """Rows of each device; devices choose in random order, among digits of which there are some left."""
    pools = [random.permutation(np.flatnonzero(digits == digit)) for digit in range(10)]
    left = np.array([len(pool) for pool in pools])
    dealt: dict[int, NDArray] = {}
    for device in random.permutation(len(sizes)).tolist():
        shares = random.dirichlet(np.full(10, alpha))
        taken = np.zeros(10, int)
        while (missing := sizes[device] - taken.sum()) > 0:
            there = np.where(left > taken, shares, 0.0)
            if there.sum() < 1e-9:
                there = (left - taken).astype(float)
            taken = np.minimum(taken + random.multinomial(missing, there / there.sum()), left)
        dealt[device] = np.concatenate(
            [pool[a:b] for pool, a, b in zip(pools, left - taken, left, strict=True)]
        )
        left = left - taken
    return [dealt[device] for device in range(len(sizes))]
