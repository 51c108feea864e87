"""Reports of a run, or of several side by side: a self-contained page, and what a notebook shows.

:func:`write_report` writes a page, :func:`body` lists its sections from top to bottom, and those that are no tables or
figures follow in that order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from evenhand import notebook
from evenhand._version import __version__
from evenhand.errors import StorageError
from evenhand.evaluation import SPLIT_NAMES, SPLITS, column
from evenhand.records import write_text
from evenhand.report import _comparison, _families, _levels, _private, _view, formatting, tables
from evenhand.report._comparison import Comparison, Method, caution, compare, tail_name, verdict
from evenhand.report._view import Runs, RunView, honest
from evenhand.report.formatting import Cell, Row, Table, Value, capital, escape, note, number, section, value
from evenhand.text import counted, isolated, listed

__all__ = ["ReportPath", "Summary", "body", "document", "page", "run_html", "write_report"]


def write_report(
    path: str | Path, runs: Runs, *, title: str | None = None, metric: str | None = None
) -> ReportPath:
    """Writes a page on how well and how evenly the runs serve their clients.

    The page is self-contained: figures are inline, there are no scripts, and nothing is ever fetched.
    It is about the metric that :func:`~evenhand.report.compare` chooses, on test examples if there are any.

    Args:
      path: the file to write, which is replaced in one step; its folder is created if needed.
      runs: one run, or several to be compared: a :class:`~evenhand.simulation.Run` or its view, a list of them, or a
        mapping from names to a run or to runs (one per seed).  Runs that differ only in their seeds are shown as one
        method; see :func:`~evenhand.report.compare`.
      title: the page's heading; None: the names of the methods.
      metric: what the page is about, such as ``"auc"``; None: as in :func:`~evenhand.report.compare`.

    Returns:
      The path; a notebook shows the page.

    Raises:
      EvenhandError: no run, runs without a metric in common, or a file that cannot be written.
    """
    text, path = page(_view.views(runs), title, metric), ReportPath(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        # A full disk, for one, is not the fault of the name.
        cure = ": name a file" if path.is_dir() or not path.parent.is_dir() else ""
        fault = f"The page could not be written to {path} ({error.strerror or error}){cure}."
        raise StorageError(fault) from error
    return path


def page(runs: Runs, title: str | None, metric: str | None = None) -> str:
    """The whole page about the runs."""
    subject = compare(runs, metric)
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
    settings: str = "",
) -> list[str]:
    """The sections about some runs.

    Args:
      subject: the runs.
      baseline: the method that the others are compared with; None: the first.
      results: further HTML below the headline.
      remarks: further HTML below the differences.
      figures: further figures.
      settings: further HTML below the summary, such as what else was tried.
    """
    from evenhand.report._plots import (
        availability_figures,
        gallery,
        personal_figures,
    )  # matplotlib takes long to load

    return [
        _notices(subject),
        _headline(subject),
        results,
        tables.metric_section(subject),
        _private.private(subject),
        tables.difference_table(subject, baseline),
        remarks,
        _families.attacked(subject),
        _families.newcomers(subject),
        _levels.levels(subject),
        _families.personal(subject),
        _families.available(subject),
        _families.privacy(subject),
        gallery(subject, [*personal_figures(subject), *availability_figures(subject), *figures]),
        tables.summary(subject),
        settings,
        _worst_clients(subject),
        tables.class_table(subject),
        _diagnostics(subject),
        _communication(subject),
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

_WORST, _ALL = 10, 30
"""How many of many clients are listed, and up to how many all of them are."""


def _facts(subject: Comparison) -> str:
    """The line under the title: what was run, as far as all runs share it."""
    runs, kind = subject.runs, subject.client_kind
    method, rounds = _shared(runs, "method"), _shared(runs, "rounds")
    counts = set(map(_view.clients_of_data, runs))
    facts = [None if method in subject.names else method, _shared(runs, "data")]
    if len(counts) == 1:
        clients = subject.worded(counted(counts.pop(), "client"))
        facts.append(clients + (f", one per {kind}" if kind else ""))
    facts += [None if rounds is None else counted(rounds, "round"), *map(subject.worded, _kept(runs))]
    # Examples in one place have no cohort.
    names = ("seed",) if subject.is_pooled else ("cohort", "seed")
    shared = {name: _shared(runs, name) for name in names}
    facts += [f"{name} {fact}" for name, fact in shared.items() if fact is not None]
    seeds = dict.fromkeys(str(run.info.get("seed")) for run in runs)
    facts.append("seeds " + ", ".join(seeds) if subject.seeds > 1 and len(seeds) > 1 else None)
    return note(" · ".join(str(fact) for fact in facts if fact is not None), "facts")


_KEPT = re.compile(r"kept round (\d+)(.*)")


def _kept(runs: Sequence[RunView]) -> list[str]:
    """Which rounds the numbers of clients are of, if no run has those of its last one."""
    rounds = dict[str, set[int]]()
    for run in runs:
        if (words := _KEPT.fullmatch(str(run.info.get("kept")))) is None:
            return [] if (shared := _shared(runs, "kept")) is None else [shared]
        rounds.setdefault(words[2], set()).add(int(words[1]))
    return [
        f"kept round{'s' if len(numbers) > 1 else ''} {listed(list(map(str, sorted(numbers))))}{rule}"
        for rule, numbers in rounds.items()
    ]


def _notices(subject: Comparison) -> str:
    """What to know before trusting the numbers: each kind of finding once, those that rule out trust first."""
    every = subject.notices
    grave = [notice for notice in every if notice.finding.kind == "diverged"]
    if len(subject.runs) == 1 and grave:  # nothing else about the run can be trusted either
        grave = every
    others, boxes = [notice for notice in every if notice not in grave], list[str]()
    for title, notices in (("Do not rely on these numbers", grave), ("Read these numbers with care", others)):
        text = "".join(f"<p>{escape(notice.text)}</p>\n" for notice in notices)
        boxes += [f'<aside class="notice">\n<h2>{title}</h2>\n{text}</aside>'] if notices else []
    return "\n".join(boxes)


def _headline(subject: Comparison) -> str:
    """The result in a sentence and in a few numbers, or in a ranking."""
    metric, (first, *others) = subject.metric, subject.methods
    if others:
        return note(verdict(subject), "lead") + "\n" + tables.ranking(subject) + note(caution(subject))
    stats = first.statistics(subject.split, metric)
    if not np.isfinite(stats["mean"]).any():
        cause = "" if first.is_sound else "Training diverged: "
        return note(capital(f"{cause}the {subject.quantity} is not a finite number."), "lead") + "\n"
    is_last = len(first.runs) == 1 and first.runs[0].info.get("kept") is None
    swung = _view.swing(first.runs[0].history, subject.split, metric) if is_last else None
    unsettled = "" if swung is None else f" Training has not settled: the {subject.quantity} {swung.text}."
    return note(_headline_sentence(subject, first) + unsettled, "lead") + "\n" + _cards(first, subject)


def _headline_sentence(subject: Comparison, method: Method) -> str:
    metric, stats = subject.metric, method.statistics(subject.split, subject.metric)
    clients, seeds, whose = int(np.min(stats["clients"])), len(method.runs), subject.covered
    mean, worst = (value(float(np.mean(stats[key])), metric) for key in ("mean", "worst10"))
    over = f" (means over {seeds} seeds)" if seeds > 1 else ""
    if int(np.max(stats["clients"])) == 1:
        return f"The only {whose.noun} gets a {subject.quantity} of {mean}{over}."
    begin = "The" if whose.is_complete else f"Over {whose.text}, the"
    average, tail = map(subject.worded, ("average client", tail_name(clients)))
    return f"{begin} {average} gets a {subject.quantity} of {mean}, {tail} {worst}{over}."


def _cards(method: Method, subject: Comparison) -> str:
    metric, stats = subject.metric, method.statistics(subject.split, subject.metric)
    means = method.means(subject.split, metric)
    tail = subject.worded(counted(max(1, int(means["clients"]) // 10), "client"))
    over_examples = f"{value(means['weighted_mean'], metric)} over examples"
    constant = _shared(method.runs, "constant")
    if constant is not None and (constant["metric"], constant["split"]) == (metric, subject.split):
        over_examples += f"; the best constant gives {value(constant['mean'], metric)}"
    remarks = {"mean": over_examples, "worst10": tail, "best10": tail}
    if len(method.runs) > 1:
        stds = {key: formatting.deviation(stats[key]) for key in remarks}
        remarks = {key: f"± {formatting.spread(std, metric)} over seeds" for key, std in stds.items()}
    names = {key: subject.worded(tables.SUMMARY[key].name) for key in remarks}
    shown = {names[key]: (value(means[key], metric), remark) for key, remark in remarks.items()}
    over_clients = f"standard deviation over {subject.covered.text}"
    shown["Spread"] = (formatting.spread(means["std"], metric), over_clients)
    cards = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}<small>{escape(remark)}</small></dd></div>\n"
        for name, (text, remark) in shown.items()
    ]
    return f'<dl class="cards">\n{"".join(cards)}</dl>'


def _worst_clients(subject: Comparison) -> str:
    """The clients, or the ten worst-served of many, and what each method gives them; means over seeds."""
    if not subject.same_clients:
        return ""
    run, split, quantity = subject.runs[0], subject.split, subject.quantity
    ranked = _ranked(subject)
    if not ranked:
        return ""
    shown = ranked if len(ranked) <= _ALL else ranked[:_WORST]
    splits = [s for s in SPLITS if s in run.sizes and s in ("train", split)]
    several, columns = len(subject.methods) > 1, _metric_columns(subject, shown)
    rows = list[Row]()
    for i, k in enumerate(shown):
        counts = [Value(f"{int(run.sizes[s][k]):,}") for s in splits]
        often = [] if run.availability is None else [Value(formatting.percent(float(run.availability[k])))]
        rows.append([run.client_ids[k], *counts, *often, *(cells[i] for _, cells in columns)])
    title = "The clients, worst served first" if len(shown) == len(ranked) else "The ten worst-served clients"
    more = f" by {subject.names[0]}, and what they get from the others" if several else ""
    more += f"; means over {subject.seeds} seeds" if subject.seeds > 1 else ""
    title, client = map(subject.worded, (title, "Client"))
    client += f" ({subject.client_kind})" if subject.client_kind else ""
    examples = [f"{'training' if s == 'train' else s} examples" for s in splits]
    often = [] if run.availability is None else ["available"]
    head = [client, *examples, *often, *(name for name, _ in columns)]
    caption = f"Ordered by {quantity}{more}, of {subject.covered.text}"
    return section(title, Table(head, rows).html(caption))


def _ranked(subject: Comparison) -> list[int]:
    """The positions of the clients with examples, worst served by the first method first."""
    (first, *_), metric, split = subject.methods, subject.metric, subject.split
    served = np.mean(first.clients(split, metric), axis=0)
    # Nothing is worse than a model that has diverged, and what is undefined is neither bad nor good.
    merits = np.where(np.isnan(served), -np.inf, _view.direction("mean", metric) * served)
    merits[np.any([_view.undefined_at(run, split, metric) for run in first.runs], axis=0)] = np.inf
    has = _view.has_examples(subject.runs[0], split)
    return [int(k) for k in np.argsort(merits, kind="stable") if has[k]]


def _metric_columns(subject: Comparison, shown: Sequence[int]) -> list[tuple[str, list[Cell | Value]]]:
    """The head and the cells of a column for each metric and method: bars of the headline, and numbers of others."""
    columns: list[tuple[str, list[Cell | Value]]] = []
    for about in (subject, *_comparison.further(subject)):
        metric = about.metric
        served = [np.mean(method.clients(about.split, metric), axis=0)[shown] for method in about.methods]
        top = formatting.full((float(x) for values in served for x in values), is_share=about.is_share)
        for i, (method, values) in enumerate(zip(about.methods, served, strict=True)):
            texts = [value(float(x), metric) for x in values]
            cells: list[Cell | Value] = [Value(text) for text in texts]
            if about is subject:
                cells = [formatting.bar(text, x / top, i) for text, x in zip(texts, values, strict=True)]
            name = about.quantity.replace("_", " ")
            columns.append((f"{name}, {method.name}" if len(about.methods) > 1 else name, cells))
    return columns


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
        spent = [*(seconds.get(activity, math.nan) for activity in activities), sum(seconds.values())]
        rounds, train = info.get("rounds"), seconds.get("train")
        speed, padded = info.get("examples_per_second"), info.get("padded")
        shown = [
            *(f"{number(x, 3)} s" for x in spent),
            number(rounds / train, 3) if rounds and train else "–",
            "–" if speed is None else f"{speed:,.0f}",
            "–" if padded is None else f"{100 * padded:.1f} %",
        ]
        rows.append([name, stack, *map(Value, shown)])
    key = "".join(f"<li>{formatting.swatch(k, name)}</li>" for k, name in enumerate(activities))
    head = ["Run", "", *activities, "total", "rounds / s", "examples / s", "padded"]
    caption = "Seconds per activity; rounds and examples per second of training; share of padding in the executed steps"
    return section("Where the time went", Table(head, rows).html(caption), f'<ul class="legend">{key}</ul>')


def _diagnostics(subject: Comparison) -> str:
    """Heterogeneity of the clients' gradients, and exactness of their work, if runs have measured it."""
    measured = [
        (name, run.info["diagnostics"]) for name, run in subject.named_runs if run.info.get("diagnostics")
    ]
    if not measured:
        return ""
    rows: list[Row] = []
    for name, numbers in measured:
        shown = (
            number(numbers["dissimilarity"], 4),
            number(numbers["gradient_variance"], 3),
            number(numbers["global_gradient_norm"], 3),
            f"{numbers['clients']:,}",
            "–" if "inexactness" not in numbers else number(numbers["inexactness"], 3),
            "–" if "inexactness" not in numbers else f"{100 * numbers['no_progress']:.0f} %",
            "–" if "inexactness" not in numbers else f"{numbers['worked']:,}",
        )
        local = f", γ with mu={numbers['mu']:g}" if "mu" in numbers else ""
        rows.append([name + local, *map(Value, shown)])
    head = [
        *("Run", "dissimilarity B", "gradient variance", "norm of the global gradient", "clients"),
        *("mean inexactness γ", "no progress (γ ≥ 1)", "clients"),
    ]
    caption = (
        "Measured at the final global model on the training examples of honest clients: B is 1 if all gradients "
        "are equal; γ is the gradient norm of a client's loss after one more round of local work, relative to before; "
        "with mu, of its loss and FedProx's proximal term"
    )
    return section("Heterogeneity of the clients", Table(head, rows).html(caption))


def _communication(subject: Comparison) -> str:
    """What clients have received and sent, and whom that covers."""
    table = tables.communication(subject)
    if table is None or subject.is_pooled:
        return ""
    covers = {
        str(run.info["communication"]["covers"]) for run in subject.runs if run.info.get("communication")
    }
    remark = _COVERED if len(covers) > 1 else covers.pop()
    return section("Communication", table.html(tables.COMMUNICATION), note(remark))


_COVERED = (
    "All clients, in each round in which their upload reached the server, accepted or not. Not counted: what clients "
    "received before they dropped out, and the keys and shares of secure sums."
)
"""Whom the numbers of several runs cover; of a single run, its own sentences are exact."""


def _settings(subject: Comparison) -> str:
    """Every setting; in a comparison, those that differ come first."""
    configs = [[_comparison.flat_settings(run.config) for run in method.runs] for method in subject.methods]
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
    texts = (_comparison.setting_text(config[key]) if key in config else "–" for config in configs)
    return ", ".join(dict.fromkeys(texts))


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
        table = Table(["", ""], tables.statistic_rows(self, self.metric))
        return notebook.piece(table.html(f"{capital(name)} over {self.clients}", ""))


def run_html(view: RunView) -> str:
    """What is wrong with a run, what was run, its course, and how well and how evenly it serves its clients."""
    view = honest(view)
    metric, rows = _view.common_metric([view]), list[list[str]]()
    best = _view.headline_split([view], metric)
    for split in sorted(view.clients, key=lambda split: split != best):
        for name in [metric, *(other for other in view.clients[split] if other != metric)]:
            *values, std = (_view.statistics(view, split, name)[key] for key in formatting.SERVED)
            title = f"{SPLIT_NAMES[split]} {name.replace('_', ' ')}"
            shown = [*(value(x, name) for x in values), formatting.spread(std, name)]
            rows.append([notebook.escape(title), *map(notebook.escape, shown)])
    rounds, cohort, seed = (view.info.get(name) for name in ("rounds", "cohort", "seed"))
    drawn = "" if _view.is_pooled([view]) else f"cohort {cohort}, "
    facts = f"{_view.covered([view], best).text}, {rounds} rounds, {drawn}seed {seed}"
    title = f"{'Diverged: ' if _view.diverged(view) else ''}{view.title}"
    return notebook.piece(
        *(notebook.warning(finding.sentence) for finding in view.findings),
        notebook.paragraph(notebook.escape(title), "title"),
        notebook.paragraph(escape(facts)),
        _course(view, best, metric),
        _ends(view, best, metric),
        notebook.table([_view.worded([view], "over clients"), *_COURSES.values(), "spread (std)"], rows),
    )


_COURSES = {"mean": "mean", "worst10": "worst 10\u202f%", "best10": "best 10\u202f%"}
"""The statistics whose course by round a notebook shows."""


def _course(view: RunView, split: str, metric: str) -> str:
    """A small chart of the metric by round, over clients where the history has that."""
    columns = {word: column(split, metric, key) for key, word in _COURSES.items()}
    if columns["mean"] not in view.history:
        columns = {"over all examples": column(split, metric)}
    lines = {
        word: np.asarray(view.history[name], np.float64)
        for word, name in columns.items()
        if name in view.history
    }
    finite = [x for values in lines.values() for x in values.tolist() if math.isfinite(x)]
    if not finite:
        return ""
    title = f"{SPLIT_NAMES[split]} {metric.replace('_', ' ')} by round"
    low, high = value(min(finite), metric), value(max(finite), metric)
    chart = notebook.curves(view.history["round"], lines, f"{title}: {', '.join(lines)}", (low, high))
    return chart and f"{chart}{notebook.key([f'{title}: {next(iter(lines))}', *list(lines)[1:]])}"


_NAMED = 5
"""How many clients of a tenth are named."""


def _ends(view: RunView, split: str, metric: str) -> str:
    """Which clients are the worst and the best served tenth."""
    values = _view.client_values(view, split, metric)
    measured = _view.has_examples(view, split) & np.isfinite(values)
    order = np.argsort(-_view.direction("mean", metric) * values, kind="stable")
    ranked = [int(k) for k in order if measured[k]]
    if len(ranked) < 2 or _view.diverged(view):
        return ""
    size = max(1, len(ranked) // 10)
    parts: list[str] = []
    for word, chosen in (("Worst 10 %", ranked[::-1][:size]), ("Best 10 %", ranked[:size])):
        names = [notebook.name(view.client_ids[k]) for k in chosen[:_NAMED]]
        more = f" and {size - _NAMED:,} more" if size > _NAMED else ""
        clients = counted(size, _view.worded([view], "client"))
        parts.append(f"{word}: {clients} ({', '.join(names)}{more})")
    return notebook.paragraph(". ".join(parts) + ".", "note")


# --- a page as it is written ----------------------------------------------------------------------------------------

_EMBEDDED = 4_000_000
"""Characters of a page up to which a notebook holds the whole of it."""

if TYPE_CHECKING:
    _AnyPath: TypeAlias = Path
else:
    _AnyPath = type(Path())  # before Python 3.12, Path itself has no subclasses


class ReportPath(_AnyPath):
    """The path of a page, which a notebook shows: the page itself as it is in the file.

    Example:
      >>> from pathlib import Path
      >>> ReportPath("report.html") == Path("report.html")
      True
    """

    def _repr_html_(self) -> str | None:
        if self.suffix != ".html" or not self.is_file():
            return None
        link = notebook.paragraph(f"<code>{notebook.escape(self)}</code>", "note")
        text = self.read_text(encoding="utf-8")
        if len(text) > _EMBEDDED:
            size = formatting.size(len(text))
            return notebook.piece(link, notebook.paragraph(f"A page of {size}: open the file in a browser."))
        return notebook.piece(link, notebook.frame(text, f"The page {self.name}"))
