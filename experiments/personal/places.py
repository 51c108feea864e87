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
from experiments.robust.data import dealt, mnist

__all__ = ["PLACES", "Kind", "Place", "clients_of", "model_of"]

Place = Literal["two classes", "dirichlet", "synthetic", "shakespeare", "cifar10"]
NDArray: TypeAlias = npt.NDArray[Any]

_COMMON = " abcdefghijklmnopqrstuvwxyz\n',."
_LETTERS = len(_COMMON) + 1
"""The most frequent characters of Shakespeare in lower case, and one for all others."""
_WINDOW = 5
_POOL = 20_000
"""Training images of CIFAR10 that are decoded, and dealt from."""


class Kind(NamedTuple):
    """What goes with a place.

    Attributes:
      classes: of its labels.
      rates: step sizes that each method chooses from (ours).
      images: of all clients together.
    """

    classes: int
    rates: tuple[float, ...]
    images: int = 0


PLACES: Mapping[Place, Kind] = {
    "two classes": Kind(10, (0.1, 0.3), 20_000),
    "dirichlet": Kind(10, (0.1, 0.3), 20_000),
    "synthetic": Kind(10, (0.03, 0.1)),
    "shakespeare": Kind(_LETTERS, (0.1, 0.8)),
    "cifar10": Kind(10, (0.03, 0.1), 10_000),
}


def clients_of(place: Place, folder: Path, seed: int, clients: int, images: int) -> eh.data.FederatedDataset:
    """The clients of one seed; a fifth of the rows of each are for validation, and a fifth for testing.

    Args:
      place: which data.
      folder: with mnist.npz, shakespeare_speakers.npz and cifar10_jpeg.npz.
      seed: of everything random.
      clients: how many.
      images: of all clients together, where they have images; 0: as many as :data:`PLACES` says.
    """
    images = images or PLACES[place].images
    if place == "synthetic":
        return eh.data.synthetic(1.0, 1.0, clients=clients, seed=seed, max_size=400, valid_fraction=0.2)
    if place == "shakespeare":
        return _speakers(folder, seed, clients)
    if place == "cifar10":
        return _cifar10(folder, seed, clients, images)
    return mnist(folder, seed, deal=place, clients=clients, images=images)


def model_of(place: Place) -> eh.Model:
    """Softmax regression; for CIFAR10 a perceptron with 32 hidden units; characters are one-hot vectors."""
    if place == "cifar10":
        return eh.models.mlp(192, classes=10, hidden=(32,))
    if place != "shakespeare":
        return eh.models.softmax_regression(60 if place == "synthetic" else 196, classes=10)
    model = eh.models.softmax_regression(_WINDOW * _LETTERS, classes=_LETTERS)
    return model._replace(apply=lambda params, x: model.apply(params, jax.nn.one_hot(x, _LETTERS)))


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
    """Dirichlet(0.3) shares of the classes, as MNIST; 8 x 8 pixels in three colours, standardised."""
    x, y = _pictures(folder / "cifar10_jpeg.npz")
    rows, client = dealt(y, seed, deal="dirichlet", clients=clients, images=images)
    return eh.data.from_arrays(x[rows], y[rows], client, test_fraction=0.2, valid_fraction=0.2, seed=seed)


@lru_cache(maxsize=1)
def _pictures(path: Path) -> tuple[NDArray, NDArray]:
    with np.load(path, allow_pickle=False) as file:
        jpeg, offsets, label = file["jpeg"], file["offsets"], file["label"].astype(np.int32)
        known = np.flatnonzero(~file["is_test"])
    chosen = np.random.default_rng(0).permutation(known)[:_POOL]
    x = np.empty((len(chosen), 192), np.float32)
    for row, image in enumerate(chosen):
        with Image.open(io.BytesIO(jpeg[offsets[image] : offsets[image + 1]].tobytes())) as picture:
            pixels = np.asarray(picture.convert("RGB"), np.float32)
        x[row] = pixels.reshape(8, 4, 8, 4, 3).mean(axis=(1, 3)).ravel()
    return (x - x.mean()) / x.std(), label[chosen]
