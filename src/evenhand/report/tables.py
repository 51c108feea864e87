"""The tables of a report: statistics over clients, further metrics, classes, differences to a baseline, communication.

They say what each statistic is called, how it is shown, and which value is the best; for several seeds, how far each
method is from a baseline and how sure one can be of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.evaluation import SPLIT_NAMES, SPLITS, PairedDifference, holm, least_pairs, paired_difference
from evenhand.report import formatting
from evenhand.report._comparison import Comparison, Method, clients_of, further, metric_remarks
from evenhand.report._view import RunView, direction
from evenhand.report.formatting import COMPARED, Cell, Row, Table, Value, bar, capital, escape, note, number
from evenhand.text import counted, extent

# What other packages take; the other names are for this package.
__all__ = [
    "COMMUNICATION",
    "STATISTICS",
    "Differences",
    "communication",
    "communication_line",
    "difference_text",
    "differences",
    "gains_text",
]

NDArray = npt.NDArray[np.float64]


# --- statistics over clients --------------------------------------------------------------------------------------


class Statistic(NamedTuple):
    """One row of the summary.

    Attributes:
      key: as in :func:`~evenhand.evaluation.summarize` or :func:`~evenhand.evaluation.summarize_classes`.
      name: as on the page.
      meaning: the explanation on the page.
      kind: how it is shown: a ``value`` of the metric, a ``spread`` of values, its ``square``, or else the
        unit of a plain number.
    """

    key: str
    name: str
    meaning: str
    kind: str = "value"


_SUMMARY = (
    Statistic("mean", "Mean over clients", "every client counts alike"),
    Statistic(
        "weighted_mean", "Mean over examples", "every example counts alike, so large clients count more"
    ),
    Statistic("worst10", "Worst 10 % of clients", "mean of the worst tenth, at least one client"),
    Statistic("best10", "Best 10 % of clients", "mean of the best tenth, at least one client"),
    Statistic("min", "Lowest", "lowest value of a client"),
    Statistic("p10", "10th percentile", "a tenth of the clients are below"),
    Statistic("p25", "25th percentile", "a quarter of the clients are below"),
    Statistic("p50", "Median", "half of the clients are below"),
    Statistic("p75", "75th percentile", "three quarters of the clients are below"),
    Statistic("p90", "90th percentile", "nine tenths of the clients are below"),
    Statistic("max", "Highest", "highest value of a client"),
    Statistic("std", "Standard deviation", "over clients, population", "spread"),
    Statistic("variance", "Variance", "over clients, population; in %² for percentages", "square"),
    Statistic("angle", "Angle to all-equal", "between the clients' values and a vector of equal values", "°"),
    Statistic("kl", "KL to uniform", "divergence of the normalised values from equal shares", " nats"),
    Statistic("entropy", "Entropy", "of the normalised values; ln(clients) when all are equal", " nats"),
    Statistic("jain", "Jain's index", "1 when all values are equal, 1 / clients when one has everything", ""),
    Statistic(
        *("class_spread", "Spread over a client's classes"),
        "standard deviation of a client's accuracies over the classes that it has, mean over clients",
        "spread",
    ),
    Statistic(
        "class_spread_std", "Its spread over clients", "standard deviation of that over clients", "spread"
    ),
    Statistic("worst_class", "Worst class of a client", "lowest accuracy of any class at any client"),
    Statistic(
        *("error_p90", "Error, 90th percentile"),
        "nine tenths of the clients err less; the error is 1 minus the value, or the value if lower is better",
    ),
    Statistic(
        *("error_superquantile90", "Error, worst 10 %"),
        "mean error of exactly a tenth of the clients; the client at the boundary counts in part",
    ),
    Statistic(
        *("weighted_error_p90", "Error over examples, 90th percentile"),
        "every example counts alike; papers report it for training examples",
    ),
    Statistic(
        *("weighted_error_superquantile90", "Error over examples, worst 10 %"),
        "mean error of the worst clients that together have exactly a tenth of the examples",
    ),
    Statistic("clients", "Clients with examples", "clients without examples in the split do not count", ""),
)

SUMMARY = {row.key: row for row in _SUMMARY}
"""The rows of the summary, from top to bottom."""


def ranking(subject: Comparison) -> str:
    """One row per method, with the statistics that decide between them."""
    stats = [method.statistics(subject.split, subject.metric) for method in subject.methods]
    means = [method.means(subject.split, subject.metric) for method in subject.methods]
    *barred, last = formatting.SERVED
    top = formatting.full((by_key[key] for by_key in means for key in barred), is_share=subject.is_share)
    columns = {key: _column(subject, key, stats) for key in formatting.SERVED}
    several, rows = subject.seeds > 1, list[Row]()
    for i, method in enumerate(subject.methods):
        shown = [(columns[key][i], means[i][key] / top) for key in barred]
        bars = [bar(cell.joined(), share, i, is_marked=cell.is_marked) for cell, share in shown]
        seeds = [Value(str(len(method.runs)))] if several else []
        rows.append([Cell(formatting.swatch(i, method.name)), *seeds, *bars, columns[last][i]])
    head = ["Method", *(["Seeds"] if several else []), *formatting.SERVED.values()]
    best = "; the best of each column is bold" if subject.may_mark else ""
    per_client = subject.worded("per client")
    caption = f"{capital(subject.quantity)} {per_client}, over {subject.covered.text}{best}"
    return Table(list(map(subject.worded, head)), rows).html(caption)


def summary(subject: Comparison) -> str:
    """All statistics of all metrics: a column per method or, for a single method, per split."""
    several, tables = len(subject.methods) > 1, list[tuple[str, list[str]]]()
    for metric in (subject.metric, *_further_metrics(subject)):
        splits = _splits(subject, metric)
        tables += [(metric, [split]) for split in splits] if several else [(metric, splits)]
    first, *others = tables
    parts = [_statistics_table(subject, *first)]
    for metric, splits in others:
        place = f", {SPLIT_NAMES[splits[0]]} examples" if several else ""
        name = f"The same for: {metric.replace('_', ' ')}{place}"
        parts.append(formatting.details(name, _statistics_table(subject, metric, splits)))
    rows = _available_statistics([method.statistics(first[1][0], first[0]) for method in subject.methods])
    terms = [
        subject.worded(f"<dt>{escape(row.name)}</dt><dd>{escape(capital(row.meaning))}.</dd>\n")
        for row in rows
    ]
    parts.append(formatting.details("What these numbers mean", f'<dl class="terms">\n{"".join(terms)}</dl>'))
    return formatting.section(subject.worded("How evenly the clients are served"), *parts)


def _statistics_table(subject: Comparison, metric: str, splits: Sequence[str]) -> str:
    """A column per method and split; a comparison has one split only."""
    stats = [method.statistics(split, metric) for split in splits for method in subject.methods]
    about = subject._replace(metric=metric, split=splits[0])
    rows = [
        [subject.worded(row.name), *_column(about, row.key, stats)] for row in _available_statistics(stats)
    ]
    is_last = all(run.info.get("kept") is None for run in subject.runs)
    at = "the end of the run" if is_last else "the kept round"
    per_client = subject.worded("per client")
    caption, head = f"{metric.replace('_', ' ')} {per_client} at {at}", subject.names
    if len(subject.methods) > 1:
        caption = f"{SPLIT_NAMES[splits[0]]} {caption}s, over {about.covered.text}"
        caption += "; the best is bold" if subject.may_mark else ""
    else:
        caption += ", over honest clients" if any(run.whole is not None for run in subject.runs) else ""
        head = [f"{SPLIT_NAMES[s]} examples" for s in splits]
    return Table(["", *head], rows).html(capital(caption), "numbers narrow")


def statistic_rows(stats: Mapping[str, float], metric: str) -> list[list[str]]:
    """The name and the text of each statistic that is known."""
    rows = _available_statistics([stats])
    return [[row.name, _value(stats[row.key], row.key, metric).joined()] for row in rows]


def _available_statistics(stats: Sequence[Mapping[str, object]]) -> list[Statistic]:
    """The statistics that some run has: not all metrics, nor all saved runs, have those over classes."""
    return [row for row in SUMMARY.values() if any(row.key in by_key for by_key in stats)]


def _splits(subject: Comparison, metric: str) -> list[str]:
    """The splits that some run has numbers for, beginning with the report's."""
    measured = [s for s in SPLITS if any(metric in run.clients.get(s, {}) for run in subject.runs)]
    filled = [s for s in measured if any(any(run.sizes.get(s, [1])) for run in subject.runs)]
    return sorted(filled or measured, key=lambda split: split != subject.split)


def _further_metrics(subject: Comparison) -> list[str]:
    """The further metrics that all runs have, in the order of the first run."""
    by_run = [[name for metrics in run.clients.values() for name in metrics] for run in subject.runs]
    names = dict.fromkeys(name for name in by_run[0] if name != subject.metric)
    return [name for name in names if all(name in names for names in by_run)]


_UNITS = {"value": "\u202f%", "spread": " points", "square": " %²"}
"""What follows a share."""


def _value(values: npt.ArrayLike, key: str, metric: str) -> Value:
    """A statistic of a method: the mean of its runs with their deviation."""
    mean, kind = float(np.mean(np.asarray(values, np.float64))), SUMMARY[key].kind
    scale = formatting.factor(key, metric) if kind in _UNITS else 1.0
    unit = kind if kind not in _UNITS else _UNITS[kind] if scale > 1 else ""
    shown = formatting.over_seeds(values, scale)
    if not math.isfinite(mean):
        return shown
    if key == "clients":
        return Value(extent(np.atleast_1d(np.asarray(values))))
    texts = {"\u202f%": f"{scale * mean:.1f}", " points": number(scale * mean, 3)}
    return shown._replace(text=texts.get(unit, shown.text), unit=unit)


def _column(subject: Comparison, key: str, stats: Sequence[Mapping[str, NDArray]]) -> list[Value]:
    """A statistic of each method, the best marked (:meth:`Comparison.winners`)."""
    values = [by_key.get(key, np.array([math.nan])) for by_key in stats]
    shown = [_value(x, key, subject.metric) for x in values]
    if key == "clients" or len(subject.methods) < 2:
        return shown
    best = subject.winners(values, [v.text for v in shown], direction(key, subject.metric))
    return [v._replace(is_marked=i in best) for i, v in enumerate(shown)]


# --- further metrics ----------------------------------------------------------------------------------------------


def metric_section(subject: Comparison) -> str:
    """The section of the page; empty where no further metric was asked for."""
    several, rows = len(subject.methods) > 1, list[Row]()
    for about in further(subject):
        stats = [method.statistics(about.split, about.metric) for method in about.methods]
        columns = [_column(about, key, stats) for key in ("mean", "worst10")]
        for i, (method, *cells) in enumerate(zip(about.methods, *columns, strict=True)):
            name = [Cell(formatting.swatch(i, method.name), "number")] if several else []
            clients = Value(extent(stats[i]["clients"]))
            rows.append([about.metric.replace("_", " "), *name, *cells, clients])
    if not rows:
        return ""
    best = "; the best is bold" if any(about.may_mark for about in further(subject)) else ""
    over = "; ± over seeds" if subject.seeds > 1 else ""
    split = capital(SPLIT_NAMES[subject.split])
    each_client = subject.worded("each client")
    caption = f"{split} examples of {each_client}, after the last round{over}{best}"
    head = ["Metric", *(["Method"] if several else []), "Mean over clients", "Worst 10 %", "Clients measured"]
    table = Table(list(map(subject.worded, head)), rows).html(caption)
    return formatting.section("More metrics", table, *map(note, metric_remarks(subject)))


# --- classes ------------------------------------------------------------------------------------------------------


def class_table(subject: Comparison) -> str:
    """The section on classes of a page about a single run; empty for several runs or fewer than two classes."""
    runs = subject.runs
    by_split: Mapping[str, Sequence[Mapping[str, Any]]] = runs[0].info.get("by_class") or {}
    split = next((split for split in reversed(SPLITS) if split in by_split), None)
    if len(runs) != 1 or split is None or len(by_split[split]) < 2:
        return ""
    rows: list[Row] = []
    for entry in by_split[split]:
        counts = [Value(f"{entry[key]:,}") for key in ("rows", "clients")]
        shares = [entry["accuracy"], entry["worst"]]
        bars = [Value("–") if x is None else bar(formatting.percent(x), x) for x in shares]
        rows.append([str(entry["class"]), *counts, *bars])
    accuracies = ["accuracy over examples", subject.worded("accuracy at the worst client")]
    head = ["Class", f"{split} examples", subject.worded("clients with some"), *accuracies]
    group = f" of {counted(len(runs[0].client_ids), 'honest client')}" if runs[0].whole is not None else ""
    caption = f"Accuracy by class, {split} examples{group}"
    return formatting.section("Class by class", Table(head, rows).html(caption))


# --- differences to a baseline, over equal seeds ------------------------------------------------------------------

STATISTICS = ("mean", "worst10", "best10", "variance")
"""The statistics that are compared."""


class Differences(NamedTuple):
    """A method minus the baseline.

    Attributes:
      by: statistic -> paired difference.
      p: statistic -> the p value of that difference, raised for the number of comparisons (Holm).
      gains: the clients that are better served than by the baseline at every seed, and those worse served at every
        seed; None where the runs' clients differ in their ids or numbers of examples.
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
    methods = {name: Method(name, tuple(views)) for name, views in runs.items()}
    seeds = {name: [run.info.get("seed") for run in views] for name, views in runs.items()}
    values: dict[str, dict[str, NDArray]] = {}
    for name, method in methods.items():
        stats = method.statistics(split, metric)
        # A mean over fewer seeds would be compared with another mean, so one lost seed takes the method out.
        if seeds[name] == seeds[baseline] and all(np.isfinite(stats[key]).all() for key in STATISTICS):
            values[name] = stats
    if baseline not in values:
        return {}
    base, compared = values.pop(baseline), dict[str, Differences]()
    paired = {
        name: {key: paired_difference(stats[key], base[key]) for key in STATISTICS}
        for name, stats in values.items()
    }
    p = {key: holm({name: by[key].p for name, by in paired.items()}) for key in STATISTICS}
    for name, by in paired.items():
        gains = _consistent_gains(methods[name], methods[baseline], split, metric)
        compared[name] = Differences(by, {key: p[key][name] for key in by}, gains)
    return compared


def difference_text(difference: PairedDifference, statistic: str, metric: str) -> str:
    """The mean and its interval, such as ``+1.75 [+0.23, +3.27]``."""
    scale, ends = formatting.factor(statistic, metric), (difference.mean, difference.low, difference.high)
    mean, low, high = (("+" if x > 0 else "") + number(scale * x, 3) for x in ends)
    return f"{mean} [{low}, {high}]"


def gains_text(gains: tuple[int, int] | None) -> str:
    """How many clients are better and how many are worse served, such as ``12 / 3``; a dash where it is unknown."""
    return "–" if gains is None else f"{gains[0]} / {gains[1]}"


def _consistent_gains(method: Method, base: Method, split: str, metric: str) -> tuple[int, int] | None:
    if len({clients_of(run) for run in (*method.runs, *base.runs)}) > 1:
        return None
    gain = direction("mean", metric) * (method.clients(split, metric) - base.clients(split, metric))
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
    rows, seeds, least = list[Row](), subject.seeds, least_pairs(len(paired))
    for name, by in paired.items():
        rows.append([name, *_cells(by, subject.metric, len(paired), p=True), Value(gains_text(by.gains))])
    caption = f"{subject.quantity} minus that of {base}{_points(subject)}, over {subject.covered.text}"
    words = (word for name in COMPARED.values() for word in (name, "p"))
    head = ["Method", *map(subject.worded, (*words, "Clients better / worse"))]
    # Of n signs, the two extreme choices are as far from 0 as what was seen: p is at least 2 of 2^n.
    floor = min(1.0, len(rows) * 2.0 ** (1 - seeds))
    few = f", so no difference can be significant: use at least {least} seeds" if seeds < least else ""
    remark = (
        "Differences at equal seeds with their 95 % interval (Student's t), not corrected for multiple "
        "comparisons. If an interval contains 0, the data do not show a difference. "
        f"p: exact test by signs, raised for {counted(len(rows), 'comparison')} "
        f"(Holm); with {seeds} seeds it is never below {number(floor, 2)}{few}. "
    )
    remark += subject.worded(
        "Clients better / worse: clients that are served better, or worse, at every seed."
    )
    parts = [Table(head, rows).html(capital(caption + _bold(subject, least))), note(remark)]
    return formatting.section("Is the difference real?", *parts, _other_pairs(runs, base, subject))


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
    return Table(["Methods", *map(subject.worded, COMPARED.values())], rows).html(caption)


def _points(subject: Comparison) -> str:
    return ", in percentage points (variance: %²)" if subject.is_share else ""


def _bold(subject: Comparison, least: int) -> str:
    return "" if subject.seeds < least else "; bold: the interval excludes 0"


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


# --- communication ------------------------------------------------------------------------------------------------

COMMUNICATION = "What a client receives (down) and sends (up) in a round, and all clients in the whole run"
"""The caption of :func:`communication`."""


def communication(subject: Comparison, *, brief: bool = False) -> Table | None:
    """What clients have received and sent, means over seeds; None where no run has counted it.

    Args:
      subject: the runs.
      brief: bytes and secure sums alone.
    """
    rows = list[Row]()
    for method in subject.methods:
        counts = [run.info.get("communication") for run in method.runs]
        if not all(counts):  # saved by a version that did not count it
            continue

        def mean(*path: str, counts: Sequence[Any] = counts) -> float:
            return float(np.mean([reduce(getitem, path, count) for count in counts]))

        once, ways = "per_client_and_round", ("down", "up")
        cells = [f"{mean(once, way, 'numbers'):,.0f}" for way in ways] if not brief else []
        cells += [formatting.size(mean(part, way, "bytes")) for part in (once, "total") for way in ways]
        names = ("secure_sums",) if brief else ("rounds", "took_part", "secure_sums")
        cells += [f"{mean(name):,.0f}" for name in names]
        rows.append([method.name, *map(Value, cells)])
    head = ["Down", "Up", "Down in all", "Up in all"]
    head = (
        [*head, "Secure sums"]
        if brief
        else ["Numbers down", "Numbers up", *head, "Rounds", "Uploads", "Secure sums"]
    )
    return Table(["Method", *head], rows) if rows else None


def communication_line(run: RunView) -> str:
    """The same of one run in a sentence; empty where it was not counted, or nothing was sent."""
    count = run.info.get("communication")
    if not count or not count["took_part"]:
        return ""
    once, total = (
        [formatting.size(count[part][way]["bytes"]) for way in ("down", "up")]
        for part in ("per_client_and_round", "total")
    )
    sums = f", in {counted(count['secure_sums'], 'secure sum')}" if count["secure_sums"] else ""
    if left_out := count["left_out"]:
        sums += f"; {left_out:,} times a client was drawn and sent nothing, which is not counted"
    return (
        f"Communication: a client received {once[0]} and sent {once[1]} in a round; all clients together received "
        f"{total[0]} and sent {total[1]}{sums}."
    )
