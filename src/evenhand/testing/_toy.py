"""A problem small enough to check every law in seconds, and uneven enough to break careless code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evenhand.data import FederatedDataset, Split
from evenhand.types import Array, Key, Model, Params

__all__ = ["toy_data", "toy_model"]

_SIZES = (1, 3, 8, 17, 5, 12)
_FEATURES = 4
_CLASSES = 3


def toy_model() -> Model:
    """Softmax regression from 4 features to 3 classes, as pure functions; all calls give the same ones."""
    losses = optax.losses.softmax_cross_entropy_with_integer_labels
    return Model(_init, _apply, losses, {"accuracy": _accuracy})


def toy_data(seed: int = 0) -> FederatedDataset:
    """Six heterogeneous clients with 1 to 17 training examples and 2 test examples each, for :func:`toy_model`."""
    rng = np.random.default_rng(seed)
    train = _split(rng, np.array(_SIZES))
    return FederatedDataset(
        train=train,
        valid=_split(rng, np.zeros(len(_SIZES), np.int64)),
        test=_split(rng, np.full(len(_SIZES), 2)),
        client_ids=tuple("abcdef"),
    )


def _split(rng: np.random.Generator, sizes: np.ndarray) -> Split:
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), _FEATURES)) + 0.3 * client[:, None]
    y = (np.argmax(x[:, :_CLASSES], axis=1) + client) % _CLASSES
    return Split(x.astype(np.float32), y.astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]))


def _init(key: Key) -> Params:
    return {"w": 0.3 * jax.random.normal(key, (_FEATURES, _CLASSES)), "b": jnp.zeros(_CLASSES)}


def _apply(params: Params, x: Array) -> Array:
    return x @ params["w"] + params["b"][None]


def _accuracy(outputs: Array, y: Array) -> Array:
    return (jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32)
