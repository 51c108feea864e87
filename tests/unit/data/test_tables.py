"""CSV and Parquet tables."""

from __future__ import annotations

import csv
import sys
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import malformed
from evenhand.data import FederatedDataset, from_arrays, load
from evenhand.errors import EvenhandError, EvenhandWarning


def assert_same(one: FederatedDataset, other: FederatedDataset) -> None:
    assert one.client_ids == other.client_ids
    assert one.classes == other.classes
    for first, second in ((one.train, other.train), (one.valid, other.valid), (one.test, other.test)):
        for column, same in zip(first, second, strict=True):
            np.testing.assert_array_equal(column, same)
            assert column.dtype == same.dtype


def table(n: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(n, 3)), random.integers(0, 3, n), random.integers(8, 12, n)


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_csv_and_parquet_give_what_arrays_give(tmp_path: Path) -> None:
    x, y, client = table()
    expected = from_arrays(x, y, client, test_fraction=0.25, valid_fraction=0.25, seed=7)
    rows = [[a, int(k), b, int(label), c] for (a, b, c), k, label in zip(x.tolist(), client, y, strict=True)]
    file = write_csv(tmp_path / "t.csv", ["a", "client", "b", "label", "c"], rows)
    assert_same(load(file, test_fraction=0.25, valid_fraction=0.25, seed=7, standardize=False), expected)
    columns = {"a": x[:, 0], "client": client, "b": x[:, 1], "label": y, "c": x[:, 2]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert_same(
        load(tmp_path / "t.parquet", test_fraction=0.25, valid_fraction=0.25, seed=7, standardize=False),
        expected,
    )


def test_named_columns_and_text_labels_are_read(tmp_path: Path) -> None:
    rows = [["oslo", "yes", 1.5, "x"], ["rome", "no", 2, "y"], ["rome", "yes", 3, "z"]]
    file = write_csv(tmp_path / "t.csv", ["city", "answer", "size", "note"], rows)
    data = load(file, client="city", label="answer", features=["size"], test_fraction=0.0, standardize=False)
    assert data.client_ids == ("oslo", "rome")
    assert data.classes == ("no", "yes")
    np.testing.assert_array_equal(data.train.y, [1, 0, 1])
    np.testing.assert_array_equal(data.train.x[:, 0], np.array([1.5, 2, 3], np.float32))
    with pytest.raises(EvenhandError, match="no feature column 'weight'"):
        load(file, client="city", label="answer", features=["weight"])


def test_quotes_spaces_blank_lines_and_a_byte_order_mark_are_understood(tmp_path: Path) -> None:
    text = '\ufeffclient, a ,label\r\n"Smith, J", 1 , 0\r\n\r\n"Smith, J",2e0,1.0\r\nLee,+3,1\r\n'
    (tmp_path / "t.csv").write_bytes(text.encode())
    data = load(tmp_path / "t.csv", test_fraction=0.0, standardize=False)
    assert data.client_ids == ("Lee", "Smith, J")
    np.testing.assert_array_equal(data.train.x[:, 0], [3, 1, 2])
    np.testing.assert_array_equal(data.train.y, [1, 0, 1])


def test_line_numbers_count_blank_and_folded_lines(tmp_path: Path) -> None:
    text = 'client,a,label\n\n"two\nlines",1,0\nann,bad,0\n'
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(EvenhandError, match="line 5, column 'a' holds 'bad'"):
        load(tmp_path / "t.csv")


def test_a_fault_beyond_the_first_block_is_found(tmp_path: Path) -> None:
    rows: list[list[object]] = [["a", i, 0] for i in range(20_000)]
    rows[17_000][1] = "oops"
    file = write_csv(tmp_path / "t.csv", ["client", "v", "label"], rows)
    with pytest.raises(EvenhandError, match="line 17002, column 'v' holds 'oops'"):
        load(file)
    rows[17_000][1] = 17_000
    file = write_csv(file, ["client", "v", "label"], rows)
    with pytest.warns(
        EvenhandWarning, match="column 'v' has another whole number in each of the 20,000 rows"
    ):
        data = load(file, test_fraction=0.0, standardize=False)
    np.testing.assert_array_equal(data.train.x[:, 0], np.arange(20_000, dtype=np.float32))


def test_pooled_rows_are_spread_when_asked(tmp_path: Path) -> None:
    x, y, _ = table()
    rows = [[*values, int(label)] for values, label in zip(x.tolist(), y, strict=True)]
    file = write_csv(tmp_path / "t.csv", ["a", "b", "c", "label"], rows)
    data = load(file, clients=5, alpha=0.1, seed=1)
    assert data.num_clients == 5
    assert data.train.rows + data.test.rows == 40
    with pytest.raises(EvenhandError, match=r"t\.csv: 40 examples are too few for 41 clients"):
        load(file, clients=41)


def test_real_targets_are_read_for_regression(tmp_path: Path) -> None:
    rows = [["a", 1, 0.5], ["a", 2, -1], ["b", 3, 2]]
    file = write_csv(tmp_path / "t.csv", ["client", "v", "label"], rows)
    data = load(file, regression=True, test_fraction=0.0)
    np.testing.assert_array_equal(data.train.y, np.array([0.5, -1, 2], np.float32))
    spread = load(file, client=[], features=["v"], regression=True, clients=3, test_fraction=0.0)
    np.testing.assert_array_equal(spread.train.sizes, [1, 1, 1])
    names = write_csv(tmp_path / "n.csv", ["client", "v", "label"], [["a", 1, "x"]])
    with pytest.raises(EvenhandError, match="not a number"):
        load(names, regression=True)


def test_all_types_of_parquet_are_read(tmp_path: Path) -> None:
    columns = {
        "client": pa.array(["b", "a", "b"]).dictionary_encode(),
        "label": ["cat", "dog", "cat"],
        "flag": [True, False, True],
        "price": [Decimal("1.50"), Decimal("2.25"), Decimal("0.75")],
        "count": pa.array([1, 2, 3], pa.int8()),
    }
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet", test_fraction=0.0, standardize=False)
    np.testing.assert_array_equal(
        data.train.x, np.array([[0, 2.25, 2], [1, 1.5, 1], [1, 0.75, 3]], np.float32)
    )
    assert data.classes == ("cat", "dog")


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = malformed.VARIANTS["parquet with a gap"](tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EvenhandError, match=r"pip install 'evenhand\[parquet\]'"):
        load(file)


def test_a_hundred_thousand_lines_take_seconds(tmp_path: Path) -> None:
    row = ",".join(["0.123456"] * 8)
    lines = "".join(f"c{i % 50},{row},{i % 7}\n" for i in range(100_000))
    file = tmp_path / "t.csv"
    file.write_text("client," + ",".join("abcdefgh") + ",label\n" + lines)
    start = time.process_time()
    data = load(file)
    assert time.process_time() - start < 10
    assert (data.num_clients, data.train.rows + data.test.rows) == (50, 100_000)
