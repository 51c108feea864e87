"""New rows of a table, or of arrays, as the inputs of a model that was trained on others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from evenhand.data._features import Column, Features, Series, encode
from evenhand.data._validation import NDArray, canonical, is_missing, spelled
from evenhand.data.loaders._arrays import idx_images, is_idx, new_arrays
from evenhand.data.loaders._cells import Problems, Row, as_categories, check_filled, prepared, with_na
from evenhand.data.loaders._csv import CellColumn, layout_of, read_cells
from evenhand.data.loaders._frames import Frame, open_frame, parquet_names, read_jsonl, read_parquet
from evenhand.data.loaders._source import bare_suffix, check_file, listing, readable, several
from evenhand.data.loaders._table import check_header
from evenhand.errors import EvenhandError
from evenhand.records import fits_its_list

_T = TypeVar("_T")


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


class _Names(NamedTuple):
    """The names of columns to read."""

    features: Sequence[str]
    client: Sequence[str]
    label: str | None

    @property
    def others(self) -> list[str]:
        """All but the features."""
        return [*self.client, *([] if self.label is None else [self.label])]


class _Columns(NamedTuple):
    """Columns as read: features, client ids, the label, and where a row is."""

    features: list[Series]
    client: list[NDArray]
    label: Series | None
    row: Row


_Read: TypeAlias = Callable[[_Names, Problems], _Columns]
"""The columns of these names; those that cannot be read are noted."""


def encode_table(table: Any, *, features: Features) -> npt.NDArray[np.float32]:
    """The inputs, ``(rows, inputs)``, that a model trained on one table gets for the rows of another.

    Args:
      table: a file of a table that :func:`evenhand.data.load` reads, or whatever :func:`evenhand.data.from_frame`
        takes.  Columns may be in any order, and there may be others besides.
      features: of the data set that the model was trained on, or from :func:`load_features`.  Nothing is fitted
        again: a text that no training row had belongs to none of the categories.

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
    return _encoded(table, features, (), None).x


def new_rows(
    source: str | Path,
    *,
    features: Features | None = None,
    client: str | Sequence[str] = "client",
    label: str = "label",
    features_array: str | None = None,
) -> NewRows:
    """Rows for a model to predict, with the clients and the labels that they name, if they name any.

    Args:
      source: a table, as for :func:`encode_table`; an ``.npz`` archive; or a file of IDX images.
      features: how the columns of a table become inputs; None for a model that was trained on arrays.
      client: the column or array of clients; for several columns, each combination is a client.
      label: the column or array of labels; in ``.npz`` files, ``y`` also works.
      features_array: the array of features in an ``.npz`` file; None: ``x``.

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
    path, together = Path(source), several(client)
    check_file(path)
    with readable(path):
        if features is not None:
            return _encoded(path, features, together, label)
        if is_idx(path.name):
            return NewRows(idx_images(path))
        if path.suffix.lower() != ".npz":
            raise EvenhandError(
                f"{path}: the model was trained on arrays: give an .npz file with the array {features_array or 'x'!r}."
            )
        id_array = together[0] if len(together) == 1 else ""
        return NewRows(*new_arrays(path, features_array or "x", id_array, label))


def _encoded(table: Any, features: Features, client: Sequence[str], label: str | None) -> NewRows:
    """The rows of a table; its columns of clients and of labels are read if it has them."""
    is_file = isinstance(table, str | Path)
    source = str(table) if is_file else "table"
    problems = Problems(source)
    names, read = (
        _opened(Path(table), features) if is_file else _in_memory(open_frame(table, source, features.na))
    )
    check_header(source, names)
    existing = frozenset(names)
    for column in features.columns:
        with problems.noted():
            if column.name not in existing:
                raise EvenhandError(
                    f"{source}: there is no column {column.name!r} among {listing(names)}, which the model was trained "
                    "with: add it."
                )
    problems.check()
    client = client if existing.issuperset(client) else ()
    wanted = _Names(
        [column.name for column in features.columns], client, label if label in existing else None
    )
    read_columns = read(wanted, problems)
    problems.check()
    row, pairs = read_columns.row, list(zip(features.columns, read_columns.features, strict=True))
    pairs = [(column, with_na(series, features.na)) for column, series in pairs]
    with problems.noted():
        check_filled(
            source, [series for column, series in pairs if column.fill is None], row, is_trained=True
        )
    inputs: list[Series] = []
    for column, series in pairs:
        with problems.noted():
            inputs.append(_checked(source, column, series, row))
    problems.check()
    x = encode(features, inputs, np.arange(len(inputs[0].values)), source)
    clients = [_texts(ids, features.na) for ids in read_columns.client]
    unseen = {series.name: _unseen(column, series) for (column, _), series in zip(pairs, inputs, strict=True)}
    return NewRows(
        x,
        _joined(clients) if clients else None,
        None if read_columns.label is None else _cells(with_na(read_columns.label, features.na)),
        {name: strange for name, strange in unseen.items() if strange is not None},
    )


def _unseen(column: Column, series: Series) -> tuple[int, str] | None:
    """How many rows have a text that is none of the column's categories, and the first such text."""
    if column.kind == "number" or not series.categories:
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
    if len(parts) == 1:
        return parts[0]
    rows = zip(*(part.tolist() for part in parts), strict=True)
    return np.array([" / ".join(row) if all(row) else "" for row in rows], str)


def _cells(label: Series) -> NDArray:
    """Labels as text."""
    texts = as_categories(label)
    return np.array([*(texts.categories or ()), ""], str)[texts.values]


def load_features(path: str | Path) -> Features:
    """What ``features.json`` in a run folder says about the inputs of the model.

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
                f"{path} is damaged (it does not match checksums.json): `evenhand resume {path.parent}` restores it."
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
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EvenhandError(
            f"{path}: this is not a features.json, or a damaged one: repeat the run."
        ) from None


def _checked(source: str, column: Column, series: Series, row: Callable[[int], str]) -> Series:
    categorical = column.kind == "category"
    series = prepared(source, series, row, categorical=categorical, is_trained=True)
    if not categorical and series.categories is not None:
        raise EvenhandError(
            f"{source}: column {column.name!r} holds text, but the model was trained with numbers in it: write numbers."
        )
    return series


def _opened(path: Path, features: Features) -> tuple[list[str], _Read]:
    source, suffix = str(path), bare_suffix(path)
    if not path.is_file():
        raise EvenhandError(f"{path}: there is no such file: check the spelling.")
    if suffix in (".parquet", ".pq"):

        def read_arrow(wanted: _Names, problems: Problems) -> _Columns:
            table = read_parquet(path, wanted.features, wanted.others)
            return _in_memory(open_frame(table, source))[1](wanted, problems)

        return parquet_names(path), read_arrow
    if suffix in (".jsonl", ".ndjson"):
        with readable(path):
            frame, row = read_jsonl(path, features.na)
        return _in_memory(frame, row)
    if suffix not in (".csv", ".tsv", ".data"):
        raise EvenhandError(
            f"{path}: the suffix {suffix!r} is not that of a table: give .csv, .tsv, .data, .jsonl or .parquet."
        )
    layout = layout_of(path, [column.name for column in features.columns])
    categories = [column.name for column in features.columns if column.kind == "category"]

    def read_text(wanted: _Names, problems: Problems) -> _Columns:
        cells = {name: CellColumn(name, fixed=name in categories) for name in wanted.features}
        # Labels stay text: what a number among them means depends on the labels that the model was trained on.
        cells |= {name: CellColumn(name, fixed=True) for name in wanted.others}
        lines = read_cells(path, layout, list(cells.values()), problems, features.na)
        frame = Frame(
            layout.names, lambda name: cells[name].series(source, lines), lambda name: cells[name].ids()
        )
        return _in_memory(frame, lambda i: f"line {lines[i]}")[1](wanted, problems)

    return layout.names, read_text


def _in_memory(frame: Frame, row: Row = lambda i: f"row {i}") -> tuple[list[str], _Read]:
    def read(wanted: _Names, problems: Problems) -> _Columns:
        label = [] if wanted.label is None else [wanted.label]
        return _Columns(
            _noted(problems, frame.series, wanted.features),
            _noted(problems, frame.ids, wanted.client),
            next(iter(_noted(problems, frame.series, label)), None),
            row,
        )

    return frame.names, read


def _noted(problems: Problems, column: Callable[[str], _T], names: Sequence[str]) -> list[_T]:
    """The columns of these names, without those that cannot be read."""
    columns: list[_T] = []
    for name in names:
        with problems.noted():
            columns.append(column(name))
    return columns
