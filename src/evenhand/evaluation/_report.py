"""One self-contained page about one run, or about several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.errors import EvenhandError
from evenhand.evaluation._view import RunView

__all__ = ["write_report"]


def write_report(path: str | Path, runs: Sequence[RunView], *, title: str | None = None) -> Path:
    """Writes a page on how well and how evenly the runs serve their clients.

    The page needs nothing but itself: figures are inline, there are no scripts, and nothing is ever fetched.
    It is about the accuracy where all runs have one, else about the loss; about test rows if there are any.

    Args:
      path: the file to write; its folder is made if need be.
      runs: one run, or several to be compared.
      title: the page's heading; None: the titles of the runs.

    Returns:
      The path.

    Raises:
      EvenhandError: no run, or runs without a metric in common.
    """
    if not runs:
        raise EvenhandError("There is no run to report on: give at least one.")
    from evenhand.evaluation._page import page  # matplotlib takes long to load, and only a report needs it

    text, path = page(list(runs), title), Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
