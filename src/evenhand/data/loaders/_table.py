"""Tables with named columns, from any source: some of client ids, one of labels, the others of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._features import Fill, Series, encode, fit
from evenhand.data._split import assign
from evenhand.data._text import is_missing
from evenhand.data.loaders._cells import label_classes, prepared, show
from evenhand.data.loaders._options import DEFAULT_CLIENT, Options, listing, owners
from evenhand.errors import Argument, EvenhandError, nearest

__all__ = ["Columns", "Table", "check_header", "choose_columns", "spelled", "table_dataset"]


class Columns(NamedTuple):
    """The columns that are read; ``client`` is empty where rows are to be spread over clients."""

    features: tuple[str, ...]
    label: str
    client: tuple[str, ...]


class Table(NamedTuple):
    """A table as read.

    Attributes:
      features: the columns to predict from.
      label: the column to predict.
      client: ids ``(n,)`` of any dtype, one array for each client column.
      row: row number -> where it is in the source, ``line 5``.
    """

    features: tuple[Series, ...]
    label: Series
    client: tuple[NDArray, ...]
    row: Callable[[int], str]


def check_header(source: str, names: Sequence[str]) -> None:
    """Refuses a nameless column, and two of one name."""
    seen: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not name:
            raise EvenhandError(
                f"{source}: column {position} has no name in the header: name it, or drop it (a row index that "
                "pandas wrote goes away with index=False)."
            )
        if name in seen:
            raise EvenhandError(f"{source}: the header names column {name!r} twice: rename one of the two.")
        seen.add(name)


def choose_columns(source: str, names: Sequence[str], options: Options) -> Columns:
    """The role of each column, from the header alone."""
    check_header(source, names)
    known = frozenset(names)
    if options.label not in known:
        raise EvenhandError(
            f"{source}: there is no label column {options.label!r} {_among(options.label, names)}: say which it is "
            "with ",
            Argument("label", "NAME"),
            ".",
        )
    client = _client_columns(source, names, known, options)
    taken = {options.label: "label", **dict.fromkeys(client, "client")}
    for option, given in (("drop", options.drop), ("categorical", options.categorical)):
        _check_names(source, names, known, option, given)
        for name in given:
            if name in taken:
                raise EvenhandError(
                    f"{source}: {name!r} is the {taken[name]} column, which is not a feature anyway: leave it out of "
                    f"{option}=NAMES."
                )
    if options.features is None:
        leave = {*taken, *options.drop}
        features = tuple(name for name in names if name not in leave)
    else:
        features = tuple(options.features)
        _check_features(source, names, known, features, taken, options)
    if not features:
        raise EvenhandError(
            f"{source}: there are no feature columns beside {listing(names)}: add at least one."
        )
    return Columns(features, options.label, client)


def table_dataset(source: str, columns: Columns, table: Table, options: Options) -> FederatedDataset:
    """The data set of a table."""
    rows = len(table.label.values)
    if not rows:
        raise EvenhandError(
            f"{source}: the table has a header but no rows: add at least one for each client."
        )
    if options.fill not in (None, *get_args(Fill)):
        raise EvenhandError(
            Argument("fill", repr(options.fill)), f" is unknown: choose one of {', '.join(get_args(Fill))}."
        )
    y, classes = label_classes(source, table.label, table.row, regression=options.regression)
    y.setflags(write=False)
    columns_of_features = tuple(
        prepared(source, series, table.row, categorical=series.name in options.categorical, fill=options.fill)
        for series in table.features
    )
    client = _clients(source, columns, table)
    if client is None:
        client = owners(source, y, options.clients or 1, options)
    of = assign(
        client,
        name=source,
        what=f"column {' / '.join(columns.client)!r}",
        test_fraction=options.test_fraction,
        valid_fraction=options.valid_fraction,
        seed=options.seed,
    )
    features = fit(
        columns_of_features, of.parts[0], source, standardize=options.standardize, fill=options.fill
    )
    train, valid, test = (
        Split(encode(features, columns_of_features, part, source), y[part], of.offsets(i))
        for i, part in enumerate(of.parts)
    )
    return FederatedDataset(train, valid, test, of.ids, source, classes, features)


def _client_columns(
    source: str, names: Sequence[str], known: frozenset[str], options: Options
) -> tuple[str, ...]:
    absent = [name for name in options.together if name not in known]
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
    source: str, names: Sequence[str], known: frozenset[str], option: str, given: Sequence[str]
) -> None:
    if isinstance(given, str):
        raise EvenhandError(f"{option}={given!r} is one piece of text: give a list of names, [{given!r}].")
    for name in given:
        if name not in known:
            raise EvenhandError(
                f"{source}: there is no column {name!r} {_among(name, names)}: correct {option}=NAMES."
            )


def _check_features(
    source: str,
    names: Sequence[str],
    known: frozenset[str],
    features: tuple[str, ...],
    taken: dict[str, str],
    options: Options,
) -> None:
    if isinstance(options.features, str):
        _check_names(source, names, known, "features", options.features)
    for position, name in enumerate(features):
        if name not in known:
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


def _clients(source: str, columns: Columns, table: Table) -> NDArray | None:
    """The client's name for each row; None where rows name no clients."""
    if not table.client:
        return None
    parts: list[tuple[list[str], NDArray]] = []
    for name, ids in zip(columns.client, table.client, strict=True):
        values, codes = np.unique(ids, return_inverse=True)
        texts = [spelled(value) for value in values.tolist()]
        for position, text in enumerate(texts):
            if is_missing(text):
                what = "is empty" if not text.strip() else f"is {show(text)}, which is not a client id"
                where = table.row(int(np.argmax(codes == position)))
                raise EvenhandError(
                    f"{source}: {where}, column {name!r} {what}: give the row a client id or drop it."
                )
        parts.append((texts, codes))
    if len(parts) == 1:
        return table.client[0]
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


def spelled(value: object) -> str:
    """A client id as text, whole numbers without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
