"""Tables with named columns, from any source: some of client ids, one of labels, the others of features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import numpy as np

from evenhand.data._dataset import FederatedDataset, Split, assign, remarks_on_spelling
from evenhand.data._features import Fill, Series, encode, fit, fit_target
from evenhand.data._validation import NDArray, is_missing, spelled
from evenhand.data.loaders._cells import (
    MOST_LISTED,
    Problems,
    also,
    check_filled,
    check_labels,
    label_classes,
    meant,
    prepared,
    show,
    such,
    with_na,
)
from evenhand.data.loaders._source import DEFAULT_CLIENT, Options, listing, owners
from evenhand.errors import Argument, EvenhandError, EvenhandWarning, named, nearest

_FEW_ROWS = 20
"""Rows up to which whole numbers that all differ are no sign of an id."""
_MOST_EXAMPLES = 20_000_000
"""Most examples that the rows of a table may stand for; each is a row in memory."""


class Columns(NamedTuple):
    """The columns that are read; ``client`` is empty where rows are to be spread over clients."""

    features: tuple[str, ...]
    label: str
    client: tuple[str, ...]
    weight: str | None = None

    @property
    def read_as_numbers(self) -> tuple[str, ...]:
        """The label, and the weight if there is one."""
        return (self.label,) if self.weight is None else (self.label, self.weight)


class ReadTable(NamedTuple):
    """A table as read.

    Attributes:
      features: the columns to predict from.
      label: the column to predict; None where it could not be read.
      client: ids ``(n,)`` of any dtype, one array for each client column.
      row: row number -> where it is in the source, ``line 5``.
      weight: how many examples each row stands for; None: one.
    """

    features: tuple[Series, ...]
    label: Series | None
    client: tuple[NDArray, ...]
    row: Callable[[int], str]
    weight: Series | None = None


def check_header(source: str, names: Sequence[str]) -> None:
    """Refuses nameless columns, and two of one name."""
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


def choose_columns(source: str, names: Sequence[str], options: Options) -> Columns:
    """The role of each column, from the header alone."""
    check_header(source, names)
    existing, problems = frozenset(names), Problems(source)
    client: tuple[str, ...] = ()
    with problems.noted():
        if options.label not in existing:
            raise EvenhandError(
                f"{source}: there is no label column {options.label!r} {_among(options.label, names)}: say which it "
                "is with ",
                Argument("label", "NAME"),
                ".",
            )
    with problems.noted():
        client = _client_columns(source, names, existing, options)
    taken = {options.label: "label", **dict.fromkeys(client, "client")}
    with problems.noted():
        if options.weight is not None:
            _check_weight_column(source, names, taken, options.weight)
            taken[options.weight] = "weight"
    for option, given in (("drop", options.drop), ("categorical", options.categorical)):
        with problems.noted():
            _check_names(source, names, existing, option, given)
            for name in given:
                if name in taken and not (option == "categorical" and name == options.label):
                    raise EvenhandError(
                        f"{source}: {name!r} is the {taken[name]} column, which is not a feature anyway: leave it out "
                        "of ",
                        Argument(option, "NAMES"),
                        ".",
                    )
    if options.features is None:
        leave = {*taken, *options.drop}
        features = tuple(name for name in names if name not in leave)
    else:
        features = tuple(options.features)
        with problems.noted():
            _check_features(source, names, existing, features, taken, options)
    problems.check()
    if not features:
        raise EvenhandError(
            f"{source}: there are no feature columns beside {listing(names)}: add at least one."
        )
    return Columns(features, options.label, client, options.weight)


def table_dataset(
    source: str, columns: Columns, table: ReadTable, options: Options, problems: Problems | None = None
) -> FederatedDataset:
    """The data set of a table.

    Args:
      source: what the table is called in errors.
      columns: the role of each column.
      table: the columns; those that could not be read are absent.
      options: what the caller asked for.
      problems: what was wrong with the table when it was read.
    """
    problems = Problems(source) if problems is None else problems
    if options.fill not in (None, *get_args(Fill)):
        raise EvenhandError(
            Argument("fill", repr(options.fill)), f" is unknown: choose one of {', '.join(get_args(Fill))}."
        )
    table, notes = _without_empty(source, columns, _with_na(table, options.na), options)
    y, classes, features, client = _checked(source, columns, table, options, problems)
    _ask_about_ids(source, table.features, options)
    if client is None:
        client = owners(source, y, options.clients or 1, options)
    assignment = assign(
        client,
        name=source,
        subject=f"column {' / '.join(columns.client)!r}",
        test_fraction=options.test_fraction,
        valid_fraction=options.valid_fraction,
        seed=options.seed,
    )
    if table.weight is not None:
        # After the split, so that no example is among the training and among the test examples.
        counts = table.weight.values.astype(np.int64)
        train, valid, test = (np.repeat(part, counts[part]) for part in assignment.parts)
        assignment = assignment._replace(parts=(train, valid, test))
    fitted = fit(features, assignment.parts[0], source, standardize=options.standardize, fill=options.fill)
    scaled = options.regression and options.standardize_target
    target = fit_target(columns.label, y[assignment.parts[0]]) if scaled else None
    fitted = fitted._replace(target=target, na=tuple(options.na))
    train, valid, test = (
        Split(encode(fitted, features, part, source), y[part], assignment.offsets(i))
        for i, part in enumerate(assignment.parts)
    )
    notes += remarks_on_spelling(assignment.ids)
    return FederatedDataset(
        train=train,
        valid=valid,
        test=test,
        client_ids=assignment.ids,
        name=source,
        classes=classes,
        features=fitted,
        notes=notes,
        client_column=" / ".join(columns.client),
    )


def _checked(
    source: str, columns: Columns, table: ReadTable, options: Options, problems: Problems
) -> tuple[NDArray, tuple[str, ...] | None, tuple[Series, ...], NDArray | None]:
    """Labels, the names of their classes, features and the client of each row; all that is wrong is one error."""
    y, classes, client = np.zeros(0), None, None
    features: list[Series] = []
    if table.label is not None:
        with problems.noted():
            check_labels(source, table.label, table.row)
        present = np.flatnonzero(~table.label.missing)
        with problems.noted():
            label = table.label.at(present)
            label = label if options.regression else meant(source, label, options.categorical)
            y, classes = label_classes(
                source, label, lambda row: table.row(int(present[row])), regression=options.regression
            )
            y.setflags(write=False)
    with problems.noted():
        if options.fill is None:
            check_filled(source, table.features, table.row)
    for series in table.features:
        with problems.noted():
            categorical = series.name in options.categorical
            features.append(prepared(source, series, table.row, categorical=categorical))
    with problems.noted():
        if table.weight is not None:
            _check_weights(source, table.weight, table.row)
    for name, ids in zip(columns.client, table.client, strict=False):
        with problems.noted():
            _check_ids(source, name, ids, table.row)
    problems.check()
    client = _clients(source, table)
    return y, classes, tuple(features), client


def _with_na(table: ReadTable, na: Sequence[str]) -> ReadTable:
    """The table with the cells that ``na`` lists as empty ones."""
    if not na:
        return table
    return table._replace(
        features=tuple(with_na(series, na) for series in table.features),
        label=None if table.label is None else with_na(table.label, na),
        weight=None if table.weight is None else with_na(table.weight, na),
        client=tuple(
            np.where(np.isin(ids.astype(str), list(na)), "", ids.astype(str))
            if np.isin(ids.astype(str), list(na)).any()
            else ids
            for ids in table.client
        ),
    )


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
    absent = {"label": none, "client": none, "weight": none}
    if options.drop_empty:
        absent["label"] = table.label.missing
        absent["client"] = np.any([none, *map(_no_ids, table.client)], axis=0)
    if table.weight is not None and table.weight.categories is None:
        absent["weight"] = table.weight.values == 0
        if options.drop_empty:
            absent["weight"] = absent["weight"] | table.weight.missing
    kept = np.flatnonzero(~np.any(list(absent.values()), axis=0))
    if len(kept) == rows:
        return table, ()
    if not len(kept):
        lacking = "a label or a client" if table.weight is None else "a label, a client or a weight"
        raise EvenhandError(
            f"{source}: all {rows:,} rows lack {lacking}: name other columns with ",
            Argument("label", "NAME"),
            " and ",
            Argument("client", "NAME"),
            ".",
        )
    counts = [f"{mask.sum():,} without a {role}" for role, mask in absent.items() if mask.any()]
    note = f"Dropped {rows - len(kept):,} of {rows:,} rows: {', '.join(counts)}."
    return ReadTable(
        tuple(series.at(kept) for series in table.features),
        table.label.at(kept),
        tuple(ids[kept] for ids in table.client),
        lambda row: table.row(int(kept[row])),
        None if table.weight is None else table.weight.at(kept),
    ), (note,)


def _ask_about_ids(source: str, features: Sequence[Series], options: Options) -> None:
    """Warns of a column that has another whole number in each row, unless the columns were chosen by name.

    Standardised numbers of patients teach a model nothing but the order in which they were given.
    """
    for series in features if options.features is None else ():
        rows, values = len(series.values), series.values
        if series.categories is not None or series.name in options.categorical or rows <= _FEW_ROWS:
            continue
        if (
            len(np.unique(values)) == rows
            and np.all(np.isfinite(values))
            and np.all(values == np.rint(values))
        ):
            question = EvenhandWarning(
                f"{source}: column {series.name!r} has another whole number in each of the {rows:,} rows, as an id "
                "does: leave it out with ",
                named("drop", series.name),
                ", or choose the columns to learn from with ",
                Argument("features", "NAMES"),
                " if it is an amount.",
            )
            warnings.warn(question, stacklevel=4)  # the line that called load() or from_frame()


def _client_columns(
    source: str, names: Sequence[str], existing: frozenset[str], options: Options
) -> tuple[str, ...]:
    absent = [name for name in options.together if name not in existing]
    asked = options.together not in ((), DEFAULT_CLIENT)
    if len(absent) == len(options.together) and options.clients is not None and not asked:
        return ()
    if absent or not options.together:
        comma = ", in double quotes if it has a comma in it" if len(options.together) > 1 else ""
        alone = " alone" if options.clients is not None else ""
        missing = f"client column {absent[0]!r}" if absent else "client column named"
        among = _among(absent[0], names) if absent else f"among {listing(names)}"
        raise EvenhandError(
            f"{source}: there is no {missing} {among}: say which it is with ",
            Argument("client", "NAME"),
            f"{comma}, or spread the rows over N clients with ",
            Argument("clients", "N"),
            f"{alone}.",
        )
    if options.label in options.together:
        raise EvenhandError(
            f"{source}: column {options.label!r} is named both as the label and as a client column: name another "
            "for one of the two."
        )
    if len(set(options.together)) < len(options.together):
        raise EvenhandError(f"{source}: a client column is named twice: name each once.")
    return options.together


def _among(name: str, names: Sequence[str]) -> str:
    """Which columns there are, and which of the first thousand may have been meant."""
    meant = nearest(name, names[:1000])
    return f"among {listing(names)}" + ("" if meant is None else f" (perhaps you meant {meant!r})")


def _check_names(
    source: str, names: Sequence[str], existing: frozenset[str], option: str, given: Sequence[str]
) -> None:
    if isinstance(given, str):
        raise EvenhandError(f"{option}={given!r} is one piece of text: give a list of names, [{given!r}].")
    for name in given:
        if name not in existing:
            raise EvenhandError(
                f"{source}: there is no column {name!r} {_among(name, names)}: correct ",
                Argument(option, "NAMES"),
                ".",
            )


def _check_features(
    source: str,
    names: Sequence[str],
    existing: frozenset[str],
    features: tuple[str, ...],
    taken: dict[str, str],
    options: Options,
) -> None:
    if isinstance(options.features, str):
        _check_names(source, names, existing, "features", options.features)
    for position, name in enumerate(features):
        if name not in existing:
            raise EvenhandError(
                f"{source}: there is no feature column {name!r} {_among(name, names)}: correct ",
                Argument("features", "NAMES"),
                ".",
            )
        if name in taken:
            raise EvenhandError(
                f"{source}: column {name!r} is the {taken[name]} column and cannot be a feature, too: take it out "
                "of ",
                Argument("features", "NAMES"),
                ".",
            )
        if name in options.drop:
            raise EvenhandError(
                f"{source}: column {name!r} is both a feature and to be dropped: name it in one of the two."
            )
        if name in features[:position]:
            raise EvenhandError(f"{source}: feature column {name!r} is named twice: name it once.")


def _check_weight_column(source: str, names: Sequence[str], taken: dict[str, str], weight: str) -> None:
    if weight not in names:
        raise EvenhandError(
            f"{source}: there is no weight column {weight!r} {_among(weight, names)}: say which it is with ",
            Argument("weight", "NAME"),
            ".",
        )
    if weight in taken:
        raise EvenhandError(
            f"{source}: {weight!r} is the {taken[weight]} column and cannot be the weight, too: name another with ",
            Argument("weight", "NAME"),
            ".",
        )


def _check_weights(source: str, weight: Series, place: Callable[[int], str]) -> None:
    """Refuses weights that are not numbers of examples."""
    where = f"column {weight.name!r}"
    if weight.categories is not None:
        raise EvenhandError(
            f"{source}: {where} holds text, not weights: write how many examples each row stands for."
        )
    if weight.missing.any():
        raise EvenhandError(
            f"{source}: {place(int(np.argmax(weight.missing)))}, {where} is empty: give the row a weight or drop it",
            *such(weight.missing),
        )
    bad = ~(
        (weight.values >= 0) & (weight.values == np.rint(weight.values)) & (weight.values <= _MOST_EXAMPLES)
    )
    if bad.any():
        cells = [(place(int(i)), f"{weight.values[i]:g}") for i in np.flatnonzero(bad)[:MOST_LISTED]]
        raise EvenhandError(
            f"{source}: {cells[0][0]}, {where} holds {cells[0][1]}"
            f"{also(cells, int(bad.sum()))}: a weight is the number of examples that a row stands for, "
            "so round weights to whole numbers, after multiplying all of them if they are small."
        )
    if weight.values.sum() > _MOST_EXAMPLES:
        raise EvenhandError(
            f"{source}: {where} makes {weight.values.sum():,.0f} examples of {len(weight.values):,} rows: divide all "
            f"weights by one number, so that they sum to at most {_MOST_EXAMPLES:,}."
        )


def _no_ids(ids: NDArray) -> NDArray:
    """Which entries are no client ids, ``(n,)``."""
    if ids.dtype.kind == "f":
        return np.isnan(ids)
    if ids.dtype.kind != "U":
        return np.zeros(len(ids), bool)
    values, codes = np.unique(ids, return_inverse=True)
    return np.array([is_missing(value) for value in values.tolist()], bool)[codes]


def _check_ids(source: str, name: str, ids: NDArray, place: Callable[[int], str]) -> None:
    missing = _no_ids(ids)
    if not missing.any():
        return
    row = int(np.argmax(missing))
    text = str(ids[row])
    fault = f"is {show(text)}, which is not a client id" if text.strip() else "is empty"
    raise EvenhandError(
        f"{source}: {place(row)}, column {name!r} {fault}: give the row a client id or drop it",
        *such(missing),
    )


def _clients(source: str, table: ReadTable) -> NDArray | None:
    """The client's name for each row; None where rows name no clients."""
    if len(table.client) < 2:
        return table.client[0] if table.client else None
    parts: list[tuple[list[str], NDArray]] = []
    for ids in table.client:
        values, codes = np.unique(ids, return_inverse=True)
        parts.append(([spelled(value) for value in values.tolist()], codes))
    combined, codes = np.unique(np.stack([codes for _, codes in parts]), axis=1, return_inverse=True)
    names = [
        " / ".join(texts[code] for (texts, _), code in zip(parts, combination, strict=True))
        for combination in combined.T
    ]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise EvenhandError(
            f"{source}: two different clients would both be called {twice!r}: rename values that have ' / ' in them."
        )
    return np.array(names)[codes.reshape(-1)]
