"""Finite float32 and int32 numbers, or one sentence about the first that is neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError

__all__ = ["INT32", "NDArray", "Place", "bad_value", "first_bad", "float32", "int32", "out_of_range"]

NDArray: TypeAlias = npt.NDArray[Any]
Place: TypeAlias = Callable[[int], str]
"""Row number -> where that row is found: ``x[3]``, ``line 5, column 'age'``."""

INT32 = np.iinfo(np.int32)
_SLICE = 2**26
"""Bytes that are checked at a time."""


def float32(array: NDArray, source: str, place: Place) -> NDArray:
    """``array`` as float32, or the error for its first entry that is not finite in it."""
    with np.errstate(over="ignore", invalid="ignore"):
        small = array.astype(np.float32, copy=False)
    for first in range(0, len(small), _slice_rows(small)):  # the array may be larger than free memory
        rows = slice(first, first + _slice_rows(small))
        bad = ~np.isfinite(small[rows])
        if bad.any():
            raise EvenhandError(
                f"{source}: {place(first + first_bad(bad))} holds {bad_value(array[rows], bad)}, which is not a "
                "finite 32-bit number: repair it or drop the row."
            )
    return small


def _slice_rows(array: NDArray) -> int:
    return max(1, _SLICE // max(1, array.nbytes // max(1, len(array))))


def int32(array: NDArray, source: str, place: Place) -> NDArray:
    """Integers as int32, or the error for the first that does not fit."""
    large = (array > INT32.max) | (array < INT32.min) if array.dtype.itemsize > 2 else np.zeros(1, bool)
    if large.any():
        raise out_of_range(source, place(first_bad(large)), str(bad_value(array, large)))
    return array.astype(np.int32, copy=False)


def out_of_range(source: str, where: str, value: str) -> EvenhandError:
    """The error for a class number or token beyond the range of int32."""
    return EvenhandError(
        f"{source}: {where} is {value}, which is out of range: number classes and tokens from 0, or give "
        "real values as floats, with ",
        Argument("regression", "True"),
        " if they are labels.",
    )


def first_bad(bad: NDArray) -> int:
    """The first row that has an entry marked in ``bad``."""
    return int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))


def bad_value(array: NDArray, bad: NDArray) -> Any:
    """The first entry that is marked in ``bad``."""
    return array[bad].reshape(-1)[0].item()
