"""NumPy archives: ``x``, ``y`` and ``client``, or the same with ``_train`` and ``_test``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.data._arrays import (
    NDArray,
    as_array,
    as_features,
    check_class_numbers,
    class_labels,
    client_codes,
    element,
)
from evenhand.data._dataset import FederatedDataset
from evenhand.data._split import Rows
from evenhand.data.loaders._cells import amounts_or_classes
from evenhand.data.loaders._npz_file import array_names, read_arrays
from evenhand.data.loaders._options import (
    DEFAULT_CLIENT,
    DEFAULT_LABEL,
    Options,
    Pool,
    listing,
    pooled,
    unpooled,
)
from evenhand.errors import Argument, EvenhandError

__all__ = ["load_npz", "new_arrays"]


def load_npz(path: Path, options: Options) -> FederatedDataset:
    """The data set of an archive; pixels, uint8 of three or more axes, become float32 in [0, 1]."""
    names = array_names(path)
    feature = options.features_array or "x"
    split = feature not in names and f"{feature}_train" in names
    suffixes = ("",) if not split else ("_train", "_test") if f"{feature}_test" in names else ("_train",)
    _check_array(path, names, feature + suffixes[0])
    label = options.label
    if label == DEFAULT_LABEL and label + suffixes[0] not in names:
        label = "y"
    roles = [feature, label]
    if options.client + suffixes[0] in names:
        roles.append(options.client)
    elif options.clients is None or options.together not in ((), DEFAULT_CLIENT):
        raise EvenhandError(
            f"{path}: there is no array {options.client + suffixes[0]!r} of client ids among {listing(names)}: "
            "add it (evenhand.data.partition can make one) or name it with ",
            Argument("client", "NAME"),
            ", or spread the rows over N clients with ",
            Argument("clients", "N"),
            ".",
        )
    _check_roles(path, roles)
    parts = [[role + suffix for role in roles] for suffix in suffixes]
    for part in parts:
        for name in part:
            _check_array(path, names, name)
    return _dataset(path, parts, read_arrays(path, parts), options)


def new_arrays(
    path: Path, feature: str, client: str, label: str
) -> tuple[NDArray, NDArray | None, NDArray | None]:
    """Features, clients' names and labels, the latter two as text, of rows for a model to predict.

    Args:
      path: the archive.
      feature: the array of features.
      client: that of client ids; None in the result where there is none.
      label: that of labels, likewise; in place of the default, ``y`` will do.
    """
    names = array_names(path)
    if feature not in names:
        raise EvenhandError(
            f"{path}: there is no array {feature!r} among {listing(names)}, which the model was trained with: add it."
        )
    if label == DEFAULT_LABEL and label not in names:
        label = "y"
    roles = [feature, *(name for name in (client, label) if name in names)]
    arrays = read_arrays(path, [roles])
    clients = labels = None
    if client in names:
        codes, ids = client_codes(arrays[client], str(path), client)
        clients = np.array(ids)[codes]
    if label in names:
        found = as_array(arrays[label], str(path), f"array {label!r}")
        labels = found.astype(str) if found.ndim == 1 else None
    return _features(path, arrays[feature], feature), clients, labels


def _named(last: str) -> tuple[str | Argument, ...]:
    names, label, client = (Argument(name, "NAME") for name in ("features_array", "label", "client"))
    return names, ", ", label, f" {last} ", client, "."


def _check_array(path: Path, names: list[str], name: str) -> None:
    if name not in names:
        raise EvenhandError(
            f"{path}: there is no array {name!r} among {listing(names)}: save arrays named x, y and client, or "
            "name them with ",
            *_named("and"),
        )


def _check_roles(path: Path, roles: list[str]) -> None:
    for role in roles:
        if roles.count(role) > 1:
            raise EvenhandError(
                f"{path}: array {role!r} cannot be two of features, labels and client ids: name another one "
                "with ",
                *_named("or"),
            )


def _dataset(
    path: Path, parts: list[list[str]], arrays: dict[str, NDArray], options: Options
) -> FederatedDataset:
    xs = [_features(path, arrays[part[0]], part[0]) for part in parts]
    names = [part[1] for part in parts]
    ys = [as_array(arrays[name], str(path), f"array {name!r}") for name in names]
    labels, classes = _labels(path, ys, names, options)
    if len(parts[0]) == 2:
        test = Pool(xs[1], labels[1]) if len(parts) > 1 else None
        return pooled(path, Pool(xs[0], labels[0]), test, classes, options, options.clients or 1)
    clients = [_client(path, arrays[part[2]], part[2]) for part in parts]
    rows = [Rows(*columns) for columns in zip(xs, labels, clients, strict=True)]
    return unpooled(path, rows[0], rows[1] if len(rows) > 1 else None, classes, options)


def _features(path: Path, given: NDArray, name: str) -> NDArray:
    if given.dtype == np.uint8 and given.ndim >= 3:
        return np.divide(given, np.float32(255), dtype=np.float32)
    return as_features(given, str(path), element(name), what=f"array {name!r}")


def _labels(
    path: Path, columns: list[NDArray], names: list[str], options: Options
) -> tuple[list[NDArray], tuple[str, ...] | None]:
    """Labels of all parts together, so that a class has one number in both."""
    kinds = {column.dtype.kind == "U" for column in columns}
    if len(kinds) > 1 or len({column.shape[1:] for column in columns}) > 1:
        raise EvenhandError(f"{path}: {listing(names)} differ in kind or shape: bring them to one form.")
    first = len(columns[0])

    def place(row: int) -> str:
        return f"{names[0]}[{row}]" if row < first else f"{names[1]}[{row - first}]"

    values = np.concatenate(columns)
    if names[0] in options.categorical:
        values = values.astype(str)
    elif not options.regression:
        check_class_numbers(values, str(path), f"array {names[0]!r}", *amounts_or_classes(names[0]))
    labels, classes = class_labels(values, str(path), place, regression=options.regression)
    return np.split(labels, [first])[: len(columns)], classes


def _client(path: Path, given: NDArray, name: str) -> NDArray:
    values = as_array(given, str(path), f"array {name!r}")
    client_codes(values, str(path), name)
    return values
