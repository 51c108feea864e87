"""NumPy archives: ``x``, ``y`` and ``client``, or the same with ``_train`` and ``_test``."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from evenhand.data._arrays import NDArray, as_array, as_features, class_labels, client_codes, element
from evenhand.data._dataset import FederatedDataset
from evenhand.data._split import Rows
from evenhand.data.loaders._options import Options, Pool, listing, pooled, unpooled
from evenhand.errors import EvenhandError

__all__ = ["load_npz"]

# What NumPy and zipfile raise on damaged archives; pickles are refused by allow_pickle=False with a
# ValueError.
_DAMAGE = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def load_npz(path: Path, options: Options) -> FederatedDataset:
    """The data set of an archive; pixels, uint8 of three or more axes, become float32 in [0, 1]."""
    arrays = _arrays(path, options)
    split = "x" not in arrays and "x_train" in arrays
    suffix = "_train" if split else ""
    _column(path, arrays, "x" + suffix)
    label = next((name for name in (options.label, "y") if name + suffix in arrays), "y")
    owned = options.client + suffix in arrays
    if not owned and options.clients is None:
        raise EvenhandError(
            f"{path}: there is no array {options.client + suffix!r} of client ids among "
            f"{listing(list(arrays))}: add it (evenhand.data.partition can make one) or name it with "
            "client=NAME, or spread the rows over N clients with clients=N."
        )
    suffixes = (suffix, "_test") if split and "x_test" in arrays else (suffix,)
    xs = [_features(path, arrays, "x" + one) for one in suffixes]
    ys = [_column(path, arrays, label + one) for one in suffixes]
    names = [label + one for one in suffixes]
    labels, classes = _labels(path, ys, names, options)
    if not owned:
        test = Pool(xs[1], labels[1]) if len(suffixes) > 1 else None
        return pooled(path, Pool(xs[0], labels[0]), test, classes, options, options.clients or 1)
    clients = [_client(path, arrays, options.client + one) for one in suffixes]
    parts = [Rows(*columns) for columns in zip(xs, labels, clients, strict=True)]
    return unpooled(path, parts[0], parts[1] if len(parts) > 1 else None, classes, options)


def _arrays(path: Path, options: Options) -> dict[str, NDArray]:
    """The arrays that can play a part."""
    if not path.stat().st_size:
        raise EvenhandError(f"{path}: the file is empty: write it again with numpy.savez.")
    if not zipfile.is_zipfile(path):
        raise EvenhandError(f"{path}: no NumPy archive, or a truncated one: write it with numpy.savez.")
    roles = ("x", "y", options.label, options.client)
    wanted = [role + suffix for role in dict.fromkeys(roles) for suffix in ("", "_train", "_test")]
    found: dict[str, NDArray] = {}
    name = ""
    try:
        # Opened here because NumPy leaves a file that it opened itself open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                found[name] = archive[name] if name in wanted else np.empty(0)
    except _DAMAGE as error:
        where = f"array {name!r}" if name else "the archive"
        if "allow_pickle" in str(error):
            raise EvenhandError(
                f"{path}: {where} holds Python objects: save numbers or plain text (no dtype=object)."
            ) from None
        raise EvenhandError(f"{path}: {where} is damaged: write it again with numpy.savez.") from None
    return found


def _column(path: Path, arrays: dict[str, NDArray], name: str) -> NDArray:
    if name not in arrays:
        raise EvenhandError(
            f"{path}: there is no array {name!r} among {listing(list(arrays))}: save arrays named x, y and "
            "client."
        )
    return as_array(arrays[name], str(path), f"array {name!r}")


def _features(path: Path, arrays: dict[str, NDArray], name: str) -> NDArray:
    values = _column(path, arrays, name)
    if values.dtype == np.uint8 and values.ndim >= 3:
        return values.astype(np.float32) / np.float32(255)
    return as_features(values, str(path), element(name), what=f"array {name!r}")


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

    labels, classes = class_labels(np.concatenate(columns), str(path), place, regression=options.regression)
    return np.split(labels, [first])[: len(columns)], classes


def _client(path: Path, arrays: dict[str, NDArray], name: str) -> NDArray:
    values = _column(path, arrays, name)
    client_codes(values, str(path), name)
    return values
