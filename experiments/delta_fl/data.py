"""Clients for the experiments on Delta-FL: synthetic label shift, MNIST dealt out, Shakespeare by speaker."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from sklearn.datasets import make_classification

import evenhand as eh

__all__ = ["HeldOut", "Table", "clients", "held_out", "network", "shares"]

NDArray: TypeAlias = npt.NDArray[Any]
Table: TypeAlias = Literal["synthetic", "mnist", "mnist_small", "shakespeare"]
HeldOut: TypeAlias = Literal["mnist", "femnist"]
Clients: TypeAlias = tuple[eh.data.FederatedDataset, dict[str, eh.data.Split]]
"""Who trains, and the rows to test on, by name; "" are those that count."""

_COUNTS = [50026, 49955, 49999, 50008, 49997, 50020, 50017, 49996, 49972, 50010]
"""Rows per class of the paper's pool, computed once more from its recipe."""
_LETTERS = 80
"""The alphabet of LEAF's Shakespeare task."""
_GROUPS = 12
"""Groups of writers in femnist_digits.npz."""


@lru_cache(maxsize=8)
def clients(table: Table, folder: Path, seed: int, **shape: Any) -> Clients:
    """The clients of a data set.

    Args:
      table: which data set.
      folder: where the files are.
      seed: of everything random.
      shape: further arguments of the function that makes them.
    """
    if table == "synthetic":
        return _label_shift(seed, **shape)
    return (_speakers if table == "shakespeare" else _mnist)(folder, seed, **shape)


def _label_shift(
    seed: int, *, clients: int, strangers: int, rows: int, alpha: float, stranger_alpha: float
) -> Clients:
    """The synthetic data of section 7.7 and appendix D.2: clients to train on, and others to test on.

    Args:
      seed: of the clients; the pool they draw from is always the same.
      clients: how many train.
      strangers: how many are for testing only.
      rows: of each client.
      alpha: of the Dirichlet draw of a training client's classes.
      stranger_alpha: the same for the test clients.
    """
    x, y = _pool()
    everybody = clients + strangers
    alphas = np.repeat([alpha, stranger_alpha], [clients, strangers])
    chosen = _deal(y, np.full(everybody, rows), alphas, np.random.default_rng([seed, 64]))
    split = _split(x, y, chosen[:clients])
    names = tuple(str(k) for k in range(clients))
    data = eh.data.FederatedDataset(split, _empty(split), _empty(split), names, "label shift")
    return data, {"": _split(x, y, chosen[clients:])}


@lru_cache(maxsize=1)
def _pool() -> tuple[NDArray, NDArray]:
    x, y = make_classification(
        n_samples=500_000,
        n_features=20,
        n_informative=15,
        n_redundant=2,
        n_repeated=0,
        n_classes=10,
        n_clusters_per_class=1,
        class_sep=5.0,
        hypercube=False,
        random_state=2345,
    )
    norm = np.linalg.norm(x, axis=1).mean()
    if np.bincount(y).tolist() != _COUNTS or abs(norm - 14.367) > 5e-4:
        raise RuntimeError("scikit-learn drew another pool than the one that the numbers here belong to")
    return x.astype(np.float32), y.astype(np.int32)


def _mnist(
    folder: Path,
    seed: int,
    *,
    clients: int,
    alpha: float,
    smallest: int,
    largest: int,
    exponent: float,
    strangers: int,
    stranger_rows: int,
    stranger_alpha: float,
) -> Clients:
    """MNIST's training images dealt to clients of power-law sizes, each with a Dirichlet draw of digits.

    Tested are their own rows, and MNIST's test images: "digits" has them digit by digit; strangers have some of
    them, "like" with digits drawn as the clients' are, and "shifted" with a draw of their own, as in the synthetic
    data.

    Args:
      folder: has ``mnist.npz``.
      seed: of everybody's digits and of which rows the clients test on.
      clients: how many train.
      alpha: of the Dirichlet draw.
      smallest: rows of the smallest client.
      largest: most rows of a client.
      exponent: ``P(size > s) = (smallest / s) ^ exponent``; the sizes are the quantiles of that law.
      strangers: how many of either kind.
      stranger_rows: of each of them.
      stranger_alpha: of those who are shifted.
    """
    with np.load(folder / "mnist.npz", allow_pickle=False) as file:
        images = {part: (file[f"x_{part}"], file[f"y_{part}"].astype(np.int32)) for part in ("train", "test")}
    x, y = _flat(images["train"][0]), images["train"][1]
    sizes = _sizes(clients, smallest, largest, exponent)
    rows = np.concatenate(_deal(y, sizes, np.full(clients, alpha), np.random.default_rng([seed, 28])))
    owner = np.repeat(np.arange(clients), sizes)
    data = eh.data.from_arrays(x[rows], y[rows], owner, seed=seed, name="MNIST")
    x, y = _flat(images["test"][0]), images["test"][1]
    tested = {"": data.test, "digits": _split(x, y, [np.flatnonzero(y == digit) for digit in range(10)])}
    for number, (name, shift) in enumerate({"like": alpha, "shifted": stranger_alpha}.items()):
        few, random = np.full(strangers, stranger_rows), np.random.default_rng([seed, 29, number])
        tested[name] = _split(x, y, _deal(y, few, np.full(strangers, shift), random))
    return data, tested


@lru_cache(maxsize=2)
def held_out(
    place: HeldOut,
    folder: Path,
    seed: int,
    *,
    clients: int,
    alpha: float,
    smallest: int,
    largest: int,
    exponent: float,
    valid_fraction: float,
) -> tuple[eh.data.FederatedDataset, eh.data.FederatedDataset]:
    """Clients to train on, a part of whose rows validates, and as many others: half of their rows finetune.

    A client's images come from MNIST's training images, or from one group of writers of FEMNIST; the seed decides
    which half of the groups is for testing.

    Args:
      place: whose images.
      folder: has ``mnist.npz`` or ``femnist_digits.npz``.
      seed: of who has which rows.
      clients: of either kind; for FEMNIST a multiple of 6, since each group makes as many clients.
      alpha: of each client's Dirichlet draw of digits.
      smallest: rows of the smallest client, as in the table on MNIST.
      largest: most rows of a client.
      exponent: of the power law of the sizes.
      valid_fraction: share of a training client's rows.
    """
    x, y, pools = _pools(place, folder, np.random.default_rng([seed, 31]))
    # A pool has both kinds of clients, or there are several pools, each for clients of one kind.
    each = clients if len(pools) == 1 else 2 * clients // len(pools)
    sizes = np.tile(_sizes(each, smallest, largest, exponent), 2 if len(pools) == 1 else 1)
    random, alphas = np.random.default_rng([seed, 32]), np.full(len(sizes), alpha)
    dealt = [pool[chosen] for pool in pools for chosen in _deal(y[pool], sizes, alphas, random)]
    parts = []
    for owned, fractions in ((dealt[:clients], (0.0, valid_fraction)), (dealt[clients:], (0.5, 0.0))):
        rows, owner = np.concatenate(owned), np.repeat(np.arange(clients), [len(each) for each in owned])
        test, valid = fractions
        parts.append(
            eh.data.from_arrays(
                x[rows], y[rows], owner, test_fraction=test, valid_fraction=valid, seed=seed, name=place
            )
        )
    return parts[0], parts[1]


def _pools(
    place: HeldOut, folder: Path, random: np.random.Generator
) -> tuple[NDArray, NDArray, list[NDArray]]:
    """Images, digits, and the rows of each pool that clients draw from."""
    if place == "mnist":
        with np.load(folder / "mnist.npz", allow_pickle=False) as file:
            x, y = _flat(file["x_train"]), file["y_train"].astype(np.int32)
        return x, y, [np.arange(len(y))]
    with np.load(folder / "femnist_digits.npz", allow_pickle=False) as file:
        # Ink is dark there, and bright in MNIST.
        x, y, writer = _flat(255 - file["x"]), file["y"].astype(np.int32), file["writer"]
    return x, y, [np.flatnonzero(writer == group) for group in random.permutation(_GROUPS)]


def _sizes(clients: int, smallest: int, largest: int, exponent: float) -> NDArray:
    """The quantiles of a power law: every seed has the same sizes, so that each method is compiled once."""
    ranks = (np.arange(clients) + 0.5) / clients
    return np.minimum(smallest * ranks ** (-1 / exponent), largest).astype(int)


def _speakers(folder: Path, seed: int, *, window: int, most: int, test_fraction: float) -> Clients:
    """Shakespeare's speakers; a row is a window of characters and the character that follows.

    Args:
      folder: has ``shakespeare_speakers.npz``.
      seed: of where in a long text the rows are taken.
      window: characters per row.
      most: most rows of a speaker, without a gap.
      test_fraction: the end of each speaker's text, for testing.
    """
    with np.load(folder / "shakespeare_speakers.npz", allow_pickle=False) as file:
        names, texts = file["speaker"], file["text"]
    random = np.random.default_rng([seed, 80])
    parts: tuple[list[NDArray], list[NDArray]] = ([], [])
    for text in texts.tolist():
        # The one character of this text that LEAF's alphabet lacks.
        tokens = eh.data.encode_characters(text.replace("$", ""))
        start = random.integers(max(1, len(tokens) - most - window + 1))
        tokens = tokens[start : start + most + window]
        border = int((1 - test_fraction) * len(tokens))
        for part, piece in zip(parts, (tokens[:border], tokens[border:]), strict=True):
            part.append(np.lib.stride_tricks.sliding_window_view(piece, window + 1))
    train, test = (_lay(part) for part in parts)
    data = eh.data.FederatedDataset(train, _empty(train), test, tuple(names.tolist()), "Shakespeare")
    return data, {"": test}


def network(table: Table, hidden: tuple[int, ...], **shape: Any) -> eh.Model:
    """Softmax regression from zero, as the paper's linear models, or an MLP; a character is a one-hot vector.

    Args:
      table: which data set.
      hidden: widths of hidden layers, none for softmax regression.
      shape: as in :func:`clients`.
    """
    features, classes = {
        "synthetic": (20, 10),
        "mnist": (784, 10),
        "mnist_small": (784, 10),
        "shakespeare": (shape.get("window", 1) * _LETTERS, _LETTERS),
    }[table]
    if hidden:
        return eh.models.mlp(features, classes=classes, hidden=hidden)
    model = eh.models.softmax_regression(features, classes=classes)

    def apply(params: eh.types.Params, x: jax.Array) -> jax.Array:
        return model.apply(params, jax.nn.one_hot(x, _LETTERS) if table == "shakespeare" else x)

    return model._replace(
        init=lambda key: jax.tree.map(jnp.zeros_like, model.init(key)),
        apply=apply,
    )


def shares(split: eh.data.Split, classes: int) -> NDArray:
    """Each client's share of each class, of shape ``(clients, classes)``."""
    return np.stack(
        [np.bincount(y, minlength=classes) / len(y) for y in np.split(split.y, split.offsets[1:-1])]
    )


def _deal(y: NDArray, sizes: NDArray, alphas: NDArray, random: np.random.Generator) -> list[NDArray]:
    """Rows for each client, without replacement: labels by its own Dirichlet draw, while there are some left."""
    classes = int(y.max()) + 1
    pools = [random.permutation(np.flatnonzero(y == label)) for label in range(classes)]
    left = np.array([len(pool) for pool in pools])
    chosen: list[NDArray] = []
    for size, alpha in zip(sizes, alphas, strict=True):
        shares = random.dirichlet(np.full(classes, alpha))
        counts = np.zeros(classes, int)
        while counts.sum() < size:
            open_shares = np.where(left > counts, shares, 0.0)
            if open_shares.sum() < 1e-9:
                open_shares = (left - counts).astype(float)
            drawn = random.multinomial(size - counts.sum(), open_shares / open_shares.sum())
            counts = np.minimum(counts + drawn, left)
        ends = left - counts
        chosen.append(np.concatenate([pool[a:b] for pool, a, b in zip(pools, ends, left, strict=True)]))
        left = ends
    return chosen


def _flat(pixels: NDArray) -> NDArray:
    return pixels.reshape(len(pixels), 784) / np.float32(255)


def _split(x: NDArray, y: NDArray, chosen: list[NDArray]) -> eh.data.Split:
    rows = np.concatenate(chosen)
    return eh.data.Split(x[rows], y[rows], _offsets([len(each) for each in chosen]))


def _lay(windows: list[NDArray]) -> eh.data.Split:
    rows = np.concatenate(windows)
    return eh.data.Split(rows[:, :-1], rows[:, -1], _offsets([len(each) for each in windows]))


def _offsets(sizes: list[int]) -> NDArray:
    return np.concatenate([[0], np.cumsum(sizes)])


def _empty(like: eh.data.Split) -> eh.data.Split:
    return eh.data.Split(like.x[:0], like.y[:0], np.zeros_like(like.offsets))
