"""Words hashed into inputs, against MurmurHash3 written out, and tokens of tokenizers by what they look like."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import published
from evenhand.data import encode_hashed, encode_tokens, load, load_leaf
from evenhand.errors import EvenhandError

MASK = 2**32 - 1


def murmur(key: bytes) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0) as Appleby published it, as a signed number."""

    def turned(value: int, by: int) -> int:
        return (value << by | value >> 32 - by) & MASK

    def mixed(value: int) -> int:
        return turned(value * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK

    total, whole = 0, len(key) // 4 * 4
    for first in range(0, whole, 4):
        total ^= mixed(int.from_bytes(key[first : first + 4], "little"))
        total = (turned(total, 13) * 5 + 0xE6546B64) & MASK
    if key[whole:]:
        total ^= mixed(int.from_bytes(key[whole:], "little"))
    total ^= len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        total = (total ^ total >> shift) * factor & MASK
    return total - 2**32 if total >= 2**31 else total


def words(text: str) -> list[str]:
    """Runs of letters, digits, underscores and apostrophes, and marks, character by character."""
    parts, run = list[str](), ""
    for character in unicodedata.normalize("NFC", text).lower() + " ":
        if character.isalnum() or character in "_'":
            run += character
            continue
        parts += [run] if run else []
        parts += [character] if character in ".,!?;" else []
        run = ""
    return parts


def hashed(text: str, buckets: int) -> np.ndarray:
    row = np.zeros(buckets)
    for word in words(text):
        value = murmur(word.encode())
        row[abs(value) % buckets] += 1 if value >= 0 else -1
    return row / (math.sqrt(np.square(row).sum()) or 1.0)


def test_the_oracle_hashes_as_published() -> None:
    vectors = {"": 0, "test": 0xBA6BD213, "Hello, world!": 0xC0363E43}
    assert {text: murmur(text.encode()) & MASK for text in vectors} == vectors


TEXTS = [
    "A good film, and not a bad one!",
    "Don't stop; 2 more?",
    "Cafe\u0301 and caf\u00e9, CAF\u00c9",
    "\u0645\u0631\u062d\u0628\u0627 \u4f60\u597d",
    "",
    " \n-",
    "word " * 500,
]


@pytest.mark.parametrize("buckets", [1, 7, 64, 1024])
def test_words_are_hashed_with_signs_and_rows_have_norm_one(buckets: int) -> None:
    encode = encode_hashed(buckets)
    for text in TEXTS:
        row = encode(text)
        assert row.dtype == np.float32 and row.shape == (buckets,)
        np.testing.assert_allclose(row, hashed(text, buckets), atol=1e-6)
        assert np.linalg.norm(row) == pytest.approx(1.0, abs=1e-6) or not row.any()


@given(st.text(st.sampled_from("ab\u00e9Z09'_ .,!?;-\n"), max_size=40))
def test_any_text_is_hashed_as_by_the_oracle(text: str) -> None:
    np.testing.assert_allclose(encode_hashed(16)(text), hashed(text, 16), atol=1e-6)


def test_the_default_is_1024_and_both_ways_to_write_an_accent_are_one_word() -> None:
    assert encode_hashed()("film").shape == (1024,)
    np.testing.assert_array_equal(encode_hashed()("cafe\u0301"), encode_hashed()("caf\u00e9"))


@pytest.mark.parametrize("buckets", [0, -1, 2.5, 2**31])
def test_buckets_are_a_whole_number(buckets: Any) -> None:
    with pytest.raises(EvenhandError, match="buckets"):
        encode_hashed(buckets)


def test_data_sets_of_text_are_hashed(tmp_path: Any) -> None:
    """IMDB's reviews and the tweets of LEAF's Sent140, which stand in a list."""
    data = load(published.imdb(tmp_path / "imdb"), clients=1, buckets=8)
    encoded = load(published.imdb(tmp_path / "again"), clients=1, encode=lambda text: hashed(text, 8))
    np.testing.assert_allclose(data.train.x, encoded.train.x, atol=1e-6)
    assert data.train.x.any()
    tweet = ["1", "date", "query", "ann", "A good day"]
    (tmp_path / "leaf.json").write_text(
        '{"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": ['
        + ", ".join(str(tweet).replace("'", '"') for _ in range(2))
        + '], "y": [0, 1]}}}'
    )
    data = load(tmp_path / "leaf.json", buckets=8, test_fraction=0.0)
    np.testing.assert_allclose(data.train.x, [hashed("A good day", 8)] * 2, atol=1e-6)
    again = load_leaf(tmp_path / "leaf.json", encode=encode_hashed(8), test_fraction=0.0)
    np.testing.assert_array_equal(again.train.x, data.train.x)


def test_two_ways_to_read_text_are_refused(tmp_path: Any) -> None:
    path = published.imdb(tmp_path)
    with pytest.raises(EvenhandError, match="vocabulary and buckets exclude each other"):
        load(path, vocabulary=5, buckets=8)
    with pytest.raises(EvenhandError, match=r"vocabulary=1000, hash them with buckets=1024"):
        load(path)


# --- tokens ---------------------------------------------------------------------------------------------------


class Encoding(NamedTuple):
    """As of ``tokenizers``."""

    ids: list[int]


class Fast:
    """As ``tokenizers.Tokenizer``: an object whose ``encode`` gives an object, with marks around each text."""

    def encode(self, text: str) -> Encoding:
        return Encoding([101, *map(len, text.split()), 102])


class Transformers:
    """As of Hugging Face: it can be called, for a dictionary, but ``encode`` gives the numbers."""

    pad_token_id = 9

    def __call__(self, text: str) -> dict[str, list[int]]:
        raise AssertionError

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


def lengths(text: str) -> Any:
    return np.array([len(word) for word in text.split()])


@pytest.mark.parametrize(
    ("tokenizer", "text", "row"),
    [
        (lengths, "a good film", [1, 4, 4, 0, 0]),
        (lengths, "a good film is a good thing", [1, 4, 4, 2, 1]),
        (lengths, "", [0, 0, 0, 0, 0]),
        (lengths, "  ", [0, 0, 0, 0, 0]),
        (Fast(), "a good film", [101, 1, 4, 4, 102]),
        (Fast(), "a good", [101, 1, 4, 102, 0]),
        (Fast(), "", [0, 0, 0, 0, 0]),
        (Transformers(), "a good", [1, 4, 9, 9, 9]),
        (Transformers().encode, "a good", [1, 4, 0, 0, 0]),
    ],
)
def test_tokens_are_padded_and_cropped(tokenizer: Any, text: str, row: list[int]) -> None:
    tokens = encode_tokens(tokenizer, length=5)(text)
    assert tokens.dtype == np.int32 and tokens.tolist() == row


def test_the_pad_may_be_chosen() -> None:
    assert encode_tokens(Transformers(), length=3, pad=5)("good").tolist() == [4, 5, 5]
    for pad in (-1, 2**31, 0.5):
        with pytest.raises(EvenhandError, match="pad"):
            encode_tokens(lengths, length=3, pad=pad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError, match="length"):
        encode_tokens(lengths, length=0)


@pytest.mark.parametrize(
    "tokenizer",
    [
        str.split,
        lambda text: [0.5],
        lambda text: [-1],
        lambda text: [2**31],
        lambda text: 3,
        lambda text: [[1, 2]],
        lambda text: {"input_ids": [1]},
        lambda text: [[1], [1, 2]],
    ],
)
def test_what_gives_no_whole_numbers_is_refused(tokenizer: Callable[[str], Any]) -> None:
    with pytest.raises(
        EvenhandError, match=r"the tokenizer gives .* for the text 'a b'.*whole numbers from 0"
    ):
        encode_tokens(tokenizer, length=3)("a b")


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(EvenhandError, match="int objects are no tokenizers"):
        encode_tokens(3, length=3)
