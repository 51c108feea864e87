"""Tables in memory, of libraries that may be installed or not."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from evenhand.data import Features, FederatedDataset, encode_table, from_arrays, from_frame, load
from evenhand.errors import EvenhandError

COLUMNS: dict[str, list[Any]] = {
    "region": ["north", "south"] * 10,
    "group": ["A", "A", "B", "B"] * 5,
    "income": [float(1000 * (i * 7 % 20)) for i in range(20)],
    "score": [i * 3 % 5 for i in range(20)],
    "sex": ["f", "m", "m", "f"] * 5,
    "vip": [i % 3 == 0 for i in range(20)],
    "label": ["yes", "no", "no", "yes", "no"] * 4,
}


def people(frame: Any, **options: Any) -> FederatedDataset:
    return from_frame(frame, **{"client": ["region", "group"], **options})


def features_of(data: FederatedDataset) -> Features:
    """How the columns of a table became inputs."""
    assert data.features is not None
    return data.features


def assert_same(one: FederatedDataset, other: FederatedDataset) -> None:
    assert (one.client_ids, one.classes, one.features) == (other.client_ids, other.classes, other.features)
    for first, second in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(first.x, second.x)
        np.testing.assert_array_equal(first.y, second.y)


def assert_refused(frame: Any, words: str, **options: Any) -> None:
    with pytest.raises(EvenhandError, match=words) as caught:
        from_frame(frame, **{"client": "region", **options})
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


class Dataset:
    """The part of ``datasets.Dataset`` that is used: columns, an Arrow table behind it, and named classes."""

    class ClassLabel:
        """An integer column whose numbers have names."""

        def __init__(self, names: list[str] | None) -> None:
            if names is not None:
                self.names = names

    def __init__(self, table: pa.Table, names: dict[str, list[str]]) -> None:
        self.table, self.column_names = table, table.column_names
        self.features = {name: self.ClassLabel(names.get(name)) for name in table.column_names}

    def with_format(self, kind: str) -> Dataset:
        assert kind == "arrow"
        return self

    def __getitem__(self, rows: slice) -> pa.Table:
        return self.table[rows]


class DatasetDict(dict):
    """Several splits."""


class IterableDataset:
    """A stream."""


for _stand_in in (Dataset, DatasetDict, IterableDataset):
    _stand_in.__module__ = "datasets.arrow_dataset"


def test_a_file_of_the_same_rows_gives_the_same(tmp_path) -> None:
    table = pa.table(COLUMNS)
    lines = [",".join(map(str, row)) for row in zip(*COLUMNS.values(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(COLUMNS), *lines]))
    parquet.write_table(table, tmp_path / "t.parquet")
    expected = people(table, name="t")
    assert features_of(expected).inputs == ("income", "score", "sex = f", "sex = m", "vip")
    for name in ("t.csv", "t.parquet"):
        assert_same(load(tmp_path / name, client=["region", "group"]), expected)
    assert_same(people(table.to_batches()[0]), expected)
    assert expected.name == "t"


def test_options_reach_the_data() -> None:
    table = pa.table(COLUMNS)
    options = {
        "features": ["score", "income"],
        "categorical": ["score"],
        "standardize": False,
        "valid_fraction": 0.4,
        "test_fraction": 0.2,
    }
    data = people(table, **options)
    assert features_of(data).inputs[0].startswith("score = ") and features_of(data).inputs[-1] == "income"
    assert data.train.x[:, -1].max() > 1000
    assert (data.train.rows, data.valid.rows, data.test.rows) == (8, 8, 4)
    assert not np.array_equal(people(table, seed=1).train.x, people(table).train.x)
    assert features_of(people(table, drop=["sex", "vip"])).inputs == ("income", "score")
    spread = from_frame(table, clients=3, alpha=0.1)
    assert spread.num_clients == 3
    even = from_frame(table, clients=3, alpha=100.0)
    assert spread.train.sizes.tolist() != even.train.sizes.tolist()
    target = from_frame(table, client="region", label="income", drop=["label"], regression=True)
    assert target.num_classes is None
    gap = table.set_column(2, "income", pa.array([None, *COLUMNS["income"][1:]], pa.float64()))
    assert features_of(people(gap, fill="median")).columns[0].fill is not None
    for clients in (0, "3"):
        with pytest.raises(EvenhandError, match=r"clients=.*: give a whole number"):
            from_frame(table, clients=clients)  # pyright: ignore[reportArgumentType]


def test_names_of_columns_may_be_any_collection() -> None:
    table = pa.table(COLUMNS)
    for names in ({"income"}, {"income": 1}.keys(), frozenset(["income"])):
        assert people(table, features=names).features == people(table, features=["income"]).features
    # A set of texts has another order in each process.
    data = people(table, features=set(COLUMNS) - {"region", "group", "label"}, client={"region", "group"})
    assert [column.name for column in features_of(data).columns] == ["income", "score", "sex", "vip"]
    assert data.client_ids[0] == "A / north"


def test_all_types_of_arrow_are_read_or_refused() -> None:
    table = pa.table(COLUMNS)
    varied = pa.table(
        {
            "region": pa.array(COLUMNS["region"]).dictionary_encode(),
            "group": pa.array(COLUMNS["group"], pa.large_string()),
            "income": pa.array([Decimal(int(v)) for v in COLUMNS["income"]]),
            "score": pa.array(COLUMNS["score"], pa.uint8()),
            "sex": pa.chunked_array(
                [
                    pa.array(COLUMNS["sex"][:7]).dictionary_encode(),
                    pa.array(COLUMNS["sex"][7:]).dictionary_encode(),
                ]
            ),
            "vip": pa.array(COLUMNS["vip"]),
            "label": pa.chunked_array([pa.array([f" {v} " for v in COLUMNS["label"]])]),
        }
    )
    assert_same(people(varied), people(table))
    codes = table.set_column(3, "score", pa.array(COLUMNS["score"]).dictionary_encode())
    assert_same(people(codes), people(table, categorical=["score"]))
    dates = [datetime.date(2020, 1, 1)] * 20
    assert from_frame(table.append_column("day", pa.array(dates)), client="day").client_ids == ("2020-01-01",)
    assert_refused(table.append_column("day", pa.array(dates)), r"'day' holds dates or times \(date32")
    assert_refused(
        table.append_column("d", pa.array([[1]] * 20)), "'d' holds list<.*>, neither numbers nor text"
    )
    assert_refused(table.append_column("d", pa.array([None] * 20)), "row 0, column 'd' is empty")
    assert_refused(table.append_column("d", pa.array([None] + ["x"] * 19)), "row 0, column 'd' is empty")
    assert_refused(table.append_column("d", pa.array([None] + [True] * 19)), "row 0, column 'd' is empty")
    assert_refused(
        table.append_column("d", pa.array([1.0, float("inf")] * 10)), "row 1, column 'd' holds inf"
    )
    assert_refused(table.append_column("sex", table.column("sex")), "'sex' twice")
    for gap in (
        [None] + ["x"] * 19,
        [None] + [1] * 19,
        [None] + [1.5] * 19,
        [None] + [True] * 19,
        [""] + ["x"] * 19,
    ):
        assert_refused(table.set_column(0, "region", pa.array(gap)), "row 0, column 'region' is")


def test_data_sets_of_hugging_face_are_read_or_refused() -> None:
    table = pa.table(COLUMNS)
    numbers = [["no", "yes"].index(v) for v in COLUMNS["label"]]
    coded = table.set_column(6, "label", pa.array(numbers))
    assert_same(people(Dataset(table, {})), people(table))
    assert_same(people(Dataset(coded, {"label": ["no", "yes"]})), people(table))
    assert_refused(DatasetDict(), r"several tables: name one, e\.g\. dataset\['train'\]")
    assert_refused(IterableDataset(), "load it without streaming")


def test_frames_of_pandas_are_read_or_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame, expected = pandas.DataFrame(COLUMNS), people(pa.table(COLUMNS))
    assert_same(people(frame), expected)
    kinds = {"sex": "category", "region": "string", "score": "Int64", "vip": "boolean", "income": "Float32"}
    assert_same(people(frame.astype(kinds)), expected)
    assert_same(people(frame.astype({"vip": object, "score": object, "sex": object})), expected)
    assert_same(people(frame.astype({"score": "category"})), people(frame, categorical=["score"]))
    assert_same(people(frame.set_index(np.arange(20)[::-1])), expected)
    numbered = frame.set_axis(range(7), axis=1)
    assert features_of(from_frame(numbered, client=["0", "1"], label="6")).inputs[0] == "2"
    np.testing.assert_array_equal(encode_table(frame, features=features_of(expected)).shape, (20, 5))
    for missing in (None, np.nan, pandas.NA, pandas.NaT):
        for values in (["x"] * 19, [True] * 19):
            assert_refused(
                frame.assign(d=pandas.Series([missing, *values], dtype=object)), "row 0, column 'd' is empty"
            )
    assert_refused(frame.assign(d=pandas.array([None] + [1] * 19, "Int64")), "row 0, column 'd' is empty")
    assert_refused(
        frame.assign(d=pandas.array([None] + [True] * 19, "boolean")), "row 0, column 'd' is empty"
    )
    assert_refused(frame.assign(d=pandas.Categorical([None] + ["x"] * 19)), "row 0, column 'd' is empty")
    assert_refused(frame.assign(region=[np.nan] + [1.0] * 19), "row 0, column 'region' is")
    assert_refused(frame.assign(d=pandas.Timestamp("2020-01-01")), "'d' holds dates or times")
    assert_refused(frame.assign(d=pandas.Timedelta("1D")), "'d' holds dates or times")
    assert_refused(frame.assign(d=datetime.date(2020, 1, 1)), "'d' holds dates or times")
    assert_refused(frame.assign(d=[[1]] * 20), "'d' holds list objects")
    assert_refused(frame.assign(d=[1j] * 20), "'d' holds complex")
    assert_refused(frame.assign(d=[1, "x"] * 10), "row 1, column 'd' holds 'x' where other rows hold numbers")
    assert_refused(frame.assign(d=pandas.Series([10**400] * 20, dtype=object)), "row 0, column 'd' holds inf")
    assert_refused(frame.set_index("region"), r"'region' is in the index.*reset_index\(\)")
    assert_refused(frame.set_index(["region", "group"]), r"reset_index\(\)")
    assert_refused(pandas.concat([frame, frame["sex"]], axis=1), "'sex' twice")
    assert_refused(pandas.concat({"a": frame}, axis=1), "a MultiIndex")
    assert_refused(frame["sex"], "Series objects are not tables")
    with pytest.raises(EvenhandError, match="from_frame"):
        load(frame)
    with pytest.raises(EvenhandError, match=r"x is a table, a DataFrame.*from_frame"):
        from_arrays(frame[["income", "score"]], frame["label"], frame["region"])
    assert from_arrays(frame[["income"]].to_numpy(), frame["label"], frame["region"]).classes == ("no", "yes")


def test_frames_of_polars_are_read_or_refused() -> None:
    polars = pytest.importorskip("polars")
    frame, expected = polars.DataFrame(COLUMNS), people(pa.table(COLUMNS))
    assert_same(people(frame), expected)
    kinds = {
        "sex": polars.Categorical,
        "score": polars.Int8,
        "income": polars.Float32,
        "region": polars.Enum(["north", "south"]),
    }
    assert_same(people(frame.cast(kinds)), expected)
    day = datetime.date(2020, 1, 1)
    assert_refused(frame.with_columns(d=day), "'d' holds dates or times")
    assert_refused(
        frame.with_columns(d=polars.Series([[1]] * 20)), "'d' holds List.*neither numbers nor text"
    )
    for gap in (
        [None] + [1.5] * 19,
        [None] + [1] * 19,
        [None] + ["x"] * 19,
        [None] + [True] * 19,
        [None] * 20,
    ):
        assert_refused(frame.with_columns(d=polars.Series(gap)), "row 0, column 'd' is empty")
        if gap[1] is not None:
            assert_refused(frame.with_columns(region=polars.Series(gap)), "row 0, column 'region' is")
    assert from_frame(frame.with_columns(region=polars.Series([7, 10] * 10)), client="region").client_ids == (
        "7",
        "10",
    )
    assert_refused(frame.lazy(), r"give frame\.collect\(\)")
    assert_refused(frame["sex"], "Series objects are not tables")
    with pytest.raises(EvenhandError, match="from_frame"):
        load(frame)
    with pytest.raises(EvenhandError, match=r"x is a table, a DataFrame.*from_frame"):
        from_arrays(frame[["income", "score"]], frame["label"], frame["region"])


def test_values_that_are_no_tables_are_refused() -> None:
    assert_refused("t.csv", r"evenhand\.data\.load")
    for thing in (np.zeros((3, 2)), {"a": [1]}, None, [1]):
        assert_refused(thing, "are not tables")
    with pytest.raises(EvenhandError, match=r"ndarray objects.*from_arrays"):
        load(np.zeros((3, 2)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError, match="x is a table"):
        from_arrays(pa.table({"a": [1]}), [0], ["a"])


def test_no_library_is_imported_for_a_table_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("pandas", "polars", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert people(pa.table(COLUMNS)).num_clients == 4


@pytest.mark.parametrize(
    ("client", "label"),
    [(0, 2), ("0", "2"), ([0], 2), (np.int64(0), np.int64(2))],
    ids=["int", "text", "list", "numpy"],
)
def test_columns_that_are_called_by_numbers_are_named_by_them(client: Any, label: Any) -> None:
    """As pandas reads a file without a header."""
    pandas = pytest.importorskip("pandas")
    values = list(zip(COLUMNS["region"], COLUMNS["income"], COLUMNS["label"], strict=True))
    data = from_frame(pandas.DataFrame(values), client=client, label=label)
    assert features_of(data).inputs == ("1",) and data.client_ids == ("north", "south")
    assert_refused(pandas.DataFrame(values), "there are no feature columns", client=0, label=2, drop=[1])
    assert_refused(
        pandas.DataFrame(values),
        "there is no client column 'client' among '0', '1', '2'",
        client="client",
        label=2,
    )


@pytest.mark.parametrize("na", ["-1", "-1.0"])
def test_ids_that_are_numbers_are_compared_with_na_as_numbers(na: str) -> None:
    """pandas turns a column of whole numbers with a gap into floats."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"client": [1.0, 1.0, 2.0, 2.0, -1.0, -1.0], "x": range(6), "y": [0, 1] * 3})
    data = from_frame(table, label="y", client="client", na=[na], drop_empty=True, test_fraction=0.0)
    assert data.client_ids == ("1", "2") and data.train.rows == 4
