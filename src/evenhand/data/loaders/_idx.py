"""IDX files, the format of MNIST and its family, raw or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from evenhand.data._arrays import NDArray, as_features, class_labels, element
from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._options import Options, Pool, listing, pooled
from evenhand.errors import EvenhandError

__all__ = ["DEFAULT_CLIENTS", "is_idx", "load_idx", "load_idx_folder"]

DEFAULT_CLIENTS = 100

# The third byte of the file says what the numbers are; they are big-endian.
_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def is_idx(name: str) -> bool:
    """Whether a file is called as IDX files usually are: ``train-images-idx3-ubyte.gz``."""
    stem = name.removesuffix(".gz")
    return stem.endswith("-ubyte") and ("idx1" in stem or "idx3" in stem)


def load_idx(path: Path, options: Options) -> FederatedDataset:
    """The data set of one images file and the labels file beside it; either may be named."""
    return _dataset(path, _images_of(path), None, options)


def load_idx_folder(folder: Path, options: Options) -> FederatedDataset:
    """The data set of a folder with train files and perhaps t10k (or test) files, which keep their part."""
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


def _dataset(source: Path, train: Path, test: Path | None, options: Options) -> FederatedDataset:
    pools = [_pool(path, options) for path in (train, test) if path is not None]
    clients = DEFAULT_CLIENTS if options.clients is None else options.clients
    return pooled(source, pools[0], pools[1] if len(pools) > 1 else None, None, options, clients)


def _pool(images: Path, options: Options) -> Pool:
    labels = _labels_of(images)
    x, y = _read(images), _read(labels)
    if y.ndim != 1:
        raise EvenhandError(
            f"{labels}: its magic number promises {y.ndim} axes, not 1: give an idx1 file of labels."
        )
    if x.ndim < 2:
        raise EvenhandError(f"{images}: its magic number promises 1 axis: give an idx3 file of images.")
    if len(x) != len(y):
        raise EvenhandError(
            f"{images}: there are {len(x)} images but {len(y)} labels in {labels.name}: use two files that "
            "belong together."
        )
    if not len(x):
        raise EvenhandError(f"{images}: there are no images: use a file that has some.")
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / np.float32(255)
    numbers, _ = class_labels(y, str(labels), element("label"), regression=options.regression)
    return Pool(as_features(x, str(images), element("image")), numbers)


def _read(path: Path) -> NDArray:
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\x00\x00" or head[2] not in _DTYPES or not 1 <= head[3] <= 4:
                raise EvenhandError(
                    f"{path}: starts with {head.hex(' ') or 'nothing'}, which is no IDX magic number: use a "
                    "file of the MNIST family as published."
                )
            dtype = np.dtype(_DTYPES[head[2]])
            size = file.read(4 * head[3])
            shape = tuple(np.frombuffer(size[: len(size) // 4 * 4], ">u4").tolist())
            wanted = math.prod(shape) * dtype.itemsize
            content = file.read() if len(shape) == head[3] else b""
    except (OSError, EOFError, zlib.error) as error:
        raise EvenhandError(
            f"{path}: cannot be read to its end ({error}): copy or download it again."
        ) from None
    if len(shape) != head[3]:
        raise EvenhandError(f"{path}: ends in the middle of its header: copy or download it again.")
    if len(content) != wanted:
        raise EvenhandError(
            f"{path}: its header promises {wanted} bytes of data but {len(content)} follow: copy or download "
            "it again."
        )
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _images_of(path: Path) -> Path:
    return _partner(path, "labels", "images", "idx1", "idx3") if "labels" in path.name else path


def _labels_of(path: Path) -> Path:
    return _partner(path, "images", "labels", "idx3", "idx1")


def _partner(path: Path, role: str, other: str, axes: str, other_axes: str) -> Path:
    name = path.name.removesuffix(".gz").replace(role, other).replace(axes, other_axes)
    for candidate in (path.with_name(name), path.with_name(name + ".gz")):
        if candidate.is_file() and candidate != path:
            return candidate
    raise EvenhandError(f"{path}: the {other} file {name} (or {name}.gz) is missing beside it: put it there.")
