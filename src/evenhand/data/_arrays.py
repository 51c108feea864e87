"""Array-likes turned into finite numbers of the few dtypes that training uses, or refused in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.data._ids import client_codes, composed
from evenhand.data._numeric import INT32, NDArray, Place, bad_value, first_bad, float32, int32, out_of_range
from evenhand.data._text import LONGEST, name_fault
from evenhand.errors import Argument, EvenhandError
from evenhand.memory import copied

__all__ = [
    "NDArray",
    "Place",
    "as_array",
    "as_features",
    "as_labels",
    "check_class_numbers",
    "check_form",
    "class_labels",
    "client_codes",
    "element",
    "read_only",
    "whole_numbers",
]

# A label this large, and not below the number of rows, is no class number but an id, a year or a slipped digit.
_MANY_CLASSES = 10_000
_FEW_CLASSES = 20
"""Most distinct whole numbers that count as classes wherever they begin and whatever is left out between them."""
_DEEPEST = 32
"""Most axes of an array; NumPy allows 64."""


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
    if isinstance(values, list | tuple):
        _check_entries(values, source, what)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise EvenhandError(
            f"{source}: {what} is ragged: give every row the same length, or pad the short ones."
        ) from None
    if array.dtype.kind == "O":
        array = _of_objects(array, source, what)
    check_form(array.shape, array.dtype, source, what)
    return np.char.decode(array, "utf-8", "backslashreplace") if array.dtype.kind == "S" else array


def check_form(shape: tuple[int, ...], dtype: np.dtype[Any], source: str, what: str) -> None:
    """Refuses an array without rows, or whose entries are not numbers, booleans or names."""
    if dtype.kind not in "biufUS":
        kind = "mixed or missing values" if dtype.kind == "O" else f"values of dtype {str(dtype)[:40]}"
        raise EvenhandError(f"{source}: {what} holds {kind}: write plain numbers or plain text.")
    if not shape:
        raise EvenhandError(f"{source}: {what} is a single value: give one entry per row.")
    if 0 in shape[1:]:
        raise EvenhandError(
            f"{source}: {what} has the shape {shape}, so its rows are empty: give each at least one entry."
        )
    if dtype.itemsize == 0:
        raise EvenhandError(f"{source}: {what} holds only empty texts: write plain numbers or plain text.")
    if dtype.kind in "US":
        _check_length(dtype.itemsize // (4 if dtype.kind == "U" else 1), source, what)


def _check_length(longest: int, source: str, what: str) -> None:
    if longest > LONGEST:
        raise EvenhandError(
            f"{source}: {what} holds a text of {longest} characters: give numbers, or names of at most "
            f"{LONGEST} characters."
        )


def _check_entries(values: Sequence[Any], source: str, what: str) -> None:
    """Refuses lists that NumPy would turn into text, or that would take too much memory."""
    kinds, longest = _kinds(values)
    if None in kinds:
        raise EvenhandError(f"{source}: {what} is nested too deeply: give one list of numbers per row.")
    if str in kinds and kinds != {str}:
        raise EvenhandError(
            f"{source}: {what} holds mixed or missing values, text beside other things: write only numbers, or "
            "only text."
        )
    _check_length(longest, source, what)


def _kinds(values: Sequence[Any], depth: int = 0) -> tuple[set[type | None], int]:
    """The types in nested lists, None for lists too deep for an array, and the length of the longest text."""
    if depth == _DEEPEST:
        return {None}, 0
    kinds: set[type | None] = set(map(type, values))
    longest = (
        max((len(value) for value in values if isinstance(value, str)), default=0) if str in kinds else 0
    )
    if list in kinds or tuple in kinds:
        kinds -= {list, tuple}
        for value in values:
            if isinstance(value, list | tuple):
                inner, length = _kinds(value, depth + 1)
                kinds |= inner
                longest = max(longest, length)
    return kinds, longest


def _of_objects(array: NDArray, source: str, what: str) -> NDArray:
    """Python objects as text, as pandas keeps it, or as numbers, if all of them are; unchanged otherwise."""
    entries = array.reshape(-1).tolist()
    kinds = set(map(type, entries))
    if kinds == {str}:
        _check_length(max(map(len, entries)), source, what)
        return array.astype(str)
    if all(kind in (bool, int, float) for kind in kinds):
        with contextlib.suppress(OverflowError):
            return array.astype(np.float64 if float in kinds else np.int64)
        raise EvenhandError(
            f"{source}: {what} holds a number that is out of range: write numbers of at most 18 digits."
        )
    return array


def as_features(
    values: npt.ArrayLike, source: str, place: Place | None = None, *, what: str = "x"
) -> NDArray:
    """Finite float32, or int32 where ``values`` are integers (tokens)."""
    array = as_array(values, source, what)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {what} holds text, not numbers: encode it as numbers first.")
    place = element(what) if place is None else place
    if array.dtype.kind in "iu":
        return int32(array, source, place)
    return float32(array, source, place)


def as_labels(values: npt.ArrayLike, source: str, place: Place | None = None, *, what: str = "y") -> NDArray:
    """Class numbers >= 0 as int32 where ``values`` are integers or booleans, else finite float32 targets."""
    array = as_array(values, source, what)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {what} holds text, not numbers: number the classes from 0 first.")
    place = element(what) if place is None else place
    if array.dtype.kind == "f":
        return float32(array, source, place)
    if array.dtype.kind == "b":
        return array.astype(np.int32)
    if array.size and array.min() < 0:
        row = first_bad(array < 0)
        raise EvenhandError(
            f"{source}: {place(row)} is the negative label {bad_value(array, array < 0)}: number the classes "
            "from 0, or give real-valued targets as floats."
        )
    return int32(array, source, place)


def whole_numbers(values: NDArray, source: str, place: Place) -> NDArray:
    """Labels such as 4.0 as the integers they are; one that is not a whole number is refused."""
    if values.dtype.kind != "f":
        return values
    float32(values, source, place)
    broken = values != np.rint(values)
    if broken.any():
        row = first_bad(broken)
        raise EvenhandError(
            f"{source}: {place(row)} is {bad_value(values, broken):g}, not a class number: number the classes "
            "from 0, or give ",
            Argument("regression", "True"),
            " if the labels are real-valued targets.",
        )
    if values.size and np.abs(values).max() > INT32.max:
        large = np.abs(values) > INT32.max
        raise out_of_range(source, place(first_bad(large)), f"{bad_value(values, large):.0f}")
    return values.astype(np.int64)


def check_class_numbers(values: NDArray, source: str, what: str, *cures: str | Argument) -> None:
    """Asks what whole numbers mean that may be amounts: more than 20 distinct ones, with gaps or not from 0.

    Args:
      values: ``(n,)`` labels of any dtype; NaN where one is missing.
      source: the file.
      what: what the labels are called, such as ``column 'score'``.
      cures: how to say what they are: the end of the sentence.
    """
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        return
    distinct = np.unique(values[np.isfinite(values)])
    if len(distinct) <= _FEW_CLASSES or (distinct != np.rint(distinct)).any():
        return
    first, last = int(distinct[0]), int(distinct[-1])
    if first != 0 or last != len(distinct) - 1:
        raise EvenhandError(
            f"{source}: {what} holds {len(distinct):,} distinct whole numbers from {first} to {last}, which may be "
            "amounts or the numbers of classes: ",
            *cures,
        )


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
                f"{source}: {place(0)} is {values.reshape(-1)[0].item()[:40]!r}, not a number: give numbers as "
                "targets, or leave out ",
                Argument("regression", "True"),
                ".",
            )
        with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused next
            wide = values.astype(np.float64)
        return float32(wide, source, place), None
    if values.dtype.kind == "U":
        if (values == "").any():
            raise EvenhandError(
                f"{source}: {place(first_bad(values == ''))} is empty: fill it in or drop the row."
            )
        spellings, codes = np.unique(values, return_inverse=True)
        names, merged = np.unique([composed(text) for text in spellings.tolist()], return_inverse=True)
        codes = merged[codes]
        for code, name in enumerate(names.tolist()):
            fault = name_fault(name)
            if fault is not None:
                where = place(first_bad(codes.reshape(values.shape) == code))
                raise EvenhandError(f"{source}: {where} {fault}: give the class another name.")
        return codes.reshape(values.shape).astype(np.int32), tuple(names.tolist())
    labels = as_labels(whole_numbers(values, source, place), source, place)
    limit = max(_MANY_CLASSES, len(labels))
    if labels.size and labels.max() >= limit:
        raise out_of_range(source, place(first_bad(labels >= limit)), str(labels.max()))
    return labels, None
