"""Tables with named columns, from any source: some of client ids, one of labels, the others of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from evenhand.data._dataset import Assignment, FederatedDataset, Split, assign, remarks_on_spelling
from evenhand.data._features import Features, Fill, Series
from evenhand.data._fitting import encode, fit, fit_target, text_encoding
from evenhand.data._validation import (
    NDArray,
    first_repeated,
    is_missing,
    number,
    remark_on_gaps,
    spelled,
)
from evenhand.data.loaders import _cells as cells
from evenhand.data.loaders._cells import Problems, Row
from evenhand.data.loaders._csv import CellColumn, layout_of, read_cells
from evenhand.data.loaders._frames import Frame, open_frame, parquet_names, read_jsonl, read_parquet
from evenhand.data.loaders._source import DEFAULT_CLIENT, Options, bare_suffix, listing
from evenhand.data.partition import owners
from evenhand.errors import Argument, EvenhandError, EvenhandWarning, named, nearest, warn_caller

_FEW_ROWS = 20
"""Rows up to which whole numbers that all differ are no sign of an id."""
_MOST_EXAMPLES = 20_000_000
"""Most examples that the rows of a table may stand for; each is a row in memory."""


class Columns(NamedTuple):
    """The columns that are read; ``client`` is empty where rows are to be spread over clients."""

    features: tuple[str, ...]
    label: str | None
    client: tuple[str, ...]
    weight: str | None = None

    @property
    def read_as_numbers(self) -> tuple[str, ...]:
        """The label and the weight, if there are such columns."""
        return tuple(name for name in (self.label, self.weight) if name is not None)


class ReadTable(NamedTuple):
    """A table as read.

    Attributes:
      features: the columns to predict from.
      label: the column to predict; None where it could not be read.
      client: ids ``(n,)`` of any dtype, one array for each client column.
      row: row number -> where it is in the source, ``line 5``.
      weight: how many examples each row stands for; None: one.
    """

    features: Sequence[Series]
    label: Series | None
    client: Sequence[NDArray]
    row: Row
    weight: Series | None = None

    def changed(
        self, series: Callable[[Series], Series], ids: Callable[[NDArray], NDArray], row: Row
    ) -> ReadTable:
        """The table with each of its columns replaced."""
        label, weight = (None if column is None else series(column) for column in (self.label, self.weight))
        return ReadTable(list(map(series, self.features)), label, list(map(ids, self.client)), row, weight)


# --- reading ------------------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A table of which only the header was read.

    Attributes:
      names: of its columns.
      frame: ``(columns to read, problems) -> `` those columns; lines that cannot be read are noted.
    """

    names: Sequence[str]
    frame: Callable[[Columns, Problems], Frame]

    def read(self, columns: Columns, problems: Problems) -> ReadTable:
        """The chosen columns; those that cannot be read are noted among the ``problems``, and left out."""
        frame = self.frame(columns, problems)
        features = problems.accepted(frame.series, columns.features)
        label, weight = (
            next(iter(problems.accepted(frame.series, [] if name is None else [name])), None)
            for name in (columns.label, columns.weight)
        )
        return ReadTable(features, label, problems.accepted(frame.ids, columns.client), frame.row, weight)


def in_memory(frame: Frame) -> Opened:
    """A table in memory, as if only its header were read."""
    return Opened(frame.names, lambda *_: frame)


def open_table(
    path: Path,
    header: Sequence[str],
    categorical: Sequence[str],
    na: Sequence[str],
    *,
    text: Sequence[str] = (),
    is_trained: bool,
) -> Opened:
    """A file of a table.

    Args:
      path: the file.
      header: names of columns, by which the header of a ``.data`` file is known.
      categorical: columns whose numbers are categories, or classes.
      na: further spellings of an empty cell.
      text: columns of free text.
      is_trained: the rows are for a model that is already trained.

    Raises:
      EvenhandError: its suffix is not that of a table, or the file is damaged.
    """
    source = str(path)
    match bare_suffix(path):
        case ".parquet" | ".pq":

            def read_arrow(columns: Columns, problems: Problems) -> Frame:
                others = [*columns.read_as_numbers, *columns.client]
                return open_frame(read_parquet(path, columns.features, others), source)

            return Opened(parquet_names(path), read_arrow)
        case ".jsonl" | ".ndjson":
            return in_memory(read_jsonl(path, na))
        case ".csv" | ".tsv" | ".data":
            layout = layout_of(path, header)

            def read_text(columns: Columns, problems: Problems) -> Frame:
                fixed = {*categorical, *text}
                parsed = {
                    name: CellColumn(
                        name,
                        fixed=name in fixed,
                        feature=not is_trained and name not in text,
                        is_trained=is_trained,
                    )
                    for name in columns.features
                }
                parsed |= {name: CellColumn(name, fixed=True) for name in columns.client}
                # What a number among new labels means depends on the labels that the model was trained on.
                parsed |= {
                    name: CellColumn(name, fixed=is_trained or name in categorical)
                    for name in columns.read_as_numbers
                }
                lines = read_cells(path, layout, list(parsed.values()), problems, na)

                def series(name: str) -> Series:
                    column = parsed[name].series(source, lines)
                    # Among numbers alone, 4.0 counts as 4, as in a label that is not declared.
                    return cells.as_numbers(column) if name == columns.label and not is_trained else column

                return Frame(
                    layout.names,
                    series,
                    lambda name: parsed[name].ids(),
                    lambda row: f"line {lines[row]}",
                )

            return Opened(layout.names, read_text)
        case suffix:
            raise EvenhandError(
                f"{path}: the suffix {suffix!r} is not that of a table: give .csv, .tsv, .data, .jsonl or .parquet."
            )


# --- the role of each column --------------------------------------------------------------------------------


class Header:
    """The names of the columns of a source.

    Raises:
      EvenhandError: a column has no name, or two have one name.
    """

    def __init__(self, source: str, names: Sequence[str]) -> None:
        self.source, self.names, self.existing = source, names, frozenset(names)
        seen: set[str] = set()
        problems = Problems(source)
        for position, name in enumerate(names, start=1):
            with problems.noted():
                if not name:
                    raise EvenhandError(
                        f"{source}: column {position} has no name in the header: name it, or drop it (a row index that "
                        "pandas wrote goes away with index=False)."
                    )
                if name in seen:
                    raise EvenhandError(
                        f"{source}: the header names column {name!r} twice: rename one of the two."
                    )
            seen.add(name)
        problems.check()

    def require(self, name: str, role: str, cure: str, *argument: str | Argument) -> None:
        """Refuses a table without the column ``name``, which has a ``role``."""
        if name not in self.existing:
            # Of the columns that there are, one of the first thousand may have been meant.
            guess = nearest(name, self.names[:1000])
            perhaps = "" if guess is None else f" (perhaps you meant {guess!r})"
            fault = f"{self.source}: there is no {role} {name!r} among {listing(self.names)}{perhaps}"
            raise EvenhandError(f"{fault}: {cure}", *argument)


def choose_columns(source: str, names: Sequence[str], options: Options) -> Columns:
    """The role of each column, from the header alone."""
    header, problems = Header(source, names), Problems(source)
    client: tuple[str, ...] = ()
    with problems.noted():
        header.require(options.label, "label column", _SAY, Argument("label", "NAME"), ".")
    with problems.noted():
        client = _client_columns(header, options)
    taken = {options.label: "label", **dict.fromkeys(client, "client")}
    with problems.noted():
        if options.weight is not None:
            _check_weight_column(header, taken, options.weight)
            taken[options.weight] = "weight"
    columns_of = {"drop": options.drop, "categorical": options.categorical, "text": options.text}
    for option, given in columns_of.items():
        with problems.noted():
            _check_names(header, option, given)
            for name in given:
                is_allowed = {"drop": name in client, "categorical": name == options.label}
                if name in taken and not is_allowed.get(option, False):
                    fault = f"{source}: {name!r} is the {taken[name]} column, which is not a feature anyway"
                    raise EvenhandError(f"{fault}: leave it out of ", Argument(option, "NAMES"), ".")
    if options.features is None:
        leave = {*taken, *options.drop}
        features = tuple(name for name in names if name not in leave)
    else:
        features = tuple(options.features)
        with problems.noted():
            _check_names(header, "features", options.features, "feature column")
            _check_features(header, features, taken, options.drop)
    with problems.noted():
        _check_text(source, features, options)
    problems.check()
    if not features:
        raise EvenhandError(
            f"{source}: there are no feature columns beside {listing(names)}: add at least one."
        )
    return Columns(features, options.label, client, options.weight)


_SAY = "say which it is with "


def _client_columns(header: Header, options: Options) -> tuple[str, ...]:
    absent = [name for name in options.client if name not in header.existing]
    asked = options.client not in ((), DEFAULT_CLIENT)
    is_unused = len(absent) == len(options.client) or set(options.client) <= set(options.drop)
    if is_unused and options.clients is not None and not asked:
        return ()
    comma = ", in double quotes if it has a comma in it" if len(options.client) > 1 else ""
    alone = " alone" if options.clients is not None else ""
    spread = f"{comma}, or spread the rows over N clients with "
    cure = (Argument("client", "NAME"), spread, Argument("clients", "N"), f"{alone}.")
    for name in absent:
        header.require(name, "client column", _SAY, *cure)
    if not options.client:
        among = f"among {listing(header.names)}"
        raise EvenhandError(f"{header.source}: there is no client column named {among}: {_SAY}", *cure)
    if options.label in options.client:
        raise EvenhandError(
            f"{header.source}: column {options.label!r} is named both as the label and as a client column: name "
            "another for one of the two."
        )
    if len(set(options.client)) < len(options.client):
        raise EvenhandError(f"{header.source}: a client column is named twice: name each once.")
    return options.client


def _check_weight_column(header: Header, taken: Mapping[str, str], weight: str) -> None:
    argument = Argument("weight", "NAME")
    header.require(weight, "weight column", _SAY, argument, ".")
    if weight in taken:
        fault = f"{header.source}: {weight!r} is the {taken[weight]} column and cannot be the weight, too"
        raise EvenhandError(f"{fault}: name another with ", argument, ".")


def _check_names(header: Header, option: str, given: Sequence[str], role: str = "column") -> None:
    for name in given:
        header.require(name, role, "correct ", Argument(option, "NAMES"), ".")


def _check_features(
    header: Header, features: tuple[str, ...], taken: Mapping[str, str], drop: Sequence[str]
) -> None:
    for position, name in enumerate(features):
        where = f"{header.source}: column {name!r} is"
        if name in taken:
            fault = f"{where} the {taken[name]} column and cannot be a feature, too: take it out of "
            raise EvenhandError(fault, Argument("features", "NAMES"), ".")
        if name in drop:
            raise EvenhandError(f"{where} both a feature and to be dropped: name it in one of the two.")
        if name in features[:position]:
            raise EvenhandError(f"{header.source}: feature column {name!r} is named twice: name it once.")


def _check_text(source: str, features: Sequence[str], options: Options) -> None:
    for name in options.text:
        where = f"{source}: column {name!r} is"
        if name in options.drop:
            raise EvenhandError(f"{where} both free text and to be dropped: name it in one of the two.")
        if name in options.categorical:
            raise EvenhandError(f"{where} both free text and categorical: name it in one of the two.")
        if options.features is not None and name not in features:
            fault = f"{where} free text but not among the features: add it to "
            out = (", or leave it out of ", Argument("text", "NAMES"), ".")
            raise EvenhandError(fault, Argument("features", "NAMES"), *out)


# --- the data set -------------------------------------------------------------------------------------------


def table_dataset(source: str, opened: Opened, options: Options) -> FederatedDataset:
    """The data set of a table.

    Args:
      source: what the table is called in errors.
      opened: the table.
      options: what the caller asked for.
    """
    columns, problems = choose_columns(source, opened.names, options), Problems(source)
    table = opened.read(columns, problems)
    if options.fill not in (None, *get_args(Fill)):
        choice = f" is unknown: choose one of {', '.join(get_args(Fill))}."
        raise EvenhandError(Argument("fill", repr(options.fill)), choice)
    table, notes = _without_empty(source, columns, _with_na(table, options.na), options)
    y, classes, features, client = _checked(source, columns, table, options, problems)
    _ask_about_ids(source, table.features, options)
    client_column = " / ".join(columns.client)
    is_named = client is not None
    if client is None:
        client = owners(y, options.clients or 1, options.alpha, options.seed, source)
    assignment = assign(client, options.splitting, name=source, subject=f"column {client_column!r}")
    if len(assignment.ids) > 1 and not is_named and set(options.client) <= set(options.drop):
        # Else the dropped column's ids in new rows would be taken for these clients, and get their personal models.
        assignment = assignment._replace(ids=tuple(f"part {name}" for name in assignment.ids))
    units = _remarks_on_units(features, assignment) if is_named else ()
    if table.weight is not None:
        # After the split, so that no example is among the training and among the test examples.
        counts = table.weight.values.astype(np.int64)
        train, valid, test = (np.repeat(part, counts[part]) for part in assignment.parts)
        assignment = assignment._replace(parts=(train, valid, test))
    fitted = _fitted(source, features, assignment.parts[0], options)
    scaled = options.regression and options.standardize_target
    target = fit_target(options.label, y[assignment.parts[0]]) if scaled else None
    fitted = fitted._replace(target=target, na=options.na)
    splits = [
        Split(encode(fitted, features, part, source), y[part], assignment.offsets(i))
        for i, part in enumerate(assignment.parts)
    ]
    return FederatedDataset(
        *splits,
        client_ids=assignment.ids,
        name=source,
        classes=classes,
        features=fitted,
        notes=notes
        + remark_on_gaps(y, classes)
        + _remark_on_classes(options.label, y, classes)
        + _remarks_on_spelling(assignment, classes, fitted)
        + units,
        client_column=client_column,
    )


def _checked(
    source: str, columns: Columns, table: ReadTable, options: Options, problems: Problems
) -> tuple[NDArray, tuple[str, ...] | None, list[Series], NDArray | None]:
    """Labels, the names of their classes, features and the client of each row; all that is wrong is one error."""
    y, classes, row = np.zeros(0), None, table.row
    if table.label is not None:
        with problems.noted():
            cells.check_present(source, options.label, row, table.label.missing, "fill it in or drop the row")
        present = np.flatnonzero(~table.label.missing)
        with problems.noted():
            label, place = table.label.at(present), lambda i: row(int(present[i]))
            y, classes = cells.label_classes(
                source, label, place, options.categorical, regression=options.regression
            )
            y.setflags(write=False)
    with problems.noted():
        if options.fill is None:
            cells.check_filled(source, [x for x in table.features if x.name not in options.text], row)

    def prepared(series: Series) -> Series:
        if series.name in options.text:
            return cells.free_text(source, series)
        return cells.prepared(source, series, row, categorical=series.name in options.categorical)

    features = problems.accepted(prepared, table.features)
    with problems.noted():
        if table.weight is not None:
            _check_weights(source, table.weight, row)
    for name, ids in zip(columns.client, table.client, strict=False):
        with problems.noted():
            _check_ids(source, name, ids, row)
    problems.check()
    return y, classes, features, _clients(source, table)


def _fitted(source: str, features: Sequence[Series], rows: NDArray, options: Options) -> Features:
    """How the columns become inputs, from the training rows."""
    encoders = {
        name: text_encoding(options.encode, options.vocabulary, options.buckets, f"{source}: column {name!r}")
        for name in options.text
    }
    fitted = fit(features, rows, source, standardize=options.standardize, fill=options.fill, text=encoders)
    for column in fitted.columns:
        if column.text is not None and column.text.is_alone and len(fitted.columns) > 1:
            others = listing([other.name for other in fitted.columns if other is not column])
            fault = f"{source}: each text of column {column.name!r} becomes {column.text.dtype} {column.text.shape}"
            cure = f"{fault}, which cannot stand beside {others}: choose it alone with "
            raise EvenhandError(
                cure, named("features", column.name), ", or encode texts as vectors of floats."
            )
    return fitted


def _with_na(table: ReadTable, na: Sequence[str]) -> ReadTable:
    """The table with the cells that ``na`` lists as empty ones."""

    def ids_with_na(ids: NDArray) -> NDArray:
        if ids.dtype.kind == "f":  # as text, 1.0 would be another client than 1
            return np.where(
                np.isin(ids, [value for value in map(number, na) if value is not None]), np.nan, ids
            )
        texts = ids.astype(str)
        listed = np.isin(texts, na)
        return np.where(listed, "", texts) if listed.any() else ids

    return table.changed(lambda series: cells.with_na(series, na), ids_with_na, table.row) if na else table


def _without_empty(
    source: str, columns: Columns, table: ReadTable, options: Options
) -> tuple[ReadTable, tuple[str, ...]]:
    """The table without rows that lack a label or a client, if these are to be dropped, and a sentence about it."""
    if table.label is None or len(table.client) < len(columns.client):
        return table, ()  # which is refused anyway
    rows = len(table.label.values)
    if not rows:
        raise EvenhandError(
            f"{source}: the table has a header but no rows: add at least one for each client."
        )
    none = np.zeros(rows, bool)
    faults = ("without a label", "without a client", "of weight 0", "without a weight")
    absent = dict.fromkeys(faults, none)
    if options.drop_empty:
        absent["without a label"] = table.label.missing
        absent["without a client"] = np.any([none, *map(_no_ids, table.client)], axis=0)
    if table.weight is not None and table.weight.categories is None:
        absent["of weight 0"] = table.weight.values == 0
        if options.drop_empty:
            absent["without a weight"] = table.weight.missing
    kept = np.flatnonzero(~np.any(list(absent.values()), axis=0))
    if len(kept) == rows:
        return table, ()
    if not len(kept):
        lacking = "a label or a client" if table.weight is None else "a label, a client or a weight"
        fault = f"{source}: all {rows:,} rows lack {lacking}: name other columns with "
        raise EvenhandError(fault, Argument("label", "NAME"), " and ", Argument("client", "NAME"), ".")
    counts = [f"{mask.sum():,} {fault}" for fault, mask in absent.items() if mask.any()]
    note = f"Dropped {rows - len(kept):,} of {rows:,} rows: {', '.join(counts)}."
    left = table.changed(
        lambda series: series.at(kept), lambda ids: ids[kept], lambda i: table.row(int(kept[i]))
    )
    return left, (note,)


def _remark_on_classes(label: str, y: NDArray, classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """The sentence about a label of which most rows have a text of their own, as an id does."""
    if classes is None or len(classes) <= max(_FEW_ROWS, len(y) // 2):
        return ()
    return (
        f"Column {label!r} makes {len(classes):,} classes of {len(y):,} rows, as an id or free text does: check that "
        "it is the column to predict.",
    )


def _remarks_on_spelling(
    assignment: Assignment, classes: tuple[str, ...] | None, features: Features
) -> tuple[str, ...]:
    """A sentence each on ids, classes and categories that differ only in how they are written."""
    notes = remarks_on_spelling(assignment.ids) + remarks_on_spelling(classes or (), "classes")
    columns = [(column.categories, f" of column {column.name!r}") for column in features.columns]
    of_columns = [remarks_on_spelling(texts, "categories", where) for texts, where in columns]
    return notes + tuple(chain.from_iterable(of_columns))


_APART = 10.0
"""The factor, in either direction, from which on a client's median is far from that of the others."""
_NAMED = 3
_FEWEST_CLIENTS, _FEWEST_CELLS = 3, 5
"""Clients with so many cells that hold a number, each, without which medians say nothing of units."""


def _remarks_on_units(features: Sequence[Series], assignment: Assignment) -> tuple[str, ...]:
    """A sentence on each column of numbers that is on another scale at one client, as if in another unit.

    The rule: over training rows, the client's median is more than ten times the median of the other clients' medians,
    or less than a tenth of it.  An even number of others has two middle medians, of which the nearer counts: one of two
    others that is itself in another unit makes nobody else stand out.  Medians are of numbers without their signs:
    those of numbers around 0 are all near 0, and say nothing of units.  Where that is so of more than a quarter of the
    clients (up to seven: of more than one), they are merely unlike.
    """
    sentences = list[str]()
    rows = assignment.parts[0]
    for series in features:
        if series.categories is not None:
            continue
        values = series.values[rows]
        clients, medians = _medians(np.abs(values), assignment.codes[rows])
        if len(clients) < _FEWEST_CLIENTS:
            continue
        others = _nearest_median_of_others(medians)
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = medians / others
        # A median of 0, as of a rare event, is in no other unit.
        is_far = (factors > _APART) | ((factors > 0) & (factors < 1 / _APART))
        apart = np.flatnonzero(is_far & np.isfinite(factors))
        if not len(apart) or len(apart) > max(1, len(clients) // 4):
            continue
        shown = [
            f"{assignment.ids[clients[j]]!r:.40} (median {medians[j]:.4g}, of the other clients {others[j]:.4g})"
            for j in apart[:_NAMED]
        ]
        more = f" and {len(apart) - _NAMED} more" if len(apart) > _NAMED else ""
        signs = ", of the numbers without their signs" if (values < 0).any() else ""
        sentences.append(
            f"Column {series.name!r} may be in another unit at client {', '.join(shown)}{more}: compare the units, and "
            f"convert them to one. The medians are over training rows{signs}."
        )
    return tuple(sentences)


def _medians(values: NDArray, codes: NDArray) -> tuple[NDArray, NDArray]:
    """The clients with enough numbers, and the median of each."""
    present = ~np.isnan(values)
    values, codes = values[present], codes[present]
    order = np.lexsort((values, codes))
    values, counts = values[order], np.bincount(codes)
    starts = np.cumsum(counts) - counts
    clients = np.flatnonzero(counts >= _FEWEST_CELLS)
    low, high = starts[clients] + (counts[clients] - 1) // 2, starts[clients] + counts[clients] // 2
    return clients, (values[low] + values[high]) / 2


def _nearest_median_of_others(values: NDArray) -> NDArray:
    """For each of some numbers, the median of the others, or the point nearest to it between their middle two."""
    order = np.argsort(values, kind="stable")
    ranks, ascending, count = np.empty(len(values), int), values[order], len(values) - 1
    ranks[order] = np.arange(len(values))
    low, high = (np.where(i < ranks, ascending[i], ascending[i + 1]) for i in ((count - 1) // 2, count // 2))
    return np.clip(values, low, high)


def _ask_about_ids(source: str, features: Sequence[Series], options: Options) -> None:
    """Warns of a column that has another whole number in each row, unless the columns were chosen by name.

    Standardised numbers of patients teach a model nothing but the order in which they were given.
    """
    for series in features if options.features is None else ():
        rows, values = len(series.values), series.values
        if series.categories is not None or series.name in options.categorical or rows <= _FEW_ROWS:
            continue
        are_whole = np.isfinite(values).all() and (values == np.rint(values)).all()
        if are_whole and len(np.unique(values)) == rows:
            question = EvenhandWarning(
                f"{source}: column {series.name!r} has another whole number in each of the {rows:,} rows, as an id "
                "does: leave it out with ",
                named("drop", series.name),
                ", or choose the columns to learn from with ",
                Argument("features", "NAMES"),
                " if it is an amount.",
            )
            warn_caller(question)


def _check_weights(source: str, weight: Series, row: Row) -> None:
    """Refuses weights that are not numbers of examples."""
    where = f"column {weight.name!r}"
    if weight.categories is not None:
        raise EvenhandError(
            f"{source}: {where} holds text, not weights: write how many examples each row stands for."
        )
    cells.check_present(source, weight.name, row, weight.missing, "give the row a weight or drop it")
    counts = weight.values
    bad = ~((counts >= 0) & (counts == np.rint(counts)) & (counts <= _MOST_EXAMPLES))
    if bad.any():
        (place, cell), others = cells.faulty(row, bad, lambda i: f"{counts[i]:g}")
        raise EvenhandError(
            f"{source}: {place}, {where} holds {cell}{others}: a weight is the number of examples that a row stands "
            "for, so round weights to whole numbers, after multiplying all of them if they are small."
        )
    if counts.sum() > _MOST_EXAMPLES:
        raise EvenhandError(
            f"{source}: {where} makes {counts.sum():,.0f} examples of {len(counts):,} rows: divide all weights by one "
            f"number, so that they sum to at most {_MOST_EXAMPLES:,}."
        )


def _no_ids(ids: NDArray) -> NDArray:
    """Which entries are no client ids, ``(n,)``."""
    if ids.dtype.kind == "f":
        return np.isnan(ids)
    if ids.dtype.kind != "U":
        return np.zeros(len(ids), bool)
    values, codes = np.unique(ids, return_inverse=True)
    return np.array([is_missing(value) for value in values.tolist()], bool)[codes]


def _check_ids(source: str, name: str, ids: NDArray, row: Row) -> None:
    missing = _no_ids(ids)
    if missing.any():
        text = str(ids[np.argmax(missing)])
        fault = f"is {cells.show(text)}, which is not a client id" if text.strip() else "is empty"
        cells.check_present(source, name, row, missing, "give the row a client id or drop it", fault=fault)


def _clients(source: str, table: ReadTable) -> NDArray | None:
    """The client's name for each row; None where rows name no clients."""
    if len(table.client) < 2:
        return table.client[0] if table.client else None
    parts = [np.unique(ids, return_inverse=True) for ids in table.client]
    texts = [[spelled(value) for value in values.tolist()] for values, _ in parts]
    combined, codes = np.unique(np.stack([codes for _, codes in parts]), axis=1, return_inverse=True)
    names = [
        " / ".join(column[code] for column, code in zip(texts, combination, strict=True))
        for combination in combined.T
    ]
    twice = first_repeated(names)
    if twice is not None:
        raise EvenhandError(
            f"{source}: two different clients would both be called {twice!r}: rename values that have ' / ' in them."
        )
    return np.array(names)[codes.reshape(-1)]
