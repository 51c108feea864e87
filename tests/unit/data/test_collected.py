"""Clients with a data set each: what rows may be, and that the result is that of the same arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.errors import EvenhandError


class Tensor:
    """What NumPy reads by ``__array__``, as it does a tensor of PyTorch."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype)


class Rows:
    """A map-style data set that counts how often each row is read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.read = rows, [0] * len(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        self.read[i] += 1
        return self.rows[i]


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 3)).astype(np.float32), random.integers(0, 3, count)


PARTS = {"b": examples(9, 0), "a": examples(6, 1)}


def pairs(client: str) -> Rows:
    return Rows([(Tensor(x), Tensor(y)) for x, y in zip(*PARTS[client], strict=True)])


def same(one: eh.data.FederatedDataset, other: eh.data.FederatedDataset) -> bool:
    return one.fingerprint == other.fingerprint and one.client_ids == other.client_ids


def test_the_data_are_those_of_the_same_arrays() -> None:
    sets = {client: pairs(client) for client in PARTS}
    data = eh.data.from_torch_datasets(sets, test_fraction=0.4, valid_fraction=0.2, seed=3)
    x, y = (np.concatenate([part[i] for part in PARTS.values()]) for i in (0, 1))
    client = np.repeat(list(PARTS), [9, 6])
    arrays = eh.data.from_arrays(x, y, client, test_fraction=0.4, valid_fraction=0.2, seed=3)
    assert same(data, arrays)
    assert not same(data, eh.data.from_arrays(x, y, client, test_fraction=0.4, valid_fraction=0.2, seed=4))
    assert all(count == 1 for rows in sets.values() for count in rows.read), "a random crop is drawn once"


def test_dictionaries_have_named_inputs_and_labels() -> None:
    rows = {
        c: [{"image": x, "note": "-", "label": int(y)} for x, y in zip(*PARTS[c], strict=True)] for c in PARTS
    }
    data = eh.data.from_torch_datasets(rows, x="image", y="label")
    assert same(data, eh.data.from_torch_datasets({client: pairs(client) for client in PARTS}))


def test_test_sets_stay_test_sets() -> None:
    data = eh.data.from_torch_datasets(
        {c: pairs(c) for c in PARTS}, test={"a": pairs("b")}, valid_fraction=0.5
    )
    assert data.client_ids == ("a", "b")
    assert data.test.sizes.tolist() == [9, 0] and data.train.sizes.tolist() == [3, 4]
    np.testing.assert_array_equal(np.sort(data.test.x, axis=0), np.sort(PARTS["b"][0], axis=0))


def test_labels_of_a_test_set_are_read_with_those_for_training() -> None:
    def rows(*labels: Any) -> dict[str, Any]:
        return {"a": [(np.zeros(2), label) for label in labels]}

    data = eh.data.from_torch_datasets(rows("cat", "dog"), test=rows("dog", "ant"))
    assert data.classes == ("ant", "cat", "dog") and data.test.y.tolist() == [2, 0]
    amounts = rows(*range(1950, 1980))
    with pytest.raises(
        EvenhandError, match="30 distinct whole numbers from 1950 to 1979, which may be amounts"
    ):
        eh.data.from_torch_datasets(amounts, test=rows(1950))
    for wrong in (rows("cat"), rows(0.5), rows([0, 1])):
        with pytest.raises(EvenhandError, match="differ from those for training in kind or shape"):
            eh.data.from_torch_datasets(rows(0, 1), test=wrong)
    with pytest.raises(EvenhandError, match=r"the test part's y\[1\] is the negative label -1"):
        eh.data.from_torch_datasets(rows(0, 1), test=rows(1, -1))


def test_bytes_of_pictures_become_shares_and_other_integers_stay_tokens() -> None:
    pictures = {
        k: [(np.full((2, 2), 51, np.uint8), 0), (np.full((2, 2), 255, np.uint8), 1)] for k in range(2)
    }
    x = eh.data.from_torch_datasets(pictures, test_fraction=0.0).train.x
    assert x.dtype == np.float32 and set(np.round(np.unique(x), 6).tolist()) == {
        np.float32(0.2).round(6).item(),
        1.0,
    }
    tokens = {0: [(np.array([1, 2]), 0), (np.array([3, 4]), 1)]}
    assert eh.data.from_torch_datasets(tokens, test_fraction=0.0).train.x.dtype == np.int32


@pytest.mark.parametrize(
    ("datasets", "options", "words"),
    [
        ({}, {}, "there are no clients"),
        ([pairs("a")], {}, "give a value such as"),
        ({"a": iter([])}, {}, "client 'a': a list_iterator has no length: give a map-style data set"),
        ({"a": []}, {}, "client 'a' has no examples: leave the client out"),
        ({"a": [3]}, {}, "client 'a', example 0 is a int: give pairs"),
        (
            {"a": [{"u": 1, "v": 2}]},
            {"x": "u"},
            "is a dictionary of 'u', 'v': name its inputs and labels with x= and y=",
        ),
        ({"a": [{"u": 1, "v": 2}]}, {"x": "u", "y": "w"}, "of 'u', 'v' and has no 'w': name its inputs"),
        (
            *({"a": [(np.zeros(2), 0)], "b": [(np.zeros(2), 0), (np.zeros(3), 0)]}, {}),
            "client 'b', example 1 has inputs of shape (3,), the first one of (2,): pad, crop or resize",
        ),
        (
            *({"a": [(np.zeros(2), [1, 2]), (np.zeros(2), [1])]}, {}),
            "client 'a', example 1 has a label of shape (1,), the first one of (2,)",
        ),
        (
            *({"a": [(np.zeros(2, np.uint8), 0), (np.zeros(2, np.float32), 1)]}, {}),
            "example 1 has inputs of type float32, the first one of uint8: give either bytes",
        ),
        ({"a": pairs("a")}, {"test": {}}, "test={} has no data sets: leave it out"),
        ({"a": pairs("a")}, {"test": [pairs("a")]}, "test="),
        ({1: pairs("a"), "1": pairs("b")}, {}, "have to be all text or all numbers"),
    ],
)
def test_what_is_no_data_set_is_refused(datasets: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        eh.data.from_torch_datasets(datasets, **options)
    assert words in str(caught.value)
