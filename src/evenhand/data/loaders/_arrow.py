"""Columns of Arrow tables, whether from a Parquet file or from memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.data._features import Series
from evenhand.data._ids import canonical
from evenhand.data.loaders._cells import BOOLEANS, as_categories, dates
from evenhand.errors import Argument, EvenhandError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_ids", "arrow_series", "check_types"]


def check_types(source: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Refuses columns that :func:`arrow_series` would refuse, before any of their cells are read."""
    import pyarrow as pa

    for name in names:
        arrow_series(source, name, pa.chunked_array([], schema.field(name).type))


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
        return as_categories(arrow_series(source, name, column.cast(kind.value_type)))
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise EvenhandError(
            f"{source}: column {name!r} holds {kind}, neither numbers nor text: leave it out with ",
            Argument("drop", "NAMES"),
            ", or make plain columns of it.",
        )
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
    return (
        series.values if series.categories is None else np.array([*series.categories, ""], str)[series.values]
    )


def _text(name: str, column: pa.ChunkedArray) -> Series:
    chunks = column.dictionary_encode().unify_dictionaries().chunks
    if not chunks:
        return Series(name, np.zeros(0, np.int32), ())
    texts = [canonical(str(text)) for text in chunks[0].dictionary.to_pylist()]
    # An empty text is an empty cell, and texts that differ only in the blanks around them are one.
    known = {text: position for position, text in enumerate(dict.fromkeys(text for text in texts if text))}
    positions = np.array([*(known.get(text, -1) for text in texts), -1], np.int32)
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    return Series(name, positions[np.concatenate(codes)], tuple(known))
