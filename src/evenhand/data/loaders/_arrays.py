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
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.data._dataset import FederatedDataset, PooledRows
from evenhand.data._validation import (
    NDArray,
    as_array,
    as_features,
    check_class_numbers,
    check_form,
    class_labels,
    client_codes,
    element,
)
from evenhand.data.loaders._cells import amounts_or_classes
from evenhand.data.loaders._source import (
    DEFAULT_CLIENT,
    DEFAULT_LABEL,
    Options,
    Pool,
    check_file,
    check_unpacked,
    kind_of,
    listing,
    pooled,
    unpooled,
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
    return _npz_dataset(path, parts, read_arrays(path, parts), options)


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
        column = as_array(arrays[label], str(path), f"array {label!r}")
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


def _check_roles(path: Path, roles: list[str]) -> None:
    for role in roles:
        if roles.count(role) > 1:
            raise EvenhandError(
                f"{path}: array {role!r} cannot be two of features, labels and client ids: name another one "
                "with ",
                *_named("or"),
            )


def _npz_dataset(
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
    rows = [PooledRows(*columns) for columns in zip(xs, labels, clients, strict=True)]
    return unpooled(path, rows[0], rows[1] if len(rows) > 1 else None, classes, options)


def _features(path: Path, given: NDArray, name: str) -> NDArray:
    if given.dtype == np.uint8 and given.ndim >= 3:
        return np.divide(given, np.float32(255), dtype=np.float32)
    return as_features(given, str(path), element(name), subject=f"array {name!r}")


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


# --- one archive --------------------------------------------------------------------------------------------


# What NumPy and zipfile raise on damaged archives.
_DAMAGE = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int


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
        headers = {name: _member_header(path, name, archive, members[name]) for name in names}
        for part in parts:
            lengths = [headers[name].shape[0] for name in part]
            if len(set(lengths)) > 1:
                counts = ", ".join(
                    f"{name} {length}" for name, length in zip(part[1:], lengths[1:], strict=True)
                )
                raise EvenhandError(
                    f"{path}: {part[0]} has {lengths[0]} rows, {' and '.join(counts.rsplit(', ', 1))}: give one "
                    f"entry of each for each row of {part[0]}."
                )
        check_unpacked(path, sum(members[name].file_size for name in names), "save it with numpy.savez")
        return {name: _read_member(path, name, archive, members[name]) for name in names}


@contextmanager
def _members(path: Path) -> Generator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """The open archive and its members by the names of their arrays."""
    if not path.stat().st_size:
        raise EvenhandError(f"{path}: the file is empty: write it again with numpy.savez.")
    with path.open("rb") as file:
        with _damage(path, "the archive"):
            archive = zipfile.ZipFile(file)
        members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise EvenhandError(
                    f"{path}: array {name[:40]!r} occurs twice: write it again with numpy.savez."
                )
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise EvenhandError(
                    f"{path}: array {name[:40]!r} is compressed as NumPy never does: write it again with numpy.savez."
                )
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
        raise EvenhandError(
            f"{path}: {where} is damaged or truncated: write it again with numpy.savez."
        ) from None


def _member_header(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """The header of a member, checked to be possible."""
    subject = f"array {name!r}"
    with _damage(path, subject), archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
        if any(type(length) is not int or length < 0 for length in shape):  # True is an int for NumPy, too
            raise ValueError(shape)
        header = _Header(shape, dtype, file.tell())
    if dtype.hasobject:
        raise EvenhandError(
            f"{path}: {subject} holds Python objects: save numbers or plain text (no dtype=object)."
        )
    check_form(shape, dtype, str(path), subject)
    promised, follow = math.prod(shape) * dtype.itemsize, member.file_size - header.start
    if promised != follow:
        raise EvenhandError(
            f"{path}: {subject} promises {promised} bytes of data but {follow} follow: write it again with numpy.savez."
        )
    return header


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
    return _idx_dataset(path, _images_of(path), None, options)


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
        raise EvenhandError(
            f"{folder}: a folder of IDX files holds one images file for training and at most one for "
            f"testing, not {listed}: name the images file to load."
        )
    if not train:
        train, test = test, []
    return _idx_dataset(folder, train[0], test[0] if test else None, options)


def idx_images(path: Path) -> NDArray:
    """The images in one file, as :func:`load_idx` gives them to a model."""

    def check(shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise EvenhandError(f"{path}: its magic number promises 1 axis: give an idx3 file of images.")

    return as_features(_in_unit_range(_read_idx(path, check)), str(path), element("image"))


def _in_unit_range(x: NDArray) -> NDArray:
    """Bytes as numbers from 0 to 1; others as they are."""
    return np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else x


def _idx_dataset(source: Path, train: Path, test: Path | None, options: Options) -> FederatedDataset:
    pools = [_idx_pool(path, options) for path in (train, test) if path is not None]
    clients = _MNIST_CLIENTS if options.clients is None else options.clients
    return pooled(source, pools[0], pools[1] if len(pools) > 1 else None, None, options, clients)


def _idx_pool(images: Path, options: Options) -> Pool:
    labels = _labels_of(images)

    def check_labels(shape: tuple[int, ...]) -> None:
        if len(shape) != 1:
            raise EvenhandError(
                f"{labels}: its magic number promises {len(shape)} axes, not 1: give an idx1 file of labels."
            )

    def check_images(shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise EvenhandError(f"{images}: its magic number promises 1 axis: give an idx3 file of images.")
        if shape[0] != len(y):
            raise EvenhandError(
                f"{images}: there are {shape[0]} images but {len(y)} labels in {labels.name}: use two files that "
                "belong together."
            )
        if not len(y):
            raise EvenhandError(f"{images}: there are no images: use a file that has some.")

    y = _read_idx(labels, check_labels)
    x = _in_unit_range(_read_idx(images, check_images))
    numbers, _ = class_labels(y, str(labels), element("label"), regression=options.regression)
    return Pool(as_features(x, str(images), element("image")), numbers)


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
                raise EvenhandError(
                    f"{path}: its header promises {wanted} bytes of data, more than the {most} that a file of its "
                    "size can hold: copy or download it again."
                )
            check_unpacked(path, wanted, "gunzip it first")
            content = _at_most(file, wanted + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise EvenhandError(
            f"{path}: cannot be read to its end ({error}): copy or download it again."
        ) from None
    if len(content) != wanted:
        follow = "more follow" if len(content) > wanted else f"{len(content)} follow"
        raise EvenhandError(
            f"{path}: its header promises {wanted} bytes of data but {follow}: copy or download it again."
        )
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


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
        raise EvenhandError(f"{path}: ends in the middle of its header: copy or download it again.")
    return tuple(np.frombuffer(size, ">u4").tolist()), np.dtype(_DTYPES[head[2]])


def _at_most(file: BufferedIOBase, size: int) -> bytearray:
    """The next ``size`` bytes or all that are left: memory grows with what is read, not with what was promised."""
    content = bytearray()
    while len(content) < size:
        block = file.read(min(_BLOCK, size - len(content)))
        if not block:
            break
        content += block
    return content


def _images_of(path: Path) -> Path:
    return _partner(path, "labels", "images", "idx1", "idx3") if "labels" in path.name else path


def _labels_of(path: Path) -> Path:
    return _partner(path, "images", "labels", "idx3", "idx1")


def _partner(path: Path, role: str, other: str, axes: str, other_axes: str) -> Path:
    name = path.name.removesuffix(".gz").replace(role, other).replace(axes, other_axes)
    for candidate in (path.with_name(name), path.with_name(name + ".gz")):
        if candidate != path and kind_of(candidate):
            return candidate
    raise EvenhandError(f"{path}: the {other} file {name} (or {name}.gz) is missing beside it: put it there.")
