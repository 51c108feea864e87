"""Columns of a table become inputs: fitted on the training rows, applied to any."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from evenhand.data import FederatedDataset, encode_table, from_frame, load, load_features
from evenhand.data._features import Features, Series
from evenhand.data._fitting import encode, fit
from evenhand.errors import EvenhandError
from evenhand.records import sum_of


def numbers(*values: float) -> Series:
    return Series("v", np.array(values, np.float64))


def fitted(series: Series, rows: list[int], **options: object) -> tuple[Features, np.ndarray]:
    """What is fitted on some rows, and the inputs of all."""
    features = fit([series], np.array(rows), "t", **{"standardize": True, "fill": None, **options})
    return features, encode(features, [series], np.arange(len(series.values)), "t")


def test_mean_and_deviation_are_those_of_the_training_rows() -> None:
    features, x = fitted(numbers(1, 3, 5, 1000), [0, 1, 2])
    column = features.columns[0]
    assert (column.mean, column.deviation) == (3.0, np.sqrt(8 / 3))
    np.testing.assert_allclose(x[:, 0], (np.array([1, 3, 5, 1000]) - 3) / np.sqrt(8 / 3), rtol=1e-6)


def test_a_large_offset_costs_no_digits() -> None:
    _, x = fitted(numbers(1e9, 1e9 + 1, 1e9 + 2), [0, 1, 2])
    np.testing.assert_allclose(x[:, 0], np.array([-1, 0, 1]) * np.sqrt(3 / 2), rtol=1e-6)


def test_zeros_and_ones_stay_and_constants_vanish_even_where_other_rows_differ() -> None:
    features, x = fitted(numbers(0, 1, 1, 7), [0, 1, 2])
    assert x[:, 0].tolist() == [0, 1, 1, 7] and features.scaled == ()
    features, x = fitted(numbers(0.1, 0.1, 0.1, 1e30), [0, 1, 2])
    assert x[:, 0].tolist() == [0, 0, 0, 0]
    assert "alike in v" in features.describe()
    _, x = fitted(numbers(1, 1, 1, 0), [0, 1, 2])
    assert x[:, 0].tolist() == [0, 0, 0, 0]


def test_numbers_are_left_alone_when_asked() -> None:
    features, x = fitted(numbers(5, 5, 9), [0, 1], standardize=False)
    assert x[:, 0].tolist() == [5, 5, 9]
    assert "left unscaled" in features.describe() and "zeros and ones" not in features.describe()


@pytest.mark.parametrize(("fill", "value"), [("mean", 3.0), ("median", 2.0), ("most-frequent", 1.0)])
def test_empty_cells_are_filled_from_the_training_rows(fill: str, value: float) -> None:
    series = numbers(1, 1, 2, 3, 8, np.nan, 100)
    features, x = fitted(series, [0, 1, 2, 3, 4], standardize=False, fill=fill)
    assert features.columns[0].fill == value
    assert x[5, 0] == np.float32(value)
    # An empty training cell counts as what it is filled with.
    features, x = fitted(series, [0, 1, 2, 3, 4, 5], fill=fill)
    assert features.columns[0].mean == pytest.approx((15 + value) / 6)
    np.testing.assert_allclose(x[:6, 0].mean(), 0, atol=1e-6)


def text(*codes: int) -> Series:
    return Series("t", np.array(codes), ("red", "blue", "green"))


def test_a_category_of_no_training_row_is_zero_everywhere() -> None:
    features, x = fitted(text(0, 1, 1, 2), [0, 1, 2])
    assert features.inputs == ("t = blue", "t = red")
    assert x.tolist() == [[0, 1], [1, 0], [1, 0], [0, 0]]


def test_empty_text_is_a_separate_category_or_the_most_frequent() -> None:
    features, x = fitted(text(0, 1, 1, -1), [0, 1, 2, 3], fill="mean")
    assert features.inputs == ("t = blue", "t = red", "t = (missing)")
    assert x[3].tolist() == [0, 0, 1]
    features, x = fitted(text(0, 1, 1, -1), [0, 1, 2, 3], fill="most-frequent")
    assert x[3].tolist() == [1, 0]
    features, x = fitted(text(0, 1, -1), [0, 1], fill="median")  # no training row is empty
    assert features.inputs == ("t = blue", "t = red")
    assert x[2].tolist() == [0, 0]


def test_a_column_without_training_values_is_refused() -> None:
    for series in (numbers(np.nan, np.nan, 1), text(-1, -1, 0)):
        with pytest.raises(EvenhandError, match="is empty in every training row: leave it out with drop="):
            fitted(series, [0, 1], fill="mean")


TABLE = {
    "client": ["a"] * 4 + ["b"] * 4,
    "age": [20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0],
    "sex": ["f", "m", "f", "f", "m", "m", "f", "m"],
    "zone": [1, 2, 1, 2, 3, 1, 2, 3],
    "vip": [True, False, False, True, True, False, True, False],
    "label": [0, 1, 0, 1, 0, 1, 0, 1],
}


def data(**options: object) -> FederatedDataset:
    return from_frame(pa.table(TABLE), **{"categorical": ["zone"], "test_fraction": 0.25, **options})


def features_of(data: FederatedDataset) -> Features:
    """How the columns of a table became inputs."""
    assert data.features is not None
    return data.features


def test_no_test_row_is_looked_at() -> None:
    """The split depends on clients alone, so that test cells can be changed: nothing else may change."""
    before = data()
    changed = dict(TABLE)
    ages = np.array(TABLE["age"])
    column = features_of(before).columns[0]
    test_ages = np.round(before.test.x[:, 0] * column.deviation + column.mean)
    for client, age in zip(("a", "b"), test_ages, strict=True):
        i = next(i for i in range(8) if TABLE["client"][i] == client and ages[i] == age)
        ages[i] = 1e6
    changed["age"] = ages.tolist()
    after = from_frame(pa.table(changed), categorical=["zone"], test_fraction=0.25)
    assert after.features == before.features
    np.testing.assert_array_equal(after.train.x, before.train.x)
    assert (after.test.x[:, 0] > 1000).all()


def test_a_new_table_is_encoded_as_the_training_rows_were(tmp_path: Path) -> None:
    features = features_of(data())
    new = {"zone": [3, 7], "vip": [True, False], "sex": ["m", "x"], "age": [30.0, 40.0], "more": [1, 2]}
    x = encode_table(pa.table(new), features=features)
    column = features.columns[0]
    assert features.inputs == ("age", "sex = f", "sex = m", "zone = 1", "zone = 2", "zone = 3", "vip")
    age = np.array([(value - column.mean) / column.deviation for value in (30, 40)], np.float32)
    np.testing.assert_array_equal(x, np.c_[age, [[0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]]].astype(np.float32))
    (tmp_path / "new.csv").write_text("zone,vip,sex,age\n3,True,m,30\n7,false,x,40\n")
    np.testing.assert_array_equal(encode_table(tmp_path / "new.csv", features=features), x)
    parquet.write_table(pa.table(new), tmp_path / "new.parquet")
    np.testing.assert_array_equal(encode_table(tmp_path / "new.parquet", features=features), x)


def test_features_survive_json(tmp_path: Path) -> None:
    for fill in (None, "most-frequent", "mean"):
        features = features_of(data(fill=fill))
        (tmp_path / "features.json").write_text(json.dumps(features.to_json()))
        assert load_features(tmp_path) == load_features(tmp_path / "features.json") == features


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"age": [1.0], "sex": ["f"], "vip": [True]}, "no column 'zone'"),
        (
            {"age": ["old"], "sex": ["f"], "vip": [True], "zone": [1]},
            "row 0, column 'age' holds 'old', but the model",
        ),
        ({"age": [None], "sex": ["f"], "vip": [True], "zone": [1]}, "row 0, column 'age' is empty"),
    ],
)
def test_a_new_table_that_does_not_fit_is_refused(table: dict[str, list], words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        encode_table(pa.table(table), features=features_of(data()))


def test_an_empty_cell_of_a_new_table_is_filled_where_the_training_table_was() -> None:
    features = features_of(data(fill="median"))
    table = {"age": [None], "sex": [None], "vip": [True], "zone": [1]}
    table = pa.table({**table, "sex": pa.array([None], pa.string()), "age": pa.array([None], pa.float64())})
    x = encode_table(table, features=features)
    column = features.columns[0]
    assert isinstance(column.fill, float)
    assert x[0, 0] == np.float32((column.fill - column.mean) / column.deviation)
    assert x[0, 1:3].tolist() == [0, 0]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"columns": [{"name": "a"}]}', '{"columns": [3]}', "\ud800", "[" * 100_000],
    ids=["cut", "list", "a name alone", "a number", "no Unicode", "nested"],
)
def test_damaged_features_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "features.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(EvenhandError, match="not a features"):
        load_features(tmp_path)


def test_a_changed_number_is_noticed_beside_checksums(tmp_path: Path) -> None:
    """As in a run folder; without checksums, or with those of other files, it is not."""
    path, sums = tmp_path / "features.json", tmp_path / "checksums.json"
    path.write_text(json.dumps(features_of(data()).to_json()))
    length, sha256 = sum_of(path.read_bytes())
    for listed in ({path.name: {"bytes": length, "sha256": sha256}}, {"summary.json": {}}, []):
        sums.write_text(json.dumps(listed))
        assert load_features(tmp_path) == data().features
    path.write_text(path.read_text().replace("3", "4", 1))
    assert load_features(tmp_path) != data().features
    sums.write_text(json.dumps({path.name: {"bytes": length, "sha256": sha256}}))
    with pytest.raises(EvenhandError, match=r"features\.json is damaged .* restores it"):
        load_features(tmp_path)


def test_missing_features_and_tables_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(EvenhandError, match="trained on a table"):
        load_features(tmp_path)
    assert load("digits", clients=2).features is None
    for name in ("no.csv", "no.parquet"):
        with pytest.raises(EvenhandError, match="no such file"):
            encode_table(tmp_path / name, features=features_of(data()))
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(EvenhandError, match=r"suffix '\.xlsx'"):
        encode_table(tmp_path / "t.xlsx", features=features_of(data()))


def test_an_empty_cell_in_new_rows_is_refused_with_a_cure_that_exists() -> None:
    columns = {"client": ["a", "a"], "age": [50.0, 70.0], "label": [0, 1]}
    features = features_of(from_frame(pa.table(columns), test_fraction=0.0))
    with pytest.raises(
        EvenhandError, match="column 'age' is empty or NaN: drop the row, or fill it in"
    ) as caught:
        encode_table(pa.table({"age": [50.0, None]}), features=features)
    assert "fill=" not in str(caught.value)
