"""Parquet tables, through pyarrow where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._options import Options
from evenhand.data.loaders._table import Columns, Table, choose_columns, finite_block, table_dataset
from evenhand.errors import EvenhandError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load_parquet"]


def load_parquet(path: Path, options: Options) -> FederatedDataset:
    """The data set of a Parquet table with plain columns."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise EvenhandError(f"{path}: Parquet needs pyarrow: pip install 'evenhand[parquet]'.") from None
    try:
        columns = choose_columns(path, list(parquet.read_schema(path).names), options)
        wanted = [*columns.features, columns.label, *([] if columns.client is None else [columns.client])]
        table = _table(path, columns, parquet.read_table(path, columns=list(dict.fromkeys(wanted))))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise EvenhandError(f"{path}: no Parquet file, or a damaged one: write or copy it again.") from None
    return table_dataset(path, columns, table, options)


def _table(path: Path, columns: Columns, table: pa.Table) -> Table:
    features = np.empty((table.num_rows, len(columns.features)))
    for j, name in enumerate(columns.features):
        features[:, j] = _numbers(path, name, table.column(name))
    return Table(
        finite_block(path, features, columns.features, _row),
        _entries(path, columns.label, table.column(columns.label)),
        None if columns.client is None else _entries(path, columns.client, table.column(columns.client)),
        _row,
    )


def _row(row: int) -> str:
    return f"row {row}"


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> NDArray:
    from pyarrow import types

    kind = column.type
    _no_gaps(path, name, column)
    if types.is_decimal(kind):
        return np.array([float(value) for value in column.to_pylist()])
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise EvenhandError(
            f"{path}: column {name!r} holds {kind}, not numbers: encode the column as numbers, or name the "
            "columns to use with features=NAMES."
        )
    return column.to_numpy()


def _entries(path: Path, name: str, column: pa.ChunkedArray) -> NDArray:
    _no_gaps(path, name, column)
    values = np.array(column.to_pylist())
    if values.dtype.kind not in "biufU" or values.ndim != 1:
        raise EvenhandError(f"{path}: column {name!r} holds {column.type}: write plain numbers or text.")
    return values


def _no_gaps(path: Path, name: str, column: pa.ChunkedArray) -> None:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise EvenhandError(f"{path}: row {row}, column {name!r} is empty: fill it in or drop the row.")
