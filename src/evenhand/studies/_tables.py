"""The tables of a study: its methods side by side, all its settings, and all its runs.

First the values: a :class:`Line` for each method at its chosen setting, with its differences to the baseline; a
:class:`Tried` for each setting; a row for each run.  Then the first two as CSV, Markdown and LaTeX.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from evenhand import notebook
from evenhand.evaluation import PairedDifference, column, least_pairs
from evenhand.report import STATISTICS, Method, RunView, differences, statistics
from evenhand.report.formatting import Table, Value, capital, deviation, factor, number, over_seeds, unit
from evenhand.report.tables import difference_text, gains_text
from evenhand.studies._selection import NDArray, Outcome, Setting, seen, shown
from evenhand.text import counted, visible

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
        seed; None where the runs' clients differ in their ids or numbers of examples.
    """

    setting: Setting | None
    method: str
    case: Mapping[str, str]
    values: Mapping[str, NDArray]
    differences: Mapping[str, PairedDifference]
    p: Mapping[str, float]
    gains: tuple[int, int] | None = None


def method_lines(
    methods: Sequence[str],
    chosen: Mapping[str, tuple[Setting, Sequence[RunView]]],
    baseline: str,
    case: Mapping[str, str],
    split: str,
    metric: str,
) -> list[Line]:
    """A line for each method.

    Args:
      methods: their names.
      chosen: method -> its chosen setting with its runs, one for each seed, where there is a sound setting.
      baseline: the method that the others are compared with.
      case: the condition.
      split: where the statistics are from.
      metric: what they are of.
    """
    runs = {method: views for method, (_, views) in chosen.items()}
    compared = differences(runs, baseline, split, metric) if baseline in runs else {}
    lines: list[Line] = []
    for method in methods:
        setting, views = chosen.get(method, (None, ()))
        stats = Method(method, tuple(views)).statistics(split, metric)
        values = {name: stats[name] for name in STATISTICS if stats}
        by, p, gains = compared.get(method, ({}, {}, None))
        lines.append(
            Line(setting=setting, method=method, case=case, values=values, differences=by, p=p, gains=gains)
        )
    return lines


# --- all settings, and all runs -------------------------------------------------------------------------------


class Tried(NamedTuple):
    """A setting with the results of its runs.

    Attributes:
      setting: the method and its hyper-parameters.
      chosen: whether it is the one that its method is compared at.
      runs: how many there are.
      lost: how many of them diverged or failed.
      values: ``"<split>_<statistic>"`` -> a value for each run, in the order of the seeds; empty where some run was
        lost, since means over other seeds than those of the other settings would mislead.  Metrics that were asked for
        are there, too, as ``"<split>_<metric>_<statistic>"``, and the numbers of the study's ``measure`` at the last
        evaluation, by their own names, after ``"measured_"`` if a statistic has the same name.
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
        return deviation(self.values.get(name, ()))


def summed_up(setting: Setting, outcomes: Sequence[Outcome], chosen: bool, metric: str) -> Tried:
    """A setting, with what its runs came to."""
    views = seen(outcomes)
    lost = sum(outcome.status in ("diverged", "failed") for outcome in outcomes)
    values, ended = dict[str, NDArray](), all(outcome.status == "done" for outcome in outcomes)
    for split in views[0].clients if ended else ():
        stats = Method(setting.method, tuple(views)).statistics(split, metric)
        values |= {column(split, name): by_run for name, by_run in stats.items()}
        more = [further_columns(view, split) for view in views]
        names = [name for name in more[0] if all(name in columns for columns in more)]
        values |= {name: np.array([columns[name] for columns in more]) for name in names}
    # The function that measures may leave out a number, even in all evaluations of a run.
    measured = outcomes[0].measures if ended else {}
    values |= {
        _apart(name, values): np.array([x.measures[name][-1] for x in outcomes if name in x.measures])
        for name in measured
    }
    return Tried(setting=setting, chosen=chosen, runs=len(outcomes), lost=lost, values=values, views=views)


def row(outcome: Outcome, axes: Sequence[str], cases: Sequence[str], metric: str) -> dict[str, Any]:
    """A run as a row of a data frame: what was set, and each statistic of each split."""
    setting, view = outcome.setting, outcome.seen
    cells: dict[str, Any] = {"method": setting.method, "seed": outcome.seed, "status": outcome.status}
    cells |= {name: setting.case.get(name, "") for name in cases}
    cells |= {name: setting.numbers.get(name, float("nan")) for name in axes}
    if view is not None:
        for split in view.clients:
            cells |= {column(split, name): value for name, value in statistics(view, split, metric).items()}
            cells |= further_columns(view, split)
        cells |= communication_columns(view)
    return cells | {_apart(name, cells): float(x[-1]) for name, x in outcome.measures.items()}


def _apart(name: str, taken: Collection[str]) -> str:
    """The column of a number that the user's function measures, also if a statistic has its name."""
    return f"measured_{name}" if name in taken else name


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


def communication_columns(view: RunView) -> dict[str, float]:
    """What all clients have received and sent, and the secure sums; none of a run whose version did not count them."""
    if (count := view.info.get("communication")) is None:
        return {}
    down, up = (count["total"][way]["bytes"] for way in ("down", "up"))
    return {"bytes_down": down, "bytes_up": up, "secure_sums": count["secure_sums"]}


def alike(values: list[Any]) -> list[Any]:
    """A column of one type: numbers as floats where some are or are missing, and anything beside a text as text."""
    given = [value for value in values if not (isinstance(value, float) and math.isnan(value))]
    kinds, is_whole = {type(value) for value in given}, len(given) == len(values)
    if len(kinds) <= 1 and str not in kinds and is_whole:
        return values
    # Truth values beside a missing one are 1 and 0: polars takes no column of several types.
    if kinds <= {int, float} or kinds == {bool}:
        return [float(value) for value in values]
    return ["" if isinstance(value, float) and math.isnan(value) else str(value) for value in values]


# --- all settings, as files -----------------------------------------------------------------------------------


def settings_files(tried: Sequence[Tried], metric: str) -> dict[str, str]:
    """Ending -> the table of all settings: ``.csv`` unrounded, ``.md`` and ``.tex`` with the chosen ones in bold."""
    return _files(settings_csv(tried), _settings(tried, metric))


def _files(csv: str, rounded: Table, comments: Sequence[str] = ()) -> dict[str, str]:
    begin = "".join(f"% {visible(line)}\n" for line in comments)
    return {".csv": csv, ".md": rounded.markdown(), ".tex": begin + rounded.latex()}


def settings_csv(tried: Sequence[Tried]) -> str:
    """A line per setting, each statistic with its standard deviation over the seeds."""
    cases, axes = head(tried)
    names = [*columns(tried), *_further(tried)]
    top = ["method", *cases, *axes, "chosen", "runs", "lost"]
    top += [f"{name}{end}" for name in names for end in ("", "_std")]
    rows: list[list[str | float]] = []
    for entry in tried:
        numbers = [x for name in names for x in (entry.mean(name), entry.std(name))]
        counts = (int(entry.chosen), entry.runs, entry.lost)
        rows.append([entry.setting.method, *_set(entry, cases, axes), *counts, *numbers])
    return Table(top, rows).csv()


def head(tried: Sequence[Tried | Outcome]) -> tuple[list[str], list[str]]:
    """The conditions and the hyper-parameters that settings or runs have."""
    cases = dict.fromkeys(name for entry in tried for name in entry.setting.case)
    return list(cases), list(dict.fromkeys(name for entry in tried for name in entry.setting.numbers))


def columns(tried: Sequence[Tried]) -> list[str]:
    """The statistics of the splits that the runs have, as ``"<split>_<statistic>"``."""
    measured = {name for entry in tried for name in entry.values}
    first = "valid" if any(name.startswith("valid_") for name in measured) else "train"
    names = [column(split, name) for split in (first, "test") for name in STATISTICS]
    return [name for name in names if name in measured]


def _further(tried: Sequence[Tried]) -> list[str]:
    """The statistics of metrics that were asked for, of the splits of :func:`columns`."""
    measured = dict.fromkeys(name for entry in tried for name in entry.values)
    splits = {name.split("_", 1)[0] for name in columns(tried)}
    metrics = {name for entry in tried for view in entry.views for name in view.info.get("metrics") or ()}
    wanted = {column(*name) for name in product(splits, metrics, FURTHER)}
    return [name for name in measured if name in wanted]


def _settings(tried: Sequence[Tried], metric: str) -> Table:
    (cases, axes), names = head(tried), columns(tried)
    lost = any(entry.lost for entry in tried)
    rows: list[list[str | Value]] = []
    for entry in tried:
        method = Value(entry.setting.method, is_marked=entry.chosen)
        # Without a value, there is a dash for the mean, and no deviation.
        numbers = [over_seeds(entry.values.get(name, [math.nan]), factor(name, metric)) for name in names]
        end = [f"{entry.lost} of {entry.runs}"] if lost else []
        rows.append([method, *_set(entry, cases, axes), *numbers, *end])
    top = ["method", *cases, *axes, *titles(names, metric), *(["runs lost"] if lost else [])]
    return Table(top, rows, 1 + len(cases) + len(axes))


def titles(names: Sequence[str], metric: str) -> list[str]:
    """The heads of such columns, with their units."""
    return [name.replace("_", " ") + unit(name, metric) for name in names]


def _set(entry: Tried, cases: Sequence[str], axes: Sequence[str]) -> list[str]:
    """What was set: the condition and the hyper-parameters."""
    numbers = entry.setting.numbers
    conditions = [entry.setting.case.get(name, "") for name in cases]
    return conditions + [shown(numbers[name]) if name in numbers else "" for name in axes]


# --- the methods, as files ------------------------------------------------------------------------------------


def methods_files(lines: Sequence[Line], metric: str, covers: str, baseline: str) -> dict[str, str]:
    """Ending -> the table of the methods: ``.csv`` unrounded, ``.md`` and ``.tex`` with sure differences in bold.

    Args:
      lines: a line for each method and condition.
      metric: what the numbers are of.
      covers: the split, the metric and the clients, in words.
      baseline: the method that the others are compared with.
    """
    seeds = max((len(values) for line in lines for values in line.values.values()), default=0)
    comments = [f"{capital(covers)}; means over {counted(seeds, 'seed')}."]
    if seeds > 1:
        comments.append("±: standard deviation over the seeds.")
    if any(line.differences for line in lines):
        comments += [
            "minus ... [ ]: mean difference at equal seeds, with its 95 % interval (Student's t).",
            f"p: exact test by signs, raised for the number of comparisons (Holm). {_about_bold(lines, seeds)}",
        ]
    return _files(methods_csv(lines), _methods(lines, metric, baseline), comments)


def _about_bold(lines: Sequence[Line], seeds: int) -> str:
    """What bold differences are, or why there are none."""
    compared = Counter(str(line.case) for line in lines if line.differences)
    least = least_pairs(min(compared.values()))
    if seeds < least:
        return f"Nothing is bold: p cannot reach .05 with fewer than {least} seeds."
    return "Bold: the interval excludes 0, and there are enough seeds for p to reach .05."


def methods_csv(lines: Sequence[Line]) -> str:
    """A line per method and condition, with its differences to the baseline."""
    cases = list(dict.fromkeys(name for line in lines for name in line.case))
    ends = ("", "_std", "_difference", "_low", "_high", "_p")
    names = [f"{name}{end}" for name in STATISTICS for end in ends]
    rows: list[list[str | float]] = []
    for line in lines:
        cells: list[str | float] = []
        for name in STATISTICS:
            values, by = line.values.get(name), line.differences.get(name)
            cells += ["", ""] if values is None else [float(values.mean()), deviation(values)]
            cells += [""] * 4 if by is None else [by.mean, by.low, by.high, line.p[name]]
        rows.append([*_words(line, cases), *cells, *(line.gains or ("", ""))])
    return Table(["method", *cases, "setting", *names, "clients_better", "clients_worse"], rows).csv()


_SHOWN = {"mean": "mean", "worst10": "worst 10 %", "best10": "best 10 %", "variance": "variance"}


def _methods(lines: Sequence[Line], metric: str, baseline: str) -> Table:
    cases = list(dict.fromkeys(name for line in lines for name in line.case))
    compared = Counter(str(line.case) for line in lines if line.differences)
    names = [
        x for key, word in _SHOWN.items() for x in (f"{word}{unit(key, metric)}", f"minus {baseline}", "p")
    ]
    rows: list[list[str | Value]] = []
    for line in lines:
        cells: list[str | Value] = []
        for key in _SHOWN:
            values, by = line.values.get(key), line.differences.get(key)
            cells.append("" if values is None else over_seeds(values, factor(key, metric)))
            if by is None:
                cells += ["", ""]
                continue
            text, is_marked = difference_text(by, key, metric), by.may_be_marked(compared[str(line.case)])
            cells += [Value(text, is_marked=is_marked), number(line.p[key], 2)]
        setting = "" if line.setting is None else line.setting.arguments
        rows.append([*_words(line, cases)[:-1], setting, *cells])
    return Table(["method", *cases, "setting", *names], rows, 2 + len(cases))


def _words(line: Line, cases: Sequence[str]) -> list[str]:
    """The method, its condition and its chosen setting."""
    setting = "" if line.setting is None else line.setting.expression
    return [line.method, *(line.case.get(name, "") for name in cases), setting]


# --- the methods, in a notebook -------------------------------------------------------------------------------


_GLANCED = {"mean": "mean", "worst10": "worst 10\u202f%", "best10": "best 10\u202f%"}


def methods_html(
    lines: Sequence[Line], metric: str, covers: str, baseline: str, clients: str = "clients"
) -> list[str]:
    """The methods at their chosen settings, and their differences to the baseline where there are several seeds.

    Args:
      lines: a line for each method and condition.
      metric: what the numbers are of.
      covers: the split, the metric and the clients, in words.
      baseline: the method that the others are compared with.
      clients: what these are called.
    """
    cases = list(dict.fromkeys(name for line in lines for name in line.case))
    seeds = max((len(values) for line in lines for values in line.values.values()), default=0)
    percent = " in %" if factor("mean", metric) > 1 else ""
    over = f"; means over {seeds} seeds ± their standard deviation" if seeds > 1 else ""
    rows = [[*_named(line, cases), *(_statistic(line, key, metric) for key in _GLANCED)] for line in lines]
    head = ["chosen", *cases, *_GLANCED.values()]
    chosen = notebook.table(head, rows, texts=len(cases))
    parts = [notebook.paragraph(f"{notebook.escape(capital(covers))}{percent}{over}", "note"), chosen]
    compared = [line for line in lines if line.differences]
    if seeds < 2 or not compared:
        return parts
    points = " in percentage points" if percent else ""
    words = f"Minus {notebook.name(baseline)}{points} at equal seeds, with 95 % intervals; p of the worst 10 % (Holm); "
    words += f"+/−: {clients} better or worse served at every seed. {_about_bold(lines, seeds)}"
    counts = Counter(str(line.case) for line in compared)
    rows = [
        [
            *_named(line, cases, only_method=True),
            *(_difference(line, key, metric, counts[str(line.case)]) for key in ("mean", "worst10")),
            notebook.escape(number(line.p["worst10"], 2)),
            gains_text(line.gains),
        ]
        for line in compared
    ]
    head = ["method", *cases, _GLANCED["mean"], _GLANCED["worst10"], "p", f"{clients} + / −"]
    return [*parts, notebook.paragraph(words, "note"), notebook.table(head, rows, texts=len(cases))]


def _named(line: Line, cases: Sequence[str], *, only_method: bool = False) -> list[str]:
    """The setting or the method of a line, and its condition."""
    setting = line.setting
    text = line.method if only_method else f"{line.method}: none" if setting is None else setting.expression
    return [notebook.escape(text), *(notebook.escape(line.case.get(name, "")) for name in cases)]


def _statistic(line: Line, key: str, metric: str) -> str:
    values = line.values.get(key)
    return "–" if values is None else notebook.escape(over_seeds(values, factor(key, metric)).joined())


def _difference(line: Line, key: str, metric: str, comparisons: int) -> str:
    by = line.differences[key]
    mean, interval = notebook.escape(difference_text(by, key, metric)).split(" ", 1)
    bold = ("<strong>", "</strong>") if by.may_be_marked(comparisons) else ("", "")
    return f'{bold[0]}{mean}{bold[1]}<br><span class="eh-note">{interval}</span>'
