"""Parquet tables, through pyarrow where it is installed."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._arrow import check_types
from evenhand.data.loaders._frames import frame_table, open_frame
from evenhand.data.loaders._options import Options
from evenhand.data.loaders._problems import Problems
from evenhand.data.loaders._table import choose_columns, table_dataset
from evenhand.errors import Argument, EvenhandError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

__all__ = ["load_parquet", "parquet_names", "read_parquet"]

_CELL = 16
"""Bytes of memory that a cell needs at least, as read and as an input of the model."""


def load_parquet(path: Path, options: Options) -> FederatedDataset:
    """The data set of a Parquet table with plain columns."""
    source = str(path)
    columns = choose_columns(source, parquet_names(path), options)
    table = read_parquet(path, columns.features, [*columns.read_as_numbers, *columns.client])
    problems = Problems(source)
    frame = frame_table(source, open_frame(table, source), columns, problems)
    return table_dataset(source, columns, frame, options, problems)


def parquet_names(path: Path) -> list[str]:
    """The names of the columns."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def read_parquet(path: Path, features: Sequence[str], others: Sequence[str] = ()) -> pa.Table:
    """Some columns, those of features checked for their types before they are read.

    Raises:
      EvenhandError: the file is damaged, holds another number of rows than it says, or more than fit into memory.
    """
    import pyarrow as pa

    with _opened(path) as file:
        check_types(str(path), features, file.schema_arrow)
        names = [*features, *others]
        rows = file.metadata.num_rows
        if rows * len(names) * _CELL > _memory():
            raise EvenhandError(
                f"{path}: {rows:,} rows of {len(names):,} columns do not fit into the memory of this machine: write "
                "fewer rows, or name fewer columns with ",
                Argument("features", "NAMES"),
                ".",
            )
        # Read in batches, because space for all rows that the file claims to hold might not exist.
        schema = pa.schema([file.schema_arrow.field(name) for name in names])
        table = pa.Table.from_batches(list(file.iter_batches(columns=names)), schema)
        if table.num_rows != rows:
            raise EvenhandError(
                f"{path}: the file promises {rows:,} rows and holds {table.num_rows:,}: write or copy it again."
            )
        return table


@contextmanager
def _opened(path: Path) -> Generator[parquet.ParquetFile]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise EvenhandError(f"{path}: Parquet needs pyarrow: pip install 'evenhand[parquet]'.") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise EvenhandError(
            f"{path}: this is not a Parquet file, or a damaged one: write or copy it again."
        ) from None


def _memory() -> int:
    """Bytes of memory of the machine, where the system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63
