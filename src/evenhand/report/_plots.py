"""How the figures are drawn, and how a page shows them.

First each figure as :mod:`evenhand.report.figures` describes it; then what the lines of a method are computed from;
then the figures of a page, each with a title, how to read it, and its message in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from evenhand.evaluation import SPLIT_NAMES, SPLITS, column, is_higher_better, of_global, worst
from evenhand.report import draw
from evenhand.report._view import RunView, among, client_values
from evenhand.report.comparison import Comparison, Method
from evenhand.report.families import in_words, left_out, personalized, trained
from evenhand.report.formatting import escape, svg, value
from evenhand.text import isolated

__all__ = [
    "MEDIANS_FROM",
    "client_curve",
    "client_histogram",
    "gallery",
    "learning_curve",
    "over_clients",
    "personal_figures",
    "personal_scatter",
    "series",
    "size_scatter",
]


NDArray = npt.NDArray[np.float64]

MEDIANS_FROM = 40
"""From this many clients on, a scatter plot gets a line of medians."""

_FEW = 150
"""Clients up to which marks are large."""

_DASHED = (0, (2, 1.5))

_TAIL, _SEEDS = "worst tenth", "range of seeds"
"""What is dashed or shaded, and what a band spans, in legends."""

_IN_A_PANEL, _BEHIND = 100, 25
"""Most points of a line in a small panel: of the panel's method, and of the others behind it."""


# --- the figures --------------------------------------------------------------------------------------------------


def learning_curve(of: Comparison) -> Figure:
    """See :func:`evenhand.report.figures.learning_curve`."""
    metric, split = of.metric, of.split
    lines = [_by_round(method, _key(of, split), column(split, metric, "worst10")) for method in of.methods]
    if len(of.methods) > 1:
        return _compared(dict(enumerate(lines)), of, metric, "round", draw.label(metric, split))
    figure, axes = draw.single_panel("round", draw.label(metric, None))
    method, main, ends = next(iter(of.methods)), lines[0], list[draw.End]()
    for other, colour in (("valid", draw.PALETTE[2]), ("train", draw.MUTED)):
        if other != split:
            dashed = _by_round(method, _key(of, other))
            draw.line(axes, dashed.x, dashed.mean, metric, colour, (0, (4, 2)), SPLIT_NAMES[other])
            ends += _end(dashed.x, dashed.mean, metric, SPLIT_NAMES[other], colour)
    low, high, colour, area = main.low, main.high, draw.PALETTE[0], _SEEDS
    if len(method.runs) == 1:
        area = "worst to best tenth"
        low, high = (_by_round(method, column(split, metric, f"{tail}10")).mean for tail in ("worst", "best"))
    draw.band(axes, main.x, low, high, metric, colour, area)
    draw.line(axes, main.x, main.mean, metric, colour, "-", SPLIT_NAMES[split])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    draw.log_if_wide(metric, axes)
    draw.label_ends(figure, axes, [*ends, *_end(main.x, main.mean, metric, SPLIT_NAMES[split], colour)])
    return figure


def client_histogram(of: Comparison) -> Figure:
    """See :func:`evenhand.report.figures.client_histogram`."""
    metric, several = of.metric, len(of.methods) > 1
    values = [[_finite_clients(x) for x in _clients(method, of)] for method in of.methods]
    pooled = np.concatenate([x for method in values for x in method])
    edges = draw.edges(pooled, metric, max(x.size for method in values for x in method))
    label = draw.label(metric, of.split)
    figure, every = _one_or_panels(of, label, "clients")
    for i, axes in enumerate(every):
        counts = np.mean([np.histogram(x, edges)[0] for x in values[i]], axis=0)
        left, width = draw.scaled(edges[:-1], metric), np.diff(draw.scaled(edges, metric))
        axes.bar(left + width / 2, counts, 0.92 * width, color=draw.look(i)[0], alpha=0.75, linewidth=0)
        axes.yaxis.set_major_locator(MaxNLocator(3 if several else 6, integer=True))
        axes.grid(axis="x", visible=False)
        known = [x for x in values[i] if x.size]
        if not known:
            _say_nothing(axes)
            continue
        tail = np.mean([worst(x, higher_is_better=is_higher_better(metric)) for x in known])
        mean = np.mean([x.mean() for x in known])
        for where, style, name in ((mean, "-", "mean"), (tail, ":", "worst 10 %")):
            axes.axvline(
                float(draw.scaled(where, metric)), color=draw.INK, linewidth=1.4, linestyle=style, label=name
            )
    draw.legend(figure, next((axes for axes in every if axes.lines), every[0]))
    return figure


def client_curve(of: Comparison) -> Figure:
    """See :func:`evenhand.report.figures.client_curve`."""
    lines = {i: _served(method, of) for i, method in enumerate(of.methods)}
    return _compared(lines, of, of.metric, "clients, worst served first (%)", draw.label(of.metric, of.split))


def size_scatter(of: Comparison) -> Figure:
    """See :func:`evenhand.report.figures.size_scatter`."""
    metric, names = of.metric, ("training examples of the client", draw.label(of.metric, of.split))
    figure, every = _one_or_panels(of, *names)
    points = [_sizes_and_values(method, of) for method in of.methods]
    for i, (axes, (sizes, values)) in enumerate(zip(every, points, strict=True)):
        few = values.size <= 150
        axes.plot(
            sizes,
            draw.scaled(values, metric),
            linestyle="none",
            marker="o",
            markersize=(5 if few else 3) if len(every) == 1 else (3.5 if few else 2),
            markeredgewidth=0,
            color=draw.look(i)[0],
            alpha=0.7 if few else 0.3,
            rasterized=sum(v.size for _, v in points) > draw.MOST_MARKERS,
        )
        if values.size >= MEDIANS_FROM:
            groups = np.array_split(np.argsort(sizes, kind="stable"), 8)
            x, y = np.array([[np.median(sizes[group]), np.median(values[group])] for group in groups]).T
            axes.plot(x, draw.scaled(y, metric), color=draw.INK, label="median of clients of similar size")
        if not values.size:
            _say_nothing(axes)
    draw.count_axis(
        every[0], np.concatenate([sizes for sizes, _ in points]), dense=len(every) <= draw.MOST_SHARED
    )
    draw.log_if_wide(metric, *every)
    if len(every) == 1:
        draw.legend(figure, every[0])
    return figure


def personal_scatter(of: Comparison) -> Figure:
    """See :func:`evenhand.report.figures.personal_scatter`."""
    metric = of.metric
    names = [f"{draw.label(metric, of.split)} of the {whose} model" for whose in ("global", "client's own")]
    if len(of.methods) > 1:
        colours = [draw.look(i)[0] for i in range(len(of.methods))]
        figure, every = draw.panels(of.names, colours, *names)
    else:
        figure, axes = draw.single_panel(*names)
        every = [axes]
    values: list[draw.NDArray] = []
    for i, (axes, method) in enumerate(zip(every, of.methods, strict=True)):
        honest = [among(run, "honest") for run in method.runs]
        pairs = [_pairs(run, of.split, metric)[:, trained(run)] for run in honest]
        seen = np.concatenate(pairs, axis=1)
        new = [_pairs(run.unseen, of.split, metric) for run in method.runs if run.unseen is not None]
        size = (5.0 if seen.shape[1] <= _FEW else 3.0) * (1.0 if len(every) == 1 else 0.7)
        _marks(axes, seen, metric, draw.look(i)[0], size, filled=True)
        if new:
            _marks(axes, np.concatenate(new, axis=1), metric, draw.look(i)[0], size, filled=False)
        values += [seen.ravel(), *(each.ravel() for each in new)]
    finite = draw.scaled(np.concatenate(values), metric)
    finite = finite[np.isfinite(finite)]
    if finite.size:
        ends = [finite.min(), finite.max()]
        for axes in every:
            axes.plot(ends, ends, color=draw.INK, linewidth=1.0, zorder=1)
    return figure


def series(of: Comparison, key: str) -> Figure:
    """See :func:`evenhand.report.figures.series`."""
    lines = {i: _by_round(method, key) for i, method in enumerate(of.methods)}
    known = {i: line for i, line in lines.items() if np.isfinite(line.mean).any()}
    return _compared(known or lines, of, "", "round", draw.short(key.replace("_", " ")))


# --- their parts --------------------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """A method's line: the mean over its seeds, the lowest and the highest; ``thin``: the worst tenth."""

    x: NDArray
    mean: NDArray
    low: NDArray
    high: NDArray
    thin: NDArray | None = None


def _compared(lines: Mapping[int, Lines], of: Comparison, metric: str, x: str, y: str) -> Figure:
    """A line per method, by its position: on shared axes, or each in its panel in front of the others."""
    names, looks = [of.names[i] for i in lines], [draw.look(i) for i in lines]
    shared, clients = len(lines) <= draw.MOST_SHARED, x != "round"
    if shared:
        figure, axes = draw.single_panel(x, y)
        every = [axes]
    else:
        figure, every = draw.panels(names, [colour for colour, _ in looks], x, y)
    for axes in every:
        if clients:
            axes.set_xlim(0, 100)
            axes.axvspan(0, 10, color=draw.GRID, linewidth=0)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6 if shared else 4, integer=True))
    ends: list[draw.End] = []
    for k, (i, line) in enumerate(lines.items()):
        axes, (colour, style) = every[k % len(every)], looks[k]
        if not shared:
            _behind(axes, [other for j, other in lines.items() if j != i], metric)
        most = draw.MOST_POINTS if shared else _IN_A_PANEL
        if line.thin is not None:
            draw.line(axes, line.x, line.thin, metric, colour, _DASHED, "", width=1.1, most=most)
        if len(of.methods[i].runs) > 1:
            draw.band(axes, line.x, line.low, line.high, metric, colour)
        name, marker = names[k] if len(of.methods) > 1 else "", draw.MARKERS[i % 6] if clients else "o"
        draw.line(
            axes, line.x, line.mean, metric, colour, style if shared else "-", name, marker=marker, most=most
        )
        ends += _end(line.x, line.mean, metric, name, colour) if name else []
        if not shared and not np.isfinite(line.mean).any():
            _say_nothing(axes)
    draw.log_if_wide(metric or y, *every)  # a series is no metric, but its name says whether it is of a share
    styles = _styles(lines.values(), shaded=clients, seeds=any(len(of.methods[i].runs) > 1 for i in lines))
    if shared:
        draw.label_ends(figure, every[0], ends, styles)
    else:
        draw.legend(figure, every[0], styles, but=names)
    return figure


def _styles(lines: Iterable[Lines], *, shaded: bool, seeds: bool) -> list[draw.Style]:
    """What dashes, shades and bands mean; in grey, since each method's have its colour."""
    styles: list[draw.Style] = []
    if shaded:
        styles.append(draw.Style(Patch(color=draw.GRID, linewidth=0), _TAIL))
    elif any(line.thin is not None and np.isfinite(line.thin).any() for line in lines):
        dashes = Line2D([], [], color=draw.MUTED, linestyle=_DASHED, linewidth=1.1)
        styles.append(draw.Style(dashes, _TAIL))
    if seeds:
        styles.append(draw.Style(Patch(color=draw.MUTED, alpha=0.3, linewidth=0), _SEEDS))
    return styles


def _one_or_panels(of: Comparison, x: str, y: str) -> tuple[Figure, list[Axes]]:
    if len(of.methods) > 1:
        return draw.panels(of.names, [draw.look(i)[0] for i in range(len(of.methods))], x, y)
    figure, axes = draw.single_panel(x, y)
    return figure, [axes]


def _behind(axes: Axes, others: Sequence[Lines], metric: str) -> None:
    """The lines of the other methods, in grey."""
    for other in others:
        how = (metric, draw.MUTED, "-", "")
        draw.line(axes, other.x, other.mean, *how, width=0.8, alpha=0.35, most=_BEHIND)


def _end(x: NDArray, y: NDArray, metric: str, name: str, colour: str) -> list[draw.End]:
    """The last finite point of a line, if there is one."""
    known = np.flatnonzero(np.isfinite(y))
    if not known.size:
        return []
    return [draw.End(float(x[known[-1]]), float(draw.scaled(y[known[-1]], metric)), name, colour)]


def _say_nothing(axes: Axes) -> None:
    axes.text(
        0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", color=draw.MUTED, fontsize=8.5
    )


def _marks(axes: Axes, pairs: draw.NDArray, metric: str, colour: str, size: float, *, filled: bool) -> None:
    x, y = draw.scaled(pairs, metric)
    axes.plot(
        x,
        y,
        linestyle="none",
        marker="o",
        markersize=size,
        markerfacecolor=colour if filled else "none",
        markeredgecolor=colour,
        markeredgewidth=0 if filled else 1.2,
        alpha=0.6 if filled else 1.0,
        rasterized=x.size > draw.MOST_MARKERS,
    )


# --- what is drawn ------------------------------------------------------------------------------------------------


def over_clients(of: Comparison, split: str, metric: str) -> bool:
    """Whether all runs have recorded the mean over clients of a metric by round."""
    return all(column(split, metric, "mean") in run.history for run in of.runs)


def _key(of: Comparison, split: str) -> str:
    """The recorded mean over clients or, where some run lacks it, that over examples."""
    return column(split, of.metric, "mean" if over_clients(of, of.split, of.metric) else "")


def _by_round(method: Method, key: str, thin: str = "") -> Lines:
    """A recorded series at the rounds that all runs of a method have evaluated."""
    every = [np.asarray(run.history["round"], np.float64) for run in method.runs]
    rounds = reduce(np.intersect1d, every)

    def past(key: str) -> NDArray:
        known = [
            np.asarray(run.history.get(key, np.full(len(x), np.nan)), np.float64)[np.isin(x, rounds)]
            for run, x in zip(method.runs, every, strict=True)
        ]
        return draw.finite(np.stack(known))

    found = past(key)
    return Lines(rounds, found.mean(0), found.min(0), found.max(0), past(thin).mean(0) if thin else None)


def _served(method: Method, of: Comparison) -> Lines:
    """Clients in the order of what they get, at their share of all clients in percent."""
    ordered = [np.sort(_finite_clients(x)) for x in _clients(method, of)]
    if not is_higher_better(of.metric):
        ordered = [x[::-1] for x in ordered]
    most = max(x.size for x in ordered)
    share = 100 * (np.arange(most) + 0.5) / max(most, 1)
    every = np.stack(
        [
            x
            if x.size == most
            else np.interp(share, 100 * (np.arange(x.size) + 0.5) / x.size, x)
            if x.size
            else np.full(most, np.nan)
            for x in ordered
        ]
    )
    return Lines(share, every.mean(0), every.min(0), every.max(0))


def _clients(method: Method, of: Comparison) -> list[NDArray]:
    return [client_values(run, of.split, of.metric) for run in method.runs]


def _finite_clients(values: NDArray) -> NDArray:
    return values[np.isfinite(values)]


def _sizes_and_values(method: Method, of: Comparison) -> tuple[NDArray, NDArray]:
    sizes = [np.asarray(run.sizes["train"], np.float64) for run in method.runs]
    values = _clients(method, of)
    if of._replace(methods=(method,)).same_clients:
        sizes, values = sizes[:1], [np.mean(values, axis=0)]
    every, found = np.concatenate(sizes), np.concatenate(values)
    shown = np.isfinite(found) & (every > 0)
    return every[shown], found[shown]


def _pairs(run: RunView, split: str, metric: str) -> draw.NDArray:
    """Each client's metric with the global model and with its own, ``(2, K)``."""
    return np.stack([client_values(run, split, name) for name in (of_global(metric), metric)])


# --- the figures of a page ----------------------------------------------------------------------------------------

_MOST_EXTRA_FIGURES = 6


def gallery(subject: Comparison, further: Sequence[str] = ()) -> str:
    """Learning curves, then what each client gets, then further figures and whatever else was recorded."""
    shown = [*_curve_figures(subject), *_client_figures(subject), *further]
    for i, key in enumerate(_extra_series(subject.runs)):
        name = key.replace("_", " ")
        name = name if len(name) < 4 else name[:1].upper() + name[1:]
        shown.append(svg(series(subject, key), f"series{i}", name, "By round.", f"{name} by round."))
    note = _how_to_read(subject)
    return (
        f'<section>\n<h2>Figures</h2>\n{note}<div class="figures">\n'
        + "\n".join(shown)
        + "\n</div>\n</section>"
    )


def _how_to_read(subject: Comparison) -> str:
    """Notes on all figures."""
    whose = subject.covered
    notes = [] if whose.is_complete else [f"Of {whose.text}."]
    if len(subject.methods) > 3:
        notes.append("A panel per method, on equal scales; grey: the other methods.")
    if subject.seeds > 1:
        notes.append(
            f"Lines are means over {subject.seeds} seeds; bands span the lowest to the highest seed."
        )
    return f'<p class="caption">{escape(" ".join(notes))}</p>\n' if notes else ""


def _curve_figures(subject: Comparison) -> list[str]:
    """The metric by round and, unless that is the loss, the loss."""
    runs, metric, split, several = subject.runs, subject.metric, subject.split, len(subject.methods) > 1
    if not any(len(run.history["round"]) for run in runs):
        return []
    title = f"{subject.what} by round".capitalize()
    note = "Mean over clients" if over_clients(subject, split, metric) else "Mean over all examples"
    if several:
        note += "; dashed: worst tenth of the clients."
    else:
        note += "." if subject.seeds > 1 else "; band: worst to best tenth of the clients."
    shown = [svg(learning_curve(subject), "curve", title, note, f"{title}. {_message(subject)}")]
    loss_split = "train" if several else split
    if metric != "loss" and any(f"{loss_split}_loss" in run.history for run in runs):
        title = f"{'Training loss' if several else 'Loss'} by round"
        figure = learning_curve(subject._replace(metric="loss", split=loss_split))
        shown.append(svg(figure, "loss", title, "Mean over all examples.", f"{title}."))
    return shown


def _client_figures(subject: Comparison) -> list[str]:
    """What each client gets at the end of the run."""
    metric, split, what = subject.metric, subject.split, subject.what
    counts = [np.isfinite(client_values(run, split, metric)).sum() for run in subject.runs]
    many = max(counts) >= MEDIANS_FROM
    return [
        svg(
            client_histogram(subject),
            "histogram",
            "How many clients get how much",
            f"Clients by {what}.",
            f"Histogram of the {what} per client. {_message(subject)}",
        ),
        svg(
            client_curve(subject),
            "clients",
            "Every client, worst served first",
            "The flatter, the more even. Shaded: the worst tenth.",
            f"The {what} of every client, worst served first. {_message(subject)}",
        ),
        svg(
            size_scatter(subject),
            "sizes",
            "Does a client's size decide what it gets?",
            "One mark per client." + (" Lines: medians by size." if many else ""),
            f"The {what} of every client against its number of training examples.",
        ),
    ]


def personal_figures(subject: Comparison) -> list[str]:
    """The figure of global and personal models, if anybody has a model of its own."""
    methods = personalized(subject)
    if not methods:
        return []
    told = (in_words(method.runs[0], subject.split, subject.metric) for method in methods)
    words = " ".join(f"{isolated(method.name)}: {each}" for method, each in zip(methods, told, strict=True))
    unseen = any(run.unseen is not None for method in methods for run in method.runs)
    note = "One mark per client; above the line, its own model serves it better."
    note += " Hollow: clients unseen in training." if unseen else ""
    note += " Clients that never trained are left out." if left_out(methods) else ""
    figure = personal_scatter(subject._replace(methods=methods))
    return [svg(figure, "personal", "The global model, or a model of one's own?", note, words)]


def _message(subject: Comparison) -> str:
    """The figure's message in words, for those who cannot see it."""
    metric = subject.metric
    sentences: list[str] = []
    for method in subject.methods:
        stats = method.statistics(subject.split, metric)
        mean, low, high = (value(float(np.mean(stats[key])), metric) for key in ("mean", "worst10", "best10"))
        sentences.append(f"{isolated(method.name)}: mean {mean}, worst tenth {low}, best tenth {high}.")
    return " ".join(sentences)


def _extra_series(runs: Sequence[RunView]) -> list[str]:
    """Other recorded series that change during some run, such as ``mu``: not metrics or their statistics."""
    known = ("round", *(f"{split}_" for split in SPLITS))
    keys = dict.fromkeys(key for run in runs for key in run.history if not key.startswith(known))

    def moves(key: str) -> bool:
        return any(np.unique(x[np.isfinite(x)]).size > 1 for x in (_past(run, key) for run in runs))

    return [key for key in keys if moves(key)][:_MOST_EXTRA_FIGURES]


def _past(run: RunView, key: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(run.history.get(key, []), np.float64)
