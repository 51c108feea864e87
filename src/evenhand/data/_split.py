"""From examples with client ids to a data set with a training, a validation and a test split."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.data._arrays import (
    NDArray,
    as_array,
    as_features,
    as_labels,
    check_class_numbers,
    class_labels,
    client_codes,
    element,
)
from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._ids import id_array, remarks_on_spelling
from evenhand.data._random import generator
from evenhand.errors import Argument, EvenhandError

__all__ = ["Assignment", "Rows", "assign", "build", "check_fractions", "from_arrays"]


class Rows(NamedTuple):
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
        sizes = np.bincount(self.codes[self.parts[part]], minlength=len(self.ids))
        return np.concatenate([[0], np.cumsum(sizes)])


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
    r"""Group examples by client and split each client's at random into training, validation and test.

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
    features = as_features(x, name)
    labels = as_array(_plain(y), name, "y")
    if labels.dtype.kind == "U" and classes is None:
        labels, found = class_labels(labels, name, element("y"), regression=False)
    else:
        if classes is None and labels.dtype.kind in "iu":
            cures = (
                "give them as floats to predict amounts, or the classes' names with ",
                Argument("classes", "NAMES"),
            )
            check_class_numbers(labels, name, "y", *cures, " if each number is a class.")
        labels, found = as_labels(labels, name), None if classes is None else tuple(classes)
    return build(
        Rows(features, labels, id_array(client, name)),
        None,
        name=name,
        classes=found,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def build(
    train: Rows,
    test: Rows | None,
    *,
    name: str,
    classes: tuple[str, ...] | None,
    test_fraction: float,
    valid_fraction: float,
    seed: int,
) -> FederatedDataset:
    """The data set of ``train``'s clients; ``test`` None: ``test_fraction`` of their examples is for testing."""
    check_fractions(test_fraction if test is None else 0.0, valid_fraction)
    codes, ids = _codes(train, name, "client")
    parts = _parts(codes, len(ids), test_fraction if test is None else 0.0, valid_fraction, seed)
    splits = [_gather(train, codes, rows, len(ids)) for rows in parts]
    if test is not None:
        test_codes, test_ids = _codes(test, name, "the test part's client")
        position = {client: k for k, client in enumerate(ids)}
        strangers = [client for client in test_ids if client not in position]
        if strangers:
            raise EvenhandError(
                f"{name}: client {strangers[0]!r} has test examples but no training examples: drop "
                "it or give it some."
            )
        test_codes = np.array([position[client] for client in test_ids], np.int64)[test_codes]
        splits[2] = _gather(test, test_codes, np.argsort(test_codes, kind="stable"), len(ids))
    notes = remarks_on_spelling(ids)
    return FederatedDataset(splits[0], splits[1], splits[2], ids, name, classes, notes=notes)


def assign(
    client: NDArray, *, name: str, what: str, test_fraction: float, valid_fraction: float, seed: int
) -> Assignment:
    """Splits each client's rows, given only the client ids.

    Args:
      client: ``(n,)`` ids of any dtype.
      name: what the data set is called.
      what: what the ids are called in errors.
      test_fraction: as in :func:`from_arrays`; so are the others.
    """
    check_fractions(test_fraction, valid_fraction)
    codes, ids = client_codes(client, name, what)
    return Assignment(ids, codes, _parts(codes, len(ids), test_fraction, valid_fraction, seed))


def check_fractions(test_fraction: float, valid_fraction: float) -> None:
    """Checks that both are in [0, 1) and leave something for training."""
    for title, value in (("test_fraction", test_fraction), ("valid_fraction", valid_fraction)):
        if not (math.isfinite(value) and 0 <= value < 1):
            raise EvenhandError(f"{title} must be at least 0 and below 1, not {value}.")
    if test_fraction + valid_fraction >= 1:
        raise EvenhandError(
            f"test_fraction {test_fraction} and valid_fraction {valid_fraction} leave nothing for training: "
            "make their sum less than 1."
        )


def _plain(values: npt.ArrayLike) -> npt.ArrayLike:
    """Objects that are all text, as a column of pandas gives them, as an array of text."""
    array = np.asarray(values) if hasattr(values, "__array__") else values
    if isinstance(array, np.ndarray) and array.dtype.kind == "O" and array.size:
        return array.astype(str) if all(isinstance(value, str) for value in array.flat) else array
    return array


def _codes(rows: Rows, name: str, what: str) -> tuple[NDArray, tuple[str, ...]]:
    if not len(rows.x) == len(rows.y) == len(rows.client):
        raise EvenhandError(
            f"{name}: x has {len(rows.x)} rows, y {len(rows.y)} and {what} {len(rows.client)}: give one "
            "label and one client id for each row of x."
        )
    if not len(rows.x):
        raise EvenhandError(f"{name}: there are no examples: give at least one for each client.")
    return client_codes(rows.client, name, what)


def _parts(
    codes: NDArray, clients: int, test_fraction: float, valid_fraction: float, seed: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Row numbers of the three splits, each grouped by client."""
    sizes = np.bincount(codes, minlength=clients)
    order = np.argsort(codes, kind="stable")
    if test_fraction + valid_fraction > 0:
        # Drawn after grouping, so that the split does not depend on how the clients' rows were interleaved.
        order = order[np.lexsort((generator(seed, "split").random(len(codes)), codes[order]))]
    rank = np.arange(len(codes)) - (np.cumsum(sizes) - sizes)[codes[order]]
    train = np.maximum(1, _floor((1 - test_fraction - valid_fraction) * sizes))
    valid = np.maximum(train, _floor((1 - test_fraction) * sizes))
    in_train, in_valid = rank < train[codes[order]], rank < valid[codes[order]]
    return order[in_train], order[in_valid & ~in_train], order[~in_valid]


def _floor(values: NDArray) -> NDArray:
    # 0.1 * 30 is 2.9999999999999996 in floating point when it comes as (1 - 0.9) * 30.
    return np.floor(np.round(values, 6)).astype(np.int64)


def _gather(rows: Rows, codes: NDArray, order: NDArray, clients: int) -> Split:
    sizes = np.bincount(codes[order], minlength=clients)
    split = Split(rows.x[order], rows.y[order], np.concatenate([[0], np.cumsum(sizes)]))
    for array in split:
        array.setflags(write=False)
    return split
