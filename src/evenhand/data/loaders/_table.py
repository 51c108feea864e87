"""Tables with named columns, from whatever file: one of clients, one of labels, the rest features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evenhand.data._arrays import NDArray, class_labels, client_codes
from evenhand.data._dataset import FederatedDataset
from evenhand.data._split import Rows
from evenhand.data.loaders._options import Options, Pool, listing, pooled, unpooled
from evenhand.errors import EvenhandError

__all__ = ["Columns", "Table", "choose_columns", "finite_block", "not_a_number", "table_dataset"]


class Columns(NamedTuple):
    """The columns that are read; ``client`` is None where rows are to be spread over clients."""

    features: tuple[str, ...]
    label: str
    client: str | None


class Table(NamedTuple):
    """A table as read.

    Attributes:
      features: finite float32 ``(n, d)``.
      label: ``(n,)`` text or numbers.
      client: ``(n,)`` ids, or None.
      row: row number -> where it is in the file, ``line 5``.
    """

    features: NDArray
    label: NDArray
    client: NDArray | None
    row: Callable[[int], str]


def choose_columns(path: Path, names: list[str], options: Options) -> Columns:
    """Which column is what, from the header alone."""
    for position, name in enumerate(names, start=1):
        if not name:
            raise EvenhandError(
                f"{path}: column {position} has no name in the header: name it, or drop it (a row index that "
                "pandas wrote goes away with index=False)."
            )
        if names.index(name) != position - 1:
            raise EvenhandError(f"{path}: the header names column {name!r} twice: rename one of the two.")
    if options.label not in names:
        raise EvenhandError(
            f"{path}: there is no label column {options.label!r} among {listing(names)}: say which it is "
            "with label=NAME."
        )
    client = options.client if options.client in names else None
    if client is None and options.clients is None:
        raise EvenhandError(
            f"{path}: there is no client column {options.client!r} among {listing(names)}: say which it is "
            "with client=NAME, or spread the rows over N clients with clients=N."
        )
    taken = {options.label, client}
    if options.features is None:
        features = tuple(name for name in names if name not in taken)
    else:
        features = tuple(options.features)
        for name in features:
            if name not in names:
                raise EvenhandError(
                    f"{path}: there is no feature column {name!r} among {listing(names)}: correct "
                    "features=NAMES."
                )
    if not features:
        raise EvenhandError(
            f"{path}: there are no feature columns beside {listing(names)}: add at least one."
        )
    return Columns(features, options.label, client)


def not_a_number(path: Path, where: str, name: str, cell: str) -> EvenhandError:
    """The error for a feature cell that is empty or text."""
    if not cell.strip():
        return EvenhandError(f"{path}: {where}, column {name!r} is empty: fill it in or drop the row.")
    return EvenhandError(
        f"{path}: {where}, column {name!r} holds {cell[:40]!r}, which is not a number: encode the column as "
        "numbers, or name the columns to use with features=NAMES."
    )


def finite_block(path: Path, block: NDArray, names: tuple[str, ...], row: Callable[[int], str]) -> NDArray:
    """``(n, d)`` numbers as finite float32."""
    with np.errstate(over="ignore"):
        small = block.astype(np.float32)
    bad = ~np.isfinite(small)
    if bad.any():
        i, j = np.argwhere(bad)[0].tolist()
        raise EvenhandError(
            f"{path}: {row(i)}, column {names[j]!r} holds {block[i, j]}, which is no finite 32-bit number: "
            "repair it or drop the row."
        )
    return small


def table_dataset(path: Path, columns: Columns, table: Table, options: Options) -> FederatedDataset:
    """The data set of a table."""
    if not len(table.features):
        raise EvenhandError(f"{path}: the table has a header but no rows: add at least one for each client.")

    def label_place(i: int) -> str:
        return f"{table.row(i)}, column {columns.label!r}"

    labels, classes = class_labels(table.label, str(path), label_place, regression=options.regression)
    if table.client is None:
        return pooled(path, Pool(table.features, labels), None, classes, options, options.clients or 1)
    if table.client.dtype.kind == "U" and (table.client == "").any():
        i = int(np.argmax(table.client == ""))
        raise EvenhandError(
            f"{path}: {table.row(i)}, column {columns.client!r} is empty: give the row a client id or drop "
            "it."
        )
    client_codes(table.client, str(path), f"column {columns.client!r}")
    return unpooled(path, Rows(table.features, labels, table.client), None, classes, options)
