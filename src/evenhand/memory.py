"""Whether an array's memory can be used without a copy: its alignment, and whether it is a file's."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["aligned", "copied", "empty_aligned", "is_aligned", "is_mapped"]

NDArray = npt.NDArray[Any]

_LINE = 64
"""XLA's CPU backend uses an array in place if its address is a multiple of this many bytes."""


def is_aligned(array: NDArray) -> bool:
    """Whether JAX can use the array in place on a CPU; it cannot for large arrays that NumPy allocates."""
    return array.ctypes.data % _LINE == 0 and array.flags.c_contiguous


def is_mapped(array: NDArray) -> bool:
    """Whether the array is, or is a view of, a file: a :class:`numpy.memmap`."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return isinstance(base, mmap.mmap)


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> NDArray:
    """A new array that is aligned."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    whole = np.empty(size + _LINE, np.uint8)
    begin = -whole.ctypes.data % _LINE
    return whole[begin : begin + size].view(dtype).reshape(shape)


def aligned(array: NDArray) -> NDArray:
    """The same array if it is aligned, else a copy that is."""
    return array if is_aligned(array) else copied(array)


def copied(array: NDArray) -> NDArray:
    """A copy that is aligned."""
    copy = empty_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy
