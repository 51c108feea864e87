"""Partitioners: every row goes to one client, every client gets a row, and the skew is the one asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.data import partition
from evenhand.data.partition import _no_empty_client
from evenhand.errors import EvenhandError


@st.composite
def labels_and_clients(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    n = draw(st.integers(1, 120))
    y = np.array(draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)))
    return y, draw(st.integers(1, n))


def check_cover(client: np.ndarray, rows: int, clients: int) -> None:
    assert client.shape == (rows,)
    assert client.dtype == np.int64
    assert np.unique(client).tolist() == list(range(clients))


@given(labels_and_clients(), st.integers(0, 5))
def test_iid_sizes_differ_by_at_most_one(case: tuple[np.ndarray, int], seed: int) -> None:
    y, clients = case
    client = partition.iid(len(y), clients, seed)
    check_cover(client, len(y), clients)
    assert np.ptp(np.bincount(client)) <= 1
    np.testing.assert_array_equal(client, partition.iid(y, clients, seed))


@given(labels_and_clients(), st.sampled_from([1e-9, 1e-3, 0.1, 1.0, 1e3, 1e9]), st.integers(0, 5))
def test_dirichlet_gives_every_client_a_row(case: tuple[np.ndarray, int], alpha: float, seed: int) -> None:
    y, clients = case
    check_cover(partition.dirichlet(y, clients, alpha, seed), len(y), clients)


@given(labels_and_clients(), st.sampled_from([0.0, 0.5, 2.0, 1e4]), st.integers(0, 5))
def test_quantity_gives_every_client_a_row(case: tuple[np.ndarray, int], sigma: float, seed: int) -> None:
    y, clients = case
    client = partition.quantity(len(y), clients, sigma, seed)
    check_cover(client, len(y), clients)
    if sigma == 0:
        assert np.ptp(np.bincount(client)) <= 1


@given(labels_and_clients(), st.integers(1, 7), st.integers(0, 5))
def test_shards_give_each_client_as_many_classes_as_asked(
    case: tuple[np.ndarray, int], each: int, seed: int
) -> None:
    y, clients = case
    classes, counts = np.unique(y, return_counts=True)
    possible = (
        each <= len(classes)
        and clients * each >= len(classes)
        and clients * each <= np.minimum(counts, clients).sum()
    )
    if not possible:
        with pytest.raises(EvenhandError):
            partition.shards(y, clients, each, seed)
        return
    client = partition.shards(y, clients, each, seed)
    check_cover(client, len(y), clients)
    assert {len(np.unique(y[client == k])) for k in range(clients)} == {each}


@given(st.lists(st.one_of(st.integers(-50, 50).map(str), st.sampled_from("abc")), min_size=1))
def test_by_column_joins_only_equal_values(values: list[str]) -> None:
    client = partition.by_column(values)
    check_cover(client, len(values), len(set(values)))
    assert len({(value, k) for value, k in zip(values, client.tolist(), strict=True)}) == len(set(values))


def test_dirichlet_skew_follows_alpha() -> None:
    """E[share^2] of a symmetric Dirichlet is (alpha + 1) / (K alpha + 1) / K."""
    clients, per_class = 10, 1000
    y = np.repeat(np.arange(40), per_class)
    found = {}
    for alpha in (0.1, 1.0, 10.0):
        client = partition.dirichlet(y, clients, alpha, seed=1)
        shares = np.array([np.bincount(client[y == c], minlength=clients) / per_class for c in range(40)])
        found[alpha] = (shares**2).mean()
        expected = (alpha + 1) / (clients * alpha + 1) / clients
        assert abs(found[alpha] / expected - 1) < 0.15
    assert found[0.1] > 3 * found[10.0]


def test_classes_with_fewer_rows_than_clients_do_not_all_go_to_the_same_clients() -> None:
    """Forty equal clients, ten rows of each of ten classes: two or three rows each, as a fair deal of 100 rows is.

    Rounded alike for each class, ten clients would get all rows.
    """
    y = np.repeat(np.arange(10), 10)
    near_iid = partition.dirichlet(y, 40, 1e9, seed=0)
    equal = np.repeat(np.arange(10), 40), np.tile(np.arange(40), 10)
    for client in (near_iid, partition.matching(*equal, y)):
        assert set(np.bincount(client, minlength=40).tolist()) == {2, 3}
        assert np.unique(np.stack([client, y]), axis=1).shape[1] == 100


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=9), st.integers(0, 30)
)
def test_parts_of_classes_are_rounded_up_or_down(held: list[list[int]], fresh: int) -> None:
    """Of each class, and whole parts stay whole; sizes of clients are within 2 of their parts of all classes."""
    table = np.array([[*row, 1] for row in held])
    y, client = np.repeat(np.indices(table.shape).reshape(2, -1), table.ravel(), axis=1)
    new = np.repeat(np.arange(len(table)), fresh)
    counts = np.zeros_like(table)
    np.add.at(counts, (new, partition.matching(y, client, new)), 1)
    parts = fresh * table / table.sum(axis=1, keepdims=True)
    assert (counts.sum(axis=1) == fresh).all()
    assert (np.floor(parts + 1e-5) <= counts).all() and (counts <= np.ceil(parts - 1e-5)).all()
    assert np.abs((counts - parts).sum(axis=0)).max() < 2


def test_dirichlet_moves_as_few_rows_as_it_must() -> None:
    y = np.zeros(50, int)
    client = partition.dirichlet(y, 20, 1e-9, seed=0)
    sizes = np.sort(np.bincount(client))
    np.testing.assert_array_equal(sizes, [1] * 19 + [31])


def test_quantity_is_log_normal() -> None:
    sizes = np.bincount(partition.quantity(2_000_000, 400, 1.0, seed=0))
    logs = np.log(sizes)
    assert abs(logs.std() - 1.0) < 0.1
    assert np.bincount(partition.quantity(2_000_000, 400, 0.0, seed=0)).std() == 0


@given(
    labels_and_clients(),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 2.0, 1e4]),
    st.integers(0, 5),
)
def test_consecutive_gives_each_client_neighbouring_classes(
    case: tuple[np.ndarray, int], width: int, least: int, sigma: float, seed: int
) -> None:
    labels, clients = case
    classes, y, counts = np.unique(labels, return_inverse=True, return_counts=True)
    held = np.array([[(c - k) % len(classes) < width for c in range(len(classes))] for k in range(clients)])
    holders = held.sum(axis=0)
    if width > len(classes) or not holders.all() or (counts < least * holders).any():
        with pytest.raises(EvenhandError):
            partition.consecutive(labels, clients, width, sigma, least, seed)
        return
    client = partition.consecutive(labels, clients, width, sigma, least, seed)
    check_cover(client, len(y), clients)
    table = np.zeros((clients, len(classes)), int)
    np.add.at(table, (client, y), 1)
    np.testing.assert_array_equal(table > 0, held)
    assert table[held].min() >= least
    if sigma == 0:  # each class is divided evenly
        for column, among in zip(table.T, held.T, strict=True):
            assert np.ptp(column[among]) <= 1


def test_consecutive_numbers_are_log_normal_within_a_class() -> None:
    """Of a class, 200 clients hold 5 examples and more; the logs of what is beyond 5 have the deviation asked for."""
    y = np.repeat(np.arange(10), 700_000)
    for sigma in (1.0, 2.0):
        client = partition.consecutive(y, 1000, sigma=sigma, seed=3)
        further = np.bincount(client[y == 4], minlength=1000) - 5
        logs = np.log(further[further > 0])
        assert len(logs) >= 195
        assert abs(logs.std() - sigma) < 0.1 * sigma
    sizes = np.bincount(partition.consecutive(y[::100], 1000, seed=3))
    assert sizes.sum() == 70_000 and sizes.min() >= 10 and sizes.std() > 100


def test_consecutive_numbers_may_be_even_over_the_classes_of_a_client() -> None:
    """As FedProx spreads letters: sizes are log-normal, and of its five classes a client holds similar numbers."""
    y = np.repeat(np.arange(10), 40_000)
    for even in (True, False):
        client = partition.consecutive(y, 200, 5, sigma=1.0, least=2, seed=4, even=even)
        check_cover(client, len(y), 200)
        table = np.zeros((200, 10), int)
        np.add.at(table, (client, y), 1)
        assert (np.count_nonzero(table, axis=1) == 5).all() and table[table > 0].min() >= 2
        logs = np.log(np.where(table > 2, table - 2, 1))
        within = np.std([row[row > 0] for row in logs], axis=1).mean()
        sizes = np.log(table.sum(axis=1)).std()
        assert (within < 0.15 and sizes > 0.85) if even else (within > 0.6 and sizes < 0.7)
    with pytest.raises(EvenhandError, match=r"^even='no': give True or False"):
        partition.consecutive(y, 200, 5, even="no")  # pyright: ignore[reportArgumentType]
    equal = partition.consecutive(y, 200, 5, sigma=0.0, least=2, even=True)
    assert np.ptp(np.bincount(equal)) <= 5


def test_shards_are_of_similar_size_and_mixed() -> None:
    y = np.repeat(np.arange(10), 100)
    client = partition.shards(y, 50, 2, seed=0)
    np.testing.assert_array_equal(np.bincount(client), 20)
    pairs = {tuple(np.unique(y[client == k])) for k in range(50)}
    assert len(pairs) > 15


def test_matching_gives_clients_test_rows_like_their_training_rows() -> None:
    random = np.random.default_rng(0)
    y, fresh = random.integers(0, 5, 5000), random.integers(0, 5, 1000)
    client = partition.dirichlet(y, 8, 0.3, seed=0)
    owner = partition.matching(y, client, fresh)
    for c in range(5):
        had = np.bincount(client[y == c], minlength=8) / (y == c).sum()
        got = np.bincount(owner[fresh == c], minlength=8) / (fresh == c).sum()
        np.testing.assert_allclose(got, had, atol=0.01)
    unseen = partition.matching(np.zeros(5000, int), client, np.ones(1000, int))
    np.testing.assert_allclose(np.bincount(unseen, minlength=8) / 1000, np.bincount(client) / 5000, atol=0.01)


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: partition.iid(100, 7, seed),
        lambda seed: partition.dirichlet(np.arange(100) % 5, 7, 0.5, seed),
        lambda seed: partition.shards(np.arange(100) % 5, 7, 2, seed),
        lambda seed: partition.quantity(100, 7, 1.0, seed),
        lambda seed: partition.consecutive(np.arange(100) % 5, 7, least=1, seed=seed),
    ],
)
def test_the_seed_decides_the_partition(draw: Callable[[int], np.ndarray]) -> None:
    np.testing.assert_array_equal(draw(5), draw(5))
    assert not np.array_equal(draw(5), draw(6))


def test_as_many_clients_as_rows_take_a_second() -> None:
    """Half of 50,000 clients are drawn no row at first; each search for one went through all rows."""
    start = time.process_time()
    client = partition.dirichlet(np.arange(50_000) % 10, 50_000, 0.1)
    assert time.process_time() - start < 5
    check_cover(client, 50_000, 50_000)


def test_a_client_left_empty_gets_a_row_of_the_largest() -> None:
    """The draws follow the docstring literally."""
    random, same = (np.random.default_rng(3) for _ in range(2))
    client = np.random.default_rng(0).integers(0, 3, 40) * 7
    expected = client.copy()
    for k in range(30):
        if k not in expected:
            rows = np.flatnonzero(expected == np.bincount(expected).argmax())
            expected[rows[same.integers(len(rows))]] = k
    np.testing.assert_array_equal(_no_empty_client(client, 30, random), expected)


def test_labels_may_be_names() -> None:
    y = np.array(["b", "a"] * 20)
    np.testing.assert_array_equal(
        partition.dirichlet(y, 4, 0.5), partition.dirichlet((y == "b").astype(int), 4, 0.5)
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: partition.iid(3, 4), "3 examples are too few for 4 clients"),
        (lambda: partition.iid(3.5, 2), "rows=3.5: give a whole number"),
        (lambda: partition.iid(3, 0), "clients=0: give a whole number from 1"),
        (lambda: partition.iid(3, 1.5), "clients=1.5: give a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: partition.dirichlet([0, 1], 2, 0.0), "alpha must be positive"),
        (lambda: partition.dirichlet([0, 1], 2, float("nan")), "alpha must be positive"),
        (lambda: partition.dirichlet([[0, 1]], 1, 1.0), "y has 2 axes"),
        (lambda: partition.dirichlet([], 1, 1.0), "0 examples are too few"),
        (lambda: partition.quantity(5, 2, -1.0), "sigma must be finite"),
        (lambda: partition.shards([0, 1, 0], 2, 3), "between 1 and the 2 classes"),
        (lambda: partition.shards(np.arange(9), 4, 2), "cannot hold 9 classes"),
        (lambda: partition.shards([0, 0, 0, 1], 3, 2), "too few examples to give 3 clients 2 classes"),
        (lambda: partition.consecutive([0, 1, 0], 2, 3), "between 1 and the 2 classes"),
        (
            lambda: partition.consecutive(np.arange(100) % 10, 3),
            "class 4 of 10, in the order of the labels, has 10",
        ),
        (
            lambda: partition.consecutive(np.arange(90) % 10, 10),
            "9 examples and 2 clients, each of which is to have 5",
        ),
        (lambda: partition.consecutive(np.arange(100) % 10, 10, sigma=-1.0), "sigma must be finite"),
        (
            lambda: partition.consecutive(np.arange(100) % 10, 10, least=0),
            "least=0: give a whole number from 1",
        ),
        (lambda: partition.by_column(["a", ""]), "values[1]"),
        (lambda: partition.by_column(["a", "nan"]), "values[1] is 'nan', which is not a client id"),
        (lambda: partition.by_column([1.0, float("nan")]), "values[1] is nan"),
        (lambda: partition.by_column([["a"], ["b", "c"]]), "type list"),
        (lambda: partition.dirichlet([[0], [0, 1]], 1, 1.0), "ragged"),
        (lambda: partition.dirichlet([0, 1], 2, float("inf")), "alpha must be positive"),
        (lambda: partition.iid(10**12, 5), "rows=1000000000000: give a whole number"),
        (lambda: partition.iid(10**5000, 5), "rows=a number of more than 100 digits"),
        (lambda: partition.iid(5, 10**5000), "clients=a number of more than 100 digits"),
        (lambda: partition.iid(5, 2, 10**5000), "seed=a number of more than 100 digits"),
        (lambda: partition.dirichlet([0, 1], 2, "1"), "alpha must be positive and at most 1e9, not '1'"),  # pyright: ignore[reportArgumentType]
        (lambda: partition.quantity(5, 2, 1e308), "sigma must be finite"),
        (lambda: partition.quantity(5, 2, None), "sigma must be finite"),  # pyright: ignore[reportArgumentType]
        (lambda: partition.shards([0, 1], 2, 1.5), "classes_per_client=1.5"),  # pyright: ignore[reportArgumentType]
        (lambda: partition.matching([0, 1], [0], [1]), "client has 1 entries"),
        (lambda: partition.matching([], [], [1]), "client has 0 entries"),
        (lambda: partition.matching([0, 1], [0, -1], [1]), "number of its client, from 0"),
        (lambda: partition.matching([0, 1], [0.0, 1.0], [1]), "number of its client, from 0"),
    ],
)
def test_impossible_partitions_are_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        call()
    assert words in str(caught.value)


# --- sizes in proportion -----------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=30).filter(any), st.integers(0, 400), st.integers(0, 5)
)
def test_sizes_are_in_proportion(sizes: list[float], more: int, seed: int) -> None:
    """Shares of what is left when everybody has one example, rounded to within one."""
    rows = len(sizes) + more
    client = partition.proportional(rows, sizes, seed)
    check_cover(client, rows, len(sizes))
    shares = np.array(sizes) / max(sizes)
    assert np.all(np.abs(np.bincount(client) - 1 - more * shares / shares.sum()) <= 1)
    np.testing.assert_array_equal(client, partition.proportional(np.zeros(rows), sizes, seed))


def test_linear_and_exponential_sizes_are_those_of_their_names() -> None:
    linear, exponential = (
        np.bincount(f(10_000, clients=5)) for f in (partition.linear, partition.exponential)
    )
    np.testing.assert_allclose(linear / 10_000, np.arange(1, 6) / 15, atol=5e-4)
    np.testing.assert_allclose(
        exponential / 10_000, np.exp(np.arange(5)) / np.exp(np.arange(5)).sum(), atol=5e-4
    )
    assert np.bincount(partition.exponential(2000, clients=1000)).min() == 1


def test_examples_are_dealt_at_random() -> None:
    first, second = (partition.linear(1000, 4, seed) for seed in (0, 1))
    assert not np.array_equal(first, second) and np.abs(np.diff(first)).sum() > 500


@pytest.mark.parametrize("sizes", [[], [0, 0], [1, -1], [1, np.inf], [[1, 2]], 3, "ab", [[1], 2]])
def test_sizes_that_are_none_are_refused(sizes: list[float]) -> None:
    with pytest.raises(EvenhandError, match="sizes must be a list of finite numbers"):
        partition.proportional(10, sizes)


@pytest.mark.parametrize("make", [partition.linear, partition.exponential])
def test_more_clients_than_examples_are_refused(make: Callable[..., np.ndarray]) -> None:
    with pytest.raises(EvenhandError, match="3 examples are too few for 4 clients"):
        make(3, clients=4)
