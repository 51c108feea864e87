"""Clients kept by name, and by how many examples they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.data import FederatedDataset, Split, from_arrays, hold_out_clients, load
from evenhand.errors import EvenhandError

TRAIN, VALID, TEST = (3, 1, 5, 2), (0, 2, 0, 1), (4, 1, 0, 1)
IDS = ("ann", "bob", "7", "north / A")


def part(sizes: tuple[int, ...]) -> Split:
    """A row of client ``k`` holds ``k`` and its number."""
    rows = np.array([(k, i) for k, n in enumerate(sizes) for i in range(n)], np.float32).reshape(-1, 2)
    return Split(rows, rows[:, 0].astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]))


DATA = FederatedDataset(part(TRAIN), part(VALID), part(TEST), IDS, name="toy", classes=("a", "b", "c", "d"))


def assert_clients(data: FederatedDataset, places: list[int]) -> None:
    """``data`` are those of the clients at these places, with all of their examples and nothing else."""
    assert data.client_ids == tuple(IDS[k] for k in places) and data.classes == DATA.classes
    for split, sizes in ((data.train, TRAIN), (data.valid, VALID), (data.test, TEST)):
        assert split.sizes.tolist() == [sizes[k] for k in places]
        expected = [(k, i) for k in places for i in range(sizes[k])]
        np.testing.assert_array_equal(split.x, np.array(expected, np.float32).reshape(-1, 2))


def test_clients_are_kept_in_the_order_of_the_data() -> None:
    kept = DATA.select(["7", " ann "])
    assert_clients(kept, [0, 2])
    assert kept.notes == ("Kept 2 of 4 clients: those that are named.",)
    assert_clients(DATA.select([7]), [2])
    assert_clients(DATA.select(np.array(["north / A"])), [3])
    assert DATA.select(IDS) is DATA


@given(st.sets(st.sampled_from(IDS), min_size=1, max_size=3))
def test_the_rest_is_the_complement(ids: set[str]) -> None:
    rest = [client for client in IDS if client not in ids]
    sizes = [kept.train.rows + kept.test.rows for kept in (DATA.select(ids), DATA.select(rest))]
    assert sum(sizes) == DATA.train.rows + DATA.test.rows
    assert set(DATA.select(ids).client_ids) == ids


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["anne"], "no client 'anne' (perhaps you meant ann)"),
        (["ann", "ann "], "client 'ann' is named twice"),
        ([], "no client is named"),
        ("ann", "give a list of client ids, such as ['ann']"),
        (7, "give a list of client ids, such as [7]"),
        (np.int64(7), "give a list of client ids, such as [np.int64(7)]"),
    ],
)
def test_what_names_no_clients_is_refused(ids: Any, words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        DATA.select(ids)
    assert words in str(caught.value)


def test_clients_with_enough_examples() -> None:
    """Totals are 7, 4, 5 and 4; the bound itself is enough."""
    assert_clients(DATA.min_examples(5), [0, 2])
    assert_clients(DATA.min_examples(6), [0])
    assert DATA.min_examples(4) is DATA and DATA.min_examples() is DATA
    assert DATA.min_examples(5).notes == ("Kept 2 of 4 clients: those with at least 5 examples.",)


def test_splits_may_be_bounded_one_by_one() -> None:
    assert_clients(DATA.min_examples(train=2, test=1), [0, 3])
    assert_clients(DATA.min_examples(train=5), [2])
    assert_clients(DATA.min_examples(5, test=1), [0])
    assert "at least 2 for training and 1 for testing" in DATA.min_examples(train=2, test=1).notes[0]


@given(st.integers(1, 8), st.integers(0, 5), st.integers(0, 4))
def test_bounds_are_those_of_each_client(n: int, train: int, test: int) -> None:
    totals = np.array(TRAIN) + VALID + TEST
    places = np.flatnonzero((totals >= n) & (np.array(TRAIN) >= train) & (np.array(TEST) >= test)).tolist()
    if places:
        assert_clients(DATA.min_examples(n, train=train, test=test), places)
    else:
        with pytest.raises(EvenhandError, match="none of the 4 clients has at least"):
            DATA.min_examples(n, train=train, test=test)


@pytest.mark.parametrize("bounds", [{"n": -1}, {"n": 2.5}, {"test": "many"}])
def test_bounds_are_whole_numbers(bounds: dict[str, object]) -> None:
    with pytest.raises(EvenhandError, match="whole number"):
        DATA.min_examples(**bounds)  # pyright: ignore[reportArgumentType]


def test_loading_keeps_the_same_clients() -> None:
    data = load("digits")
    assert load("digits", min_examples=60).client_ids == data.min_examples(60).client_ids
    assert load("digits", min_examples=60).fingerprint == data.min_examples(60).fingerprint
    assert load("digits", min_examples=60).num_clients < data.num_clients


def test_half_of_the_writers_are_set_aside() -> None:
    """As Delta-FL prepares EMNIST: enough images, then half of the writers for testing, anew with each seed."""
    client = np.repeat(np.arange(60), np.arange(60) + 1)
    data = from_arrays(np.zeros((len(client), 1)), client % 2, client, test_fraction=0.0).min_examples(21)
    seen, unseen = hold_out_clients(data, 0.5)
    assert (seen.num_clients, unseen.num_clients) == (20, 20)
    assert not set(seen.client_ids) & set(unseen.client_ids)
    assert hold_out_clients(data, 0.5, seed=1)[0].client_ids != seen.client_ids
