"""Tables of text with commas, semicolons, tabs or bars, read block by block: the whole text is never in memory.

Files called ``*.data`` may be separated by blanks, and need no header: their columns are then called 1, 2, 3, ...
A column holds numbers where all of its cells spell numbers, else categories.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TextIO, TypeAlias

import numpy as np

from evenhand.data._features import Series
from evenhand.data._validation import NDArray, canonical, is_missing, number, numbers
from evenhand.data.loaders._cells import MOST_CATEGORIES, MOST_LISTED, Problems, mixed, too_many
from evenhand.data.loaders._source import bare_suffix, open_text
from evenhand.errors import EvenhandError

# --- files --------------------------------------------------------------------------------------------------


_SEPARATORS = (",", ";", "\t", "|")

_ROWS, _CELLS = 8192, 2**19
"""Most rows, and about the most cells, that are held as text at a time."""

_LONGEST = 2**26
"""Most characters of a line; a longer one means a file of another kind."""


_Line: TypeAlias = tuple[list[str], int]
"""The cells of a row, and the number of its last line."""


class Layout(NamedTuple):
    """How a file of text is laid out.

    Attributes:
      names: of the columns.
      has_header: whether the first line names them.
    """

    names: list[str]
    has_header: bool


def layout_of(path: Path, wanted: Sequence[str]) -> Layout:
    """The names of the columns; ``wanted`` are some that a header would hold."""
    with open_text(path, "CSV") as file:
        for cells, _ in _rows(path, file):
            names = [canonical(name) for name in cells]
            # A column may well be called 3, but a cell of 3 in the first line makes no header.
            named = any(name in names and number(name) is None for name in wanted)
            has_header = named or bare_suffix(path) != ".data"
            numbered = [str(position) for position in range(1, len(names) + 1)]
            return Layout(names if has_header else numbered, has_header=has_header)
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
    with open_text(path, "CSV") as file:
        rows = _rows(path, file)
        if layout.has_header:
            next(rows)
        full = _full(path, rows, len(layout.names), problems)
        most = max(1, min(_ROWS, _CELLS // len(layout.names)))
        while block := list(islice(full, most)):
            by_column = list(zip(*(row for row, _ in block), strict=True))
            chosen = [by_column[j] for j in wanted]
            if na:
                chosen = [tuple("" if cell.strip() in na else cell for cell in cells) for cells in chosen]
            block_lines = [line for _, line in block]
            add_block(str(path), columns, chosen, block_lines)
            lines += block_lines
    return lines


def _full(path: Path, rows: Iterator[_Line], width: int, problems: Problems) -> Iterator[_Line]:
    """The rows that have as many cells as the header."""
    first, ragged = (0, 0), 0
    for row, line in rows:
        if len(row) == width:
            yield row, line
        else:
            first, ragged = (first if ragged else (line, len(row))), ragged + 1
    with problems.noted():
        if ragged:
            more = "1 more line differs" if ragged == 2 else f"{ragged - 1:,} more lines differ"
            others = f", and {more} from it" if ragged > 1 else ""
            fault = f"{path}: line {first[0]} has {first[1]} cells but the header {width}{others}"
            raise EvenhandError(f"{fault}: complete the line, or quote cells that hold commas.")


def _rows(path: Path, file: TextIO) -> Iterator[_Line]:
    """All rows, the header's first; blank lines are left out."""
    line = 0
    try:
        lines = enumerate(_lines(path, file))
        before, first = next(((i, text) for i, text in lines if text.strip()), (0, ""))
        separator = _separator(first, blanks=bare_suffix(path) == ".data")
        texts = chain([first], (text for _, text in lines))
        if separator == " ":  # the reader takes several blanks for one
            texts = (text.replace("\t", " ").strip(" \r\n") for text in texts)
        reader = csv.reader(texts, delimiter=separator, strict=True, skipinitialspace=True)
        for row in reader:
            line = before + reader.line_num
            if row:
                yield row, line
    except csv.Error as error:
        fault = f"{path}: what begins in line {line + 1} is not CSV ({error})"
        raise EvenhandError(f"{fault}: close its quotes, or write the file again.") from None


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
    separator = max(_SEPARATORS, key=bare.count)
    # Names in cells may have blanks in them, where commas separate the cells; tabs and blanks may be mixed.
    if blanks and not any(mark in bare for mark in ",;|") and len(bare.split()) - 1 > bare.count("\t"):
        return " "
    return separator


# --- columns, put together block by block -------------------------------------------------------------------


_NUMBER, _TEXT = "number", "text"

_MOST_READ = 2 * MOST_CATEGORIES
"""Distinct texts after which a feature column is refused without reading on."""


@dataclass
class CellColumn:
    """One column as far as it has been read.

    Attributes:
      name: the column's name.
      kind: ``"number"``, ``"text"``, or None as long as all cells are empty.
      fixed: whether it is text, whatever its cells spell: client ids, and numbers that are categories.
      feature: whether it is a feature, so that its texts are categories.
      is_trained: whether it is for a model that is already trained.
      parts: what was read: numbers, or positions in ``texts``.
      texts: the distinct texts.
      strange: where cells of text among numbers are, and what they hold: the first ones.
      count: how many there are.
      fault: why the column cannot be read, once that is known; its further cells are not read.
    """

    name: str
    kind: str | None = None
    fixed: bool = False
    feature: bool = False
    is_trained: bool = False
    parts: list[NDArray] = field(default_factory=list[NDArray])
    texts: dict[str, int] = field(default_factory=dict[str, int])
    strange: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    count: int = 0
    fault: EvenhandError | None = None

    def series(self, source: str, lines: Sequence[int]) -> Series:
        """The whole column.

        Raises:
          EvenhandError: the column holds numbers and text, or text that cannot be categories.
        """
        if self.fault is not None:
            raise self.fault
        if self.strange:
            kind = {"feature": self.feature, "is_trained": self.is_trained}
            raise mixed(source, self.name, self.strange, self.count, "numbers", **kind)
        if self.kind != _TEXT and not self.fixed:
            return Series(self.name, np.concatenate([np.zeros(0), *self.parts]))
        codes = self._codes
        if not self.fixed:
            # NaN is a number to float(), and an empty cell here.
            spelled = [
                code for cell, code in self.texts.items() if number(cell) is not None and not is_missing(cell)
            ]
            if spelled:
                rows, texts = np.flatnonzero(np.isin(codes, spelled)).tolist(), list(self.texts)
                cells = [(f"line {lines[i]}", texts[codes[i]]) for i in rows[:MOST_LISTED]]
                raise mixed(source, self.name, cells, len(rows), "text", feature=self.feature)
        # Whether a text means an empty cell is checked once for each distinct text, not for each row.
        empty = np.array([is_missing(cell) for cell in self.texts], bool)
        return Series(self.name, np.where(empty[codes], -1, codes), tuple(self.texts))

    def ids(self) -> NDArray:
        """The cells themselves, ``(n,)``, of a fixed column."""
        return Series(self.name, self._codes, tuple(self.texts)).texts

    @property
    def _codes(self) -> NDArray:
        return np.concatenate([np.zeros(0, np.int32), *self.parts])


def add_block(
    source: str, columns: Sequence[CellColumn], cells: Sequence[tuple[str, ...]], lines: list[int]
) -> None:
    """Reads some rows.

    Args:
      source: the file.
      columns: what has been read so far.
      cells: the cells of each of them.
      lines: where each row is in the file.
    """
    numeric: list[tuple[CellColumn, tuple[str, ...]]] = []
    for column, texts in zip(columns, cells, strict=True):
        if column.fault is None:
            if column.fixed or column.kind == _TEXT:
                _add_text(source, column, texts)
            else:
                numeric.append((column, texts))
    # All at once, because a table may have many columns and few rows.
    block = numbers(list(chain.from_iterable(texts for _, texts in numeric)))
    if block is None:
        for column, texts in numeric:
            _add(source, column, texts, lines)
        return
    block = block.reshape(len(numeric), len(lines))
    present = np.count_nonzero(~np.isnan(block), axis=1)
    for (column, _), values, count in zip(numeric, block, present, strict=True):
        column.parts.append(values)
        if count:
            column.kind = _NUMBER


def _add(source: str, column: CellColumn, cells: tuple[str, ...], lines: list[int]) -> None:
    """The cells of a column that is not text so far."""
    values = numbers(cells)
    if values is None:
        values = np.array([number(cell) for cell in cells], np.float64)  # None becomes NaN
        strange = [i for i in np.flatnonzero(np.isnan(values)).tolist() if not is_missing(cells[i])]
        if strange and (column.kind == _NUMBER or not np.isnan(values).all()):
            listed = strange[: MOST_LISTED - len(column.strange)]
            column.strange += [(f"line {lines[i]}", cells[i]) for i in listed]
            column.count += len(strange)
        elif strange:
            column.kind, column.parts = _TEXT, [np.full(len(part), -1, np.int32) for part in column.parts]
            _add_text(source, column, cells)
            return
    column.parts.append(values)
    if not np.isnan(values).all():
        column.kind = _NUMBER


def _add_text(source: str, column: CellColumn, cells: tuple[str, ...]) -> None:
    texts = column.texts
    column.parts.append(
        np.array([texts.setdefault(cell, len(texts)) for cell in map(canonical, cells)], np.int32)
    )
    if column.feature and len(texts) > _MOST_READ:
        # Further cells are not read, so there may be more.
        column.fault = too_many(source, column.name, list(texts), all_read=False)
