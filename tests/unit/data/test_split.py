"""from_arrays: per-client splits that lose no row and leave no client without training rows."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.data import from_arrays
from evenhand.errors import EvenhandError


def make(sizes: list[int], **options: object):
    """Rows whose single feature is their own number, client ``k`` having ``sizes[k]`` of them, shuffled."""
    client = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = np.arange(len(client), dtype=np.float64)[:, None]
    return client, from_arrays(x, client % 3, client, **options)  # pyright: ignore[reportArgumentType]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    tenths=st.sampled_from([(t, v) for t in range(10) for v in range(10) if t + v < 10]),
    seed=st.integers(0, 100),
)
def test_every_row_lands_in_one_split_of_its_client(
    sizes: list[int], tenths: tuple[int, int], seed: int
) -> None:
    t, v = tenths
    client, data = make(sizes, test_fraction=t / 10, valid_fraction=v / 10, seed=seed)
    for k, n in enumerate(sizes):
        parts = [split.client(k) for split in (data.train, data.valid, data.test)]
        rows = np.concatenate([x[:, 0] for x, _ in parts]).astype(int)
        assert sorted(rows) == np.flatnonzero(client == k).tolist()
        train = max(1, math.floor(Fraction(10 - t - v, 10) * n))
        valid = max(train, math.floor(Fraction(10 - t, 10) * n)) - train
        assert [len(y) for _, y in parts] == [train, valid, n - train - valid]
        for _, y in parts:
            np.testing.assert_array_equal(y, k % 3)


def test_only_the_seed_decides_the_split() -> None:
    _, one = make([30, 20], seed=3)
    _, same = make([30, 20], seed=3)
    _, other = make([30, 20], seed=4)
    np.testing.assert_array_equal(one.test.x, same.test.x)
    assert not np.array_equal(one.test.x, other.test.x)


def test_the_test_rows_are_a_random_choice() -> None:
    _, data = make([1000])
    order = np.sort(data.test.x[:, 0])
    assert len(order) == 200
    assert 400 < order.mean() < 600
    assert order[0] < 50 < 950 < order[-1]


def test_interleaving_of_clients_does_not_matter() -> None:
    client, data = make([5, 9, 7], seed=2)
    order = np.argsort(client, kind="stable")
    grouped = from_arrays(order[:, None].astype(float), client[order] % 3, client[order], seed=2)
    np.testing.assert_array_equal(data.train.x, grouped.train.x)
    np.testing.assert_array_equal(data.test.x, grouped.test.x)


def test_without_fractions_the_order_of_rows_is_kept() -> None:
    _, data = make([9, 8], test_fraction=0.0)
    for k in range(2):
        assert (np.diff(data.train.client(k)[0][:, 0]) > 0).all()
    assert data.test.rows == data.valid.rows == 0


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([10, 9, 2, 10], ("2", "9", "10")),
        (["10", "9", "2", "10"], ("2", "9", "10")),
        ([10.0, 9.0, 2.0, 10.0], ("2", "9", "10")),
        ([1.5, 0.5, 1.5, 0.5], ("0.5", "1.5")),
        (["b", "a", "c", "b"], ("a", "b", "c")),
        ([b"b", b"a", b"c", b"b"], ("a", "b", "c")),
        (["-1", "01", "1", "1"], ("-1", "01", "1")),
        ([True, False, True, True], ("False", "True")),
        (np.array(["x", "b", "x", "b"], dtype=object), ("b", "x")),
        (np.array([10, 9, 2, 10], dtype=object), ("2", "9", "10")),
        (["1" * 200, "2", "9", "1"], ("1", "2", "9", "1" * 200)),
        (np.array(["2020-01-02", "2020-01-01"] * 2, "datetime64[D]"), ("2020-01-01", "2020-01-02")),
    ],
)
def test_clients_come_in_the_order_of_their_ids(ids: object, expected: tuple[str, ...]) -> None:
    data = from_arrays(np.arange(4.0)[:, None], np.zeros(4, int), ids, test_fraction=0.0)  # pyright: ignore[reportArgumentType]
    assert data.client_ids == expected
    names = [str(value) for value in np.asarray(ids).astype(str).tolist()]
    for k, name in enumerate(expected):
        rows = [row for row, found in enumerate(names) if found.removesuffix(".0") == name]
        np.testing.assert_array_equal(data.train.client(k)[0][:, 0], rows)


def test_labels_may_be_text_flags_numbers_or_named() -> None:
    x, client = np.zeros((4, 1)), [0, 0, 1, 1]
    text = from_arrays(x, ["dog", "cat", "dog", "eel"], client, test_fraction=0.0)
    assert text.classes == ("cat", "dog", "eel")
    np.testing.assert_array_equal(text.train.y, [1, 0, 1, 2])
    flags = from_arrays(x, [True, False, True, True], client, test_fraction=0.0)
    assert flags.train.y.dtype == np.int32
    targets = from_arrays(x, [1.0, 2.0, -3.5, 4.0], client, test_fraction=0.0)
    assert targets.train.y.dtype == np.float32
    assert targets.num_classes is None
    named = from_arrays(x, [0, 1, 0, 1], client, classes=["no", "yes", "maybe"], name="poll")
    assert (named.num_classes, named.name) == (3, "poll")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"y": [0, 1]}, "x has 3 rows, y 2 and client 3"),
        ({"client": [0, 1]}, "y 3 and client 2"),
        ({"client": [0, 1, float("nan")]}, "client[2]"),
        ({"client": np.array([0, None, 2], dtype=object)}, "client[1] is None, which is not a client id"),
        ({"client": ["a", "", "b"]}, "client[1] has no client id"),
        ({"client": [[0], [1], [2]]}, "2 axes"),
        ({"x": [[1.0], [2.0, 3.0], [4.0]]}, "ragged"),
        ({"x": [["a"], ["b"], ["c"]]}, "text"),
        ({"x": [[1.0], [np.nan], [2.0]]}, "x[1] holds nan"),
        ({"x": [[1.0], [1e300], [2.0]]}, "x[1] holds 1e+300"),
        ({"x": [[1], [2**40], [2]]}, "x[1] is 1099511627776"),
        ({"x": np.zeros((3, 1), complex)}, "complex128"),
        ({"x": 3.0}, "single value"),
        ({"y": [0, -1, 1]}, "y[1] is the negative label -1"),
        ({"y": [0.0, np.inf, 1.0]}, "y[1] holds inf"),
        ({"x": np.zeros((0, 1)), "y": np.zeros(0, int), "client": np.zeros(0, int)}, "no examples"),
        ({"test_fraction": 1.0}, "test_fraction must be at least 0 and below 1, not 1.0"),
        ({"valid_fraction": -0.1}, "valid_fraction must be at least 0"),
        ({"test_fraction": math.nan}, "test_fraction"),
        ({"test_fraction": 0.6, "valid_fraction": 0.4}, "leave nothing for training"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(arguments: dict[str, object], words: str) -> None:
    good = {"x": [[1.0], [2.0], [3.0]], "y": [0, 1, 0], "client": ["a", "b", "a"]}
    from_arrays(**good)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError) as caught:
        from_arrays(**{**good, **arguments})  # pyright: ignore[reportArgumentType]
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_the_input_is_not_written_to_and_not_shared() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    before = x.copy()
    data = from_arrays(x, [0, 1, 0], [0, 0, 1])
    np.testing.assert_array_equal(x, before)
    assert x.flags.writeable
    assert not np.shares_memory(x, data.train.x)
