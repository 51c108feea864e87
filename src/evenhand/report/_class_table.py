"""How well a run serves each class, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.evaluation import SPLITS
from evenhand.report._view import RunView
from evenhand.report.html import Cell, bar, table
from evenhand.report.numbers import percent
from evenhand.text import counted

__all__ = ["class_table"]


def class_table(runs: Sequence[RunView]) -> str:
    """The section on classes of a page about a single run; empty for several runs or fewer than two classes."""
    known: Mapping[str, Sequence[Mapping[str, Any]]] = runs[0].info.get("by_class") or {}
    split = next((split for split in reversed(SPLITS) if split in known), None)
    if len(runs) != 1 or split is None or len(known[split]) < 2:
        return ""
    rows = [
        [
            str(entry["class"]),
            Cell(f"{entry['rows']:,}", "number"),
            Cell(f"{entry['clients']:,}", "number"),
            *(
                Cell("–", "number") if entry[key] is None else bar(percent(entry[key]), entry[key])
                for key in ("accuracy", "worst")
            ),
        ]
        for entry in known[split]
    ]
    head = [
        "Class",
        f"{split} examples",
        "clients with some",
        "accuracy over examples",
        "accuracy at the worst client",
    ]
    whose = f"of {counted(len(runs[0].client_ids), 'honest client')}" if runs[0].whole is not None else ""
    body = table(f"Accuracy by class, {split} examples {whose}".strip(), head, rows, "numbers")
    return f"<section>\n<h2>Class by class</h2>\n{body}\n</section>"
