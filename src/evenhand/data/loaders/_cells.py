"""What the cells of one column mean: numbers, categories, classes, or something that is refused.

All that is wrong with a table is collected (:class:`Problems`) and raised as one error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar, get_args

import numpy as np

from evenhand.data._features import Fill, Series, few
from evenhand.data._validation import (
    MISSING_LABELS,
    NDArray,
    check_class_numbers,
    class_labels,
    is_missing,
    number,
)
from evenhand.errors import Argument, EvenhandError, named

# --- all problems in one error ------------------------------------------------------------------------------


_SHOWN = 10

_S = TypeVar("_S")
_T = TypeVar("_T")


class Problems:
    """What is wrong with one source, collected while it is read.

    A file is repaired in one go if all of its problems are known; with one error per run, each repair only leads to
    the next.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._sentences: list[tuple[str | Argument, ...]] = []

    @contextmanager
    def noted(self) -> Generator[None]:
        """Keeps an error for :meth:`check` instead of raising it."""
        try:
            yield
        except EvenhandError as error:
            if error.parts not in self._sentences:
                self._sentences.append(error.parts)

    def accepted(self, read: Callable[[_S], _T], items: Iterable[_S]) -> list[_T]:
        """What ``read`` makes of each item, without those that it refuses, whose errors are kept for :meth:`check`."""
        values: list[_T] = []
        for item in items:
            with self.noted():
                values.append(read(item))
        return values

    def check(self) -> None:
        """Raises what was noted.

        Raises:
          EvenhandError: one problem as it was; of several, the first ten, numbered, and how many more there are.
        """
        if not self._sentences:
            return
        if len(self._sentences) == 1:
            raise EvenhandError(*self._sentences[0])
        parts: list[str | Argument] = [f"{self.source} has {len(self._sentences):,} problems:"]
        for position, sentence in enumerate(self._sentences[:_SHOWN], start=1):
            parts += [f" ({position}) ", *self._bare(sentence), ";"]
        rest = len(self._sentences) - _SHOWN
        parts[-1] = "." if rest <= 0 else f"; and {rest:,} more."
        raise EvenhandError(*parts)

    def _bare(self, sentence: tuple[str | Argument, ...]) -> list[str | Argument]:
        """A sentence without the name of the source and the full stop."""
        parts = list(sentence)
        if isinstance(parts[0], str):
            parts[0] = parts[0].removeprefix(f"{self.source}: ")
        if isinstance(parts[-1], str):
            parts[-1] = parts[-1].removesuffix(".")
        return parts


# --- columns ------------------------------------------------------------------------------------------------


Row: TypeAlias = Callable[[int], str]

BOOLEANS = ("False", "True")
"""The categories of a column of booleans."""

MOST_CATEGORIES = 1000
"""Most distinct texts of a feature column; with more, a model would learn ids."""

MOST_LISTED = 10
"""Most faulty cells of a column whose places are listed."""

_FEW = 20

_SENTENCE = 5.0
"""Words of a text, on average over the distinct ones, from which on texts are sentences and no names."""

_LARGEST_CLASS = 10_000

_MONTH = (
    "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|"
    r"dec(ember)?)\.?"
)

_DAYS = (
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}",
    r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}",
    rf"\d{{1,2}}\.?[ -]?{_MONTH}[ -]?\d{{4}}",
    rf"\d{{1,2}}[ -]{_MONTH}[ -]\d{{2}}",
    rf"{_MONTH} \d{{1,2}},? \d{{4}}",
)
"""2020-1-31; 31.1.2020 or 1/31/20; 31 Jan 2020, 31. January 2020 or 31JAN2020; 31-Jan-20; Jan 31, 2020."""

_DATE = re.compile(f"({'|'.join(_DAYS)})([T ].*)?", re.IGNORECASE)

_MONEY = r"[$€£¥₹]|USD|EUR|GBP|CHF"

_GROUPED = r"(\d[\d.]*(,\d+)+|\d{1,3}(['’ \u00a0\u202f]\d{3})+)([.,]\d+)?"
"""Digits in groups or with a decimal comma: 1,234.5 and 1.234,5; 1'234 and 1 234,5."""

_DIGITS = rf"({_GROUPED}|\d*\.?\d+)"

_AMOUNT = re.compile(
    rf"\(?[+−-]?({_GROUPED}|({_MONEY})\s?-?{_DIGITS}|{_DIGITS}\s?({_MONEY}|%))\)?|−{_DIGITS}"
)
"""A number that is written for people: with signs such as $, % and −, groups of digits, or a decimal comma."""

_BESIDE_AMOUNTS = re.compile(rf"\(\d*\.?\d+\)|({_MONEY})?\s?[-–—]")
"""What accounts write for a negative number and for none: (750.00), and a lone dash. By itself it is no amount."""

_LARGEST = float(np.finfo(np.float32).max)


def check_filled(source: str, columns: Sequence[Series], row: Row, *, is_trained: bool = False) -> None:
    """Refuses empty cells, all of them in one sentence.

    Args:
      source: what the table is called in errors.
      columns: the features that may have no empty cell.
      row: row number -> where it is.
      is_trained: the model is already trained, so that no other fill can be chosen.
    """
    gaps = [series for series in columns if series.missing.any()]
    if not gaps:
        return
    where = f"{first_place(source, gaps[0].name, row, gaps[0].missing)} is empty or NaN: "
    counts = [int(series.missing.sum()) for series in gaps]
    some = few([f"{series.name!r} ({n:,})" for series, n in zip(gaps, counts, strict=True)])
    others = f"; in all, {sum(counts):,} cells are empty, in {some}" if sum(counts) > 1 else ""
    if is_trained:
        raise EvenhandError(
            f"{where}drop the row, or fill it in, as the model was trained without a value for empty cells{others}."
        )
    mean, median, most = (Argument("fill", repr(fill), fill) for fill in get_args(Fill))
    cure = "drop the row, or say how to fill it with "
    raise EvenhandError(where, cure, mean, ", ", median, " or ", most, f"{others}.")


def first_place(source: str, name: str, row: Row, marked: NDArray) -> str:
    """Where the first marked cell of a column is."""
    return f"{source}: {row(int(np.argmax(marked)))}, column {name!r}"


def check_present(
    source: str, name: str, row: Row, missing: NDArray, cure: str, *, fault: str = "is empty"
) -> None:
    """Refuses rows without a label, a weight or a client."""
    if missing.any():
        count = int(missing.sum())
        others = f" with all {count:,} such rows" if count > 1 else ""
        where = f"{first_place(source, name, row, missing)} {fault}: {cure}, as "
        raise EvenhandError(where, Argument("drop_empty", "True"), f" does{others}.")


def with_na(series: Series, na: Sequence[str]) -> Series:
    """A column in which the cells that ``na`` lists are empty; numbers are compared as numbers."""
    if series.categories is None:
        spelled = [value for value in map(number, na) if value is not None]
        return series._replace(values=np.where(np.isin(series.values, spelled), np.nan, series.values))
    absent = [code for code, text in enumerate(series.categories) if text in na]
    return series._replace(values=np.where(np.isin(series.values, absent), -1, series.values))


def prepared(source: str, series: Series, row: Row, *, categorical: bool, is_trained: bool = False) -> Series:
    """A feature column as numbers within the range of float32, or as a few categories.

    Args:
      source: what the table is called in errors.
      series: the column as read.
      row: row number -> where it is.
      categorical: numbers are categories, too, and texts need not look like categories.
      is_trained: the model is already trained, so that any number of categories will do.
    """
    if categorical:
        _check_exact(source, series, row)
        series = as_categories(series)
    elif series.categories is not None:
        series = _flags(series)
    if series.categories is None:
        bad = ~series.missing & ~(np.abs(series.values) <= _LARGEST)
        if bad.any():
            (where, cell), others = faulty(row, bad, lambda i: str(series.values[i]))
            fault = f"column {series.name!r} holds {cell}, which is not a finite 32-bit number{others}"
            raise EvenhandError(f"{source}: {where}, {fault}: repair it or drop the row.")
    elif not is_trained:
        _check_texts(source, series, row, categorical=categorical)
    return series


def free_text(source: str, series: Series, *, is_trained: bool = False) -> Series:
    """A column of free text.

    Args:
      source: what the table is called in errors.
      series: the column as read.
      is_trained: the model is already trained, so that a few texts may well spell numbers.

    Raises:
      EvenhandError: it holds numbers, or true and false.
    """
    if series.missing.all():
        return Series(series.name, np.full(len(series.values), -1, np.int32), ())
    content = "numbers" if series.categories is None else ""
    if series.categories == BOOLEANS:
        content = "true and false"
    elif series.categories is not None and not is_trained:
        content = "numbers" if all(number(text) is not None for text in series.categories) else ""
    if content:
        fault = f"{source}: column {series.name!r} holds {content}, not text: leave it out of "
        raise EvenhandError(fault, Argument("text", "NAMES"), ".")
    return series


def as_categories(series: Series) -> Series:
    """Numbers as the texts that spell them, whole ones without a point; text unchanged."""
    if series.categories is not None:
        return series
    present = ~np.isnan(series.values)
    values, codes = np.unique(series.values[present], return_inverse=True)
    all_codes = np.full(len(series.values), -1, np.int32)
    all_codes[present] = codes
    texts = (str(int(value)) if value.is_integer() else repr(value) for value in values.tolist())
    return Series(series.name, all_codes, tuple(texts))


_EXACT = 2.0**53
"""The whole number from which on float64 does not hold each."""


def _check_exact(source: str, series: Series, row: Row) -> None:
    """Refuses numbers that are to name categories, and may have been rounded to each other."""
    if series.categories is None and (bad := np.abs(series.values) >= _EXACT).any():
        (where, cell), others = faulty(row, bad, lambda i: f"{series.values[i]:.0f}")
        raise EvenhandError(
            f"{source}: {where}, column {series.name!r} holds about {cell}{others}: such numbers are rounded, so that "
            "two categories may become one: store them as text."
        )


def as_numbers(series: Series) -> Series:
    """Text as the numbers that it spells, if each spells one that is kept, also its zeros; others unchanged."""
    if series.categories is None:
        return series
    present = [text for text in series.categories if not is_missing(text)]
    spelled = {text: number(text) for text in present}
    if any(value is None or abs(value) >= _EXACT for value in spelled.values()):
        return series
    if any(re.match(r"[+-]?0\d", text) for text in present):  # such as 007, which is not the class 7
        return series
    values = [spelled.get(text, np.nan) for text in series.categories]
    return Series(series.name, np.array([*values, np.nan], float)[series.values])


def amounts_or_classes(name: str) -> tuple[str | Argument, ...]:
    """How to say which of the two the numbers of a label are."""
    amounts, classes = Argument("regression", "True"), named("categorical", name)
    return "give ", amounts, " to predict amounts, or ", classes, " if each number is a class."


def label_classes(
    source: str, label: Series, row: Row, categorical: Sequence[str], *, regression: bool
) -> tuple[NDArray, tuple[str, ...] | None]:
    """Class numbers or real targets of labels without gaps, and the names of the classes where they have some.

    Text is numbered in sorted order, and so are numbers if ``categorical`` names the label, which also makes a class of
    a text such as "NaN".  Whole numbers that start anywhere but at 0, such as -1 and 1, are names.

    Raises:
      EvenhandError: whole numbers may be amounts, and nothing says what they are; or these are no labels.
    """
    declared = label.name in categorical and not regression
    if declared:
        _check_exact(source, label, row)
        label = as_categories(label)
    elif label.categories is not None:
        if regression or not label.declared:
            _check_amounts(source, label, row, "" if regression else "class")
    elif not regression:
        check_class_numbers(label.values, source, f"column {label.name!r}", *amounts_or_classes(label.name))

    def place(i: int) -> str:
        return f"{row(i)}, column {label.name!r}"

    if label.categories is None:
        if regression or not _are_names(label.values):
            return class_labels(label.values, source, place, regression=regression)
        values, codes = np.unique(label.values, return_inverse=True)
        return codes.astype(np.int32), tuple(str(int(value)) for value in values.tolist())
    used, first, codes = np.unique(label.values, return_index=True, return_inverse=True)
    texts = np.array([label.categories[code] for code in used.tolist()], str)
    missing = ("",) if declared else MISSING_LABELS
    numbers, classes = class_labels(
        texts, source, lambda i: place(int(first[i])), regression=regression, missing=missing
    )
    return numbers[codes], classes


def also(cells: Sequence[tuple[str, str]], count: int) -> str:
    """Where the other faulty cells of a column are, in parentheses; empty if a sentence names the only one.

    Args:
      cells: where each is and what it holds, the first ones; that of the sentence comes first.
      count: how many there are.

    Example:
      >>> also([("line 2", "'x'"), ("line 5", "'y'")], 14)
      " (also 'y' in line 5 and 12 more)"
    """
    listed = cells[1:MOST_LISTED]
    rest = count - 1 - len(listed)
    if not listed:
        return ""
    more = f" and {rest:,} more" if rest else ""
    return f" (also {', '.join(f'{cell} in {where}' for where, cell in listed)}{more})"


def faulty(row: Row, bad: NDArray, text: Callable[[int], str]) -> tuple[tuple[str, str], str]:
    """Where the first faulty cell of a column is and what it holds, and :func:`also` where the others are."""
    listed = [(row(i), text(i)) for i in np.flatnonzero(bad)[:MOST_LISTED].tolist()]
    return listed[0], also(listed, int(bad.sum()))


def mixed(
    source: str,
    name: str,
    cells: Sequence[tuple[str, str]],
    count: int,
    others: str,
    *,
    feature: bool,
    is_trained: bool = False,
) -> EvenhandError:
    """The error for cells that are not of their column's kind, numbers or text; ``cells`` are as in :func:`also`.

    ``is_trained``: the model is already trained, so that no other reading of the column can be chosen.
    """
    (where, cell), further = cells[0], also([(where, show(cell)) for where, cell in cells], count)
    if _AMOUNT.fullmatch(cell.strip()):
        return _for_people(
            f"{source}: {where},", name, f"{show(cell)}{further}", "category" if feature else ""
        )
    fault = f"{source}: {where}, column {name!r} holds {show(cell)} where other rows hold {others}{further}"
    if is_trained:
        return EvenhandError(f"{fault}: write numbers, as the model was trained with numbers in it.")
    parts: list[str | Argument] = [f"{fault}: write only numbers, or only text, in the column"]
    if others == "numbers":
        parts += ["; if this is an empty cell, name it in ", Argument("na", "TEXTS")]
    if feature:
        parts += ["; if its numbers are categories, too, name it in ", Argument("categorical", "NAMES")]
    return EvenhandError(*parts, ".")


def too_many(source: str, name: str, texts: Sequence[str], *, all_read: bool = True) -> EvenhandError:
    """The error for a column whose texts are not categories; ``texts`` are the first ones unless ``all_read``."""
    if all(_DATE.fullmatch(text) for text in texts[:100]):
        return dates(source, name, f"dates such as {show(texts[0])}")
    amounts = _amounts(texts[:100])
    if amounts:
        return _for_people(f"{source}:", name, f"texts such as {show(amounts[0])}")
    count = f"{'' if all_read else 'at least '}{len(texts):,}"
    fault = f"{source}: column {name!r} holds {count} different texts such as {show(texts[0])}"
    cure = "an id or free text rather than categories: learn from its words with "
    group = f" if it is an id, or group them into at most {MOST_CATEGORIES:,}."
    leave = " if it is free text, leave it out with "
    return EvenhandError(f"{fault}, {cure}", named("text", name), leave, named("drop", name), group)


def _sentences(source: str, name: str, texts: Sequence[str], words: float) -> EvenhandError:
    """The error for a column of sentences that are not declared as categories."""
    fault = f"{source}: column {name!r} holds {len(texts):,} different texts of {words:.0f} words on average"
    cure = f"{fault}, such as {show(texts[0])}: learn from its words with "
    one_each = " if it is free text, make an input of each text with "
    parts = (named("text", name), one_each, named("categorical", name), ", or leave it out with ")
    return EvenhandError(cure, *parts, named("drop", name), ".")


def dates(source: str, name: str, content: str) -> EvenhandError:
    """The error for a column of dates."""
    fault = f"{source}: column {name!r} holds {content}"
    cure = "turn them into numbers first, such as days since a date, or leave the column out with "
    return EvenhandError(f"{fault}: {cure}", Argument("drop", "NAMES"), ".")


def show(text: str) -> str:
    """A cell in quotes, cut where it is long."""
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _flags(series: Series) -> Series:
    """Booleans as numbers: 0 for false and 1 for true."""
    texts, flags = [text.lower() for text in series.categories or ()], {"false", "true"}
    if not flags & set(texts):
        return series
    # Spellings of empty cells are categories, too, of no row.
    if not {texts[code] for code in np.unique(series.values[~series.missing]).tolist()} <= flags:
        return series
    values = np.array([*(float(text == "true") for text in texts), np.nan])
    return Series(series.name, values[series.values])


def _check_texts(source: str, series: Series, row: Row, *, categorical: bool) -> None:
    codes, names = series.values, list(series.categories or ())
    used = np.unique(codes[codes >= 0])
    texts = [names[code] for code in used.tolist()]
    are_many = len(texts) > MOST_CATEGORIES
    if not categorical and texts:
        if not series.declared:
            _check_amounts(source, series, row, "category")
        are_many |= len(texts) > max(_FEW, len(codes) // 2)
        if are_many and all(number(text) is not None for text in texts):
            fault = f"{source}: column {series.name!r} holds numbers that are stored as text, such as {show(texts[0])}"
            parts: list[str | Argument] = [f"{fault}: store them as numbers, or leave the column out with "]
            parts.append(named("drop", series.name))
            if len(texts) <= MOST_CATEGORIES:
                parts += ["; if each number is a category, give ", named("categorical", series.name)]
            raise EvenhandError(*parts, ".")
        are_many |= all(_DATE.fullmatch(text) for text in texts)
    if are_many:
        raise too_many(source, series.name, texts)
    if categorical or not texts:
        return
    words = float(np.mean([len(text.split()) for text in texts]))
    if words >= _SENTENCE and len(texts) > min(_FEW, max(2, len(codes) // 2)):
        raise _sentences(source, series.name, texts, words)


def _check_amounts(source: str, series: Series, row: Row, kind: str) -> None:
    """Refuses a column of text that holds only numbers as people write them; ``kind`` is what its texts would be."""
    names, codes = list(series.categories or ()), series.values
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(names))).tolist()
    for amount in _amounts([names[code] for code in used])[:1]:
        where = f"{source}: {row(int(np.argmax(codes == names.index(amount))))},"
        raise _for_people(where, series.name, show(amount), kind)


def _amounts(texts: Sequence[str]) -> list[str]:
    """The amounts among texts that are all numbers, as people or programs write them; of other texts, none."""
    amounts = [text for text in texts if _AMOUNT.fullmatch(text)]
    others = set(texts) - set(amounts)
    return (
        []
        if any(number(text) is None and not _BESIDE_AMOUNTS.fullmatch(text) for text in others)
        else amounts
    )


def _for_people(where: str, name: str, content: str, kind: str = "") -> EvenhandError:
    """The error for numbers as people write them; ``kind`` is what they would be if they are no numbers."""
    minus = ", with the minus − (U+2212) in place of a hyphen" if "−" in content else ""
    fault = f"{where} column {name!r} holds {content}{minus}: write a point for the decimals, as in"
    parts: list[str | Argument] = [
        f"{fault} -1234.5, nothing between the thousands, and no signs such as $ or %"
    ]
    if kind:
        parts += [f"; if each text is a {kind}, give ", named("categorical", name)]
    return EvenhandError(*parts, ".")


def _are_names(values: NDArray) -> bool:
    """Whether these are whole numbers that do not start at 0 and are small enough for classes."""
    if not len(values) or not np.isfinite(values).all() or (values != np.rint(values)).any():
        return False
    return bool(values.min() != 0 and np.abs(values).max() < _LARGEST_CLASS)
