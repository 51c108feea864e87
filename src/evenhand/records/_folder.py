"""A folder on disk: one process at a time, nothing half done, and checksums of what is in it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from evenhand.errors import EvenhandError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "LOCK",
    "SHA256",
    "Sum",
    "fits_its_list",
    "held",
    "is_sealed",
    "resealed",
    "sum_of",
    "sum_of_file",
    "uninterrupted",
]


# --- one process at a time ----------------------------------------------------------------------------------


LOCK = ".lock"
"""The lock file in a folder; it names the process that holds the folder, and is removed on release."""

_TRIES = 1000

_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


@contextmanager
def held(folder: str | Path) -> Generator[None]:
    """Keeps other processes out of a folder while the block runs.

    The lock is the operating system's: it ends with its process, however that ends, and child processes do not inherit
    it.  It does not keep out its own process.  Where a file system has no locks, there is no protection.

    Args:
      folder: created if missing, and removed afterwards, with the parents created for it, if it is empty.

    Raises:
      EvenhandError: another process holds the folder, or it cannot be written to.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> folder = Path(tempfile.mkdtemp()) / "runs" / "a"
      >>> with held(folder):
      ...     print([path.name for path in folder.iterdir()])
      ['.lock']
      >>> folder.parent.exists()
      False
    """
    folder = Path(folder).absolute()
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    file = _taken(folder)
    try:
        yield
    finally:
        path = folder / LOCK
        if sys.platform == "win32":  # Windows removes no open file
            file.close()
        with suppress(OSError):
            path.unlink()
        file.close()
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


def _taken(folder: Path) -> BinaryIO:
    """The lock file, open; the lock is held until it is closed."""
    path, missing = folder / LOCK, None
    for _ in range(_TRIES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        except FileNotFoundError as error:
            # Another process has just removed the folder, or this is a place such as /proc, where none can be made.
            missing = error
            continue
        except OSError as error:
            raise EvenhandError(
                f"{folder} cannot be written to ({error.strerror or error}): name another folder."
            ) from error
        missing = None
        try:
            _lock(file)
        except OSError as error:
            if error.errno in _TAKEN:
                file.seek(0)
                holder = file.read(200).decode(errors="replace").strip() or "another process"
                file.close()
                raise EvenhandError(
                    f"{folder} is in use by {holder}: wait until that ends, or name another folder."
                ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                file.flush()
                return file
        file.close()  # its holder has just removed it
    if missing is not None:
        raise EvenhandError(f"{folder} cannot be made ({missing.strerror}): name another folder.")
    raise EvenhandError(f"{folder} is in use by one process after another: name another folder.")


if sys.platform == "win32":

    def _lock(file: BinaryIO) -> None:
        file.seek(2**30)  # a locked part cannot be read, and the holder's name must be
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:

    def _lock(file: BinaryIO) -> None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- nothing half done --------------------------------------------------------------------------------------


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Generator[None]:
    """Defers Ctrl-C and SIGTERM to the end of the block; without effect outside the main thread, which gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = [signal.signal(number, lambda number, frame: held.append(number)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
    for number in held[:1]:
        signal.raise_signal(number)


# --- checksums: of bytes, of a file's first bytes, and inside a JSON object ---------------------------------


SHA256 = "sha256"
"""The name under which a JSON object keeps the checksum of everything else in it."""


class Sum(NamedTuple):
    """The length of some bytes, and their SHA-256 in hexadecimal."""

    length: int
    sha256: str


def sum_of(data: bytes) -> Sum:
    """The checksum of bytes."""
    return Sum(len(data), hashlib.sha256(data).hexdigest())


def sum_of_file(path: Path, length: int) -> Sum:
    """The checksum of the first ``length`` bytes of a file, which is read in blocks."""
    digest, left = hashlib.sha256(), length
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, 2**20))):
            digest.update(chunk)
            left -= len(chunk)
    return Sum(length, digest.hexdigest())


def fits_its_list(path: Path) -> bool:
    """Whether a file is as the ``checksums.json`` beside it says; True where none says anything about it."""
    try:
        listed = json.loads((path.parent / "checksums.json").read_text("utf-8"))[path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return True
    length, sha256 = sum_of(path.read_bytes())
    return bool(listed == {"bytes": length, "sha256": sha256})


def resealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the checksum that it must have, so that one write puts both on disk.

    The checksum is of the values, not of the text: it survives another layout, and no change of a value.

    Example:
      >>> is_sealed(resealed({"accuracy": 0.5}))
      True
      >>> is_sealed({**resealed({"accuracy": 0.5}), "accuracy": 0.6})
      False
    """
    rest = {name: part for name, part in value.items() if name != SHA256}
    return {**rest, SHA256: hashlib.sha256(json.dumps(rest).encode()).hexdigest()}


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Whether an object is as :func:`resealed` made it."""
    return value.get(SHA256) == resealed(value)[SHA256]
