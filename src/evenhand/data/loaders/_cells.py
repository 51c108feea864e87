"""What the cells of one column mean: numbers, categories, classes, or something that is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from evenhand.data._arrays import NDArray, check_class_numbers, class_labels
from evenhand.data._features import Series
from evenhand.data._text import number
from evenhand.errors import Argument, EvenhandError

__all__ = [
    "BOOLEANS",
    "MOST_CATEGORIES",
    "Row",
    "as_categories",
    "check_filled",
    "check_labels",
    "dates",
    "label_classes",
    "mixed",
    "prepared",
    "show",
    "such",
    "too_many",
    "with_na",
]

Row: TypeAlias = Callable[[int], str]

BOOLEANS = ("False", "True")
"""The categories of a column of booleans."""
MOST_CATEGORIES = 1000
"""Most distinct texts of a feature column; with more, a model would learn ids."""

_FEW = 20
_LARGEST_CLASS = 10_000
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ].*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ].*)?")
_COMMA = re.compile(r"[+-]?\d[\d.]*(,\d+)+")
_LARGEST = float(np.finfo(np.float32).max)


def check_filled(source: str, columns: Sequence[Series], row: Row, *, known: bool = False) -> None:
    """Refuses empty cells, all of them in one sentence.

    Args:
      source: what the table is called in errors.
      columns: the features that may have no empty cell.
      row: row number -> where it is.
      known: the model is already trained, so that no other fill can be chosen.
    """
    counts = {series.name: int(series.missing.sum()) for series in columns if series.missing.any()}
    if not counts:
        return
    first = next(series for series in columns if series.missing.any())
    where = f"{source}: {row(int(np.argmax(first.missing)))}, column {first.name!r} is empty or NaN: "
    total, some = sum(counts.values()), ", ".join(f"{name!r} ({n:,})" for name, n in list(counts.items())[:6])
    some += ", ..." if len(counts) > 6 else ""
    others = f"; in all, {total:,} cells are empty, in {some}" if total > 1 else ""
    if known:
        raise EvenhandError(
            f"{where}drop the row, or fill it in, as the model was trained without a value for empty cells{others}."
        )
    raise EvenhandError(
        f"{where}drop the row, or say how to fill it with ",
        Argument("fill", "mean"),
        ", ",
        Argument("fill", "median"),
        " or ",
        Argument("fill", "most-frequent"),
        f"{others}.",
    )


def such(missing: NDArray) -> tuple[str | Argument, ...]:
    """The end of a sentence about rows without a label or a client."""
    count = int(missing.sum())
    others = f" with all {count:,} such rows" if count > 1 else ""
    return ", as ", Argument("drop_empty", "True"), f" does{others}."


def with_na(series: Series, na: Sequence[str]) -> Series:
    """A column in which the cells that ``na`` lists are empty; numbers are compared as numbers."""
    if series.categories is None:
        spelled = [value for value in map(number, na) if value is not None]
        return series._replace(values=np.where(np.isin(series.values, spelled), np.nan, series.values))
    absent = [code for code, text in enumerate(series.categories) if text in na]
    return series._replace(values=np.where(np.isin(series.values, absent), -1, series.values))


def prepared(source: str, series: Series, row: Row, *, categorical: bool, known: bool = False) -> Series:
    """A feature column as numbers within the range of float32, or as a few categories.

    Args:
      source: what the table is called in errors.
      series: the column as read.
      row: row number -> where it is.
      categorical: numbers are categories, too, and texts need not look like categories.
      known: the model is already trained, so that any number of categories will do.
    """
    if categorical:
        series = as_categories(series)
    elif series.categories is not None:
        series = _flags(series)
    if series.categories is None:
        bad = ~series.missing & ~(np.abs(series.values) <= _LARGEST)
        if bad.any():
            i = int(np.argmax(bad))
            raise EvenhandError(
                f"{source}: {row(i)}, column {series.name!r} holds {series.values[i]}, which is not a finite "
                "32-bit number: repair it or drop the row."
            )
    elif not known:
        _check_texts(source, series, row, categorical=categorical)
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


def meant(source: str, label: Series, categorical: Sequence[str]) -> Series:
    """The label as classes: its numbers as texts where ``categorical`` names it.

    Raises:
      EvenhandError: its whole numbers may be amounts, and nothing says what they are.
    """
    if label.name in categorical:
        return as_categories(label)
    if label.categories is None:
        check_class_numbers(label.values, source, f"column {label.name!r}", *amounts_or_classes(label.name))
    return label


def amounts_or_classes(name: str) -> tuple[str | Argument, ...]:
    """How to say which of the two the numbers of a label are."""
    return (
        "give ",
        Argument("regression", "True"),
        " to predict amounts, or ",
        Argument("categorical", name),
        " if each number is a class.",
    )


def check_labels(source: str, label: Series, row: Row) -> None:
    """Refuses empty labels."""
    if label.missing.any():
        where = f"{source}: {row(int(np.argmax(label.missing)))}, column {label.name!r}"
        raise EvenhandError(f"{where} is empty: fill it in or drop the row", *such(label.missing))


def label_classes(
    source: str, label: Series, row: Row, *, regression: bool
) -> tuple[NDArray, tuple[str, ...] | None]:
    """Class numbers or real targets of labels without gaps, and the names of the classes where they have some.

    Text is numbered in sorted order.  Whole numbers that start anywhere but at 0, such as -1 and 1, are names.
    """

    def place(i: int) -> str:
        return f"{row(i)}, column {label.name!r}"

    if label.categories is None:
        names = None if regression else _named_numbers(label.values)
        if names is None:
            return class_labels(label.values, source, place, regression=regression)
        values, codes = names
        return codes.astype(np.int32), tuple(str(int(value)) for value in values)
    used, first, codes = np.unique(label.values, return_index=True, return_inverse=True)
    texts = np.array([label.categories[code] for code in used.tolist()], str)
    numbers, classes = class_labels(texts, source, lambda i: place(int(first[i])), regression=regression)
    return numbers[codes], classes


def mixed(source: str, where: str, name: str, cell: str, others: str, *, feature: bool) -> EvenhandError:
    """The error for a cell that is not of its column's kind, numbers or text."""
    if _COMMA.fullmatch(cell.strip()):
        return _decimal_comma(source, where, name, cell)
    sentence = (
        f"{source}: {where}, column {name!r} holds {show(cell)} where other rows hold {others}: write only numbers, "
        "or only text, in the column"
    )
    if others == "numbers":
        return EvenhandError(
            f"{sentence}; if this is an empty cell, name it in ",
            Argument("na", "TEXTS"),
            *_or_categories(feature),
        )
    return EvenhandError(sentence, *_or_categories(feature))


def _or_categories(feature: bool) -> tuple[str | Argument, ...]:
    if not feature:
        return (".",)
    return ("; if its numbers are categories, too, name it in ", Argument("categorical", "NAMES"), ".")


def too_many(source: str, name: str, texts: Sequence[str]) -> EvenhandError:
    """The error for a column whose texts are not categories."""
    if all(_DATE.fullmatch(text) for text in texts[:100]):
        return dates(source, name, f"dates such as {show(texts[0])}")
    return EvenhandError(
        f"{source}: column {name!r} holds {len(texts):,} different texts such as {show(texts[0])}, an id or free "
        f"text rather than categories: leave it out with ",
        Argument("drop", "NAMES"),
        f", or group them into at most {MOST_CATEGORIES:,}.",
    )


def dates(source: str, name: str, what: str) -> EvenhandError:
    """The error for a column of dates."""
    return EvenhandError(
        f"{source}: column {name!r} holds {what}: turn them into numbers first, such as days since a date, or "
        "leave the column out with ",
        Argument("drop", "NAMES"),
        ".",
    )


def show(text: str) -> str:
    """A cell in quotes, cut where it is long."""
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _flags(series: Series) -> Series:
    """Booleans as numbers: 0 for false and 1 for true."""
    texts = [text.lower() for text in series.categories or ()]
    if not texts or not set(texts) <= {"false", "true"}:
        return series
    values = np.array([*(float(text == "true") for text in texts), np.nan])
    return Series(series.name, values[series.values])


def _check_texts(source: str, series: Series, row: Row, *, categorical: bool) -> None:
    codes = series.values
    names = list(series.categories or ())
    used = np.unique(codes[codes >= 0])
    texts = [names[code] for code in used.tolist()]
    if len(texts) > MOST_CATEGORIES:
        raise too_many(source, series.name, texts)
    if categorical or not texts:
        return
    if all(_COMMA.fullmatch(text) for text in texts):
        where = row(int(np.argmax(codes == used[0])))
        raise _decimal_comma(source, where, series.name, texts[0])
    if all(_DATE.fullmatch(text) for text in texts):
        raise dates(source, series.name, f"dates such as {show(texts[0])}")
    if len(texts) > max(_FEW, len(codes) // 2):
        raise too_many(source, series.name, texts)


def _decimal_comma(source: str, where: str, name: str, cell: str) -> EvenhandError:
    return EvenhandError(
        f"{source}: {where}, column {name!r} holds {show(cell)}: write a point for the decimals, and nothing "
        "between the thousands."
    )


def _named_numbers(values: NDArray) -> tuple[list[float], NDArray] | None:
    """Distinct whole numbers and each row's position among them, if they do not start at 0."""
    if not np.isfinite(values).all() or (values != np.rint(values)).any():
        return None
    if not len(values) or values.min() == 0 or np.abs(values).max() >= _LARGEST_CLASS:
        return None
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct.tolist(), codes
