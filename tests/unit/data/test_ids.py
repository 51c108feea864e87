"""Client ids, class names and entries that are not what they seem."""

from __future__ import annotations

import datetime
import json
import math
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenhand.data import FederatedDataset, encode_characters, from_arrays, load, load_leaf
from evenhand.errors import EvenhandError
from malformed import good_leaf

X, Y = np.ones((3, 1)), [0, 1, 0]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        *[
            ([text, "a", "b"], f"client[0] is {text!r}, which is not")
            for text in ("nan", "NA", "null", "<NA>")
        ],
        ([" ", "a", "b"], "client[0] has no client id"),
        (["a", math.nan, "b"], "client[1] is nan"),
        (["a", None, "b"], "client[1] is None"),
        ([1, math.nan, 2], "client[1] is nan"),
        (np.array(["2020-01-01", "NaT", "2020-01-02"], "M8[D]"), "'NaT'"),
        (["a", 1, "b"], "client[1] is a value of type int"),
        (np.array(["a", 1.5, "b"], object), "client[1] is a value of type float"),
        ([uuid.UUID(int=0)] * 3, "type UUID"),
        ([datetime.date(2020, 1, 1)] * 3, "type date"),
        ([1, 2, 10**30], "client[2] is too large"),
        ([1, 2, -(10**5000)], "client[2] is too large"),
        ([1.0, 2.0, 2.0**53], "client[2] is too large"),
        (np.array([1j, 2j, 3j]), "complex128"),
        ([1j, 2j, 3j], "type complex"),
        ([["a"], ["b", "c"], ["d"]], "type list"),
        (["a\0", "a", "b"], "client[0] has a NUL"),
        (["a", "b", "\ud800"], "client[2] has half of a surrogate pair"),
        (["a", "b", "9" * 5000], "client[2] is 5000 characters long"),
    ],
)
def test_values_that_name_no_client_are_refused(ids: Any, words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        from_arrays(X, Y, ids)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1_000", "0x1", "b"], ("0x1", "1_000", "b")),
        (["10", "1_0", "9"], ("10", "1_0", "9")),
        (["٣", "2", "10"], ("10", "2", "٣")),
        (["9" * 200, "8" * 200, "7"], ("7", "8" * 200, "9" * 200)),
        ([1, 2.0, 3], ("1", "2", "3")),
        (np.array([1, 2.0, 3], object), ("1", "2", "3")),
        (["na", "none", "Nan"], ("Nan", "na", "none")),
        (["[/]", "=1+1", "\U0001f600"], ("=1+1", "[/]", "\U0001f600")),
    ],
)
def test_ids_keep_their_spelling_and_are_sorted(ids: Any, expected: tuple[str, ...]) -> None:
    assert from_arrays(X, Y, ids, test_fraction=0).client_ids == expected


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones((3, 0))}, "x has the shape (3, 0), so its rows are empty"),
        ({"x": np.ones((3, 2, 0))}, "rows are empty"),
        ({"y": np.ones((3, 0))}, "y has the shape (3, 0)"),
        (
            {"x": (row for row in np.ones((3, 2)))},
            "x is a generator, which has no shape: give all of its rows",
        ),
        (
            {"x": {"tokens": np.ones((3, 2)), "mask": np.ones((3, 2))}},
            "x is a dict of 2 arrays, but an example is one",
        ),
        ({"y": iter([0, 1, 0])}, "np.stack(list(y))"),
        ({"y": ["a", 1, "b"]}, "y holds mixed or missing values, text beside other things"),
        ({"y": ["a", math.nan, "b"]}, "mixed or missing values"),
        ({"y": ["a", "b", "x" * 256]}, "a text of 256 characters"),
        ({"y": np.array(["a", "b", "x" * 256], object)}, "a text of 256 characters"),
        ({"y": ["a", "\ud800", "b"]}, "y[1] has half of a surrogate pair"),
        ({"y": ["a", "b\0c", "b"]}, "y[1] has a NUL"),
        ({"y": np.array([0, 1, 10**30], object)}, "out of range"),
        (
            {"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1.0]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] * 3},
            "nested too deeply",
        ),
        ({"x": [[10**400], [1], [2]]}, "x holds"),
        ({"classes": ["a", ""]}, "class name '' is empty"),
        ({"classes": ["a", "b\0"]}, "class name 'b\\x00' has a NUL"),
    ],
)
def test_arrays_of_the_wrong_form_are_refused(arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        from_arrays(**{"x": X, "y": Y, "client": ["a", "b", "a"], **arrays})
    assert words in str(caught.value)


def test_arrays_of_objects_are_read_as_what_they_hold() -> None:
    texts, floats = np.array(["b", "a", "b"], object), np.array([[1.5], [2], [3]], object)
    data = from_arrays(floats, texts, texts, test_fraction=0)
    assert (data.client_ids, data.classes) == (("a", "b"), ("a", "b"))
    np.testing.assert_array_equal(data.train.x[:, 0], np.array([2, 1.5, 3], np.float32))
    assert from_arrays(X, np.array([0, 1, 2], object), texts).train.y.dtype == np.int32


def test_ids_and_classes_of_a_data_set_made_by_hand_are_checked() -> None:
    good = from_arrays(X, Y, ["a", "b", "a"], classes=["no", "yes"])
    again = FederatedDataset(good.train, good.valid, good.test, ("a", "b"), classes=("no", "yes"))
    assert again.classes == ("no", "yes")
    with pytest.raises(EvenhandError, match=r"client id 'b.x00' has a NUL"):
        FederatedDataset(good.train, good.valid, good.test, ("a", "b\0"))
    with pytest.raises(EvenhandError, match="client id '' is empty"):
        FederatedDataset(good.train, good.valid, good.test, ("a", ""))
    with pytest.raises(EvenhandError, match="client id 'a' occurs twice"):
        FederatedDataset(good.train, good.valid, good.test, ("a", "a"))


def test_numbers_are_not_encoded_as_characters(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(good_leaf()))
    with pytest.raises(EvenhandError, match="user 'ann': "):
        load_leaf(tmp_path / "a.json", encode=encode_characters)
    with pytest.raises(EvenhandError, match="an example of type float is not text"):
        encode_characters(1.5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["a" * 300 + ".csv", "a\0b.csv", "\ud800.csv"])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    for read in (load, load_leaf):
        with pytest.raises(EvenhandError):
            read(name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("name", ["t.csv", "t.npz", "t.parquet", "t.json", "t-images-idx3-ubyte"])
def test_files_without_permission_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch(mode=0o200)
    with pytest.raises(EvenhandError, match=r"Permission denied|damaged|missing"):
        load(tmp_path / name)


def test_errors_of_the_system_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without permission, which root never lacks."""
    (tmp_path / "t.csv").write_text("client,a,label\nx,1,0\n")
    (tmp_path / "t.json").write_text(json.dumps(good_leaf()))

    def closed(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", closed)
        for name in ("t.csv", "t.json"):
            with pytest.raises(EvenhandError, match=r"t\.\w+:? cannot be read \(Permission denied\)"):
                load(tmp_path / name)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", closed)
        for read in (load, load_leaf):
            with pytest.raises(EvenhandError, match=r"t\.json(/train)? cannot be read \(Permission denied\)"):
                read(tmp_path / "t.json")
