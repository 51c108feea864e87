"""The tables of a study as files: for spreadsheets, for notes and for papers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence

from evenhand.evaluation import column
from evenhand.report import STATISTICS
from evenhand.report.formatting import factor, number
from evenhand.studies._plan import shown
from evenhand.studies._rows import FURTHER
from evenhand.studies._tried import Tried
from evenhand.text import spreadsheet_cell

__all__ = ["as_csv", "as_latex", "as_markdown", "columns", "head", "latex", "markdown", "tex"]


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
    return markdown(*_cells(tried, metric, "±", "**{}**", lambda text: text.replace("|", r"\|")))


def as_latex(tried: Sequence[Tried], metric: str) -> str:
    """A ``tabular`` with the rules of the package ``booktabs``; the chosen settings are bold."""
    names, rows = _cells(tried, metric, r"$\pm$", r"\textbf{{{}}}", tex)
    return latex(names, rows, 1 + sum(map(len, head(tried))))


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


def _cells(
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
