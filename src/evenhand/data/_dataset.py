"""Federated data: flat rows plus offsets, no padding stored."""

from __future__ import annotations

import hashlib
import html
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from evenhand.data._arrays import NDArray, as_features, as_labels, read_only
from evenhand.data._features import Features
from evenhand.data._ids import canonical
from evenhand.data._text import first_repeated, name_fault
from evenhand.errors import EvenhandError
from evenhand.text import counted

__all__ = ["FederatedDataset", "Split"]

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
        ids = tuple(canonical(str(name)) for name in self.client_ids)
        object.__setattr__(self, "client_ids", ids)
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(str(name) for name in self.classes))
        object.__setattr__(self, "train", _checked(self.train, "train", len(ids), self.name))
        object.__setattr__(self, "valid", _checked(self.valid, "valid", len(ids), self.name))
        object.__setattr__(self, "test", _checked(self.test, "test", len(ids), self.name))
        _check_together(self)

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
        return 1 + max(int(split.y.max(initial=0)) for split in (self.train, self.valid, self.test))

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of the features of one example."""
        return self.train.x.shape[1:]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in the data set and of the clients' names, by which a changed data set is noticed.

        It is computed once, as the arrays cannot be written to, and reads those that stay in files block by block.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\n".join(self.client_ids).encode(errors="surrogatepass"))
        for split in (self.train, self.valid, self.test):
            for array in split:
                digest.update(f"{array.dtype}{array.shape}".encode())
                rows = max(1, _BLOCK // max(array[:1].nbytes, 1))
                for first in range(0, len(array), rows):
                    digest.update(
                        np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8).data
                    )
        return digest.hexdigest()

    def describe(self) -> str:
        """A few lines to read: clients, examples per client with mean and standard deviation, features."""
        splits = (("train", self.train), ("valid", self.valid), ("test", self.test))
        lines = [
            f"{self.name}: {counted(self.num_clients, 'client')}, x {self.train.x.dtype} {self.feature_shape}, "
            f"{_targets(self)}",
            f"{'rows':<7}{'total':>9}{'mean':>10}{'std':>10}{'least':>8}{'most':>8}  per client",
        ]
        for title, split in splits:
            sizes = split.sizes
            lines.append(
                ""
                f"{title:<7}{split.rows:>9}{sizes.mean():>10.1f}{sizes.std():>10.1f}{sizes.min():>8}{sizes.max():>8}"
            )
        if self.features is not None:
            lines.append(self.features.describe())
        lines += self.notes
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table of examples per client, for notebooks."""
        head = "".join(f"<th>{name}</th>" for name in ("", "total", "mean", "std", "least", "most"))
        rows = "".join(
            f"<tr><th>{title}</th><td>{split.rows:,}</td><td>{sizes.mean():,.1f}</td><td>{sizes.std():,.1f}</td>"
            f"<td>{sizes.min():,}</td><td>{sizes.max():,}</td></tr>\n"
            for title, split in (("train", self.train), ("valid", self.valid), ("test", self.test))
            for sizes in (split.sizes,)
        )
        shape = f"x {self.train.x.dtype} {self.feature_shape}, {_targets(self)}"
        title = html.escape(f"{self.name}: {counted(self.num_clients, 'client')}, {shape}; rows per client")
        return f"<table>\n<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>"

    def __repr__(self) -> str:
        """One line."""
        rows = f"{self.train.rows} + {self.valid.rows} + {self.test.rows} rows"
        shape = f"x {self.train.x.dtype} {self.feature_shape}"
        return (
            f"<FederatedDataset {self.name!r}: {counted(self.num_clients, 'client')}, {rows}, {shape}, "
            f"{_targets(self)}>"
        )


def _targets(data: FederatedDataset) -> str:
    return "real targets" if data.num_classes is None else counted(data.num_classes, "class")


def _checked(split: Split, title: str, clients: int, name: str) -> Split:
    x = read_only(as_features(split.x, name, what=f"{title}.x"), split.x)
    y = read_only(as_labels(split.y, name, what=f"{title}.y"), split.y)
    offsets = np.asarray(split.offsets)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != clients + 1:
        raise EvenhandError(
            f"{name}: {title}.offsets has shape {offsets.shape} and dtype {offsets.dtype}: give "
            f"{clients + 1} integers, one more than there are clients."
        )
    offsets = read_only(offsets.astype(np.int64, copy=False), split.offsets)
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
            fault = name_fault(name) if name else "is empty"
            if fault is not None:
                raise EvenhandError(f"{data.name}: {title} {name[:40]!r} {fault}: give another name.")
    twice = first_repeated(ids)
    if twice is not None:
        raise EvenhandError(f"{data.name}: client id {twice!r} occurs twice: merge the two, or rename one.")
    if train.sizes.min() < 1:
        k = int(np.argmin(train.sizes))
        raise EvenhandError(
            f"{data.name}: client {ids[k]!r} has no training examples: drop it or give it some."
        )
    for title, split in (("valid", data.valid), ("test", data.test)):
        for column, one, other in (("x", split.x, train.x), ("y", split.y, train.y)):
            if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
                raise EvenhandError(
                    f"{data.name}: {title}.{column} has rows of {one.dtype} {one.shape[1:]} but "
                    f"train.{column} of {other.dtype} {other.shape[1:]}: bring them to one form."
                )
    if data.classes is not None:
        largest = max(int(split.y.max(initial=0)) for split in (train, data.valid, data.test))
        if largest >= len(data.classes):
            raise EvenhandError(
                f"{data.name}: label {largest} is out of range: there are {len(data.classes)} class names."
            )
