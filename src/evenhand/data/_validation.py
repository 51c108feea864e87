"""What people give, as the few kinds of values that data sets keep, or one sentence about what is wrong with it.

Arrays become finite float32 or int32, labels become class numbers or real targets, cells and names of text are read by
one rule, client ids of any kind become text, and a seed becomes a generator of random numbers.

Two client ids are the same client if their texts are equal: in Unicode's composed form (NFC) and without the blanks
around them, whole numbers without a point (``1`` and ``1.0`` are ``"1"``), booleans as ``"True"`` and ``"False"``.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Sequence
from numbers import Number, Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, whole_number
from evenhand.memory import copied

# --- numbers ------------------------------------------------------------------------------------------------


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


# --- text: cells and names ----------------------------------------------------------------------------------


MISSING = frozenset(
    ["", "nan", "NaN", "NAN", "-nan", "None", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaT"]
)
"""How programs write a missing value; none of these names a client."""

LONGEST = 255
"""Most characters of a name; a longer one is text in the wrong place, and would cost its length in each row."""


def number(text: str) -> float | None:
    """The number that a cell spells, or None if it spells none.

    One rule for all text: what :class:`float` reads, in ASCII and without underscores.  So ``"1e-3"``,
    ``" +.5 "``, ``"inf"`` and ``"nan"`` are numbers (the last two for others to refuse as not finite), and
    ``"1_000"``, ``"1,5"``, Arabic digits and a number beside a no-break space are not.

    Example:
      >>> number(" 1.5"), number("1_000"), number("nan")
      (1.5, None, nan)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if text.isascii() and "_" not in text else None


def numbers(cells: Sequence[str]) -> npt.NDArray[Any] | None:
    """:func:`number` of each cell as float64, or None if one of them spells none.

    Example:
      >>> numbers(["1", "2.5"]), numbers(["1", "2_5"])
      (array([1. , 2.5]), None)
    """
    text = "".join(cells)
    if "_" in text or not text.isascii():
        return None
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def is_missing(text: str) -> bool:
    """Whether a cell stands for a missing value, as ``""``, ``"nan"`` and ``"NULL"`` do."""
    return text.strip() in MISSING


def name_fault(text: str) -> str | None:
    r"""Why ``text`` cannot name a client or a class, beginning with "is" or "has"; None if it can.

    A name has to survive a terminal, a table and a file in UTF-8.

    Example:
      >>> name_fault("ann"), name_fault("a\0b")
      (None, 'has a NUL character in it')
    """
    if "\0" in text:
        return "has a NUL character in it"
    if len(text) > LONGEST:
        return f"is {len(text)} characters long"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "has half of a surrogate pair in it, which is not Unicode text"
    return None


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that occurred before, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


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


# --- arrays -------------------------------------------------------------------------------------------------


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


def as_array(values: npt.ArrayLike, source: str, subject: str) -> NDArray:
    """``values`` as an array of numbers, booleans or text with a row axis; ``subject`` names it in errors."""
    if isinstance(values, list | tuple):
        _check_entries(values, source, subject)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise EvenhandError(
            f"{source}: {subject} is ragged: give every row the same length, or pad the short ones."
        ) from None
    if array.dtype.kind == "O":
        array = _unboxed(array, source, subject)
    check_form(array.shape, array.dtype, source, subject)
    return np.char.decode(array, "utf-8", "backslashreplace") if array.dtype.kind == "S" else array


def check_form(shape: tuple[int, ...], dtype: np.dtype[Any], source: str, subject: str) -> None:
    """Refuses an array without rows, or whose entries are not numbers, booleans or names."""
    if dtype.kind not in "biufUS":
        kind = "mixed or missing values" if dtype.kind == "O" else f"values of dtype {str(dtype)[:40]}"
        raise EvenhandError(f"{source}: {subject} holds {kind}: write plain numbers or plain text.")
    if not shape:
        raise EvenhandError(f"{source}: {subject} is a single value: give one entry per row.")
    if 0 in shape[1:]:
        raise EvenhandError(
            f"{source}: {subject} has the shape {shape}, so its rows are empty: give each at least one entry."
        )
    if dtype.itemsize == 0:
        raise EvenhandError(f"{source}: {subject} holds only empty texts: write plain numbers or plain text.")
    if dtype.kind in "US":
        _check_length(dtype.itemsize // (4 if dtype.kind == "U" else 1), source, subject)


def _check_length(longest: int, source: str, subject: str) -> None:
    if longest > LONGEST:
        raise EvenhandError(
            f"{source}: {subject} holds a text of {longest} characters: give numbers, or names of at most "
            f"{LONGEST} characters."
        )


def _check_entries(values: Sequence[Any], source: str, subject: str) -> None:
    """Refuses lists that NumPy would turn into text, or that would take too much memory."""
    kinds, longest = _kinds(values)
    if None in kinds:
        raise EvenhandError(f"{source}: {subject} is nested too deeply: give one list of numbers per row.")
    if str in kinds and kinds != {str}:
        raise EvenhandError(
            f"{source}: {subject} holds mixed or missing values, text beside other things: write only numbers, or "
            "only text."
        )
    _check_length(longest, source, subject)


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


def _unboxed(array: NDArray, source: str, subject: str) -> NDArray:
    """Python objects as text, as pandas keeps it, or as numbers, if all of them are; unchanged otherwise."""
    entries = array.reshape(-1).tolist()
    kinds = set(map(type, entries))
    if kinds == {str}:
        _check_length(max(map(len, entries)), source, subject)
        return array.astype(str)
    if all(kind in (bool, int, float) for kind in kinds):
        with contextlib.suppress(OverflowError):
            return array.astype(np.float64 if float in kinds else np.int64)
        raise EvenhandError(
            f"{source}: {subject} holds a number that is out of range: write numbers of at most 18 digits."
        )
    return array


def as_features(
    values: npt.ArrayLike, source: str, place: Place | None = None, *, subject: str = "x"
) -> NDArray:
    """Finite float32, or int32 where ``values`` are integers (tokens)."""
    array = as_array(values, source, subject)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {subject} holds text, not numbers: encode it as numbers first.")
    place = element(subject) if place is None else place
    if array.dtype.kind in "iu":
        return int32(array, source, place)
    return float32(array, source, place)


# --- labels -------------------------------------------------------------------------------------------------

# A label this large, and not below the number of rows, is no class number but an id, a year or a slipped digit.
_MANY_CLASSES = 10_000

_FEW_CLASSES = 20
"""Most distinct whole numbers that count as classes wherever they begin and whatever is left out between them."""


def as_labels(
    values: npt.ArrayLike, source: str, place: Place | None = None, *, subject: str = "y"
) -> NDArray:
    """Class numbers >= 0 as int32 where ``values`` are integers or booleans, else finite float32 targets."""
    array = as_array(values, source, subject)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {subject} holds text, not numbers: number the classes from 0 first.")
    place = element(subject) if place is None else place
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


def check_class_numbers(values: NDArray, source: str, subject: str, *cures: str | Argument) -> None:
    """Asks what whole numbers mean that may be amounts: more than 20 distinct ones, with gaps or not from 0.

    Args:
      values: ``(n,)`` labels of any dtype; NaN where one is missing.
      source: the file.
      subject: what the labels are called, such as ``column 'score'``.
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
            f"{source}: {subject} holds {len(distinct):,} distinct whole numbers from {first} to {last}, which may be "
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


# --- client ids ---------------------------------------------------------------------------------------------


_NUMBER = re.compile(r"-?\d{1,300}(\.\d+)?", re.ASCII)


def client_codes(
    client: npt.ArrayLike, source: str, subject: str = "client", place: Place | None = None
) -> tuple[NDArray, tuple[str, ...]]:
    """Client ids as ``(n,)`` int64 positions, and the sorted ids; numbers, also in text, sort as numbers.

    Args:
      client: ``(n,)`` integers, floats, booleans, dates or text; an array of objects may hold any one of them.
      source: the file, or whatever else the ids come from.
      subject: the array or column in it.
      place: where a row is; ``what[row]`` by default.
    """
    where = (lambda row: f"{subject}[{row}]") if place is None else place
    ids = id_array(client, source, subject)
    if ids.ndim != 1:
        raise EvenhandError(f"{source}: {subject} has {ids.ndim} axes: give one client id per row.")
    if ids.dtype.kind in "OUS":
        return _of_objects(ids.tolist(), source, where)
    if ids.dtype.kind == "M":
        return _of_objects(ids.astype(str).tolist(), source, where)
    if ids.dtype.kind not in "biuf":
        raise EvenhandError(
            f"{source}: {subject} holds {ids.dtype.name}: write client ids as whole numbers or text."
        )
    return _of_numbers(ids, source, where)


def id_array(client: npt.ArrayLike, source: str, subject: str = "client") -> NDArray:
    """Ids as an array; those of a list keep their types, where NumPy would turn mixed ones into text."""
    try:
        return np.array(client, object) if isinstance(client, list | tuple) else np.asarray(client)
    except (ValueError, TypeError):
        raise EvenhandError(f"{source}: {subject} is ragged: give one client id per row.") from None


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
    if all(issubclass(kind, Real) for kind in kinds):
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


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit()


def _inexact(source: str, where: str) -> EvenhandError:
    return EvenhandError(
        f"{source}: {where} is too large to be an exact number: write the client ids as text."
    )


def _no_id(source: str, where: str, value: str) -> EvenhandError:
    says = f"is {value}, which is not a client id" if value else "has no client id"
    return EvenhandError(f"{source}: {where} {says}: fill it in or drop the row.")


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
        odd = [row for kind, row in kinds.items() if kind not in ("text", "number")]
        row = odd[0] if odd else kinds["number"]
        raise EvenhandError(
            f"{source}: {place(row)} is a value of type {type(values[row]).__name__} where client ids have to be all "
            "text or all numbers: write them in one way."
        )


def _kind(value: Any) -> str:
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    return "number" if isinstance(value, Number) else type(value).__name__


def spelled(value: Any) -> str:
    """The text of an id; a whole number has no point."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


# --- seeds --------------------------------------------------------------------------------------------------


_LARGEST = 2**128 - 1
"""The largest seed; NumPy takes any, but one of millions of digits is a mistake."""


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator for ``purpose``; a partition and a split with the same seed draw from different streams."""
    return np.random.default_rng([whole_number("seed", seed, 0, _LARGEST), zlib.crc32(purpose.encode())])
