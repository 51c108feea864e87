"""Rows in the format of LIBSVM, and the sensors of Vehicle, which come as cells of a MATLAB file."""

from __future__ import annotations

import contextlib
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.data import _validation as validation
from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._validation import NDArray
from evenhand.data.loaders._arrays import pooled
from evenhand.data.loaders._source import Options, bare_suffix, check_unpacked, listing, open_text
from evenhand.errors import Argument, EvenhandError

# --- LIBSVM --------------------------------------------------------------------------------------------------


LIBSVM = (".libsvm", ".svm", ".svmlight")

_WIDEST = 10**6
"""Most features; all of them are kept, zeros included."""


class _Rows(NamedTuple):
    """The rows of a file: labels, and the row, the place and the value of each number that is written down."""

    labels: NDArray
    row: NDArray
    place: NDArray
    value: NDArray


def load_libsvm(path: Path, options: Options) -> FederatedDataset:
    """Rows ``LABEL INDEX:VALUE INDEX:VALUE ...``, indices from 1: a file, or a folder with a file for each client.

    What a row does not list is 0.  A client in a folder is called like its file, without the suffix.  The rows of a
    single file belong to nobody and are spread over ``clients``.

    Source: Chang and Lin, *LIBSVM: A Library for Support Vector Machines*, 2011.
    """
    files = [path] if path.is_file() else _one_each(path, libsvm_files(path))
    parts = [_rows(file) for file in files]
    width = max(1 + int(part.place.max(initial=0)) for part in parts)
    count = sum(len(part.labels) for part in parts)
    if width > _WIDEST:
        raise EvenhandError(
            f"{path}: index {width} is out of range: number the features from 1 to {_WIDEST:,}."
        )
    # Each number that is written takes three bytes at least; far more zeros are no real data.
    written = sum(file.stat().st_size for file in files)
    if 4 * width * count > max(2**30, 1000 * written):
        raise EvenhandError(
            f"{path}: {count:,} rows of {width:,} features do not fit into memory, zeros included: use fewer features."
        )
    x = np.zeros((count, width), np.float32)
    begin = 0
    for part in parts:
        x[begin + part.row, part.place] = part.value
        begin += len(part.labels)
    y, classes = _labels(path, np.concatenate([part.labels for part in parts]), options)
    if path.is_file():
        if options.clients is None:
            fault = f"{path}: the rows have no client ids: spread them over N clients with "
            raise EvenhandError(
                fault, Argument("clients", "N"), ", or name a folder with a file for each client."
            )
        data = pooled(path, [(x, y)], classes, options, clients=1)
    else:
        names = np.repeat([_client(file) for file in files], [len(part.labels) for part in parts])
        data = build([PooledRows(x, y, names)], options.splitting, name=str(path), classes=classes)
    return replace(data, notes=(*data.notes, *validation.remark_on_gaps(y, classes)))


def libsvm_files(folder: Path) -> list[Path]:
    """The files of a folder that have such a suffix, in the order of their names."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return [entry for entry in entries if entry.is_file() and bare_suffix(entry) in LIBSVM]


def _one_each(folder: Path, files: list[Path]) -> list[Path]:
    """The files of a folder, checked to be of different clients."""
    first = dict[str, Path]()
    for file in files:
        other = first.setdefault(validation.canonical(_client(file)), file)
        if other is not file:
            raise EvenhandError(
                f"{folder}: {other.name} and {file.name} are both files of client {_client(file)!r}: keep one, or "
                "rename one."
            )
    return files


def _client(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.removesuffix(Path(name).suffix)


def _rows(path: Path) -> _Rows:
    labels, row, place, value = list[float](), list[int](), list[int](), list[float]()
    with open_text(path, "text") as lines:
        for number, line in enumerate(lines, 1):
            cells = line.partition("#")[0].split()
            if not cells:
                continue
            label, pairs = validation.number(cells[0]), [cell.partition(":") for cell in cells[1:]]
            pairs = [pair for pair in pairs if pair[0] != "qid"]
            values = [validation.number(pair[2]) if pair[0].isdecimal() else None for pair in pairs]
            places = [int(pair[0]) if pair[0].isdecimal() and len(pair[0]) <= 18 else 0 for pair in pairs]
            if (
                label is None
                or not math.isfinite(label)
                or any(v is None or not math.isfinite(v) for v in values)
            ):
                raise EvenhandError(
                    f"{path}: line {number} is not a label and pairs INDEX:VALUE of finite numbers: write 1 3:0.5 7:2 "
                    "for the label 1 and two features."
                )
            if places and (min(places) < 1 or any(b <= a for a, b in pairwise(places))):
                raise EvenhandError(
                    f"{path}: line {number} does not have indices that begin at 1 and grow: write each feature once, "
                    "in the order of their indices."
                )
            row += [len(labels)] * len(pairs)
            place += [i - 1 for i in places]
            value += [v for v in values if v is not None]
            labels.append(label)
    if not labels:
        raise EvenhandError(f"{path}: there are no rows: write one for each example.")
    index = np.array(row, np.int64), np.array(place, np.int64)
    numbers = validation.float32(np.array(value), str(path), lambda i: f"value {i + 1}")
    return _Rows(np.array(labels), *index, numbers)


def _labels(path: Path, values: NDArray, options: Options) -> tuple[NDArray, tuple[str, ...] | None]:
    """Class numbers, or real targets; whole numbers that do not begin at 0, such as -1 and 1, are names."""
    are_whole = not options.regression and bool((values == np.rint(values)).all())
    if are_whole and 0 < len(np.unique(values)) <= 20 and values.min() != 0:
        names, y = np.unique(values, return_inverse=True)
        return y.astype(np.int32), tuple(str(int(name)) for name in names)
    if not options.regression:
        validation.check_sampled_classes(values, str(path), "the column of labels")
    return validation.class_labels(
        values, str(path), lambda i: f"label {i + 1}", regression=options.regression
    )


# --- Vehicle: the cells of a MATLAB file ---------------------------------------------------------------------


def load_cells(path: Path, options: Options) -> FederatedDataset:
    """A MATLAB file with a cell of features in ``X`` and a cell of labels in ``Y`` for each client.

    So Vehicle comes: 23 sensors, each with 100 features of sounds and of shocks, and the kind of vehicle that went by,
    1 or -1.  As in q-FFL, each sensor standardises its own features, over all of its rows; a feature that does not vary
    becomes 0.  ``standardize=False`` leaves them.

    Source: Duarte and Hu, *Vehicle classification in distributed sensor networks*, JPDC 2004; Smith et al., *Federated
    Multi-Task Learning*, NeurIPS 2017.
    """
    cells = _variables(path)
    names = [f"sensor {k:0{len(str(len(cells) - 1))}d}" for k in range(len(cells))]
    xs, ys = list[NDArray](), list[NDArray]()
    for name, (x, y) in zip(names, cells, strict=True):
        where = f"{path}: {name}"
        if (
            x.ndim != 2
            or y.ndim != 2
            or x.dtype.kind not in "biuf"
            or y.dtype.kind not in "biuf"
            or y.size != len(x)
        ):
            raise EvenhandError(
                f"{where} has features of shape {x.shape} and labels of shape {y.shape}: give a matrix of numbers with "
                "a row, and one label, for each example."
            )
        features = validation.as_features(x.astype(np.float64), where).astype(np.float64)
        if options.standardize and len(x):
            deviation = features.std(axis=0)
            features = (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, np.inf)
        xs.append(features.astype(np.float32))
        ys.append(y.reshape(-1).astype(np.float64))
    if len({x.shape[1] for x in xs}) > 1:
        raise EvenhandError(
            f"{path}: clients differ in their number of features: give all of them the same ones."
        )
    y, classes = _labels(path, np.concatenate(ys), options)
    clients = np.repeat(names, [len(x) for x in xs])
    rows = PooledRows(np.concatenate(xs), y, clients)
    return build([rows], options.splitting, name=str(path), classes=classes)


def _variables(path: Path) -> Sequence[tuple[NDArray, NDArray]]:
    """The matrices in the cells of ``X`` and ``Y``, client by client."""
    from scipy import io  # takes a quarter of a second that few data sets need

    check_unpacked(path, _declared_size(path), "save it again")
    try:
        held: dict[str, Any] = io.loadmat(path, variable_names=("X", "Y"))
    except Exception:  # scipy raises whatever a damaged file leads it to
        raise EvenhandError(
            f"{path}: this is not a MATLAB file, or a damaged one, or of version 7.3: save it again with -v7."
        ) from None
    columns = [held.get(name) for name in ("X", "Y")]
    if not all(
        isinstance(column, np.ndarray) and column.dtype.kind == "O" and column.size for column in columns
    ):
        names = listing(sorted(name for name in held if not name.startswith("__"))) or "none"
        raise EvenhandError(
            f"{path}: the cells X and Y are needed, and the file has {names} of these: save a cell of features and one "
            "of labels for each client."
        )
    xs, ys = (list(column.reshape(-1)) for column in columns if column is not None)
    if len(xs) != len(ys):
        raise EvenhandError(
            f"{path}: X has {len(xs)} cells and Y {len(ys)}: give one of each for each client."
        )
    if not all(isinstance(cell, np.ndarray) for cell in [*xs, *ys]):
        raise EvenhandError(f"{path}: a cell of X or Y is no matrix: save matrices of numbers.")
    check_unpacked(path, sum(x.nbytes for x in xs), "save it again")
    return list(zip(xs, ys, strict=True))


_COMPRESSED = 15


def _declared_size(path: Path) -> int:
    """How many bytes the compressed variables of a MATLAB file unpack to, by what each of them declares first."""
    size = 0
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:], "")
        while order and len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", tag)
            end = file.tell() + length
            if kind == _COMPRESSED:
                with contextlib.suppress(zlib.error, struct.error):  # scipy says what is damaged
                    first = zlib.decompressobj().decompress(file.read(min(length, 1024)), 8)
                    size += struct.unpack(f"{order}4xI", first)[0]
            file.seek(end)
    return size
