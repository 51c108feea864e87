"""FedBN's claim: where inputs differ from client to client, batch normalisation should stay with the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
import numpy as np
import numpy.typing as npt
from scipy import ndimage

import evenhand as eh
from evenhand import personalization as personal
from experiments.personal.methods import Candidates, Numbers

__all__ = ["AVERAGE", "CAMERAS", "LOCAL", "clients_of", "markdown", "methods"]

NDArray: TypeAlias = npt.NDArray[Any]

_HELD_OUT = 0.2
_WIDTH = 4
_COLUMNS = np.arange(28)

CAMERAS: Mapping[str, Callable[[NDArray, np.random.Generator], NDArray]] = {
    "as it is": lambda x, random: x,
    "negative": lambda x, random: 1.0 - x,
    "flat": lambda x, random: 0.35 + 0.3 * x,
    "blurred": lambda x, random: ndimage.uniform_filter(x, (0, 5, 5)),  # pyright: ignore[reportArgumentType]
    "noisy": lambda x, random: x + random.normal(0.0, 0.4, x.shape),
    "lit from a side": lambda x, random: np.maximum(0.6 * x, _COLUMNS / 27.0),
    "bold": lambda x, random: ndimage.maximum_filter(x, (0, 3, 3)),
    "flat negative": lambda x, random: 0.65 - 0.3 * x,
    "dark": lambda x, random: 0.15 * x,
    "striped": lambda x, random: np.maximum(0.7 * x, 0.5 * (_COLUMNS[:, None] % 4 < 2)),
}
"""What the camera of each client does to images of ink 1 on 0, ``(n, 28, 28)``; the labels are alike (ours)."""

AVERAGE, LOCAL = "statistics averaged", "statistics stay"
"""The two ways that the finding compares: FedAvg of everything, and SiloBN."""


def clients_of(folder: Path, seed: int, images: int) -> eh.data.FederatedDataset:
    """A client for each camera, with as many images of MNIST of all classes; a fifth each validates and tests.

    Args:
      folder: with mnist.npz.
      seed: of the images, their split and the noise.
      images: of each client.
    """
    random = np.random.default_rng(seed)
    with np.load(folder / "mnist.npz", allow_pickle=False) as file:
        chosen = random.permutation(len(file["y_train"]))[: images * len(CAMERAS)]
        x = file["x_train"][chosen].astype(np.float64) / 255.0
        y = file["y_train"][chosen].astype(np.int32)
    client = np.repeat(np.arange(len(CAMERAS)), images)
    taken = [camera(x[client == k], random) for k, camera in enumerate(CAMERAS.values())]
    pictures = np.concatenate(taken).astype(np.float32).reshape(len(y), -1)
    return eh.data.from_arrays(
        pictures, y, client, test_fraction=_HELD_OUT, valid_fraction=_HELD_OUT, seed=seed, name="cameras"
    )


class _GroupNormCNN(nn.Module):
    """FedBN's network with group normalisation in the place of batch normalisation."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1, 28, 28, 1)
        for number, channels in enumerate((_WIDTH, _WIDTH, 2 * _WIDTH)):
            x = nn.relu(nn.GroupNorm(2, name=f"norm_{number}")(nn.Conv(channels, (5, 5))(x)))
            x = nn.max_pool(x, (2, 2), (2, 2)) if number < 2 else x
        x = x.reshape(x.shape[0], -1)
        for number, units in enumerate((32 * _WIDTH, 8 * _WIDTH), 3):
            x = nn.relu(nn.GroupNorm(2, name=f"norm_{number}")(nn.Dense(units)(x)))
        return nn.Dense(10, name="output")(x)


def methods() -> dict[str, Candidates]:
    """Batch normalisation in four ways, and group normalisation in two."""
    grouped = eh.models.from_flax(
        _GroupNormCNN(), loss="cross_entropy", sample=np.zeros((1, 784), np.float32)
    )
    normed: dict[Literal["average", "local"], eh.Model] = {
        "average": eh.models.cnn_batch_norm(width=_WIDTH, state="average"),
        "local": eh.models.cnn_batch_norm(width=_WIDTH, state="local"),
    }

    def work(n: Numbers, model: eh.Model) -> eh.local.Work:
        return eh.local.sgd(model, n["rate"], epochs=1, batch_size=32)

    return {
        AVERAGE: Candidates(lambda n: eh.algorithms.fedavg(work(n, normed["average"])), {}),
        LOCAL: Candidates(lambda n: eh.algorithms.fedavg(work(n, normed["local"])), {}),
        "FedBN": Candidates(lambda n: personal.fedbn(work(n, normed["local"])), {}),
        "local": Candidates(lambda n: personal.local_only(work(n, normed["local"])), {}),
        "group normalisation": Candidates(lambda n: eh.algorithms.fedavg(work(n, grouped)), {}),
        "group normalisation, stays": Candidates(
            lambda n: personal.fedsim(work(n, grouped), personal="norm_*"), {}
        ),
    }


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Accuracy over clients, in percent: the mean ± over seeds, the deviation over clients, and the worst client."""
    lines = ["| method | mean | over clients | worst client |", "|---|---:|---:|---:|"]
    for name, each in found.items():
        mean, spread, worst = (
            np.array([seed[measure] for seed in each["seeds"]]) for measure in ("mean", "std", "worst10")
        )
        lines.append(
            f"| {name} | {mean.mean():.1f} ± {mean.std():.1f} | {spread.mean():.0f} | {worst.mean():.1f} |"
        )
    return "\n".join(lines)
