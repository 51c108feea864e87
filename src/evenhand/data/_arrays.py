"""Array-likes made finite numbers of the few dtypes that training uses, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.data._memory import copied
from evenhand.data._text import number
from evenhand.errors import EvenhandError

__all__ = [
    "NDArray",
    "Place",
    "as_array",
    "as_features",
    "as_labels",
    "class_labels",
    "client_codes",
    "element",
    "number",
    "numbers_or_names",
    "read_only",
    "whole_numbers",
]

NDArray: TypeAlias = npt.NDArray[Any]
Place: TypeAlias = Callable[[int], str]
"""Row number -> where a person finds that row: ``x[3]``, ``line 5, column 'age'``."""

_INT32 = np.iinfo(np.int32)
_SLICE = 2**26
"""Bytes that are checked at a time."""
# More classes than this, and than rows, is a label that is not a class number (an id, a year, a slipped
# digit).
_MANY_CLASSES = 10_000


def element(name: str) -> Place:
    """The place ``name[row]``."""
    return lambda row: f"{name}[{row}]"


def read_only(array: NDArray, given: object) -> NDArray:
    """``array`` made read-only; a copy of it if the caller, who gave ``given``, could still write to it."""
    if array.flags.writeable:
        if isinstance(given, np.ndarray) and np.may_share_memory(array, given):
            array = copied(array)
        array.setflags(write=False)
    return array


def as_array(values: npt.ArrayLike, source: str, what: str) -> NDArray:
    """``values`` as an array of numbers, booleans or text with a row axis; ``what`` names it in errors."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise EvenhandError(
            f"{source}: {what} is ragged: give every row the same length, or pad the short ones."
        ) from None
    if array.dtype.kind not in "biufUS":
        kind = "mixed or missing values" if array.dtype.kind == "O" else f"values of dtype {array.dtype}"
        raise EvenhandError(f"{source}: {what} holds {kind}: write plain numbers or plain text.")
    if array.ndim == 0:
        raise EvenhandError(f"{source}: {what} is a single value: give one entry per row.")
    return np.char.decode(array, "utf-8", "backslashreplace") if array.dtype.kind == "S" else array


def as_features(
    values: npt.ArrayLike, source: str, place: Place | None = None, *, what: str = "x"
) -> NDArray:
    """Finite float32, or int32 where ``values`` are integers (tokens)."""
    array = as_array(values, source, what)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {what} holds text, not numbers: encode it as numbers first.")
    place = element(what) if place is None else place
    if array.dtype.kind in "iu":
        return _int32(array, source, place)
    return _float32(array, source, place)


def as_labels(values: npt.ArrayLike, source: str, place: Place | None = None, *, what: str = "y") -> NDArray:
    """Class numbers >= 0 as int32 where ``values`` are integers or booleans, else finite float32 targets."""
    array = as_array(values, source, what)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {what} holds text, not numbers: number the classes from 0 first.")
    place = element(what) if place is None else place
    if array.dtype.kind == "f":
        return _float32(array, source, place)
    if array.dtype.kind == "b":
        return array.astype(np.int32)
    if array.size and array.min() < 0:
        row = _first(array < 0)
        raise EvenhandError(
            f"{source}: {place(row)} is the negative label {_value(array, array < 0)}: number the classes "
            "from 0, or give real-valued targets as floats."
        )
    return _int32(array, source, place)


def numbers_or_names(values: NDArray, source: str, place: Place) -> NDArray:
    """Cells of a text file: float64 if all spell numbers, unchanged if none does; a mixture is refused."""
    spelled = [number(text) for text in values.tolist()]
    numeric = np.array([value is not None for value in spelled], bool)
    if not numeric.any():
        return values
    if not numeric.all():
        row = _first(~numeric)
        text = values[row].item()
        what = f"is {text!r}" if text else "is empty"
        raise EvenhandError(
            f"{source}: {place(row)} {what} where other rows hold numbers: write only numbers, or only names."
        )
    return np.array(spelled, np.float64)


def whole_numbers(values: NDArray, source: str, place: Place) -> NDArray:
    """Labels such as 4.0 as the integers they are; one that is no whole number is refused."""
    if values.dtype.kind != "f":
        return values
    values = _finite(values, source, place)
    broken = values != np.rint(values)
    if broken.any():
        row = _first(broken)
        raise EvenhandError(
            f"{source}: {place(row)} is {_value(values, broken):g}, not a class number: number the classes "
            "from 0, or say regression=True if the labels are real-valued targets."
        )
    if values.size and np.abs(values).max() > _INT32.max:
        large = np.abs(values) > _INT32.max
        raise _out_of_range(source, place(_first(large)), f"{_value(values, large):.0f}")
    return values.astype(np.int64)


def class_labels(
    values: NDArray, source: str, place: Place, *, regression: bool
) -> tuple[NDArray, tuple[str, ...] | None]:
    """The labels of a file as int32 class numbers or float32 targets, and the class names if it had any.

    Args:
      values: ``(n, ...)`` numbers or text.
      source: the file.
      place: where a row is.
      regression: labels are real-valued targets, not classes.
    """
    if regression:
        if values.dtype.kind == "U":
            raise EvenhandError(
                f"{source}: {place(0)} is {values.reshape(-1)[0].item()!r}, not a number: give numbers as "
                "targets, or leave regression out."
            )
        return _float32(values.astype(np.float64), source, place), None
    if values.dtype.kind == "U":
        if (values == "").any():
            raise EvenhandError(
                f"{source}: {place(_first(values == ''))} is empty: fill it in or drop the row."
            )
        names, codes = np.unique(values, return_inverse=True)
        return codes.reshape(values.shape).astype(np.int32), tuple(names.tolist())
    labels = as_labels(whole_numbers(values, source, place), source, place)
    limit = max(_MANY_CLASSES, len(labels))
    if labels.size and labels.max() >= limit:
        raise _out_of_range(source, place(_first(labels >= limit)), str(labels.max()))
    return labels, None


def client_codes(client: npt.ArrayLike, source: str, what: str = "client") -> tuple[NDArray, tuple[str, ...]]:
    """Client ids of any dtype as ``(n,)`` int64 positions, and the sorted ids; numbers sort as numbers.

    Args:
      client: ``(n,)`` integers, whole floats, booleans or text.
      source: the file, or what else the ids come from.
      what: the array or column in it.
    """
    ids = np.asarray(client)
    if ids.ndim != 1:
        raise EvenhandError(f"{source}: {what} has {ids.ndim} axes: give one client id per row.")
    if ids.dtype.kind == "O":
        missing = np.array([value is None or value != value for value in ids.tolist()], bool)
        if missing.any():
            raise EvenhandError(
                f"{source}: {what}[{_first(missing)}] has no client id: fill it in or drop the row."
            )
        ids = np.array([str(value) for value in ids.tolist()], str)
    elif ids.dtype.kind == "f":
        if not np.isfinite(ids).all():
            raise EvenhandError(
                f"{source}: {what}[{_first(~np.isfinite(ids))}] is not a client id: fill it in or drop the "
                "row."
            )
        ids = (
            ids.astype(np.int64)
            if (ids == np.rint(ids)).all() and np.abs(ids).max(initial=0) < 2**53
            else ids
        )
    elif ids.dtype.kind == "S":
        ids = np.char.decode(ids, "utf-8", "backslashreplace")
    values, codes = np.unique(ids, return_inverse=True)
    names = [str(value) for value in values.tolist()]
    if "" in names:
        row = _first(codes == names.index(""))
        raise EvenhandError(f"{source}: {what}[{row}] has no client id: fill it in or drop the row.")
    if values.dtype.kind == "U" and all(_is_integer(name) for name in names):
        order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
        codes = np.argsort(order)[codes]
        names = [names[i] for i in order]
    return codes.astype(np.int64), tuple(names)


def _float32(array: NDArray, source: str, place: Place) -> NDArray:
    with np.errstate(over="ignore"):
        small = array.astype(np.float32, copy=False)
    for first in range(0, len(small), _slice_rows(small)):  # the array may be larger than what memory is left
        rows = slice(first, first + _slice_rows(small))
        bad = ~np.isfinite(small[rows])
        if bad.any():
            raise EvenhandError(
                f"{source}: {place(first + _first(bad))} holds {_value(array[rows], bad)}, which is no finite 32-bit "
                "number: repair it or drop the row."
            )
    return small


def _slice_rows(array: NDArray) -> int:
    return max(1, _SLICE // max(1, array.nbytes // max(1, len(array))))


def _finite(array: NDArray, source: str, place: Place) -> NDArray:
    _float32(array, source, place)
    return array


def _int32(array: NDArray, source: str, place: Place) -> NDArray:
    large = (array > _INT32.max) | (array < _INT32.min) if array.dtype.itemsize > 2 else np.zeros(1, bool)
    if large.any():
        raise _out_of_range(source, place(_first(large)), str(_value(array, large)))
    return array.astype(np.int32, copy=False)


def _out_of_range(source: str, where: str, value: str) -> EvenhandError:
    return EvenhandError(
        f"{source}: {where} is {value}, which is out of range: number classes and tokens from 0, or give "
        "real values as floats and say regression=True if they are labels."
    )


def _first(bad: NDArray) -> int:
    return int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))


def _value(array: NDArray, bad: NDArray) -> Any:
    return array[bad].reshape(-1)[0].item()


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()
