"""Stand-ins for Vehicle: 23 devices of its sizes and form, made of MNIST's training images."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import evenhand as eh

__all__ = ["Label", "Mixtures", "apart", "devices", "sizes_like_vehicle", "skewed"]

NDArray: TypeAlias = npt.NDArray[Any]
Label: TypeAlias = Literal["parity", "half"]
Mixtures: TypeAlias = Callable[[int, np.random.Generator], NDArray]
"""``(devices, random) -> shares``: the share of each digit on each device, ``(devices, 10)``."""

_DIGITS = 10


def skewed(alpha: float) -> Mixtures:
    """Each device has a Dirichlet draw of its own.

    Args:
      alpha: its concentration.
    """
    return lambda count, random: random.dirichlet(np.full(_DIGITS, alpha), count)


def apart(few: int, pair: tuple[int, int]) -> Mixtures:
    """A few devices hold two digits that nobody else has, half and half; the others have Dirichlet(1) draws.

    Args:
      few: how many, at random places.
      pair: the two digits.
    """
    return partial(_apart, few=few, pair=pair)


def devices(
    folder: Path,
    seed: int,
    mixtures: Mixtures,
    *,
    sizes: tuple[int, ...],
    features: int,
    label: Label,
    held_out: float,
) -> eh.data.FederatedDataset:
    """MNIST's training images dealt to devices, without replacement.

    A device's features are its images' principal components, z-scored over all its rows, as in the code for Vehicle;
    one that does not vary on a device is 0 there.  Labels are 0 and 1, which a support vector machine takes for -1
    and +1.

    Args:
      folder: has ``mnist.npz``.
      seed: of the devices' digits, and of which of their rows are for training, validation and testing.
      mixtures: of digits.
      sizes: rows of each device.
      features: how many principal components, of all training images.
      label: "parity": 1 for odd digits; "half": 1 for 5 to 9.
      held_out: share of a device's rows for validation, and as much for testing.

    Raises:
      SystemExit: there is no such file, or it has too few images.
    """
    x, digits = _components(folder / "mnist.npz", features)
    random = np.random.default_rng([seed, len(sizes)])
    dealt = _deal(digits, sizes, mixtures(len(sizes), random), random)
    owned = digits[np.concatenate(dealt)]
    return eh.data.from_arrays(
        np.concatenate([_standardised(x[rows]) for rows in dealt]),
        (owned % 2 if label == "parity" else owned >= 5).astype(np.int32),
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
      deviation: of the sizes, with ddof 0.
    """
    normal = NormalDist()
    ranks = np.array([normal.inv_cdf((k + 0.5) / count) for k in range(count)])
    return tuple(np.rint(mean + deviation * ranks / ranks.std()).astype(int).tolist())


def _apart(count: int, random: np.random.Generator, *, few: int, pair: tuple[int, int]) -> NDArray:
    theirs = np.isin(np.arange(_DIGITS), pair)
    shares = np.zeros((count, _DIGITS))
    shares[:, ~theirs] = random.dirichlet(np.ones(_DIGITS - len(pair)), count)
    shares[random.choice(count, few, replace=False)] = theirs / len(pair)
    return shares


@lru_cache(maxsize=1)
def _components(path: Path, features: int) -> tuple[NDArray, NDArray]:
    if not path.is_file():
        raise SystemExit(f"There is no {path}: say with --data-dir where it is.")
    with np.load(path, allow_pickle=False) as file:
        pixels, digits = file["x_train"], file["y_train"].astype(np.int32)
    x = pixels.reshape(len(pixels), -1) / np.float32(255)
    x = x - x.mean(axis=0)
    # eigh has the largest eigenvalues last.
    return x @ np.linalg.eigh(x.T @ x)[1][:, : -features - 1 : -1], digits


def _standardised(x: NDArray) -> NDArray:
    spread = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(spread > 0, spread, np.inf)


def _deal(
    digits: NDArray, sizes: tuple[int, ...], shares: NDArray, random: np.random.Generator
) -> list[NDArray]:
    """Rows of each device; devices take in random order, of its digits those that are left."""
    pools = [random.permutation(np.flatnonzero(digits == digit)) for digit in range(_DIGITS)]
    left = np.array([len(pool) for pool in pools])
    dealt: dict[int, NDArray] = {}
    for device in random.permutation(len(sizes)).tolist():
        taken = np.zeros(_DIGITS, int)
        while (missing := sizes[device] - taken.sum()) > 0:
            there = np.where(left > taken, shares[device], 0.0)
            if there.sum() < 1e-9:
                there = np.where(shares[device] > 0, left - taken, 0).astype(float)
            if not there.any():
                raise SystemExit("There are too few images of some digits for so many rows.")
            taken = np.minimum(taken + random.multinomial(missing, there / there.sum()), left)
        dealt[device] = np.concatenate(
            [pool[a:b] for pool, a, b in zip(pools, left - taken, left, strict=True)]
        )
        left = left - taken
    return [dealt[device] for device in range(len(sizes))]
