"""How a run serves each class: a table by the names of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.evaluation import SPLITS
from evenhand.report._html import Cell, bar, table
from evenhand.report._numbers import percent
from evenhand.report._view import RunView

__all__ = ["class_table"]


def class_table(runs: Sequence[RunView]) -> str:
    """The section of a page about one run of a model of some classes; nothing for others."""
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
        f"{split} rows",
        "clients with some",
        "accuracy over rows",
        "at the client where it is lowest",
    ]
    body = table(f"Accuracy by class, {split} rows", head, rows, "numbers")
    return f"<section>\n<h2>Class by class</h2>\n{body}\n</section>"
