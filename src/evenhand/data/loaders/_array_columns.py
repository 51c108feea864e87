"""Tables with a column of arrays: pictures, lists of numbers, tokens.  That column is what a model learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._features import Series
from evenhand.data._validation import NDArray, as_features, pixels
from evenhand.data.loaders._frames import Frame, library
from evenhand.data.loaders._source import Options
from evenhand.data.loaders._table import in_memory, table_dataset
from evenhand.errors import EvenhandError


def learns_from_arrays(frame: Any, opened: Frame, options: Options) -> str | None:
    """The column that a model learns from, if it is a single one and may hold arrays."""
    others = {options.label, options.weight, *options.client, *options.drop}
    columns = (
        [name for name in opened.names if name not in others]
        if options.features is None
        else options.features
    )
    return columns[0] if len(columns) == 1 and _cells(frame, columns[0]) is not None else None


def array_dataset(frame: Any, opened: Frame, column: str, source: str, options: Options) -> FederatedDataset:
    """The data set of a table whose only feature is a column of arrays.

    The table is read with the numbers of the rows in the place of that column, so that labels, clients and splits are
    those of any other table.
    """
    arrays = as_features(array_column(frame, column, source), source)

    def series(name: str) -> Series:
        return (
            Series(column, np.arange(len(arrays), dtype=np.float64))
            if name == column
            else opened.series(name)
        )

    numbers = options._replace(features=(column,), standardize=False, standardize_target=False)
    data = table_dataset(source, in_memory(opened._replace(series=series)), numbers)

    def filled(split: Split) -> Split:
        return split._replace(x=arrays[split.x[:, 0].astype(np.int64)])

    return replace(
        data, train=filled(data.train), valid=filled(data.valid), test=filled(data.test), features=None
    )


def array_column(frame: Any, name: str, source: str) -> NDArray:
    """A column of arrays as one, ``(n, ...)``.

    Raises:
      EvenhandError: a cell is empty, or arrays have several shapes.
    """
    arrays = list[NDArray]()
    for i, value in enumerate(_cells(frame, name) or ()):
        if value is None:
            raise EvenhandError(f"{source}: row {i} has no array in column {name!r}: leave out the row.")
        try:
            arrays.append(np.asarray(value))
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


def _cells(frame: Any, name: str) -> Sequence[Any] | None:
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
            column = frame[name].tolist()
            first: Any = next((value for value in column if value is not None), None)
            is_array = isinstance(first, list | tuple) or (hasattr(first, "__array__") and np.ndim(first) > 0)
            return column if is_array else None
        case _:
            return None


_LISTS = {"Array2D", "Array3D", "Array4D", "Array5D", "LargeList", "List", "Sequence"}
"""Features of Hugging Face that are arrays."""
