"""Client ids of any kind as numbers or text; missing and unprintable ones are refused."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.data._numeric import NDArray, Place, first_bad
from evenhand.data._text import is_missing, name_fault
from evenhand.errors import EvenhandError

__all__ = ["client_codes", "id_array"]


def client_codes(
    client: npt.ArrayLike, source: str, what: str = "client", place: Place | None = None
) -> tuple[NDArray, tuple[str, ...]]:
    """Client ids as ``(n,)`` int64 positions, and the sorted ids; numbers, also in text, sort as numbers.

    Args:
      client: ``(n,)`` integers, floats, booleans, dates or text; an array of objects may hold any one of them.
      source: the file, or whatever else the ids come from.
      what: the array or column in it.
      place: where a row is; ``what[row]`` by default.
    """
    where = (lambda row: f"{what}[{row}]") if place is None else place
    ids = id_array(client, source, what)
    if ids.ndim != 1:
        raise EvenhandError(f"{source}: {what} has {ids.ndim} axes: give one client id per row.")
    if ids.dtype.kind in "OUS":
        return _of_objects(ids.tolist(), source, where)
    if ids.dtype.kind == "M":
        return _of_objects(ids.astype(str).tolist(), source, where)
    if ids.dtype.kind not in "biuf":
        raise EvenhandError(
            f"{source}: {what} holds {ids.dtype.name}: write client ids as whole numbers or text."
        )
    return _of_numbers(ids, source, where)


def id_array(client: npt.ArrayLike, source: str, what: str = "client") -> NDArray:
    """Ids as an array; those of a list keep their types, where NumPy would turn mixed ones into text."""
    try:
        return np.array(client, object) if isinstance(client, list | tuple) else np.asarray(client)
    except (ValueError, TypeError):
        raise EvenhandError(f"{source}: {what} is ragged: give one client id per row.") from None


def _of_numbers(ids: NDArray, source: str, place: Place) -> tuple[NDArray, tuple[str, ...]]:
    if ids.dtype.kind == "f":
        bad = ~np.isfinite(ids)
        if bad.any():
            raise _no_id(source, place(first_bad(bad)), str(ids[first_bad(bad)]))
        large = np.abs(ids) >= 2**53
        if large.any():
            raise _inexact(source, place(first_bad(large)))
        if (ids == np.rint(ids)).all():
            ids = ids.astype(np.int64)
    values, codes = np.unique(ids, return_inverse=True)
    return codes.astype(np.int64), tuple(str(value) for value in values.tolist())


def _of_objects(values: Iterable[Any], source: str, place: Place) -> tuple[NDArray, tuple[str, ...]]:
    ids = [
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in values
    ]
    kinds = {type(value) for value in ids}
    for row, value in enumerate(ids if kinds != {str} else []):
        if not isinstance(value, str | int) and is_missing(str(value)):
            raise _no_id(source, place(row), str(value))
    if all(issubclass(kind, numbers.Real) for kind in kinds):
        array = np.array(ids)
        if array.dtype.kind == "O":
            row = next(
                (row for row, value in enumerate(ids) if isinstance(value, int) and abs(value) >= 2**63), 0
            )
            raise _inexact(source, place(row))
        return _of_numbers(array, source, place)
    row = next((row for row, value in enumerate(ids) if not isinstance(value, str)), None)
    if row is not None:
        raise EvenhandError(
            f"{source}: {place(row)} is a value of type {type(ids[row]).__name__} where client ids have to be all "
            "text or all numbers: write them in one way."
        )
    return _of_text(ids, source, place)


def _of_text(ids: list[str], source: str, place: Place) -> tuple[NDArray, tuple[str, ...]]:
    distinct = set(ids)
    for name in distinct:
        fault = name_fault(name)
        if fault is not None:
            raise EvenhandError(
                f"{source}: client id {place(ids.index(name))} {fault}: give it another name."
            )
        if is_missing(name):
            raise _no_id(source, place(ids.index(name)), repr(name) if name.strip() else "")
    if all(_is_integer(name) for name in distinct):
        names = sorted(distinct, key=lambda name: (int(name), name))
    else:
        names = sorted(distinct)
    position = {name: k for k, name in enumerate(names)}
    return np.fromiter((position[name] for name in ids), np.int64, len(ids)), tuple(names)


def _inexact(source: str, where: str) -> EvenhandError:
    return EvenhandError(
        f"{source}: {where} is too large to be an exact number: write the client ids as text."
    )


def _no_id(source: str, where: str, value: str) -> EvenhandError:
    says = f"is {value}, which is not a client id" if value else "has no client id"
    return EvenhandError(f"{source}: {where} {says}: fill it in or drop the row.")


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit()
