"""Odd and damaged CSV and Parquet tables."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fuzz.bytes_and_cells import CELLS, damage, reencoded

Rows = list[list[str]]


def csv(rng: random.Random, folder: Path) -> Path:
    """A CSV table with changes to its cells, its columns, its text or its bytes."""
    rows: Rows = [["client", "a", "b", "label"]]
    rows += [[f"c{i % 3}", str(i), str(i * 0.5), str(i % 2)] for i in range(rng.choice([1, 6, 40]))]
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2, 5])):
        rng.choice([_cell, _cell, _column, _header, _lines])(rng, rows)
    quote = rng.choice(["", "", "", '"', '"', '"', "'"])
    separator = rng.choice([","] * 16 + [";", "\t", "|", ", "])
    end = rng.choice(["\n"] * 8 + ["\r\n", "\r", "\n\n", ""])
    text = end.join(separator.join(f"{quote}{cell}{quote}" for cell in row) for row in rows) + end
    content = reencoded(rng, text)
    if rng.random() < 0.15:
        content = damage(rng, content)
    path = folder / "table.csv"
    path.write_bytes(content)
    return path


def _cell(rng: random.Random, rows: Rows) -> None:
    row = rng.choice(rows)
    if row:
        row[rng.randrange(len(row))] = rng.choice(CELLS)


def _column(rng: random.Random, rows: Rows) -> None:
    """Makes one column odd, drops or doubles it, or adds 3,000 columns."""
    if not rows[0]:
        return
    j, cell = rng.randrange(len(rows[0])), rng.choice(CELLS)
    kind = rng.randrange(5)
    for i, row in enumerate(rows):
        if j >= len(row):
            continue
        if kind == 0 and i:
            row[j] = cell
        elif kind == 1:
            del row[j]
        elif kind == 2:
            row.append(row[j])
        elif kind == 3:
            row += [f"w{k}" if i == 0 else "1" for k in range(3000)]
        elif kind == 4 and i:
            row[j] = rng.choice(CELLS)


def _header(rng: random.Random, rows: Rows) -> None:
    header = rows[0]
    if not header:
        return
    match rng.randrange(5):
        case 0:
            header[rng.randrange(len(header))] = rng.choice(header)
        case 1:
            rng.shuffle(header)
        case 2:
            header.append("extra")
        case 3:
            rows.pop(0)
            if not rows:
                rows.append([])
        case _:
            header[rng.randrange(len(header))] = rng.choice(CELLS)


def _lines(rng: random.Random, rows: Rows) -> None:
    match rng.randrange(4):
        case 0:
            del rows[rng.randrange(len(rows)) :]
            rows.append([])
        case 1:
            rows.insert(rng.randrange(len(rows) + 1), [])
        case 2:
            rows.append(rng.choice(rows)[:-1])
        case _:
            rows.append(rng.choice(rows) * 2)


_COLUMNS: list[Any] = [
    *[
        [1, 2],
        [1.5, float("nan")],
        [None, 1],
        [None, None],
        ["a", "b"],
        ["a", None],
        ["1_000", "2"],
        [True, False],
    ],
    *[[[1], [2]], [{"x": 1}, {"x": 2}], [b"ab", b"\xff"], ["x" * 200_000, "y"], ["nan", "null"], ["", " "]],
    *[[datetime.date(2020, 1, 1)] * 2, [datetime.datetime(2020, 1, 1)] * 2, [datetime.timedelta(1)] * 2],
    *[
        [decimal.Decimal("1.5"), decimal.Decimal("1e30")],
        [2**63 - 1, -(2**63)],
        [1e308, -1e308],
        ["a\0", "a"],
    ],
]


def parquet_table(rng: random.Random, folder: Path) -> Path:
    """A table of columns of any type, with changes to its columns or its bytes."""
    n = rng.choice([0, 2, 6, 6, 40])
    columns: list[tuple[str, Any]] = [
        ("client", [f"c{i % 2}" for i in range(n)]),
        ("a", [float(i) for i in range(n)]),
        ("b", list(range(n))),
        ("label", [i % 2 for i in range(n)]),
    ]
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        k = rng.randrange(len(columns))
        match rng.randrange(5):
            case 0:
                columns[k] = (
                    rng.choice([name for name, _ in columns] + ["", "\0", "x" * 5000]),
                    columns[k][1],
                )
            case 1:
                columns.append(columns[k])
            case 2 if len(columns) > 1:
                del columns[k]
            case _:
                columns[k] = (columns[k][0], (rng.choice(_COLUMNS) * n)[:n])
    arrays = [_typed(rng, values) for _, values in columns]
    table = pa.Table.from_arrays(arrays, names=[name for name, _ in columns])
    path = folder / "table.parquet"
    parquet.write_table(
        table,
        path,
        compression=rng.choice(["snappy", "none", "gzip", "zstd"]),
        row_group_size=rng.choice([1, 1000]),
        use_dictionary=rng.random() < 0.5,
    )
    if rng.random() < 0.3:
        content = path.read_bytes()
        if rng.random() < 0.5:  # the footer, whose length is in the last eight bytes
            size = int.from_bytes(content[-8:-4], "little")
            content = content[: -8 - size] + damage(rng, content[-8 - size : -8]) + content[-8:]
        else:
            content = damage(rng, content)
        path.write_bytes(content)
    return path


def _typed(rng: random.Random, values: list[Any]) -> pa.Array:
    array = pa.array(values)
    kinds = [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.string(), pa.large_string(), pa.bool_()]
    kinds += [pa.decimal128(20, 3), pa.timestamp("ns"), pa.dictionary(pa.int8(), pa.string())]
    if rng.random() < 0.3:
        try:
            kind = rng.choice(kinds)
            if kind == pa.float16():
                return pa.array(np.asarray(values, np.float16))
            return array.dictionary_encode() if pa.types.is_dictionary(kind) else array.cast(kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return array
    return array
