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
from evenhand.data.loaders._arrow import arrow_series
from evenhand.data.loaders._cells import prepared
from evenhand.data.loaders._csv import header_of, read_cells
from evenhand.data.loaders._csv_columns import CellColumn
from evenhand.data.loaders._frames import open_frame
from evenhand.data.loaders._options import listing
from evenhand.data.loaders._parquet import parquet_names, read_parquet
from evenhand.data.loaders._table import check_header
from evenhand.errors import EvenhandError

__all__ = ["encode_table", "load_features"]

_Read: TypeAlias = Callable[[Sequence[str]], tuple[list[Series], Callable[[int], str]]]
"""Columns' names -> the columns, and where a row is."""


def encode_table(table: Any, *, features: Features) -> npt.NDArray[np.float32]:
    """The inputs, ``(rows, inputs)``, that a model trained on one table gets for the rows of another.

    Args:
      table: a CSV or Parquet file, or whatever :func:`evenhand.data.from_frame` takes.  Columns may be in any
        order, and there may be others besides.
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
    categories = [column.name for column in features.columns if column.kind == "category"]
    names, read = _opened(Path(table), categories) if is_file else _in_memory(table, source)
    check_header(source, names)
    known = frozenset(names)
    for column in features.columns:
        if column.name not in known:
            raise EvenhandError(
                f"{source}: there is no column {column.name!r} among {listing(names)}, which the model was trained "
                "with: add it."
            )
    found, row = read([column.name for column in features.columns])
    columns = [_checked(source, *pair, row) for pair in zip(features.columns, found, strict=True)]
    return encode(features, columns, np.arange(len(columns[0].values)), source)


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
    fill = None if column.fill is None else "mean"  # which one no longer matters
    categorical = column.kind == "category"
    series = prepared(source, series, row, categorical=categorical, fill=fill, known=True)
    if not categorical and series.categories is not None:
        raise EvenhandError(
            f"{source}: column {column.name!r} holds text, but the model was trained with numbers in it: write numbers."
        )
    return series


def _opened(path: Path, categories: Sequence[str]) -> tuple[list[str], _Read]:
    source, suffix = str(path), path.suffix.lower()
    if not path.is_file():
        raise EvenhandError(f"{path}: there is no such file: check the spelling.")
    if suffix in (".parquet", ".pq"):

        def read_arrow(names: Sequence[str]) -> tuple[list[Series], Callable[[int], str]]:
            table = read_parquet(path, names)
            return [arrow_series(source, name, table.column(name)) for name in names], _row

        return parquet_names(path), read_arrow
    if suffix not in (".csv", ".tsv"):
        raise EvenhandError(
            f"{path}: the suffix {suffix!r} is not that of a table: give .csv, .tsv or .parquet."
        )

    def read_text(names: Sequence[str]) -> tuple[list[Series], Callable[[int], str]]:
        cells = [CellColumn(name, fixed=name in categories) for name in names]
        lines = read_cells(path, cells)
        return [cell.series(source, lines) for cell in cells], lambda row: f"line {lines[row]}"

    return header_of(path), read_text


def _in_memory(table: Any, source: str) -> tuple[list[str], _Read]:
    frame = open_frame(table, source)
    return frame.names, lambda names: ([frame.series(name) for name in names], _row)


def _row(row: int) -> str:
    return f"row {row}"
