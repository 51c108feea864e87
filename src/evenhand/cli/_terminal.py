"""What a terminal shows: sentences and names without markup or control codes, and saved runs in 80 columns."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from evenhand.evaluation import is_higher_better
from evenhand.report import Comparison, caution, differences, further, metric_remarks, verdict
from evenhand.report.tables import difference_text
from evenhand.text import counted, visible

__all__ = [
    "Expression",
    "client_table",
    "difference_table",
    "metric_table",
    "overview",
    "remark",
    "say",
    "show_comparison",
    "tally",
]


# --- sentences and names ------------------------------------------------------------------------------------


_OF_PAGES = dict.fromkeys(map(ord, "\u2068\u2069")) | {ord("\u202f"): " "}


def named(text: object, style: str = "") -> Text:
    """A name for a cell of a table."""
    return Text(visible(text), style)


class Expression:
    """The name of a method in a cell of a table: too long for its column, it is broken where its arguments begin."""

    def __init__(self, name: str) -> None:
        self._parts = re.findall(r"[^(,=\s]*[(,=\s]\s*|[^(,=\s]+", visible(name))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [cell_len(part.rstrip()) for part in self._parts]
        return Measurement(max(widths, default=0), cell_len("".join(self._parts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(_lines(self._parts, options.max_width), overflow="fold")


def say(console: Console, sentence: str, style: str = "") -> None:
    """Prints a sentence, without the characters that isolate names on a page.

    A terminal gets it broken between words; a file or a pipe, as one line.
    """
    text = visible(sentence.translate(_OF_PAGES))
    if console.is_terminal:  # not by rich, which would cut a long path, too, and then it cannot be copied
        text = _lines(re.findall(r"\S+\s*", text), console.width)
    console.print(Text(text, style), soft_wrap=True)


def remark(sentence: str) -> None:
    """Prints a sentence that is not a result, on the error stream."""
    say(Console(file=sys.stderr, highlight=False), f"evenhand: {sentence}")


def _lines(parts: Sequence[str], width: int) -> str:
    """The parts, as many on a line as fit into it."""
    lines = [""]
    for part in parts:
        fits = cell_len((lines[-1] + part).rstrip()) <= width
        lines[-1:] = [lines[-1] + part] if fits or not lines[-1] else [lines[-1].rstrip(), part]
    return "\n".join(lines)


# --- tables of saved runs -----------------------------------------------------------------------------------


_COLUMNS = (
    ("mean", "mean"),
    ("weighted_mean", "weighted\nmean"),
    ("worst10", "worst\n10 %"),
    ("best10", "best\n10 %"),
    ("variance", "vari-\nance"),
    ("angle", "angle\n°"),
)
_EVENNESS = ("variance", "angle")
"""Lower is better, whatever the metric."""

_MOST_COLUMNS = 6
"""Most methods side by side in a table of clients; further ones are in another table below."""

_MOST_HEADS, _WIDEST_HEAD = 4, 24
"""More methods than that, or longer names, are numbered, and the table of clients names them by number."""


def show_comparison(
    comparison: Comparison,
    console: Console,
    *,
    lines: Iterable[str] = (),
    without: Collection[str] = (),
    baseline: str | None = None,
) -> None:
    """Prints what to know about saved runs, their tables, and how far the differences between them can be trusted.

    Args:
      comparison: of one method or several.
      console: where.
      lines: sentences to print before the tables.
      without: kinds of findings that have been reported already.
      baseline: the method that the others are compared with; None: the first.
    """
    for notice in comparison.notices:
        if notice.finding.kind not in without:
            say(console, notice.text, "yellow")
    for line in lines:
        say(console, line)
    console.print(overview(comparison))
    if len(comparison.methods) > 1:
        say(console, verdict(comparison), "yellow" if comparison.obstacles else "")
    if noise := caution(comparison):
        is_marked = comparison.seeds == 1 and comparison.may_mark
        say(console, f"* best of its column. {noise}" if is_marked else noise)
    if (table := metric_table(comparison)) is not None:
        console.print(table)
    for sentence in metric_remarks(comparison):
        say(console, sentence)
    if (table := difference_table(comparison, baseline)) is not None:
        console.print(table)


def overview(of: Comparison) -> Group:
    """One row per method; the best of each column carries a star, where the comparison allows one."""
    percent = " in % (variance: %²)" if of.is_share else ""
    seeds = f"; ± over {of.seeds} seeds" if of.seeds > 1 else ""
    table = _table()
    table.add_column("method", overflow="fold")
    for _, title in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    found = [method.statistics(of.split, of.metric) for method in of.methods]
    columns = [_starred(of, [stats[key] for stats in found], key) for key, _ in _COLUMNS]
    for i, (method, *row) in enumerate(zip(of.methods, *columns, strict=True)):
        number = f"{i + 1}  " if _numbered(of) else ""
        table.add_row(Expression(number + method.name), *row)
    return Group(named(f"{of.split} {of.metric}{percent} over {of.covered.text}{seeds}", "bold"), table)


def metric_table(of: Comparison) -> Group | None:
    """The metrics that were asked for besides, one row per method each; None where there are none."""
    abouts = further(of)
    if not abouts:
        return None
    table, several = _table(), len(of.methods) > 1
    table.add_column("metric", overflow="fold")
    if several:
        table.add_column("method", overflow="fold")
    for title in ("mean", "worst\n10 %", "best\n10 %", "clients"):
        table.add_column(title, justify="right", no_wrap=True)
    for about in abouts:
        found = [method.statistics(about.split, about.metric) for method in about.methods]
        keys = ("mean", "worst10", "best10")
        columns = [_starred(about, [stats[key] for stats in found], key) for key in keys]
        unit = ", %" if about.is_share else ""
        for i, (method, *row) in enumerate(zip(about.methods, *columns, strict=True)):
            number = f"{i + 1}  " if _numbered(of) else ""
            names: list[Text | Expression] = [named(about.metric + unit if i == 0 else "")]
            names += [Expression(number + method.name)] if several else []
            table.add_row(*names, *row, f"{int(np.min(found[i]['clients'])):,}")
    return Group(named(f"more {of.split} metrics over {of.covered.text}, where defined", "bold"), table)


def difference_table(of: Comparison, baseline: str | None = None) -> Group | None:
    """One row per method but the baseline (None: the first), with intervals; None for single seeds."""
    runs = {method.name: method.runs for method in of.methods if method.is_sound}
    base = of.names[0] if baseline is None else baseline
    found = differences(runs, base, of.split, of.metric) if of.seeds > 1 and base in runs else {}
    if of.obstacles or not found:
        return None
    table = _table()
    table.add_column("method", overflow="fold")
    for title in ("mean", "worst 10 %", "p", "clients\n+ / −"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, each in found.items():
        gains = "–" if each.gains is None else f"{each.gains[0]} / {each.gains[1]}"
        texts = [
            Text(
                difference_text(each.by[key], key, of.metric),
                "bold" if each.by[key].may_be_marked(len(found)) else "",
            )
            for key in ("mean", "worst10")
        ]
        table.add_row(Expression(name), *texts, f"{each.p['worst10']:.2g}", gains)
    what = (
        f"minus {base}, at equal seeds, with 95 % intervals; p of the worst 10 % (Holm); +/−: at every seed"
    )
    return Group(named(what, "bold"), table)


def client_table(of: Comparison, count: int) -> Group:
    """The ``count`` clients that the first method serves worst, one line each; means over seeds."""
    values, first = _served(of), of.runs[0]
    sign = 1 if is_higher_better(of.metric) else -1
    order = np.argsort(sign * values[0], kind="stable")
    shown = [int(k) for k in order if not np.isnan(values[0, k])][:count]
    tables: list[Table] = []
    for begin in range(0, len(of.methods), _MOST_COLUMNS):
        methods = range(begin, min(begin + _MOST_COLUMNS, len(of.methods)))
        table = _table()
        table.add_column(named(of.client_kind or "client"), overflow="fold")
        table.add_column(f"{of.split}\nrows", justify="right")
        for i in methods:
            head = str(i + 1) if _numbered(of) else of.names[i]
            table.add_column(named(head), justify="right", overflow="fold", min_width=5)
        for k in shown:
            rows = f"{int(first.sizes[of.split][k])}" if of.split in first.sizes else ""
            numbers = (_text(values[i, k], "mean", of) for i in methods)
            table.add_row(named(first.client_ids[k]), rows, *numbers)
        tables.append(table)
    under = f"method 1, {of.names[0]}" if _numbered(of) else of.names[0]
    covered = "" if of.covered.is_complete else f", of {of.covered.text}"
    title = f"{of.split} {of.metric} of the {counted(len(shown), 'client')} worst off under {under}{covered}"
    return Group(named(title + _over_seeds(of), "bold"), *tables)


def tally(of: Comparison) -> str:
    """How many clients the second of two methods serves better than the first; with several seeds, in each of them."""
    first, second = (method.clients(of.split, of.metric) for method in of.methods)
    gain = second - first if is_higher_better(of.metric) else first - second
    better, worse = (int(np.sum((sign * gain > 0).all(axis=0))) for sign in (1, -1))
    known = int(np.sum(~np.isnan(gain).any(axis=0)))
    one, other = of.names
    if of.seeds == 1:
        same = known - better - worse
        return f"{other} serves {counted(better, 'client')} better than {one}, {worse} worse and {same} equally well."
    return (
        f"In each of {of.seeds} seeds, {other} serves {counted(better, 'client')} better than {one} and {worse} worse; "
        f"for the other {known - better - worse} it depends on the seed."
    )


def _served(of: Comparison) -> np.ndarray:
    """``(methods, K)``, means over seeds; only for runs with the same clients."""
    return np.stack([np.mean(method.clients(of.split, of.metric), axis=0) for method in of.methods])


def _numbered(of: Comparison) -> bool:
    return len(of.methods) > 1 and (
        len(of.methods) > _MOST_HEADS or max(map(cell_len, of.names)) > _WIDEST_HEAD
    )


def _over_seeds(of: Comparison) -> str:
    return f" (means over {of.seeds} seeds)" if of.seeds > 1 else ""


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _starred(of: Comparison, values: Sequence[np.ndarray], key: str) -> list[Text]:
    """The column as text, the best marked, the deviation over seeds below."""
    sign = 1 if is_higher_better(of.metric) and key not in _EVENNESS else -1
    texts = [_text(float(np.mean(x)), key, of) for x in values]
    best = of.winners(values, texts, sign)
    cells: list[Text] = []
    for i, (x, text) in enumerate(zip(values, texts, strict=True)):
        cell = Text(f"{text}*", "bold green") if i in best else Text(f"{text} ")
        if of.seeds > 1:
            deviation = _text(float(np.std(x, ddof=1)), key, of, digits=2) if len(x) > 1 else "–"
            cell = Text.assemble(cell, (f"\n±{deviation} ", "dim"))
        cells.append(cell)
    return cells


def _text(value: float, key: str, of: Comparison, digits: int = 4) -> str:
    if math.isnan(value):
        return "–"
    if key == "angle" or not of.is_share:
        # Amounts, such as 89,330, are shorter than 8.933e+04, which leaves room for the names of methods.
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.{digits}g}"
    return f"{value * (1e4 if key == 'variance' else 1e2):.1f}"
