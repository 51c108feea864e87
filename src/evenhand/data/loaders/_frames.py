"""Tables in memory, of any library, as columns of numbers and of text.

A library is imported only for a table of that library.
"""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.data._features import Series
from evenhand.data._ids import canonical, object_ids
from evenhand.data.loaders._arrow import arrow_ids, arrow_series
from evenhand.data.loaders._cells import BOOLEANS, MOST_LISTED, Row, as_categories, dates, mixed
from evenhand.data.loaders._problems import Problems
from evenhand.data.loaders._table import Columns, Table
from evenhand.errors import Argument, EvenhandError

__all__ = ["Frame", "frame_table", "library", "listed", "listed_ids", "open_frame"]


class Frame(NamedTuple):
    """A table in memory.

    Attributes:
      names: of its columns, as text.
      series: ``(column's name) -> `` its numbers or text.
      ids: ``(column's name) -> `` what it holds as client ids, ``""`` or NaN where it is empty.
      hidden: names that are in the index of a pandas table and not among its columns.
    """

    names: list[str]
    series: Callable[[str], Series]
    ids: Callable[[str], NDArray]
    hidden: tuple[str, ...] = ()


def _row(i: int) -> str:
    return f"row {i}"


def frame_table(source: str, frame: Frame, columns: Columns, problems: Problems, row: Row = _row) -> Table:
    """The chosen columns of ``frame``; those that cannot be read are noted among the ``problems``."""
    features: list[Series] = []
    client: list[NDArray] = []
    label, weight = None, None
    for name in columns.features:
        with problems.noted():
            features.append(frame.series(name))
    with problems.noted():
        label = frame.series(columns.label)
    with problems.noted():
        weight = None if columns.weight is None else frame.series(columns.weight)
    for name in columns.client:
        with problems.noted():
            client.append(frame.ids(name))
    return Table(tuple(features), label, tuple(client), row, weight)


def library(frame: object) -> str | None:
    """``"pandas"``, ``"polars"``, ``"pyarrow"`` or ``"datasets"``, by where the type or a parent of it comes from."""
    roots = {base.__module__.partition(".")[0] for base in type(frame).__mro__}
    return next((name for name in ("pandas", "polars", "pyarrow", "datasets") if name in roots), None)


def open_frame(frame: Any, source: str, na: Sequence[str] = ()) -> Frame:
    """The columns of ``frame``; texts that ``na`` lists are empty cells.

    Raises:
      EvenhandError: it is not a table.
    """
    kind, title = library(frame), type(frame).__name__
    match kind, title:
        case "datasets", "Dataset":
            return _hugging_face(frame, source)
        case "datasets", "DatasetDict" | "IterableDatasetDict":
            raise EvenhandError(f"{source}: a {title} holds several tables: name one, e.g. dataset['train'].")
        case "datasets", _:
            raise EvenhandError(f"{source}: a {title} is not a table in memory: load it without streaming.")
        case "polars", "LazyFrame":
            raise EvenhandError(f"{source}: a LazyFrame has no rows yet: give frame.collect().")
        case "pyarrow", "RecordBatch":
            import pyarrow as pa

            return _arrow(pa.Table.from_batches([frame]), source)
        case "pyarrow", "Table":
            return _arrow(frame, source)
        case "polars", "DataFrame":
            return _polars(frame, source, na)
        case "pandas", _ if hasattr(frame, "iloc") and getattr(frame, "ndim", 0) == 2:
            return _pandas(frame, source, na)
        case _:
            raise EvenhandError(
                f"{source}: {title} objects are not tables: give a pandas or polars DataFrame, a pyarrow Table or a "
                "Hugging Face Dataset; arrays go to evenhand.data.from_arrays."
            )


def _arrow(table: Any, source: str) -> Frame:
    return Frame(
        list(table.column_names),
        lambda name: arrow_series(source, name, table.column(name)),
        lambda name: arrow_ids(source, name, table.column(name)),
    )


def _hugging_face(dataset: Any, source: str) -> Frame:
    table = dataset.with_format("arrow")[:]
    plain = _arrow(table, source)

    def names_of(name: str) -> Sequence[str] | None:
        return getattr(dataset.features[name], "names", None)  # only a feature of classes has the attribute

    def series(name: str) -> Series:
        found, names = plain.series(name), names_of(name)
        if names is None or found.categories is not None:
            return found
        codes = np.where(found.missing | (found.values < 0), -1, np.nan_to_num(found.values)).astype(np.int32)
        return Series(name, codes, tuple(names))

    def ids(name: str) -> NDArray:
        column = series(name)
        if names_of(name) is None:
            return plain.ids(name)
        return np.array([*(column.categories or ()), ""], str)[column.values]

    return plain._replace(series=series, ids=ids)


def _polars(frame: Any, source: str, na: Sequence[str]) -> Frame:
    import polars  # pyright: ignore[reportMissingImports]  (not a dependency)

    def series(name: str) -> Series:
        column = frame[name]
        kind = column.dtype
        if kind == polars.Boolean:
            return Series(name, column.cast(polars.Int32).fill_null(-1).to_numpy(), BOOLEANS)
        if kind.is_numeric():
            return Series(name, column.cast(polars.Float64).fill_null(float("nan")).to_numpy())
        if kind.is_temporal():
            raise dates(source, name, f"dates or times ({kind})")
        if kind in (polars.Categorical, polars.Enum):
            column = column.cast(polars.String)
        elif kind not in (polars.String, polars.Null, polars.Object):
            raise _neither(source, name, str(kind))
        return listed(source, name, column.to_list(), na)

    def ids(name: str) -> NDArray:
        column = frame[name]
        if column.dtype.is_integer() and not column.null_count():
            return column.to_numpy()
        if column.dtype.is_float():
            return column.cast(polars.Float64).fill_null(float("nan")).to_numpy()
        return listed_ids(source, name, column.to_list(), na)

    return Frame(list(frame.columns), series, ids)


def _pandas(frame: Any, source: str, na: Sequence[str]) -> Frame:
    import pandas  # pyright: ignore[reportMissingImports]  (not a dependency)

    if frame.columns.nlevels > 1:
        raise EvenhandError(
            f"{source}: the columns have names of {frame.columns.nlevels} parts (a MultiIndex): give each one name, "
            "e.g. frame.columns = ['_'.join(map(str, name)) for name in frame.columns]."
        )
    names = [str(name) for name in frame.columns]
    at = {name: position for position, name in enumerate(names)}
    is_kind = pandas.api.types

    def objects(column: Any, missing: NDArray) -> list[Any]:
        return [None if gap else value for value, gap in zip(column.tolist(), missing, strict=True)]

    def series(name: str) -> Series:
        column = frame.iloc[:, at[name]]
        kind, missing = column.dtype, column.isna().to_numpy(bool)
        if isinstance(kind, pandas.CategoricalDtype):
            of = _values(source, name, list(column.cat.categories), [False] * len(column.cat.categories))
            of = as_categories(of)
            codes = np.array([*of.values.tolist(), -1], np.int32)
            return Series(name, codes[column.cat.codes.to_numpy()], of.categories)
        if is_kind.is_bool_dtype(kind):
            return Series(
                name, np.where(missing, -1, column.fillna(False).to_numpy(bool)).astype(np.int32), BOOLEANS
            )
        if is_kind.is_numeric_dtype(kind) and not is_kind.is_complex_dtype(kind):
            return Series(name, np.array(column.to_numpy(dtype=np.float64, na_value=np.nan)))
        if is_kind.is_datetime64_any_dtype(kind) or is_kind.is_timedelta64_dtype(kind):
            raise dates(source, name, f"dates or times ({kind})")
        return listed(source, name, objects(column, missing), na)

    def ids(name: str) -> NDArray:
        column = frame.iloc[:, at[name]]
        missing = column.isna().to_numpy(bool)
        if is_kind.is_numeric_dtype(column.dtype) and not missing.any():
            return np.array(column.to_numpy())
        return listed_ids(source, name, objects(column, missing), na)

    index = tuple(str(name) for name in frame.index.names if name is not None and str(name) not in at)
    return Frame(names, series, ids, index)


def listed(source: str, name: str, values: Sequence[Any], na: Sequence[str] = (), row: Row = _row) -> Series:
    """A column of Python objects as numbers or as text; None, and texts that ``na`` lists, are empty cells.

    Raises:
      EvenhandError: it holds dates, numbers beside text, or anything else.
    """
    return _values(source, name, values, _gaps(values, na), row)


def listed_ids(
    source: str, name: str, values: Sequence[Any], na: Sequence[str] = (), row: Row = _row
) -> NDArray:
    """The ids in a column of Python objects as text, ``(n,)``; ``""`` where a cell is empty.

    Raises:
      EvenhandError: numbers and text are mixed.
    """
    return object_ids(values, _gaps(values, na), source, lambda i: f"{row(i)}, column {name!r}")


def _gaps(values: Sequence[Any], na: Sequence[str]) -> list[bool]:
    return [value is None or (isinstance(value, str) and value.strip() in na) for value in values]


def _values(
    source: str, name: str, values: Sequence[Any], missing: Sequence[bool], row: Row = _row
) -> Series:
    """A column of Python objects."""
    kinds = {type(value) for value, gap in zip(values, missing, strict=True) if not gap}
    if any(
        issubclass(kind, datetime.date | datetime.time | datetime.timedelta | np.datetime64) for kind in kinds
    ):
        raise dates(source, name, "dates or times")
    texts = {kind for kind in kinds if issubclass(kind, str)}
    if kinds and not texts and all(issubclass(kind, bool | np.bool_) for kind in kinds):
        codes = [-1 if gap else int(value) for value, gap in zip(values, missing, strict=True)]
        return Series(name, np.array(codes, np.int32), BOOLEANS)
    for kind in kinds - texts:
        if not issubclass(kind, numbers.Number) or issubclass(kind, complex | np.complexfloating):
            raise _neither(source, name, f"{kind.__name__} objects")
    if not texts:
        found = [np.nan if gap else _float(value) for value, gap in zip(values, missing, strict=True)]
        return Series(name, np.array(found, np.float64))
    if kinds != texts:
        strange = [
            i for i, value in enumerate(values) if not missing[i] and isinstance(value, str) and value.strip()
        ]
        cells = [(row(i), str(values[i])) for i in strange[:MOST_LISTED]]
        raise mixed(source, name, cells, len(strange), "numbers", feature=False)
    known: dict[str, int] = {}
    cells = ("" if gap else canonical(str(value)) for value, gap in zip(values, missing, strict=True))
    codes = [known.setdefault(cell, len(known)) if cell else -1 for cell in cells]
    return Series(name, np.array(codes, np.int32), tuple(known))


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _neither(source: str, name: str, what: str) -> EvenhandError:
    return EvenhandError(
        f"{source}: column {name!r} holds {what}, neither numbers nor text: leave it out with ",
        Argument("drop", "NAMES"),
        ", or turn it into plain columns.",
    )
