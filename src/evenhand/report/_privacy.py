"""The section of the report on what a private method promises, and what it has spent."""

from __future__ import annotations

from evenhand.report._privacy_line import told_as
from evenhand.report.comparison import Comparison
from evenhand.report.html import Cell, escape, table

__all__ = ["privacy"]


def privacy(subject: Comparison) -> str:
    """The section on privacy; empty where no method promises any."""
    told = {
        method.name: method.runs[0].info["privacy"]
        for method in subject.methods
        if method.runs[0].info.get("privacy")
    }
    if not told:
        return ""
    several = len(subject.methods) > 1
    none = [name for name in subject.names if name not in told]
    rows: list[list[str | Cell]] = []
    for what, of in _ROWS.items():
        cells = [
            "; ".join(each[of]) if isinstance(each[of], list) else told_as(each, of) for each in told.values()
        ]
        rows.append([what, *(Cell(escape(text), "setting") for text in cells)])
    head = ["", *(told if several else ["Value"])]
    note = f"<p>{escape(', '.join(none))} promises nothing.</p>\n" if none else ""
    body = table("What is promised, and what the promise rests on", head, rows)
    return f"<section>\n<h2>Privacy</h2>\n{body}\n{note}</section>"


_ROWS = {
    "Epsilon": "epsilon",
    "Delta": "delta",
    "Accountant": "accountant",
    "Cannot be told apart": "neighbours",
    "Given away": "released",
    "Under noise": "releases",
    "Taken to be known": "public",
    "Not covered": "unprotected",
}
"""What a row says -> the name of it in :attr:`RunView.info`."""
