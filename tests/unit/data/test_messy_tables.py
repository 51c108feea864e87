"""Tables as they are found: empty labels, other spellings of an empty cell, many faults at once, packed files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from evenhand.data import FederatedDataset, encode_table, from_frame, load
from evenhand.data._features import Features
from evenhand.data.loaders._table import _nearest_median_of_others
from evenhand.errors import EvenhandError

MESSY = """client,v,w,label
a,1,x,0
,2,x,1
a,3,y,
b,?,y,1
b,-999,x,0
null,5,x,
b,7,-999,1
"""


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    return path


def features_of(data: FederatedDataset) -> Features:
    """How the columns of a table became inputs."""
    assert data.features is not None
    return data.features


def assert_same(one: FederatedDataset, other: FederatedDataset) -> None:
    assert (one.client_ids, one.classes) == (other.client_ids, other.classes)
    assert [c.inputs for c in features_of(one).columns] == [c.inputs for c in features_of(other).columns]
    for first, second in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(first.x, second.x)
        np.testing.assert_array_equal(first.y, second.y)


def test_a_column_in_another_unit_at_one_client_is_noted() -> None:
    """Creatinine in umol/l at one of six hospitals; what differs by nature, at many, or is mostly 0 is not noted."""
    rng = np.random.default_rng(0)
    hospital = np.repeat([f"h{k}" for k in range(6)], 30)
    creatinine = rng.lognormal(0.1, 0.3, 180)
    unlike = rng.lognormal(0, 0.1, 180) * np.repeat([1, 2, 4, 5, 6, 9], 30)
    scattered = rng.lognormal(0, 0.1, 180) * np.repeat([1, 1, 1, 1, 50, 60], 30)
    rare = (rng.random(180) < np.repeat([0, 0, 0, 0, 0, 0.9], 30)) * rng.lognormal(2, 1, 180)
    columns: dict[str, Any] = {
        "client": hospital,
        "creatinine": np.where(hospital == "h3", 88.4, 1.0) * creatinine,
        "grams": np.where(hospital == "h1", 0.001, 1.0) * creatinine,
        "unlike": unlike,
        "scattered": scattered,
        "rare": rare,
        "label": rng.integers(0, 2, 180),
    }
    notes = from_frame(pa.table(columns)).notes
    assert len(notes) == 2 and all("compare the units" in note for note in notes)
    assert notes[0].startswith("Column 'creatinine' may be in another unit at client 'h3' (median ")
    assert notes[1].startswith("Column 'grams' may be in another unit at client 'h1' (median 0.001")
    columns["creatinine"], columns["grams"] = creatinine, creatinine
    assert from_frame(pa.table(columns)).notes == ()


def test_numbers_around_0_are_compared_without_their_signs() -> None:
    """Medians of standard normal numbers are all near 0, and their ratios anything; of the sizes they are alike."""
    rng, notes = np.random.default_rng(1), list[tuple[str, ...]]()
    client = np.repeat([f"p{k}" for k in range(20)], 50)
    for factor in (*[1.0] * 10, 10_000.0):
        values = rng.normal(size=1000) * np.where(client == "p9", factor, 1.0)
        notes.append(
            from_frame(pa.table({"client": client, "x": values, "label": rng.integers(0, 2, 1000)})).notes
        )
    assert notes[:10] == [()] * 10
    [note] = notes[10]
    assert "at client 'p9' (median " in note and note.endswith(
        "over training rows, of the numbers without their signs."
    )


def notes_of(clients: int, factor: float, *, seed: int = 0) -> tuple[str, ...]:
    """What is noted of lognormal numbers whose first client has them in another unit."""
    rng = np.random.default_rng(seed)
    client, label = np.repeat([f"h{k}" for k in range(clients)], 100), rng.integers(0, 2, 100 * clients)
    values = rng.lognormal(0, 0.3, 100 * clients) * np.where(client == "h0", factor, 1.0)
    return from_frame(pa.table({"client": client, "creatinine": values, "label": label})).notes


@pytest.mark.parametrize("clients", [3, 4, 5, 8])
@pytest.mark.parametrize("factor", [12.0, 20.0, 88.4, 1000.0])
def test_few_clients_are_enough_to_notice_another_unit(clients: int, factor: float) -> None:
    """Of three, the others of a good client are a good one and the bad one, whose mean is far from both."""
    for number in (factor, 1 / factor):
        [note] = notes_of(clients, number)
        assert note.count("(median ") == 1 and " at client 'h0' (median " in note


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
def test_clients_in_one_unit_are_not_noted(clients: int) -> None:
    """Up to a factor of 3 between them; two clients cannot tell which of them is in another unit."""
    for seed in range(10):
        assert notes_of(clients, 1.0, seed=seed) == notes_of(clients, 3.0, seed=seed) == ()
    assert notes_of(2, 88.4) == ()


@pytest.mark.parametrize("count", [3, 4, 7, 8])
def test_the_median_of_the_others_is_that_without_oneself(count: int) -> None:
    """Of an even number of others it is any number between the middle two: the nearest one to oneself."""
    values = np.random.default_rng(count).integers(0, 5, count).astype(float)
    expected = list[float]()
    for k, value in enumerate(values):
        others = np.delete(values, k)
        low, high = (np.quantile(others, 0.5, method=method) for method in ("lower", "higher"))
        expected.append(min(max(value, low), high))
    np.testing.assert_array_equal(_nearest_median_of_others(values), expected)


def test_rows_without_a_label_or_a_client_are_dropped_and_counted(messy: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"test_fraction": 0.0, "fill": "median", "na": ["?", "-999"]}
    with pytest.raises(EvenhandError, match="with all 2 such rows"):
        load(messy, **options)
    data = load(messy, drop_empty=True, **options)
    assert data.notes == ("Dropped 3 of 7 rows: 2 without a label, 2 without a client.",)
    assert data.notes[0] in data.describe()
    # As if only the other rows were there.
    kept = [line for i, line in enumerate(MESSY.splitlines()) if i not in (2, 3, 6)]
    (tmp_path / "kept.csv").write_text("\n".join(kept))
    clean = load(tmp_path / "kept.csv", **options)
    assert_same(data, clean)
    assert clean.notes == ()
    assert_same(load(tmp_path / "kept.csv", drop_empty=True, **options), clean)


def test_places_after_a_dropped_row_are_those_in_the_file(messy: Path) -> None:
    messy.write_text(MESSY.replace("?", "1").replace("b,7,-999,1", "b,7,,1"))
    with pytest.raises(EvenhandError, match="line 8, column 'w' is empty"):
        load(messy, drop_empty=True)


def test_a_table_of_which_nothing_is_left_is_refused(messy: Path) -> None:
    messy.write_text("client,v,label\na,1,\n,2,1\n")
    with pytest.raises(EvenhandError, match="all 2 rows lack a label or a client"):
        load(messy, drop_empty=True)


def test_other_spellings_of_an_empty_cell_are_empty_everywhere(messy: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"test_fraction": 0.0, "fill": "mean", "drop_empty": True}
    data = load(messy, na=["?", "-999"], **options)
    assert features_of(data).inputs == ("v", "w = x", "w = y", "w = (missing)")
    expected = MESSY.replace("?", "").replace("-999", "")
    (tmp_path / "plain.csv").write_text(expected)
    assert_same(data, load(tmp_path / "plain.csv", **options))
    # Numbers are compared as numbers, labels and clients count, too, and so do new rows.
    (tmp_path / "t.csv").write_text("client,v,label\na,1,0\na,-999.0,1\n9,3,1\nb,5,-999\nb,7,0\n")
    data = load(tmp_path / "t.csv", na=["-999", "9"], **options)
    assert data.notes == ("Dropped 2 of 5 rows: 1 without a label, 1 without a client.",)
    assert features_of(data).columns[0].fill == 4.0
    (tmp_path / "new.csv").write_text("v\n-999\n4\n-999.0\n")
    new = encode_table(tmp_path / "new.csv", features=features_of(data))
    assert new[0] == new[1] == new[2]
    assert Features.from_json(json.loads(json.dumps(features_of(data).to_json()))) == features_of(data)


@pytest.mark.parametrize("word", ["NaN", "nan", "NAN", "-nan"])
@pytest.mark.parametrize("empty", [0, 5, 11])
def test_words_for_nan_are_empty_cells_of_text_as_well(word: str, empty: int, tmp_path: Path) -> None:
    """As feature and as label, wherever the first of them is."""
    options: dict[str, Any] = {"fill": "mean", "drop_empty": True, "test_fraction": 0.0}

    def read(cell: str) -> Any:
        rows = [(cell if i == empty else "pq"[i % 2], "yn"[i // 2 % 2]) for i in range(12)]
        rows.append(("p", cell))
        table = "".join(f"{'ab'[i % 2]},{text},{label}\n" for i, (text, label) in enumerate(rows))
        (tmp_path / "t.csv").write_text(f"client,text,label\n{table}")
        return load(tmp_path / "t.csv", **options)

    assert_same(read(word), read(""))
    assert read(word).notes == ("Dropped 1 of 13 rows: 1 without a label.",)


@pytest.mark.parametrize("empty", ["", "NaN", "?"])
def test_true_and_false_beside_empty_cells_are_numbers(empty: str, tmp_path: Path) -> None:
    """As in a table in memory; new rows may have such a cell, too."""
    flags = ["True", "False", empty, "true"]
    rows = [f"{'ab'[i // 4]},{flags[i % 4]},{i % 3 % 2}\n" for i in range(8)]
    (tmp_path / "t.csv").write_text("client,flag,label\n" + "".join(rows))
    options: dict[str, Any] = {"fill": "mean", "test_fraction": 0.0, "standardize": False}
    data = load(tmp_path / "t.csv", na=["?"], **options)
    assert features_of(data).inputs == ("flag",)
    np.testing.assert_allclose(data.train.x[:4, 0], [1, 0, 2 / 3, 1], rtol=1e-6)
    columns = {
        "client": ["a", "b"] * 4,
        "flag": [True, False, None, True] * 2,
        "label": [0, 1] * 4,
    }
    assert features_of(from_frame(pa.table(columns), **options)).inputs == ("flag",)
    (tmp_path / "new.csv").write_text(f"client,flag\na,{empty}\na,False\n")
    np.testing.assert_allclose(
        encode_table(tmp_path / "new.csv", features=features_of(data))[:, 0], [2 / 3, 0], rtol=1e-6
    )


def test_text_beside_true_and_false_stays_text(tmp_path: Path) -> None:
    rows = [f"{'ab'[i // 4]},{('True', 'False', 'unknown', '')[i % 4]},{i % 2}\n" for i in range(8)]
    (tmp_path / "t.csv").write_text("client,flag,label\n" + "".join(rows))
    data = load(tmp_path / "t.csv", fill="mean", test_fraction=0.0)
    names = ("False", "True", "unknown", "(missing)")
    assert features_of(data).inputs == tuple(f"flag = {name}" for name in names)


def test_tables_in_memory_take_the_same_options() -> None:
    columns = {
        "client": [1, 1, -999, 2, None],
        "v": [1.0, -999.0, 3.0, 5.0, 7.0],
        "w": ["x", "?", "y", "x", "x"],
        "label": ["no", "yes", "no", "?", "no"],
    }
    data = from_frame(pa.table(columns), na=["?", "-999"], drop_empty=True, fill="median", test_fraction=0.0)
    assert data.client_ids == ("1",)
    assert features_of(data).inputs == ("v", "w = x", "w = (missing)")
    assert data.notes == ("Dropped 3 of 5 rows: 1 without a label, 2 without a client.",)
    with pytest.raises(EvenhandError, match=r"row 4, column 'client' is empty.*as drop_empty=True does\."):
        from_frame(pa.table(columns))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_data_frames_take_the_same_options(kind: str) -> None:
    library = pytest.importorskip(kind)
    frame = library.DataFrame({"client": [1.0, None, 2.0], "v": [-999, 2, 3], "label": ["no", "yes", "no"]})
    data = from_frame(frame, na="-999", drop_empty=True, fill="mean", test_fraction=0.0)
    assert data.client_ids == ("1", "2")
    assert features_of(data).columns[0].fill == 3.0


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "client,v,w,d,label\na,1,,2020-01-31,0\n,oops,3,2020-02-01,1\na,2\nb,4,,2020-02-02,\nb,5\n"
    )
    with pytest.raises(EvenhandError) as caught:
        load(path)
    words = str(caught.value)
    assert words.startswith(f"{path} has 6 problems: (1) ") and words.endswith(".") and "\n" not in words
    assert words.count(str(path)) == 1
    for problem in (
        "line 4 has 2 cells but the header 5, and 1 more line differs from it",
        "line 3, column 'v' holds 'oops' where other rows hold numbers",
        "line 5, column 'label' is empty",
        "line 2, column 'w' is empty or NaN",
        "in all, 2 cells are empty, in 'w' (2)",
        "column 'd' holds dates",
        "line 3, column 'client' is empty",
    ):
        assert problem in words


def spoilt(path: Path, suffix: str) -> Path:
    """A table with two columns of numbers and text, and two faulty weights."""
    names = ("client", "a", "t", "label", "w")
    rows = [
        ("h1", 1.5, "u", "yes", 1),
        ("h1", "?", "v", "no", 2),
        ("h2", 2.5, 3, "yes", 0.5),
        ("h2", 4.5, "u", "no", 1),
        ("h3", "abc", 7, "yes", -1),
        ("h3", 1.0, "v", "no", 1),
    ]
    path = path / f"t{suffix}"
    lines = [",".join(map(str, row)) for row in (names, *rows)]
    if suffix == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(("suffix", "head"), [(".csv", 1), (".jsonl", 0)])
def test_all_faulty_cells_of_a_column_are_reported(suffix: str, head: int, tmp_path: Path) -> None:
    with pytest.raises(EvenhandError) as caught:
        load(spoilt(tmp_path, suffix), weight="w")
    words = str(caught.value)
    for problem in (
        f"line {2 + head}, column 'a' holds '?' where other rows hold numbers (also 'abc' in line {5 + head}): ",
        f"line {1 + head}, column 't' holds 'u' where other rows hold numbers (also 'v' in line {2 + head}, 'u' in "
        f"line {4 + head}, 'v' in line {6 + head}): ",
        f"line {3 + head}, column 'w' holds 0.5 (also -1 in line {5 + head}): ",
    ):
        assert problem in words


def test_of_many_faulty_cells_the_first_ten_are_listed_over_all_blocks(tmp_path: Path) -> None:
    """20,000 rows are several blocks; each of the 14 faulty cells is to be counted."""
    cells = ["x" if i % 1500 == 7 else str(i % 5) for i in range(20_000)]
    lines = [f"{'ab'[i % 2]},{cell},{i % 2}" for i, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["client,v,label", *lines]))
    with pytest.raises(EvenhandError) as caught:
        load(tmp_path / "t.csv")
    expected = [f"'x' in line {i + 2}" for i in range(1507, 20_000, 1500)]
    assert (
        f"line 9, column 'v' holds 'x' where other rows hold numbers (also {', '.join(expected[:9])} and 4 more"
        in (str(caught.value))
    )

    cells = ["7" if i in (9000, 12_000) else "xyz"[i % 3] for i in range(20_000)]
    lines = [f"{'ab'[i % 2]},{cell},{i % 2}" for i, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["client,v,label", *lines]))
    with pytest.raises(
        EvenhandError, match=r"line 9002, .* '7' where other rows hold text \(also '7' in line 12002\):"
    ):
        load(tmp_path / "t.csv")


def test_of_a_long_column_of_ids_the_count_is_called_a_least_one(tmp_path: Path) -> None:
    # A file is read in blocks of 8,192 rows, and an id is found out in the first.
    (tmp_path / "t.csv").write_text("a,id,label\n" + "".join(f"{i},P{i},{i % 2}\n" for i in range(9000)))
    with pytest.raises(EvenhandError, match="column 'id' holds at least 8,192 different texts such as 'P0'"):
        load(tmp_path / "t.csv", clients=2, label="label")


def test_infinite_numbers_of_a_column_are_all_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,v,label\na,1,0\na,1e99,1\nb,2,0\nb,-1e50,1\n")
    words = r"line 3, .* holds 1e\+99, which is not a finite 32-bit number \(also -1e\+50 in line 5\): repair"
    with pytest.raises(EvenhandError, match=words):
        load(tmp_path / "t.csv")


def test_ten_faults_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(13)]
    rows = ["a,0," + ",".join(["1"] * 13), "a,1," + ",".join(["x"] * 13)]
    (tmp_path / "t.csv").write_text("\n".join(["client,label," + ",".join(names), *rows]))
    with pytest.raises(
        EvenhandError, match=r"has 13 problems: .*\(10\) .*column 'c9'.*; and 3 more\.$"
    ) as caught:
        load(tmp_path / "t.csv")
    assert "'c10'" not in str(caught.value)


def test_all_faults_of_the_options_are_reported_at_once(messy: Path) -> None:
    with pytest.raises(EvenhandError) as caught:
        load(messy, client="who", label="answer", drop=["x"], categorical=["y"])
    for words in (
        "4 problems",
        "label column 'answer'",
        "client column 'who'",
        "correct drop=",
        "correct categorical=",
    ):
        assert words in str(caught.value)


def test_faults_of_new_rows_are_reported_at_once(tmp_path: Path) -> None:
    table = pa.table({"client": ["a", "a"], "v": [1, 2], "w": [1, 3], "u": [0, 1], "label": [0, 1]})
    features = features_of(from_frame(table, test_fraction=0))
    (tmp_path / "new.csv").write_text("v,w,u\n1,,1\nx,2,1\n")
    with pytest.raises(EvenhandError, match="'v' holds 'x' where"):
        encode_table(tmp_path / "new.csv", features=features)
    (tmp_path / "new.csv").write_text("v,w,u\n1,,a\n2,2,b\n")
    with pytest.raises(EvenhandError, match=r"2 problems.*line 2, column 'w' is empty.*'u' holds 'a', but"):
        encode_table(tmp_path / "new.csv", features=features)
    with pytest.raises(EvenhandError, match=r"2 problems.*no column 'w'.*no column 'u'"):
        encode_table(pa.table({"v": [1]}), features=features)


PLAIN = "client,v,w,label\na,1,x,0\nb,2,y,1\na,3,x,1\nb,4,y,0\n"


def test_one_table_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN)
    expected = load(tmp_path / "t.csv", test_fraction=0.5)
    rows = [line.split(",") for line in PLAIN.splitlines()[1:]]
    objects = [{"client": a, "v": int(b), "w": c, "label": int(d)} for a, b, c, d in rows]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, objects)) + "\n\n")
    (tmp_path / "t.tsv").write_text(PLAIN.replace(",", "\t"))
    (tmp_path / "t.data").write_text(PLAIN.replace(",", "   "))
    for name in ("t.csv", "t.tsv", "t.jsonl", "t.data"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            assert_same(load(path, test_fraction=0.5), expected)
            np.testing.assert_array_equal(
                encode_table(path, features=features_of(expected)),
                encode_table(tmp_path / "t.csv", features=features_of(expected)),
            )


@pytest.mark.parametrize("separator", [",", ", ", "\t", "   "])
def test_data_files_without_a_header_have_numbered_columns(separator: str, tmp_path: Path) -> None:
    """As in UCI's archive, where ``auto-mpg.data`` has runs of blanks, a tab and quoted names."""
    rows = [
        ["18.0", "8", '"chevrolet chevelle"', "1"],
        ["15.0", "4", '"buick skylark"', "1"],
        ["9.5", "8", '"x"', "3"],
    ]
    text = "".join(separator.join(row) + "\n" for row in rows)
    if separator == "   ":
        text = text.replace('   "', ' \t"')
    (tmp_path / "t.data").write_text(text)
    data = load(tmp_path / "t.data", client="4", label="1", drop=["3"], regression=True, test_fraction=0)
    assert features_of(data).inputs == ("2",)
    assert data.client_ids == ("1", "3")
    np.testing.assert_array_equal(data.train.y, np.array([18, 15, 9.5], np.float32))
    names = load(tmp_path / "t.data", client="3", label="2", features=["1"], test_fraction=0)
    assert names.client_ids == ("buick skylark", "chevrolet chevelle", "x")
    with pytest.raises(EvenhandError, match="no label column 'label' among '1', '2', '3', '4'"):
        load(tmp_path / "t.data", client="4")


def test_lines_of_json_may_lack_entries(tmp_path: Path) -> None:
    lines = [
        '{"client": "a", "v": 1, "label": true}',
        '{"label": false, "w": 4, "client": "a", "v": null}',
        '{"client": "b", "v": 3, "w": NaN, "label": true}',
        '{"client": "b", "v": 5, "w": 8, "label": true}',
        '{"client": "b", "v": 7, "label": true}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    data = load(tmp_path / "t.jsonl", fill="mean", test_fraction=0.0, standardize=False)
    np.testing.assert_array_equal(data.train.x, [[1, 6], [4, 4], [3, 6], [5, 8], [7, 6]])
    assert data.classes == ("False", "True")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.jsonl", b'{"client": "a"}\n{"client": \n', "line 2 is not JSON"),
        ("t.jsonl", b"[1, 2]\n", "line 1 is not a JSON object"),
        ("t.jsonl", b"{}\n", "line 1 is not a JSON object"),
        ("t.jsonl", b"\n", "the file is empty"),
        ("t.jsonl", b'{"client": "a", "client": "b"}\n', "names column 'client' twice"),
        ("t.jsonl", b'{"client": "\xff"}\n', "not UTF-8"),
        ("t.jsonl", b'{"client": "a", "v": [1], "label": 1}\n', "column 'v' holds list objects"),
        ("t.csv.gz", b"client,v,label\n", "not a gzip file"),
        ("t.csv.gz", gzip.compress(PLAIN.encode(), mtime=0)[:-12], "not a gzip file, or a damaged one"),
        ("t.parquet.gz", b"", "suffix '.gz' is unknown"),
        ("t.npz.gz", b"", "suffix '.gz' is unknown"),
    ],
)
def test_damaged_files_are_refused(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EvenhandError, match=words):
        load(tmp_path / name)


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"client,v,label\n" + b"a,1,0\n" * 50_000_000, 1))
    with pytest.raises(EvenhandError, match="unpack to"):
        load(tmp_path / "t.csv.gz")


def test_the_scale_of_targets_is_kept_and_they_stay_in_their_units(tmp_path: Path) -> None:
    rows = [f"a,{i},{1000.0 * i * i}" for i in range(10)]
    (tmp_path / "t.csv").write_text("\n".join(["client,v,price", *rows]))
    options: dict[str, Any] = {"label": "price", "regression": True}
    data = load(tmp_path / "t.csv", **options)
    y = np.asarray(data.train.y, np.float64)
    assert len(y) == 8 and y.max() > 10_000
    target = features_of(data).target
    assert target is not None and target.name == "price"
    assert target.mean == pytest.approx(y.mean())
    assert target.deviation == pytest.approx(y.std())
    assert "Training standardises the targets" in data.describe()
    assert Features.from_json(features_of(data).to_json()) == features_of(data)
    assert features_of(load(tmp_path / "t.csv", standardize_target=False, **options)).target is None
    assert features_of(load(tmp_path / "t.csv", label="v")).target is None
    table = pa.table({"client": ["a"] * 2, "v": [1, 2], "label": [5.0, 5.0]})
    target = features_of(from_frame(table, regression=True)).target
    assert target is not None and target[1:] == (5.0, 1.0)
    assert features_of(from_frame(table, regression=True, standardize_target=False)).target is None


def test_features_of_earlier_versions_are_read() -> None:
    entry = {"name": "v", "kind": "number", "mean": 1.0, "deviation": 2.0, "fill": None}
    features = Features.from_json({"standardized": True, "columns": [entry]})
    assert (features.target, features.na) == (None, ())


def test_options_of_tables_only_are_refused_elsewhere() -> None:
    of_tables = {"standardize_target": False, "drop_empty": True, "na": ["?"], "weight": "count"}
    for name, value in of_tables.items():
        option: dict[str, Any] = {name: value}
        with pytest.raises(EvenhandError, match=r"digits: .* is for tables"):
            load("digits", **option)


def weighted(folder: Path, weights: list[Any], **options: Any) -> FederatedDataset:
    """Ten rows of each of two clients with these weights, over and over."""
    n = 20
    rows = [f"{'ab'[i % 2]},{i * i % 11},{i % 3},{weights[i % len(weights)]}" for i in range(n)]
    (folder / "w.csv").write_text("\n".join(["client,v,label,count", *rows]))
    return load(folder / "w.csv", weight="count", **options)


def test_a_row_of_weight_w_is_w_examples(tmp_path: Path) -> None:
    """The oracle: the split of the table without weights, of which every row is written that many times."""
    data = weighted(tmp_path, [1, 3, 2], standardize=False)
    plain = load(tmp_path / "w.csv", features=["v", "count"], standardize=False)
    assert features_of(data).inputs == ("v",)
    for part, whole in ((data.train, plain.train), (data.test, plain.test)):
        counts = whole.x[:, 1].astype(int)
        np.testing.assert_array_equal(part.x[:, 0], np.repeat(whole.x[:, 0], counts))
        np.testing.assert_array_equal(part.y, np.repeat(whole.y, counts))
        client = np.repeat([0, 1], whole.sizes)
        np.testing.assert_array_equal(part.sizes, np.bincount(client, counts))
    x = weighted(tmp_path, [1, 3, 2]).train.x
    assert abs(x.mean()) < 1e-6 and x.std() == pytest.approx(1.0)


def test_a_row_of_weight_0_is_no_example(tmp_path: Path) -> None:
    data = weighted(tmp_path, [1, 0, 1, 1])
    assert data.notes == ("Dropped 5 of 20 rows: 5 of weight 0.",)
    assert data.train.rows + data.test.rows == 15


def test_a_weight_may_be_missing_by_another_spelling(tmp_path: Path) -> None:
    data = weighted(tmp_path, [1, "-999.0"], na="-999", drop_empty=True)
    assert data.notes == ("Dropped 10 of 20 rows: 10 without a weight.",)


def test_weights_are_read_from_tables_in_memory(tmp_path: Path) -> None:
    data = weighted(tmp_path, [1, 3, 2])
    columns = {
        "client": ["a", "b"] * 10,
        "v": [i * i % 11 for i in range(20)],
        "label": [i % 3 for i in range(20)],
    }
    table = pa.table({**columns, "count": [[1, 3, 2][i % 3] for i in range(20)]})
    assert_same(from_frame(table, weight="count"), data)
    parquet.write_table(table, tmp_path / "w.parquet")
    assert_same(load(tmp_path / "w.parquet", weight="count"), data)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (
            [1, 0.5],
            "line 3, column 'count' holds 0.5 .also 0.5 in line 5, .*0.5 in line 21.: a weight is the number of",
        ),
        ([1, -1], "line 3, column 'count' holds -1"),
        ([1, "inf"], "line 3, column 'count' holds inf"),
        ([1, 10**8], r"line 3, column 'count' holds 1e\+08"),
        ([10**7], "makes 200,000,000 examples of 20 rows"),
        ([1, ""], "line 3, column 'count' is empty: give the row a weight or drop it, as drop_empty=True"),
        (["x", "y"], "column 'count' holds text, not weights"),
        ([0], "all 20 rows lack a label, a client or a weight"),
    ],
)
def test_what_is_no_weight_is_refused(weights: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(EvenhandError, match=words):
        weighted(tmp_path, weights)
    if weights == [1, ""]:
        assert (
            weighted(tmp_path, weights, drop_empty=True)
            .notes[0]
            .startswith("Dropped 10 of 20 rows: 10 without")
        )


@pytest.mark.parametrize(
    ("weight", "words"),
    [("cuont", "perhaps you meant 'count'"), ("label", "is the label column"), ("client", "client")],
)
def test_a_weight_column_must_be_another_one(weight: str, words: str, tmp_path: Path) -> None:
    weighted(tmp_path, [1])
    with pytest.raises(EvenhandError, match=words):
        load(tmp_path / "w.csv", weight=weight)
    with pytest.raises(EvenhandError, match="is the weight column"):
        load(tmp_path / "w.csv", weight="count", drop=["count"])


def test_labels_are_checked_beside_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,v,label\na,1,\na,2,0.5\na,3,1\n")
    with pytest.raises(
        EvenhandError, match=r"2 problems.*line 2, column 'label' is empty.*line 3.*regression=True"
    ):
        load(tmp_path / "t.csv")


def test_faults_of_the_header_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,,v,v,label\na,1,2,3,0\n")
    with pytest.raises(
        EvenhandError, match=r"2 problems: \(1\) column 2 has no name.*\(2\).*column 'v' twice"
    ):
        load(tmp_path / "t.csv")


def test_a_text_for_an_empty_cell_may_stand_among_numbers(tmp_path: Path) -> None:
    rows = [
        {"client": 1, "v": 1.0, "label": 0},
        {"client": "?", "v": 2.0, "label": 1},
        {"client": 1, "v": "?", "label": 1},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load(
        tmp_path / "t.jsonl", na=["?"], drop_empty=True, fill="mean", test_fraction=0, standardize=False
    )
    assert data.client_ids == ("1",)
    np.testing.assert_array_equal(data.train.x, [[1], [1]])


@pytest.mark.parametrize("kind", ["jsonl", "object", "category", "polars"])
def test_a_blank_text_among_numbers_is_an_empty_cell(kind: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"client": ["a", "a", "b"], "v": [1.0, " ", 3.0], "label": [0, 1, 0]}
    source: Any = tmp_path / "t.jsonl"
    if kind == "jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        source.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "polars":
        polars = pytest.importorskip("polars")
        source = polars.DataFrame({**columns, "v": polars.Series(columns["v"], dtype=polars.Object)})
    else:
        source = pytest.importorskip("pandas").DataFrame(columns).astype({"v": kind})
    read = load if kind == "jsonl" else from_frame
    data = read(source, fill="most-frequent", standardize=False, test_fraction=0)
    expected = [[1, 0], [1, 0], [0, 1]] if kind == "category" else [[1], [1], [3]]
    assert data.train.x.tolist() == expected
