"""The tables of a study: its methods side by side, all its settings, and all its runs.

First the values: a :class:`Line` for each method at its chosen setting, with its differences to the baseline; a
:class:`Tried` for each setting; a row for each run.  Then the first two as CSV, Markdown and LaTeX.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenhand.evaluation import PairedDifference, column
from evenhand.report import STATISTICS, RunView, differences, statistics
from evenhand.report.formatting import factor, number
from evenhand.report.tables import difference_text
from evenhand.studies._selection import NDArray, Outcome, Setting, shown
from evenhand.text import spreadsheet_cell

__all__ = [
    "Line",
    "Tried",
    "alike",
    "as_csv",
    "as_latex",
    "as_markdown",
    "columns",
    "head",
    "method_lines",
    "methods_csv",
    "methods_latex",
    "methods_markdown",
    "row",
    "summed_up",
]


# --- the methods at their chosen settings ---------------------------------------------------------------------


class Line(NamedTuple):
    """One line of a study's table: a method at its chosen setting.

    Attributes:
      setting: what was chosen; None where every setting diverged or failed.
      method: its name.
      case: the condition.
      values: statistic -> its value in each run, in the order of the seeds.
      differences: statistic -> paired difference to the baseline; empty for the baseline itself.
      p: statistic -> the p value of that difference, raised for the number of comparisons (Holm).
      gains: the clients that are better served than by the baseline at every seed, and those worse served at every
        seed; None where the runs do not have the same clients.
    """

    setting: Setting | None
    method: str
    case: Mapping[str, str]
    values: Mapping[str, NDArray]
    differences: Mapping[str, PairedDifference]
    p: Mapping[str, float]
    gains: tuple[int, int] | None = None


def method_lines(
    chosen: Mapping[str, tuple[Setting, Sequence[RunView]] | None],
    baseline: str,
    case: Mapping[str, str],
    split: str,
    metric: str,
) -> list[Line]:
    """A line for each method.

    Args:
      chosen: method -> its chosen setting with its runs, one for each seed; None where there is no sound setting.
      baseline: the method that the others are compared with.
      case: the condition.
      split: where the statistics are from.
      metric: what they are of.
    """
    runs = {method: of[1] for method, of in chosen.items() if of is not None}
    compared = differences(runs, baseline, split, metric) if baseline in runs else {}
    found: list[Line] = []
    for method, of in chosen.items():
        each = [] if of is None else [statistics(run, split, metric) for run in of[1]]
        values = {name: np.array([one[name] for one in each]) for name in STATISTICS} if each else {}
        more = compared.get(method)
        by, p, gains = ({}, {}, None) if more is None else more
        found.append(Line(None if of is None else of[0], method, case, values, by, p, gains))
    return found


# --- all settings, and all runs -------------------------------------------------------------------------------


class Tried(NamedTuple):
    """A setting, and what its runs came to.

    Attributes:
      setting: the method and its hyper-parameters.
      chosen: whether it is the one that its method is compared at.
      runs: how many there are.
      lost: how many of them diverged or failed.
      values: ``"<split>_<statistic>"`` -> a value for each run, in the order of the seeds; empty where some run was
        lost, since means over other seeds than those of the other settings would mislead.  Metrics that were asked for
        are there, too, as ``"<split>_<metric>_<statistic>"``.  What the study's ``measure``
        tells of the last evaluation is there, too, by its own name.
      views: the runs themselves, except for those that failed.
    """

    setting: Setting
    chosen: bool
    runs: int
    lost: int
    values: dict[str, NDArray]
    views: Sequence[RunView]

    def mean(self, name: str) -> float:
        """Over the seeds; NaN where there is no value."""
        return float(np.mean(self.values[name])) if name in self.values else float("nan")

    def std(self, name: str) -> float:
        """Over the seeds, by which a mean over more of them would vary; NaN for fewer than two."""
        found = self.values.get(name, np.zeros(0))
        return float(np.std(found, ddof=1)) if found.size > 1 else float("nan")


def summed_up(setting: Setting, of: Sequence[Outcome], chosen: bool, metric: str) -> Tried:
    """A setting, with what its runs came to."""
    views = [each.seen for each in of if each.seen is not None]
    lost = sum(each.status in ("diverged", "failed") for each in of)
    values, ended = dict[str, NDArray](), all(each.status == "done" for each in of)
    for split in views[0].clients if ended else ():
        found = [statistics(view, split, metric) for view in views]
        values |= {column(split, name): np.array([each[name] for each in found]) for name in found[0]}
        more = [further_columns(view, split) for view in views]
        names = [name for name in more[0] if all(name in each for each in more)]
        values |= {name: np.array([each[name] for each in more]) for name in names}
    for name in of[0].measures if ended else ():
        values[name] = np.array([each.measures[name][-1] for each in of if name in each.measures])
    return Tried(setting, chosen, len(of), lost, values, views)


def row(outcome: Outcome, axes: Sequence[str], cases: Sequence[str], metric: str) -> dict[str, Any]:
    """A run as a row of a data frame: what was set, and each statistic of each split."""
    setting, view = outcome.setting, outcome.seen
    found: dict[str, Any] = {"method": setting.method, "seed": outcome.seed, "status": outcome.status}
    found |= {name: setting.case.get(name, "") for name in cases}
    found |= {name: setting.numbers.get(name, float("nan")) for name in axes}
    if view is not None:
        for split in view.clients:
            found |= {column(split, name): value for name, value in statistics(view, split, metric).items()}
            found |= further_columns(view, split)
    return found | {name: float(values[-1]) for name, values in outcome.measures.items()}


FURTHER = ("mean", "worst10", "best10", "clients")
"""The statistics of metrics that were asked for besides."""


def further_columns(view: RunView, split: str) -> dict[str, float]:
    """``"<split>_<metric>_<statistic>"`` of each metric that was asked for, such as ``"test_auc_mean"``."""
    return {
        column(split, metric, name): statistics(view, split, metric)[name]
        for metric in view.info.get("metrics") or ()
        if metric in view.clients.get(split, {})
        for name in FURTHER
    }


def alike(values: list[Any]) -> list[Any]:
    """A column of one type: numbers as floats where some are, and anything beside a text as text."""
    kinds = {type(value) for value in values if not (isinstance(value, float) and math.isnan(value))}
    if len(kinds) <= 1 and str not in kinds:
        return values
    if kinds <= {int, float}:
        return [float(value) for value in values]
    return ["" if isinstance(value, float) and math.isnan(value) else str(value) for value in values]


# --- all settings, as files -----------------------------------------------------------------------------------


def as_csv(tried: Sequence[Tried]) -> str:
    """Comma-separated: a line per setting, each statistic with its standard deviation over the seeds, unrounded."""
    cases, axes = head(tried)
    names = [*columns(tried), *_further(tried)]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(
        [
            "method",
            *map(spreadsheet_cell, (*cases, *axes)),
            "chosen",
            "runs",
            "lost",
            *(f"{x}{end}" for x in names for end in ("", "_std")),
        ]
    )
    for each in tried:
        numbers = [x for name in names for x in (each.mean(name), each.std(name))]
        out.writerow(
            [
                *map(spreadsheet_cell, (each.setting.method, *(each.setting.case.get(x, "") for x in cases))),
                *(spreadsheet_cell(_text(each, name)) for name in axes),
                *(int(each.chosen), each.runs, each.lost),
                *("" if math.isnan(x) else repr(x) for x in numbers),
            ]
        )
    return text.getvalue()


def as_markdown(tried: Sequence[Tried], metric: str) -> str:
    """A table of Markdown: means ± standard deviations over the seeds; the chosen settings are bold."""
    return markdown(*_setting_cells(tried, metric, "±", "**{}**", lambda text: text.replace("|", r"\|")))


def as_latex(tried: Sequence[Tried], metric: str) -> str:
    """A ``tabular`` with the rules of the package ``booktabs``; the chosen settings are bold."""
    names, rows = _setting_cells(tried, metric, r"$\pm$", r"\textbf{{{}}}", tex)
    return latex(names, rows, 1 + sum(map(len, head(tried))))


def head(tried: Sequence[Tried]) -> tuple[list[str], list[str]]:
    """The conditions and the hyper-parameters that the settings have."""
    cases = dict.fromkeys(name for each in tried for name in each.setting.case)
    return list(cases), list(dict.fromkeys(name for each in tried for name in each.setting.numbers))


def columns(tried: Sequence[Tried]) -> list[str]:
    """The statistics of the splits that the runs have, as ``"<split>_<statistic>"``."""
    known = {name for each in tried for name in each.values}
    first = "valid" if any(name.startswith("valid_") for name in known) else "train"
    return [
        name
        for split in (first, "test")
        for name in (column(split, each) for each in STATISTICS)
        if name in known
    ]


def _further(tried: Sequence[Tried]) -> list[str]:
    """The statistics of metrics that were asked for, of the splits of :func:`columns`."""
    known = dict.fromkeys(name for each in tried for name in each.values)
    splits = tuple(f"{name.split('_', 1)[0]}_" for name in columns(tried))
    ends = tuple(f"_{name}" for name in FURTHER)
    metrics = dict.fromkeys(
        metric for each in tried for view in each.views for metric in view.info.get("metrics") or ()
    )
    wanted = {f"{split}{metric}{end}" for split in splits for metric in metrics for end in ends}
    return [name for name in known if name in wanted]


def _setting_cells(
    tried: Sequence[Tried], metric: str, plus: str, chosen: str, text: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows; ``text`` makes any text safe in the table's language."""
    (cases, axes), names = head(tried), columns(tried)
    lost = any(each.lost for each in tried)
    rows: list[list[str]] = []
    for each in tried:
        method = text(each.setting.method)
        row = [chosen.format(method) if each.chosen else method]
        row += [text(each.setting.case.get(name, "")) for name in cases]
        row += [text(_text(each, name)) for name in axes]
        for name in names:
            scale = factor(name, metric)
            mean, std = number(scale * each.mean(name)), scale * each.std(name)
            row.append(text(mean) + ("" if math.isnan(std) else f" {plus} {text(number(std, 2))}"))
        rows.append([*row, f"{each.lost} of {each.runs}"] if lost else row)
    units = {1.0: "", 100.0: " (%)", 1e4: " (%²)"}
    words = [f"{name.replace('_', ' ')}{units[factor(name, metric)]}" for name in names]
    first = ["method", *cases, *axes, *words, *(["runs lost"] if lost else [])]
    return [text(name) for name in first], rows


def _text(each: Tried, name: str) -> str:
    numbers = each.setting.numbers
    return shown(numbers[name]) if name in numbers else ""


# --- the methods, as files ------------------------------------------------------------------------------------


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
    return markdown(*_method_cells(lines, metric, "±", "**{}**", lambda text: text.replace("|", r"\|")))


def methods_latex(lines: Sequence[Line], metric: str) -> str:
    """A ``tabular`` with the rules of ``booktabs``; differences are bold where they may be marked as real."""
    names, rows = _method_cells(lines, metric, r"$\pm$", r"\textbf{{{}}}", tex)
    return latex(names, rows, len(names) - 3 * len(_SHOWN))


_SHOWN = {"mean": "mean", "worst10": "worst 10 %", "variance": "variance"}


def _method_cells(
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


# --- Markdown and LaTeX ---------------------------------------------------------------------------------------


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown, of cells that are safe in one."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *rows))


def latex(names: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A ``tabular`` of cells that are safe in one; the first ``words`` columns hold words, the others numbers."""
    lines = [
        rf"\begin{{tabular}}{{{'l' * words}{'r' * (len(names) - words)}}}",
        *(r"\toprule", rf"{' & '.join(names)} \\", r"\midrule"),
        *(rf"{' & '.join(row)} \\" for row in rows),
        *(r"\bottomrule", r"\end{tabular}"),
    ]
    return "\n".join(lines) + "\n"


def tex(text: str) -> str:
    """Any text, safe in LaTeX."""
    special = {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "²": "$^2$",
        "−": "$-$",
        "–": "--",
        "∞": r"$\infty$",
    }
    return "".join(special.get(each, each) for each in text)
