"""``evenhand.data.loaders.new_rows``: rows without labels, read as the data that a model was trained on."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from evenhand.data import Column, Features, encode_table, load
from evenhand.data.loaders import new_rows
from evenhand.errors import EvenhandError

FEATURES = Features(
    (
        Column("age", "number", 50.0, 10.0, fill=60.0),
        Column("work", "category", categories=("a", "b"), fill="b"),
    ),
    True,
)


def write(folder: Path, text: str, name: str = "new.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_table_with_everything(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "client;label;work;age;more\n 7 ;yes;a;70;x\n08;;c;;x\nNA;4.0;;40;x\n7;-1;c;40;x\n",
    )
    rows = new_rows(path, features=FEATURES)
    np.testing.assert_array_equal(rows.x, [[2, 1, 0], [1, 0, 0], [-1, 0, 1], [-1, 0, 0]])
    assert rows.clients is not None and rows.labels is not None
    assert rows.clients.tolist() == ["7", "08", "", "7"]
    assert rows.labels.tolist() == ["yes", "", "4.0", "-1"]
    assert rows.unseen == {"work": (2, "c")}
    np.testing.assert_array_equal(encode_table(path, features=FEATURES), rows.x)


@pytest.mark.parametrize(
    ("ages", "sentence"),
    [
        (
            "1,5\n2,5",
            r"line 2, column 'age' holds '1,5', but the model was trained with numbers in it: write num",
        ),
        (
            "50\nold",
            r"line 3, column 'age' holds 'old' where other rows hold numbers: write numbers, as the model",
        ),
    ],
)
def test_text_in_a_column_of_numbers_is_named(tmp_path: Path, ages: str, sentence: str) -> None:
    path = write(tmp_path, "age;work\n" + ages.replace("\n", ";a\n") + ";a\n")
    with pytest.raises(EvenhandError, match=sentence) as raised:
        new_rows(path, features=FEATURES)
    assert "na=" not in str(raised.value)  # which only training reads


def test_columns_that_are_absent(tmp_path: Path) -> None:
    path = write(tmp_path, "age,work,region\n50,b,north\n")
    rows = new_rows(path, features=FEATURES, client=["region", "group"])
    assert rows.clients is None and rows.labels is None and rows.unseen == {}
    absent = (
        r"2 problems: \(1\) there is no column 'age' among 'region', .*\(2\) there is no column 'work' among"
    )
    with pytest.raises(EvenhandError, match=absent):
        new_rows(write(tmp_path, "region\nnorth\n"), features=FEATURES)


def test_clients_of_several_columns_are_named_as_in_training(tmp_path: Path) -> None:
    path = write(tmp_path, "city,ward,age,work,label\nA,1,5,a,0\nA,2,5,a,1\nB,,5,a,1\n")
    rows = new_rows(path, features=FEATURES, client=["city", "ward"])
    assert rows.clients is not None and rows.clients.tolist() == ["A / 1", "A / 2", ""]
    whole = write(tmp_path, "\n".join(path.read_text().splitlines()[:3]), "old.csv")
    assert load(whole, client=["city", "ward"], test_fraction=0.0).client_ids == ("A / 1", "A / 2")


def test_parquet_names_numbered_clients_as_text_does(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "client": [7.0, None, 8.0],
        "age": [50, 60, None],
        "work": ["a", "b", None],
        "label": [True, None, False],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet")
    rows = new_rows(tmp_path / "new.parquet", features=FEATURES)
    assert rows.clients is not None and rows.labels is not None
    assert rows.clients.tolist() == ["7", "", "8"]
    assert rows.labels.tolist() == ["True", "", "False"]
    np.testing.assert_array_equal(rows.x, [[0, 1, 0], [1, 0, 1], [1, 0, 1]])


def test_archives_and_images(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.savez(tmp_path / "new.npz", pixels=x, owner=np.array([3, 1]), y=np.array([0, 2]))
    rows = new_rows(tmp_path / "new.npz", client="owner", features_array="pixels")
    np.testing.assert_allclose(rows.x, x / 255, atol=1e-7)
    assert rows.clients is not None and rows.labels is not None
    assert (rows.clients.tolist(), rows.labels.tolist()) == (["3", "1"], ["0", "2"])
    header = bytes([0, 0, 8, 3]) + np.array(x.shape, ">u4").tobytes()
    (tmp_path / "new-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + x.tobytes()))
    images = new_rows(tmp_path / "new-images-idx3-ubyte.gz")
    np.testing.assert_array_equal(images.x, rows.x)
    assert images.clients is None and images.labels is None
    labels = bytes([0, 0, 8, 1]) + np.array([2], ">u4").tobytes() + bytes(2)
    (tmp_path / "new-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(EvenhandError, match="give an idx3 file of images"):
        new_rows(tmp_path / "new-labels-idx1-ubyte")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("new.tsv", "age\twork\tclient\tlabel\n70\ta\t7\tyes\n?\tc\t?\t?\n"),
        ("new.data", "age work client label\n70 a 7 yes\n? c ? ?\n"),
        ("new.csv.gz", "age,work,client,label\n70,a,7,yes\n?,c,?,?\n"),
        (
            "new.jsonl",
            '{"age": 70, "work": "a", "client": "7", "label": "yes"}\n'
            '{"age": "?", "work": "c", "client": "?", "label": "?"}\n',
        ),
        ("new.ndjson.gz", '{"age": 70, "work": "a", "client": "7", "label": "yes"}\n{"work": "c"}\n'),
    ],
)
def test_all_formats_with_further_spellings_of_an_empty_cell(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    rows = new_rows(path, features=FEATURES._replace(na=("?",)))
    assert rows.clients is not None and rows.labels is not None
    assert (rows.clients.tolist(), rows.labels.tolist()) == (["7", ""], ["yes", ""])
    np.testing.assert_array_equal(rows.x, [[2, 1, 0], [1, 0, 0]])
    assert rows.unseen == {"work": (1, "c")}


def test_client_ids_are_matched_by_the_rule_of_training(tmp_path: Path) -> None:
    """One id in two spellings of Unicode, with blanks around it, and a whole number in JSON and in text."""
    for name, text in (
        ("a.csv", "age,work,client\n5,a, Zoe\u0308 \n5,a,Zo\u00eb\n5,a,08\n"),
        ("a.jsonl", '{"age": 5, "work": "a", "client": 8.0}\n{"age": 5, "work": "a", "client": 9}\n'),
    ):
        new = write(tmp_path, text, name)
        rows = new_rows(new, features=FEATURES)
        assert rows.clients is not None
        old = tmp_path / f"old-{name}"
        lines = text.splitlines()
        old.write_text(
            "\n".join([lines[0] + ",label", *(f"{line},{i % 2}" for i, line in enumerate(lines[1:]))])
            if name == "a.csv"
            else "\n".join(line.replace("}", f', "label": {i}}}') for i, line in enumerate(lines))
        )
        trained = load(old, test_fraction=0.0).client_ids
        assert set(rows.clients.tolist()) == set(trained)
        assert trained == (("08", "Zo\u00eb") if name == "a.csv" else ("8", "9"))


def test_all_faults_are_in_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, "age,work,label\nold,a,1\n5,a\n,b,0\n")
    strict = Features((Column("age", "number"), Column("work", "category", categories=("a",))), True)
    with pytest.raises(EvenhandError, match="line 3 has 2 cells but the header 3"):
        new_rows(path, features=strict)
    path = write(tmp_path, "age,work,more\nold,,1\n5,a,old\n")
    number = Column("more", "number")
    with pytest.raises(EvenhandError, match=r"2 problems: \(1\) .*'age' holds .*; \(2\) .*'more' holds "):
        new_rows(path, features=Features((*strict.columns, number), True))


def test_parquet_has_further_spellings_of_an_empty_cell(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"client": ["7", "?"], "age": [50, 60], "work": ["a", "?"], "label": ["?", "yes"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet")
    rows = new_rows(tmp_path / "new.parquet", features=FEATURES._replace(na=("?",)))
    assert rows.clients is not None and rows.labels is not None
    assert (rows.clients.tolist(), rows.labels.tolist()) == (["7", ""], ["", "yes"])
    np.testing.assert_array_equal(rows.x, [[0, 1, 0], [1, 0, 1]])
