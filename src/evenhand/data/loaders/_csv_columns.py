"""Columns of text cells put together block by block: numbers where all cells spell numbers, else categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.data._features import Series
from evenhand.data._ids import canonical
from evenhand.data._text import is_missing, number, numbers
from evenhand.data.loaders._cells import MOST_CATEGORIES, mixed, too_many
from evenhand.errors import EvenhandError

__all__ = ["CellColumn", "add_block"]

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
      parts: what was read: numbers, or positions in ``known``.
      known: the distinct texts.
      fault: why the column cannot be read, once that is known; its further cells are not read.
    """

    name: str
    kind: str | None = None
    fixed: bool = False
    feature: bool = False
    parts: list[NDArray] = field(default_factory=list[NDArray])
    known: dict[str, int] = field(default_factory=dict[str, int])
    fault: EvenhandError | None = None

    def series(self, source: str, lines: Sequence[int]) -> Series:
        """The whole column.

        Raises:
          EvenhandError: the column holds numbers and text, or text that cannot be categories.
        """
        if self.fault is not None:
            raise self.fault
        if self.kind != _TEXT and not self.fixed:
            return Series(self.name, np.concatenate([np.zeros(0), *self.parts]))
        codes = np.concatenate([np.zeros(0, np.int32), *self.parts])
        if not self.fixed:
            spelled = [code for cell, code in self.known.items() if number(cell) is not None]
            if spelled:
                i = int(np.argmax(np.isin(codes, spelled)))
                cell = next(cell for cell, code in self.known.items() if code == codes[i])
                raise mixed(source, f"line {lines[i]}", self.name, cell, "text", feature=self.feature)
        # Whether a text means an empty cell is checked once for each distinct text, not for each row.
        empty = np.array([is_missing(cell) for cell in self.known], bool)
        return Series(self.name, np.where(empty[codes], -1, codes), tuple(self.known))

    def ids(self) -> NDArray:
        """The cells themselves, ``(n,)``, of a fixed column."""
        return np.array([*self.known, ""], str)[np.concatenate([np.zeros(0, np.int32), *self.parts])]


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
    numeric: list[int] = []
    for i, column in enumerate(columns):
        if column.fault is not None:
            continue
        if column.fixed or column.kind == _TEXT:
            _add_text(source, column, cells[i])
        else:
            numeric.append(i)
    # All at once, because a table may have many columns and few rows.
    block = numbers(list(chain.from_iterable(cells[i] for i in numeric)))
    if block is None:
        for i in numeric:
            _add(source, columns[i], cells[i], lines)
        return
    block = block.reshape(len(numeric), len(lines))
    seen = np.count_nonzero(~np.isnan(block), axis=1)
    for position, i in enumerate(numeric):
        columns[i].parts.append(block[position])
        if seen[position]:
            columns[i].kind = _NUMBER


def _add(source: str, column: CellColumn, cells: tuple[str, ...], lines: list[int]) -> None:
    """The cells of a column that is not text so far."""
    values = numbers(cells)
    if values is None:
        spelled = [number(cell) for cell in cells]
        values = np.array(spelled, np.float64)  # None becomes NaN
        strange = [i for i in np.flatnonzero(np.isnan(values)).tolist() if not is_missing(cells[i])]
        if strange and (column.kind == _NUMBER or not np.isnan(values).all()):
            i = strange[0]
            column.fault = mixed(
                source, f"line {lines[i]}", column.name, cells[i], "numbers", feature=column.feature
            )
            return
        if strange:
            column.kind, column.parts = _TEXT, [np.full(len(part), -1, np.int32) for part in column.parts]
            _add_text(source, column, cells)
            return
    column.parts.append(values)
    if not np.isnan(values).all():
        column.kind = _NUMBER


def _add_text(source: str, column: CellColumn, cells: tuple[str, ...]) -> None:
    known = column.known
    column.parts.append(
        np.array([known.setdefault(cell, len(known)) for cell in map(canonical, cells)], np.int32)
    )
    if column.feature and len(known) > _MOST_READ:
        column.fault = too_many(source, column.name, list(known))
