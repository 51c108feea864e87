"""The clients of the experiments on personal models, and the model that each kind of them trains."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from PIL import Image

import evenhand as eh
from experiments.robust.data import dealt, mnist, sizes_of

__all__ = ["PLACES", "Kind", "Place", "clients_of", "model_of"]

Place = Literal["two classes", "dirichlet", "synthetic", "shakespeare", "cifar10"]
NDArray: TypeAlias = npt.NDArray[Any]

_COMMON = " abcdefghijklmnopqrstuvwxyz\n',."
_LETTERS = len(_COMMON) + 1
"""The most frequent characters of Shakespeare in lower case, and one for all others."""
_WINDOW = 5
_FEATURES = 196
_POOL = 40_000
"""Training images of CIFAR10 that are decoded, and dealt from."""


class Kind(NamedTuple):
    """What goes with a place.

    Attributes:
      classes: of its labels.
      rates: step sizes that each method chooses from (ours).
      rows: of all clients together.
    """

    classes: int
    rates: tuple[float, ...]
    rows: int = 0


PLACES: Mapping[Place, Kind] = {
    "two classes": Kind(10, (0.1, 0.3), 20_000),
    "dirichlet": Kind(10, (0.1, 0.3), 20_000),
    "synthetic": Kind(10, (0.03, 0.1), 20_000),
    "shakespeare": Kind(_LETTERS, (0.1, 0.8)),
    "cifar10": Kind(10, (0.03, 0.1), 20_000),
}


def clients_of(place: Place, folder: Path, seed: int, clients: int, images: int) -> eh.data.FederatedDataset:
    """The clients of one seed; a fifth of the rows of each are for validation, and a fifth for testing.

    Args:
      place: which data.
      folder: with mnist.npz, shakespeare_speakers.npz and cifar10_jpeg.npz.
      seed: of everything random.
      clients: how many.
      images: or other rows, of all clients together; 0: as many as :data:`PLACES` says.
    """
    images = images or PLACES[place].rows
    if place == "synthetic":
        return _synthetic(seed, clients, images)
    if place == "shakespeare":
        return _speakers(folder, seed, clients)
    if place == "cifar10":
        return _cifar10(folder, seed, clients, images)
    return mnist(folder, seed, deal=place, clients=clients, images=images)


def model_of(place: Place) -> eh.Model:
    """Softmax regression; characters are one-hot vectors."""
    if place != "shakespeare":
        return eh.models.softmax_regression(_FEATURES, classes=10)
    model = eh.models.softmax_regression(_WINDOW * _LETTERS, classes=_LETTERS)
    return model._replace(apply=lambda params, x: model.apply(params, jax.nn.one_hot(x, _LETTERS)))


def _synthetic(seed: int, clients: int, rows: int) -> eh.data.FederatedDataset:
    """The largest third of the clients of Synthetic(1, 1), cut to the sizes of MNIST's, with columns of zeros.

    Thus all seeds, and MNIST, run in the same compiled programs.
    """
    drawn = eh.data.synthetic(1.0, 1.0, clients=3 * clients, seed=seed, max_size=1000, test_fraction=0.0)
    sizes = sizes_of(np.random.default_rng(seed), clients, rows)
    chosen = np.empty(clients, int)
    chosen[np.argsort(sizes)] = np.argsort(drawn.train.sizes, kind="stable")[-clients:]
    first = drawn.train.offsets[chosen]
    if (drawn.train.sizes[chosen] < sizes).any():
        raise SystemExit("There are too few rows: ask for fewer.")
    kept = np.concatenate([np.arange(at, at + size) for at, size in zip(first, sizes, strict=True)])
    x = np.pad(drawn.train.x[kept], ((0, 0), (0, _FEATURES - drawn.train.x.shape[1])))
    return _split(x, drawn.train.y[kept], np.repeat(np.arange(clients), sizes), seed)


def _split(x: NDArray, y: NDArray, client: NDArray, seed: int) -> eh.data.FederatedDataset:
    return eh.data.from_arrays(x, y, client, test_fraction=0.2, valid_fraction=0.2, seed=seed)


def _speakers(folder: Path, seed: int, clients: int, most: int = 200) -> eh.data.FederatedDataset:
    """Those speakers who have most text; a row is five characters and the one that follows.

    Each has as many rows at every seed, at most 200, from another place in its text: the first three fifths to learn
    from, then a fifth for validation and a fifth for testing, so that no character is in two of them.
    """
    texts = sorted(_texts(folder / "shakespeare_speakers.npz"), key=len, reverse=True)
    if clients > len(texts):
        raise SystemExit(f"There are {len(texts)} speakers: ask for no more clients than that.")
    random = np.random.default_rng(seed)
    parts: list[list[NDArray]] = [[], [], []]
    for place in random.permutation(clients):
        text = texts[place]
        rows = min(most, len(text) - 3 * _WINDOW)
        start = random.integers(len(text) - rows - 3 * _WINDOW + 1)
        windows = np.lib.stride_tricks.sliding_window_view(text[start:], _WINDOW + 1)
        tested, first = rows // 5, 0
        for part, many in zip(parts, (rows - 2 * tested, tested, tested), strict=True):
            part.append(windows[first : first + many])
            first += many + _WINDOW
    train, valid, test = (
        eh.data.Split(
            np.concatenate(part)[:, :-1],
            np.concatenate(part)[:, -1],
            np.concatenate([[0], np.cumsum([len(each) for each in part])]),
        )
        for part in parts
    )
    return eh.data.FederatedDataset(train, valid, test, tuple(map(str, range(clients))), "Shakespeare")


@lru_cache(maxsize=1)
def _texts(path: Path) -> list[NDArray]:
    token = {character: number for number, character in enumerate(_COMMON)}
    with np.load(path, allow_pickle=False) as file:
        texts = file["text"].tolist()
    return [np.array([token.get(each, len(token)) for each in text.lower()], np.int32) for text in texts]


def _cifar10(folder: Path, seed: int, clients: int, images: int) -> eh.data.FederatedDataset:
    """Dirichlet(0.3) shares of the classes, as MNIST; colours and contrast on a grid of 7 x 7, standardised."""
    x, y = _pictures(folder / "cifar10_jpeg.npz")
    rows, client = dealt(y, seed, deal="dirichlet", clients=clients, images=images)
    return _split(x[rows], y[rows], client, seed)


@lru_cache(maxsize=1)
def _pictures(path: Path) -> tuple[NDArray, NDArray]:
    """Of each 4 x 4 pixels of the inner 28 x 28: the means of red, green and blue, and the deviation of grey."""
    with np.load(path, allow_pickle=False) as file:
        jpeg, offsets, label = file["jpeg"], file["offsets"], file["label"].astype(np.int32)
        known = np.flatnonzero(~file["is_test"])
    chosen = np.random.default_rng(0).permutation(known)[:_POOL]
    x = np.empty((len(chosen), 7, 7, 4), np.float32)
    for row, image in enumerate(chosen):
        with Image.open(io.BytesIO(jpeg[offsets[image] : offsets[image + 1]].tobytes())) as picture:
            pixels = np.asarray(picture.convert("RGB"), np.float32)[2:30, 2:30].reshape(7, 4, 7, 4, 3)
        x[row, ..., :3] = pixels.mean(axis=(1, 3))
        x[row, ..., 3] = pixels.mean(axis=4).std(axis=(1, 3))
    x = (x - x.mean(axis=(0, 1, 2))) / x.std(axis=(0, 1, 2))
    return x.reshape(-1, _FEATURES), label[chosen]
