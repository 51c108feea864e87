"""IDX files, the format of MNIST and its family, raw or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.data._arrays import NDArray, as_features, class_labels, element
from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._files import check_file, check_unpacked, kind_of
from evenhand.data.loaders._options import Options, Pool, listing, pooled
from evenhand.errors import EvenhandError

__all__ = ["DEFAULT_CLIENTS", "idx_images", "is_idx", "load_idx", "load_idx_folder"]

DEFAULT_CLIENTS = 100

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
    return _dataset(path, _images_of(path), None, options)


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
        found = listing([path.name for path in images]) or "none"
        raise EvenhandError(
            f"{folder}: a folder of IDX files holds one images file for training and at most one for "
            f"testing, not {found}: name the images file to load."
        )
    if not train:
        train, test = test, []
    return _dataset(folder, train[0], test[0] if test else None, options)


def idx_images(path: Path) -> NDArray:
    """The images in one file, as :func:`load_idx` gives them to a model."""

    def check(shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise EvenhandError(f"{path}: its magic number promises 1 axis: give an idx3 file of images.")

    return as_features(_scaled(_read(path, check)), str(path), element("image"))


def _scaled(x: NDArray) -> NDArray:
    """Bytes as numbers from 0 to 1; others as they are."""
    return np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else x


def _dataset(source: Path, train: Path, test: Path | None, options: Options) -> FederatedDataset:
    pools = [_pool(path, options) for path in (train, test) if path is not None]
    clients = DEFAULT_CLIENTS if options.clients is None else options.clients
    return pooled(source, pools[0], pools[1] if len(pools) > 1 else None, None, options, clients)


def _pool(images: Path, options: Options) -> Pool:
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

    y = _read(labels, check_labels)
    x = _scaled(_read(images, check_images))
    numbers, _ = class_labels(y, str(labels), element("label"), regression=options.regression)
    return Pool(as_features(x, str(images), element("image")), numbers)


def _read(path: Path, check: Callable[[tuple[int, ...]], None]) -> NDArray:
    """The array in a file, once ``check`` has passed the shape in its header."""
    check_file(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape, dtype = _header(path, file)
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


def _header(path: Path, file: BufferedIOBase) -> tuple[tuple[int, ...], np.dtype[Any]]:
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
