"""Client ids of any kind as text, by one rule in every reader; missing and unprintable ones are refused.

Two ids are the same client if their texts are equal: in Unicode's composed form (NFC) and without the blanks around
them, whole numbers without a point (``1`` and ``1.0`` are ``"1"``), booleans as ``"True"`` and ``"False"``.
"""

from __future__ import annotations

import numbers
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.data._numeric import NDArray, Place, first_bad
from evenhand.data._text import is_missing, name_fault
from evenhand.errors import EvenhandError

__all__ = [
    "canonical",
    "client_codes",
    "composed",
    "id_array",
    "object_ids",
    "remarks_on_spelling",
    "spelled",
]

_NUMBER = re.compile(r"-?\d{1,300}(\.\d+)?", re.ASCII)
_PADDED = re.compile(r"(?<![\d.])0+(?=\d)")
_WHOLE = re.compile(r"(?<=\d)\.0+(?!\d)")


def canonical(text: str) -> str:
    r"""The form in which names are compared: Unicode's NFC, without blanks around it.

    Example:
      >>> canonical(" Cafe\u0301 ") == "Caf\u00e9", canonical(" Ann")
      (True, 'Ann')
    """
    return composed(text).strip()


def composed(text: str) -> str:
    """Unicode's NFC: of a letter and an accent, one character."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def remarks_on_spelling(ids: Iterable[str]) -> tuple[str, ...]:
    """The sentence about clients whose ids differ only in how they are written, with examples; none without any.

    That is in capitals, blanks, zeros in front or after a point, or compatible characters (Unicode's NFKC).

    Example:
      >>> remarks_on_spelling(["7", "07", "8"])
      ("Clients '7' and '07' differ only in how they are written: they count as different clients, ...",)
      >>> remarks_on_spelling(["7", "70"])
      ()
    """
    spellings: dict[str, list[str]] = {}
    for name in ids:
        spellings.setdefault(_bare(name), []).append(name)
    pairs = [f"{names[0]!r} and {names[1]!r}" for names in spellings.values() if len(names) > 1]
    if not pairs:
        return ()
    others = f" (and {len(pairs) - 1:,} other groups, such as {pairs[1]})" if len(pairs) > 1 else ""
    sentence = (
        f"Clients {pairs[0]}{others} differ only in how they are written: they count as different clients, so "
        "write their ids in one way if they are the same."
    )
    return (sentence,)


def _bare(name: str) -> str:
    """``name`` without what often differs between two spellings of one id."""
    text = name if name.isascii() else unicodedata.normalize("NFKC", name)
    return _WHOLE.sub("", _PADDED.sub("", "".join(text.casefold().split())))


def object_ids(values: Sequence[Any], missing: Sequence[bool], source: str, place: Place) -> NDArray:
    """Python objects of a column as the texts of their ids, ``(n,)``; ``""`` where one is missing.

    Raises:
      EvenhandError: numbers and text, or numbers and booleans, are mixed.
    """
    present = [value for value, gap in zip(values, missing, strict=True) if not gap]
    _check_kinds(values, missing, source, place)
    texts = iter([spelled(value) for value in present])
    return np.array(["" if gap else next(texts) for gap in missing], str)


def _check_kinds(values: Sequence[Any], missing: Sequence[bool], source: str, place: Place) -> None:
    """Refuses ids of several kinds, since ``1``, ``"1"`` and ``True`` beside each other may or may not be one."""
    kinds: dict[str, int] = {}
    for row, (value, gap) in enumerate(zip(values, missing, strict=True)):
        if not gap:
            kinds.setdefault(_kind(value), row)
    if len(kinds) > 1:
        row = next(row for kind, row in kinds.items() if kind != "text")
        if "text" not in kinds:
            row = max(kinds.values())
        raise EvenhandError(
            f"{source}: {place(row)} is a value of type {type(values[row]).__name__} where client ids have to be all "
            "text or all numbers: write them in one way."
        )


def _kind(value: Any) -> str:
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    return "number" if isinstance(value, numbers.Number) else type(value).__name__


def spelled(value: Any) -> str:
    """The text of an id; a whole number has no point."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


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
    return codes.astype(np.int64), tuple(spelled(value) for value in values.tolist())


def _of_objects(values: Iterable[Any], source: str, place: Place) -> tuple[NDArray, tuple[str, ...]]:
    ids = [
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in values
    ]
    kinds = {type(value) for value in ids}
    for row, value in enumerate(ids if kinds != {str} else []):
        if not isinstance(value, str | int) and is_missing(str(value)):
            raise _no_id(source, place(row), str(value))
    if kinds != {str}:
        _check_kinds(ids, [False] * len(ids), source, place)
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
    written = {name: canonical(name) for name in distinct}
    names = sorted(set(written.values()), key=_order(written.values()))
    position = {name: k for k, name in enumerate(names)}
    at = {name: position[text] for name, text in written.items()}
    return np.fromiter((at[name] for name in ids), np.int64, len(ids)), tuple(names)


def _order(names: Iterable[str]) -> Callable[[str], tuple[float | int, str]]:
    """The key by which ids are sorted: as numbers if all of them spell one."""
    if all(_is_integer(name) for name in names):
        return lambda name: (int(name), name)
    if all(_NUMBER.fullmatch(name) for name in names):
        return lambda name: (float(name), name)
    return lambda name: (0, name)


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
