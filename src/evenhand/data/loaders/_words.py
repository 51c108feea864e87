"""Text as numbers: words, a table of their vectors, and what an example of text becomes.

Each ``encode_...`` gives a function from one text to an array, for ``encode`` of :func:`evenhand.data.load` and of
:func:`evenhand.data.load_leaf`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.data._validation import NDArray, numbers
from evenhand.data.loaders._source import check_file, open_text, readable
from evenhand.errors import EvenhandError, whole_number

# --- words --------------------------------------------------------------------------------------------------


_WORD = re.compile(r"[\w']+|[.,!?;]")

_TWEET = 4
"""The place of the text in an example of LEAF's Sent140: id, date, query, user, text, ..."""


def words_of(text: Any, *, lower: bool = False) -> list[str]:
    """The words of a text: runs of letters, digits and apostrophes, and each of ``. , ! ? ;``.

    Args:
      text: a string, or an example of LEAF's Sent140, a list whose fifth entry is one.
      lower: whether capitals become small letters.

    Raises:
      EvenhandError: it is neither.

    Example:
      >>> words_of("Don't stop: 2 more!")
      ["Don't", 'stop', '2', 'more', '!']
    """
    if isinstance(text, list | tuple) and len(text) > _TWEET:
        text = text[_TWEET]
    if not isinstance(text, str):
        raise EvenhandError(
            f"an example of type {type(text).__name__} is not text: leave the encoding out where examples are numbers."
        )
    return _WORD.findall(text.lower() if lower else text)


def most_frequent(texts: Iterable[Any], count: int, *, lower: bool = True) -> tuple[str, ...]:
    """The most frequent words of some texts, the most frequent first, words of equal frequency in alphabetical order.

    Args:
      texts: as for :func:`words_of`.  In a real federation nobody sees all of them: a vocabulary has to be public.
      count: how many words; fewer if there are fewer.
      lower: whether capitals become small letters.

    Example:
      >>> most_frequent(["to be or not to be", "that is not it"], 3)
      ('be', 'not', 'to')
    """
    whole_number("count", count, 1)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words_of(text, lower=lower))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:count])


# --- vectors of words ---------------------------------------------------------------------------------------


class WordVectors(NamedTuple):
    """Words and their vectors.

    Attributes:
      words: without repetition.
      vectors: float32 ``(words + 1, d)``: a row for each word, and at last zeros for padding and for any other word.
    """

    words: tuple[str, ...]
    vectors: npt.NDArray[np.float32]

    def __repr__(self) -> str:
        """One line."""
        return f"<WordVectors: {len(self.words):,} words, {self.vectors.shape[1]} numbers each>"


def load_vectors(path: str | Path, *, words: Collection[str] | None = None) -> WordVectors:
    """Loads word vectors from a GloVe text file: a word and its numbers on each line, with blanks between.

    A first line of two whole numbers, as word2vec and fastText write it, is skipped.  Of a word that occurs twice, the
    first vector counts.

    Args:
      path: the file, such as ``glove.6B.300d.txt``; it may be packed as ``.gz``.
      words: read the vectors of these words only; None: all.

    Raises:
      EvenhandError: a line has no word, other than numbers, or another number of them; or no line is left.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.txt"
      >>> _ = path.write_text("good 1 0.5\\nbad -1 0.5\\n")
      >>> load_vectors(path)
      <WordVectors: 2 words, 2 numbers each>

    Source: Pennington et al., *GloVe: Global Vectors for Word Representation*, EMNLP 2014.
    """
    path, kept = Path(path), None if words is None else frozenset(words)
    check_file(path)
    rows: dict[str, NDArray] = {}
    with readable(path), open_text(path, "text") as lines:
        size = 0
        for place, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n ").split(" ")
            if place == 1 and len(cells) == 2 and all(cell.isdecimal() for cell in cells):
                continue
            size = size or len(cells) - 1
            # A few words of the largest files have blanks in them.
            word = " ".join(cells[: len(cells) - size])
            if not word or not size:
                raise _unlike(path, place, len(cells) - 1, size)
            if word in rows or not (kept is None or word in kept):
                continue
            row = numbers(cells[len(cells) - size :])
            if row is None or not (np.abs(row) <= np.finfo(np.float32).max).all():
                raise EvenhandError(
                    f"{path}: line {place} does not hold {size} finite numbers after the word {word[:40]!r}: write a "
                    "word and its vector on each line, with blanks between."
                )
            rows[word] = row.astype(np.float32)
    if not rows:
        asked = "" if kept is None else f" of the {len(kept):,} words that are asked for"
        raise EvenhandError(f"{path}: there are no vectors{asked}: name a file in GloVe's format.")
    table = np.concatenate([np.stack(list(rows.values())), np.zeros((1, size), np.float32)])
    table.setflags(write=False)
    return WordVectors(tuple(rows), table)


def _unlike(path: Path, place: int, count: int, size: int) -> EvenhandError:
    wanted = f"{size} numbers as on the first line" if size else "numbers"
    return EvenhandError(
        f"{path}: line {place} has {count} numbers where a word and {wanted} belong: write a word and its vector on "
        "each line, with blanks between."
    )


# --- what a text becomes ------------------------------------------------------------------------------------


def encode_words(
    vectors: WordVectors, *, length: int = 25, lower: bool = False
) -> Callable[[Any], npt.NDArray[np.int32]]:
    """An encoder of texts as their first words, as tokens, for :func:`evenhand.models.embedded`.

    A token is the place of a word in ``vectors``; other words, and the places after the last word, are the last row.

    Args:
      vectors: the words that are known.
      length: how many words are read.
      lower: whether capitals become small letters first; the sources leave them, so that a word with a capital is
        unknown to GloVe.

    Example:
      >>> import numpy as np
      >>> vectors = WordVectors(("good", "bad"), np.array([[1.0], [-1.0], [0.0]], np.float32))
      >>> encode_words(vectors, length=4)("not bad, good")
      array([2, 1, 2, 0], dtype=int32)

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020 (Sent140).
    """
    whole_number("length", length, 1)
    places, other = {word: i for i, word in enumerate(vectors.words)}, len(vectors.words)

    def encode(text: Any) -> npt.NDArray[np.int32]:
        tokens = np.full(length, other, np.int32)
        first = [places.get(word, other) for word in words_of(text, lower=lower)[:length]]
        tokens[: len(first)] = first
        return tokens

    return encode


def encode_vectors(
    vectors: WordVectors, *, length: int = 25, lower: bool = False
) -> Callable[[Any], npt.NDArray[np.float32]]:
    """An encoder of texts as the vectors of their first words, ``(length, d)``; arguments as for encode_words.

    :func:`evenhand.models.lstm_classifier` reads them.  They take ``d`` times the memory of :func:`encode_words`.

    Example:
      >>> import numpy as np
      >>> vectors = WordVectors(("good", "bad"), np.array([[1.0], [-1.0], [0.0]], np.float32))
      >>> encode_vectors(vectors, length=4)("not bad, good").ravel()
      array([ 0., -1.,  0.,  1.], dtype=float32)
    """
    tokens = encode_words(vectors, length=length, lower=lower)
    return lambda text: vectors.vectors[tokens(text)]


def encode_mean(vectors: WordVectors, *, lower: bool = False) -> Callable[[Any], npt.NDArray[np.float32]]:
    """An encoder of texts as the mean vector of all of their words, ``(d,)``; zeros for a text without words.

    Args:
      vectors: the words that are known; any other counts as a vector of zeros.
      lower: whether capitals become small letters first.

    Example:
      >>> import numpy as np
      >>> vectors = WordVectors(("good", "bad"), np.array([[1.0], [-1.0], [0.0]], np.float32))
      >>> encode_mean(vectors)("good good bad day")
      array([0.25], dtype=float32)

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, section 7.1 (Sent140).
    """
    places, other = {word: i for i, word in enumerate(vectors.words)}, len(vectors.words)

    def encode(text: Any) -> npt.NDArray[np.float32]:
        rows = [places.get(word, other) for word in words_of(text, lower=lower)]
        return vectors.vectors[rows or [other]].mean(0, dtype=np.float32)

    return encode


def encode_counts(words: Sequence[str], *, lower: bool = True) -> Callable[[Any], npt.NDArray[np.float32]]:
    r"""An encoder of texts as bags of words: the shares of some words in a text, :math:`x_j = n_j / n`.

    There :math:`n_j` is how often word :math:`j` occurs and :math:`n` how many words the text has, other ones included.

    Args:
      words: such as those of :func:`most_frequent`, without repetition.
      lower: whether capitals become small letters first.

    Example:
      >>> encode_counts(["be", "not", "to"])("To be or not to be")
      array([0.33333334, 0.16666667, 0.33333334], dtype=float32)

    Source: the bags of words of StackOverflow in Li et al., *Ditto: Fair and Robust Federated Learning Through
    Personalization*, ICML 2021.
    """
    places = {word: i for i, word in enumerate(words)}
    if len(places) < len(words) or not words:
        raise EvenhandError("encode_counts: a word is listed twice, or there is none: list each word once.")

    def encode(text: Any) -> npt.NDArray[np.float32]:
        tokens = words_of(text, lower=lower)
        occurring = [places[word] for word in tokens if word in places]
        counts = np.bincount(occurring, minlength=len(places))
        return (counts / max(1, len(tokens))).astype(np.float32)

    return encode


# --- the characters of LEAF's Shakespeare task as tokens ----------------------------------------------------


ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare task; a character's token is its place here."""

_CHARACTERS = {character: token for token, character in enumerate(ALPHABET)}


def encode_characters(text: str) -> NDArray:
    """The int32 tokens of ``text``, one per character of :data:`ALPHABET`.

    Args:
      text: any string.

    Raises:
      EvenhandError: ``text`` is not a string, or a character is not among the 80.

    Source: Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018.

    Example:
      >>> encode_characters("Ay, me")
      array([25, 77,  8,  1, 65, 57], dtype=int32)
    """
    try:
        return np.array([_CHARACTERS[character] for character in text], np.int32)
    except KeyError as error:
        raise EvenhandError(
            f"character {error.args[0]!r} is not among the {len(ALPHABET)} of the LEAF Shakespeare alphabet: "
            "replace it, or encode with another function."
        ) from None
    except TypeError:
        raise EvenhandError(
            f"an example of type {type(text).__name__} is not text: leave the encoding out where examples are numbers."
        ) from None
