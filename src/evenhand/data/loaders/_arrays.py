"""Arrays in files: NumPy archives, and IDX, the format of MNIST and its family.

What a file's header promises is checked before an array is read, so that a damaged or hostile file fills no memory.
"""

from __future__ import annotations

import gzip
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.data import _validation as validation
from evenhand.data import partition
from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._validation import NDArray
from evenhand.data.loaders._cells import amounts_or_classes
from evenhand.data.loaders._source import (
    DEFAULT_CLIENT,
    DEFAULT_LABEL,
    Options,
    check_file,
    check_unpacked,
    kind_of,
    listing,
)
from evenhand.errors import Argument, EvenhandError

# --- NumPy archives: x, y and client, or the same with _train and _test -------------------------------------


def load_npz(path: Path, options: Options) -> FederatedDataset:
    """The data set of an archive; pixels, uint8 of three or more axes, become float32 in [0, 1]."""
    names = array_names(path)
    feature = options.features_array or "x"
    split = feature not in names and f"{feature}_train" in names
    suffixes = ("",) if not split else ("_train", "_test") if f"{feature}_test" in names else ("_train",)
    _check_array(path, names, feature + suffixes[0])
    roles, client = [feature, _label(names, options.label, suffixes[0])], next(iter(options.client), "")
    if client + suffixes[0] in names:
        roles.append(client)
    elif options.clients is None or options.client not in ((), DEFAULT_CLIENT):
        fault = f"{path}: there is no array {client + suffixes[0]!r} of client ids among {listing(names)}"
        cure = "add it (evenhand.data.partition can make one) or name it with "
        spread = (", or spread the rows over N clients with ", Argument("clients", "N"), ".")
        raise EvenhandError(f"{fault}: {cure}", Argument("client", "NAME"), *spread)
    twice = validation.first_repeated(roles)
    if twice is not None:
        fault = f"{path}: array {twice!r} cannot be two of features, labels and client ids"
        raise EvenhandError(f"{fault}: name another one with ", *_named("or"))
    parts = [[role + suffix for role in roles] for suffix in suffixes]
    for name in chain.from_iterable(parts):
        _check_array(path, names, name)
    return _npz_dataset(path, parts, read_arrays(path, parts), options)


def _label(names: Sequence[str], label: str, suffix: str = "") -> str:
    """The array of labels; in place of the default, ``y`` will do."""
    return "y" if label == DEFAULT_LABEL and label + suffix not in names else label


def new_arrays(
    path: Path, feature: str, client: str, label: str
) -> tuple[NDArray, NDArray | None, NDArray | None]:
    """Features, clients' names and labels, the latter two as text, of rows for a model to predict.

    Args:
      path: the archive.
      feature: the array of features.
      client: that of client ids; None in the result where there is none.
      label: that of labels, likewise.
    """
    names = array_names(path)
    if feature not in names:
        raise EvenhandError(
            f"{path}: there is no array {feature!r} among {listing(names)}, which the model was trained with: add it."
        )
    label = _label(names, label)
    roles = [feature, *(name for name in (client, label) if name in names)]
    arrays = read_arrays(path, [roles])
    clients = labels = None
    if client in names:
        codes, ids = validation.client_codes(arrays[client], str(path), client)
        clients = np.array(ids)[codes]
    if label in names:
        column = validation.as_array(arrays[label], str(path), f"array {label!r}")
        labels = column.astype(str) if column.ndim == 1 else None
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


def _npz_dataset(
    path: Path, parts: list[list[str]], arrays: dict[str, NDArray], options: Options
) -> FederatedDataset:
    xs = [_features(path, arrays[part[0]], part[0]) for part in parts]
    names = [part[1] for part in parts]
    ys = [validation.as_array(arrays[name], str(path), f"array {name!r}") for name in names]
    labels, classes = _labels(path, ys, names, options)
    if len(parts[0]) == 2:
        data = pooled(path, list(zip(xs, labels, strict=True)), classes, options, clients=1)
    else:
        clients = [_client(path, arrays[part[2]], part[2]) for part in parts]
        rows = [PooledRows(*columns) for columns in zip(xs, labels, clients, strict=True)]
        data = build(rows, options.splitting, name=str(path), classes=classes)
    return replace(data, notes=(*data.notes, *validation.remark_on_gaps(np.concatenate(labels), classes)))


def _features(path: Path, given: NDArray, name: str) -> NDArray:
    if given.dtype == np.uint8 and given.ndim >= 3:
        return in_unit_range(given)
    return validation.as_features(given, str(path), validation.element(name), subject=f"array {name!r}")


def in_unit_range(pixels: NDArray) -> NDArray:
    """Pixels of 8 bits as float32 in [0, 1]."""
    return np.divide(pixels, np.float32(255), dtype=np.float32)


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
    if options.categorical:  # which can name nothing but the labels here
        values = values.astype(str)
    elif not options.regression:
        validation.check_class_numbers(
            values, str(path), f"array {names[0]!r}", *amounts_or_classes(names[0])
        )
    labels, classes = validation.class_labels(values, str(path), place, regression=options.regression)
    return np.split(labels, [first])[: len(columns)], classes


def _client(path: Path, given: NDArray, name: str) -> NDArray:
    values = validation.as_array(given, str(path), f"array {name!r}")
    validation.client_codes(values, str(path), name)
    return values


# --- examples of no client ----------------------------------------------------------------------------------


def pooled(
    source: Path | str,
    examples: Sequence[tuple[NDArray, NDArray]],
    classes: tuple[str, ...] | None,
    options: Options,
    *,
    clients: int,
) -> FederatedDataset:
    """The data set of training and test examples spread over clients: Dirichlet by class, evenly for real targets.

    Args:
      source: where the examples are from.
      examples: ``(x, y)`` for training, and for testing if the source has a test part.
      classes: the names of the classes, if they have any.
      options: what the caller asked for.
      clients: how many clients there are where the options do not say.
    """
    (x, y), *tests = examples
    owner = partition.owners(y, options.clients or clients, options.alpha, options.seed, str(source))
    rows = [PooledRows(x, y, owner)]
    for x, new_y in tests:
        # Real targets count as one class: every client gets tests in proportion to its training examples.
        kinds = (y, new_y) if partition.are_classes(y) else (np.zeros(len(y)), np.zeros(len(new_y)))
        rows.append(PooledRows(x, new_y, partition.matching(kinds[0], owner, kinds[1], options.seed)))
    return build(rows, options.splitting, name=str(source), classes=classes)


# --- one archive --------------------------------------------------------------------------------------------


# What NumPy and zipfile raise on damaged archives.
_DAMAGE = (
    *(ValueError, OSError, EOFError, LookupError, TypeError, OverflowError, RuntimeError, MemoryError),
    *(SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def _damaged(path: Path, content: str) -> EvenhandError:
    return EvenhandError(f"{path}: {content}: write it again with numpy.savez.")


def array_names(path: Path) -> list[str]:
    """The names of all arrays in an archive.

    Raises:
      EvenhandError: it is not an archive, or damaged, or has two arrays of one name.
    """
    with _members(path) as (_, members):
        return list(members)


def read_arrays(path: Path, parts: Sequence[Sequence[str]]) -> dict[str, NDArray]:
    """Some arrays of an archive.

    Args:
      path: the archive.
      parts: names of arrays that have one entry for each row of a part: the training part, the test part.

    Raises:
      EvenhandError: an array is damaged, differs in length from the others of its part, holds something else than
        numbers and short texts, or unpacks to implausibly much; nothing large has been read by then.
    """
    names = [name for part in parts for name in part]
    with _members(path) as (archive, members):
        rows = {name: _promised_rows(path, name, archive, members[name]) for name in names}
        for first, *others in parts:
            if any(rows[name] != rows[first] for name in others):
                counts = " and ".join(f"{name} {rows[name]}" for name in others)
                raise EvenhandError(
                    f"{path}: {first} has {rows[first]} rows, {counts}: give one entry of each for each row of {first}."
                )
        check_unpacked(path, sum(members[name].file_size for name in names), "save it with numpy.savez")
        return {name: _read_member(path, name, archive, members[name]) for name in names}


@contextmanager
def _members(path: Path) -> Generator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """The open archive and its members by the names of their arrays."""
    if not path.stat().st_size:
        raise _damaged(path, "the file is empty")
    with path.open("rb") as file:
        with _damage(path, "the archive"):
            archive = zipfile.ZipFile(file)
        members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise _damaged(path, f"array {name[:40]!r} occurs twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _damaged(path, f"array {name[:40]!r} is compressed as NumPy never does")
            members[name] = member
        yield archive, members


@contextmanager
def _damage(path: Path, where: str) -> Generator[None]:
    """What NumPy and zipfile raise on damaged archives as one sentence."""
    try:
        with warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote, and Python of odd ones.
            warnings.simplefilter("ignore")
            yield
    except EvenhandError:
        raise
    except _DAMAGE:
        raise _damaged(path, f"{where} is damaged or truncated") from None


def _promised_rows(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """How many rows the header of a member promises, once it is checked to be possible."""
    subject = f"array {name!r}"
    with _damage(path, subject), archive.open(member) as file:
        form = np.lib.format
        read = form.read_array_header_1_0 if form.read_magic(file) == (1, 0) else form.read_array_header_2_0
        shape, _, dtype = read(file)
        if any(type(length) is not int or length < 0 for length in shape):  # True is an int for NumPy, too
            raise ValueError(shape)
        follow = member.file_size - file.tell()
    if dtype.hasobject:
        raise EvenhandError(
            f"{path}: {subject} holds Python objects: save numbers or plain text (no dtype=object)."
        )
    validation.check_form(shape, dtype, str(path), subject)
    promised = math.prod(shape) * dtype.itemsize
    if promised != follow:
        raise _damaged(path, f"{subject} declares {promised} bytes of data but {follow} follow")
    return shape[0]


def _read_member(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray:
    with _damage(path, f"array {name!r}"), archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


# --- IDX files, raw or gzipped ------------------------------------------------------------------------------


_MNIST_CLIENTS = 100

# The third byte of the file says what the numbers are; they are big-endian.
_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

_DEFLATE = 1032
"""Most bytes that a byte of gzip can unpack to."""

_BLOCK = 2**20


def is_idx(name: str) -> bool:
    """Whether a file has a usual name for IDX files: ``train-images-idx3-ubyte.gz``."""
    stem = name.removesuffix(".gz")
    return stem.endswith("-ubyte") and ("idx1" in stem or "idx3" in stem)


def load_idx(path: Path, options: Options) -> FederatedDataset:
    """The data set of one images file and the labels file beside it; either may be named."""
    is_labels = "labels" in path.name
    images = _partner(path, "labels", "images", "idx1", "idx3") if is_labels else path
    return _idx_dataset(path, [images], options)


def load_idx_folder(folder: Path, options: Options) -> FederatedDataset:
    """The data set of a folder with train files and perhaps t10k (or test) files, which become the test part."""
    images = sorted(
        {
            path.with_name(path.name.removesuffix(".gz")): path
            for path in sorted(folder.iterdir(), reverse=True)
            if is_idx(path.name) and "images" in path.name and not path.name.startswith(".")
        }.values()
    )
    train = [path for path in images if "train" in path.name]
    test = [path for path in images if "train" not in path.name]
    if len(train) > 1 or len(test) > 1 or not images:
        listed = listing([path.name for path in images]) or "none"
        fault = "a folder of IDX files holds one images file for training and at most one for testing"
        raise EvenhandError(f"{folder}: {fault}, not {listed}: name the images file to load.")
    return _idx_dataset(folder, [*train, *test], options)


def idx_images(path: Path, labels: Path | None = None, count: int = 0) -> NDArray:
    """The images in one file, as :func:`load_idx` gives them to a model; there is a ``count`` of ``labels``."""

    def check(shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise EvenhandError(f"{path}: its magic number declares 1 axis: give an idx3 file of images.")
        if labels is not None and shape[0] != count:
            raise EvenhandError(
                f"{path}: there are {shape[0]} images but {count} labels in {labels.name}: use two files that belong "
                "together."
            )
        if labels is not None and not count:
            raise EvenhandError(f"{path}: there are no images: use a file that has some.")

    x = _read_idx(path, check)
    x = in_unit_range(x) if x.dtype == np.uint8 else x
    return validation.as_features(x, str(path), validation.element("image"))


def _idx_dataset(source: Path, images: Sequence[Path], options: Options) -> FederatedDataset:
    examples = [_idx_examples(path, options) for path in images]
    return pooled(source, examples, None, options, clients=_MNIST_CLIENTS)


def _idx_examples(images: Path, options: Options) -> tuple[NDArray, NDArray]:
    labels = _partner(images, "images", "labels", "idx3", "idx1")

    def check(shape: tuple[int, ...]) -> None:
        if len(shape) != 1:
            raise EvenhandError(
                f"{labels}: its magic number declares {len(shape)} axes, not 1: give an idx1 file of labels."
            )

    y = _read_idx(labels, check)
    x = idx_images(images, labels, len(y))
    place = validation.element("label")
    return x, validation.class_labels(y, str(labels), place, regression=options.regression)[0]


def _read_idx(path: Path, check: Callable[[tuple[int, ...]], None]) -> NDArray:
    """The array in a file, once ``check`` has passed the shape in its header."""
    check_file(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape, dtype = _idx_header(path, file)
            check(shape)
            wanted = math.prod(shape) * dtype.itemsize
            most = path.stat().st_size * (_DEFLATE if zipped else 1)
            if wanted > most:
                size = f"more than the {most} that a file of its size can hold"
                raise _cut(path, f"its header declares {wanted} bytes of data, {size}")
            check_unpacked(path, wanted, "gunzip it first")
            content = _at_most(file, wanted + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _cut(path, f"cannot be read to its end ({error})") from None
    if len(content) != wanted:
        follow = "more" if len(content) > wanted else len(content)
        raise _cut(path, f"its header declares {wanted} bytes of data but {follow} follow")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _cut(path: Path, content: str) -> EvenhandError:
    return EvenhandError(f"{path}: {content}: copy or download it again.")


def _idx_header(path: Path, file: BufferedIOBase) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the kind of numbers that a file promises."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\x00\x00" or head[2] not in _DTYPES or not 1 <= head[3] <= 4:
        raise EvenhandError(
            f"{path}: starts with {head.hex(' ') or 'nothing'}, which is not an IDX magic number: use a "
            "file of the MNIST family as published."
        )
    size = file.read(4 * head[3])
    if len(size) != 4 * head[3]:
        raise _cut(path, "ends in the middle of its header")
    return tuple(np.frombuffer(size, ">u4").tolist()), np.dtype(_DTYPES[head[2]])


def _at_most(file: BufferedIOBase, size: int) -> bytearray:
    """The next ``size`` bytes or all that are left: memory grows with what is read, not with what was promised."""
    content = bytearray()
    while block := file.read(min(_BLOCK, size - len(content))):
        content += block
    return content


def _partner(path: Path, role: str, other: str, axes: str, other_axes: str) -> Path:
    name = path.name.removesuffix(".gz").replace(role, other).replace(axes, other_axes)
    for candidate in (path.with_name(name), path.with_name(name + ".gz")):
        if candidate != path and kind_of(candidate):
            return candidate
    raise EvenhandError(f"{path}: the {other} file {name} (or {name}.gz) is missing beside it: put it there.")
