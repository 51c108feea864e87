"""Convolutional networks of the federated literature."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from evenhand.models._adapters import from_flax
from evenhand.models._layers import check_sizes, glorot_uniform, image_rows
from evenhand.types import Array, Model

__all__ = ["cnn_cifar", "cnn_femnist", "cnn_femnist_dropout"]

_Shape = tuple[int, int, int]


def cnn_femnist(classes: int = 62, *, hidden: int = 512) -> Model:
    r"""The network with two convolutions for 28 x 28 grey images, with cross-entropy loss.

    ``conv 5x5x32 same, ReLU, pool 2, conv 5x5x64 same, ReLU, pool 2, dense hidden, ReLU, dense classes``;
    1,690,046 parameters by default, 1,663,370 with ten classes.  Kernels start Glorot uniform, biases at 0;
    metric ``"accuracy"``.

    Args:
      classes: labels are integers ``0 .. classes - 1``.
      hidden: width of the dense layer: 512 in the first paper, 2048 in LEAF.

    Params:
      ``conv_0``, ``conv_1``, ``dense``, ``output``, each with ``kernel`` and ``bias``.

    Inputs are pixels, float, ``(n, 28, 28)``, ``(n, 28, 28, 1)`` or ``(n, 784)``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.cnn_femnist().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1690046

    Source: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*,
    AISTATS 2017, section 3; Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018.
    """
    check_sizes({"classes": classes, "hidden": hidden})
    module = _PooledCNN((28, 28, 1), hidden, classes)
    model = from_flax(module, loss="cross_entropy", sample=np.zeros((1, 28, 28, 1), np.float32))
    return model._replace(name=f"cnn_femnist({classes}, hidden={hidden})")


def cnn_femnist_dropout(classes: int = 62) -> Model:
    r"""The network with dropout for 28 x 28 grey images, with cross-entropy loss.

    ``conv 3x3x32 valid, ReLU, conv 3x3x64 valid, ReLU, pool 2, dropout 0.25, dense 128, ReLU, dropout 0.5,
    dense classes``; 1,206,590 parameters with 62 classes.  Dropout acts in training only.  Inputs, parameter
    names, initial values and metric as for :func:`cnn_femnist`.

    Args:
      classes: labels are integers ``0 .. classes - 1``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.cnn_femnist_dropout().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1206590

    Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021 (EMNIST character recognition).
    """
    return _dropout_cnn((28, 28, 1), classes)._replace(name=f"cnn_femnist_dropout({classes})")


def cnn_cifar(classes: int = 10) -> Model:
    r"""The network with dropout for 32 x 32 colour images, with cross-entropy loss.

    The layers of :func:`cnn_femnist_dropout` on inputs ``(n, 32, 32, 3)``, channels last, or ``(n, 3072)`` in
    that order: the dense layer has 12,544 inputs.  1,626,442 parameters with ten classes.

    Args:
      classes: labels are integers ``0 .. classes - 1``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.cnn_cifar().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1626442
    """
    return _dropout_cnn((32, 32, 3), classes)._replace(name=f"cnn_cifar({classes})")


def _dropout_cnn(shape: _Shape, classes: int) -> Model:
    check_sizes({"classes": classes})
    sample = np.zeros((1, *shape), np.float32)
    return from_flax(_DropoutCNN(shape, classes), loss="cross_entropy", sample=sample)


class _PooledCNN(nn.Module):
    shape: _Shape
    hidden: int
    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = image_rows(x, self.shape)
        x = _halved(nn.relu(nn.Conv(32, (5, 5), kernel_init=glorot_uniform, name="conv_0")(x)))
        x = _halved(nn.relu(nn.Conv(64, (5, 5), kernel_init=glorot_uniform, name="conv_1")(x)))
        x = _flat(x)
        x = nn.relu(nn.Dense(self.hidden, kernel_init=glorot_uniform, name="dense")(x))
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(x)


class _DropoutCNN(nn.Module):
    shape: _Shape
    classes: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        x = image_rows(x, self.shape)
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID", kernel_init=glorot_uniform, name="conv_0")(x))
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID", kernel_init=glorot_uniform, name="conv_1")(x))
        x = _flat(_Dropout(0.25)(_halved(x), train))
        x = nn.relu(nn.Dense(128, kernel_init=glorot_uniform, name="dense")(x))
        x = _Dropout(0.5)(x, train)
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(x)


class _Dropout(nn.Module):
    """Dropout at a rate in 256ths, from 8 random bits per unit: a quarter of what ``nn.Dropout`` draws."""

    rate: float

    def __call__(self, x: Array, train: bool) -> Array:
        dropped = 256 * self.rate
        if dropped % 1:
            raise ValueError(f"The rate must be a multiple of 1/256, but it is {self.rate}.")
        if not train:
            return x
        words = jax.random.bits(self.make_rng("dropout"), (-(-x.size // 4),))
        bits = (words[None] >> jnp.arange(0, 32, 8, jnp.uint32)[:, None]) & 255
        keep = (bits >= int(dropped)).ravel()[: x.size].reshape(x.shape)
        return jnp.where(keep, x / (1 - self.rate), 0)


def _halved(x: Array) -> Array:
    return nn.max_pool(x, (2, 2), (2, 2))


def _flat(x: Array) -> Array:
    # -1 would be ambiguous for zero rows.
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))
