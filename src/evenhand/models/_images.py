"""Networks for images: a small LeNet, one with batch normalisation, and residual ones with group normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from evenhand.errors import EvenhandError
from evenhand.models._linear import check_sizes, glorot_uniform, named_model
from evenhand.models._networks import flat, halved, image_rows
from evenhand.types import Array, Key, Model

_GREY, _COLOUR = (28, 28, 1), (32, 32, 3)

# --- LeNet --------------------------------------------------------------------------------------------------

_LENET_CHANNELS = (16, 32, 64)


def lenet(classes: int = 10) -> Model:
    r"""The LeNet-style network with three convolutions for 28 x 28 grey images, with cross-entropy loss.

    ``conv 5x5x16 same, pool 3/2 same, ReLU, conv 5x5x32 same, pool 3/2 same, ReLU, conv 5x5x64 same, pool 3/2 same,
    ReLU, dense 100, ReLU, dense classes``, where ``pool 3/2`` is the maximum over windows of 3 x 3 that are 2 apart;
    168,022 parameters with ten classes.  Kernels start as :math:`0.1 \, \xi` with :math:`\xi` standard normal
    truncated to :math:`|\xi| \le 2`, biases at 0; metric ``"accuracy"``.

    Args:
      classes: labels are integers ``0 .. classes - 1``.

    Params:
      ``conv_0``, ``conv_1``, ``conv_2``, ``dense``, ``output``, each with ``kernel`` and ``bias``.

    Inputs are pixels, float, ``(n, 28, 28)``, ``(n, 28, 28, 1)`` or ``(n, 784)``.

    Differs from the paper: two classes have two logits and cross-entropy, not one logit and the logistic loss.  The
    difference of the two logits is that one logit.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.lenet().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      168022

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (class imbalance on MNIST, figure 7.14), after
    Ren et al., *Learning to Reweight Examples for Robust Deep Learning*, ICML 2018.
    """
    check_sizes({"classes": classes})
    return named_model(f"lenet({classes})", _LeNet(classes), *_GREY)


def _tenth_normal(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """A tenth of standard normal numbers truncated at 2."""
    # Drawn flat, as a matrix takes longer to compile on the CPU; so below.
    return 0.1 * jax.random.truncated_normal(key, -2.0, 2.0, (math.prod(shape),), dtype).reshape(tuple(shape))


class _LeNet(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = image_rows(x, _GREY)
        for layer, channels in enumerate(_LENET_CHANNELS):
            x = nn.Conv(channels, (5, 5), kernel_init=_tenth_normal, name=f"conv_{layer}")(x)
            x = nn.relu(_pooled(x))
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        x = nn.relu(nn.Dense(100, kernel_init=_tenth_normal, name="dense")(x))
        return nn.Dense(self.classes, kernel_init=_tenth_normal, name="output")(x)


def _pooled(x: Array) -> Array:
    """The maxima over windows of 3 x 3 that are 2 apart, with windows over the edge cut off."""
    # One axis after the other, by slices: the derivative of XLA's overlapping windows is four times slower on a CPU.
    for axis in (1, 2):
        outputs = -(-x.shape[axis] // 2)
        beyond = max(2 * outputs + 1 - x.shape[axis], 0)
        edges = [(0, 0, 0)] * x.ndim
        edges[axis] = (beyond // 2, beyond - beyond // 2, 0)
        padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), edges)
        parts = [lax.slice_in_dim(padded, i, i + 2 * outputs - 1, 2, axis) for i in range(3)]
        x = reduce(jnp.maximum, parts)
    return x


# --- batch normalisation ------------------------------------------------------------------------------------


def cnn_batch_norm(
    classes: int = 10, *, width: int = 16, state: Literal["average", "local"] = "average"
) -> Model:
    r"""FedBN's network for 28 x 28 grey images, with batch normalisation after every layer, and cross-entropy loss.

    ``conv 5x5xw same, BN, ReLU, pool 2, conv 5x5xw same, BN, ReLU, pool 2, conv 5x5x2w same, BN, ReLU, dense 32w, BN,
    ReLU, dense 8w, BN, ReLU, dense classes``; 892,762 parameters with ten classes and :math:`w = 16`, of which
    1,408 are running statistics.  A batch moves them by a tenth of the way to its own.  Kernels start Glorot-uniform,
    biases at 0; metric ``"accuracy"``.

    Args:
      classes: labels are integers ``0 .. classes - 1``.
      width: :math:`w`; 64 in the paper, 14.2 million parameters.
      state: what becomes of running statistics, as in :func:`from_flax`.

    Params:
      ``conv_0`` to ``conv_2``, ``dense_0``, ``dense_1``, ``output``, each with ``kernel`` and ``bias``; ``norm_0`` to
      ``norm_4``, each with ``scale``, ``bias``, ``mean`` and ``var``.

    Inputs are pixels, float, ``(n, 28, 28)``, ``(n, 28, 28, 1)`` or ``(n, 784)``.

    Differs from the paper: images are grey there in three channels, and the network is four times as wide.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.cnn_batch_norm(classes=10)
      >>> method = eh.personalization.fedbn(eh.local.sgd(model, 0.1, epochs=1, batch_size=32))

    Source: Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, ICLR 2021, table
    6.
    """
    check_sizes({"classes": classes, "width": width})
    name = f"cnn_batch_norm({classes}, width={width}, state={state!r})"
    return named_model(name, _BatchNormCNN(classes, width), *_GREY, state=state)


class _BatchNormCNN(nn.Module):
    classes: int
    width: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        def normed(x: Array, number: int) -> Array:
            layer = nn.BatchNorm(not train, momentum=0.9, use_fast_variance=False, name=f"norm_{number}")
            return nn.relu(layer(x))

        x = image_rows(x, _GREY)
        for number, channels in enumerate((self.width, self.width, 2 * self.width)):
            layer = nn.Conv(channels, (5, 5), kernel_init=glorot_uniform, name=f"conv_{number}")
            x = normed(layer(x), number)
            x = halved(x) if number < 2 else x
        x = flat(x)
        for number, units in enumerate((32 * self.width, 8 * self.width)):
            layer = nn.Dense(units, kernel_init=glorot_uniform, name=f"dense_{number}")
            x = normed(layer(x), 3 + number)
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(x)


# --- residual networks --------------------------------------------------------------------------------------


def resnet20(classes: int = 10, *, groups: int = 2) -> Model:
    r"""Residual network of 20 layers for 32 x 32 colour images, with cross-entropy loss.

    A convolution 3x3x16, three stages of three blocks with 16, 32 and 64 channels, the mean over all pixels, and a
    dense layer.  A block computes

    .. math:: \mathrm{relu}(S x + N_1 K_1 \, \mathrm{relu}(N_0 K_0 x))

    with 3 x 3 convolutions :math:`K_0, K_1` without biases, group normalisation :math:`N_0, N_1` and the parameter-free
    shortcut :math:`S` (option A): the identity.  The first block of the second and of the third stage halves the image
    by a stride of 2 in :math:`K_0`; there :math:`S` takes every second pixel and appends channels of zeros.  269,722
    parameters with ten classes.  Kernels start normal with variance ``2 / fan_in`` (Kaiming), biases at 0, scales at 1;
    metric ``"accuracy"``.

    Args:
      classes: labels are integers ``0 .. classes - 1``.
      groups: groups of channels of each normalisation; a divisor of 16.

    Params:
      ``conv``, ``norm``; ``stage_0_block_0`` ... ``stage_2_block_2``, each with ``conv_0``, ``norm_0``, ``conv_1``
      and ``norm_1``; ``output``.

    Inputs are pixels, float, ``(n, 32, 32, 3)``, channels last, or ``(n, 3072)`` in that order.

    Raises:
      EvenhandError: ``groups`` is not a divisor of 16.

    Differs from the paper: group normalisation in place of batch normalisation.  It has the same number of parameters,
    and no running statistics: an example's outputs do not depend on its batch, gradients of single examples exist, and
    the average of several clients' parameters is a model of the same kind.  Its accuracy differs somewhat from the
    published one, and batch normalisation's tolerance of large step sizes is not to be expected.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.resnet20().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      269722

    Source: He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016, section 4.2; Wu and He, *Group
    Normalization*, ECCV 2018; two groups as in Reddi et al., *Adaptive Federated Optimization*, ICLR 2021.
    """
    return _resnet("resnet20", 3, classes, groups)


def resnet32(classes: int = 10, *, groups: int = 2) -> Model:
    """Residual network of 32 layers for 32 x 32 colour images, with cross-entropy loss.

    It is :func:`resnet20` with five blocks per stage; 464,154 parameters with ten classes.

    Args:
      classes: labels are integers ``0 .. classes - 1``.
      groups: groups of channels of each normalisation; a divisor of 16.

    Raises:
      EvenhandError: ``groups`` is not a divisor of 16.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.resnet32().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      464154

    Source: as for :func:`resnet20`.
    """
    return _resnet("resnet32", 5, classes, groups)


_STAGES = (16, 32, 64)


def _resnet(name: str, blocks: int, classes: int, groups: int) -> Model:
    check_sizes({"classes": classes, "groups": groups})
    if _STAGES[0] % groups:
        raise EvenhandError(f"groups={groups} does not divide 16 channels: give 1, 2, 4, 8 or 16.")
    return named_model(f"{name}({classes}, groups={groups})", _ResNet(blocks, classes, groups), *_COLOUR)


def _kaiming(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Normal numbers with variance ``2 / fan_in``."""
    deviation = math.sqrt(2.0 / math.prod(shape[:-1]))
    return deviation * jax.random.normal(key, (math.prod(shape),), dtype).reshape(tuple(shape))


_Conv = partial(nn.Conv, kernel_size=(3, 3), padding=1, use_bias=False, kernel_init=_kaiming)


class _ResNet(nn.Module):
    blocks: int
    classes: int
    groups: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = _Conv(_STAGES[0], name="conv")(image_rows(x, _COLOUR))
        x = nn.relu(nn.GroupNorm(self.groups, epsilon=1e-5, name="norm")(x))
        for stage, channels in enumerate(_STAGES):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                x = Block(channels, stride, self.groups, name=f"stage_{stage}_block_{block}")(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.classes, kernel_init=_kaiming, name="output")(x)


class Block(nn.Module):
    """Two convolutions with group normalisation, beside a shortcut without parameters.

    Attributes:
      channels: of the outputs.
      stride: 2 halves the image.
      groups: of each normalisation.
    """

    channels: int
    stride: int
    groups: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        z = _Conv(self.channels, strides=self.stride, name="conv_0")(x)
        z = nn.relu(nn.GroupNorm(self.groups, epsilon=1e-5, name="norm_0")(z))
        z = _Conv(self.channels, name="conv_1")(z)
        z = nn.GroupNorm(self.groups, epsilon=1e-5, name="norm_1")(z)
        more = self.channels - x.shape[-1]
        shortcut = jnp.pad(x[:, :: self.stride, :: self.stride], ((0, 0), (0, 0), (0, 0), (0, more)))
        return nn.relu(z + shortcut)
