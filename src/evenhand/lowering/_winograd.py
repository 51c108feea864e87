r"""Convolution with small windows by interpolation: fewer products than patches, and a third of their memory.

One axis. With :math:`n = k + m - 1` points, one of them at infinity, let :math:`E_l` be the :math:`n \times l`
matrix that evaluates a polynomial of :math:`l` coefficients there. The coefficients of a product of two
polynomials are :math:`E_n^{-1} [(E_k g) \odot (E_m h)]`, and the transpose of that map in :math:`h` gives
:math:`m` outputs of the convolution of a window :math:`g` with a stretch :math:`d` of :math:`n` inputs:

.. math:: y = E_m^\top [(E_k g) \odot (E_n^{-\top} d)].

Two axes: Kronecker products of these matrices. The products between the brackets become, summed over channels, one
matrix product per pair of points. Per axis :math:`n` products replace :math:`m k`: with :math:`m = 4`, a window of
3 x 3 takes 4 times fewer and one of 5 x 5 takes 6.25 times fewer.

The price is accuracy: sums of terms of unlike size. With the points 0, 1, -1, 1/2, -2, 2, -1/2 the result is off
by some 1e-6 of its size, derivatives by some 1e-5, where patches are off by 3e-7 (float32).

Milliseconds for the gradients in both operands in a loop, batch 10, on one core, patches / interpolation; "clients":
four side by side with their own kernels:

==========================  ============  ============
convolution                 in a loop     clients
==========================  ============  ============
14x14x32, 5x5x64            13.1 / 10.2   89 / 46
30x30x32, 3x3x64, valid     24.3 / 12.4   106 / 94
16x16x64, 3x3x64            15.0 / 6.2    70 / 45
8x8x128, 3x3x128            8.9 / 5.1     39.5 / 39.7
32x32x16, 4x4x32            23.8 / 9.5    116 / 78
16x16x16, 3x3x16            1.6 / 1.1     9.7 / 7.6
8x8x256, 3x3x256            46 / 27       188 / 203
4x4x256, 3x3x256, batch 32  32 / 24       134 / 188
4x4x256, 3x3x256 (patches)  8.4 / 12.0    40 / 115
6x6x16, 3x3x16 (patches)    0.2 / 0.3     0.8 / 2.1
==========================  ============  ============

Side by side, many channels on few pixels lose; on a CPU models of that size go one by one unless told otherwise. On two
cores for one device patches gain more: there it is 7.7 / 7.2, 11.6 / 11.0 and 7.4 / 6.5 for the first three.

Sources: S. Winograd, *Arithmetic Complexity of Computations* (1980); Lavin and Gray, *Fast Algorithms for
Convolutional Neural Networks*, CVPR 2016; the choice of points after Barabasz et al., *Error Analysis and Improving
the Accuracy of Winograd Convolution for Deep Neural Networks*, 2018.
"""

from __future__ import annotations

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.types import Array

__all__ = ["convolve", "suits"]

_POINTS = np.array([0, 1, -1, 1 / 2, -2, 2, -1 / 2])
_OUTPUTS = 4
_WINDOWS = (3, 4, 5)
_CHANNELS = 16
_TILES = 32


def suits(x: Array, kernel: Array) -> bool:
    """Whether :func:`convolve` is faster: small windows, enough channels and tiles, tiles that outputs fill."""
    *window, channels, features = kernel.shape
    if x.dtype != jnp.float32 or len(window) != 2 or min(channels, features) < _CHANNELS:
        return False
    if not set(window) <= set(_WINDOWS) or jax.default_backend() != "cpu":
        return False
    outputs = [max(length - size + 1, 0) for length, size in zip(x.shape[1:-1], window, strict=True)]
    tiles = math.prod(-(-size // _OUTPUTS) for size in outputs)
    products = tiles * math.prod(size + _OUTPUTS - 1 for size in window)
    return len(x) * tiles >= _TILES and products <= 0.4 * math.prod(outputs) * math.prod(window)


def convolve(x: Array, kernel: Array) -> Array:
    """``x (rows, height, width, channels)`` by ``kernel (high, wide, channels, features)``, without padding."""
    high, wide, channels, features = kernel.shape
    height, width = x.shape[1] - high + 1, x.shape[2] - wide + 1
    down, across = -(-height // _OUTPUTS), -(-width // _OUTPUTS)
    to_outputs, of_window, of_inputs = (
        np.kron(a, b).astype(np.float32) for a, b in zip(_transforms(high), _transforms(wide), strict=True)
    )
    points = len(to_outputs)
    matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    tiles = _tiles(x, (high, wide), (down, across))
    inputs = matmul(of_inputs, tiles.reshape(points, -1)).reshape(points, -1, channels)
    weights = matmul(of_window, kernel.reshape(high * wide, -1)).reshape(points, channels, features)
    z = matmul(to_outputs.T, matmul(inputs, weights).reshape(points, -1))
    z = z.reshape(_OUTPUTS, _OUTPUTS, len(x), down, across, features).transpose(2, 3, 0, 4, 1, 5)
    return z.reshape(len(x), down * _OUTPUTS, across * _OUTPUTS, features)[:, :height, :width]


@cache
def _transforms(window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``E_m``, ``E_k`` and ``E_n`` inverted and transposed, for windows of ``k`` values."""
    size = window + _OUTPUTS - 1

    def evaluation(coefficients: int) -> np.ndarray:
        finite = np.vander(_POINTS[: size - 1], coefficients, increasing=True)
        return np.vstack([finite, np.eye(coefficients)[-1]])

    return evaluation(_OUTPUTS), evaluation(window), np.linalg.inv(evaluation(size)).T


def _tiles(x: Array, window: tuple[int, int], counts: tuple[int, int]) -> Array:
    """Overlapping tiles, ``_OUTPUTS`` apart: ``(place down, place across, rows, down, across, channels)``.

    Put together from blocks that do not overlap: so the transpose adds four terms, not one per place.
    """
    rows, *lengths, channels = x.shape
    ends = [(0, (count + 1) * _OUTPUTS - length, 0) for count, length in zip(counts, lengths, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
    x = x.reshape(rows, counts[0] + 1, _OUTPUTS, counts[1] + 1, _OUTPUTS, channels)
    x = x.transpose(2, 4, 0, 1, 3, 5)
    down, across = (size - 1 for size in window)
    x = jnp.concatenate([x[:, :, :, :-1], x[:down, :, :, 1:]], 0)
    return jnp.concatenate([x[:, :, :, :, :-1], x[:, :across, :, :, 1:]], 1)
