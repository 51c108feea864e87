"""Locks a folder for one process at a time."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from evenhand.errors import EvenhandError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["LOCK", "held"]

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
