"""Published files: fetched once, resumed where a transfer broke off, checked, and kept.

A file gets its name only after its checksum was right, so nothing that is incomplete or changed is ever read.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from evenhand.errors import EvenhandError, EvenhandWarning, warn_caller

_BLOCK = 2**20

_TIMEOUT = 60
"""Seconds without a byte after which a transfer has failed."""

_ABANDONED = 600
"""Seconds without a byte after which another process may continue a part."""

_NO_SUCH_RANGE = 416


class Remote(NamedTuple):
    """A published file.

    Attributes:
      url: where it is.
      sha256: its published checksum, in hexadecimal; None: there is none, so the first download is trusted.
      size: its bytes; None: unknown.
    """

    url: str
    sha256: str | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """The name of the file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def cache_folder() -> Path:
    """Where downloads are kept: ``$XDG_CACHE_HOME/evenhand``, or ``evenhand`` in the platform's folder for caches.

    That is ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS and ``%LOCALAPPDATA%`` on Windows.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "evenhand"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "evenhand"
    folder = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "evenhand"
    # Where earlier versions kept them on every platform.
    earlier = Path.home() / ".cache" / "evenhand"
    return earlier if earlier.is_dir() else folder


def download(url: str, *, sha256: str | None = None, folder: str | Path | None = None) -> Path:
    """Downloads a file, unless the folder has it already, and returns its path.

    With a checksum, a transfer that broke off resumes where it stopped, if the server can do that.

    Args:
      url: ``https:``, ``http:`` or ``file:``.
      sha256: the checksum that the file must have; None: any will do, and a warning says which it has.
      folder: where the file is kept; None: a folder for this address below ``downloads`` in the folder for caches, see
        :func:`evenhand.data.load`.

    Raises:
      EvenhandError: the file cannot be fetched, or has another checksum, and is not kept under its name then; or the
        folder has a file of that name with another checksum.

    Example:
      >>> import pathlib, tempfile
      >>> from evenhand.data import download
      >>> site = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (site / "t.csv").write_text("client,x,label")
      >>> checksum = "b63bb91f9f01c1f6a0253f4e4c3ebd95725cdd05f8ededa0724ef2524fb06ce9"
      >>> download((site / "t.csv").as_uri(), sha256=checksum, folder=site / "kept").name
      't.csv'
    """
    if sha256 is not None and not (len(sha256) == 64 and set(sha256.lower()) <= set("0123456789abcdef")):
        raise EvenhandError(f"sha256={sha256!r:.80}: give 64 hexadecimal digits, or leave it out.")
    remote = Remote(url, None if sha256 is None else sha256.lower())
    if not remote.name or {"/", "\\", "\0"} & set(remote.name) or remote.name in (".", ".."):
        raise EvenhandError(f"{url:.200}: the address ends in no file name: give the address of a file.")
    # Files of different sites may have one name.
    own = cache_folder() / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
    path = fetch(remote, own if folder is None else Path(folder))
    fault = _fault(remote, path)
    if fault:
        raise EvenhandError(
            f"{path}: another file of this name is there ({fault}): delete it, or use another folder."
        )
    return path


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in the folder, downloaded if it is missing; one that is there is trusted.

    Raises:
      EvenhandError: it cannot be fetched, or is not the published one.
    """
    path = folder / remote.name
    if path.is_file():
        return path
    with _explained(remote, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _part(path) as part:
            if remote.sha256 is None:  # the part may be of another file, and no checksum would show it
                part.unlink(missing_ok=True)
            was_begun = part.exists() and part.stat().st_size > 0
            _transfer(remote, part)
            fault = _fault(remote, part)
            if fault and was_begun:  # the begin may be of another version of the file
                part.unlink()
                _transfer(remote, part)
                fault = _fault(remote, part)
            if fault:
                part.unlink()
                raise EvenhandError(
                    f"{remote.url}: the file is not the published one ({fault}): try again later, or put the "
                    f"published file into {folder} yourself."
                )
            if remote.sha256 is None:
                warn_caller(EvenhandWarning(_trusted(remote, part)))
            part.replace(path)
    return path


def _trusted(remote: Remote, part: Path) -> str:
    return (
        f"{remote.url}: no checksum was given, so the file is trusted as it is: its SHA-256 is {_digest(part)}; "
        "compare it with a published one, or give it as sha256 next time."
    )


@contextmanager
def _explained(remote: Remote, folder: Path) -> Generator[None]:
    """What networks and disks raise as one sentence."""
    try:
        yield
    except EvenhandError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise EvenhandError(
            f"{remote.url}: cannot be fetched to {folder} ({reason}): connect to the internet, or put the file there "
            "yourself."
        ) from None


@contextmanager
def _part(path: Path) -> Generator[Path]:
    """The incomplete file, for this process alone; what an interrupted one has got so far is taken over.

    Renaming is atomic, so of two processes only one takes it over, and the other begins anew.
    """
    part, left = path.with_name(f"{path.name}.{os.getpid()}.part"), path.with_name(f"{path.name}.part")
    stale = [
        other
        for other in path.parent.glob(f"{path.name}.*.part")
        if time.time() - other.stat().st_mtime > _ABANDONED
    ]
    for begun in (left, *stale):
        with suppress(FileNotFoundError):
            begun.replace(part)
            break
    try:
        yield part
    finally:
        with suppress(FileNotFoundError):  # it was checked and has its name, or was refused
            part.replace(left)


def _transfer(remote: Remote, part: Path) -> None:
    """Appends what is missing to the part, or writes it anew where the server sends the whole file."""
    begin = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    try:
        answer: Any = urllib.request.urlopen(
            urllib.request.Request(remote.url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != _NO_SUCH_RANGE or not begin:
            raise
        return  # all of it may be there already, which the checksum decides
    with answer:
        follows = str(answer.headers.get("Content-Range", "")).startswith(f"bytes {begin}-")
        appends = begin > 0 and answer.status == http.client.PARTIAL_CONTENT and follows
        length, count = answer.headers.get("Content-Length"), 0
        with part.open("ab" if appends else "wb") as file:
            while block := answer.read(_BLOCK):
                file.write(block)
                count += len(block)
                if remote.size is not None and file.tell() > remote.size:
                    return  # it is too large, so another file
        if length is not None and length.isdecimal() and count < int(length):
            raise OSError(f"the connection broke off after {count:,} of {int(length):,} bytes")


def _fault(remote: Remote, part: Path) -> str:
    """What differs from the published file; empty if nothing does."""
    size = part.stat().st_size
    if remote.size is not None and size != remote.size:
        return f"it has {size:,} bytes, not {remote.size:,}"
    if remote.sha256 is None:
        return ""
    digest = _digest(part)
    return "" if digest == remote.sha256 else f"its SHA-256 is {digest}, not {remote.sha256}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
