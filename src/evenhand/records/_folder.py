"""A folder on disk: held by one process at a time, and written so that a kill leaves the old contents or the new.

From top to bottom: the lock of a folder; signals that wait; files, and whole folders, that are replaced in one step.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from evenhand.errors import StorageError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# --- one process at a time ----------------------------------------------------------------------------------


LOCK = ".lock"
"""The lock file in a folder; it names the process that holds the folder, and is removed on release."""

_TRIES = 1000

_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}

_FULL = {errno.ENOSPC, errno.EDQUOT}


class FolderInUse(StorageError):
    """Another process holds the folder: it may be free later."""


@contextmanager
def held(folder: str | Path) -> Generator[None]:
    """Keeps other processes out of a folder while the block runs.

    The lock is the operating system's: it ends with its process, however that ends, and child processes do not inherit
    it.  It does not keep out its own process.  Where a file system has no locks, there is no protection.

    Args:
      folder: created if missing, and removed afterwards, with the parents created for it, if it is empty.

    Raises:
      FolderInUse: another process holds the folder.
      StorageError: the folder cannot be written to.

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
    try:
        file = _taken(folder)
        try:
            yield
        finally:
            _release(folder / LOCK, file)
    finally:
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
            raise _unwritable(folder, error) from error
        missing = None
        try:
            _lock(file)
        except OSError as error:
            if error.errno in _TAKEN:
                file.seek(0)
                holder = file.read(200).decode(errors="replace").strip() or "another process"
                file.close()
                raise FolderInUse(
                    f"{folder} is in use by {holder}: wait until that ends, or name another folder."
                ) from None
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                file.flush()
                return file
        except FileNotFoundError:
            pass
        except OSError as error:
            _release(path, file)
            raise _unwritable(folder, error) from error
        file.close()  # its holder has just removed it
    if missing is not None:
        raise StorageError(f"{folder} cannot be made ({missing.strerror}): name another folder.")
    raise StorageError(f"{folder} is in use by one process after another: name another folder.")


def _unwritable(folder: Path, error: OSError) -> StorageError:
    cure = "free some space, or name" if error.errno in _FULL else "name"
    return StorageError(f"{folder} cannot be written to ({error.strerror or error}): {cure} another folder.")


def _release(path: Path, file: BinaryIO) -> None:
    """Removes the lock file and closes it, which on a full disk fails once more to write what it holds."""
    steps = [path.unlink, file.close]
    for step in steps[::-1] if sys.platform == "win32" else steps:  # Windows removes no open file
        with suppress(OSError):
            step()


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
        # Also if the block raises: a caller that handles its error must not miss the signal.
        for number in held[:1]:
            signal.raise_signal(number)


# --- files and folders replaced in one step -----------------------------------------------------------------

_MOST_SETTLED = 100
"""Files that are waited for one by one."""


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path to write to, whose file takes the place of ``path`` once it is complete.

    Raises:
      OSError: it cannot be written; ``path`` is as it was.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        # On disk before it gets the name: after a power cut, the name would otherwise stand for an empty file.
        _settle(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Replaces the file in one step; a path that is no regular file, such as ``/dev/null``, is written to directly.

    Raises:
      OSError: it cannot be written; ``path`` is as it was.
    """
    # Lone surrogates, which UTF-8 does not have, are escaped.
    data = text.encode("utf-8", "backslashreplace")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turns the system's error about a file that cannot be written into a sentence that names the file."""
    try:
        yield
    except OSError as error:
        if not path.parent.is_dir():
            raise StorageError(
                f"{path.parent} was moved or deleted while it was being written: its results are lost, so repeat the "
                "run, or resume it where it is now."
            ) from error
        raise StorageError(f"{path} could not be written: {error.strerror or error}.") from error


@contextmanager
def replacing_folder(folder: Path) -> Generator[Path]:
    """A new folder to write to, which takes the place of ``folder`` once it is complete.

    A kill while it is being written leaves the old folder.  No system call replaces a folder that is not empty, so it
    takes two renames; a kill between them leaves the old folder under the name that :func:`recovered` gives back.

    Raises:
      OSError: it cannot be written; ``folder`` is as it was.
      FolderInUse: another process is writing it.
    """
    folder = folder.absolute()
    part, old = folder.with_name(f".{folder.name}.part"), _set_aside(folder)
    # The lock is beside the new folder: Windows renames no folder in which a file is open.
    with held(folder.with_name(f".{folder.name}.writer")):
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed here
        try:
            part.mkdir()
            yield part
            _settle_all(part)
            with uninterrupted():
                shutil.rmtree(old, ignore_errors=True)
                if folder.exists():
                    os.rename(folder, old)
                try:
                    os.rename(part, folder)
                except OSError:
                    recovered(folder)
                    raise
            _settle(folder.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


def recovered(folder: Path) -> Path:
    """The folder, renamed back if a kill interrupted :func:`replacing_folder` between its two renames."""
    old = _set_aside(folder.absolute())
    if old.is_dir() and not folder.exists():
        with suppress(OSError):  # where nothing may be renamed, the caller misses the folder
            os.rename(old, folder)
    return folder


def _set_aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _settle_all(folder: Path) -> None:
    """Waits until all that is in a folder is on disk."""
    paths = [*folder.rglob("*"), folder]
    if len(paths) > _MOST_SETTLED and sys.platform != "win32":
        os.sync()  # one wait in place of thousands
        return
    for path in paths:
        _settle(path)


def _settle(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk, where the system can wait for that."""
    if path.is_dir() and sys.platform == "win32":  # it opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some file systems cannot
            raise
    finally:
        os.close(descriptor)
