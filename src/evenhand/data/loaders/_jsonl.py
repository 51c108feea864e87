"""Tables of one JSON object per line, as data frames and databases export them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenhand.data._dataset import FederatedDataset
from evenhand.data._ids import canonical
from evenhand.data.loaders._cells import Row
from evenhand.data.loaders._files import open_text
from evenhand.data.loaders._frames import Frame, frame_table, listed, listed_ids
from evenhand.data.loaders._options import Options
from evenhand.data.loaders._problems import Problems
from evenhand.data.loaders._table import choose_columns, table_dataset
from evenhand.errors import EvenhandError

__all__ = ["load_jsonl", "read_jsonl"]


def load_jsonl(path: Path, options: Options) -> FederatedDataset:
    """The data set of a file with one JSON object per line; a key that an object lacks is an empty cell."""
    source, problems = str(path), Problems(str(path))
    frame, row = read_jsonl(path, options.na)
    columns = choose_columns(source, frame.names, options)
    return table_dataset(
        source, columns, frame_table(source, frame, columns, problems, row), options, problems
    )


def read_jsonl(path: Path, na: Sequence[str] = ()) -> tuple[Frame, Row]:
    """The columns, in the order in which their names occur, and where a row is.

    Raises:
      EvenhandError: a line is not a JSON object, or there is none.
    """
    source = str(path)
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    try:
        with open_text(path) as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    _add(source, columns, _object(source, line, text), len(lines), line)
                    lines.append(line)
    except UnicodeDecodeError:
        raise EvenhandError(f"{path}: the file is not UTF-8 text: save it as JSON in UTF-8.") from None
    if not lines:
        raise EvenhandError(f"{path}: the file is empty: write one JSON object per line.")
    for cells in columns.values():
        cells += [None] * (len(lines) - len(cells))

    def row(i: int) -> str:
        return f"line {lines[i]}"

    return Frame(
        list(columns),
        lambda name: listed(source, name, columns[name], na, row),
        lambda name: listed_ids(source, name, columns[name], na, row),
    ), row


def _add(
    source: str, columns: dict[str, list[Any]], entries: list[tuple[str, Any]], row: int, line: int
) -> None:
    for name, value in entries:
        cells = columns.setdefault(canonical(name), [])
        if len(cells) > row:
            raise EvenhandError(f"{source}: line {line} names column {name!r} twice: rename one of the two.")
        cells += [None] * (row - len(cells))
        is_nan = isinstance(value, float) and value != value
        cells.append(None if is_nan or value == "" else value)


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
