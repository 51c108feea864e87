"""CSV tables, converted block by block so that a large file is never in memory as text."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from evenhand.data._arrays import NDArray, Place, numbers_or_names
from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._options import Options
from evenhand.data.loaders._table import (
    Columns,
    Table,
    choose_columns,
    finite_block,
    not_a_number,
    table_dataset,
)
from evenhand.errors import EvenhandError

__all__ = ["load_csv"]

_ROWS = 8192


class _Reader(Protocol):
    @property
    def line_num(self) -> int: ...

    def __next__(self) -> list[str]: ...

    def __iter__(self) -> Iterator[list[str]]: ...


class _Block(NamedTuple):
    cells: list[list[str]]
    lines: list[int]


def load_csv(path: Path, options: Options) -> FederatedDataset:
    """The data set of a comma-separated UTF-8 table with a header line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            if not names:
                raise EvenhandError(
                    f"{path}: the file is empty: write a header line and a line for each row."
                )
            columns = choose_columns(path, names, options)
            table = _read(path, reader, names, columns)
        except csv.Error as error:
            raise EvenhandError(
                f"{path}: line {reader.line_num} is no CSV ({error}): repair its quotes or write the file "
                "again."
            ) from None
        except UnicodeDecodeError:
            raise EvenhandError(f"{path}: the file is not UTF-8 text: save it as CSV in UTF-8.") from None
    return table_dataset(path, columns, table, options)


def _read(path: Path, reader: _Reader, names: list[str], columns: Columns) -> Table:
    at = {name: position for position, name in enumerate(names)}
    wanted = [at[name] for name in columns.features]
    features: list[NDArray] = [np.empty((0, len(wanted)), np.float32)]
    lines: list[int] = []
    labels: list[str] = []
    clients: list[str] = []
    for block in _blocks(path, reader, len(names)):
        by_column = list(zip(*block.cells, strict=True))
        features.append(_numbers(path, [by_column[j] for j in wanted], columns.features, block.lines))
        lines += block.lines
        labels += [cell.strip() for cell in by_column[at[columns.label]]]
        if columns.client is not None:
            clients += [cell.strip() for cell in by_column[at[columns.client]]]
    client = None if columns.client is None else np.array(clients, str)
    where = f"column {columns.label!r}"
    label = numbers_or_names(np.array(labels, str), str(path), lambda row: f"line {lines[row]}, {where}")
    return Table(np.concatenate(features), label, client, _line(lines))


def _blocks(path: Path, reader: _Reader, width: int) -> Iterator[_Block]:
    block = _Block([], [])
    for row in reader:
        if not row:
            continue
        if len(row) != width:
            raise EvenhandError(
                f"{path}: line {reader.line_num} has {len(row)} cells but the header {width}: complete the "
                "line, or quote cells that hold commas."
            )
        block.cells.append(row)
        block.lines.append(reader.line_num)
        if len(block.lines) == _ROWS:
            yield block
            block = _Block([], [])
    if block.lines:
        yield block


def _numbers(path: Path, cells: list[tuple[str, ...]], names: tuple[str, ...], lines: list[int]) -> NDArray:
    block = np.empty((len(lines), len(names)))
    for j, column in enumerate(cells):
        try:
            block[:, j] = np.fromiter(map(float, column), np.float64, len(column))
        except ValueError:
            i = next(i for i, cell in enumerate(column) if not _is_number(cell))
            raise not_a_number(path, f"line {lines[i]}", names[j], column[i]) from None
    return finite_block(path, block, names, _line(lines))


def _line(lines: list[int]) -> Place:
    return lambda row: f"line {lines[row]}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
