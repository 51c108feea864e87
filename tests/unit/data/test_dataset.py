"""FederatedDataset: immutable, checked once, readable."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evenhand.data import FederatedDataset, Split
from evenhand.errors import EvenhandError


def rows(sizes: list[int], seed: int = 0) -> Split:
    total = sum(sizes)
    random = np.random.default_rng(seed)
    return Split(
        random.normal(size=(total, 3)), random.integers(0, 4, total), np.concatenate([[0], np.cumsum(sizes)])
    )


def dataset(**changes: object) -> FederatedDataset:
    parts = {
        "train": rows([2, 3, 1]),
        "valid": rows([0, 1, 0]),
        "test": rows([1, 0, 2]),
        "client_ids": ("a", "b", "c"),
    }
    return FederatedDataset(**{**parts, **changes})  # pyright: ignore[reportArgumentType]


def test_dtypes_become_those_of_training() -> None:
    data = dataset()
    for split in (data.train, data.valid, data.test):
        assert (split.x.dtype, split.y.dtype, split.offsets.dtype) == (np.float32, np.int32, np.int64)
    tokens = rows([2, 2, 2])._replace(x=np.arange(18, dtype=np.int64).reshape(6, 3))
    assert dataset(train=tokens, valid=tokens, test=tokens).train.x.dtype == np.int32


def test_client_gives_the_rows_of_one_client() -> None:
    given = rows([2, 3, 1])
    data = dataset(train=given)
    x, y = data.train.client(1)
    np.testing.assert_array_equal(x, given.x[2:5].astype(np.float32))
    np.testing.assert_array_equal(y, given.y[2:5])
    np.testing.assert_array_equal(data.train.sizes, [2, 3, 1])
    with pytest.raises(IndexError, match="0 to 2"):
        data.train.client(3)
    with pytest.raises(IndexError):
        data.train.client(-1)


def test_nothing_can_be_written() -> None:
    data = dataset()
    for array in (*data.train, *data.valid, *data.test, data.train.client(0)[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_later_changes_to_the_callers_arrays_have_no_effect() -> None:
    x, y = np.ones((2, 3), np.float32), np.zeros(2, np.int32)
    offsets = np.array([0, 1, 2])
    split = Split(x, y, offsets)
    data = FederatedDataset(split, split, split, ("a", "b"))
    x[0], y[0], offsets[1] = 7, 7, 7
    assert data.train.x.max() == 1
    assert data.train.y.max() == 0
    assert data.train.offsets[1] == 1


def test_read_only_arrays_are_not_copied() -> None:
    x = np.ones((2, 3), np.float32)
    x.setflags(write=False)
    split = Split(x, np.zeros(2, np.int32), np.array([0, 1, 2]))
    assert FederatedDataset(split, split, split, ("a", "b")).train.x is x


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": rows([2, 0, 4])}, "client 'b' has no training examples"),
        ({"train": rows([2, 3])}, "give 4 integers"),
        ({"train": rows([2, 3, 1])._replace(offsets=np.array([0, 4, 2, 6]))}, "never fall"),
        ({"train": rows([2, 3, 1])._replace(offsets=np.array([1, 2, 5, 6]))}, "start at 0"),
        ({"train": rows([2, 3, 1])._replace(offsets=np.array([0, 2, 5, 7]))}, "offsets up to 7"),
        ({"train": rows([2, 3, 1])._replace(offsets=np.array([0.0, 2, 5, 6]))}, "float64"),
        ({"train": rows([2, 3, 1])._replace(y=np.zeros(5, int))}, "5 of y"),
        ({"train": rows([2, 3, 1])._replace(y=np.array([0, 1, -2, 0, 0, 0]))}, "train.y[2] is the negative"),
        ({"train": rows([2, 3, 1])._replace(y=np.array([0, 1, np.nan, 0, 0, 0]))}, "train.y[2] holds nan"),
        ({"test": rows([2, 3, 1])._replace(x=np.full((6, 3), np.inf))}, "test.x[0] holds inf"),
        ({"test": rows([2, 3, 1])._replace(x=np.full((6, 3), 1e40))}, "test.x[0] holds 1e+40"),
        ({"test": rows([2, 3, 1])._replace(x=np.full((6, 2), 1.0))}, "bring them to one form"),
        ({"test": rows([2, 3, 1])._replace(y=np.zeros(6))}, "bring them to one form"),
        ({"test": rows([2, 3, 1])._replace(x=np.full((6, 3), "a"))}, "holds text"),
        ({"client_ids": ("a", "b", "a")}, "'a' occurs twice"),
        ({"classes": ("cat", "dog")}, "2 class names"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        dataset(name="mine", **changes)
    assert words in str(caught.value)
    assert str(caught.value).startswith("mine: ")


def test_a_data_set_without_clients_is_refused() -> None:
    none = Split(np.ones((0, 3)), np.zeros(0, int), np.array([0]))
    with pytest.raises(EvenhandError, match="no clients"):
        FederatedDataset(none, none, none, ())


def test_the_description_gives_sizes() -> None:
    data = dataset(name="mine")
    text = data.describe()
    assert "mine: 3 clients" in text
    sizes = np.array([2, 3, 1])
    train = next(line for line in text.splitlines() if line.startswith("train")).split()
    assert train == ["train", "6", f"{sizes.mean():.1f}", f"{sizes.std():.1f}", "1", "3"]
    assert repr(data) == "<FederatedDataset 'mine': 3 clients, 6 + 1 + 3 rows, x float32 (3,), 4 classes>"


def test_number_of_classes() -> None:
    assert dataset().num_classes == 1 + max(int(split.y.max()) for split in (rows([2, 3, 1]), rows([1, 2])))
    assert dataset(classes=tuple("abcdefg")).num_classes == 7
    real = {name: rows([2, 3, 1])._replace(y=np.linspace(0, 1, 6)) for name in ("train", "valid", "test")}
    assert dataset(**real).num_classes is None
    assert "real targets" in repr(dataset(**real))


# --- labels by client ----------------------------------------------------------------------------------------------


def test_labels_are_counted_for_each_client_and_split() -> None:
    data = dataset()
    for name, split in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        counts = data.label_counts(name)  # pyright: ignore[reportArgumentType]
        expected = [[np.sum(split.client(k)[1] == label) for label in range(4)] for k in range(3)]
        assert counts.tolist() == expected and counts.dtype == np.int64
    assert (
        data.label_counts().tolist()
        == data.label_counts("train").tolist()
        != data.label_counts("test").tolist()
    )


def test_what_has_no_classes_has_no_counts() -> None:
    real = {name: rows(sizes)._replace(y=np.zeros(sum(sizes))) for name, sizes in SIZES.items()}
    with pytest.raises(EvenhandError, match="has real targets: there are no classes to count"):
        dataset(**real).label_counts()
    tags = {
        name: rows(sizes)._replace(y=np.zeros((sum(sizes), 2), np.int32)) for name, sizes in SIZES.items()
    }
    with pytest.raises(EvenhandError, match="has several labels for each example"):
        dataset(**tags).label_counts()
    with pytest.raises(EvenhandError, match="give 'train', 'valid' or 'test'"):
        dataset().label_counts("tests")  # pyright: ignore[reportArgumentType]


SIZES = {"train": [2, 3, 1], "valid": [0, 1, 0], "test": [1, 0, 2]}
