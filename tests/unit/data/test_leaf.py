"""LEAF JSON as other programs write it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evenhand.data import encode_characters, load, load_leaf
from evenhand.data._text import ALPHABET
from evenhand.errors import EvenhandError


def part(users: dict[str, tuple[list, list]], **extra: object) -> dict:
    return {
        **extra,
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write(path: Path, content: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        json.dump(content, file)
    return path


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """Two training files and two test files, float labels, users in different orders, and additional keys."""
    write(
        tmp_path / "data/train/all_data_0_niid_train_8.json",
        part(
            {"f_00002": ([[1.0, 2.0], [3.0, 4.5]], [4.0, 0.0]), "f_00000": ([[9.0, 9.5]], [1.0])},
            hierarchies=["a", "b"],
        ),
    )
    write(
        tmp_path / "data/train/all_data_1_niid_train_8.json",
        part({"f_00001": ([[5, 6], [7, 8], [0, -1]], [2.0, 2.0, 3.0])}, metadata={"split": "niid"}),
    )
    write(
        tmp_path / "data/test/all_data_0_niid_test_8.json",
        part({"f_00001": ([[0.5, 0.5]], [2.0]), "f_00002": ([[1.5, 1.5]], [0.0])}),
    )
    write(tmp_path / "data/test/all_data_1_niid_test_8.json", part({"f_00000": ([[9.0, 9.0]], [1.0])}))
    (tmp_path / "data/train/.DS_Store").write_bytes(b"\x00")
    return tmp_path / "data"


def test_a_folder_that_another_program_wrote_is_read(leaf: Path) -> None:
    for data in (load(leaf), load_leaf(leaf), load_leaf(leaf / "train", leaf / "test")):
        assert data.client_ids == ("f_00000", "f_00001", "f_00002")
        assert (data.train.y.dtype, data.num_classes, data.classes) == (np.int32, 5, None)
        np.testing.assert_array_equal(data.train.sizes, [1, 3, 2])
        np.testing.assert_array_equal(data.train.client(1)[0], [[5, 6], [7, 8], [0, -1]])
        np.testing.assert_array_equal(data.train.client(2)[0], np.array([[1, 2], [3, 4.5]], np.float32))
        np.testing.assert_array_equal(data.train.client(2)[1], [4, 0])
        np.testing.assert_array_equal(data.test.client(2)[0], [[1.5, 1.5]])
        np.testing.assert_array_equal(data.test.client(0)[1], [1])
        assert data.valid.rows == 0


def test_validation_rows_come_from_training(leaf: Path) -> None:
    data = load_leaf(leaf, valid_fraction=0.4)
    np.testing.assert_array_equal(data.train.sizes, [1, 1, 1])
    np.testing.assert_array_equal(data.valid.sizes, [0, 2, 1])
    np.testing.assert_array_equal(data.test.sizes, [1, 1, 1])


def test_a_single_file_is_split(leaf: Path) -> None:
    data = load_leaf(leaf / "train/all_data_1_niid_train_8.json", test_fraction=0.34)
    assert data.client_ids == ("f_00001",)
    assert (data.train.rows, data.test.rows) == (1, 2)
    only_train = load_leaf(leaf / "train", test_fraction=0.0)
    assert (only_train.train.rows, only_train.test.rows) == (6, 0)


def test_order_of_users_and_files_does_not_matter(leaf: Path, tmp_path: Path) -> None:
    one = load_leaf(leaf / "train", test_fraction=0.5, seed=3)
    merged = {}
    for file in sorted((leaf / "train").glob("*.json"), reverse=True):
        content = json.loads(file.read_text())
        for name in reversed(content["users"]):
            merged[name] = (content["user_data"][name]["x"], content["user_data"][name]["y"])
    other = load_leaf(write(tmp_path / "other.json", part(merged)), test_fraction=0.5, seed=3)
    for first, second in zip(one.train, other.train, strict=True):
        np.testing.assert_array_equal(first, second)


def test_num_samples_may_be_left_out(tmp_path: Path) -> None:
    content = part({"a": ([[1.0]], [0])})
    del content["num_samples"]
    assert load_leaf(write(tmp_path / "a.json", content)).num_clients == 1


def test_text_is_read_with_an_encoding(tmp_path: Path) -> None:
    content = part(
        {"HAMLET": (["to be, ", "or not"[:6] + " "], ["o", "5"]), "OPHELIA": (["my lord"], ["\n"])}
    )
    file = write(tmp_path / "shakespeare.json", content)
    with pytest.raises(EvenhandError, match="encode"):
        load_leaf(file)
    data = load_leaf(file, encode=encode_characters, test_fraction=0.0)
    assert data.train.x.dtype == np.int32
    assert data.train.x.shape == (3, 7)
    assert "".join(ALPHABET[token] for token in data.train.client(1)[0][0]) == "my lord"
    assert data.classes == ("\n", "5", "o")
    np.testing.assert_array_equal(data.train.client(0)[1], [2, 1])
    assert load(file, encode=lambda text: [len(text) / 2]).train.x.dtype == np.float32


def test_text_that_the_encoding_does_not_know_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", part({"MACBETH": (["à"], ["b"])}))
    with pytest.raises(EvenhandError, match=r"a\.json: user 'MACBETH': character 'à'"):
        load_leaf(file, encode=encode_characters)
    ragged = write(tmp_path / "b.json", part({"MACBETH": (["ab", "a"], ["b", "c"])}))
    with pytest.raises(EvenhandError, match="ragged"):
        load_leaf(ragged, encode=encode_characters)


def test_alphabet_is_that_of_leaf() -> None:
    assert len(ALPHABET) == 80 == len(set(ALPHABET))
    assert list(ALPHABET) == sorted(ALPHABET)


def test_real_targets_are_read_for_regression(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", part({"a": ([[1.0], [2.0]], [0.5, -3.0])}))
    data = load_leaf(file, regression=True, test_fraction=0.0)
    np.testing.assert_array_equal(data.train.y, np.array([0.5, -3.0], np.float32))
    with pytest.raises(EvenhandError, match="regression=True"):
        load_leaf(file)


def test_faults_in_the_test_part_name_its_file(leaf: Path) -> None:
    write(leaf / "test/all_data_1_niid_test_8.json", part({"f_00000": ([[9.0, 9.0]], [-1.0])}))
    with pytest.raises(EvenhandError, match=r"test/all_data_1_niid_test_8\.json, user 'f_00000', y\[0\]"):
        load_leaf(leaf / "train", leaf / "test")
    write(leaf / "test/all_data_1_niid_test_8.json", part({"f_00001": ([[9.0, 9.0]], [1.0])}))
    with pytest.raises(EvenhandError, match="'f_00001' is also in all_data_0_niid_test_8"):
        load(leaf)


def test_some_users_may_lack_test_rows_but_not_all(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", part({"a": ([[1.0]], [0]), "b": ([[2.0]], [1])}))
    test = write(tmp_path / "test.json", part({"b": ([], []), "a": ([[3.0]], [1])}))
    data = load_leaf(train, test)
    np.testing.assert_array_equal(data.test.sizes, [1, 0])
    none = write(tmp_path / "none.json", part({"b": ([], []), "a": ([], [])}))
    with pytest.raises(EvenhandError, match="no user has examples"):
        load_leaf(train, none)


@pytest.mark.parametrize("missing", ["nowhere", "nowhere.json"])
def test_missing_paths_are_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(EvenhandError, match="no such file or folder"):
        load_leaf(tmp_path / missing)
    with pytest.raises(EvenhandError, match=r"no \.json files"):
        load_leaf(tmp_path)


def test_bad_fractions_are_refused_before_reading(tmp_path: Path) -> None:
    with pytest.raises(EvenhandError, match="test_fraction"):
        load_leaf(tmp_path / "nowhere", test_fraction=1.5)
