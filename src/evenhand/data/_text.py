"""Text as numbers: words counted, hashed or replaced by vectors, tokens, and the characters of a play.

Each ``encode_...`` gives a function from one text to an array, for ``encode`` of :func:`evenhand.data.load`, of
:func:`evenhand.data.from_frame` and of :func:`evenhand.data.load_leaf`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.data._features import BUCKETS, NDArray
from evenhand.errors import EvenhandError, expect, truth_value, whole_number

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
    lower = truth_value("lower", lower)
    count = whole_number("count", count, 1)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words_of(text, lower=lower))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:count])


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


# --- what a text becomes ------------------------------------------------------------------------------------


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
    lower = truth_value("lower", lower)
    expect("words", words, Collection, "['be', 'not']")
    places = {word: i for i, word in enumerate(words)}
    if len(places) < len(words) or not words:
        raise EvenhandError("encode_counts: a word is listed twice, or there is none: list each word once.")

    def encode(text: Any) -> npt.NDArray[np.float32]:
        tokens = words_of(text, lower=lower)
        occurring = [places[word] for word in tokens if word in places]
        counts = np.bincount(occurring, minlength=len(places))
        return (counts / max(1, len(tokens))).astype(np.float32)

    return encode


def encode_hashed(buckets: int = BUCKETS) -> Callable[[Any], npt.NDArray[np.float32]]:
    r"""An encoder of texts as hashed bags of words, for which no party has to see the words of others.

    A word :math:`w` of a text, in small letters, adds its sign :math:`\xi(w)` to the bucket :math:`h(w)`:

    .. math:: x = z / \lVert z \rVert_2, \qquad z_j = \sum_{w : h(w) = j} \xi(w) .

    With :math:`m(w)`, the signed 32-bit MurmurHash3 of the word in UTF-8 with seed 0, :math:`h(w)` is :math:`|m(w)|`
    modulo ``buckets``, and :math:`\xi(w)` is 1 if :math:`m(w) \geq 0`, else -1.  Words that share a bucket therefore
    cancel on average.  All machines compute the same numbers.

    Args:
      buckets: how many inputs a text becomes; with more of them, fewer words share one.

    Edge cases: a text without words is a row of zeros, and so is one whose words cancel.

    Differs from the paper: the row is divided by its norm, as in scikit-learn's ``HashingVectorizer``, which computes
    it here; long and short texts therefore count alike.

    Example:
      >>> encode_hashed(4)("A good film, a GOOD one")
      array([-0.37796447,  0.37796447,  0.75592893, -0.37796447], dtype=float32)

    Source: Weinberger et al., *Feature Hashing for Large Scale Multitask Learning*, ICML 2009.
    """
    buckets = whole_number("buckets", buckets, 1, 2**31 - 1)
    return lambda text: hashed_rows([text], buckets)[0]


def hashed_rows(texts: Sequence[Any], buckets: int) -> npt.NDArray[np.float32]:
    """The rows of :func:`encode_hashed` for some texts, ``(len(texts), buckets)``."""
    return _vectorizer(buckets).transform(texts).toarray()


@cache
def _vectorizer(buckets: int) -> Any:
    # Imported late: it takes seconds that tables without text should not wait for.
    from sklearn.feature_extraction.text import HashingVectorizer

    make: Any = HashingVectorizer  # its types know neither functions nor float32
    return make(n_features=buckets, analyzer=_small_words, dtype=np.float32)


def _small_words(text: Any) -> list[str]:
    """The words of a text in small letters; of a letter and an accent, one character."""
    return words_of(unicodedata.normalize("NFC", text) if isinstance(text, str) else text, lower=True)


def encode_tokens(
    tokenizer: Any, *, length: int, pad: int | None = None
) -> Callable[[Any], npt.NDArray[np.int32]]:
    """An encoder of texts as the first tokens that a tokenizer finds, int32 ``(length,)``.

    Args:
      tokenizer: an object with a method ``encode``, as those of Hugging Face, ``tokenizers`` or ``tiktoken``, or a
        function.  It takes a text and gives whole numbers, or an object that has them as ``ids``.
      length: how many tokens are kept; longer texts are cropped.
      pad: the token of the places after the last one; None: the tokenizer's ``pad_token_id``, or 0 without one.

    Edge cases: an empty text is ``pad`` in all places, without the tokens that some tokenizers put around each text.

    Raises:
      EvenhandError: ``tokenizer`` is neither, or does not give whole numbers from 0.

    Example:
      >>> tokenize = lambda text: [len(word) for word in text.split()]
      >>> encode_tokens(tokenize, length=4)("a good film")
      array([1, 4, 4, 0], dtype=int32)
    """
    length = whole_number("length", length, 1)
    tokens_of: Any = getattr(tokenizer, "encode", tokenizer)
    title = type(tokenizer).__name__
    if not callable(tokens_of):
        raise EvenhandError(
            f"encode_tokens: {title} objects are no tokenizers: give a function from a text to whole numbers, or an "
            "object with a method encode."
        )
    filler = getattr(tokenizer, "pad_token_id", None) if pad is None else pad
    padding = whole_number("pad", 0 if filler is None else filler, 0, 2**31 - 1)

    def encode(text: Any) -> npt.NDArray[np.int32]:
        row = np.full(length, padding, np.int32)
        if text == "":
            return row
        tokens: Any = tokens_of(text)
        try:
            array = np.asarray(getattr(tokens, "ids", tokens))
        except (TypeError, ValueError):
            array = np.zeros((0, 0))
        is_listed = array.ndim == 1 and (array.dtype.kind in "iu" or not array.size)
        if not is_listed or np.any(array < 0) or np.any(array >= 2**31):
            raise EvenhandError(
                f"encode_tokens: the tokenizer gives {type(tokens).__name__} {str(tokens)[:40]} for the text "
                f"{str(text)[:40]!r}: give one whose encode, or which itself, gives a list of whole numbers from 0."
            )
        row[: len(array)] = array[:length]
        return row

    return encode


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
    lower = truth_value("lower", lower)
    length = whole_number("length", length, 1)
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
    lower = truth_value("lower", lower)
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
    lower = truth_value("lower", lower)
    places, other = {word: i for i, word in enumerate(vectors.words)}, len(vectors.words)

    def encode(text: Any) -> npt.NDArray[np.float32]:
        rows = [places.get(word, other) for word in words_of(text, lower=lower)]
        return vectors.vectors[rows or [other]].mean(0, dtype=np.float32)

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
