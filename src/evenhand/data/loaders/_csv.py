"""Tables of text with commas, semicolons, tabs or bars, read block by block: the whole text is never in memory."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._csv_columns import CellColumn, add_block
from evenhand.data.loaders._options import Options
from evenhand.data.loaders._table import Table, choose_columns, table_dataset
from evenhand.errors import EvenhandError

__all__ = ["header_of", "load_csv", "read_cells"]

_SEPARATORS = (",", ";", "\t", "|")
_ROWS, _CELLS = 8192, 2**19
"""Most rows, and about the most cells, that are held as text at a time."""
_LONGEST = 2**26
"""Most characters of a line; a longer one means a file of another kind."""


class _Reader(Protocol):
    @property
    def line_num(self) -> int: ...

    def __next__(self) -> list[str]: ...

    def __iter__(self) -> Iterator[list[str]]: ...


class _Block(NamedTuple):
    cells: list[list[str]]
    lines: list[int]


def load_csv(path: Path, options: Options) -> FederatedDataset:
    """The data set of a UTF-8 table with a header line."""
    columns = choose_columns(str(path), header_of(path), options)
    cells = {
        name: CellColumn(name, fixed=name in options.categorical, feature=True) for name in columns.features
    }
    cells |= {name: CellColumn(name, fixed=True) for name in columns.client}
    cells[columns.label] = CellColumn(columns.label)
    lines = read_cells(path, list(cells.values()))
    table = Table(
        tuple(cells[name].series(str(path), lines) for name in columns.features),
        cells[columns.label].series(str(path), lines),
        tuple(cells[name].ids() for name in columns.client),
        lambda row: f"line {lines[row]}",
    )
    return table_dataset(str(path), columns, table, options)


def header_of(path: Path) -> list[str]:
    """The names of the columns."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        for names, _ in _rows(path, file):
            return [name.strip() for name in names]
    raise EvenhandError(f"{path}: the file is empty: write a header line and a line for each row.")


def read_cells(path: Path, columns: Sequence[CellColumn]) -> list[int]:
    """Fills the columns, and returns the line of each row."""
    lines: list[int] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = _rows(path, file)
        names = [name.strip() for name in next(rows)[0]]
        at = {name: position for position, name in enumerate(names)}
        wanted = [at[column.name] for column in columns]
        for block in _blocks(path, rows, len(names)):
            by_column = list(zip(*block.cells, strict=True))
            add_block(str(path), columns, [by_column[j] for j in wanted], block.lines)
            lines += block.lines
    return lines


def _blocks(path: Path, rows: Iterator[tuple[list[str], int]], width: int) -> Iterator[_Block]:
    most = max(1, min(_ROWS, _CELLS // width))
    block = _Block([], [])
    for row, line in rows:
        if len(row) != width:
            raise EvenhandError(
                f"{path}: line {line} has {len(row)} cells but the header {width}: complete the line, or quote "
                "cells that hold commas."
            )
        block.cells.append(row)
        block.lines.append(line)
        if len(block.lines) == most:
            yield block
            block = _Block([], [])
    if block.lines:
        yield block


def _rows(path: Path, file: TextIO) -> Iterator[tuple[list[str], int]]:
    """The cells of each row, the header's first, and the number of its last line; blank lines are left out."""
    line = 0
    try:
        lines = enumerate(_lines(path, file))
        before, first = next(((i, text) for i, text in lines if text.strip()), (0, ""))
        reader: _Reader = csv.reader(
            chain([first], (text for _, text in lines)),
            delimiter=_separator(first),
            strict=True,
            skipinitialspace=True,
        )
        for row in reader:
            line = before + reader.line_num
            if row:
                yield row, line
    except csv.Error as error:
        raise EvenhandError(
            f"{path}: what begins in line {line + 1} is not CSV ({error}): close its quotes, or write the file "
            "again."
        ) from None
    except UnicodeDecodeError:
        raise EvenhandError(f"{path}: the file is not UTF-8 text: save it as CSV in UTF-8.") from None


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise EvenhandError(
                f"{path}: a line is longer than {_LONGEST:,} characters: name a file of lines, one for each row."
            )
        if "\0" in line:
            raise EvenhandError(
                f"{path}: the file holds NUL characters, which text never does: save it as CSV in UTF-8."
            )
        yield line


def _separator(header: str) -> str:
    """The separator that is most frequent between the names of a header line; a comma if there is none."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_SEPARATORS, key=bare.count)
