"""The files in a folder or in an archive, most of them without unpacking it.

A name in an archive is only ever compared, so it leads nowhere outside.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from evenhand.data.loaders._source import check_unpacked
from evenhand.errors import EvenhandError


class File(NamedTuple):
    """A file in a folder or in an archive.

    Attributes:
      name: with the folders that it is in, ``"a/b.txt"``.
      read: gives its bytes; of a tar archive, only until the next file is asked for.
      size: in bytes.
    """

    name: str
    read: Callable[[], bytes]
    size: int


_TAR_BLOCK = 512
"""Zeros at the end of a tar archive."""

_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def is_archive(path: Path) -> bool:
    """Whether a file has the suffix of an archive."""
    return path.name.lower().endswith(_SUFFIXES)


def files_in(path: Path) -> Iterator[File]:
    """The files in a folder, at any depth and in the order of their names, or those in an archive, in its order.

    Raises:
      EvenhandError: the archive is damaged, or locked by a password.
    """
    if path.is_dir():
        yield from _files_below(path, f"{path.resolve().name}/")
        return
    with _damage(path):
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir():
                        yield File(entry.filename, lambda entry=entry: archive.read(entry), entry.file_size)
            return
        with _tar(path) as stream:
            for member in stream:
                if member.isfile():
                    yield File(member.name, lambda member=member: _member(stream, member), member.size)


_OPENERS: Mapping[str, Callable[[Path, str], Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".tar": Path.open,
}


@contextmanager
def _tar(path: Path) -> Generator[tarfile.TarFile]:
    """A tar archive, read from its begin to its end."""
    # tarfile's own unpacking takes the end of a file that was cut for the end of the archive.
    with _OPENERS[path.suffix.lower()](path, "rb") as file:
        if path.suffix.lower() == ".tar":
            file.seek(-_TAR_BLOCK, os.SEEK_END)
            if any(file.read()):
                raise tarfile.ReadError
            file.seek(0)
        with tarfile.open(fileobj=file, mode="r|") as stream:
            yield stream


def _files_below(folder: Path, prefix: str) -> Iterator[File]:
    # Folder by folder, so that the first names come at once; links to folders may form circles.
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from _files_below(entry, f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield File(f"{prefix}{entry.name}", entry.read_bytes, entry.stat().st_size)


def _member(stream: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = stream.extractfile(member)
    assert file is not None
    return file.read()


@contextmanager
def _damage(path: Path) -> Generator[None]:
    """What damaged archives raise as one sentence."""
    try:
        yield
    except EvenhandError:
        raise
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        OSError,
        RuntimeError,
    ):
        raise EvenhandError(
            f"{path}: the archive is damaged, truncated or locked: copy or download it again."
        ) from None
    except (ValueError, OverflowError, LookupError, MemoryError):
        raise EvenhandError(f"{path}: the archive is damaged: copy or download it again.") from None


def contents(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """The files whose name matches: the name, and what is in it."""
    total = 0
    for file in files_in(path):
        if pattern.search(file.name):
            total += file.size
            if not path.is_dir():
                check_unpacked(path, total, "unpack it, and name the folder")
            with _damage(path):
                content = file.read()
            yield file.name, content


_HELD = re.compile(r"(^|/)([\w.]+\.h5|stackoverflow\.tag_count)$")


def unpacked(archives: Sequence[Path], folder: Path) -> Path:
    """The folder, with the HDF5 files and counts of the archives in it, which are unpacked once.

    They are too large for memory, and HDF5 is read from files only.  Each gets its name once it is complete.
    """
    for path in archives:
        done = folder / f"{path.name}.unpacked"
        if done.exists():
            continue
        with _damage(path), _tar(path) as stream:
            for member in stream:
                match = _HELD.search(member.name)
                if member.isfile() and match is not None:
                    file, part = stream.extractfile(member), folder / f"{match[2]}.{os.getpid()}.part"
                    assert file is not None
                    with part.open("wb") as copy:
                        shutil.copyfileobj(file, copy)
                    part.replace(folder / match[2])
        done.touch()
    return folder
