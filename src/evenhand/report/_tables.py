"""The report's tables of statistics: what each is called, how it is shown, and which value is the best."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.evaluation import SPLIT_NAMES, SPLITS, is_higher_better, is_share
from evenhand.report.comparison import Comparison
from evenhand.report.html import Cell, bar, details, escape, swatch, table
from evenhand.report.numbers import number, spread, value

__all__ = ["ranking", "shown", "summary"]

NDArray = npt.NDArray[np.float64]


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
        "weighted_mean",
        "Mean over examples",
        "value",
        0,
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
        "angle", "Angle to all-equal", "°", -1, "between the clients' values and a vector of equal values"
    ),
    Statistic("kl", "KL to uniform", "nats", -1, "divergence of the normalised values from equal shares"),
    Statistic("entropy", "Entropy", "nats", 1, "of the normalised values; ln(clients) when all are equal"),
    Statistic(
        "jain", "Jain's index", "", 1, "1 when all values are equal, 1 / clients when one has everything"
    ),
    Statistic(
        "class_spread",
        "Spread over a client's classes",
        "spread",
        -1,
        "standard deviation of a client's accuracies on the classes that it has, mean over clients",
    ),
    Statistic(
        "class_spread_std", "Its spread over clients", "spread", -1, "standard deviation of that over clients"
    ),
    Statistic(
        "worst_class", "Worst class of a client", "value", 0, "lowest accuracy of any class at any client"
    ),
    Statistic(
        "error_p90",
        "Error, 90th percentile",
        "value",
        -1,
        "nine tenths of the clients err less; the error is 1 minus the value, or the value where less is better",
    ),
    Statistic(
        "error_superquantile90",
        "Error, worst 10 %",
        "value",
        -1,
        "mean error of exactly a tenth of the clients, the one at the boundary counted in part",
    ),
    Statistic(
        "weighted_error_p90",
        "Error over examples, 90th percentile",
        "value",
        -1,
        "every example counts alike; papers report it for training examples",
    ),
    Statistic(
        "weighted_error_superquantile90",
        "Error over examples, worst 10 %",
        "value",
        -1,
        "mean error of the worst clients that together have exactly a tenth of the examples",
    ),
    Statistic(
        "clients", "Clients with examples", "", 0, "clients without examples in the split do not count"
    ),
)


def ranking(subject: Comparison) -> str:
    """One row per method, with the statistics that decide between them."""
    metric = subject.metric
    stats = [method.statistics(subject.split, metric) for method in subject.methods]
    rows_of = {row.key: row for row in _SUMMARY}
    keys = ("mean", "worst10", "best10", "std")
    means = [float(np.mean(s[key])) for s in stats for key in keys[:3]]
    top = 1.0 if is_share(metric) else max([x for x in means if math.isfinite(x)] or [1.0])
    columns: list[list[Cell]] = []
    for key in keys:
        values = [s[key] for s in stats]
        texts = [_over_seeds(x, rows_of[key], metric) for x in values]
        best = _best(subject, values, rows_of[key])
        cells = [
            Cell(escape(text), "number")
            if key == "std"
            else bar(text, float(np.mean(x)) / max(top, 1e-30), i)
            for i, (text, x) in enumerate(zip(texts, values, strict=True))
        ]
        columns.append(
            [c._replace(classes=f"{c.classes} best") if i in best else c for i, c in enumerate(cells)]
        )
    several = subject.seeds > 1
    rows: list[list[str | Cell]] = []
    for i, (method, *cells) in enumerate(zip(subject.methods, *columns, strict=True)):
        seeds = [str(len(method.runs))] if several else []
        rows.append([Cell(swatch(i) + escape(method.name)), *(Cell(n, "number") for n in seeds), *cells])
    head = [
        "Method",
        *(["Seeds"] if several else []),
        "Mean over clients",
        "Worst 10 %",
        "Best 10 %",
        "Spread (std)",
    ]
    best = "; the best of each column is bold" if subject.may_mark else ""
    caption = f"{subject.what[:1].upper()}{subject.what[1:]} per client, over {subject.covered.text}{best}"
    return table(caption, head, rows, "numbers")


def shown(stats: Mapping[str, float], metric: str) -> list[list[str]]:
    """The name and the text of each statistic that is known."""
    return [[row.name, _shown(stats[row.key], row, metric)] for row in _measured([stats])]


def summary(subject: Comparison) -> str:
    """All statistics of all metrics: a column per method or, for a single method, per split."""
    several = len(subject.methods) > 1
    first, *others = [
        (metric, splits)
        for metric in (subject.metric, *_others(subject))
        for splits in (
            ([split] for split in _splits(subject, metric)) if several else [_splits(subject, metric)]
        )
    ]
    parts = ["<section>\n<h2>How evenly the clients are served</h2>", _statistics(subject, *first)]
    for metric, splits in others:
        where = f", {SPLIT_NAMES[splits[0]]} examples" if several else ""
        parts.append(
            details(f"The same for: {metric.replace('_', ' ')}{where}", _statistics(subject, metric, splits))
        )
    found = [method.statistics(first[1][0], first[0]) for method in subject.methods]
    terms = "\n".join(
        f"<dt>{escape(row.name)}</dt><dd>{escape(row.meaning[:1].upper() + row.meaning[1:])}.</dd>"
        for row in _measured(found)
    )
    parts.append(details("What these numbers mean", f'<dl class="terms">\n{terms}\n</dl>'))
    return "\n".join([*parts, "</section>"])


def _statistics(subject: Comparison, metric: str, splits: Sequence[str]) -> str:
    """A column per method and split; a comparison has one split only."""
    found = [method.statistics(split, metric) for split in splits for method in subject.methods]
    several = len(subject.methods) > 1
    about = subject._replace(metric=metric, split=splits[0])
    rows: list[list[str | Cell]] = []
    for row in _measured(found):
        values = [s.get(row.key, np.array([math.nan])) for s in found]
        best = _best(about, values, row) if several else set[int]()
        texts = [escape(_over_seeds(x, row, metric)) for x in values]
        cells = [Cell(text, "number best" if i in best else "number") for i, text in enumerate(texts)]
        rows.append([row.name, *cells])
    name = metric.replace("_", " ")
    if several:
        caption = (
            f"{SPLIT_NAMES[splits[0]]} {name} per client at the end of the runs, over {about.covered.text}"
        )
        caption += "; the best is bold" if subject.may_mark else ""
        head = list(subject.names)
    else:
        caption = f"{name} per client at the end of the run"
        caption += ", over honest clients" if any(run.whole is not None for run in subject.runs) else ""
        head = [f"{SPLIT_NAMES[s]} examples" for s in splits]
    return table(caption[:1].upper() + caption[1:], ["", *head], rows, "numbers narrow")


def _measured(found: Sequence[Mapping[str, object]]) -> list[Statistic]:
    """The statistics that some run has: not all metrics, nor all saved runs, have those over classes."""
    return [row for row in _SUMMARY if any(row.key in known for known in found)]


def _splits(subject: Comparison, metric: str) -> list[str]:
    """The splits that some run has numbers for, beginning with the report's."""
    known = [s for s in SPLITS if any(metric in run.clients.get(s, {}) for run in subject.runs)]
    filled = [s for s in known if any(any(run.sizes.get(s, [1])) for run in subject.runs)]
    return sorted(filled or known, key=lambda split: split != subject.split)


def _others(subject: Comparison) -> list[str]:
    """The further metrics that all runs have, in the order of the first run."""
    names = [metric for metrics in subject.runs[0].clients.values() for metric in metrics]
    return [
        name
        for name in dict.fromkeys(names)
        if name != subject.metric
        and all(any(name in metrics for metrics in run.clients.values()) for run in subject.runs)
    ]


def _shown(x: float, row: Statistic, metric: str) -> str:
    if math.isnan(x):
        return number(x)
    if row.key == "clients":
        return f"{int(x):,}"
    if row.kind == "value":
        return value(x, metric)
    if row.kind == "spread":
        return spread(x, metric)
    if row.kind == "square":
        return f"{number(1e4 * x)} %²" if is_share(metric) else number(x)
    return f"{number(x)}{'' if row.kind == '°' else ' '}{row.kind}".strip()


def _over_seeds(values: NDArray, row: Statistic, metric: str) -> str:
    """The mean over seeds and, for several, their standard deviation."""
    text = _shown(float(np.mean(values)), row, metric)
    if len(values) < 2 or not np.isfinite(values).all() or row.key == "clients":
        return text
    share = {"value": 100.0, "spread": 100.0, "square": 1e4}.get(row.kind, 1.0) if is_share(metric) else 1.0
    figure = re.match(r"[\d.,e−-]+", text)
    end = figure.end() if figure else len(text)
    deviation = float(np.std(values, ddof=1))
    if deviation < 1e-12 * float(np.max(np.abs(values))):
        deviation = 0.0  # equal values, but for rounding
    return f"{text[:end]} ± {number(share * deviation, 2)}{text[end:]}"


def _best(subject: Comparison, values: Sequence[NDArray], row: Statistic) -> set[int]:
    """Which methods are best in a statistic; see :meth:`Comparison.winners`."""
    if row.key == "clients":
        return set()
    sign = row.even or (1 if is_higher_better(subject.metric) else -1)
    return subject.winners(values, [_shown(float(np.mean(x)), row, subject.metric) for x in values], sign)
