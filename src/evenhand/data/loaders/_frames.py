"""Tables whose cells have types, as columns of numbers and of text: in memory, in Parquet, or as lines of JSON.

A library is imported only for a table of that library.
"""

from __future__ import annotations

import datetime
import json
import numbers
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenhand.data._features import Series
from evenhand.data._validation import NDArray, canonical, object_ids, pixels
from evenhand.data.loaders._cells import BOOLEANS, MOST_LISTED, Row, as_categories, dates, mixed
from evenhand.data.loaders._source import open_text
from evenhand.errors import Argument, EvenhandError, named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet


class Frame(NamedTuple):
    """A table in memory.

    Attributes:
      names: of its columns, as text.
      series: ``(column's name) -> `` its numbers or text.
      ids: ``(column's name) -> `` what it holds as client ids, ``""`` or NaN where it is empty.
      row: row number -> where it is.
      hidden: names that are in the index of a pandas table and not among its columns.
    """

    names: list[str]
    series: Callable[[str], Series]
    ids: Callable[[str], NDArray]
    row: Row
    hidden: tuple[str, ...] = ()


def _row(i: int) -> str:
    return f"row {i}"


# --- tables in memory ---------------------------------------------------------------------------------------


def library(frame: object) -> str | None:
    """``"pandas"``, ``"polars"``, ``"pyarrow"`` or ``"datasets"``, by where the type or a parent of it comes from."""
    roots = {base.__module__.partition(".")[0] for base in type(frame).__mro__}
    return next((name for name in ("pandas", "polars", "pyarrow", "datasets") if name in roots), None)


def table_like(frame: object, columns: Mapping[str, NDArray]) -> Any:
    """These columns as a table of the library that ``frame`` is of, pandas or polars; of any other, as a dict."""
    match library(frame):
        case "pandas":
            import pandas  # pyright: ignore[reportMissingImports]  (not a dependency)

            return pandas.DataFrame(dict(columns), index=getattr(frame, "index", None))
        case "polars":
            import polars  # pyright: ignore[reportMissingImports]  (not a dependency)

            return polars.DataFrame(dict(columns))
        case _:
            return dict(columns)


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
        _row,
    )


def _hugging_face(dataset: Any, source: str) -> Frame:
    plain = _arrow(dataset.with_format("arrow")[:], source)

    def names_of(name: str) -> Sequence[str] | None:
        return getattr(dataset.features[name], "names", None)  # only a feature of classes has the attribute

    def series(name: str) -> Series:
        column, names = plain.series(name), names_of(name)
        if names is None or column.categories is not None:
            return column
        codes = np.where(column.missing | (column.values < 0), -1, np.nan_to_num(column.values))
        return Series(name, codes.astype(np.int32), tuple(names), declared=True)

    def ids(name: str) -> NDArray:
        return plain.ids(name) if names_of(name) is None else series(name).texts

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
        declared = kind in (polars.Categorical, polars.Enum)
        if declared:
            column = column.cast(polars.String)
        elif kind not in (polars.String, polars.Null, polars.Object):
            raise _neither(source, name, str(kind))
        return listed(source, name, _blanked(column.to_list(), na))._replace(declared=declared)

    def ids(name: str) -> NDArray:
        column = frame[name]
        if column.dtype.is_integer() and not column.null_count():
            return column.to_numpy()
        if column.dtype.is_float():
            return column.cast(polars.Float64).fill_null(float("nan")).to_numpy()
        return listed_ids(source, name, _blanked(column.to_list(), na))

    return Frame(list(frame.columns), series, ids, _row)


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
        values = zip(column.tolist(), missing, strict=True)
        return _blanked([None if gap else value for value, gap in values], na)

    def series(name: str) -> Series:
        column = frame.iloc[:, at[name]]
        kind, missing = column.dtype, column.isna().to_numpy(bool)
        if isinstance(kind, pandas.CategoricalDtype):
            categories = as_categories(listed(source, name, _blanked(list(column.cat.categories), na)))
            codes = np.array([*categories.values.tolist(), -1], np.int32)
            return Series(name, codes[column.cat.codes.to_numpy()], categories.categories, declared=True)
        if is_kind.is_bool_dtype(kind):
            codes = np.where(missing, -1, column.fillna(False).to_numpy(bool))
            return Series(name, codes.astype(np.int32), BOOLEANS)
        if is_kind.is_numeric_dtype(kind) and not is_kind.is_complex_dtype(kind):
            return Series(name, np.array(column.to_numpy(dtype=np.float64, na_value=np.nan)))
        if is_kind.is_datetime64_any_dtype(kind) or is_kind.is_timedelta64_dtype(kind):
            raise dates(source, name, f"dates or times ({kind})")
        return listed(source, name, objects(column, missing))

    def ids(name: str) -> NDArray:
        column = frame.iloc[:, at[name]]
        missing = column.isna().to_numpy(bool)
        if is_kind.is_numeric_dtype(column.dtype) and not missing.any():
            return np.array(column.to_numpy())
        return listed_ids(source, name, objects(column, missing))

    index = tuple(str(name) for name in frame.index.names if name is not None and str(name) not in at)
    return Frame(names, series, ids, _row, index)


# --- columns of Python objects ------------------------------------------------------------------------------


def listed(source: str, name: str, values: Sequence[Any], row: Row = _row) -> Series:
    """A column of Python objects as numbers or as text; None is an empty cell, and no text is blank.

    Raises:
      EvenhandError: it holds dates, numbers beside text, or anything else.
    """
    kinds = {type(value) for value in values if value is not None}
    times = (datetime.date, datetime.time, datetime.timedelta, np.datetime64)
    if any(issubclass(kind, times) for kind in kinds):
        raise dates(source, name, "dates or times")
    texts = {kind for kind in kinds if issubclass(kind, str)}
    if kinds and not texts and all(issubclass(kind, bool | np.bool_) for kind in kinds):
        codes = [-1 if value is None else int(value) for value in values]
        return Series(name, np.array(codes, np.int32), BOOLEANS)
    for kind in kinds - texts:
        if not issubclass(kind, numbers.Number) or issubclass(kind, complex | np.complexfloating):
            raise _neither(source, name, f"{kind.__name__} objects")
    if not texts:
        amounts = [np.nan if value is None else _float(value) for value in values]
        return Series(name, np.array(amounts, np.float64))
    if kinds != texts:
        strange = [i for i, value in enumerate(values) if isinstance(value, str)]
        cells = [(row(i), str(values[i])) for i in strange[:MOST_LISTED]]
        raise mixed(source, name, cells, len(strange), "numbers", feature=False)
    cells = ["" if value is None else canonical(str(value)) for value in values]
    positions = {cell: position for position, cell in enumerate(dict.fromkeys(filter(None, cells)))}
    codes = [positions.get(cell, -1) for cell in cells]
    return Series(name, np.array(codes, np.int32), tuple(positions))


def listed_ids(source: str, name: str, values: Sequence[Any], row: Row = _row) -> NDArray:
    """The ids in a column of Python objects as text, ``(n,)``; ``""`` where one is None.

    Raises:
      EvenhandError: numbers and text are mixed.
    """
    return object_ids(values, source, lambda i: f"{row(i)}, column {name!r}")


def _blanked(values: Sequence[Any], na: Sequence[str]) -> list[Any]:
    """The values of a column, with None for blank texts and those that ``na`` lists."""
    empty = ("", *na)
    return [None if isinstance(value, str) and value.strip() in empty else value for value in values]


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _neither(source: str, name: str, content: str) -> EvenhandError:
    fault = f"{source}: column {name!r} holds {content}, neither numbers nor text: leave it out with "
    cure = ", turn it into plain columns, or, if it holds the only inputs, as arrays of one shape, name it alone with "
    return EvenhandError(fault, Argument("drop", "NAMES"), cure, named("features", name), ".")


# --- columns of Arrow tables --------------------------------------------------------------------------------


def arrow_series(source: str, name: str, column: pa.ChunkedArray) -> Series:
    """A column as numbers or as text.

    Raises:
      EvenhandError: it holds dates, lists or anything else.
    """
    from pyarrow import types

    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind):
        return Series(name, column.cast("float64", safe=False).to_numpy().astype(np.float64))
    if types.is_decimal(kind):
        values = [np.nan if value is None else float(value) for value in column.to_pylist()]
        return Series(name, np.array(values, np.float64))
    if types.is_null(kind):
        return Series(name, np.full(len(column), np.nan))
    if types.is_boolean(kind):
        return Series(name, column.cast("int32").fill_null(-1).to_numpy(), BOOLEANS)
    if types.is_temporal(kind):
        raise dates(source, name, f"dates or times ({kind})")
    if types.is_dictionary(kind):
        return as_categories(arrow_series(source, name, column.cast(kind.value_type)))._replace(declared=True)
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise _neither(source, name, str(kind))
    return _text(name, column)


def arrow_ids(source: str, name: str, column: pa.ChunkedArray) -> NDArray:
    """A client column as ``(n,)`` integers, floats, booleans or text; an empty cell is ``""`` or NaN."""
    from pyarrow import types

    kind = column.type
    if (types.is_integer(kind) or types.is_boolean(kind)) and not column.null_count:
        return column.to_numpy()
    if types.is_temporal(kind) or types.is_integer(kind) or types.is_boolean(kind):
        return np.array(["" if value is None else str(value) for value in column.to_pylist()], str)
    series = arrow_series(source, name, column)
    return series.values if series.categories is None else series.texts


def _text(name: str, column: pa.ChunkedArray) -> Series:
    chunks = column.dictionary_encode().unify_dictionaries().chunks
    if not chunks:
        return Series(name, np.zeros(0, np.int32), ())
    texts = [canonical(str(text)) for text in chunks[0].dictionary.to_pylist()]
    # An empty text is an empty cell, and texts that differ only in the blanks around them are one.
    places = {text: position for position, text in enumerate(dict.fromkeys(text for text in texts if text))}
    positions = np.array([*(places.get(text, -1) for text in texts), -1], np.int32)
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    return Series(name, positions[np.concatenate(codes)], tuple(places))


# --- Parquet ------------------------------------------------------------------------------------------------


_CELL = 16
"""Bytes of memory that a cell needs at least, as read and as an input of the model."""


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
        for name in features:  # refused before any cells are read
            arrow_series(str(path), name, pa.chunked_array([], file.schema_arrow.field(name).type))
        names = [*features, *others]
        rows = file.metadata.num_rows
        if rows * len(names) * _CELL > _memory():
            fault = (
                f"{path}: {rows:,} rows of {len(names):,} columns do not fit into the memory of this machine"
            )
            cure = "write fewer rows, or name fewer columns with "
            raise EvenhandError(f"{fault}: {cure}", Argument("features", "NAMES"), ".")
        # Read in batches, because space for all rows that the file claims to hold might not exist.
        schema = pa.schema([file.schema_arrow.field(name) for name in names])
        table = pa.Table.from_batches(list(file.iter_batches(columns=names)), schema)
        if table.num_rows != rows:
            raise EvenhandError(
                f"{path}: the file declares {rows:,} rows but holds {table.num_rows:,}: write or copy it again."
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


# --- one JSON object per line -------------------------------------------------------------------------------


def read_jsonl(path: Path, na: Sequence[str] = ()) -> Frame:
    """The columns, in the order in which their names occur.

    Raises:
      EvenhandError: a line is not a JSON object, or there is none.
    """
    source = str(path)
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    with open_text(path, "JSON") as file:
        for line, text in enumerate(file, start=1):
            if text.strip():
                _add(source, columns, _object(source, line, text), len(lines), line)
                lines.append(line)
    if not lines:
        raise EvenhandError(f"{path}: the file is empty: write one JSON object per line.")
    columns = {
        name: _blanked(cells, na) + [None] * (len(lines) - len(cells)) for name, cells in columns.items()
    }

    def row(i: int) -> str:
        return f"line {lines[i]}"

    return Frame(
        list(columns),
        lambda name: listed(source, name, columns[name], row),
        lambda name: listed_ids(source, name, columns[name], row),
        row,
    )


def _add(
    source: str, columns: dict[str, list[Any]], entries: list[tuple[str, Any]], row: int, line: int
) -> None:
    for name, value in entries:
        cells = columns.setdefault(canonical(name), [])
        if len(cells) > row:
            raise EvenhandError(f"{source}: line {line} names column {name!r} twice: rename one of the two.")
        cells += [None] * (row - len(cells))
        is_nan = isinstance(value, float) and value != value
        cells.append(None if is_nan else value)


def _object(source: str, line: int, text: str) -> list[tuple[str, Any]]:
    """The entries of a line's object."""
    try:
        entries = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    except (ValueError, RecursionError):
        raise EvenhandError(
            f"{source}: line {line} is not JSON, or the file is truncated: write one object per line, or call a file "
            "in LEAF's layout .json."
        ) from None
    if not text.lstrip().startswith("{") or not entries:
        raise EvenhandError(
            f'{source}: line {line} is not a JSON object: write one per line, such as {{"client": "a", "label": 1}}.'
        )
    return entries


# --- columns of arrays: pictures, lists of numbers, tokens -----------------------------------------------------


def array_column(frame: Any, name: str, source: str) -> NDArray:
    """A column of arrays as one, ``(n, ...)``.

    Raises:
      EvenhandError: a cell is empty, or arrays have several shapes.
    """
    # Lists of Python forget that their numbers were bytes.
    arrays, kind = list[NDArray](), np.uint8 if _holds_bytes(frame, name) else None
    for i, value in enumerate(array_cells(frame, name) or ()):
        if value is None:
            raise EvenhandError(f"{source}: row {i} has no array in column {name!r}: leave out the row.")
        try:
            arrays.append(np.asarray(value, kind))
        except TypeError:  # an empty entry among bytes
            raise EvenhandError(
                f"{source}: row {i} has an array with empty entries in column {name!r}: fill them in, or leave out the "
                "row."
            ) from None
        except ValueError:
            raise EvenhandError(
                f"{source}: row {i} has lists of several lengths in column {name!r}: pad them to one length."
            ) from None
        if arrays[i].shape != arrays[0].shape:
            raise EvenhandError(
                f"{source}: column {name!r} has arrays of shape {arrays[0].shape} in row 0 and {arrays[i].shape} in "
                f"row {i}: pad, crop or resize them to one shape."
            )
    if not arrays:
        raise EvenhandError(f"{source}: the table has no rows.")
    return pixels(np.stack(arrays))


def array_cells(frame: Any, name: str) -> Sequence[Any] | None:
    """The cells of a column that holds arrays, by what its type says or, in pandas, its first cell does."""
    match library(frame):
        case "datasets":
            feature = frame.features[name]
            if type(feature).__name__ == "Image":  # decoded row by row
                return [row[name] for row in frame.select_columns([name])]
            is_list = isinstance(feature, list) or type(feature).__name__ in _LISTS
            return frame.with_format("arrow")[:].column(name).to_pylist() if is_list else None
        case "pyarrow":
            from pyarrow import types

            kind = frame.schema.field(name).type
            is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
            return frame.column(name).to_pylist() if is_list else None
        case "polars":
            return frame[name].to_list() if type(frame[name].dtype).__name__ in ("List", "Array") else None
        case "pandas":
            # By its place: the column's own name may be a number.
            column = frame.iloc[:, [str(own) for own in frame.columns].index(name)].tolist()
            first: Any = next((value for value in column if value is not None), None)
            is_array = isinstance(first, list | tuple) or (hasattr(first, "__array__") and np.ndim(first) > 0)
            return column if is_array else None
        case _:
            return None


def _holds_bytes(frame: Any, name: str) -> bool:
    """Whether a column of lists holds bytes, by its type."""
    match library(frame):
        case "datasets":
            if type(frame.features[name]).__name__ == "Image":  # arrays, which have a type of their own
                return False
            kind: Any = frame.with_format("arrow")[:].schema.field(name).type
        case "pyarrow":
            kind = frame.schema.field(name).type
        case "polars":
            kind = frame[name].dtype
        case _:
            return False
    while (inner := _inner(kind)) is not None:
        kind = inner
    return str(kind).lower() == "uint8"


def _inner(kind: Any) -> Any:
    """What a type of lists holds, of Hugging Face, Arrow or polars; None: it is no such type."""
    parts = (
        getattr(kind, "storage_type", None),
        getattr(kind, "value_type", None),
        getattr(kind, "inner", None),
    )
    return next((part for part in parts if part is not None), None)


_LISTS = {"Array2D", "Array3D", "Array4D", "Array5D", "LargeList", "List", "Sequence"}
"""Features of Hugging Face that are arrays."""
