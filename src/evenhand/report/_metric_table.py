"""The section of the report on metrics that were asked for besides the headline's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.evaluation import SPLIT_NAMES, is_higher_better
from evenhand.report.comparison import Comparison
from evenhand.report.html import Cell, escape, swatch, table
from evenhand.report.measured import further, metric_remarks
from evenhand.report.numbers import number, value

__all__ = ["metric_section"]


def metric_section(of: Comparison) -> str:
    """The section of the page; empty where no further metric was asked for."""
    abouts = further(of)
    if not abouts:
        return ""
    several = len(of.methods) > 1
    rows: list[list[str | Cell]] = []
    for about in abouts:
        stats = [method.statistics(about.split, about.metric) for method in about.methods]
        columns = [_cells(about, [s[key] for s in stats]) for key in ("mean", "worst10")]
        for i, method in enumerate(about.methods):
            clients = Cell(f"{int(np.min(stats[i]['clients'])):,}", "number")
            names: list[str | Cell] = [about.metric.replace("_", " ")]
            names += [Cell(swatch(i) + escape(method.name), "number")] if several else []
            rows.append([*names, *(column[i] for column in columns), clients])
    best = "; the best is bold" if several and not of.obstacles else ""
    over = "; ± over seeds" if of.seeds > 1 else ""
    split = SPLIT_NAMES[of.split]
    caption = f"{split[:1].upper()}{split[1:]} examples of each client, after the last round{over}{best}"
    head = ["Metric", *(["Method"] if several else []), "Mean over clients", "Worst 10 %", "Clients measured"]
    notes = "".join(f'<p class="note">{escape(text)}</p>\n' for text in metric_remarks(of))
    body = table(caption, head, rows, "numbers")
    return f"<section>\n<h2>More metrics</h2>\n{body}\n{notes}</section>"


def _cells(of: Comparison, values: Sequence[np.ndarray]) -> list[Cell]:
    """A statistic of each method, the best marked."""
    texts = [value(float(np.mean(x)), of.metric) for x in values]
    best = (
        of.winners(values, texts, 1 if is_higher_better(of.metric) else -1) if len(values) > 1 else set[int]()
    )
    scale = 100.0 if of.is_share else 1.0
    cells: list[Cell] = []
    for i, (x, text) in enumerate(zip(values, texts, strict=True)):
        over = f" ± {number(scale * float(np.std(x, ddof=1)), 2)}" if len(x) > 1 else ""
        cells.append(Cell(escape(text + over), "number best" if i in best else "number"))
    return cells
