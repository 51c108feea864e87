"""The table of differences to a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenhand.evaluation import PairedDifference, is_share, least_pairs
from evenhand.report._view import RunView
from evenhand.report.comparison import Comparison
from evenhand.report.differences import differences, shown
from evenhand.report.html import Cell, escape, table
from evenhand.report.numbers import number, plural

__all__ = ["difference_table"]

_MOST_PAIRED = 5
_SHOWN = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}


def difference_table(of: Comparison, baseline: str | None = None) -> str:
    """How far each method is from the baseline (None: the first method), with intervals; for several seeds."""
    runs = {method.name: method.runs for method in of.methods if method.is_sound}
    base = of.names[0] if baseline is None else baseline
    if of.obstacles or of.seeds < 2 or base not in runs:
        return ""
    found = differences(runs, base, of.split, of.metric)
    rows: list[list[str | Cell]] = []
    for name, difference in found.items():
        row: list[str | Cell] = [name]
        for key in _SHOWN:
            by = difference.by[key]
            row += [_cell(by, key, of.metric, len(found)), Cell(number(difference.p[key], 2), "number")]
        gains = "–" if difference.gains is None else f"{difference.gains[0]} / {difference.gains[1]}"
        rows.append([*row, Cell(gains, "number")])
    if not rows:
        return ""
    unit = ", in percentage points (variance: %²)" if is_share(of.metric) else ""
    least = least_pairs(len(rows))
    marked = "" if of.seeds < least else "; bold: the interval leaves out 0"
    caption = f"{of.what} minus that of {base}{unit}, over {of.covered.text}{marked}"
    head = ["Method", *(word for name in _SHOWN.values() for word in (name, "p")), "Clients better / worse"]
    floor = min(1.0, len(rows) * 2.0 ** (1 - of.seeds))
    few = f", so no difference can be significant: use at least {least} seeds" if of.seeds < least else ""
    note = (
        "Differences at equal seeds with their 95 % interval (Student's t), each for itself. If an interval contains "
        f"0, the data do not show a difference. p: exact test by signs, raised for {plural(len(rows), 'comparison')} "
        f"(Holm); with {of.seeds} seeds it is never below {number(floor, 2)}{few}. Clients better / worse: those that "
        "are better, or worse, served at every seed."
    )
    others = _others(runs, base, of)
    made = table(caption[:1].upper() + caption[1:], head, rows, "numbers")
    note = f'<p class="note">{escape(note)}</p>'
    return f"<section>\n<h2>Is the difference real?</h2>\n{made}\n{note}\n{others}</section>"


def _others(runs: Mapping[str, Sequence[RunView]], base: str, of: Comparison) -> str:
    """The differences between the other methods, where they are few."""
    names = [name for name in runs if name != base]
    if not 2 <= len(names) <= _MOST_PAIRED:
        return ""
    rows, pairs = list[list[str | Cell]](), len(names) * (len(names) - 1) // 2
    for i, first in enumerate(names[:-1]):
        found = differences({name: runs[name] for name in names[i:]}, first, of.split, of.metric)
        for name, difference in found.items():
            cells = [_cell(difference.by[key], key, of.metric, pairs) for key in _SHOWN]
            rows.append([f"{name} minus {first}", *cells])
    if not rows:
        return ""
    unit = ", in percentage points (variance: %²)" if is_share(of.metric) else ""
    marked = "" if of.seeds < least_pairs(pairs) else "; bold: the interval leaves out 0"
    caption = f"Among the other methods{unit}{marked}"
    return table(caption, ["Methods", *_SHOWN.values()], rows, "numbers") + "\n"


def _cell(by: PairedDifference, key: str, metric: str, comparisons: int) -> Cell:
    mean, interval = shown(by, key, metric).split(" ", 1)
    text = f'{escape(mean)} <span class="interval">{escape(interval)}</span>'
    return Cell(text, "number best" if by.may_be_marked(comparisons) else "number")
