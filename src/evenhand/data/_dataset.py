"""Federated data: flat rows plus offsets, no padding stored.

The type comes first, then how arrays become a data set (:func:`from_arrays`), then how examples or whole clients are
held out of one.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.data import _validation as validation
from evenhand.data._display import as_html, label_figure
from evenhand.data._features import Features, Form
from evenhand.data._validation import NDArray, Splitting, generator
from evenhand.errors import Argument, EvenhandError, perhaps, real_number, whole_number
from evenhand.text import counted, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- the type -----------------------------------------------------------------------------------------------


_BLOCK = 2**24
"""Bytes that are read at a time."""


class Split(NamedTuple):
    """The examples of all clients as rows of arrays, one client after the other.

    Attributes:
      x: features, ``(rows, ...)``, float32, or int32 for tokens.
      y: labels, ``(rows, ...)``, int32 class numbers or float32 targets.
      offsets: int64 ``(K + 1,)``; client ``k`` has rows ``offsets[k]`` up to ``offsets[k + 1]``.
    """

    x: NDArray
    y: NDArray
    offsets: NDArray

    @property
    def rows(self) -> int:
        """Examples of all clients together."""
        return len(self.x)

    @property
    def sizes(self) -> NDArray:
        """Examples per client, ``(K,)``."""
        return np.diff(self.offsets)

    def client(self, k: int) -> tuple[NDArray, NDArray]:
        """``(x_k, y_k)`` of the client at position ``k``, as views.

        Raises:
          IndexError: there is no such client.
        """
        clients = len(self.offsets) - 1
        if not 0 <= k < clients:
            raise IndexError(f"there is no client {k}: positions run from 0 to {clients - 1}")
        rows = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return self.x[rows], self.y[rows]


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Training, validation and test examples of the same clients; immutable.

    On construction everything is checked, floats become float32, integers int32, and every array is made
    read-only; an array that the caller could still write to is copied.

    Attributes:
      train: at least one example for every client.
      valid: may be empty, for some clients or for all.
      test: likewise.
      client_ids: one distinct name per client, in the order of the splits.
      name: what it is called in reports and errors.
      classes: the names of classes 0, 1, 2, ... where the source had names; None otherwise.
      features: how the columns of a table became ``x``, for :func:`evenhand.data.encode_table`; None for others.
      notes: sentences about how the source was read, such as how many rows were dropped.
      client_column: what a client is in the source, such as ``"hospital"``, the name of a column; empty: unknown.

    Raises:
      EvenhandError: a client without training examples, rows without entries, a client id or class name that is
        empty or cannot be shown, offsets that do not fit the rows, a NaN or an infinity, a negative class number,
        features whose shape or kind differs between the splits, or a repeated client id.

    Example:
      >>> import numpy as np
      >>> from evenhand.data import FederatedDataset, Split
      >>> rows = Split(np.ones((5, 2)), np.array([0, 1, 0, 1, 1]), np.array([0, 2, 5]))
      >>> none = Split(np.ones((0, 2)), np.zeros(0, int), np.array([0, 0, 0]))
      >>> data = FederatedDataset(rows, none, rows, ("anna", "bert"))
      >>> data
      <FederatedDataset 'data': 2 clients, 5 + 0 + 5 rows, x float32 (2,), 2 classes>
      >>> data.train.client(1)[1]
      array([0, 1, 1], dtype=int32)
    """

    train: Split
    valid: Split
    test: Split
    client_ids: tuple[str, ...]
    name: str = "data"
    classes: tuple[str, ...] | None = None
    features: Features | None = None
    notes: tuple[str, ...] = ()
    client_column: str = ""

    def __post_init__(self) -> None:
        """Replaces what was given by its checked, read-only form."""
        ids = tuple(validation.canonical(str(name)) for name in self.client_ids)
        object.__setattr__(self, "client_ids", ids)
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(str(name) for name in self.classes))
        object.__setattr__(self, "train", _checked(self.train, "train", len(ids), self.name))
        object.__setattr__(self, "valid", _checked(self.valid, "valid", len(ids), self.name))
        object.__setattr__(self, "test", _checked(self.test, "test", len(ids), self.name))
        _check_together(self)

    @property
    def _splits(self) -> dict[str, Split]:
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.client_ids)

    @property
    def num_classes(self) -> int | None:
        """The number of class names, else the largest class number plus one; None for real-valued targets."""
        if self.train.y.dtype.kind == "f":
            return None
        if self.classes is not None:
            return len(self.classes)
        return 1 + _largest(split.y for split in self._splits.values())

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of the features of one example."""
        return self.train.x.shape[1:]

    @property
    def form(self) -> Form:
        """The form of examples and labels, which decides the sizes of a model."""
        is_tokens = self.train.x.dtype.kind == "i"
        return Form(
            name=self.name,
            shape=self.feature_shape,
            dtype=str(self.train.x.dtype),
            classes=self.num_classes,
            names=self.classes,
            targets=math.prod(self.train.y.shape[1:]),
            tokens=1 + _largest(split.x for split in self._splits.values()) if is_tokens else 0,
            target=None if self.features is None else self.features.target,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in the data set and of the clients' names, by which a changed data set is noticed.

        It is computed once, as the arrays cannot be written to, and reads those that stay in files block by block.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\n".join(self.client_ids).encode(errors="surrogatepass"))
        for array in chain.from_iterable(self._splits.values()):
            digest.update(f"{array.dtype}{array.shape}".encode())
            rows = max(1, _BLOCK // max(array[:1].nbytes, 1))
            for first in range(0, len(array), rows):
                block = np.ascontiguousarray(array[first : first + rows])
                digest.update(block.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    @cached_property
    def pooled(self) -> FederatedDataset:
        """The same examples, in the same order, as those of a single client."""
        splits = {
            name: split._replace(offsets=np.array([0, split.rows])) for name, split in self._splits.items()
        }
        return replace(self, **splits, client_ids=("all",))

    def select(self, ids: Iterable[object]) -> FederatedDataset:
        """The data of the clients with these ids, in the order of the data.

        Args:
          ids: names of clients, as in ``client_ids``; numbers count as their texts.

        Raises:
          EvenhandError: there is no such client, an id is named twice, or none is named.

        Example:
          >>> import evenhand as eh
          >>> eh.data.load("digits", clients=10).select(["7", 2]).client_ids
          ('2', '7')
        """
        if isinstance(ids, str | bytes | int | np.integer):
            raise EvenhandError(f"select({ids!r:.40}): give a list of client ids, such as [{ids!r:.40}].")
        names = [validation.canonical(validation.spelled(name)) for name in ids]
        position = {name: k for k, name in enumerate(self.client_ids)}
        for name in names:
            if name not in position:
                raise EvenhandError(
                    f"{self.name}: there is no client {name[:40]!r}{perhaps(name, self.client_ids[:1000])}: give "
                    "ids among client_ids."
                )
        twice = validation.first_repeated(names)
        if twice is not None:
            raise EvenhandError(f"{self.name}: client {twice!r} is named twice: name each client once.")
        if not names:
            raise EvenhandError(f"{self.name}: no client is named: give at least one id.")
        return self._kept(np.sort([position[name] for name in names]), "that are named")

    def min_examples(self, n: int = 1, *, train: int = 1, test: int = 0) -> FederatedDataset:
        """The data of the clients with enough examples; ``notes`` counts them.

        Args:
          n: least examples of a client, those for training, validation and testing together.
          train: least training examples.
          test: least test examples.

        Raises:
          EvenhandError: no client has enough.

        Example:
          >>> import evenhand as eh
          >>> data = eh.data.load("digits")
          >>> data.num_clients, data.min_examples(50).num_clients
          (30, 18)

        Source: 100 images of a writer in Pillutla et al., *Federated Learning with Superquantile Aggregation for
        Heterogeneous Data*, Machine Learning 2023, section 7.1; ``train=100, test=25`` in Pillutla et al., *Federated
        Learning with Partial Model Personalization*, ICML 2022.
        """
        given = {"n": n, "train": train, "test": test}
        n, train, test = (whole_number(name, least, 0) for name, least in given.items())
        sizes = sum(split.sizes for split in self._splits.values())
        enough = (sizes >= n) & (self.train.sizes >= train) & (self.test.sizes >= test)
        wanted = [f"{n:,} examples"] * (n > 1) + [f"{train:,} for training"] * (train > 1)
        text = " and ".join([*wanted, *[f"{test:,} for testing"] * (test > 0)])
        if not enough.any():
            raise EvenhandError(
                f"{self.name}: none of the {counted(self.num_clients, 'client')} has at least {text}; the largest has "
                f"{int(np.max(sizes)):,} examples: ask for fewer."
            )
        return self._kept(np.flatnonzero(enough), f"with at least {text}")

    def _kept(self, clients: NDArray, which: str) -> FederatedDataset:
        """The data of some clients, with a note of how many they are; the same data where these are all."""
        if len(clients) == self.num_clients:
            return self
        note = f"Kept {len(clients):,} of {self.num_clients:,} clients: those {which}."
        return replace(_of_clients(self, clients), notes=(*self.notes, note))

    def label_counts(self, split: Literal["train", "valid", "test"] = "train") -> NDArray:
        """How many examples of each class each client has: int64 ``(clients, classes)``.

        Args:
          split: of which examples.

        Raises:
          EvenhandError: the labels are real targets, or there is more than one for each example.

        Example:
          >>> import evenhand as eh
          >>> eh.data.from_arrays([[0.0]] * 4, [0, 1, 1, 1], ["a", "a", "b", "b"], test_fraction=0.0).label_counts()
          array([[1, 1],
                 [0, 2]])
        """
        rows = self._splits.get(split)
        if rows is None:
            raise EvenhandError(f"label_counts(split={split!r}): give 'train', 'valid' or 'test'.")
        if self.num_classes is None or rows.y.ndim != 1:
            kind = "real targets" if self.num_classes is None else "several labels for each example"
            raise EvenhandError(f"{self.name} has {kind}: there are no classes to count.")
        cells = np.repeat(np.arange(self.num_clients) * self.num_classes, rows.sizes) + rows.y
        counts = np.bincount(cells, minlength=self.num_clients * self.num_classes)
        return counts.reshape(self.num_clients, self.num_classes)

    def figure(self, split: Literal["train", "valid", "test"] = "train") -> Figure:
        """Labels by client: a bar for each client, as long as it has examples, with a part for each class.

        Of more than 60 clients, the figure shows 60 from the largest to the smallest, and says so.

        Args:
          split: of which examples.

        Raises:
          EvenhandError: as :meth:`label_counts`.
        """
        return label_figure(self, split, self.label_counts(split))

    def describe(self) -> str:
        """A few lines to read: clients, examples per client with mean and standard deviation, features."""
        head = f"{'rows':<7}{'total':>9}{'mean':>10}{'std':>10}{'least':>8}{'most':>8}  per client"
        lines = [
            f"{title:<7}{rows:>9}{mean:>10.1f}{std:>10.1f}{least:>8}{most:>8}"
            for title, rows, mean, std, least, most in self._counts()
        ]
        features = [] if self.features is None else [self.features.describe()]
        return "\n".join([f"{self.name}: {self._summary()}", head, *lines, *features, *self.notes])

    def _repr_html_(self) -> str:
        return as_html(self, self._splits)

    def __repr__(self) -> str:
        """One line."""
        rows = f"{self.train.rows} + {self.valid.rows} + {self.test.rows} rows, "
        return f"<FederatedDataset {self.name!r}: {self._summary(rows)}>"

    def _summary(self, rows: str = "") -> str:
        labels = "real targets" if self.num_classes is None else counted(self.num_classes, "class")
        shape = f"x {self.train.x.dtype} {self.feature_shape}"
        return f"{counted(self.num_clients, 'client')}, {rows}{shape}, {labels}"

    def _counts(self) -> Iterator[tuple[str, int, float, float, int, int]]:
        """Of each split: its title, its rows, and the mean, deviation, least and most rows of a client."""
        for title, split in self._splits.items():
            sizes = split.sizes
            yield title, split.rows, sizes.mean(), sizes.std(), sizes.min(), sizes.max()


def _largest(arrays: Iterable[NDArray]) -> int:
    return max(int(array.max(initial=0)) for array in arrays)


def _checked(split: Split, title: str, clients: int, name: str) -> Split:
    x = validation.read_only(validation.as_features(split.x, name, subject=f"{title}.x"), split.x)
    y = validation.read_only(validation.as_labels(split.y, name, subject=f"{title}.y"), split.y)
    offsets = np.asarray(split.offsets)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != clients + 1:
        raise EvenhandError(
            f"{name}: {title}.offsets has shape {offsets.shape} and dtype {offsets.dtype}: give "
            f"{clients + 1} integers, one more than there are clients."
        )
    offsets = validation.read_only(offsets.astype(np.int64, copy=False), split.offsets)
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise EvenhandError(
            f"{name}: {title}.offsets must start at 0 and never fall: sort the rows by client."
        )
    if not len(x) == len(y) == offsets[-1]:
        raise EvenhandError(
            f"{name}: {title} has {len(x)} rows of x, {len(y)} of y and offsets up to {offsets[-1]}: make "
            "the three equal."
        )
    return Split(x, y, offsets)


def _check_together(data: FederatedDataset) -> None:
    ids, train = data.client_ids, data.train
    if not ids:
        raise EvenhandError(f"{data.name}: there are no clients: give at least one with a training example.")
    for title, names in (("client id", ids), ("class name", data.classes or ())):
        for name in names:
            fault = validation.name_fault(name) if name else "is empty"
            if fault is not None:
                raise EvenhandError(f"{data.name}: {title} {name[:40]!r} {fault}: give another name.")
    twice = validation.first_repeated(ids)
    if twice is not None:
        raise EvenhandError(f"{data.name}: client id {twice!r} occurs twice: merge the two, or rename one.")
    if train.sizes.min() < 1:
        k = int(np.argmin(train.sizes))
        raise EvenhandError(
            f"{data.name}: client {ids[k]!r} has no training examples: drop it or give it some."
        )
    for title, split in (("valid", data.valid), ("test", data.test)):
        for column, array, other in (("x", split.x, train.x), ("y", split.y, train.y)):
            form, expected = (f"{rows.dtype} {rows.shape[1:]}" for rows in (array, other))
            if form != expected:
                fault = f"{title}.{column} has rows of {form} but train.{column} of {expected}"
                raise EvenhandError(f"{data.name}: {fault}: bring them to one form.")
    if data.classes is not None:
        largest = _largest([train.y, data.valid.y, data.test.y])
        if largest >= len(data.classes):
            raise EvenhandError(
                f"{data.name}: label {largest} is out of range: there are {len(data.classes)} class names."
            )


# --- from arrays: examples grouped by client and split ------------------------------------------------------


class PooledRows(NamedTuple):
    """Checked examples in any order, each with the id of its client.

    Attributes:
      x: float32 or int32 ``(n, ...)``.
      y: int32 or float32 ``(n, ...)``.
      client: ``(n,)`` ids of any dtype.
    """

    x: NDArray
    y: NDArray
    client: NDArray


class Assignment(NamedTuple):
    """Which client each row belongs to, and which split.

    Attributes:
      ids: the clients.
      codes: each row's client, ``(n,)``.
      parts: row numbers of training, validation and test, each grouped by client.
    """

    ids: tuple[str, ...]
    codes: NDArray
    parts: tuple[NDArray, NDArray, NDArray]

    def offsets(self, part: int) -> NDArray:
        """Where each client's rows begin in a part, and where the last end, ``(K + 1,)``."""
        return _offsets(np.bincount(self.codes[self.parts[part]], minlength=len(self.ids)))


def from_arrays(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    client: npt.ArrayLike,
    *,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
) -> FederatedDataset:
    r"""Groups examples by client, and splits each client's at random into training, validation and test.

    A client with :math:`n` examples, shuffled, gives its first :math:`\max(1, \lfloor(1-t-v)n\rfloor)` to
    training, those up to :math:`\lfloor(1-t)n\rfloor` to validation and the rest to test, where :math:`t` is
    ``test_fraction`` and :math:`v` ``valid_fraction``.  So no client is left without training examples, and
    the only example of a client is one of them.

    Args:
      x: ``(n, ...)`` features.  Floats and booleans become float32; integers become int32 and count as
        tokens, so scale pixels to floats first.
      y: ``(n, ...)`` labels: integers >= 0 are class numbers, floats are real-valued targets, and text is
        numbered in sorted order and kept in ``classes``.
      client: ``(n,)`` client ids, all text, all numbers or all booleans.  Ids are compared as text, in Unicode's NFC
        and without blanks around them; ``1`` and ``1.0`` are ``"1"``.  Clients are ordered by id, numbers as numbers.
        Ids that differ only in how they are written, such as ``"7"`` and ``"07"``, get a sentence in ``notes``.
      test_fraction: share of each client's examples for testing, in [0, 1).
      valid_fraction: share for validation, in [0, 1); the two together stay below 1.
      seed: of the shuffle.
      name: what the data set is called.
      classes: the names of the class numbers in ``y``, if they have any.  Without names, more than 20 distinct integers
        that do not start at 0 or leave gaps are refused: they may be amounts.

    Raises:
      EvenhandError: lengths differ, there are no examples, a number is not finite, a label is negative, a client
        id is missing, ids are of several types, or a fraction is out of range.

    Example:
      >>> import numpy as np
      >>> from evenhand.data import from_arrays
      >>> x, y, client = np.zeros((10, 3)), np.arange(10) % 2, ["b", "a"] * 5
      >>> data = from_arrays(x, y, client, test_fraction=0.4)
      >>> data.client_ids, data.train.sizes, data.test.sizes
      (('a', 'b'), array([3, 3]), array([2, 2]))
    """
    if isinstance(getattr(x, "columns", getattr(x, "column_names", None)), Sized):
        raise EvenhandError(
            f"{name}: x is a table, a {type(x).__name__}: give the whole table to evenhand.data.from_frame, or its "
            "numbers alone, x.to_numpy(float)."
        )
    features = validation.as_features(x, name)
    labels = validation.as_array(y, name, "y")
    if labels.dtype.kind == "U" and classes is None:
        labels, names = validation.class_labels(labels, name, validation.element("y"), regression=False)
    else:
        if classes is None and labels.dtype.kind in "iu":
            cure = "give them as floats to predict amounts, or the classes' names with "
            names = Argument("classes", "NAMES")
            validation.check_class_numbers(labels, name, "y", cure, names, " if each number is a class.")
        labels, names = validation.as_labels(labels, name), None if classes is None else tuple(classes)
    return build(
        [PooledRows(features, labels, validation.id_array(client, name))],
        Splitting(test_fraction, valid_fraction, seed),
        name=name,
        classes=names,
    )


def build(
    rows: Sequence[PooledRows], splitting: Splitting, *, name: str, classes: tuple[str, ...] | None
) -> FederatedDataset:
    """The data set of training and test rows; of training rows alone, a fraction is for testing."""
    train, *tests = rows
    if tests:
        splitting = splitting._replace(test_fraction=0.0)
    splitting.check()
    codes, ids = _codes(train, name, "client")
    splits = [_gather(train, codes, rows, len(ids)) for rows in _parts(codes, len(ids), splitting)]
    for test in tests:
        test_codes, test_ids = _codes(test, name, "the test part's client")
        position = {client: k for k, client in enumerate(ids)}
        for client in test_ids:
            if client not in position:
                raise EvenhandError(
                    f"{name}: client {client!r} has test examples but no training examples: drop it or give it some."
                )
        test_codes = np.array([position[client] for client in test_ids], np.int64)[test_codes]
        splits[2] = _gather(test, test_codes, np.argsort(test_codes, kind="stable"), len(ids))
    notes = remarks_on_spelling(ids) + remarks_on_spelling(classes or (), "classes")
    return FederatedDataset(*splits, client_ids=ids, name=name, classes=classes, notes=notes)


def assign(client: NDArray, splitting: Splitting, *, name: str, subject: str) -> Assignment:
    """Splits each client's rows, given only the client ids.

    Args:
      client: ``(n,)`` ids of any dtype.
      splitting: what is for testing and for validation, as in :func:`from_arrays`.
      name: what the data set is called.
      subject: what the ids are called in errors.
    """
    splitting.check()
    codes, ids = validation.client_codes(client, name, subject)
    return Assignment(ids, codes, _parts(codes, len(ids), splitting))


def _codes(rows: PooledRows, name: str, subject: str) -> tuple[NDArray, tuple[str, ...]]:
    if len(set(counts := [len(part) if np.ndim(part) else "none" for part in rows])) > 1:
        raise EvenhandError(
            f"{name}: x has {counts[0]} rows, y {counts[1]} and {subject} {counts[2]}: give one label and one client "
            "id for each row of x."
        )
    if not len(rows.x):
        raise EvenhandError(f"{name}: there are no examples: give at least one for each client.")
    return validation.client_codes(rows.client, name, subject)


def _parts(codes: NDArray, clients: int, splitting: Splitting) -> tuple[NDArray, NDArray, NDArray]:
    """Row numbers of the three splits, each grouped by client."""
    test, valid, seed = splitting
    sizes = np.bincount(codes, minlength=clients)
    order, rank = _dealt(codes, sizes, generator(seed, "split") if test + valid > 0 else None)
    train_end = np.maximum(1, _floor((1 - test - valid) * sizes))
    valid_end = np.maximum(train_end, _floor((1 - test) * sizes))
    in_train, in_valid = rank < train_end[codes[order]], rank < valid_end[codes[order]]
    return order[in_train], order[in_valid & ~in_train], order[~in_valid]


def _dealt(codes: NDArray, sizes: NDArray, random: np.random.Generator | None) -> tuple[NDArray, NDArray]:
    """Row numbers grouped by client, shuffled where ``random`` is given, and the place of each in its group."""
    order = np.argsort(codes, kind="stable")
    if random is not None:
        # Drawn after grouping, so that the split does not depend on how the clients' rows were interleaved.
        order = order[np.lexsort((random.random(len(codes)), codes[order]))]
    return order, np.arange(len(codes)) - (np.cumsum(sizes) - sizes)[codes[order]]


def _floor(values: NDArray) -> NDArray:
    # 0.1 * 30 is 2.9999999999999996 in floating point when it comes as (1 - 0.9) * 30.
    return np.floor(np.round(values, 6)).astype(np.int64)


def _offsets(sizes: NDArray) -> NDArray:
    return np.concatenate([[0], np.cumsum(sizes)])


def _gather(rows: PooledRows, codes: NDArray, order: NDArray, clients: int) -> Split:
    split = Split(rows.x[order], rows.y[order], _offsets(np.bincount(codes[order], minlength=clients)))
    for array in split:
        array.setflags(write=False)
    return split


_PADDED = re.compile(r"(?<![\d.])0+(?=\d)")

_WHOLE = re.compile(r"(?<=\d)\.0+(?!\d)")


def remarks_on_spelling(names: Iterable[str], kind: str = "clients", where: str = "") -> tuple[str, ...]:
    """The sentence about names, such as clients' ids, that differ only in how they are written; none without any.

    That is in capitals, blanks, zeros in front or after a point, or compatible characters (Unicode's NFKC).

    Args:
      names: all of them, each once.
      kind: what they name, in the plural.
      where: what follows them in the sentence.

    Example:
      >>> remarks_on_spelling(["7", "07", "8"])
      ("Clients '7' and '07' differ only in how they are written: they count as different clients, ...",)
      >>> remarks_on_spelling(["7", "70"])
      ()
    """
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(_bare(name), []).append(name)
    groups = [listed(list(map(repr, group)), most=3) for group in spellings.values() if len(group) > 1]
    if not groups:
        return ()
    more, some = counted(len(groups) - 1, "other set"), "such as " if len(groups) > 2 else ""
    others = f" (and {more} of names, {some}{groups[1]})" if len(groups) > 1 else ""
    return (
        f"{kind.capitalize()} {groups[0]}{others}{where} differ only in how they are written: they count as different "
        f"{kind}, so write them in one way if they are the same.",
    )


def _bare(name: str) -> str:
    """``name`` without what often differs between two spellings of one id."""
    text = name if name.isascii() else unicodedata.normalize("NFKC", name)
    return _WHOLE.sub("", _PADDED.sub("", "".join(text.casefold().split())))


# --- examples and clients held out --------------------------------------------------------------------------


def hold_out(data: FederatedDataset, fraction: float = 0.2, *, seed: int = 0) -> FederatedDataset:
    """Holds out a random share of each client's training examples for validation.

    Each client keeps at least one training example; a client with few may get no validation example.

    Args:
      data: clients without validation examples.
      fraction: the share, in (0, 1).
      seed: decides which examples are taken.

    Raises:
      EvenhandError: there are validation examples already, or the fraction is out of range.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=4)
      >>> hold_out(data, 0.25)
      <FederatedDataset 'digits': 4 clients, 1078 + 359 + 360 rows, x float32 (64,), 10 classes>
    """
    if data.valid.rows:
        raise EvenhandError(f"{data.name} has {data.valid.rows:,} validation examples already: use those.")
    _check_fraction("hold_out", fraction)
    sizes = data.train.sizes
    client = np.repeat(np.arange(len(sizes)), sizes)
    order, rank = _dealt(client, sizes, generator(seed, "hold out"))
    stays = rank < np.maximum(1, sizes - _floor(fraction * sizes))[client]
    rows = PooledRows(data.train.x, data.train.y, client)
    # Sorted, which is the order of the data.
    train, valid = (_gather(rows, client, np.sort(order[mask]), len(sizes)) for mask in (stays, ~stays))
    return replace(data, train=train, valid=valid)


def hold_out_clients(
    data: FederatedDataset, fraction: float = 0.2, *, seed: int = 0
) -> tuple[FederatedDataset, FederatedDataset]:
    """Holds out a random share of the clients: ``(seen, unseen)``, the data to train on and those of the others.

    Args:
      data: all clients.
      fraction: the share that is set aside, in (0, 1), rounded to whole clients; at least one client is on each side.
      seed: decides which clients these are.

    Raises:
      EvenhandError: the fraction is out of range, or there is one client only.

    Example:
      >>> import evenhand as eh
      >>> seen, unseen = hold_out_clients(eh.data.load("digits", clients=10), 0.3)
      >>> seen.num_clients, unseen.num_clients
      (7, 3)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(eh.algorithms.fedavg(work), seen, rounds=5)
      >>> run.serve(unseen).client_metrics("test")["accuracy"].shape
      (3,)
    """
    _check_fraction("hold_out_clients", fraction)
    if data.num_clients < 2:
        raise EvenhandError(
            f"{data.name} has one client only, which cannot be trained on and set aside, too."
        )
    count = int(np.clip(round(fraction * data.num_clients), 1, data.num_clients - 1))
    order = generator(seed, "hold out clients").permutation(data.num_clients)
    return _of_clients(data, np.sort(order[count:])), _of_clients(data, np.sort(order[:count]))


def _check_fraction(function: str, fraction: float) -> None:
    if not 0 < real_number(fraction) < 1:
        raise EvenhandError(f"{function}(fraction={fraction}): give a number between 0 and 1, such as 0.2.")


def _of_clients(data: FederatedDataset, clients: NDArray) -> FederatedDataset:
    def part(split: Split) -> Split:
        rows = np.concatenate([np.arange(*split.offsets[k : k + 2]) for k in clients])
        return Split(split.x[rows], split.y[rows], _offsets(split.sizes[clients]))

    names = tuple(data.client_ids[k] for k in clients)
    return replace(
        data, train=part(data.train), valid=part(data.valid), test=part(data.test), client_ids=names
    )
