"""What a path leads to, found out before anything is opened: opening a pipe may wait for ever."""

from __future__ import annotations

import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evenhand.errors import EvenhandError

__all__ = ["check_file", "check_unpacked", "kind_of", "readable"]

_LARGE = 2**28
_DENSE = 200
"""More than ``_LARGE`` bytes that compress by more than this factor are not real data."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def kind_of(path: Path) -> str:
    """``"a file"``, ``"a folder"`` or what else ``path`` leads to; ``""`` if it leads nowhere.

    Raises:
      EvenhandError: that cannot be found out, as links form a circle or a folder on the way is not accessible.
    """
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "a file")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise EvenhandError(f"{path} cannot be read ({error.strerror}): name a file that can.") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise EvenhandError(f"{str(path)!r}: no file can have this name: check the spelling.") from None


def check_file(path: Path) -> None:
    """Refuses anything but a regular file, or a link to one.

    Raises:
      EvenhandError: there is nothing, or something else; it has not been opened.
    """
    kind = kind_of(path)
    if not kind:
        raise EvenhandError(f"{path}: no such file: check the spelling.")
    if kind != "a file":
        raise EvenhandError(f"{path} is {kind}, not a file: name a file, or copy the data into one.")


def check_unpacked(path: Path, size: int, cure: str) -> None:
    """Refuses a compressed file that unpacks to implausibly much."""
    packed = path.stat().st_size
    if size > max(_LARGE, _DENSE * packed):
        raise EvenhandError(
            f"{path}: {packed / 1e6:.1f} MB unpack to {size / 1e6:.0f} MB: {cure}, if that is meant."
        )


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turns what the system raises while ``path``, or a file in it, is read into one sentence."""
    try:
        yield
    except OSError as error:
        where = path if error.filename is None else error.filename
        raise EvenhandError(
            f"{where} cannot be read ({error.strerror or error}): check its permissions."
        ) from None
    except MemoryError:
        raise EvenhandError(f"{path} does not fit into memory: use a smaller file.") from None
