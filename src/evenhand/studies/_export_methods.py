"""The methods of a study at their chosen settings, and how far they differ, as files."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence

from evenhand.report import STATISTICS
from evenhand.report.formatting import factor, number
from evenhand.report.tables import difference_text
from evenhand.studies._export import latex, markdown, tex
from evenhand.studies._lines import Line
from evenhand.studies._tried import NDArray
from evenhand.text import spreadsheet_cell

__all__ = ["methods_csv", "methods_latex", "methods_markdown"]

_SHOWN = {"mean": "mean", "worst10": "worst 10 %", "variance": "variance"}


def methods_csv(lines: Sequence[Line]) -> str:
    """Comma-separated, unrounded: a line per method and condition, with its differences to the baseline."""
    cases = list(dict.fromkeys(name for line in lines for name in line.case))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    ends = ("", "_std", "_difference", "_low", "_high", "_p")
    gains = ("clients_better", "clients_worse")
    head = ["method", *map(spreadsheet_cell, cases), "setting"]
    out.writerow([*head, *(f"{x}{end}" for x in STATISTICS for end in ends), *gains])
    for line in lines:
        cells: list[object] = []
        for name in STATISTICS:
            values, by = line.values.get(name), line.differences.get(name)
            spread = "" if values is None or values.size < 2 else float(values.std(ddof=1))
            cells += ["", ""] if values is None else [float(values.mean()), spread]
            cells += [""] * 4 if by is None else [by.mean, by.low, by.high, line.p[name]]
        out.writerow(
            [*map(spreadsheet_cell, _words(line, cases)), *cells]
            + ["", ""] * (line.gains is None)
            + list(line.gains or ())
        )
    return text.getvalue()


def methods_markdown(lines: Sequence[Line], metric: str) -> str:
    """A table of Markdown; differences are bold where they may be marked as real."""
    return markdown(*_cells(lines, metric, "±", "**{}**", lambda text: text.replace("|", r"\|")))


def methods_latex(lines: Sequence[Line], metric: str) -> str:
    """A ``tabular`` with the rules of ``booktabs``; differences are bold where they may be marked as real."""
    names, rows = _cells(lines, metric, r"$\pm$", r"\textbf{{{}}}", tex)
    return latex(names, rows, len(names) - 3 * len(_SHOWN))


def _cells(
    lines: Sequence[Line], metric: str, plus: str, sure: str, text: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    cases = list(dict.fromkeys(name for line in lines for name in line.case))
    units = {1.0: "", 100.0: " (%)", 1e4: " (%²)"}
    names = ["method", *cases, "setting"]
    rows = [[text(cell) for cell in _words(line, cases)] for line in lines]
    compared = Counter(str(line.case) for line in lines if line.differences)
    base = next((line.method for line in lines if not line.differences), "the baseline")
    for key, word in _SHOWN.items():
        names += [f"{word}{units[factor(key, metric)]}", f"minus {base}", "p"]
        for row, line in zip(rows, lines, strict=True):
            values, by = line.values.get(key), line.differences.get(key)
            row.append("" if values is None else _over_seeds(values * factor(key, metric), plus, text))
            found = "" if by is None else text(difference_text(by, key, metric))
            marked = by is not None and by.may_be_marked(compared[str(line.case)])
            row += [sure.format(found) if marked else found]
            row.append("" if by is None else text(number(line.p[key], 2)))
    return [text(name) for name in names], rows


def _over_seeds(values: NDArray, plus: str, text: Callable[[str], str]) -> str:
    spread = "" if values.size < 2 else f" {plus} {text(number(float(values.std(ddof=1)), 2))}"
    return text(number(float(values.mean()))) + spread


def _words(line: Line, cases: Sequence[str]) -> list[str]:
    """The method, its condition and its chosen setting."""
    return [line.method, *(line.case.get(name, "") for name in cases), _setting(line)]


def _setting(line: Line) -> str:
    return "" if line.setting is None else str(line.setting._replace(case={}))
