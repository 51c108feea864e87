"""Reports of a run, or of several side by side: a self-contained page, and what a notebook shows.

:func:`write_report` writes a page, :func:`body` lists its sections from top to bottom, and those that are no tables or
figures follow in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from evenhand._version import __version__
from evenhand.evaluation import SPLIT_NAMES, SPLITS, is_higher_better, is_share
from evenhand.report._view import (
    Runs,
    RunView,
    common_metric,
    covered,
    diverged,
    headline_split,
    honest,
    statistics,
    swing,
    views,
)
from evenhand.report.comparison import (
    Comparison,
    Method,
    caution,
    compare,
    flat_settings,
    setting_text,
    tail_name,
    verdict,
)
from evenhand.report.families import attacked, personal, privacy
from evenhand.report.formatting import (
    Cell,
    Row,
    Table,
    Value,
    bar,
    capital,
    deviation,
    escape,
    note,
    number,
    section,
    spread,
    swatch,
    value,
)
from evenhand.report.tables import (
    class_table,
    difference_table,
    metric_section,
    ranking,
    statistic_rows,
    summary,
)
from evenhand.text import counted, isolated

__all__ = ["Summary", "body", "document", "page", "run_html", "write_report"]


def write_report(path: str | Path, runs: Runs, *, title: str | None = None) -> Path:
    """Writes a page on how well and how evenly the runs serve their clients.

    The page is self-contained: figures are inline, there are no scripts, and nothing is ever fetched.
    It is about the accuracy if all runs have one, else the loss; on test examples if there are any.

    Args:
      path: the file to write; its folder is created if needed.
      runs: one run, or several to be compared: a :class:`~evenhand.simulation.Run` or its view, a list of them, or a
        mapping from names to a run or to runs (one per seed).  Runs that differ only in their seeds are shown as one
        method; see :func:`~evenhand.report.compare`.
      title: the page's heading; None: the names of the methods.

    Returns:
      The path.

    Raises:
      EvenhandError: no run, or runs without a metric in common.
    """
    text, path = page(views(runs), title), Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def page(runs: Runs, title: str | None) -> str:
    """The whole page about the runs."""
    subject = compare(runs)
    heading = _heading(subject) if title is None else title
    header = f"<header>\n<h1>{escape(heading)}</h1>\n{_facts(subject)}\n</header>"
    return document(heading, [header, *body(subject)])


def body(
    subject: Comparison,
    *,
    baseline: str | None = None,
    results: str = "",
    remarks: str = "",
    figures: Sequence[str] = (),
    tables: str = "",
) -> list[str]:
    """The sections about some runs.

    Args:
      subject: the runs.
      baseline: the method that the others are compared with; None: the first.
      results: further HTML below the headline.
      remarks: further HTML below the differences.
      figures: further figures.
      tables: further HTML below the summary.
    """
    from evenhand.report._plots import gallery, personal_figures  # matplotlib takes long to load

    return [
        _notices(subject),
        _headline(subject),
        results,
        metric_section(subject),
        difference_table(subject, baseline),
        remarks,
        attacked(subject),
        personal(subject),
        privacy(subject),
        gallery(subject, [*personal_figures(subject), *figures]),
        summary(subject),
        tables,
        _worst_clients(subject),
        class_table(subject.runs),
        _time(subject),
        _settings(subject),
        _reproduce(subject),
    ]


def document(heading: str, parts: Sequence[str], script: str = "") -> str:
    """A page of these parts; ``script`` may make it more comfortable, but all of it can be read without."""
    style = resources.files("evenhand.report").joinpath("report.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(heading)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
            *(part for part in parts if part),
            f"<footer>Made by evenhand {escape(__version__)}.</footer>\n</main>",
            *([f"<script>\n{script}</script>"] if script else []),
            "</body>\n</html>\n",
        ]
    )


def _heading(subject: Comparison) -> str:
    if len(subject.methods) == 1:
        return subject.names[0]
    word = "Side by side" if subject.obstacles else "Comparison"
    if len(subject.methods) > 3 or sum(map(len, subject.names)) > 90:
        return f"{word}: {len(subject.methods)} methods"
    return f"{word}: {', '.join(map(isolated, subject.names))}"


# --- the sections, from top to bottom -----------------------------------------------------------------------------

_WORST = 10


def _facts(subject: Comparison) -> str:
    """The line under the title: what was run, as far as all runs share it."""
    runs, kind = subject.runs, subject.client_kind
    method, rounds = _shared(runs, "method"), _shared(runs, "rounds")
    counts = {max(int(run.info.get("clients") or 0), len((run.whole or run).client_ids)) for run in runs}
    facts = [None if method in subject.names else method, _shared(runs, "data")]
    if len(counts) == 1:
        facts.append(counted(counts.pop(), "client") + (f", one per {kind}" if kind else ""))
    facts += [None if rounds is None else counted(rounds, "round"), _shared(runs, "kept")]
    for name in ("cohort", "seed"):
        shared = _shared(runs, name)
        facts.append(None if shared is None else f"{name} {shared}")
    seeds = dict.fromkeys(str(run.info.get("seed")) for run in runs)
    facts.append("seeds " + ", ".join(seeds) if subject.seeds > 1 and len(seeds) > 1 else None)
    return f'<p class="facts">{" · ".join(escape(fact) for fact in facts if fact is not None)}</p>'


def _notices(subject: Comparison) -> str:
    """What to know before trusting the numbers: each kind of finding once, those that rule out trust first."""
    every = subject.notices
    grave = [notice for notice in every if notice.finding.kind == "diverged"]
    if len(subject.runs) == 1 and grave:  # nothing else about the run can be trusted either
        grave = every
    others = [notice for notice in every if notice not in grave]
    boxes = {"Do not rely on these numbers": grave, "Read these numbers with care": others}
    return "\n".join(
        f'<aside class="notice">\n<h2>{title}</h2>\n'
        + "".join(f"<p>{escape(notice.text)}</p>\n" for notice in notices)
        + "</aside>"
        for title, notices in boxes.items()
        if notices
    )


def _headline(subject: Comparison) -> str:
    """The result in a sentence and in a few numbers, or in a ranking."""
    metric, (first, *others) = subject.metric, subject.methods
    if others:
        return _lead(verdict(subject)) + ranking(subject) + note(caution(subject))
    stats = first.statistics(subject.split, metric)
    if not np.isfinite(stats["mean"]).any():
        cause = "" if first.is_sound else "Training diverged: "
        return _lead(capital(f"{cause}the {subject.quantity} is not a finite number."))
    is_last = len(first.runs) == 1 and first.runs[0].info.get("kept") is None
    swung = swing(first.runs[0].history, subject.split, metric) if is_last else None
    unsettled = "" if swung is None else f" This has not settled: the {subject.quantity} {swung.text}."
    return _lead(_headline_sentence(subject, first) + unsettled) + _cards(first, subject)


def _lead(text: str) -> str:
    return f'<p class="lead">{escape(text)}</p>\n'


def _headline_sentence(subject: Comparison, method: Method) -> str:
    metric, stats = subject.metric, method.statistics(subject.split, subject.metric)
    clients, seeds, whose = int(np.min(stats["clients"])), len(method.runs), subject.covered
    mean, worst = (value(float(np.mean(stats[key])), metric) for key in ("mean", "worst10"))
    over = f" (means over {seeds} seeds)" if seeds > 1 else ""
    if int(np.max(stats["clients"])) == 1:
        return f"The only {whose.noun} gets a {subject.quantity} of {mean}{over}."
    begin = "The" if whose.is_complete else f"Over {whose.text}, the"
    return f"{begin} average client gets a {subject.quantity} of {mean}, {tail_name(clients)} {worst}{over}."


def _cards(method: Method, subject: Comparison) -> str:
    metric, stats = subject.metric, method.statistics(subject.split, subject.metric)
    means = {key: float(np.mean(values)) for key, values in stats.items()}
    tail = counted(max(1, int(means["clients"]) // 10), "client")
    over_examples = f"{value(means['weighted_mean'], metric)} over examples"
    constant = _shared(method.runs, "constant")
    if constant is not None and (constant["metric"], constant["split"]) == (metric, subject.split):
        over_examples += f"; the best constant gives {value(constant['mean'], metric)}"
    names = {
        "mean": ("Mean over clients", over_examples),
        "worst10": ("Worst 10 % of clients", tail),
        "best10": ("Best 10 % of clients", tail),
    }
    cards: list[tuple[str, str, str]] = []
    for key, (name, remark) in names.items():
        seeds = f"± {spread(deviation(stats[key]), metric)} over seeds"
        cards.append((name, value(means[key], metric), seeds if len(method.runs) > 1 else remark))
    over_clients = f"standard deviation over {subject.covered.text}"
    cards.append(("Spread", spread(means["std"], metric), over_clients))
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}<small>{escape(remark)}</small></dd></div>\n"
        for name, text, remark in cards
    )
    return f'<dl class="cards">\n{body}</dl>'


def _worst_clients(subject: Comparison) -> str:
    """The ten worst-served clients, and what the other methods give them; means over seeds."""
    if not subject.same_clients:
        return ""
    run, metric, split, several = subject.runs[0], subject.metric, subject.split, len(subject.methods) > 1
    served = [np.mean(method.clients(split, metric), axis=0) for method in subject.methods]
    sizes = np.asarray(run.sizes.get(split, np.ones(len(run.client_ids))))
    sign = 1 if is_higher_better(metric) else -1
    # Nothing is worse than a model that has diverged.
    ranked = np.argsort(np.where(np.isnan(served[0]), -np.inf, sign * served[0]), kind="stable")
    ranked = [int(k) for k in ranked if sizes[k]]
    if not ranked:
        return ""
    shown = ranked[:_WORST]
    finite = [float(x) for values in served for x in values[shown] if math.isfinite(x)]
    top = 1.0 if is_share(metric) else max([*finite, 1e-30])
    splits = [s for s in SPLITS if s in run.sizes and s in ("train", split)]
    rows: list[Row] = []
    for k in shown:
        counts = [Value(f"{int(run.sizes[s][k]):,}") for s in splits]
        numbers = [float(values[k]) for values in served]
        bars = [bar(value(x, metric), x / top, i) for i, x in enumerate(numbers)]
        rows.append([run.client_ids[k], *counts, *bars])
    title = "The ten worst-served clients" if len(ranked) > _WORST else "The clients, worst served first"
    quantity = subject.quantity
    names = [f"{quantity}, {name}" for name in subject.names] if several else [quantity]
    more = f" by {subject.names[0]}, and what they get from the others" if several else ""
    more += f"; means over {subject.seeds} seeds" if subject.seeds > 1 else ""
    client = f"Client ({subject.client_kind})" if subject.client_kind else "Client"
    head = [client, *(f"{'training' if s == 'train' else s} examples" for s in splits), *names]
    caption = f"Ordered by {quantity}{more}, of {subject.covered.text}"
    return section(title, Table(head, rows).html(caption))


def _time(subject: Comparison) -> str:
    """Where the time went: a bar per run."""
    timed = [(name, run.info) for name, run in subject.named_runs if run.info.get("seconds")]
    if not timed:
        return ""
    activities = list(dict.fromkeys(name for _, info in timed for name in info["seconds"]))
    longest = max(sum(info["seconds"].values()) for _, info in timed) or 1.0
    rows: list[Row] = []
    for name, info in timed:
        seconds = info["seconds"]
        parts = "".join(
            f'<span style="--c:var(--c{k % 6});width:{100 * seconds.get(name, 0.0) / longest:.2f}%"></span>'
            for k, name in enumerate(activities)
        )
        stack = Cell(f'<div class="time" aria-hidden="true">{parts}</div>')
        shown = [
            f"{number(x, 3)} s"
            for x in (*(seconds.get(a, math.nan) for a in activities), sum(seconds.values()))
        ]
        rounds, train = info.get("rounds"), seconds.get("train")
        shown.append(number(rounds / train, 3) if rounds and train else "–")
        speed, padded = info.get("examples_per_second"), info.get("padded")
        shown.append("–" if speed is None else f"{speed:,.0f}")
        shown.append("–" if padded is None else f"{100 * padded:.1f} %")
        rows.append([name, stack, *map(Value, shown)])
    key = "".join(f"<li>{swatch(k)}{escape(name)}</li>" for k, name in enumerate(activities))
    head = ["Run", "", *activities, "total", "rounds / s", "examples / s", "padded"]
    caption = "Seconds per activity; rounds and examples per second of training; share of padding in the executed steps"
    return section("Where the time went", Table(head, rows).html(caption), f'<ul class="legend">{key}</ul>')


def _settings(subject: Comparison) -> str:
    """Every setting; in a comparison, those that differ come first."""
    configs = [[flat_settings(run.config) for run in method.runs] for method in subject.methods]
    keys = dict.fromkeys(key for method in configs for config in method for key in config)
    if not keys:
        return ""
    texts = {key: [_setting(key, method) for method in configs] for key in keys}
    differing = [key for key in keys if len(set(texts[key])) > 1]
    rows = [
        [Cell(escape(key), mark), *(Cell(escape(text), "setting") for text in texts[key])]
        for mark, part in (("differs", differing), ("", [key for key in keys if key not in differing]))
        for key in part
    ]
    several = len(subject.methods) > 1
    head = ["Setting", *(subject.names if several else ["Value"])]
    caption = "Settings; those that differ are marked" if several else "Settings"
    return section("What was run", Table(head, rows).html(caption, ""))


def _setting(key: str, configs: Sequence[dict[str, Any]]) -> str:
    """A setting of a method, with all values that its runs have."""
    return ", ".join(dict.fromkeys(setting_text(config[key]) if key in config else "–" for config in configs))


def _reproduce(subject: Comparison) -> str:
    """How to get the same numbers again."""
    commands = dict.fromkeys(str(command) for run in subject.runs if (command := run.info.get("command")))
    lines = f"<pre>{escape(chr(10).join(commands))}</pre>" if commands else ""
    text = "The same settings and seed give the same numbers, bit for bit on the same hardware and versions"
    versions = _shared(subject.runs, "versions") or {}
    text += f" ({', '.join(f'{name} {version}' for name, version in versions.items())})" if versions else ""
    return section("How to run it again", lines, f"<p>{escape(text)}.</p>")


def _shared(runs: Sequence[RunView], name: str) -> Any:
    """A fact that all runs share; None where they differ."""
    first, *others = [run.info.get(name) for run in runs]
    return first if all(other == first for other in others) else None


# --- in a notebook ------------------------------------------------------------------------------------------------


class Summary(dict[str, float]):
    """The statistics of one metric over clients: a plain dict that a notebook shows as a table.

    Attributes:
      metric: the metric, e.g. ``"accuracy"``.
      split: the split that it is measured on.
      clients: which clients it covers, in words, such as ``"24 of 30 clients, the honest ones"``.
    """

    def __init__(
        self, values: Mapping[str, float], metric: str, split: str = "", clients: str = "clients"
    ) -> None:
        super().__init__(values)
        self.metric, self.split, self.clients = metric, split, clients

    def _repr_html_(self) -> str:
        name = f"{SPLIT_NAMES.get(self.split, '')} {self.metric.replace('_', ' ')}".strip()
        return Table(["", ""], statistic_rows(self, self.metric)).html(
            f"{capital(name)} over {self.clients}", ""
        )


def run_html(view: RunView) -> str:
    """What was run, what is wrong with it, and how well and how evenly it serves its clients on each split."""
    view = honest(view)
    metric = common_metric([view])
    best = headline_split([view], metric)
    rows: list[Row] = []
    for split in sorted(view.clients, key=lambda split: split != best):
        for name in [metric, *(other for other in view.clients[split] if other != metric)]:
            stats = statistics(view, split, name)
            shown = [value(stats[key], name) for key in ("mean", "worst10", "best10")]
            title = f"{SPLIT_NAMES[split]} {name.replace('_', ' ')}"
            rows.append([title, *shown, spread(stats["std"], name)])
    rounds, cohort, seed = (view.info.get(name) for name in ("rounds", "cohort", "seed"))
    facts = f"{covered([view], best).text}, {rounds} rounds, cohort {cohort}, seed {seed}"
    warnings = "".join(f"<p><strong>{escape(finding.sentence)}</strong></p>\n" for finding in view.findings)
    title = f"{'Diverged: ' if diverged(view) else ''}{view.title}"
    head = ["", "Mean over clients", "Worst 10 %", "Best 10 %", "Spread (std)"]
    return f"{warnings}{Table(head, rows).html(f'{title}: {facts}', '')}"
