"""Writing a study's files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from evenhand.errors import StorageError

__all__ = ["write"]


def write(path: Path, text: str, what: str) -> None:
    """Writes a file in one step, so that none is ever half there.

    Args:
      path: the file; its folder is made.
      text: what is written.
      what: what that is, to begin a sentence with.

    Raises:
      StorageError: it could not be written, as on a full disk.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(
            f"{what} could not be written in {path.parent} ({error.strerror or error}): make room and start again; "
            f"finished runs are kept."
        ) from error
