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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Number, Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, real_number, whole_number
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
            row, value = first_bad(array[rows], bad)
            raise EvenhandError(
                f"{source}: {place(first + row)} holds {value}, which is not a finite 32-bit number: repair it or drop "
                "the row."
            )
    return small


def _slice_rows(array: NDArray) -> int:
    return max(1, _SLICE // max(1, array.nbytes // max(1, len(array))))


def int32(array: NDArray, source: str, place: Place) -> NDArray:
    """Integers as int32, or the error for the first that does not fit."""
    large = (array > INT32.max) | (array < INT32.min) if array.dtype.itemsize > 2 else np.zeros(1, bool)
    if large.any():
        raise out_of_range(source, place, array, large)
    return array.astype(np.int32, copy=False)


def out_of_range(source: str, place: Place, array: NDArray, large: NDArray) -> EvenhandError:
    """The error for the first class number or token of those marked in ``large``, which are beyond a range."""
    row, value = first_bad(array, large)
    return EvenhandError(
        f"{source}: {place(row)} is {int(value)}, which is out of range: number classes and tokens from 0, or give "
        "real values as floats, with ",
        Argument("regression", "True"),
        " if they are labels.",
    )


def first_bad(array: NDArray, bad: NDArray) -> tuple[int, Any]:
    """The first row of ``array`` that has an entry marked in ``bad``, and that entry."""
    return int(np.argmax(bad.reshape(len(bad), -1).any(axis=1))), array[bad].reshape(-1)[0].item()


# --- text: cells and names ----------------------------------------------------------------------------------


MISSING = frozenset(
    ["", "nan", "NaN", "NAN", "-nan", "None", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaT"]
)
"""How programs write a missing value; none of these names a client."""

MISSING_LABELS = ("", "nan", "NaN", "<NA>", "NaT")
"""How programs write a missing label among texts; NA, None, NAT and Nan may be names, and a blank a character."""

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
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
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
    elif isinstance(values, Iterator):
        raise EvenhandError(
            f"{source}: {subject} is a {type(values).__name__}, which has no shape: give all of its rows as one array, "
            f"np.stack(list({subject}))."
        )
    elif isinstance(values, Mapping):
        raise EvenhandError(
            f"{source}: {subject} is a {type(values).__name__} of {len(values)} arrays, but an example is one array: "
            "join them along the last axis, and mark padding by a token of its own instead of by a mask."
        )
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
    texts = (value for value in values if isinstance(value, str)) if str in kinds else ()
    longest = max(map(len, texts), default=0)
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
    if kinds and all(issubclass(kind, str) for kind in kinds):
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
    array = _numeric(values, source, subject, "encode it as numbers")
    convert = int32 if array.dtype.kind in "iu" else float32
    return convert(array, source, place or element(subject))


def _numeric(values: npt.ArrayLike, source: str, subject: str, cure: str) -> NDArray:
    array = as_array(values, source, subject)
    if array.dtype.kind == "U":
        raise EvenhandError(f"{source}: {subject} holds text, not numbers: {cure} first.")
    return array


# --- labels -------------------------------------------------------------------------------------------------

# A label this large, and not below the number of rows, is no class number but an id, a year or a slipped digit.
_MANY_CLASSES = 10_000

_FEW_CLASSES = 20
"""Most distinct whole numbers that count as classes wherever they begin and whatever is left out between them."""


def as_labels(
    values: npt.ArrayLike, source: str, place: Place | None = None, *, subject: str = "y"
) -> NDArray:
    """Class numbers >= 0 as int32 where ``values`` are integers or booleans, else finite float32 targets."""
    array, place = _numeric(values, source, subject, "number the classes from 0"), place or element(subject)
    if array.dtype.kind == "f":
        return float32(array, source, place)
    if array.dtype.kind == "b":
        return array.astype(np.int32)
    if array.size and array.min() < 0:
        row, label = first_bad(array, array < 0)
        raise EvenhandError(
            f"{source}: {place(row)} is the negative label {label}: number the classes from 0, or give real-valued "
            "targets as floats."
        )
    return int32(array, source, place)


def whole_numbers(values: NDArray, source: str, place: Place) -> NDArray:
    """Labels such as 4.0 as the integers they are; one that is not a whole number is refused."""
    if values.dtype.kind != "f":
        return values
    float32(values, source, place)
    broken = values != np.rint(values)
    if broken.any():
        row, label = first_bad(values, broken)
        fault = (
            f"{source}: {place(row)} is {label:g}, not a class number: number the classes from 0, or give "
        )
        raise EvenhandError(fault, Argument("regression", "True"), " if the labels are real-valued targets.")
    large = np.abs(values) > INT32.max
    if large.any():
        raise out_of_range(source, place, values, large)
    return values.astype(np.int64)


def check_class_numbers(
    values: NDArray, source: str, subject: str, *cures: str | Argument, sampled: bool = False
) -> None:
    """Asks what whole numbers mean that may be amounts: more than 20 distinct ones, with gaps or not from 0.

    Args:
      values: ``(n,)`` labels of any dtype; NaN where one is missing.
      source: the file.
      subject: what the labels are called, such as ``column 'score'``.
      cures: how to say what they are: the end of the sentence.
      sampled: whether up to nine in ten classes may be absent, among them the first ten, so that a few users of many
        classes can be read from a format that has no place to declare classes.
    """
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        return
    distinct = np.unique(values[np.isfinite(values)])
    if len(distinct) <= _FEW_CLASSES or (distinct != np.rint(distinct)).any():
        return
    first, last = int(distinct[0]), int(distinct[-1])
    if sampled and 0 <= first <= 10 and last < 10 * len(distinct):
        return
    if first != 0 or last != len(distinct) - 1:
        raise EvenhandError(
            f"{source}: {subject} holds {len(distinct):,} distinct whole numbers from {first} to {last}, which may be "
            "amounts or the numbers of classes: ",
            *cures,
        )


def check_sampled_classes(values: NDArray, source: str, subject: str) -> None:
    """:func:`check_class_numbers` of a format that has no place to declare classes."""
    numbered = " to predict amounts, or number the classes 0, 1, 2, ... without gaps."
    check_class_numbers(
        values, source, subject, "give ", Argument("regression", "True"), numbered, sampled=True
    )


def remark_on_gaps(labels: NDArray, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The sentence about class numbers of which some have no example, as where labels are amounts; none without gaps.

    Args:
      labels: of all examples.
      classes: the names of the classes, which have no gaps; None: there are none.

    Example:
      >>> remark_on_gaps(np.array([0, 1, 2, 1]), None)
      ()
    """
    if classes is not None or labels.dtype.kind != "i" or labels.ndim != 1 or not labels.size:
        return ()
    used = np.unique(labels)
    first, last = int(used[0]), int(used[-1])
    if len(used) == last + 1:
        return ()
    return (
        f"The labels are {len(used):,} distinct whole numbers from {first} to {last}, which are read as the numbers of "
        f"{last + 1:,} classes: if they are amounts, give --regression, in Python regression=True.",
    )


def class_labels(
    values: NDArray,
    source: str,
    place: Place,
    *,
    regression: bool,
    missing: Sequence[str] = MISSING_LABELS,
) -> tuple[NDArray, tuple[str, ...] | None]:
    """The labels of a file as int32 class numbers or float32 targets, and the class names if it had any.

    Args:
      values: ``(n, ...)`` numbers or text.
      source: the file.
      place: where a row is.
      regression: labels are real-valued targets, not classes.
      missing: texts that are no classes.
    """
    if regression:
        if values.dtype.kind == "U":
            fault = f"{source}: {place(0)} is {values.reshape(-1)[0].item()[:40]!r}, not a number"
            cure = "give numbers as targets, or leave out "
            raise EvenhandError(f"{fault}: {cure}", Argument("regression", "True"), ".")
        with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused next
            wide = values.astype(np.float64)
        return float32(wide, source, place), None
    if values.dtype.kind == "U":
        spellings, codes = np.unique(values, return_inverse=True)
        absent = [text in missing for text in spellings.tolist()]
        if any(absent):
            row, text = first_bad(values, np.array(absent)[codes.reshape(values.shape)])
            says = f"is {text!r}, which is a missing label" if text else "is empty"
            raise EvenhandError(f"{source}: {place(row)} {says}: fill it in or drop the row.")
        names, merged = np.unique([composed(text) for text in spellings.tolist()], return_inverse=True)
        codes = merged[codes]
        for code, name in enumerate(names.tolist()):
            fault = name_fault(name)
            if fault is not None:
                row, _ = first_bad(values, codes.reshape(values.shape) == code)
                raise EvenhandError(f"{source}: {place(row)} {fault}: give the class another name.")
        return codes.reshape(values.shape).astype(np.int32), tuple(names.tolist())
    numbers = whole_numbers(values, source, place)
    negative = numbers < 0
    if negative.any():
        row, label = first_bad(numbers, negative)
        fault = f"{source}: {place(row)} is the negative label {label}: number the classes from 0, or give "
        raise EvenhandError(fault, Argument("regression", "True"), " if the labels are real-valued targets.")
    labels = as_labels(numbers, source, place)
    large = labels >= max(_MANY_CLASSES, len(labels))
    if large.any():
        raise out_of_range(source, place, labels, large)
    return labels, None


def array_labels(
    values: npt.ArrayLike, source: str, classes: Sequence[str] | None, place: Place | None = None
) -> tuple[NDArray, tuple[str, ...] | None]:
    """The labels of an array as int32 class numbers or float32 targets, and the class names if it has any.

    Args:
      values: ``(n, ...)`` numbers or text.
      source: what the array is from.
      classes: the names of class numbers, if the caller gave some.
      place: where a row is; None: ``y[3]``.
    """
    labels, place = as_array(values, source, "y"), place or element("y")
    if labels.dtype.kind == "U" and classes is None:
        return class_labels(labels, source, place, regression=False)
    if classes is None and labels.dtype.kind in "iu":
        cure = "give them as floats to predict amounts, or the classes' names with "
        names = Argument("classes", "NAMES")
        check_class_numbers(labels, source, "y", cure, names, " if each number is a class.")
    return as_labels(labels, source, place), None if classes is None else tuple(classes)


# --- client ids ---------------------------------------------------------------------------------------------


_INTEGER = re.compile(r"-?\d+", re.ASCII)

_NUMBER = re.compile(r"-?\d{1,300}(\.\d+)?", re.ASCII)


def client_codes(
    client: npt.ArrayLike, source: str, subject: str = "client"
) -> tuple[NDArray, tuple[str, ...]]:
    """Client ids as ``(n,)`` int64 positions, and the sorted ids; numbers, also in text, sort as numbers.

    Args:
      client: ``(n,)`` integers, floats, booleans, dates or text; an array of objects may hold any one of them.
      source: the file, or whatever else the ids come from.
      subject: the array or column in it.
    """
    ids = id_array(client, source, subject)
    if ids.ndim != 1:
        raise EvenhandError(f"{source}: {subject} has {ids.ndim} axes: give one client id per row.")
    if ids.dtype.kind in "OUSM":
        texts = ids.astype(str) if ids.dtype.kind == "M" else ids
        return _of_objects(texts.tolist(), source, element(subject))
    if ids.dtype.kind not in "biuf":
        raise EvenhandError(
            f"{source}: {subject} holds {ids.dtype.name}: write client ids as whole numbers or text."
        )
    return _of_numbers(ids, source, element(subject))


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
            row, value = first_bad(ids, bad)
            raise _no_id(source, place(row), str(value))
        large = np.abs(ids) >= 2**53
        if large.any():
            raise _inexact(source, place(first_bad(ids, large)[0]))
        if (ids == np.rint(ids)).all():
            ids = ids.astype(np.int64)
    values, codes = np.unique(ids, return_inverse=True)
    return codes.astype(np.int64), tuple(spelled(value) for value in values.tolist())


def _of_objects(values: Iterable[Any], source: str, place: Place) -> tuple[NDArray, tuple[str, ...]]:
    ids = [
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in values
    ]
    kinds = {type(value) for value in ids}
    if kinds == {str}:
        return _of_text(ids, source, place)
    for row, value in enumerate(ids):
        if not isinstance(value, str | int) and is_missing(str(value)):
            raise _no_id(source, place(row), str(value))
    _check_kinds(dict(enumerate(ids)), source, place)
    if all(issubclass(kind, Real) for kind in kinds):
        array = np.array(ids)
        if array.dtype.kind == "O":
            huge = (row for row, value in enumerate(ids) if isinstance(value, int) and abs(value) >= 2**63)
            raise _inexact(source, place(next(huge, 0)))
        return _of_numbers(array, source, place)
    for row, value in enumerate(ids):
        if not isinstance(value, str):
            raise _unlike(source, place(row), value)
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
    if all(_INTEGER.fullmatch(name) for name in names):
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


def object_ids(values: Sequence[Any], source: str, place: Place) -> NDArray:
    """Python objects of a column as the canonical texts of their ids, ``(n,)``; ``""`` where one is None.

    Raises:
      EvenhandError: numbers and text, or numbers and booleans, are mixed; or ids are lists or objects of JSON.
    """
    present = {row: value for row, value in enumerate(values) if value is not None}
    _check_kinds(present, source, place)
    nested = next((row for row, value in present.items() if isinstance(value, list | dict)), None)
    if nested is not None:
        raise _unlike(source, place(nested), values[nested])
    return np.array(["" if value is None else canonical(spelled(value)) for value in values], str)


def _check_kinds(values: Mapping[int, Any], source: str, place: Place) -> None:
    """Refuses ids of several kinds, since ``1``, ``"1"`` and ``True`` beside each other may or may not be one."""
    kinds: dict[str, int] = {}
    for row, value in values.items():
        kinds.setdefault(_kind(value), row)
    if len(kinds) > 1:
        odd = [row for kind, row in kinds.items() if kind not in ("text", "number")]
        row = odd[0] if odd else kinds["number"]
        raise _unlike(source, place(row), values[row])


def _unlike(source: str, where: str, value: Any) -> EvenhandError:
    return EvenhandError(
        f"{source}: {where} is a value of type {type(value).__name__} where client ids have to be all text or all "
        "numbers: write them in one way."
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


# --- seeds and fractions ------------------------------------------------------------------------------------


_LARGEST = 2**128 - 1
"""The largest seed; NumPy takes any, but one of millions of digits is a mistake."""


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator for ``purpose``; a partition and a split with the same seed draw from different streams."""
    return np.random.default_rng([whole_number("seed", seed, 0, _LARGEST), zlib.crc32(purpose.encode())])


def pixels(pictures: NDArray) -> NDArray:
    """The bytes of pictures, of two axes or more each, as shares of 255 in float32; anything else as it is."""
    is_picture = pictures.dtype == np.uint8 and pictures.ndim > 2
    return pictures.astype(np.float32) / np.float32(255) if is_picture else pictures


class Splitting(NamedTuple):
    """How each client's examples are divided.

    Attributes:
      test_fraction: the share for testing.
      valid_fraction: the share for validation.
      seed: of the draw.
    """

    test_fraction: float
    valid_fraction: float
    seed: int

    def check(self) -> None:
        """Checks that both fractions are in [0, 1) and leave something for training."""
        for title, value in zip(self._fields[:2], self[:2], strict=True):
            if not 0 <= real_number(value) < 1:
                raise EvenhandError(f"{title} must be at least 0 and below 1, not {value!r:.40}.")
        if self.test_fraction + self.valid_fraction >= 1:
            raise EvenhandError(
                f"test_fraction {self.test_fraction} and valid_fraction {self.valid_fraction} leave nothing for "
                "training: make their sum less than 1."
            )
