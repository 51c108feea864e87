"""New rows of a table as the inputs of a model that was trained on others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.checksums import fits_its_list
from evenhand.data._features import Column, Features, Series, encode
from evenhand.data.loaders._cells import Row, check_filled, prepared, with_na
from evenhand.data.loaders._csv import layout_of, read_cells
from evenhand.data.loaders._csv_columns import CellColumn
from evenhand.data.loaders._files import bare_suffix, readable
from evenhand.data.loaders._frames import Frame, open_frame
from evenhand.data.loaders._jsonl import read_jsonl
from evenhand.data.loaders._options import listing
from evenhand.data.loaders._parquet import parquet_names, read_parquet
from evenhand.data.loaders._problems import Problems
from evenhand.data.loaders._table import check_header
from evenhand.errors import EvenhandError

__all__ = ["encode_table", "load_features"]

_Columns: TypeAlias = tuple[list[Series], Row]
_Read: TypeAlias = Callable[[Sequence[str], Problems], _Columns]
"""Columns' names -> the columns, and where a row is; those that cannot be read are noted."""


def encode_table(table: Any, *, features: Features) -> npt.NDArray[np.float32]:
    """The inputs, ``(rows, inputs)``, that a model trained on one table gets for the rows of another.

    Args:
      table: a file of a table that :func:`evenhand.data.load` reads, or whatever :func:`evenhand.data.from_frame`
        takes.  Columns may be in any order, and there may be others besides.
      features: of the data set that the model was trained on, or from :func:`load_features`.  Nothing is fitted
        again: a text that no training row had belongs to none of the categories.

    Raises:
      EvenhandError: a column is missing, is of another kind, or has empty cells that ``features`` does not fill.

    Example:
      >>> import pyarrow
      >>> from evenhand.data import encode_table, from_frame
      >>> columns = {"client": ["a", "a"], "age": [50, 70], "sex": ["f", "m"], "label": [0, 1]}
      >>> data = from_frame(pyarrow.table(columns), test_fraction=0.0)
      >>> encode_table(pyarrow.table({"sex": ["m"], "age": [65]}), features=data.features)
      array([[0.5, 0. , 1. ]], dtype=float32)
    """
    is_file = isinstance(table, str | Path)
    source = str(table) if is_file else "table"
    problems = Problems(source)
    names, read = (
        _opened(Path(table), features) if is_file else _in_memory(open_frame(table, source, features.na))
    )
    check_header(source, names)
    known = frozenset(names)
    for column in features.columns:
        with problems.noted():
            if column.name not in known:
                raise EvenhandError(
                    f"{source}: there is no column {column.name!r} among {listing(names)}, which the model was trained "
                    "with: add it."
                )
    problems.check()
    found, row = read([column.name for column in features.columns], problems)
    problems.check()
    columns = [with_na(series, features.na) for series in found]
    with problems.noted():
        filled = [
            series for column, series in zip(features.columns, columns, strict=True) if column.fill is None
        ]
        check_filled(source, filled, row, known=True)
    inputs: list[Series] = []
    for column, series in zip(features.columns, columns, strict=True):
        with problems.noted():
            inputs.append(_checked(source, column, series, row))
    problems.check()
    return encode(features, inputs, np.arange(len(inputs[0].values)), source)


def load_features(path: str | Path) -> Features:
    """What ``features.json`` in a run folder says about the inputs of the model.

    Args:
      path: the file, or the run folder.

    Raises:
      EvenhandError: there is none, because the run was not trained on a table, or it is damaged.
    """
    path = Path(path)
    path = path / "features.json" if path.is_dir() else path
    try:
        if not fits_its_list(path):
            raise EvenhandError(
                f"{path} is damaged (it does not match checksums.json): `evenhand resume {path.parent}` restores it."
            )
        return Features.from_json(json.loads(path.read_text(encoding="utf-8")))
    except EvenhandError:
        raise
    except FileNotFoundError:
        raise EvenhandError(
            f"{path}: there is no such file: name the folder of a run that was trained on a table."
        ) from None
    except OSError as error:
        raise EvenhandError(f"{path}: cannot be read ({error.strerror}): check its permissions.") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EvenhandError(
            f"{path}: this is not a features.json, or a damaged one: repeat the run."
        ) from None


def _checked(source: str, column: Column, series: Series, row: Callable[[int], str]) -> Series:
    categorical = column.kind == "category"
    series = prepared(source, series, row, categorical=categorical, known=True)
    if not categorical and series.categories is not None:
        raise EvenhandError(
            f"{source}: column {column.name!r} holds text, but the model was trained with numbers in it: write numbers."
        )
    return series


def _opened(path: Path, features: Features) -> tuple[list[str], _Read]:
    source, suffix = str(path), bare_suffix(path)
    if not path.is_file():
        raise EvenhandError(f"{path}: there is no such file: check the spelling.")
    if suffix in (".parquet", ".pq"):

        def read_arrow(names: Sequence[str], problems: Problems) -> _Columns:
            return _in_memory(open_frame(read_parquet(path, names), source))[1](names, problems)

        return parquet_names(path), read_arrow
    if suffix in (".jsonl", ".ndjson"):
        with readable(path):
            frame, row = read_jsonl(path, features.na)
        return _in_memory(frame, row)
    if suffix not in (".csv", ".tsv", ".data"):
        raise EvenhandError(
            f"{path}: the suffix {suffix!r} is not that of a table: give .csv, .tsv, .data, .jsonl or .parquet."
        )
    layout = layout_of(path, [column.name for column in features.columns])
    categories = [column.name for column in features.columns if column.kind == "category"]

    def read_text(names: Sequence[str], problems: Problems) -> _Columns:
        cells = [CellColumn(name, fixed=name in categories) for name in names]
        lines = read_cells(path, layout, cells, problems, features.na)
        return _noted(
            problems, lambda i: cells[i].series(source, lines), len(cells)
        ), lambda i: f"line {lines[i]}"

    return layout.names, read_text


def _in_memory(frame: Frame, row: Row = lambda i: f"row {i}") -> tuple[list[str], _Read]:
    def read(names: Sequence[str], problems: Problems) -> _Columns:
        return _noted(problems, lambda i: frame.series(names[i]), len(names)), row

    return frame.names, read


def _noted(problems: Problems, column: Callable[[int], Series], count: int) -> list[Series]:
    """Columns ``0 .. count - 1``, without those that cannot be read."""
    columns: list[Series] = []
    for i in range(count):
        with problems.noted():
            columns.append(column(i))
    return columns
