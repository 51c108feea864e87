"""A self-contained page about one run, or about several side by side."""

from __future__ import annotations

from pathlib import Path

from evenhand.report._view import Runs, views

__all__ = ["write_report"]


def write_report(path: str | Path, runs: Runs, *, title: str | None = None) -> Path:
    """Writes a page on how well and how evenly the runs serve their clients.

    The page is self-contained: figures are inline, there are no scripts, and nothing is ever fetched.
    It is about the accuracy if all runs have one, else the loss; on test examples if there are any.

    Args:
      path: the file to write; its folder is created if needed.
      runs: one run, or several to be compared: a :class:`~evenhand.simulation.Run` or its view, a list of them, or a
        mapping from names to a run or to runs (one per seed).  Runs that differ only in their seeds are shown as one
        method; see :func:`~evenhand.report.compare`.
      title: the page's heading; None: the names of the methods.

    Returns:
      The path.

    Raises:
      EvenhandError: no run, or runs without a metric in common.
    """
    every = views(runs)
    from evenhand.report.page import page  # matplotlib takes long to load, and only a report needs it

    text, path = page(every, title), Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
