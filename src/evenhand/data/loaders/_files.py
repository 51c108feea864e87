"""What lies behind a path, found out before anything is opened: opening a pipe waits for ever."""

from __future__ import annotations

import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evenhand.errors import EvenhandError

__all__ = ["check_file", "check_unpacked", "kind_of", "readable"]

_LARGE = 2**28
_DENSE = 200
"""A file of more than ``_LARGE`` bytes that shrinks to a part in so many is nobody's measurements."""

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
      EvenhandError: that cannot be found out, as links lead in a circle or a folder on the way is closed.
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
    """Refuses what is no regular file, links to one apart.

    Raises:
      EvenhandError: there is nothing, or something else; it has not been opened.
    """
    kind = kind_of(path)
    if not kind:
        raise EvenhandError(f"{path}: no such file: check the spelling.")
    if kind != "a file":
        raise EvenhandError(f"{path} is {kind}, not a file: name a file, or copy the data into one.")


def check_unpacked(path: Path, size: int, cure: str) -> None:
    """Refuses a packed file that unpacks to more than anybody would put into it on purpose."""
    packed = path.stat().st_size
    if size > max(_LARGE, _DENSE * packed):
        raise EvenhandError(
            f"{path}: {packed / 1e6:.1f} MB unpack to {size / 1e6:.0f} MB: {cure}, if that is meant."
        )


@contextmanager
def readable(path: Path) -> Generator[None]:
    """What the system raises while ``path``, or a file in it, is read, as one sentence."""
    try:
        yield
    except OSError as error:
        where = path if error.filename is None else error.filename
        raise EvenhandError(
            f"{where} cannot be read ({error.strerror or error}): check its permissions."
        ) from None
    except MemoryError:
        raise EvenhandError(f"{path} does not fit into memory: use a smaller file.") from None
