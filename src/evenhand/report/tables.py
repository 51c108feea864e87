"""The tables of a report: statistics over clients, further metrics, classes, and differences to a baseline.

They say what each statistic is called, how it is shown, and which value is the best; for several seeds, how far each
method is from a baseline and how sure one can be of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.evaluation import (
    SPLIT_NAMES,
    SPLITS,
    PairedDifference,
    holm,
    is_higher_better,
    is_share,
    least_pairs,
    paired_difference,
)
from evenhand.report._view import RunView, client_values, statistics
from evenhand.report.comparison import Comparison, clients_of, further, metric_remarks
from evenhand.report.formatting import (
    COMPARED,
    Cell,
    Row,
    Table,
    Value,
    bar,
    capital,
    details,
    escape,
    factor,
    note,
    number,
    over_seeds,
    percent,
    section,
    swatch,
)
from evenhand.text import counted

__all__ = [
    "STATISTICS",
    "Differences",
    "class_table",
    "difference_table",
    "difference_text",
    "differences",
    "gains_text",
    "metric_section",
    "ranking",
    "statistic_rows",
    "summary",
]

NDArray = npt.NDArray[np.float64]


# --- statistics over clients --------------------------------------------------------------------------------------


class Statistic(NamedTuple):
    """One row of the summary.

    Attributes:
      key: as in :func:`~evenhand.evaluation.summarize` or :func:`~evenhand.evaluation.summarize_classes`.
      name: as on the page.
      kind: how it is shown: a ``value`` of the metric, a ``spread`` of values, its ``square``, or else the
        unit of a plain number.
      even: +1 if more of it is better, -1 if less is, 0 if the metric decides.
      meaning: the explanation on the page.
    """

    key: str
    name: str
    kind: str
    even: int
    meaning: str


_SUMMARY = (
    Statistic("mean", "Mean over clients", "value", 0, "every client counts alike"),
    Statistic(
        *("weighted_mean", "Mean over examples", "value", 0),
        "every example counts alike, so large clients count more",
    ),
    Statistic("worst10", "Worst 10 % of clients", "value", 0, "mean of the worst tenth, at least one client"),
    Statistic("best10", "Best 10 % of clients", "value", 0, "mean of the best tenth, at least one client"),
    Statistic("min", "Lowest", "value", 0, "lowest value of a client"),
    Statistic("p10", "10th percentile", "value", 0, "a tenth of the clients are below"),
    Statistic("p25", "25th percentile", "value", 0, "a quarter of the clients are below"),
    Statistic("p50", "Median", "value", 0, "half of the clients are below"),
    Statistic("p75", "75th percentile", "value", 0, "three quarters of the clients are below"),
    Statistic("p90", "90th percentile", "value", 0, "nine tenths of the clients are below"),
    Statistic("max", "Highest", "value", 0, "highest value of a client"),
    Statistic("std", "Standard deviation", "spread", -1, "over clients, population"),
    Statistic("variance", "Variance", "square", -1, "over clients, population; in %² for percentages"),
    Statistic(
        *("angle", "Angle to all-equal", "°", -1),
        "between the clients' values and a vector of equal values",
    ),
    Statistic("kl", "KL to uniform", " nats", -1, "divergence of the normalised values from equal shares"),
    Statistic("entropy", "Entropy", " nats", 1, "of the normalised values; ln(clients) when all are equal"),
    Statistic(
        *("jain", "Jain's index", "", 1),
        "1 when all values are equal, 1 / clients when one has everything",
    ),
    Statistic(
        *("class_spread", "Spread over a client's classes", "spread", -1),
        "standard deviation of a client's accuracies on the classes that it has, mean over clients",
    ),
    Statistic(
        *("class_spread_std", "Its spread over clients", "spread", -1),
        "standard deviation of that over clients",
    ),
    Statistic(
        *("worst_class", "Worst class of a client", "value", 0),
        "lowest accuracy of any class at any client",
    ),
    Statistic(
        *("error_p90", "Error, 90th percentile", "value", -1),
        "nine tenths of the clients err less; the error is 1 minus the value, or the value where less is better",
    ),
    Statistic(
        *("error_superquantile90", "Error, worst 10 %", "value", -1),
        "mean error of exactly a tenth of the clients, the one at the boundary counted in part",
    ),
    Statistic(
        *("weighted_error_p90", "Error over examples, 90th percentile", "value", -1),
        "every example counts alike; papers report it for training examples",
    ),
    Statistic(
        *("weighted_error_superquantile90", "Error over examples, worst 10 %", "value", -1),
        "mean error of the worst clients that together have exactly a tenth of the examples",
    ),
    Statistic(
        *("clients", "Clients with examples", "", 0),
        "clients without examples in the split do not count",
    ),
)

_STATISTICS = {row.key: row for row in _SUMMARY}


def ranking(subject: Comparison) -> str:
    """One row per method, with the statistics that decide between them."""
    stats = [method.statistics(subject.split, subject.metric) for method in subject.methods]
    keys = ("mean", "worst10", "best10", "std")
    means = {key: [float(np.mean(s[key])) for s in stats] for key in keys}
    finite = [x for key in keys[:3] for x in means[key] if math.isfinite(x)]
    top = 1.0 if subject.is_share else max([*finite, 1e-30] if finite else [1.0])
    columns = {key: _column(subject, [s[key] for s in stats], _STATISTICS[key]) for key in keys}
    several, rows = subject.seeds > 1, list[Row]()
    for i, method in enumerate(subject.methods):
        shown = {key: columns[key][i] for key in keys}
        bars = [
            bar(shown[key].joined(), means[key][i] / top, i, is_marked=shown[key].is_marked)
            for key in keys[:3]
        ]
        seeds = [Value(str(len(method.runs)))] if several else []
        rows.append([Cell(swatch(i) + escape(method.name)), *seeds, *bars, shown["std"]])
    head = [
        "Method",
        *(["Seeds"] if several else []),
        "Mean over clients",
        "Worst 10 %",
        "Best 10 %",
        "Spread (std)",
    ]
    best = "; the best of each column is bold" if subject.may_mark else ""
    caption = f"{capital(subject.quantity)} per client, over {subject.covered.text}{best}"
    return Table(head, rows).html(caption)


def summary(subject: Comparison) -> str:
    """All statistics of all metrics: a column per method or, for a single method, per split."""
    several = len(subject.methods) > 1
    tables: list[tuple[str, list[str]]] = []
    for metric in (subject.metric, *_further_metrics(subject)):
        splits = _splits(subject, metric)
        tables += [(metric, [split]) for split in splits] if several else [(metric, splits)]
    first, *others = tables
    parts = [_statistics_table(subject, *first)]
    for metric, splits in others:
        place = f", {SPLIT_NAMES[splits[0]]} examples" if several else ""
        name = f"The same for: {metric.replace('_', ' ')}{place}"
        parts.append(details(name, _statistics_table(subject, metric, splits)))
    stats = [method.statistics(first[1][0], first[0]) for method in subject.methods]
    terms = "\n".join(
        f"<dt>{escape(row.name)}</dt><dd>{escape(capital(row.meaning))}.</dd>"
        for row in _available_statistics(stats)
    )
    parts.append(details("What these numbers mean", f'<dl class="terms">\n{terms}\n</dl>'))
    return section("How evenly the clients are served", *parts)


def _statistics_table(subject: Comparison, metric: str, splits: Sequence[str]) -> str:
    """A column per method and split; a comparison has one split only."""
    stats = [method.statistics(split, metric) for split in splits for method in subject.methods]
    several, name = len(subject.methods) > 1, metric.replace("_", " ")
    about = subject._replace(metric=metric, split=splits[0])
    rows: list[Row] = []
    for row in _available_statistics(stats):
        column = [s.get(row.key, np.array([math.nan])) for s in stats]
        rows.append([row.name, *_column(about, column, row)])
    if several:
        caption = (
            f"{SPLIT_NAMES[splits[0]]} {name} per client at the end of the runs, over {about.covered.text}"
        )
        caption += "; the best is bold" if subject.may_mark else ""
        head = subject.names
    else:
        caption = f"{name} per client at the end of the run"
        caption += ", over honest clients" if any(run.whole is not None for run in subject.runs) else ""
        head = [f"{SPLIT_NAMES[s]} examples" for s in splits]
    return Table(["", *head], rows).html(capital(caption), "numbers narrow")


def statistic_rows(stats: Mapping[str, float], metric: str) -> list[list[str]]:
    """The name and the text of each statistic that is known."""
    rows = _available_statistics([stats])
    return [[row.name, _value(stats[row.key], row, metric).joined()] for row in rows]


def _available_statistics(stats: Sequence[Mapping[str, object]]) -> list[Statistic]:
    """The statistics that some run has: not all metrics, nor all saved runs, have those over classes."""
    return [row for row in _SUMMARY if any(row.key in by_key for by_key in stats)]


def _splits(subject: Comparison, metric: str) -> list[str]:
    """The splits that some run has numbers for, beginning with the report's."""
    measured = [s for s in SPLITS if any(metric in run.clients.get(s, {}) for run in subject.runs)]
    filled = [s for s in measured if any(any(run.sizes.get(s, [1])) for run in subject.runs)]
    return sorted(filled or measured, key=lambda split: split != subject.split)


def _further_metrics(subject: Comparison) -> list[str]:
    """The further metrics that all runs have, in the order of the first run."""
    of_runs = [
        dict.fromkeys(name for metrics in r.clients.values() for name in metrics) for r in subject.runs
    ]
    return [name for name in of_runs[0] if name != subject.metric and all(name in names for names in of_runs)]


_UNITS = {"value": (100.0, "\u202f%"), "spread": (100.0, " points"), "square": (1e4, " %²")}
"""What a share is multiplied with to be shown, and what follows it."""


def _value(values: npt.ArrayLike, row: Statistic, metric: str) -> Value:
    """A statistic of a method: the mean of its runs with their deviation."""
    mean = float(np.mean(np.asarray(values, np.float64)))
    scale, unit = _UNITS.get(row.kind, (1.0, row.kind))
    if row.kind in _UNITS and not is_share(metric):
        scale, unit = 1.0, ""
    shown = over_seeds(values, scale)
    if not math.isfinite(mean):
        return shown
    if row.key == "clients":
        return Value(f"{int(mean):,}")
    if unit == "\u202f%":
        shown = shown._replace(text=f"{scale * mean:.1f}")
    if unit == " points":
        shown = shown._replace(text=number(scale * mean, 3))
    return shown._replace(unit=unit)


def _column(subject: Comparison, values: Sequence[NDArray], row: Statistic) -> list[Value]:
    """A statistic of each method, the best marked (:meth:`Comparison.winners`)."""
    shown = [_value(x, row, subject.metric) for x in values]
    if row.key == "clients" or len(subject.methods) < 2:
        return shown
    sign = row.even or (1 if is_higher_better(subject.metric) else -1)
    best = subject.winners(values, [v.text for v in shown], sign)
    return [v._replace(is_marked=i in best) for i, v in enumerate(shown)]


# --- further metrics ----------------------------------------------------------------------------------------------


def metric_section(subject: Comparison) -> str:
    """The section of the page; empty where no further metric was asked for."""
    several, rows = len(subject.methods) > 1, list[Row]()
    for about in further(subject):
        stats = [method.statistics(about.split, about.metric) for method in about.methods]
        columns = [_column(about, [s[key] for s in stats], _STATISTICS[key]) for key in ("mean", "worst10")]
        for i, (method, *cells) in enumerate(zip(about.methods, *columns, strict=True)):
            name = [Cell(swatch(i) + escape(method.name), "number")] if several else []
            clients = Value(f"{int(np.min(stats[i]['clients'])):,}")
            rows.append([about.metric.replace("_", " "), *name, *cells, clients])
    if not rows:
        return ""
    best = "; the best is bold" if any(about.may_mark for about in further(subject)) else ""
    over = "; ± over seeds" if subject.seeds > 1 else ""
    split = capital(SPLIT_NAMES[subject.split])
    caption = f"{split} examples of each client, after the last round{over}{best}"
    head = ["Metric", *(["Method"] if several else []), "Mean over clients", "Worst 10 %", "Clients measured"]
    return section("More metrics", Table(head, rows).html(caption), *map(note, metric_remarks(subject)))


# --- classes ------------------------------------------------------------------------------------------------------


def class_table(runs: Sequence[RunView]) -> str:
    """The section on classes of a page about a single run; empty for several runs or fewer than two classes."""
    by_split: Mapping[str, Sequence[Mapping[str, Any]]] = runs[0].info.get("by_class") or {}
    split = next((split for split in reversed(SPLITS) if split in by_split), None)
    if len(runs) != 1 or split is None or len(by_split[split]) < 2:
        return ""
    rows: list[Row] = []
    for entry in by_split[split]:
        counts = [Value(f"{entry[key]:,}") for key in ("rows", "clients")]
        shares = [entry["accuracy"], entry["worst"]]
        bars = [Value("–") if share is None else bar(percent(share), share) for share in shares]
        rows.append([str(entry["class"]), *counts, *bars])
    accuracies = ["accuracy over examples", "accuracy at the worst client"]
    head = ["Class", f"{split} examples", "clients with some", *accuracies]
    group = f" of {counted(len(runs[0].client_ids), 'honest client')}" if runs[0].whole is not None else ""
    caption = f"Accuracy by class, {split} examples{group}"
    return section("Class by class", Table(head, rows).html(caption))


# --- differences to a baseline, over equal seeds ------------------------------------------------------------------

STATISTICS = ("mean", "worst10", "best10", "variance")
"""The statistics that are compared."""


class Differences(NamedTuple):
    """A method minus the baseline.

    Attributes:
      by: statistic -> paired difference.
      p: statistic -> the p value of that difference, raised for the number of comparisons (Holm).
      gains: the clients that are better served than by the baseline at every seed, and those worse served at every
        seed; None where the runs do not have the same clients.
    """

    by: Mapping[str, PairedDifference]
    p: Mapping[str, float]
    gains: tuple[int, int] | None


def differences(
    runs: Mapping[str, Sequence[RunView]], baseline: str, split: str, metric: str
) -> dict[str, Differences]:
    """Each method against the baseline, without methods that have other seeds or a statistic that is not finite.

    Args:
      runs: method -> its runs, one for each seed, in the order of the seeds.
      baseline: one of the methods.
      split: where the statistics are from.
      metric: what they are of.
    """
    base = runs[baseline]
    values: dict[str, dict[str, NDArray]] = {}
    for name, views in runs.items():
        if _seeds_of(views) == _seeds_of(base):
            stats = [statistics(run, split, metric) for run in views]
            values[name] = {key: np.array([by_key[key] for by_key in stats]) for key in STATISTICS}
    # A mean over fewer seeds would be compared with another mean, so one lost seed takes the method out.
    values = {name: by for name, by in values.items() if all(np.isfinite(x).all() for x in by.values())}
    if baseline not in values:
        return {}
    against = values.pop(baseline)
    paired = {
        name: {key: paired_difference(by[key], against[key]) for key in STATISTICS}
        for name, by in values.items()
    }
    p = {key: holm({name: by[key].p for name, by in paired.items()}) for key in STATISTICS}
    return {
        name: Differences(
            by, {key: p[key][name] for key in by}, _consistent_gains(runs[name], base, split, metric)
        )
        for name, by in paired.items()
    }


def difference_text(difference: PairedDifference, statistic: str, metric: str) -> str:
    """The mean and its interval, such as ``+1.75 [+0.23, +3.27]``."""
    scale = factor(statistic, metric)
    mean, low, high = (
        ("+" if x > 0 else "") + number(scale * x, 3)
        for x in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} [{low}, {high}]"


def gains_text(gains: tuple[int, int] | None) -> str:
    """How many clients are better and how many are worse served, such as ``12 / 3``; a dash where it is unknown."""
    return "–" if gains is None else f"{gains[0]} / {gains[1]}"


def _seeds_of(runs: Sequence[RunView]) -> list[object]:
    return [run.info.get("seed") for run in runs]


def _consistent_gains(
    runs: Sequence[RunView], base: Sequence[RunView], split: str, metric: str
) -> tuple[int, int] | None:
    if len({clients_of(run) for run in (*runs, *base)}) > 1:
        return None
    ours, theirs = (np.array([client_values(run, split, metric) for run in part]) for part in (runs, base))
    gain = ours - theirs if is_higher_better(metric) else theirs - ours
    return int(np.sum(np.all(gain > 0, axis=0))), int(np.sum(np.all(gain < 0, axis=0)))


_MOST_PAIRED = 5


def difference_table(subject: Comparison, baseline: str | None = None) -> str:
    """How far each method is from the baseline (None: the first method), with intervals; for several seeds."""
    runs = {method.name: method.runs for method in subject.methods if method.is_sound}
    base = subject.names[0] if baseline is None else baseline
    if subject.obstacles or subject.seeds < 2 or base not in runs:
        return ""
    paired = differences(runs, base, subject.split, subject.metric)
    if not paired:
        return ""
    rows: list[Row] = [
        [name, *_cells(difference, subject.metric, len(paired), p=True), Value(gains_text(difference.gains))]
        for name, difference in paired.items()
    ]
    least = least_pairs(len(rows))
    caption = f"{subject.quantity} minus that of {base}{_points(subject)}, over {subject.covered.text}"
    words = (word for name in COMPARED.values() for word in (name, "p"))
    head = ["Method", *words, "Clients better / worse"]
    # Of n signs, the two extreme choices are as far from 0 as what was seen: p is at least 2 of 2^n.
    floor = min(1.0, len(rows) * 2.0 ** (1 - subject.seeds))
    few = (
        f", so no difference can be significant: use at least {least} seeds" if subject.seeds < least else ""
    )
    remark = (
        "Differences at equal seeds with their 95 % interval (Student's t), each for itself. If an interval contains "
        f"0, the data do not show a difference. p: exact test by signs, raised for {counted(len(rows), 'comparison')} "
        f"(Holm); with {subject.seeds} seeds it is never below {number(floor, 2)}{few}. Clients better / worse: those "
        "that are better, or worse, served at every seed."
    )
    made = Table(head, rows).html(capital(caption + _bold(subject, least)))
    return section("Is the difference real?", made, note(remark), _other_pairs(runs, base, subject))


def _other_pairs(runs: Mapping[str, Sequence[RunView]], base: str, subject: Comparison) -> str:
    """The differences between the other methods, where they are few."""
    names = [name for name in runs if name != base]
    if not 2 <= len(names) <= _MOST_PAIRED:
        return ""
    rows, pairs = list[Row](), len(names) * (len(names) - 1) // 2
    for i, first in enumerate(names[:-1]):
        paired = differences({name: runs[name] for name in names[i:]}, first, subject.split, subject.metric)
        for name, difference in paired.items():
            rows.append([f"{name} minus {first}", *_cells(difference, subject.metric, pairs)])
    if not rows:
        return ""
    caption = f"Among the other methods{_points(subject)}{_bold(subject, least_pairs(pairs))}"
    return Table(["Methods", *COMPARED.values()], rows).html(caption)


def _points(subject: Comparison) -> str:
    return ", in percentage points (variance: %²)" if subject.is_share else ""


def _bold(subject: Comparison, least: int) -> str:
    return "" if subject.seeds < least else "; bold: the interval leaves out 0"


def _cells(difference: Differences, metric: str, pairs: int, *, p: bool = False) -> list[Value | Cell]:
    """Mean and interval of each statistic, bold where one of so many pairs may be marked; with ``p`` its p value."""
    cells: list[Value | Cell] = []
    for key in COMPARED:
        by = difference.by[key]
        mean, interval = difference_text(by, key, metric).split(" ", 1)
        text = f'{escape(mean)} <span class="interval">{escape(interval)}</span>'
        cells.append(Cell(text, "number best" if by.may_be_marked(pairs) else "number"))
        cells += [Value(number(difference.p[key], 2))] if p else []
    return cells
