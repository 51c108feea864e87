r"""Noise that is correlated over the rounds, so that most of it cancels in the sum of all.

The noise of round :math:`t` is :math:`(B Z)_t`, where :math:`Z` has fresh noise in each row and :math:`B = C^{-1}` is
lower triangular.  It hides as much as :math:`Z` does on :math:`C x`: a client that moves the sum of one round by at
most 1 moves that by at most the longest column of :math:`C`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Array, PyTree

__all__ = [
    "CorrelatedNoise",
    "Correlation",
    "StreamingMatrix",
    "streamed_noise",
    "toeplitz_noise",
    "tree_noise",
]


class CorrelatedNoise(NamedTuple):
    """The noise of some rounds, in turn.

    Attributes:
      init: ``like -> state``, before the first of them.
      step: ``(fresh, state) -> (noise, state)``, what a round adds, given independent noise.
      sensitivity: how far a client that takes part in one of the rounds moves what the noise hides, over its clip.
    """

    init: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    sensitivity: float


Correlation: TypeAlias = Callable[[int], CorrelatedNoise]
"""``rounds -> CorrelatedNoise``."""


class StreamingMatrix(Protocol):
    """A lower triangular matrix that is applied row by row, as those of the package jax_privacy."""

    @property
    def init_multiply(self) -> Callable[[Any], Any]: ...

    @property
    def multiply_next(self) -> Callable[[Any, Any], tuple[Any, Any]]: ...


def tree_noise() -> Correlation:
    r"""Noise at the nodes of a binary tree over the rounds; a prefix has that of the nodes that make it up.

    The noise of the sum of :math:`t` rounds is that of as many nodes as :math:`t` has binary ones, and a client is in
    :math:`h = \lfloor \log_2 T \rfloor + 1` nodes: sensitivity :math:`\sqrt h`.

    Example:
      >>> round(tree_noise()(4).sensitivity, 4)
      1.7321

    Source: Kairouz et al., *Practical and Private (Deep) Learning without Sampling or Shuffling*, ICML 2021.
    """
    return _tree


def _tree(rounds: int) -> CorrelatedNoise:
    height = rounds.bit_length()
    levels = jnp.arange(height)

    def init(like: PyTree) -> tuple[Array, PyTree]:
        return jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros((height, *leaf.shape), leaf.dtype), like)

    def step(fresh: PyTree, state: tuple[Array, PyTree]) -> tuple[PyTree, PyTree]:
        done, old = state[0] + 1, state[1]
        # The node that ends at this round replaces those below it.
        level = jnp.sum(jnp.cumprod(1 - (done >> levels) % 2))

        def updated(nodes: Array, new: Array) -> Array:
            where = levels.reshape((height,) + (1,) * new.ndim)
            found = jnp.where(where < level, 0.0, jnp.where(where == level, new[None], nodes))
            return found.astype(nodes.dtype)

        nodes = jax.tree.map(updated, old, fresh)
        before, after = (jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), of) for of in (old, nodes))
        return tree.subtract(after, before), (done, nodes)

    return CorrelatedNoise(init, step, math.sqrt(height))


def toeplitz_noise(bands: int | None = None) -> Correlation:
    r"""Noise from which shares of that of earlier rounds are taken away.

    .. math::
        n_t = z_t - \sum_{j=1}^{b - 1} c_j n_{t - j}, \qquad c_j = \binom{2j}{j} 4^{-j}

    The matrix :math:`C` with these diagonals is, without bands, the square root of that which adds up rounds, and of
    all with constant diagonals the best at the worst round.  After 100 rounds its noise is 2.5 times that of one round
    with the same promise; that of the tree is 4.6 times, that of independent noise 10 times.

    Args:
      bands: :math:`b`, from 1: noise of so many rounds is kept; None: of all.  With 1 it is independent noise.

    Raises:
      EvenhandError: ``bands`` is not a whole number from 1.

    Example:
      >>> round(toeplitz_noise()(4).sensitivity ** 2, 4)
      1.4883

    Source: Fichtenberger, Henzinger and Upadhyay, *Constant Matters: Fine-grained Complexity of Differentially Private
    Continual Observation*, ICML 2023; bands: Choquette-Choo et al., *(Amplified) Banded Matrix Factorization*, NeurIPS
    2023.
    """
    if bands is not None:
        whole_number("toeplitz_noise(bands=)", bands, 1)

    def correlation(rounds: int) -> CorrelatedNoise:
        kept = rounds if bands is None else min(bands, rounds)
        j = np.arange(1, kept)
        diagonals = np.cumprod(np.concatenate([[1.0], (2 * j - 1) / (2 * j)]))
        earlier = jnp.asarray(diagonals[1:], jnp.float32)

        def init(like: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.zeros((kept - 1, *leaf.shape), leaf.dtype), like)

        def step(fresh: PyTree, last: PyTree) -> tuple[PyTree, PyTree]:
            noise = jax.tree.map(
                lambda new, old: new - jnp.tensordot(earlier, old, 1).astype(new.dtype), fresh, last
            )
            kept_on = jax.tree.map(
                lambda new, old: jnp.concatenate([new[None], old])[: kept - 1], noise, last
            )
            return noise, kept_on

        return CorrelatedNoise(init, step, float(np.linalg.norm(diagonals)))

    return correlation


def streamed_noise(matrix: StreamingMatrix) -> Correlation:
    """Noise from any lower triangular matrix that is given row by row, such as a buffered linear Toeplitz one.

    Args:
      matrix: :math:`B = C^{-1}`; with the package jax_privacy, ``buffered_toeplitz.optimize(n=rounds)`` finds one that
        keeps the noise of a few rounds only, whose ``inverse_as_streaming_matrix()`` this is.

    Raises:
      EvenhandError: when it is made for some rounds: the matrix has no inverse.

    Edge cases: the sensitivity is computed from the whole matrix, which takes time that grows with the cube of the
    number of rounds.

    Source: Dvijotham et al., *Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy*, FOCS
    2024.
    """

    def correlation(rounds: int) -> CorrelatedNoise:
        return CorrelatedNoise(matrix.init_multiply, matrix.multiply_next, _longest_column(matrix, rounds))

    return correlation


def _longest_column(matrix: StreamingMatrix, rounds: int) -> float:
    """Of the inverse."""
    rows, state = list[npt.NDArray[Any]](), matrix.init_multiply(jnp.zeros(rounds))
    for unit in np.eye(rounds, dtype=np.float32):
        row, state = matrix.multiply_next(jnp.asarray(unit), state)
        rows.append(np.asarray(row, np.float64))
    whole = np.tril(np.stack(rows))
    if not np.all(np.isfinite(whole)) or not np.all(np.diag(whole)):
        raise EvenhandError(
            "streamed_noise(matrix): it has no inverse, so that its noise hides nothing: give another."
        )
    return float(np.linalg.norm(np.linalg.inv(whole), axis=0).max())
