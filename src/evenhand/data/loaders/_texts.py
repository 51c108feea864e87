"""Data sets of texts, as they are published.

From top to bottom: rows of text become examples; IMDB; Sent140; the HDF5 files of TensorFlow Federated, which hold
plays, questions and answers, or images; vectors of words.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.data import _validation as validation
from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._features import Encode
from evenhand.data._text import ALPHABET, WordVectors, encode_counts, encode_hashed, most_frequent
from evenhand.data._validation import NDArray
from evenhand.data.loaders._archive import contents
from evenhand.data.loaders._arrays import in_unit_range, pooled
from evenhand.data.loaders._source import Options, check_file, check_unpacked, listing, open_text, readable
from evenhand.errors import Argument, EvenhandError

# --- rows of text --------------------------------------------------------------------------------------------


class TextRows(NamedTuple):
    """Examples of text.

    Attributes:
      texts: one for each example.
      y: int32 ``(n,)`` class numbers.
      clients: the client of each example; None: they belong to no client.
    """

    texts: Sequence[str]
    y: NDArray
    clients: Sequence[str] | None = None


def text_dataset(
    path: Path, parts: Sequence[TextRows], classes: tuple[str, ...], options: Options, *, clients: int = 1
) -> FederatedDataset:
    """The data set of training and test examples of text.

    Args:
      path: where they are from.
      parts: for training, and for testing if the source has a test part.
      classes: the names of the classes.
      options: what the caller asked for; ``encode``, ``vocabulary`` or ``buckets`` says what a text becomes.
      clients: how many clients there are where neither the examples nor the options say so.
    """
    parts, notes = _with_enough(parts, options.min_examples)
    if not parts[0].texts:
        raise EvenhandError(
            f"{path}: no client has {options.min_examples:,} examples: ask for fewer with ",
            Argument("min_examples", "N"),
            ".",
        )
    encode = encoder(str(path), lambda: parts[0].texts, options)
    xs = [
        validation.as_features([np.asarray(encode(text)) for text in part.texts], str(path)) for part in parts
    ]
    if parts[0].clients is None:
        examples = [(x, part.y) for x, part in zip(xs, parts, strict=True)]
        return pooled(path, examples, classes, options, clients=clients)
    rows = [PooledRows(x, part.y, np.array(part.clients)) for x, part in zip(xs, parts, strict=True)]
    data = build(rows, options.splitting, name=str(path), classes=classes)
    return replace(data, notes=(*data.notes, *notes))


def encoder(source: str, texts: Callable[[], Sequence[Any]], options: Options) -> Encode:
    """What turns a text into numbers: the caller's function, or counts of the most frequent words of the ``texts``,
    or hashed words.

    Raises:
      EvenhandError: the caller said neither.
    """
    if options.encode is not None:
        return options.encode
    if options.vocabulary is not None:
        return encode_counts(most_frequent(texts(), options.vocabulary))
    if options.buckets is not None:
        return encode_hashed(options.buckets)
    raise EvenhandError(
        f"{source}: the examples are text: count their words with ",
        Argument("vocabulary", "1000"),
        ", hash them with ",
        Argument("buckets", "1024"),
        ", or say how to turn them into numbers, as with encode=evenhand.data.encode_words(...) in Python or --vectors "
        "FILE on the command line.",
    )


def _with_enough(parts: Sequence[TextRows], least: int) -> tuple[Sequence[TextRows], tuple[str, ...]]:
    """The rows of clients with enough examples, before any is encoded, and a note of how many clients these are."""
    if least <= 1 or parts[0].clients is None:
        return parts, ()
    counts = Counter(client for part in parts for client in part.clients or ())
    enough = {client for client, count in counts.items() if count >= least}
    kept = list[TextRows]()
    for part in parts:
        places = [i for i, client in enumerate(part.clients or ()) if client in enough]
        texts, names = [part.texts[i] for i in places], [(part.clients or ())[i] for i in places]
        kept.append(TextRows(texts, part.y[places], names))
    note = f"Kept {len(enough):,} of {len(counts):,} clients: those with at least {least:,} examples."
    return kept, (note,) if len(enough) < len(counts) else ()


# --- IMDB: reviews of films ----------------------------------------------------------------------------------


REVIEW = re.compile(r"(^|/)(train|test)/(pos|neg)/(\d+)_\d+\.txt$")

_SENTIMENTS = ("neg", "pos")

_IMDB_CLIENTS = 100


def load_imdb(path: Path, options: Options) -> FederatedDataset:
    """50,000 reviews of films, half for training: a folder or archive of ``train/pos/0_9.txt`` and the like.

    Source: Maas et al., *Learning Word Vectors for Sentiment Analysis*, ACL 2011.
    """
    rows: dict[str, list[tuple[int, int, str]]] = {"train": [], "test": []}
    for name, content in contents(path, REVIEW):
        match = REVIEW.search(name)
        assert match is not None
        try:
            text = content.decode("utf-8").replace("<br />", " ")
        except UnicodeDecodeError:
            raise EvenhandError(
                f"{path}: {name[-80:]} is not UTF-8 text: copy or download it again."
            ) from None
        rows[match[2]].append((_SENTIMENTS.index(match[3]), int(match[4]), text))
    if not rows["train"]:
        raise EvenhandError(
            f"{path}: there are no reviews for training: add those of train/pos and train/neg."
        )
    parts = [
        TextRows([text for _, _, text in part], np.array([label for label, _, _ in part], np.int32))
        for part in (sorted(rows["train"]), sorted(rows["test"]))
        if part
    ]
    return text_dataset(path, parts, _SENTIMENTS, options, clients=_IMDB_CLIENTS)


# --- Sent140: tweets -----------------------------------------------------------------------------------------


TWEETS = re.compile(r"(^|/)training\.[^/]*noemoticon\.csv$")

_POSITIVE, _TWEET_CELLS, _USER, _TEXT = "4", 6, 4, 5


def load_sent140(path: Path, options: Options) -> FederatedDataset:
    """Tweets by account: the training file of Sentiment140, or a folder or archive that it is in."""
    files = (
        [(path.name, path.read_bytes())] if path.suffix.lower() == ".csv" else list(contents(path, TWEETS))
    )
    if len(files) != 1:
        raise EvenhandError(f"{path}: {len(files)} files of tweets where one belongs: name that file.")
    return _tweets(path, files[0][1], options)


def _tweets(path: Path, content: bytes, options: Options) -> FederatedDataset:
    """Tweets, each client being an account: polarity, id, date, query, account and text in each line.

    A tweet of polarity 4 is positive, any other negative.  ``min_examples=51`` keeps the accounts with more than 50
    tweets, which are 877 in Delta-FL.

    Source: Go et al., *Twitter Sentiment Classification using Distant Supervision*, 2009.
    """
    texts, labels, clients, dropped = list[str](), list[int](), list[str](), 0
    reader = csv.reader(io.StringIO(content.decode("latin-1"), newline=""), strict=True)
    try:
        for cells in reader:
            if len(cells) != _TWEET_CELLS or not cells[0].isdecimal():
                raise EvenhandError(
                    f"{path}: line {reader.line_num} is not a polarity, an id, a date, a query, an account and a text: "
                    "copy or download it again."
                )
            account = validation.canonical(cells[_USER])
            if validation.is_missing(account) or validation.name_fault(account):
                dropped += 1
                continue
            texts.append(cells[_TEXT])
            labels.append(int(cells[0] == _POSITIVE))
            clients.append(account)
    except csv.Error:
        raise EvenhandError(
            f"{path}: what begins in line {reader.line_num} is not CSV: copy or download it again."
        ) from None
    if not texts:
        raise EvenhandError(f"{path}: there are no tweets: copy or download it again.")
    rows = TextRows(texts, np.array(labels, np.int32), clients)
    data = text_dataset(path, [rows], ("negative", "positive"), options)
    note = (f"Dropped {dropped:,} tweets whose account has no usable name.",) if dropped else ()
    return replace(data, notes=(*data.notes, *note))


# --- the HDF5 files of TensorFlow Federated ------------------------------------------------------------------


HDF5 = (".h5", ".hdf5")

_GROUP = "examples"

_PART = re.compile(r"_(train|test)\.h5$")

_TEXTS_PER_BYTE = 12

_WINDOW = 80
"""Characters of a play that are read, after which one is predicted."""

_TAGS = 500

_CHARACTERS = {character: token for token, character in enumerate(ALPHABET)}

_Client = Mapping[str, NDArray]


def load_hdf5(path: Path, options: Options) -> FederatedDataset:
    """The clients in an HDF5 file of TensorFlow Federated, or in a folder with those for training and for testing.

    The fields of ``examples/CLIENT`` say which data set it is:

    * ``pixels`` or ``image``, and ``label``: EMNIST by writer, and CIFAR-100; bytes become floats in [0, 1].
    * ``snippets``: Shakespeare by role; 80 characters, and the next one to predict, begin at each place of the joined
      speeches of a role.  A run of blanks or lines counts as one blank, and so does a character that is not among
      LEAF's 80.
    * ``tokens``, ``title`` and ``tags``: Stack Overflow by user; the text is the tokens and the title, the label the
      most frequent of its tags among the 500 most frequent ones, and the first of these where it has none of them.

    ``clients=N`` reads the first N clients.  Test examples of clients without training examples are left out.

    Source: Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018; the TensorFlow Federated Authors.
    """
    files = [path] if path.is_file() else _parts_in(path)
    first = _read(files[0], options.clients, None)
    opened = [first, *(_read(file, None, frozenset(first)) for file in files[1:])]
    fields = set(next(iter(opened[0].values())))
    if "snippets" in fields:
        return _plays(path, opened, options)
    if {"tokens", "tags"} <= fields:
        return _questions(path, opened, options)
    if "label" in fields and fields & {"pixels", "image"}:
        return _images(path, opened, options)
    raise EvenhandError(
        f"{path}: its clients have the fields {listing(sorted(fields))}: give a file of EMNIST, CIFAR-100, Shakespeare "
        "or Stack Overflow from TensorFlow Federated."
    )


def holds_hdf5(folder: Path) -> bool:
    """Whether a folder has a training file."""
    return any(_PART.search(entry.name) for entry in folder.iterdir())


def _parts_in(folder: Path) -> list[Path]:
    """The training file of a folder, and its test file if there is one."""
    named = {"train": list[Path](), "test": list[Path]()}
    for entry in sorted(folder.iterdir()):
        if (match := _PART.search(entry.name)) and not entry.name.startswith("."):
            named[match[1]].append(entry)
    if len(named["train"]) != 1 or len(named["test"]) > 1:
        names = listing([entry.name for part in named.values() for entry in part]) or "none"
        raise EvenhandError(
            f"{folder}: one file ..._train.h5 and at most one ..._test.h5 are needed, not {names}: name the file to "
            "load."
        )
    return [*named["train"], *named["test"]]


def _read(path: Path, count: int | None, among: frozenset[str] | None) -> dict[str, _Client]:
    """Client -> field -> array, of the first clients or of those with some names; text is an array of objects."""
    try:
        import h5py
    except ImportError:
        raise EvenhandError(
            f"{path}: HDF5 files need h5py: install it with pip install 'evenhand[hdf5]'."
        ) from None
    with _damage(path), h5py.File(path, "r") as file:
        group = file.get(_GROUP)
        if not isinstance(group, h5py.Group):
            raise EvenhandError(
                f"{path}: there is no group {_GROUP!r} of clients: give a file from TensorFlow Federated."
            )
        clients, total = dict[str, _Client](), 0
        for name in sorted(group):
            if count is not None and len(clients) == count:
                break
            if among is None or name in among:
                fields = dict[str, NDArray]()
                for field, values in _datasets(path, name, group):
                    total += math.prod(values.shape) * max(1, values.dtype.itemsize)
                    check_unpacked(path, total, "copy or download it again")
                    fields[field] = values[()]
                _check_client(path, name, fields)
                if len(next(iter(fields.values()))):
                    clients[name] = fields
    if not clients and among is None:
        raise EvenhandError(f"{path}: no client has examples: copy or download it again.")
    return clients


def _datasets(path: Path, name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a client that are in the file itself; a link could lead to any other file."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink) or not isinstance(
        group[name], h5py.Group
    ):
        raise _foreign(path, name)
    for field in group[name]:
        is_linked = not isinstance(group[name].get(field, getlink=True), h5py.HardLink)
        values = None if is_linked else group[name][field]
        if not isinstance(values, h5py.Dataset) or values.is_virtual or values.external:
            raise _foreign(path, name)
        is_text = h5py.check_string_dtype(values.dtype) is not None
        if not values.shape or not (is_text or values.dtype.kind in "biuf"):
            raise EvenhandError(
                f"{path}: client {name[:40]!r} has a field {field[:40]!r} that is neither numbers nor text, with one "
                "entry per example: copy or download the file again."
            )
        # A text takes 16 bytes at least, before compression: millions in a small file would take minutes to read.
        if is_text and math.prod(values.shape) > _TEXTS_PER_BYTE * path.stat().st_size:
            raise EvenhandError(
                f"{path}: client {name[:40]!r} has implausibly many texts: copy or download the file again."
            )
        yield field, values


def _foreign(path: Path, name: str) -> EvenhandError:
    return EvenhandError(
        f"{path}: client {name[:40]!r} is not stored in the file itself: give a file from TensorFlow Federated."
    )


def _check_client(path: Path, name: str, fields: _Client) -> None:
    fault = "is not a client id" if validation.is_missing(name) else validation.name_fault(name)
    if fault is not None:
        raise EvenhandError(f"{path}: client {name[:40]!r} {fault}: give it another name.")
    if len({len(values) for values in fields.values()}) != 1:
        raise EvenhandError(
            f"{path}: client {name[:40]!r} has no fields, or fields of different lengths: copy or download it again."
        )


@contextmanager
def _damage(path: Path) -> Generator[None]:
    """What h5py raises on damaged files as one sentence."""
    try:
        yield
    except EvenhandError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, OverflowError, MemoryError, UnicodeError):
        raise EvenhandError(
            f"{path}: this is not an HDF5 file, or a damaged one: copy or download it again."
        ) from None


def _images(path: Path, parts: Sequence[Mapping[str, _Client]], options: Options) -> FederatedDataset:
    rows = list[PooledRows]()
    for part in parts:
        if not part:
            continue
        clients, xs, ys = list[str](), list[NDArray](), list[NDArray]()
        for name, fields in part.items():
            where = f"{path}: client {name[:40]!r}"
            image = "pixels" if "pixels" in fields else "image"
            if image not in fields or "label" not in fields:
                raise EvenhandError(f"{where} lacks its images or labels: copy or download it again.")
            x, y = fields[image], fields["label"]
            is_bytes = x.dtype == np.uint8
            if y.ndim != 1 or y.dtype.kind not in "iu" or not (is_bytes or x.dtype.kind == "f"):
                raise EvenhandError(
                    f"{where} has images of {x.dtype}, not bytes or floats, or labels that are no whole numbers: copy "
                    "or download it again."
                )
            xs.append(in_unit_range(x) if is_bytes else validation.as_features(x, where))
            ys.append(validation.as_labels(y, where))
            clients += [name] * len(y)
        if len({x.shape[1:] for x in xs}) > 1:
            raise EvenhandError(f"{path}: images differ in shape: copy or download it again.")
        rows.append(PooledRows(np.concatenate(xs), np.concatenate(ys), np.array(clients)))
    return build(rows, options.splitting, name=str(path), classes=None)


def _texts(path: Path, name: str, fields: _Client, field: str) -> list[str]:
    values = fields.get(field)
    if values is None or values.ndim != 1 or values.dtype.kind not in "OS":
        raise EvenhandError(f"{path}: client {name[:40]!r} has no text {field!r}: copy or download it again.")
    return [
        bytes(text).decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in values
    ]


def _plays(path: Path, parts: Sequence[Mapping[str, _Client]], options: Options) -> FederatedDataset:
    """Windows of characters of each role, and the next character."""
    rows, short, blank = list[PooledRows](), set[str](), _CHARACTERS[" "]
    for part in parts:
        clients, xs, ys = list[str](), list[NDArray](), list[NDArray]()
        for name, fields in part.items():
            text = " ".join(" ".join(_texts(path, name, fields, "snippets")).split())
            tokens = np.array([_CHARACTERS.get(character, blank) for character in text], np.int32)
            if name in short or len(tokens) <= _WINDOW:
                if not rows:  # of the training part
                    short.add(name)
                continue
            xs.append(np.lib.stride_tricks.sliding_window_view(tokens, _WINDOW)[:-1])
            ys.append(tokens[_WINDOW:])
            clients += [name] * len(ys[-1])
        if xs:
            rows.append(PooledRows(np.concatenate(xs), np.concatenate(ys), np.array(clients)))
        elif not rows:
            raise EvenhandError(
                f"{path}: no role speaks more than {_WINDOW} characters: give the whole file from TensorFlow Federated."
            )
    data = build(rows, options.splitting, name=str(path), classes=None)
    note = f"Dropped {len(short):,} roles that speak at most {_WINDOW} characters for training."
    return replace(data, notes=(*data.notes, note)) if short else data


def _questions(path: Path, parts: Sequence[Mapping[str, _Client]], options: Options) -> FederatedDataset:
    """Texts by user, labelled by the most frequent tag."""
    tags = [
        {
            name: [text.split("|") for text in _texts(path, name, fields, "tags")]
            for name, fields in part.items()
        }
        for part in parts
    ]
    ranked = _ranked_tags(path, tags[0])
    places = {tag: i for i, tag in enumerate(ranked)}
    rows = list[TextRows]()
    for part, tagged in zip(parts, tags, strict=True):
        texts, labels, clients = list[str](), list[int](), list[str]()
        for name, fields in part.items():
            tokens, titles = (_texts(path, name, fields, field) for field in ("tokens", "title"))
            texts += [f"{text} {title}" for text, title in zip(tokens, titles, strict=True)]
            labels += [
                min((places[tag] for tag in of_row if tag in places), default=0) for of_row in tagged[name]
            ]
            clients += [name] * len(tokens)
        if texts:
            rows.append(TextRows(texts, np.array(labels, np.int32), clients))
    return text_dataset(path, rows, ranked, options)


def _ranked_tags(path: Path, tags: Mapping[str, Sequence[Sequence[str]]]) -> tuple[str, ...]:
    """The most frequent tags, by ``stackoverflow.tag_count`` beside the file, or else in the training examples."""
    published = (path if path.is_dir() else path.parent) / "stackoverflow.tag_count"
    if published.is_file():
        try:
            counts = Counter(
                {str(tag): int(n) for tag, n in json.loads(published.read_text("utf-8")).items()}
            )
        except (ValueError, TypeError, AttributeError, OSError, RecursionError):
            raise EvenhandError(
                f"{published}: this is not a JSON object of tags and counts: copy or download it again."
            ) from None
    else:
        counts = Counter(tag for of_client in tags.values() for of_row in of_client for tag in of_row)
    ranked = sorted(counts, key=lambda tag: (-counts[tag], tag))
    usable = [tag for tag in ranked if tag.strip() and validation.name_fault(tag) is None]
    if not usable:
        raise EvenhandError(f"{path}: no example has a tag: copy or download it again.")
    return tuple(usable[:_TAGS])


# --- vectors of words ---------------------------------------------------------------------------------------


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
            row = validation.numbers(cells[len(cells) - size :])
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
