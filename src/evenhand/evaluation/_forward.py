"""What a model makes of new examples, which have no labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.types import Array, Model, Params, PyTree

__all__ = ["outputs", "unlabelled"]

NDArray = npt.NDArray[Any]

_CHUNK_NUMBERS = 2**19
"""About how many numbers a chunk of examples has: its forward pass must fit in memory."""
_CHUNK_ROWS = 4096
"""Most rows in a chunk."""


def outputs(model: Model, params: Params, x: NDArray) -> PyTree:
    """The raw outputs of a model, such as logits, for examples of any number.

    The examples go through the model in chunks, so that its inner layers need no more memory for more of them.

    Args:
      model: gives ``apply``.
      params: its parameters.
      x: the examples, ``(rows, ...)``, of the shape and type that the model was trained on.

    Returns:
      What ``model.apply(params, x)`` returns, as NumPy arrays: ``(rows, outputs)``, or a tree of such arrays.

    Example:
      >>> import jax, numpy as np, evenhand as eh
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> params = {"kernel": np.eye(3, 2, dtype=np.float32), "bias": np.zeros(2, np.float32)}
      >>> outputs(model, params, np.ones((5, 3), np.float32)).shape
      (5, 2)
    """
    rows = _chunk_rows(x)
    # Without rows there is one chunk all the same, which gives the outputs' shape.
    chunks = [
        _of_chunk(model, params, x[first : first + rows], rows) for first in range(0, len(x) or 1, rows)
    ]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)


def unlabelled(x: npt.ArrayLike, shape: tuple[int, ...], dtype: Any, source: str = "x") -> NDArray:
    """Examples without labels, checked against those that a model was trained on.

    Args:
      x: ``(rows, *shape)``.
      shape: of one example.
      dtype: float32, or int32 for tokens.
      source: what the examples are called in errors.

    Raises:
      EvenhandError: they have another shape or kind, or a number is not finite.

    Example:
      >>> unlabelled([[1, 2], [3, 4]], (2,), "float32").dtype
      dtype('float32')
    """
    try:
        array = np.asarray(x)
    except (ValueError, TypeError):
        raise EvenhandError(
            f"{source}: the examples are ragged: give every example the same length."
        ) from None
    wanted = np.dtype(dtype)
    if array.shape == shape and shape:
        raise EvenhandError(
            f"{source}: this is a single example, of shape {shape}: give x[None], a row of it."
        )
    if array.ndim == 0 or array.shape[1:] != shape:
        raise EvenhandError(
            f"{source}: the examples have shape {array.shape}, but the model was trained on rows of shape {shape}: "
            f"give an array of shape ({', '.join(['rows', *map(str, shape)])}).",
        )
    if array.dtype.kind not in ("iu" if wanted.kind == "i" else "biuf"):
        kind = "whole numbers (tokens)" if wanted.kind == "i" else "numbers"
        raise EvenhandError(f"{source}: the examples are {array.dtype}, but the model was trained on {kind}.")
    with np.errstate(over="ignore"):
        found = array.astype(wanted, copy=False)
    finite = np.isfinite(found).reshape(len(found), math.prod(shape)).all(axis=1)
    if not finite.all():
        raise EvenhandError(
            f"{source}: row {int(np.argmin(finite))} holds a number that is not a finite 32-bit number: repair it."
        )
    return found


def _chunk_rows(x: NDArray) -> int:
    """Rows per chunk: a power of two where they are few, so that inputs of many lengths share few programs."""
    most = int(np.clip(_CHUNK_NUMBERS // max(1, math.prod(x.shape[1:])), 1, _CHUNK_ROWS))
    return min(most, 1 << max(0, len(x) - 1).bit_length())


def _of_chunk(model: Model, params: Params, x: NDArray, rows: int) -> PyTree:
    padded = np.zeros((rows, *x.shape[1:]), x.dtype)
    padded[: len(x)] = x
    found = _apply(model.apply, params, jnp.asarray(padded))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(x)], found)


@partial(jax.jit, static_argnums=0)
def _apply(apply: Callable[[Params, Array], PyTree], params: Params, x: Array) -> PyTree:
    return apply(params, x)
