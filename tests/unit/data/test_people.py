"""Tables as users have them: text, several client columns, labels that are words or signs, other separators."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from evenhand.data import Features, FederatedDataset, load
from evenhand.errors import EvenhandError

PEOPLE = """region,group,income,score,smoker,repaid
north,A,30000,1.5,yes,yes
north,B,20000,2.5,no,no
south,A,50000,3.5,no,yes
north,A,10000,4.5,yes,no
south,A,60000,5.5,no,no
south,A,70000,6.5,no,no
"""


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    return path


def people_data(path: Path, **options: object) -> FederatedDataset:
    return load(path, **{"client": ["region", "group"], "label": "repaid", "test_fraction": 0.0, **options})


def features_of(data: FederatedDataset) -> Features:
    """How the columns of a table became inputs."""
    assert data.features is not None
    return data.features


def test_text_is_one_hot_encoded_and_numbers_are_standardised(people: Path) -> None:
    data = people_data(people)
    assert data.client_ids == ("north / A", "north / B", "south / A")
    assert data.classes == ("no", "yes")
    assert features_of(data).inputs == ("income", "score", "smoker = no", "smoker = yes")
    np.testing.assert_allclose(data.train.x[:, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train.x[:, :2].std(0), 1, atol=1e-6)
    np.testing.assert_array_equal(data.train.x[:, 2:], [[0, 1], [0, 1], [1, 0], [1, 0], [1, 0], [1, 0]])
    assert "2 columns of numbers standardised" in data.describe()
    assert "smoker (2)" in data.describe()


def test_features_are_chosen_and_dropped(people: Path) -> None:
    assert features_of(people_data(people, features=["score"])).inputs == ("score",)
    assert features_of(people_data(people, drop=["smoker", "income"])).inputs == ("score",)
    assert features_of(people_data(people, client="region")).inputs[:2] == ("group = A", "group = B")
    inputs = features_of(
        people_data(people, features=["score"], categorical=["score"], standardize=False)
    ).inputs
    assert inputs == tuple(f"score = {i}.5" for i in range(1, 7))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": ["repaid"]}, "'repaid' is the label column and cannot be a feature"),
        ({"features": ["group"]}, "'group' is the client column and cannot be a feature"),
        ({"features": ["score", "score"]}, "named twice"),
        ({"features": ["age"]}, "no feature column 'age'"),
        ({"features": "score"}, r"give a list of names, \['score'\]"),
        ({"features": ["score"], "drop": ["score"]}, "both a feature and to be dropped"),
        ({"features": []}, "no feature columns"),
        ({"drop": ["age"]}, "no column 'age'.*drop="),
        ({"drop": ["repaid"]}, "is the label column, which is not a feature anyway"),
        ({"drop": "score"}, "give a list of names"),
        ({"categorical": ["group"]}, "is the client column"),
        ({"categorical": ["age"]}, "no column 'age'.*categorical="),
        ({"client": ["region", "team"]}, "no client column 'team'.*double quotes"),
        ({"client": ["region", "team"], "clients": 2}, "no client column 'team'"),
        ({"client": ["region", "region"]}, "named twice"),
        ({"client": ["region", "repaid"]}, "both as the label and as a client column"),
        ({"client": []}, "no client column named"),
        ({"label": "Repaid"}, r"no label column 'Repaid' .*\(perhaps you meant 'repaid'\): say"),
        ({"client": ["regoin"]}, r"no client column 'regoin' .*\(perhaps you meant 'region'\): say"),
        ({"drop": ["socre"]}, r"no column 'socre' .*\(perhaps you meant 'score'\): correct drop="),
        ({"features": ["socre"]}, r"no feature column 'socre' .*\(perhaps you meant 'score'\): correct"),
        ({"fill": "zero"}, "fill='zero' is unknown: choose one of mean, median, most-frequent"),
    ],
)
def test_columns_that_do_not_go_together_are_refused(
    options: dict[str, object], words: str, people: Path
) -> None:
    with pytest.raises(EvenhandError, match=words):
        people_data(people, **options)


def test_rows_are_spread_where_no_column_is_named(people: Path) -> None:
    data = people_data(people, client=[], clients=2, regression=False)
    assert data.num_clients == 2
    assert "region = north" in features_of(data).inputs
    # A missing column that was asked for is a mistake, and not a wish to spread the rows.
    with pytest.raises(EvenhandError, match=r"no client column 'town'.*with clients=N alone"):
        people_data(people, client=["town", "team"], clients=2)


def test_a_client_column_may_be_dropped(people: Path, tmp_path: Path) -> None:
    plain, dropped = people_data(people), people_data(people, drop=["region", "group"])
    assert dropped.client_ids == plain.client_ids
    assert features_of(dropped).inputs == features_of(plain).inputs
    # The usual column does not name the clients if it is dropped and the rows are to be spread.
    usual = tmp_path / "usual.csv"
    usual.write_text(PEOPLE.replace("region", "client", 1))
    spread = people_data(usual, client="client", drop=["client"], clients=2)
    # Not "0" and "1", which ids of the dropped column in new rows may be.
    assert spread.client_ids == ("part 0", "part 1")
    assert features_of(spread).inputs[:2] == ("group = A", "group = B")
    assert people_data(usual, client="client", drop=["client"]).client_ids == ("north", "south")


def test_two_clients_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,v,label\nx / y,z,1,0\nx,y / z,2,1\n")
    with pytest.raises(EvenhandError, match="both be called 'x / y / z'"):
        load(path, client=["a", "b"])


def test_numbers_may_name_clients_together(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [True, False], "v": [1, 2], "label": [0, 1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet", client=["a", "b"]).client_ids == ("1 / True", "2 / False")


@pytest.mark.parametrize(
    ("labels", "classes", "y"),
    [
        (["-1", "1", "-1"], ("-1", "1"), [0, 1, 0]),
        (["yes", "no", "no"], ("no", "yes"), [1, 0, 0]),
        (["True", "False", "True"], ("False", "True"), [1, 0, 1]),
        (["2", "10", "9"], ("2", "9", "10"), [0, 2, 1]),
        (["0", "2", "1.0"], None, [0, 2, 1]),
    ],
)
def test_labels_may_be_words_or_signed_numbers(
    labels: list[str], classes: tuple[str, ...] | None, y: list[int], tmp_path: Path
) -> None:
    rows = "".join(f"a,{i},{label}\n" for i, label in enumerate(labels))
    (tmp_path / "t.csv").write_text("client,v,label\n" + rows)
    data = load(tmp_path / "t.csv", test_fraction=0.0)
    assert data.classes == classes
    assert data.train.y.tolist() == y
    if labels[0] == "True":
        parquet.write_table(
            pa.table({"client": ["a"] * 3, "v": [0, 1, 2], "label": [True, False, True]}),
            tmp_path / "t.parquet",
        )
        assert load(tmp_path / "t.parquet", test_fraction=0.0).classes == classes


def test_negative_targets_stay_targets(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,v,label\na,1,-1\na,2,1\n")
    data = load(tmp_path / "t.csv", test_fraction=0.0, regression=True)
    assert (data.train.y.tolist(), data.classes) == ([-1.0, 1.0], None)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_separators_and_line_ends_change_nothing(
    separator: str, ending: str, people: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.tsv"
    other.write_bytes(PEOPLE.replace(",", separator).replace("\n", ending).encode("utf-8-sig"))
    one, two = people_data(people), people_data(other)
    assert one.client_ids == two.client_ids
    np.testing.assert_array_equal(one.train.x, two.train.x)


def test_separators_in_quotes_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('\n\n"a;b;c;d",client,label\n"1",x,0\n')
    data = load(tmp_path / "t.csv", test_fraction=0.0, standardize=False)
    assert features_of(data).inputs == ("a;b;c;d",)
    (tmp_path / "t.csv").write_text('\n\n"a;b;c;d",client,label\n"z1_0",x,0\n7,y,0\n')
    with pytest.raises(EvenhandError, match="line 4, column 'a;b;c;d' holds 'z1_0'"):
        load(tmp_path / "t.csv")


def test_empty_cells_are_refused_with_a_cure_or_filled(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client,v,w,label\na,1,x,0\na,NA,x,1\na,3,,0\na,5,y,1\n")
    with pytest.raises(EvenhandError, match=r"line 3, column 'v' is empty.*fill='mean'"):
        load(path)
    data = load(path, fill="mean", test_fraction=0.0, standardize=False)
    assert features_of(data).inputs == ("v", "w = x", "w = y", "w = (missing)")
    np.testing.assert_array_equal(data.train.x, [[1, 1, 0, 0], [3, 1, 0, 0], [3, 0, 0, 1], [5, 0, 1, 0]])
    assert "filled" in data.describe()


def test_a_column_that_is_empty_at_first_has_the_type_of_its_later_cells(tmp_path: Path) -> None:
    rows = ["a,,,0"] * 8192 + ["a,1.5,x,0", "a,2.5,,0"]  # a block, and the next
    (tmp_path / "t.csv").write_text("\n".join(["client,v,w,label", *rows]))
    data = load(tmp_path / "t.csv", fill="most-frequent", test_fraction=0.0, standardize=False)
    assert features_of(data).inputs == ("v", "w = x")
    assert data.train.x[-2:].tolist() == [[1.5, 1], [2.5, 1]]
    data = load(tmp_path / "t.csv", fill="mean", test_fraction=0.0, standardize=False)
    assert data.train.x[[0, -2]].tolist() == [[2.0, 0, 1], [1.5, 1, 0]]


def test_codes_that_are_categories_keep_their_spelling(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,code,label\na,01,0\na,1,1\na,A1,0\n")
    with pytest.raises(EvenhandError, match=r"'A1' where other rows hold numbers.*categorical="):
        load(tmp_path / "t.csv")
    data = load(tmp_path / "t.csv", categorical=["code"])
    assert features_of(data).inputs[0] == "code = 01"


def test_dates_are_categories_where_asked(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,day,label\na,2020-01-31,0\na,2020-01-31,1\n")
    assert features_of(load(tmp_path / "t.csv", categorical=["day"])).inputs == ("day = 2020-01-31",)


@pytest.mark.parametrize(
    "day",
    [
        *("2020-01-31", "2020/1/31", "31.1.2020", "1/31/20", "31-Jan-2020", "31-jan-20", "31JAN2020"),
        *("31 January 2020", "31. Jan. 2020", "January 31, 2020", "Sept 30 2020", "31 Jan 2020 14:30"),
    ],
)
def test_dates_are_refused_in_the_forms_that_the_page_lists(tmp_path: Path, day: str) -> None:
    (tmp_path / "t.csv").write_text(f'client,day,label\na,"{day}",0\na,"{day}",1\n')
    with pytest.raises(EvenhandError, match=f"column 'day' holds dates such as '{day}'"):
        load(tmp_path / "t.csv")


@pytest.mark.parametrize(
    "text",
    [
        "2020-01",
        "01/2020",
        "14:30",
        "May",
        "March 2020",
        "2009-10",
        "31 Januar 2020",
        "5 marks 20",
        "12-A-2020",
    ],
)
def test_other_texts_are_no_dates(tmp_path: Path, text: str) -> None:
    """Months and seasons are often categories."""
    (tmp_path / "t.csv").write_text(f"client,term,label\na,{text},0\na,{text},1\n")
    assert features_of(load(tmp_path / "t.csv")).inputs == (f"term = {text}",)


def test_options_of_tables_are_refused_elsewhere() -> None:
    refused: list[dict[str, Any]] = [
        {"features": ["a"]},
        {"drop": ["a"]},
        {"categorical": ["a"]},
        {"fill": "mean"},
        {"standardize": False},
        {"client": ["a", "b"]},
    ]
    for options in refused:
        with pytest.raises(EvenhandError, match=r"digits: .* is for tables"):
            load("digits", **options)


def test_many_columns_take_seconds(tmp_path: Path) -> None:
    """The header alone took ten seconds when each name was looked for among all others."""
    names = [f"c{i}" for i in range(40_000)]
    row = ",".join(["0.5", "1.5"] * 20_000)
    (tmp_path / "t.csv").write_text(f"client,label,{','.join(names)}\na,0,{row}\na,1,{row}\n")
    start = time.process_time()
    data = load(tmp_path / "t.csv")
    assert time.process_time() - start < 5
    assert data.feature_shape == (40_000,)


def test_a_block_of_nan_does_not_decide_the_type_of_a_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["client,w,label", *["a,nan,0"] * 8192, "a,x,0"]))
    data = load(tmp_path / "t.csv", fill="mean", test_fraction=0.0)
    assert features_of(data).inputs == ("w = x", "w = (missing)")
