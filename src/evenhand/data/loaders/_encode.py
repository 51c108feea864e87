"""New rows of a table, or of arrays, as the inputs of a model that was trained on others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.data._features import Column, Encode, Features, Series
from evenhand.data._fitting import encode as inputs_of
from evenhand.data._validation import NDArray, canonical, is_missing, spelled
from evenhand.data.loaders._arrays import idx_images, is_idx, new_arrays
from evenhand.data.loaders._cells import (
    Problems,
    Row,
    as_categories,
    check_filled,
    free_text,
    prepared,
    show,
    with_na,
)
from evenhand.data.loaders._frames import open_frame
from evenhand.data.loaders._source import check_file, listing, readable, several
from evenhand.data.loaders._table import Columns, Header, in_memory, open_table
from evenhand.errors import EvenhandError
from evenhand.records import fits_its_list
from evenhand.text import quoted


class NewRows(NamedTuple):
    """Rows for a model to predict.

    Attributes:
      x: its inputs, ``(rows, ...)``.
      clients: the client's name for each row, ``""`` where the row names none; None: there is no client column.
      labels: what each row says in the label column, as text, ``""`` where it is empty; None: there is no such column.
      unseen: column of text -> how many rows have a text in it that no training row had, and the first such text.
    """

    x: NDArray
    clients: NDArray | None = None
    labels: NDArray | None = None
    unseen: Mapping[str, tuple[int, str]] = MappingProxyType({})


def encode_table(table: Any, *, features: Features, encode: Encode | None = None) -> npt.NDArray[Any]:
    """The inputs, ``(rows, inputs)``, that a model trained on one table gets for the rows of another.

    They are float32, unless texts became tokens.

    Args:
      table: a file of a table that :func:`evenhand.data.load` reads, or whatever :func:`evenhand.data.from_frame`
        takes.  Columns may be in any order, and there may be others besides.
      features: of the data set that the model was trained on, or from :func:`load_features`.  Nothing is fitted
        again: a text that no training row had belongs to none of the categories.
      encode: the function that encoded free text for the training, if ``features`` were loaded, as a folder does not
        hold it.

    Raises:
      EvenhandError: a column is missing, is of another kind, or has empty cells that ``features`` does not fill.

    Example:
      >>> import pyarrow
      >>> from evenhand.data import encode_table, from_frame
      >>> columns = {"client": ["a", "a"], "age": [50, 70], "sex": ["f", "m"], "label": [0, 1]}
      >>> data = from_frame(pyarrow.table(columns), test_fraction=0.0)
      >>> encode_table(pyarrow.table({"sex": ["m"], "age": [65]}), features=data.features)
      array([[0.5, 0. , 1. ]], dtype=float32)
    """
    return _encoded(table, features, (), None, encode).x


def new_rows(
    source: Any,
    *,
    features: Features | None = None,
    client: str | Sequence[str] = "client",
    label: str | None = "label",
    features_array: str | None = None,
    encode: Encode | None = None,
) -> NewRows:
    """Rows for a model to predict, with the clients and the labels that they name, if they name any.

    Args:
      source: a table, as for :func:`encode_table`; or the path of an ``.npz`` archive or of a file of IDX images.
      features: how the columns of a table become inputs; None for a model that was trained on arrays.
      client: the column or array of clients; for several columns, each combination is a client.  ``"region / group"``,
        as a run names the two columns of its data, stands for both where there is no such column.
      label: the column or array of labels; in ``.npz`` files, ``y`` also works.  None: labels are not read.
      features_array: the array of features in an ``.npz`` file; None: ``x``.
      encode: as of :func:`encode_table`.

    Raises:
      EvenhandError: there is no such file, or it does not have the columns or arrays that the model needs.

    Example:
      >>> import pathlib, tempfile, numpy as np
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "new.npz"
      >>> np.savez(path, x=np.ones((2, 3), np.float32), client=np.array(["a", "b"]))
      >>> rows = new_rows(path)
      >>> rows.x.shape, rows.clients.tolist(), rows.labels
      ((2, 3), ['a', 'b'], None)
    """
    together = several(client)
    if not isinstance(source, str | Path):
        if features is None:
            raise EvenhandError(
                "table: the model was trained on arrays, not on a table: give an array to run.predict, or the path of "
                "an .npz file."
            )
        return _encoded(source, features, together, label, encode)
    path = Path(source)
    check_file(path)
    with readable(path):
        if features is not None:
            return _encoded(path, features, together, label, encode)
        if is_idx(path.name):
            return NewRows(idx_images(path))
        if path.suffix.lower() != ".npz":
            raise EvenhandError(
                f"{path}: the model was trained on arrays: give an .npz file with the array {features_array or 'x'!r}."
            )
        id_array = together[0] if len(together) == 1 else ""
        rows = NewRows(*new_arrays(path, features_array or "x", id_array, label or ""))
        return rows if label is not None else rows._replace(labels=None)


def _encoded(
    table: Any, features: Features, client: Sequence[str], label: str | None, encode: Encode | None
) -> NewRows:
    """The rows of a table; its columns of clients and of labels are read if it has them."""
    wanted, na = tuple(column.name for column in features.columns), features.na
    if isinstance(table, str | Path):
        source, path = str(table), Path(table)
        check_file(path)
        with readable(path):
            categorical = [column.name for column in features.columns if column.kind != "number"]
            opened = open_table(path, wanted, categorical, na, is_trained=True)
    else:
        source = "table"
        opened = in_memory(open_frame(table, source, na))
    features = features.encoded_by(encode, source)
    existing, problems = Header(source, opened.names).existing, Problems(source)
    for name in wanted:
        with problems.noted():
            if name not in existing:
                raise EvenhandError(
                    f"{source}: there is no column {name!r} among {listing(opened.names)}, which the model was trained "
                    "with: add it."
                )
    problems.check()
    if len(client) == 1 and client[0] not in existing:
        client = client[0].split(" / ")
    client = tuple(client) if existing.issuperset(client) else ()
    new = opened.read(Columns(wanted, label if label in existing else None, client), problems)
    problems.check()
    pairs = list(zip(features.columns, [with_na(series, na) for series in new.features], strict=True))
    with problems.noted():
        unfilled = [series for column, series in pairs if column.fill is None and column.text is None]
        check_filled(source, unfilled, new.row, is_trained=True)
    inputs = problems.accepted(lambda pair: _checked(source, *pair, new.row), pairs)
    problems.check()
    x = inputs_of(features, inputs, np.arange(len(inputs[0].values)), source)
    unseen = {series.name: _unseen(column, series) for (column, _), series in zip(pairs, inputs, strict=True)}
    return NewRows(
        x,
        _joined([_texts(ids, na) for ids in new.client]) if new.client else None,
        None if new.label is None else as_categories(with_na(new.label, na)).texts,
        {name: strange for name, strange in unseen.items() if strange is not None},
    )


def _unseen(column: Column, series: Series) -> tuple[int, str] | None:
    """How many rows have a text that is none of the column's categories, and the first such text."""
    if column.kind != "category" or not series.categories:
        return None
    strange = np.array([*(text not in column.categories for text in series.categories), False], bool)
    rows = np.flatnonzero(strange[series.values])
    return (len(rows), series.categories[series.values[rows[0]]]) if len(rows) else None


def _texts(ids: NDArray, na: Sequence[str]) -> NDArray:
    """Client ids as text, as :func:`evenhand.data.load` names clients; ``""`` for a cell that holds none."""
    values, codes = np.unique(ids, return_inverse=True)
    texts = [canonical(spelled(value)) for value in values.tolist()]
    return np.array(["" if is_missing(text) or text in na else text for text in texts], str)[
        codes.reshape(-1)
    ]


def _joined(parts: Sequence[NDArray]) -> NDArray:
    """``"north / A"``: the names of several columns together, ``""`` where one of them is empty."""
    rows = zip(*(part.tolist() for part in parts), strict=True)
    return np.array([" / ".join(row) if all(row) else "" for row in rows], str)


def load_features(path: str | Path) -> Features:
    """Loads how a table was encoded for a model, from ``features.json`` in its run folder.

    Args:
      path: the file, or the run folder.

    Raises:
      EvenhandError: there is none, because the run was not trained on a table, or it is damaged.
    """
    path = Path(path)
    path = path / "features.json" if path.is_dir() else path
    try:
        if not fits_its_list(path):
            raise EvenhandError(
                f"{path} is damaged (it does not match checksums.json): `evenhand resume {quoted(path.parent)}` "
                f"restores it."
            )
        return Features.from_json(json.loads(path.read_text(encoding="utf-8")))
    except EvenhandError:
        raise
    except FileNotFoundError:
        raise EvenhandError(
            f"{path}: there is no such file: name the folder of a run that was trained on a table."
        ) from None
    except OSError as error:
        raise EvenhandError(f"{path}: cannot be read ({error.strerror}): check its permissions.") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise EvenhandError(
            f"{path}: this is not a features.json, or a damaged one: repeat the run."
        ) from None


def _checked(source: str, column: Column, series: Series, row: Row) -> Series:
    if column.kind == "text":
        return free_text(source, series, is_trained=True)
    categorical = column.kind == "category"
    series = prepared(source, series, row, categorical=categorical, is_trained=True)
    if not categorical and series.categories is not None:
        first = int(np.argmax(~series.missing))
        where = f"{source}: {row(first)}, column {column.name!r} holds {show(str(series.texts[first]))}"
        raise EvenhandError(
            f"{where}, but the model was trained with numbers in it: write numbers, with a point for the decimals."
        )
    return series
