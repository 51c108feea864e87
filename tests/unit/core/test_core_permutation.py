"""The shuffle that is computed entry by entry: a permutation for every size, and a fair one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evenhand import streams
from evenhand.streams import Purpose, client_stream, stream
from evenhand.types import Array

_LARGE = 2**20 + 7


def _keys(count: int) -> Array:
    root = stream(jax.random.key(5), Purpose.WORK)
    return jax.vmap(lambda client: client_stream(root, client))(jnp.arange(count))


def _orders(count: int, size: int, epoch: int = 0) -> np.ndarray:
    """The permutations ``(count, size)`` of as many clients' keys."""
    # Not the compiled ``permute``: it would remember the number of rounds that a test changes.
    body = cast(Any, streams.permute).__wrapped__

    def order(key: Array) -> Array:
        return body(jnp.arange(size), jnp.int32(size), streams.permutation_words(key), jnp.int32(epoch))

    return np.asarray(jax.jit(jax.vmap(order))(_keys(count)))


def _codes(orders: np.ndarray) -> np.ndarray:
    """The number, 0 to 23, of each permutation of 4."""
    number = {order: code for code, order in enumerate(itertools.permutations(range(4)))}
    return np.array([number[tuple(order)] for order in orders.tolist()])


def _p_value(codes: np.ndarray, cells: int) -> float:
    return float(stats.chisquare(np.bincount(codes, minlength=cells)).pvalue)


def test_bijection_for_small_sizes() -> None:
    positions, word = jnp.arange(40), streams.permutation_words(jax.random.key(0))
    orders = jax.vmap(lambda n: streams.permute(positions, n, word, jnp.int32(3)))(jnp.arange(1, 41))
    for n, order in enumerate(np.asarray(orders), start=1):
        assert sorted(order[:n].tolist()) == list(range(n))


def test_positions_are_those_of_a_loop_over_rounds_in_whole_numbers() -> None:
    """The rotation and the 16 rounds of the docstring, in Python's integers."""

    def hashed(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    def place(i: int, n: int, word: list[int], epoch: int) -> int:
        start = hashed((word[0] + epoch * 0x9E3779B9) % 2**32)
        i = (i + hashed(start ^ word[1]) % n) % n
        for number in range(1, 17):
            salt = hashed(hashed(start ^ number * 0x85EBCA6B % 2**32) ^ word[1])
            partner = (hashed((salt + 0x68E31DA4) % 2**32) % n - i) % n
            i = partner if hashed(max(i, partner) ^ salt) >= 2**31 else i
        return i

    for word in _keys(3):
        words = streams.permutation_words(word)
        for n, epoch in ((1, 0), (7, 0), (7, 3), (1000, 1), (2**31 - 1, 2)):
            positions = np.unique(np.linspace(0, n - 1, 9).astype(np.int32))
            found = streams.permute(jnp.asarray(positions), jnp.int32(n), words, jnp.int32(epoch))
            assert found.tolist() == [place(int(i), n, np.asarray(words).tolist(), epoch) for i in positions]


@pytest.fixture(scope="module")
def many() -> Callable[[int], np.ndarray]:
    def order(size: int) -> np.ndarray:
        word = streams.permutation_words(jax.random.key(1))
        return np.asarray(streams.permute(jnp.arange(_LARGE), jnp.int32(size), word, jnp.int32(0)))

    return order


@pytest.mark.parametrize("size", [65_536, 65_537, 1_000_003, _LARGE])
def test_bijection_for_large_sizes(many: Callable[[int], np.ndarray], size: int) -> None:
    order = many(size)[:size]
    assert np.array_equal(np.sort(order), np.arange(size))
    assert np.mean(order == np.arange(size)) < 1e-3, "hardly any entry moves"


def test_the_largest_size_does_not_overflow(many: Callable[[int], np.ndarray]) -> None:
    order = many(2**31 - 1)
    assert order.min() >= 0
    assert len(np.unique(order)) == _LARGE
    assert order.max() > 2**30, "the first positions must spread over all of the range"


@pytest.mark.parametrize("size", [1, 2])
def test_tiny_sizes(size: int) -> None:
    orders = _orders(200, size)
    assert set(map(tuple, orders.tolist())) == set(itertools.permutations(range(size)))


def test_all_permutations_of_four_are_equally_likely() -> None:
    assert _p_value(_codes(_orders(24_000, 4)), 24) > 1e-3


def test_fewer_rounds_are_not_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SHUFFLE_ROUNDS", 3)
    assert _p_value(_codes(_orders(24_000, 4)), 24) < 1e-9


def test_all_epochs_of_one_word_are_equally_likely() -> None:
    word = streams.permutation_words(jax.random.key(2))
    orders = jax.vmap(lambda epoch: streams.permute(jnp.arange(4), jnp.int32(4), word, epoch))
    codes = _codes(np.asarray(orders(jnp.arange(24_000))))
    assert _p_value(codes, 24) > 1e-3
    successive = codes[:-1] * 24 + codes[1:]
    assert _p_value(successive, 24 * 24) > 1e-3
    assert _p_value(codes[:-1] * 24 + codes[:-1], 24 * 24) < 1e-9, "the test sees dependence"


def test_pairs_of_a_larger_size_are_fair() -> None:
    size = 13
    orders = _orders(20_000, size)
    for first, second in ((0, 1), (3, 12)):
        pairs = orders[:, first] * size + orders[:, second]
        counts = np.bincount(pairs, minlength=size * size).reshape(size, size)
        assert np.trace(counts) == 0
        off_diagonal = counts[~np.eye(size, dtype=bool)]
        assert stats.chisquare(off_diagonal).pvalue > 1e-3


def _low_ids_in_low_slots(rotated: bool, cohorts: int = 10**6, clients: int = 10**6, m: int = 10) -> int:
    """How often the first ``m`` of very many clients are among the first ``m`` drawn, over many cohorts."""
    size = jnp.int32(clients)

    def hits(key: Array) -> Array:
        word, slots = streams.permutation_words(key), jnp.arange(m)
        if not rotated:  # what the rounds alone do: the first rotation is undone beforehand
            shift = streams._hash(streams._hash(word[0]) ^ word[1]) % jnp.uint32(clients)
            slots = (slots + size - shift.astype(jnp.int32)) % size
        return jnp.sum(streams.permute(slots, size, word, jnp.int32(0)) < m)

    root = stream(jax.random.key(7), Purpose.COHORT)
    chunk = 10**4  # small enough for the caches
    count = jax.jit(
        lambda first: jnp.sum(jax.vmap(lambda i: hits(client_stream(root, first + i)))(jnp.arange(chunk)))
    )
    return sum(int(count(jnp.int32(first))) for first in range(0, cohorts, chunk))


def test_low_ids_of_very_many_are_not_favoured() -> None:
    """Each of 10 slots holds one of 10 ids out of a million: 100 times in a million cohorts, Poisson.

    With 16 rounds alone, a slot keeps its number once in 2**16 times, which makes the count about 250.
    """
    fair, favoured = 100.0, 100.0 + 10**7 / 2**16
    most = fair + 4.5 * np.sqrt(fair)
    assert most + 6 * np.sqrt(favoured) < favoured, "the test must be able to tell the two apart"
    assert abs(_low_ids_in_low_slots(rotated=True) - fair) < most - fair
    assert _low_ids_in_low_slots(rotated=False) > most


def test_epochs_and_words_give_different_orders() -> None:
    words = jax.vmap(streams.permutation_words)(_keys(4))
    order = jax.vmap(lambda word, epoch: streams.permute(jnp.arange(40), jnp.int32(40), word, epoch))
    orders = np.asarray(order(jnp.repeat(words, 4, axis=0), jnp.tile(jnp.arange(4), 4)))
    assert len(np.unique(orders, axis=0)) == 16
    again = streams.permute(jnp.arange(40), jnp.int32(40), words[1], jnp.int32(1))
    assert again.tolist() == orders[5].tolist(), "the same word and epoch give the same order"


def test_both_words_count() -> None:
    word = jnp.array([7, 9], jnp.uint32)
    orders = {
        tuple(np.asarray(streams.permute(jnp.arange(40), jnp.int32(40), w, jnp.int32(0))).tolist())
        for w in (word, word + jnp.array([1, 0], jnp.uint32), word + jnp.array([0, 1], jnp.uint32))
    }
    assert len(orders) == 3


def test_words_of_different_keys_differ() -> None:
    words = np.asarray(jax.vmap(streams.permutation_words)(_keys(1000)))
    assert words.shape == (1000, 2)
    assert words.dtype == np.uint32
    assert len(np.unique(words, axis=0)) == 1000


def test_positions_are_mapped_one_by_one() -> None:
    word, size = streams.permutation_words(jax.random.key(3)), jnp.int32(40)
    whole = streams.permute(jnp.arange(40), size, word, jnp.int32(1))
    one = streams.permute(jnp.int32(17), size, word, jnp.int32(1))
    assert one.shape == ()
    assert one.dtype == jnp.int32
    assert int(one) == int(whole[17])
