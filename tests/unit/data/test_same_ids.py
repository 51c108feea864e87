"""One rule, in every reader, for what makes two client ids the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from test_frames import Dataset

from evenhand.data import FederatedDataset, from_arrays, from_frame, load, load_leaf
from evenhand.data.partition import by_column
from evenhand.errors import EvenhandError

COMPOSED, DECOMPOSED = "Caf\u00e9", "Cafe\u0301"


def by_reader(ids: list[Any], folder: Path) -> dict[str, FederatedDataset]:
    """The data set that each reader makes of rows with these ids, one for each row."""
    n = len(ids)
    columns = {"client": ids, "v": [float(i) for i in range(n)], "label": [i % 2 for i in range(n)]}
    lines = [f"{a},{b},{c}" for a, b, c in zip(*columns.values(), strict=True)]
    (folder / "t.csv").write_text("\n".join(["client,v,label", *lines]))
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    np.savez(folder / "t.npz", x=np.ones((n, 1)), y=columns["label"], client=np.array(ids))
    files = {
        name: load(folder / name, test_fraction=0.0) for name in ("t.csv", "t.jsonl", "t.parquet", "t.npz")
    }
    return {
        **files,
        "arrays": from_arrays(np.ones((n, 1)), columns["label"], ids, test_fraction=0.0),
        "frame": from_frame(pa.table(columns), test_fraction=0.0),
    }


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([COMPOSED, DECOMPOSED, "b"], ("Caf\u00e9", "b")),
        (["b ", "a", "b"], ("a", "b")),
        ([10, 9, 10], ("9", "10")),
        ([1.5, 10.5, 9.5], ("1.5", "9.5", "10.5")),
        (["1.5", "10.5", "9.5"], ("1.5", "9.5", "10.5")),
        (["b", "B", "b"], ("B", "b")),
    ],
)
def test_all_readers_agree(ids: list[Any], expected: tuple[str, ...], tmp_path: Path) -> None:
    for name, data in by_reader(ids, tmp_path).items():
        assert data.client_ids == expected, name
    assert by_column(ids).max() + 1 == len(expected)


def test_two_columns_of_ids_follow_the_rule(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"a,b,v,label\n{COMPOSED},x ,1,0\n{DECOMPOSED},x,2,1\n")
    assert load(tmp_path / "t.csv", client=["a", "b"], test_fraction=0).client_ids == ("Caf\u00e9 / x",)


def test_whole_floats_and_integers_are_one_client() -> None:
    x, y = np.ones((3, 1)), [0, 1, 0]
    for ids in ([1, 1.0, 2.5], np.array([1, 1.0, 2.5]), np.array([1, 1.0, 2.5], object)):
        assert from_arrays(x, y, ids, test_fraction=0).client_ids == ("1", "2.5")


@pytest.mark.parametrize(
    ("ids", "kind"),
    [([1, "1", "b"], "int"), ([1.0, "1", "b"], "float"), ([1, True, 2], "bool"), ([True, 1, 2], "bool")],
)
def test_ids_of_several_types_are_refused(ids: list[Any], kind: str, tmp_path: Path) -> None:
    """Whether ``1``, ``"1"`` and ``True`` are one client only their owner knows."""
    with pytest.raises(EvenhandError, match=f"type {kind} where client ids have to be all"):
        from_arrays(np.ones((3, 1)), [0, 1, 0], ids)
    rows = [{"client": client, "v": 1, "label": 0} for client in ids]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(EvenhandError, match=f"line ., column 'client' is a value of type {kind}"):
        load(tmp_path / "t.jsonl")


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_of_objects_follow_the_rule(kind: str) -> None:
    library = pytest.importorskip(kind)

    def frame(ids: list[Any]) -> Any:
        column = library.Series(ids, dtype=object if kind == "pandas" else library.Object)
        return library.DataFrame({"client": column, "v": [1.0, 2.0, 3.0], "label": [0, 1, 0]})

    assert from_frame(frame([1, 1.0, 2]), test_fraction=0).client_ids == ("1", "2")
    assert from_frame(frame([COMPOSED, DECOMPOSED, "b"]), test_fraction=0).client_ids == ("Caf\u00e9", "b")
    with pytest.raises(EvenhandError, match="row 0, column 'client' is a value of type int"):
        from_frame(frame([1, "1", 2]))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "pandas", "polars"])
def test_blanks_around_the_ids_of_several_columns_make_no_other_client(kind: str, tmp_path: Path) -> None:
    rows = [{"a": name, "b": "y", "v": v, "label": v % 2} for v, name in enumerate(["x ", "x", " x"])]
    path = tmp_path / f"t.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "csv":
        path.write_text("\n".join(["a,b,v,label", *(",".join(map(str, row.values())) for row in rows)]))
    frame = path if kind in ("jsonl", "csv") else pytest.importorskip(kind).DataFrame(rows)
    data = (load if frame is path else from_frame)(frame, client=["a", "b"], test_fraction=0)
    assert data.client_ids == ("x / y",)


@pytest.mark.parametrize("value", [[1], {"id": 1}])
def test_a_list_or_an_object_of_json_is_no_id(value: Any, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"client": value, "v": 1, "label": 0}))
    with pytest.raises(EvenhandError, match="line 1, column 'client' is a value of type list where client"):
        load(tmp_path / "t.jsonl")


def test_named_classes_name_clients() -> None:
    table = pa.table({"ward": [1, 0, 1, None], "v": [1, 2, 3, 4], "label": [0, 1, 0, 1]})
    dataset = Dataset(table, {"ward": ["north", "south"]})
    with pytest.raises(EvenhandError, match="row 3, column 'ward' is empty"):
        from_frame(dataset, client="ward")
    data = from_frame(dataset, client="ward", test_fraction=0, drop_empty=True)
    assert data.client_ids == ("north", "south")
    assert data.train.sizes.tolist() == [1, 2]


def test_users_of_leaf_follow_the_rule(tmp_path: Path) -> None:
    rows = {"x": [[0.5]], "y": [0]}
    content = {"users": [COMPOSED, DECOMPOSED], "user_data": {COMPOSED: rows, DECOMPOSED: rows}}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(EvenhandError, match="is listed twice"):
        load_leaf(tmp_path / "a.json")
    for part, name in (("train", COMPOSED), ("test", DECOMPOSED)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(json.dumps({"users": [name], "user_data": {name: rows}}))
    assert load_leaf(tmp_path / "train", tmp_path / "test").client_ids == ("Caf\u00e9",)


def test_a_data_set_made_by_hand_follows_the_rule() -> None:
    good = from_arrays(np.ones((3, 1)), [0, 1, 0], ["a", "b", "a"])
    assert FederatedDataset(good.train, good.valid, good.test, (DECOMPOSED, "b")).client_ids[0] == "Caf\u00e9"
    with pytest.raises(EvenhandError, match="occurs twice"):
        FederatedDataset(good.train, good.valid, good.test, (COMPOSED, DECOMPOSED))


def test_classes_and_categories_in_two_unicode_forms_are_one(tmp_path: Path) -> None:
    rows = [
        {"client": "a", "v": COMPOSED, "label": DECOMPOSED},
        {"client": "a", "v": DECOMPOSED, "label": COMPOSED},
        {"client": "a", "v": "b", "label": "b"},
    ]
    lines = ["client,v,label", *(",".join(row.values()) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        data = load(tmp_path / name, test_fraction=0)
        assert data.features is not None
        assert data.features.inputs == ("v = Caf\u00e9", "v = b"), name
        assert data.classes == ("Caf\u00e9", "b"), name
    assert from_arrays(np.ones((2, 1)), [COMPOSED, DECOMPOSED], ["a", "a"]).classes == ("Caf\u00e9",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7", "07"),
        ("ward 7", "Ward 07"),
        ("a", "A"),
        ("a b", "a  b"),
        ("1", "1.0"),
        ("x\u00b2", "x2"),
    ],
)
def test_two_spellings_of_one_id_are_two_clients_and_named(one: str, other: str, tmp_path: Path) -> None:
    data = from_arrays(np.ones((3, 1)), [0, 1, 0], [one, other, "zone"], test_fraction=0)
    assert data.num_clients == 3
    (note,) = data.notes
    assert repr(one) in note and repr(other) in note and "zone" not in note
    assert note in data.describe()
    (tmp_path / "t.csv").write_text(f"client,v,label\n{one},1,0\n{other},2,1\nzone,3,0\n")
    assert load(tmp_path / "t.csv", test_fraction=0).notes == data.notes


def test_ids_that_differ_in_more_are_not_named() -> None:
    for ids in (
        ["7", "70", "700"],
        ["a", "b", "ab"],
        ["1.05", "1.5", "10.5"],
        ["0", "00a", "b"],
        ["-1", "1", "2"],
    ):
        assert from_arrays(np.ones((3, 1)), [0, 1, 0], ids).notes == ()


def test_a_sentence_names_two_groups_and_counts_the_others() -> None:
    data = from_arrays(np.ones((6, 1)), [0] * 6, ["a", "A", "b", "B", "c", "C"])
    assert "'A' and 'a' (and 2 other sets of names, such as 'B' and 'b')" in data.notes[0]
