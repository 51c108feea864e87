"""Tables of text with commas, semicolons, tabs or bars, read block by block: the whole text is never in memory.

Files called ``*.data`` may be separated by blanks, and need no header: their columns are then called 1, 2, 3, ...
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from evenhand.data._dataset import FederatedDataset
from evenhand.data._features import Series
from evenhand.data._ids import canonical
from evenhand.data._text import number
from evenhand.data.loaders._csv_columns import CellColumn, add_block
from evenhand.data.loaders._files import bare_suffix, open_text
from evenhand.data.loaders._options import Options
from evenhand.data.loaders._problems import Problems
from evenhand.data.loaders._table import Table, choose_columns, table_dataset
from evenhand.errors import EvenhandError

__all__ = ["Layout", "layout_of", "load_csv", "read_cells"]

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


class Layout(NamedTuple):
    """How a file of text is laid out.

    Attributes:
      names: of the columns.
      has_header: whether the first line names them.
    """

    names: list[str]
    has_header: bool


def load_csv(path: Path, options: Options) -> FederatedDataset:
    """The data set of a UTF-8 table with a header line; ``*.data`` needs none."""
    source, problems = str(path), Problems(str(path))
    layout = layout_of(path, [options.label, *options.together])
    columns = choose_columns(source, layout.names, options)
    cells = {
        name: CellColumn(name, fixed=name in options.categorical, feature=True) for name in columns.features
    }
    cells |= {name: CellColumn(name, fixed=True) for name in columns.client}
    cells |= {name: CellColumn(name) for name in columns.read_as_numbers}
    lines = read_cells(path, layout, list(cells.values()), problems, options.na)
    features: list[Series] = []
    label, weight = None, None
    for name in columns.features:
        with problems.noted():
            features.append(cells[name].series(source, lines))
    with problems.noted():
        label = cells[columns.label].series(source, lines)
    with problems.noted():
        weight = None if columns.weight is None else cells[columns.weight].series(source, lines)
    client = tuple(cells[name].ids() for name in columns.client)
    table = Table(tuple(features), label, client, lambda row: f"line {lines[row]}", weight)
    return table_dataset(source, columns, table, options, problems)


def layout_of(path: Path, wanted: Sequence[str]) -> Layout:
    """The names of the columns; ``wanted`` are some that a header would hold."""
    with open_text(path) as file:
        for cells, _ in _rows(path, file):
            names = [canonical(name) for name in cells]
            # A column may well be called 3, but a cell of 3 in the first line makes no header.
            named = any(name in names and number(name) is None for name in wanted)
            if bare_suffix(path) != ".data" or named:
                return Layout(names, has_header=True)
            return Layout([str(position) for position in range(1, len(names) + 1)], has_header=False)
    raise EvenhandError(f"{path}: the file is empty: write a header line and a line for each row.")


def read_cells(
    path: Path, layout: Layout, columns: Sequence[CellColumn], problems: Problems, na: Sequence[str] = ()
) -> list[int]:
    """Fills the columns, and returns the line of each row.

    Args:
      path: the file.
      layout: its columns.
      columns: those to read.
      problems: where lines of another length than the header are noted; they are left out.
      na: further spellings of an empty cell.
    """
    lines: list[int] = []
    at = {name: position for position, name in enumerate(layout.names)}
    wanted = [at[column.name] for column in columns]
    with open_text(path) as file:
        rows = _rows(path, file)
        if layout.has_header:
            next(rows)
        for block in _blocks(path, rows, len(layout.names), problems):
            by_column = list(zip(*block.cells, strict=True))
            chosen = [by_column[j] for j in wanted]
            if na:
                chosen = [tuple("" if cell.strip() in na else cell for cell in cells) for cells in chosen]
            add_block(str(path), columns, chosen, block.lines)
            lines += block.lines
    return lines


def _blocks(
    path: Path, rows: Iterator[tuple[list[str], int]], width: int, problems: Problems
) -> Iterator[_Block]:
    most = max(1, min(_ROWS, _CELLS // width))
    block = _Block([], [])
    first, ragged = (0, 0), 0
    for row, line in rows:
        if len(row) != width:
            first, ragged = (first if ragged else (line, len(row))), ragged + 1
            continue
        block.cells.append(row)
        block.lines.append(line)
        if len(block.lines) == most:
            yield block
            block = _Block([], [])
    if block.lines:
        yield block
    with problems.noted():
        if ragged:
            others = f", and {ragged - 1:,} more lines differ from it" if ragged > 1 else ""
            raise EvenhandError(
                f"{path}: line {first[0]} has {first[1]} cells but the header {width}{others}: complete the line, or "
                "quote cells that hold commas."
            )


def _rows(path: Path, file: TextIO) -> Iterator[tuple[list[str], int]]:
    """The cells of each row, the header's first, and the number of its last line; blank lines are left out."""
    line = 0
    try:
        lines = enumerate(_lines(path, file))
        before, first = next(((i, text) for i, text in lines if text.strip()), (0, ""))
        separator = _separator(first, blanks=bare_suffix(path) == ".data")
        texts = chain([first], (text for _, text in lines))
        if separator == " ":  # the reader takes several blanks for one
            texts = (text.replace("\t", " ").strip(" \r\n") for text in texts)
        reader: _Reader = csv.reader(
            texts,
            delimiter=separator,
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


def _separator(first: str, *, blanks: bool) -> str:
    """The separator that is most frequent between the cells of the first line; if there is none, blanks or a comma."""
    bare = re.sub(r'"[^"]*"', "", first)
    found = max(_SEPARATORS, key=bare.count)
    # Names in cells may have blanks in them, where commas separate the cells; tabs and blanks may be mixed.
    if blanks and not any(mark in bare for mark in ",;|") and len(bare.split()) - 1 > bare.count("\t"):
        return " "
    return found
