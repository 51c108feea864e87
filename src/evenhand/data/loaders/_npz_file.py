"""One NumPy archive: what its headers promise is checked before an array is read."""

from __future__ import annotations

import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.data._arrays import NDArray, check_form
from evenhand.data.loaders._files import check_unpacked
from evenhand.errors import EvenhandError

__all__ = ["array_names", "read_arrays"]

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
        headers = {name: _checked(path, name, archive, members[name]) for name in names}
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
        return {name: _read(path, name, archive, members[name]) for name in names}


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


def _checked(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """The header of a member, checked to be possible."""
    what = f"array {name!r}"
    with _damage(path, what), archive.open(member) as file:
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
            f"{path}: {what} holds Python objects: save numbers or plain text (no dtype=object)."
        )
    check_form(shape, dtype, str(path), what)
    promised, follow = math.prod(shape) * dtype.itemsize, member.file_size - header.start
    if promised != follow:
        raise EvenhandError(
            f"{path}: {what} promises {promised} bytes of data but {follow} follow: write it again with numpy.savez."
        )
    return header


def _read(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray:
    with _damage(path, f"array {name!r}"), archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
