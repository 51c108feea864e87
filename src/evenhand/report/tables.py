"""The tables of a report: statistics over clients, further metrics, classes, and differences to a baseline.

They say what each statistic is called, how it is shown, and which value is the best; for several seeds, how far each
method is from a baseline and how sure one can be of it.
"""

from __future__ import annotations

import math
import re
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
    Cell,
    bar,
    details,
    escape,
    factor,
    number,
    percent,
    plural,
    spread,
    swatch,
    table,
    value,
)
from evenhand.text import counted

__all__ = [
    "STATISTICS",
    "Differences",
    "class_table",
    "difference_table",
    "difference_text",
    "differences",
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
        texts = [_over_seeds_text(x, rows_of[key], metric) for x in values]
        best = _best_methods(subject, values, rows_of[key])
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


def summary(subject: Comparison) -> str:
    """All statistics of all metrics: a column per method or, for a single method, per split."""
    several = len(subject.methods) > 1
    first, *others = [
        (metric, splits)
        for metric in (subject.metric, *_further_metrics(subject))
        for splits in (
            ([split] for split in _splits(subject, metric)) if several else [_splits(subject, metric)]
        )
    ]
    parts = ["<section>\n<h2>How evenly the clients are served</h2>", _statistics_table(subject, *first)]
    for metric, splits in others:
        where = f", {SPLIT_NAMES[splits[0]]} examples" if several else ""
        parts.append(
            details(
                f"The same for: {metric.replace('_', ' ')}{where}", _statistics_table(subject, metric, splits)
            )
        )
    found = [method.statistics(first[1][0], first[0]) for method in subject.methods]
    terms = "\n".join(
        f"<dt>{escape(row.name)}</dt><dd>{escape(row.meaning[:1].upper() + row.meaning[1:])}.</dd>"
        for row in _known_statistics(found)
    )
    parts.append(details("What these numbers mean", f'<dl class="terms">\n{terms}\n</dl>'))
    return "\n".join([*parts, "</section>"])


def _statistics_table(subject: Comparison, metric: str, splits: Sequence[str]) -> str:
    """A column per method and split; a comparison has one split only."""
    found = [method.statistics(split, metric) for split in splits for method in subject.methods]
    several = len(subject.methods) > 1
    about = subject._replace(metric=metric, split=splits[0])
    rows: list[list[str | Cell]] = []
    for row in _known_statistics(found):
        values = [s.get(row.key, np.array([math.nan])) for s in found]
        best = _best_methods(about, values, row) if several else set[int]()
        texts = [escape(_over_seeds_text(x, row, metric)) for x in values]
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


def statistic_rows(stats: Mapping[str, float], metric: str) -> list[list[str]]:
    """The name and the text of each statistic that is known."""
    return [[row.name, _statistic_text(stats[row.key], row, metric)] for row in _known_statistics([stats])]


def _known_statistics(found: Sequence[Mapping[str, object]]) -> list[Statistic]:
    """The statistics that some run has: not all metrics, nor all saved runs, have those over classes."""
    return [row for row in _SUMMARY if any(row.key in known for known in found)]


def _splits(subject: Comparison, metric: str) -> list[str]:
    """The splits that some run has numbers for, beginning with the report's."""
    known = [s for s in SPLITS if any(metric in run.clients.get(s, {}) for run in subject.runs)]
    filled = [s for s in known if any(any(run.sizes.get(s, [1])) for run in subject.runs)]
    return sorted(filled or known, key=lambda split: split != subject.split)


def _further_metrics(subject: Comparison) -> list[str]:
    """The further metrics that all runs have, in the order of the first run."""
    names = [metric for metrics in subject.runs[0].clients.values() for metric in metrics]
    return [
        name
        for name in dict.fromkeys(names)
        if name != subject.metric
        and all(any(name in metrics for metrics in run.clients.values()) for run in subject.runs)
    ]


def _statistic_text(x: float, row: Statistic, metric: str) -> str:
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


def _over_seeds_text(values: NDArray, row: Statistic, metric: str) -> str:
    """The mean over seeds and, for several, their standard deviation."""
    text = _statistic_text(float(np.mean(values)), row, metric)
    if len(values) < 2 or not np.isfinite(values).all() or row.key == "clients":
        return text
    share = {"value": 100.0, "spread": 100.0, "square": 1e4}.get(row.kind, 1.0) if is_share(metric) else 1.0
    figure = re.match(r"[\d.,e−-]+", text)
    end = figure.end() if figure else len(text)
    deviation = float(np.std(values, ddof=1))
    if deviation < 1e-12 * float(np.max(np.abs(values))):
        deviation = 0.0  # equal values, but for rounding
    return f"{text[:end]} ± {number(share * deviation, 2)}{text[end:]}"


def _best_methods(subject: Comparison, values: Sequence[NDArray], row: Statistic) -> set[int]:
    """Which methods are best in a statistic; see :meth:`Comparison.winners`."""
    if row.key == "clients":
        return set()
    sign = row.even or (1 if is_higher_better(subject.metric) else -1)
    return subject.winners(
        values, [_statistic_text(float(np.mean(x)), row, subject.metric) for x in values], sign
    )


# --- further metrics ----------------------------------------------------------------------------------------------


def metric_section(of: Comparison) -> str:
    """The section of the page; empty where no further metric was asked for."""
    abouts = further(of)
    if not abouts:
        return ""
    several = len(of.methods) > 1
    rows: list[list[str | Cell]] = []
    for about in abouts:
        stats = [method.statistics(about.split, about.metric) for method in about.methods]
        columns = [_metric_cells(about, [s[key] for s in stats]) for key in ("mean", "worst10")]
        for i, method in enumerate(about.methods):
            clients = Cell(f"{int(np.min(stats[i]['clients'])):,}", "number")
            names: list[str | Cell] = [about.metric.replace("_", " ")]
            names += [Cell(swatch(i) + escape(method.name), "number")] if several else []
            rows.append([*names, *(column[i] for column in columns), clients])
    best = "; the best is bold" if several and not of.obstacles else ""
    over = "; ± over seeds" if of.seeds > 1 else ""
    split = SPLIT_NAMES[of.split]
    caption = f"{split[:1].upper()}{split[1:]} examples of each client, after the last round{over}{best}"
    head = ["Metric", *(["Method"] if several else []), "Mean over clients", "Worst 10 %", "Clients measured"]
    notes = "".join(f'<p class="note">{escape(text)}</p>\n' for text in metric_remarks(of))
    body = table(caption, head, rows, "numbers")
    return f"<section>\n<h2>More metrics</h2>\n{body}\n{notes}</section>"


def _metric_cells(of: Comparison, values: Sequence[np.ndarray]) -> list[Cell]:
    """A statistic of each method, the best marked."""
    texts = [value(float(np.mean(x)), of.metric) for x in values]
    best = (
        of.winners(values, texts, 1 if is_higher_better(of.metric) else -1) if len(values) > 1 else set[int]()
    )
    scale = 100.0 if of.is_share else 1.0
    cells: list[Cell] = []
    for i, (x, text) in enumerate(zip(values, texts, strict=True)):
        over = f" ± {number(scale * float(np.std(x, ddof=1)), 2)}" if len(x) > 1 else ""
        cells.append(Cell(escape(text + over), "number best" if i in best else "number"))
    return cells


# --- classes ------------------------------------------------------------------------------------------------------


def class_table(runs: Sequence[RunView]) -> str:
    """The section on classes of a page about a single run; empty for several runs or fewer than two classes."""
    known: Mapping[str, Sequence[Mapping[str, Any]]] = runs[0].info.get("by_class") or {}
    split = next((split for split in reversed(SPLITS) if split in known), None)
    if len(runs) != 1 or split is None or len(known[split]) < 2:
        return ""
    rows = [
        [
            str(entry["class"]),
            Cell(f"{entry['rows']:,}", "number"),
            Cell(f"{entry['clients']:,}", "number"),
            *(
                Cell("–", "number") if entry[key] is None else bar(percent(entry[key]), entry[key])
                for key in ("accuracy", "worst")
            ),
        ]
        for entry in known[split]
    ]
    head = [
        "Class",
        f"{split} examples",
        "clients with some",
        "accuracy over examples",
        "accuracy at the worst client",
    ]
    whose = f"of {counted(len(runs[0].client_ids), 'honest client')}" if runs[0].whole is not None else ""
    body = table(f"Accuracy by class, {split} examples {whose}".strip(), head, rows, "numbers")
    return f"<section>\n<h2>Class by class</h2>\n{body}\n</section>"


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
    values = {
        name: [statistics(run, split, metric) for run in of]
        for name, of in runs.items()
        if _seeds_of(of) == _seeds_of(base)
    }
    values = {name: each for name, each in values.items() if _are_finite(each)}
    found = {
        name: {
            key: paired_difference(*([each[key] for each in values[method]] for method in (name, baseline)))
            for key in STATISTICS
        }
        for name in values
        if name != baseline and baseline in values
    }
    raised = {key: holm({name: by[key].p for name, by in found.items()}) for key in STATISTICS}
    return {
        name: Differences(
            by, {key: raised[key][name] for key in by}, _consistent_gains(runs[name], base, split, metric)
        )
        for name, by in found.items()
    }


def difference_text(of: PairedDifference, statistic: str, metric: str) -> str:
    """The mean and its interval, such as ``+1.75 [+0.23, +3.27]``."""
    mean, low, high = (factor(statistic, metric) * x for x in (of.mean, of.low, of.high))
    return f"{_signed(mean)} [{_signed(low)}, {_signed(high)}]"


def _signed(x: float) -> str:
    return ("+" if x > 0 else "") + number(x, 3)


def _are_finite(runs: Sequence[Mapping[str, float]]) -> bool:
    return all(np.isfinite(each[key]) for each in runs for key in STATISTICS)


def _seeds_of(runs: Sequence[RunView]) -> list[object]:
    return [run.info.get("seed") for run in runs]


def _consistent_gains(
    runs: Sequence[RunView], base: Sequence[RunView], split: str, metric: str
) -> tuple[int, int] | None:
    if len({clients_of(run) for run in (*runs, *base)}) > 1:
        return None
    sign = 1 if is_higher_better(metric) else -1
    gain = sign * np.array(
        [
            client_values(run, split, metric) - client_values(other, split, metric)
            for run, other in zip(runs, base, strict=True)
        ]
    )
    return int(np.sum(np.all(gain > 0, axis=0))), int(np.sum(np.all(gain < 0, axis=0)))


_MOST_PAIRED = 5

_COMPARED = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}


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
        for key in _COMPARED:
            by = difference.by[key]
            row += [
                _difference_cell(by, key, of.metric, len(found)),
                Cell(number(difference.p[key], 2), "number"),
            ]
        gains = "–" if difference.gains is None else f"{difference.gains[0]} / {difference.gains[1]}"
        rows.append([*row, Cell(gains, "number")])
    if not rows:
        return ""
    unit = ", in percentage points (variance: %²)" if is_share(of.metric) else ""
    least = least_pairs(len(rows))
    marked = "" if of.seeds < least else "; bold: the interval leaves out 0"
    caption = f"{of.what} minus that of {base}{unit}, over {of.covered.text}{marked}"
    head = [
        "Method",
        *(word for name in _COMPARED.values() for word in (name, "p")),
        "Clients better / worse",
    ]
    floor = min(1.0, len(rows) * 2.0 ** (1 - of.seeds))
    few = f", so no difference can be significant: use at least {least} seeds" if of.seeds < least else ""
    note = (
        "Differences at equal seeds with their 95 % interval (Student's t), each for itself. If an interval contains "
        f"0, the data do not show a difference. p: exact test by signs, raised for {plural(len(rows), 'comparison')} "
        f"(Holm); with {of.seeds} seeds it is never below {number(floor, 2)}{few}. Clients better / worse: those that "
        "are better, or worse, served at every seed."
    )
    others = _other_pairs(runs, base, of)
    made = table(caption[:1].upper() + caption[1:], head, rows, "numbers")
    note = f'<p class="note">{escape(note)}</p>'
    return f"<section>\n<h2>Is the difference real?</h2>\n{made}\n{note}\n{others}</section>"


def _other_pairs(runs: Mapping[str, Sequence[RunView]], base: str, of: Comparison) -> str:
    """The differences between the other methods, where they are few."""
    names = [name for name in runs if name != base]
    if not 2 <= len(names) <= _MOST_PAIRED:
        return ""
    rows, pairs = list[list[str | Cell]](), len(names) * (len(names) - 1) // 2
    for i, first in enumerate(names[:-1]):
        found = differences({name: runs[name] for name in names[i:]}, first, of.split, of.metric)
        for name, difference in found.items():
            cells = [_difference_cell(difference.by[key], key, of.metric, pairs) for key in _COMPARED]
            rows.append([f"{name} minus {first}", *cells])
    if not rows:
        return ""
    unit = ", in percentage points (variance: %²)" if is_share(of.metric) else ""
    marked = "" if of.seeds < least_pairs(pairs) else "; bold: the interval leaves out 0"
    caption = f"Among the other methods{unit}{marked}"
    return table(caption, ["Methods", *_COMPARED.values()], rows, "numbers") + "\n"


def _difference_cell(by: PairedDifference, key: str, metric: str, comparisons: int) -> Cell:
    mean, interval = difference_text(by, key, metric).split(" ", 1)
    text = f'{escape(mean)} <span class="interval">{escape(interval)}</span>'
    return Cell(text, "number best" if by.may_be_marked(comparisons) else "number")
