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


def test_columns_that_are_absent(tmp_path: Path) -> None:
    path = write(tmp_path, "age,work,region\n50,b,north\n")
    rows = new_rows(path, features=FEATURES, client=["region", "group"])
    assert rows.clients is None and rows.labels is None and rows.unseen == {}
    with pytest.raises(EvenhandError, match=r"no column 'age' \(and 1 more\) among 'region'"):
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
