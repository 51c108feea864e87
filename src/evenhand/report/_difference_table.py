"""The table of differences to a baseline."""

from __future__ import annotations

from evenhand.evaluation import is_share
from evenhand.report.comparison import Comparison, may_win
from evenhand.report.differences import differences, shown
from evenhand.report.html import Cell, escape, table
from evenhand.report.numbers import number, plural

__all__ = ["difference_table"]

_LARGEST_P = 0.05
"""Of a difference that is called significant."""
_SHOWN = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}


def difference_table(of: Comparison, baseline: str | None = None) -> str:
    """How far each method is from the baseline (None: the first method), with intervals; for several seeds."""
    runs = {method.name: method.runs for method in of.methods if all(map(may_win, method.runs))}
    base = of.names[0] if baseline is None else baseline
    if of.obstacles or of.seeds < 2 or base not in runs:
        return ""
    found = differences(runs, base, of.split, of.metric)
    rows: list[list[str | Cell]] = []
    for name, difference in found.items():
        row: list[str | Cell] = [name]
        for key in _SHOWN:
            by = difference.by[key]
            mean, interval = shown(by, key, of.metric).split(" ", 1)
            text = f'{escape(mean)} <span class="interval">{escape(interval)}</span>'
            row += [
                Cell(text, "number best" if by.is_sure else "number"),
                Cell(number(difference.p[key], 2), "number"),
            ]
        gains = "–" if difference.gains is None else f"{difference.gains[0]} / {difference.gains[1]}"
        rows.append([*row, Cell(gains, "number")])
    if not rows:
        return ""
    unit = ", in percentage points (variance: %²)" if is_share(of.metric) else ""
    caption = f"{of.what} minus that of {base}{unit}; bold: the interval leaves out 0"
    head = ["Method", *(word for name in _SHOWN.values() for word in (name, "p")), "Clients better / worse"]
    least = min(1.0, len(rows) * 2.0 ** (1 - of.seeds))
    few = ", so it can tell nothing here: give more seeds" if least > _LARGEST_P else ""
    note = (
        "Differences at equal seeds with their 95 % interval (Student's t), each for itself. An interval that contains "
        f"0 shows no difference. p: exact test by signs, raised for {plural(len(rows), 'comparison')} (Holm); with "
        f"{of.seeds} seeds it is never below {number(least, 2)}{few}. Clients better / worse: those that are better, "
        "or worse, served at every seed."
    )
    made = table(caption[:1].upper() + caption[1:], head, rows, "numbers")
    note = f'<p class="note">{escape(note)}</p>'
    return f"<section>\n<h2>Is the difference real?</h2>\n{made}\n{note}\n</section>"
