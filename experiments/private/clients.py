"""Thousands of clients whose labels differ, and how a model serves each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import evenhand as eh
from evenhand.data import FederatedDataset, Split
from experiments.delta_fl import data as delta_fl
from experiments.fairness import Measures

__all__ = ["PlaceName", "Places", "label_shift", "mnist", "pooled_mnist", "public_images", "served"]

NDArray: TypeAlias = npt.NDArray[Any]
PlaceName: TypeAlias = Literal["label shift", "mnist", "pooled mnist"]
Places: TypeAlias = Callable[[int], "Place"]
"""The clients of a seed."""


class Place(NamedTuple):
    """The clients, and the rows on which models are measured.

    Attributes:
      data: the rows for training, each client's or all as one client's.
      shares: each client's share of each label, ``(clients, labels)``.
      rows: for ``"valid"`` and ``"test"``, rows of each label, as if each label were a client.
      strangers: for both, other clients; none for MNIST.
    """

    data: FederatedDataset
    shares: NDArray
    rows: dict[str, Split]
    strangers: dict[str, Split]


@lru_cache(maxsize=8)
def label_shift(clients: int, strangers: int, seed: int) -> Place:
    """The label shift of Delta-FL's figure 6: Dirichlet(0.5) over labels for the clients, (0.01) for strangers.

    Args:
      clients: how many train.
      strangers: how many others choose settings, and as many again are measured.
      seed: of who has which rows.
    """
    shape = {"clients": clients, "strangers": 2 * strangers, "rows": 100}
    alphas = {"alpha": 0.5, "stranger_alpha": 0.01}
    data, tests = delta_fl.clients("synthetic", Path(), seed, **shape, **alphas)
    others = {part: _some(tests[""], strangers * i, strangers) for i, part in enumerate(("valid", "test"))}
    rows = {part: by_label(split.x, split.y, 10) for part, split in others.items()}
    return Place(data, delta_fl.shares(data.train, 10), rows, others)


@lru_cache(maxsize=8)
def mnist(folder: Path, clients: int, seed: int, digits: int = 2, public: int = 0) -> Place:
    """MNIST's training images, but for a sixth that chooses settings, dealt to clients of a few digits each.

    Args:
      folder: has ``mnist.npz``.
      clients: how many.
      seed: of who has which images.
      digits: how many different ones each client has.
      public: how many images are left out, those of :func:`public_images`.
    """
    parts = _images(folder)
    x, y = parts["train"]
    left = _drawn_once(len(y))[public:] if public else np.arange(len(y))
    order = left[np.random.default_rng([seed, 31]).permutation(len(left))]
    kept, aside = order[len(left) // 6 :], order[: len(left) // 6]
    owner = eh.data.partition.shards(y[kept], clients, digits, seed)
    data = eh.data.from_arrays(x[kept], y[kept], owner, test_fraction=0.0, seed=seed, name="MNIST")
    rows = {"valid": by_label(x[aside], y[aside], 10), "test": by_label(*parts["test"], 10)}
    return Place(data, delta_fl.shares(data.train, 10), rows, {})


@lru_cache(maxsize=8)
def pooled_mnist(folder: Path, clients: int, public: int, seed: int) -> Place:
    """The same clients, whose images have been brought together, as one client."""
    place = mnist(folder, clients, seed, public=public)
    x, y = place.data.train.x, place.data.train.y
    split = Split(x, y, np.array([0, len(y)]))
    none = Split(x[:0], y[:0], np.array([0, 0]))
    return place._replace(data=FederatedDataset(split, none, none, ("all",), name="MNIST"))


def public_images(folder: Path, count: int) -> tuple[NDArray, NDArray]:
    """Training images, the same for each seed, with their labels."""
    x, y = _images(folder)["train"]
    rows = _drawn_once(len(y))[:count]
    return x[rows], y[rows]


def served(place: Place, run: eh.Run) -> Measures:
    """How well the final model serves the clients, and strangers where there are some, on both parts.

    A client's accuracy and loss are those expected on rows with its own shares of labels, without the chance of a few
    test rows of its own.  Accuracies and errors are in percent.
    """
    told: Measures = {}
    for part, rows in place.rows.items():
        found = eh.evaluation.evaluate(run.algorithm.model, run.params, rows)
        # Noise can drive a model to where it is not a number; it then serves nobody.
        right = np.nan_to_num(place.shares @ found["accuracy"])
        loss = place.shares @ found["loss"]
        of = eh.evaluation.summarize(right), eh.evaluation.summarize(loss, higher_is_better=False)
        told |= {f"{part}_{what}": 100 * of[0][what] for what in ("mean", "worst10", "error_p90")}
        told |= {f"{part}_loss_{what}": of[1][what] for what in ("mean", "worst10", "p90")}
    for part, split in place.strangers.items():
        found = eh.evaluation.evaluate(run.algorithm.model, run.params, split)
        errors = 100 * (1 - np.nan_to_num(found["accuracy"]))
        told |= {f"{part}_stranger_error_mean": float(errors.mean())}
        told |= {f"{part}_stranger_error_p90": float(np.percentile(errors, 90))}
    return told


@lru_cache(maxsize=1)
def _images(folder: Path) -> dict[str, tuple[NDArray, NDArray]]:
    """Pixels from 0 to 1, and labels, of both parts."""
    with np.load(folder / "mnist.npz", allow_pickle=False) as file:
        return {
            part: (_flat(file[f"x_{part}"]), file[f"y_{part}"].astype(np.int32)) for part in ("train", "test")
        }


def _drawn_once(images: int) -> NDArray:
    return np.random.default_rng(31).permutation(images)


def by_label(x: NDArray, y: NDArray, labels: int) -> Split:
    """The rows in the order of their labels, each label as if it were a client."""
    order = np.argsort(y, kind="stable")
    return Split(x[order], y[order], np.concatenate([[0], np.cumsum(np.bincount(y, minlength=labels))]))


def _some(split: Split, first: int, clients: int) -> Split:
    offsets = split.offsets[first : first + clients + 1]
    return Split(split.x[offsets[0] : offsets[-1]], split.y[offsets[0] : offsets[-1]], offsets - offsets[0])


def _flat(pixels: NDArray) -> NDArray:
    return pixels.reshape(len(pixels), 784) / np.float32(255)
