"""Columns of a table turned into inputs of a model: fitted on the training rows, applied to any rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from evenhand.data._features import (
    Column,
    Encode,
    Features,
    Fill,
    NDArray,
    Series,
    Target,
    TextEncoding,
    array_of,
)
from evenhand.data._text import encode_counts, hashed_rows, most_frequent
from evenhand.errors import Argument, EvenhandError, named, whole_number

MISSING_CATEGORY = "(missing)"
"""What an empty cell of text counts as, where empty cells are filled by a mean or a median."""

# --- fitted on the training rows ----------------------------------------------------------------------------


TextEncoder: TypeAlias = Callable[[Iterable[str]], TextEncoding]
"""``(a column's training texts) -> `` how they become inputs."""


def fit(
    table: Sequence[Series],
    rows: NDArray,
    source: str,
    *,
    standardize: bool,
    fill: Fill | None,
    text: Mapping[str, TextEncoder] = MappingProxyType({}),
) -> Features:
    """Finds means, deviations, categories and what fills empty cells, from the given rows alone.

    Numbers that are all 0 or 1 are left as they are, like the inputs of a category.

    Args:
      table: the columns.
      rows: positions of the training rows.
      source: what the table is called in errors.
      standardize: whether numbers get mean 0 and deviation 1 over ``rows``.
      fill: what an empty cell counts as.  ``"mean"`` and ``"median"`` are those of the column, and empty text
        becomes a category of its own; ``"most-frequent"`` is the most frequent value of either.
      text: column of free text -> what finds its encoding.

    Raises:
      EvenhandError: a column of numbers or categories is empty in all of ``rows``.
    """
    columns: list[Column] = []
    for series in table:
        values = series.values[rows]
        if series.name in text:
            names: tuple[str, ...] = series.categories or ()
            texts = (names[int(code)] for code in values.tolist() if code >= 0)
            columns.append(Column(series.name, "text", text=text[series.name](texts)))
            continue
        if series.missing[rows].all():
            fault = f"{source}: column {series.name!r} is empty in every training row: leave it out with "
            raise EvenhandError(fault, named("drop", series.name), ".")
        if series.categories is None:
            columns.append(_number_column(series.name, values, standardize, fill))
        else:
            columns.append(_category_column(series.name, values, series.categories, fill))
    return Features(tuple(columns), standardize)


def text_encoding(
    encode: Encode | None, vocabulary: int | None, buckets: int | None, where: str
) -> Callable[[Iterable[str]], TextEncoding]:
    """A function from a column's training texts to their encoding; at most one of the three options is given.

    Args:
      encode: the caller's function.
      vocabulary: how many of the most frequent words are counted.
      buckets: how many inputs words are hashed into; without any of the three, :data:`BUCKETS`.
      where: the source and the column, for errors.
    """
    if encode is not None:
        given = TextEncoding.of(encode, where)
        return lambda texts: given
    if vocabulary is None:
        hashed = TextEncoding.hashed(buckets)
        return lambda texts: hashed

    def counted(texts: Iterable[str]) -> TextEncoding:
        words = most_frequent(texts, whole_number("vocabulary", vocabulary, 1))
        if not words:
            raise EvenhandError(f"{where} has no words in any training row: leave it out.")
        return TextEncoding("counted", (len(words),), words=words)

    return counted


def fit_target(name: str, y: NDArray) -> Target:
    """The scale of the training rows' targets ``y``, of any shape."""
    mean, deviation = _moments(np.asarray(y, np.float64))
    return Target(name, mean, deviation if deviation > 0 else 1.0)


def _moments(values: NDArray) -> tuple[float, float]:
    """The mean and the standard deviation."""
    shift = values.reshape(-1)[0]  # so that a large offset costs no digits
    mean = float(shift + np.mean(values - shift))
    return mean, float(np.sqrt(np.mean((values - mean) ** 2)))


def _number_column(name: str, values: NDArray, standardize: bool, fill: Fill | None) -> Column:
    present = values[~np.isnan(values)]
    filler = None if fill is None else _filler(present, fill)
    values = present if filler is None else np.where(np.isnan(values), filler, values)
    mean, deviation = 0.0, 1.0
    if standardize and values.min() == values.max():
        mean, deviation = float(values[0]), 0.0
    elif standardize and (np.abs(values - 0.5) != 0.5).any():
        mean, deviation = _moments(values)
    return Column(name, "number", mean, deviation, fill=filler)


def _filler(present: NDArray, fill: Fill) -> float:
    if fill == "mean":
        return float(np.mean(present))
    if fill == "median":
        return float(np.median(present))
    values, counts = np.unique(present, return_counts=True)
    return float(values[np.argmax(counts)])


def _category_column(name: str, codes: NDArray, categories: tuple[str, ...], fill: Fill | None) -> Column:
    counts = np.bincount(codes[codes >= 0], minlength=len(categories))
    present = sorted(categories[i] for i in np.flatnonzero(counts))
    if fill is None:
        return Column(name, "category", categories=tuple(present))
    if fill == "most-frequent":
        most = min(category for category, n in zip(categories, counts, strict=True) if n == counts.max())
        return Column(name, "category", categories=tuple(present), fill=most)
    if (codes < 0).any() and MISSING_CATEGORY not in present:
        present.append(MISSING_CATEGORY)
    return Column(name, "category", categories=tuple(present), fill=MISSING_CATEGORY)


# --- applied to any rows --------------------------------------------------------------------------------------


def encode(features: Features, table: Sequence[Series], rows: NDArray, source: str) -> NDArray:
    """The inputs of some rows, float32 ``(len(rows), inputs)``, or what a column of text becomes that stands alone.

    Args:
      features: what was fitted.
      table: the same columns in the same order.
      rows: positions of the rows.
      source: what the table is called in errors.
    """
    first = features.columns[0].text
    if first is not None and first.is_alone:
        x = np.zeros((len(rows), *first.shape), first.dtype)
        _encode_texts(x, first, table[0], rows, source)
        return x
    x = np.zeros((len(rows), len(features.inputs)), np.float32)
    at = 0
    for column, series in zip(features.columns, table, strict=True):
        if column.text is not None:
            _encode_texts(x[:, at : at + len(column.inputs)], column.text, series, rows, source)
        elif column.kind == "number":
            with np.errstate(over="ignore"):
                x[:, at] = _scaled(column, series.values[rows])
            if not np.isfinite(x[:, at]).all():
                raise EvenhandError(
                    f"{source}: column {column.name!r} has cells beyond the range of a 32-bit number once they "
                    "are standardised: repair them or drop the column."
                )
        else:
            positions = _positions(column, series)[series.values[rows]]
            present = np.flatnonzero(positions >= 0)
            x[present, at + positions[present]] = 1.0
        at += len(column.inputs)
    return x


_BLOCK = 1024
"""Distinct texts that are encoded at a time."""


def _encoded(text: TextEncoding, texts: Sequence[str], where: str) -> NDArray:
    """The inputs of some texts, ``(len(texts), *shape)``.

    Args:
      text: how a text becomes inputs.
      texts: the texts.
      where: the source and the column, for errors.

    Raises:
      EvenhandError: there is no function, or it does not give arrays of one shape and kind.
    """
    if text.way == "hashed":
        return hashed_rows(texts, text.shape[0])
    encode = encode_counts(text.words) if text.way == "counted" else text.function
    if encode is None:
        fault = f"{where} was encoded by a function, which the run folder does not hold: give it again, as "
        raise EvenhandError(fault, Argument("encode", "FUNCTION"), ".")
    rows = np.empty((len(texts), *text.shape), text.dtype)
    for i, content in enumerate(texts):
        row = array_of(encode, content, where)
        if (row.shape, str(row.dtype)) != (text.shape, text.dtype):
            raise EvenhandError(
                f"{where}: encode gives {row.dtype} {row.shape} for the text {content[:40]!r}, but {text.dtype} "
                f"{text.shape} is wanted: give a function whose arrays have one shape, such as "
                "evenhand.data.encode_tokens(tokenizer, length=64)."
            )
        rows[i] = row
    return rows


def _encode_texts(x: NDArray, text: TextEncoding, series: Series, rows: NDArray, source: str) -> None:
    """Writes the inputs of a column of text into ``x``; each distinct text is encoded once."""
    # An empty cell is -1, so the last name.
    names = (*(series.categories or ()), "")
    used, codes = np.unique(series.values[rows], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(used) + 1))
    where = f"{source}: column {series.name!r}"
    for first in range(0, len(used), _BLOCK):
        block = used[first : first + _BLOCK]
        places = order[starts[first] : starts[first + len(block)]]
        x[places] = _encoded(text, [names[code] for code in block.tolist()], where)[codes[places] - first]


def _scaled(column: Column, values: NDArray) -> NDArray:
    if column.deviation == 0:
        return np.zeros(len(values))
    if column.fill is not None:
        values = np.where(np.isnan(values), column.fill, values)
    return (values - column.mean) / column.deviation


def _positions(column: Column, series: Series) -> NDArray:
    """The position of the input for each text of ``series`` and, last, for an empty cell; -1 for none."""
    places = {category: position for position, category in enumerate(column.categories)}
    positions = [places.get(text, -1) for text in series.categories or ()]
    empty = -1 if column.fill is None else places.get(str(column.fill), -1)
    return np.array([*positions, empty], np.int64)
