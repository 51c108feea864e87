"""Words, their vectors, and what a text becomes."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import published
from evenhand.data import (
    WordVectors,
    encode_counts,
    encode_mean,
    encode_vectors,
    encode_words,
    load,
    load_leaf,
    load_vectors,
    most_frequent,
)
from evenhand.errors import EvenhandError

VECTORS = WordVectors(("good", "bad", "."), np.array([[1, 2], [3, 4], [5, 6], [0, 0]], np.float32))


def test_vectors_are_read_from_gloves_files(tmp_path: Path) -> None:
    path = published.vectors(tmp_path)
    known = load_vectors(path)
    assert known.words == ("good", "bad", "film", "a", ". . .") and known.vectors.dtype == np.float32
    np.testing.assert_array_equal(known.vectors[[1, 4, 5]], [[-1, 0.5, 0], [0, 0, 1], [0, 0, 0]])
    assert not known.vectors.flags.writeable
    few = load_vectors(path, words=["film", "good", "sea"])
    assert few.words == ("good", "film")
    np.testing.assert_array_equal(few.vectors, known.vectors[[0, 2, 5]])


def test_vectors_may_be_packed_and_have_a_header(tmp_path: Path) -> None:
    text = "3 2\ngood 1 2\nbad 3 4\ngood 9 9\ncaf\u00e9 5 6 \n"
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress(text.encode()))
    known = load_vectors(tmp_path / "v.txt.gz")
    assert known.words == ("good", "bad", "caf\u00e9")
    np.testing.assert_array_equal(known.vectors, [[1, 2], [3, 4], [5, 6], [0, 0]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are no vectors"),
        ("\n", "line 1 has 0 numbers"),
        ("good 1 2\nbad 3\n", "line 2 has 1 numbers where a word and 2 numbers"),
        ("good 1 2\n\n", "line 2 has 0 numbers"),
        ("good 1 2\nbad 3 x\n", "line 2 does not hold 2 finite numbers after the word 'bad'"),
        ("good 1 2\nbad 3 nan\n", "line 2 does not hold 2 finite numbers"),
        ("good 1 2\nbad 3 1e39\n", "line 2 does not hold 2 finite numbers"),
        ("good\tbad\n", "line 1 has 0 numbers"),
    ],
)
def test_what_is_no_table_of_vectors_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(EvenhandError, match=words) as caught:
        load_vectors(tmp_path / "v.txt")
    assert "v.txt" in str(caught.value) and str(caught.value).endswith(".")


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes(b"good \xff 1")
    for path, words in (
        (tmp_path / "v.txt", "UTF-8"),
        (tmp_path / "w.txt", "no such file"),
        (tmp_path, "a folder"),
    ):
        with pytest.raises(EvenhandError, match=words):
            load_vectors(path)


def test_a_text_becomes_tokens_vectors_and_a_mean() -> None:
    text = "good... Bad bad, it's"  # good . . . Bad bad , it's
    tokens = [0, 2, 2, 2, 3, 1, 3, 3]
    np.testing.assert_array_equal(encode_words(VECTORS, length=10)(text), [*tokens, 3, 3])
    np.testing.assert_array_equal(encode_words(VECTORS, length=6, lower=True)(text), [0, 2, 2, 2, 1, 1])
    np.testing.assert_array_equal(encode_vectors(VECTORS, length=6)(text), VECTORS.vectors[tokens[:6]])
    np.testing.assert_allclose(encode_mean(VECTORS)(text), VECTORS.vectors[tokens].mean(0))
    for empty in ("", " - "):
        np.testing.assert_array_equal(encode_mean(VECTORS)(empty), [0, 0])
        np.testing.assert_array_equal(encode_words(VECTORS, length=2)(empty), [3, 3])
    assert encode_mean(VECTORS)(text).dtype == encode_vectors(VECTORS)(text).dtype == np.float32


@given(st.text(alphabet="abA .,'!é1_-", max_size=60), st.booleans())
def test_counts_are_shares_of_the_words(text: str, lower: bool) -> None:
    """Against the regular expression of the sources, counted by hand."""
    tokens = re.findall(r"[\w']+|[.,!?;]", text.lower() if lower else text)
    words = ("a", ".", "ab", "'")
    expected = [Counter(tokens)[word] / max(1, len(tokens)) for word in words]
    np.testing.assert_allclose(encode_counts(words, lower=lower)(text), expected, rtol=1e-6)


def test_the_most_frequent_words() -> None:
    texts = ["b a b", "B c a", "d"]
    assert most_frequent(texts, 2) == ("b", "a")
    assert most_frequent(texts, 9) == ("b", "a", "c", "d")
    assert most_frequent(texts, 3, lower=False) == ("a", "b", "B")
    for count in (0, 1.5):
        with pytest.raises(EvenhandError, match="count"):
            most_frequent(texts, count)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("words", [[], ["a", "a"]])
def test_words_to_count_are_distinct(words: list[str]) -> None:
    with pytest.raises(EvenhandError, match="listed twice"):
        encode_counts(words)


def sent140(folder: Path) -> Path:
    """A file of LEAF's Sent140, whose examples are lists."""
    rows = {user: [[f"{i}", "Mon", "NO_QUERY", user, text, "train"] for i, text in enumerate(texts)]
            for user, texts in (("ann", ["good day", "bad bad ."]), ("bob", ["a good film"]))}  # fmt: skip
    content = {
        "users": ["ann", "bob"],
        "num_samples": [2, 1],
        "user_data": {"ann": {"x": rows["ann"], "y": ["4", "0"]}, "bob": {"x": rows["bob"], "y": ["4"]}},
    }
    path = folder / "sent140.json"
    path.write_text(json.dumps(content))
    return path


def test_tweets_of_leaf_are_read(tmp_path: Path) -> None:
    data = load_leaf(sent140(tmp_path), encode=encode_words(VECTORS, length=3), test_fraction=0.0)
    assert data.classes == ("0", "4")
    np.testing.assert_array_equal(data.train.x, [[0, 3, 3], [1, 1, 2], [3, 0, 3]])
    np.testing.assert_array_equal(data.train.y, [1, 0, 1])
    counted = load(sent140(tmp_path), vocabulary=2, test_fraction=0.0)  # bad, good
    np.testing.assert_allclose(counted.train.x, [[0, 1 / 2], [2 / 3, 0], [0, 1 / 3]])


def test_numbers_are_no_text() -> None:
    for entry in (1.0, [1.0, 2.0], ["a", "b"], None):
        with pytest.raises(EvenhandError, match="is not text"):
            encode_words(VECTORS)(entry)
