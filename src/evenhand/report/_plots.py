"""How the figures are drawn, and how a page shows them.

First each figure as :mod:`evenhand.report.figures` describes it; then what the lines of a method are computed from;
then the figures of a page, each with a title, how to read it, and its message in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from evenhand.evaluation import SPLIT_NAMES, SPLITS, column, is_higher_better, of_global, worst
from evenhand.report import draw
from evenhand.report._comparison import Comparison, Method
from evenhand.report._families import (
    availability_limited,
    availability_words,
    differs_in_availability,
    in_words,
    left_out,
    personalized,
    trained,
)
from evenhand.report._view import RunView, among, client_values, covered, direction
from evenhand.report.formatting import capital, note, section, svg, value
from evenhand.text import isolated

NDArray = npt.NDArray[np.float64]

MEDIANS_FROM = 40
"""From this many clients on, a scatter plot gets a line of medians."""

_FEW = 150
"""Clients up to which marks are large."""

_DASHED = (0, (2, 1.5))

_TAIL, _SEEDS = "worst tenth", "range of seeds"
"""What is dashed or shaded, and what a band spans, in legends."""

_BY_CLIENT = "clients, worst served first (%)"

_IN_A_PANEL, _BEHIND = 100, 25
"""Most points of a line in a small panel: of the panel's method, and of the others behind it."""


_PLAIN = draw.Looks()


# --- the figures --------------------------------------------------------------------------------------------------


def learning_curve(subject: Comparison, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.learning_curve`."""
    metric, split = subject.metric, subject.split
    key = _key(subject, split)
    lines = [_by_round(method, key, column(split, metric, "worst10")) for method in subject.methods]
    if len(subject.methods) > 1:
        return _compared(dict(enumerate(lines)), subject, metric, "round", draw.label(metric, split), looks)
    figure, axes = draw.single_panel("round", draw.label(metric, None))
    method, main, ends = next(iter(subject.methods)), lines[0], list[draw.End]()
    for other, colour in (("valid", draw.PALETTE[2]), ("train", draw.MUTED)):
        if other != split:
            dashed = _by_round(method, _key(subject, other))
            draw.line(axes, dashed.x, dashed.mean, metric, colour, (0, (4, 2)), SPLIT_NAMES[other])
            ends += _end(dashed, metric, SPLIT_NAMES[other], colour)
    low, high, colour, area = main.low, main.high, looks.at(0, method.name)[0], _SEEDS
    if len(method.runs) == 1:
        area = "worst to best tenth"
        low, high = (_by_round(method, column(split, metric, tail)).mean for tail in ("worst10", "best10"))
    draw.band(axes, main.x, low, high, metric, colour, area)
    draw.line(axes, main.x, main.mean, metric, colour, "-", SPLIT_NAMES[split])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    draw.log_if_wide(metric, axes)
    draw.label_ends(figure, axes, [*ends, *_end(main, metric, SPLIT_NAMES[split], colour)])
    return figure


class Amount(NamedTuple):
    """What a run spends more and more of, to draw a metric against.

    Attributes:
      columns: of the history, which are added.
      words: what it is called.
      units: unit -> its size in that of the columns, ascending.
    """

    columns: tuple[str, ...]
    words: str
    units: Mapping[str, float] = MappingProxyType({"": 1.0})

    def of(self, run: RunView) -> NDArray | None:
        """The amount at each evaluation of a run; None where it was not recorded."""
        if not all(name in run.history for name in self.columns):
            return None
        return np.sum([np.asarray(run.history[name], np.float64) for name in self.columns], axis=0)


_BYTES: Mapping[str, float] = MappingProxyType({"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12})
_TIMES: Mapping[str, float] = MappingProxyType({"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0})

AMOUNTS: Mapping[str, Amount] = MappingProxyType(
    {
        "bytes": Amount(("bytes_down", "bytes_up"), "received and sent by clients", _BYTES),
        "bytes_down": Amount(("bytes_down",), "received by clients", _BYTES),
        "bytes_up": Amount(("bytes_up",), "sent by clients", _BYTES),
        "time": Amount(("time",), "simulated time", _TIMES),
    }
)
"""Amounts with a name and a unit; any other column of the history that only grows is an amount under its own name."""

_WIDE = 8
"""Where the most that a method spends is so many times what another does, the axis is logarithmic."""


def metric_against(subject: Comparison, amount: Amount, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.metric_against`."""
    metric, split = subject.metric, subject.split
    key, thin = _key(subject, split), column(split, metric, "worst10")
    spent = [np.mean(_recorded(method, amount.of), axis=0) for method in subject.methods]
    most = [float(np.max(x[np.isfinite(x)], initial=0.0)) for x in spent]
    unit, size = max(
        ((unit, size) for unit, size in amount.units.items() if size <= max(*most, 1.0)), key=lambda x: x[1]
    )
    lines = {
        i: _by_round(method, key, thin)._replace(x=x / size)
        for i, (method, x) in enumerate(zip(subject.methods, spent, strict=True))
    }
    label = f"{amount.words} ({unit})" if unit else amount.words
    figure = _compared(lines, subject, metric, label, draw.label(metric, split), looks)
    if max(most) >= _WIDE * min(most) > 0:
        for axes in figure.axes:
            # Before the first round nothing is spent, which has no place on such an axis.
            axes.set_xscale("log", nonpositive="mask")
    return figure


def amount_of(name: str) -> Amount:
    """The amount of this name, or the column of the history."""
    return AMOUNTS.get(name, Amount((name,), draw.short(name.replace("_", " "))))


def has_amount(subject: Comparison, amount: Amount) -> bool:
    """Whether all runs have recorded an amount, and some have spent any of it."""
    spent = [amount.of(run) for run in subject.runs]
    return all(x is not None for x in spent) and any(np.any(x > 0) for x in spent if x is not None)


def client_histogram(subject: Comparison, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.client_histogram`."""
    metric, several = subject.metric, len(subject.methods) > 1
    values = [[_finite(x) for x in _clients(method, subject)] for method in subject.methods]
    pooled = np.concatenate([x for method in values for x in method])
    edges = draw.edges(pooled, metric, max(x.size for method in values for x in method), _rows(subject))
    figure, every = _one_or_panels(
        subject, draw.label(metric, subject.split), subject.worded("clients"), looks
    )
    for i, axes in enumerate(every):
        counts = np.mean([np.histogram(x, edges)[0] for x in values[i]], axis=0)
        left, width = draw.scaled(edges[:-1], metric), np.diff(draw.scaled(edges, metric))
        axes.bar(
            left + width / 2,
            counts,
            0.92 * width,
            color=looks.at(i, subject.names[i])[0],
            alpha=0.75,
            linewidth=0,
        )
        axes.yaxis.set_major_locator(MaxNLocator(3 if several else 6, integer=True))
        if subject.is_share and edges[-1] == 1 and pooled.size:
            draw.percent_axis(axes, 100 * edges[0], 6 if len(every) <= draw.MOST_SHARED else 3)
        axes.grid(axis="x", visible=False)
        seeds = [x for x in values[i] if x.size]
        if not seeds:
            _say_nothing(axes)
            continue
        tail = np.mean([worst(x, higher_is_better=is_higher_better(metric)) for x in seeds])
        mean = np.mean([x.mean() for x in seeds])
        for x, style, name in ((mean, "-", "mean"), (tail, ":", _TAIL)):
            at = float(draw.scaled(x, metric))
            axes.axvline(at, color=draw.INK, linewidth=1.0, linestyle=style, label=name)
    draw.legend(figure, next((axes for axes in every if axes.lines), every[0]))
    return figure


def client_curve(subject: Comparison, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.client_curve`."""
    lines = {i: _served(method, subject) for i, method in enumerate(subject.methods)}
    label = draw.label(subject.metric, subject.split)
    return _compared(lines, subject, subject.metric, _BY_CLIENT, label, looks)


def size_scatter(subject: Comparison, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.size_scatter`."""
    points = [_sizes_and_values(method, subject) for method in subject.methods]
    x, medians = map(subject.worded, ("training examples of the client", "median of clients of similar size"))
    figure, every = _scatter(subject, points, x, medians, looks)
    counts = np.concatenate([sizes for sizes, _ in points])
    draw.count_axis(every[0], counts, dense=len(every) <= draw.MOST_SHARED)
    return figure


def availability_scatter(subject: Comparison, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.availability_scatter`."""
    points = [_shares_and_values(method, subject) for method in subject.methods]
    medians = "median of clients of similar availability"
    return _scatter(subject, points, "rounds in which the client was available (%)", medians, looks)[0]


def _scatter(
    subject: Comparison,
    points: Sequence[tuple[NDArray, NDArray]],
    x: str,
    medians: str,
    looks: draw.Looks,
) -> tuple[Figure, list[Axes]]:
    """A mark for each client, ``(x, metric)`` of each method; for many clients also the medians."""
    metric = subject.metric
    figure, every = _one_or_panels(subject, x, draw.label(metric, subject.split), looks)
    many = sum(values.size for _, values in points) > draw.MOST_MARKERS
    for i, (axes, (sizes, values)) in enumerate(zip(every, points, strict=True)):
        few = values.size <= _FEW
        size = (5 if few else 3) if len(every) == 1 else (3.5 if few else 2)
        colour = looks.at(i, subject.names[i])[0]
        look: dict[str, Any] = {"color": colour, "alpha": 0.7 if few else 0.3, "markeredgewidth": 0}
        axes.plot(sizes, draw.scaled(values, metric), "o", markersize=size, rasterized=many, **look)
        if values.size >= MEDIANS_FROM:
            groups = np.array_split(np.argsort(sizes, kind="stable"), 8)
            x, y = np.array([[np.median(sizes[group]), np.median(values[group])] for group in groups]).T
            axes.plot(x, draw.scaled(y, metric), color=draw.INK, label=medians)
        if not values.size:
            _say_nothing(axes)
    draw.log_if_wide(metric, *every)
    if len(every) == 1:
        draw.legend(figure, every[0])
    return figure, every


def personal_scatter(subject: Comparison, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.personal_scatter`."""
    metric, label = subject.metric, draw.label(subject.metric, subject.split)
    across, up = (f"{label} of the {owner} model" for owner in ("global", "client's own"))
    figure, every = _one_or_panels(subject, across, up, looks)
    values: list[NDArray] = []
    for i, (axes, method) in enumerate(zip(every, subject.methods, strict=True)):
        honest = [among(run, "honest") for run in method.runs]
        seen = np.concatenate([_pairs(run, subject)[:, trained(run)] for run in honest], axis=1)
        new = [_pairs(run.unseen, subject) for run in method.runs if run.unseen is not None]
        size = (5.0 if seen.shape[1] <= _FEW else 3.0) * (1.0 if len(every) == 1 else 0.7)
        colour = looks.at(i, method.name)[0]
        filled: dict[str, Any] = {"markerfacecolor": colour, "markeredgewidth": 0, "alpha": 0.6}
        hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.2, "alpha": 1.0}
        for pairs, look in ((seen, filled), *((np.concatenate(new, axis=1), hollow) for _ in new[:1])):
            x, y = draw.scaled(pairs, metric)
            look |= {"markeredgecolor": colour, "rasterized": x.size > draw.MOST_MARKERS}
            axes.plot(x, y, "o", markersize=size, **look)
            values += [x, y]
    finite = _finite(np.concatenate(values))
    if finite.size:
        ends = [finite.min(), finite.max()]
        for axes in every:
            axes.plot(ends, ends, color=draw.INK, linewidth=1.0, zorder=1)
    return figure


def series(subject: Comparison, key: str, looks: draw.Looks = _PLAIN) -> Figure:
    """See :func:`evenhand.report.figures.series`."""
    lines = {i: _by_round(method, key) for i, method in enumerate(subject.methods)}
    recorded = {i: line for i, line in lines.items() if np.isfinite(line.mean).any()}
    return _compared(recorded or lines, subject, "", "round", draw.short(key.replace("_", " ")), looks)


# --- their parts --------------------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """A method's line: the mean over its seeds, the lowest and the highest; ``thin``: the worst tenth."""

    x: NDArray
    mean: NDArray
    low: NDArray
    high: NDArray
    thin: NDArray | None = None


def _compared(
    lines: Mapping[int, Lines], subject: Comparison, metric: str, x: str, y: str, looks: draw.Looks
) -> Figure:
    """A line per method, by its position: on shared axes, or each in its panel in front of the others."""
    names = [subject.names[i] for i in lines]
    styles = [looks.at(i, name) for i, name in zip(lines, names, strict=True)]
    shared, clients = looks.shared(len(lines)), x == _BY_CLIENT
    figure, every = _axes(names, [colour for colour, _ in styles], subject.worded(x), y, shared=shared)
    for axes in every:
        if clients:
            axes.set_xlim(0, 100)
            axes.axvspan(0, 10, color=draw.GRID, linewidth=0)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6 if shared else 4, integer=x == "round"))
    ends: list[draw.End] = []
    for k, (i, line) in enumerate(lines.items()):
        axes, (colour, style) = every[k % len(every)], styles[k]
        for j, other in () if shared else lines.items():
            if j != i:
                look = (metric, draw.MUTED, "-", "")
                draw.line(axes, other.x, other.mean, *look, width=0.8, alpha=0.35, most=_BEHIND)
        most = draw.MOST_POINTS if shared else _IN_A_PANEL
        if line.thin is not None:
            draw.line(axes, line.x, line.thin, metric, colour, _DASHED, "", width=1.1, most=most)
        if len(subject.methods[i].runs) > 1:
            draw.band(axes, line.x, line.low, line.high, metric, colour)
        name, marker = names[k] if len(subject.methods) > 1 else "", draw.MARKERS[i % 6] if clients else "o"
        dashes = style if shared else "-"
        draw.line(axes, line.x, line.mean, metric, colour, dashes, name, marker=marker, most=most)
        ends += _end(line, metric, name, colour) if name else []
        if not shared and not np.isfinite(line.mean).any():
            _say_nothing(axes)
    draw.log_if_wide(metric or y, *every)  # a series is no metric, but its name says whether it is of a share
    seeds = any(len(subject.methods[i].runs) > 1 for i in lines)
    meanings = _styles(lines.values(), shaded=clients, seeds=seeds)
    if shared:
        draw.label_ends(figure, every[0], ends, meanings)
    else:
        draw.legend(figure, every[0], meanings, but=names)
    return figure


def _styles(lines: Iterable[Lines], *, shaded: bool, seeds: bool) -> list[draw.Style]:
    """What dashes, shades and bands mean; in grey, since each method's have its colour."""
    styles: list[draw.Style] = []
    if shaded:
        styles.append((Patch(color=draw.GRID, linewidth=0), _TAIL))
    elif any(line.thin is not None and np.isfinite(line.thin).any() for line in lines):
        dashes = Line2D([], [], color=draw.MUTED, linestyle=_DASHED, linewidth=1.1)
        styles.append((dashes, _TAIL))
    if seeds:
        styles.append((Patch(color=draw.MUTED, alpha=0.3, linewidth=0), _SEEDS))
    return styles


def _one_or_panels(subject: Comparison, x: str, y: str, looks: draw.Looks) -> tuple[Figure, list[Axes]]:
    """A panel for each method; for a single one, plain axes."""
    colours = [looks.at(i, name)[0] for i, name in enumerate(subject.names)]
    return _axes(subject.names, colours, x, y, shared=len(colours) == 1)


def _axes(
    names: Sequence[str], colours: Sequence[str], x: str, y: str, *, shared: bool
) -> tuple[Figure, list[Axes]]:
    if not shared:
        return draw.panels(names, colours, x, y)
    figure, axes = draw.single_panel(x, y)
    return figure, [axes]


def _end(line: Lines, metric: str, name: str, colour: str) -> list[draw.End]:
    """The last finite point of a line, if there is one."""
    last = np.flatnonzero(np.isfinite(line.mean))[-1:]
    return [draw.End(float(line.x[i]), float(draw.scaled(line.mean[i], metric)), name, colour) for i in last]


def _say_nothing(axes: Axes) -> None:
    words, colour = "no finite values", draw.MUTED
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color=colour, fontsize=8.5)


# --- what is drawn ------------------------------------------------------------------------------------------------


def over_clients(subject: Comparison, split: str, metric: str) -> bool:
    """Whether all runs have recorded the mean over clients of a metric by round."""
    return all(column(split, metric, "mean") in run.history for run in subject.runs)


def is_by_round(subject: Comparison) -> bool:
    """Whether some run has recorded the metric by round: those of sets of examples are measured after the last one."""
    names = [column(subject.split, subject.metric, statistic) for statistic in ("mean", "")]
    return any(name in run.history for run in subject.runs for name in names)


def _key(subject: Comparison, split: str) -> str:
    """The recorded mean over clients or, where some run lacks it, that over examples."""
    statistic = "mean" if over_clients(subject, subject.split, subject.metric) else ""
    return column(split, subject.metric, statistic)


def _by_round(method: Method, key: str, thin: str = "") -> Lines:
    """A recorded series at the rounds that all runs of a method have evaluated."""

    def past(name: str) -> NDArray:
        return draw.finite(_recorded(method, lambda run: run.history.get(name)))

    (rounds, *_) = _recorded(method, lambda run: run.history["round"])
    return _lines(rounds, past(key), past(thin).mean(0) if thin else None)


def _recorded(method: Method, series: Callable[[RunView], NDArray | None]) -> NDArray:
    """A series of each run at the rounds that all runs of a method have evaluated; NaN where it was not recorded."""
    every = [np.asarray(run.history["round"], np.float64) for run in method.runs]
    # A mean over the seeds needs all of them: a run that was stopped early ends the line.
    rounds = reduce(np.intersect1d, every)
    values = [series(run) for run in method.runs]
    return np.stack(
        [
            (np.full(len(x), np.nan) if y is None else np.asarray(y, np.float64))[np.isin(x, rounds)]
            for x, y in zip(every, values, strict=True)
        ]
    )


def _lines(x: NDArray, seeds: NDArray, thin: NDArray | None = None) -> Lines:
    return Lines(x, seeds.mean(0), seeds.min(0), seeds.max(0), thin)


def _served(method: Method, subject: Comparison) -> Lines:
    """Clients in the order of what they get, at their share of all clients in percent."""
    ordered = [np.sort(_finite(x)) for x in _clients(method, subject)]
    if not is_higher_better(subject.metric):
        ordered = [x[::-1] for x in ordered]
    most = max(x.size for x in ordered)
    share = _shares(most)
    # Seeds may have different numbers of clients; those with fewer are drawn through the others' shares.
    every = [x if x.size == most else np.interp(share, _shares(x.size), x) for x in ordered if x.size]
    lost = [np.full(most, np.nan)] * (len(ordered) - len(every))
    return _lines(share, np.stack([*every, *lost]))


def _shares(clients: int) -> NDArray:
    return 100 * (np.arange(clients) + 0.5) / max(clients, 1)


def _clients(method: Method, subject: Comparison) -> list[NDArray]:
    return [client_values(run, subject.split, subject.metric) for run in method.runs]


def _rows(subject: Comparison) -> float:
    """The median number of examples of the clients that have some; without end where it is not known."""
    sizes = [np.asarray(run.sizes.get(subject.split, []), np.float64) for run in subject.runs]
    pooled = np.concatenate(sizes)
    return float(np.median(pooled[pooled > 0])) if np.any(pooled > 0) else math.inf


def _finite(values: NDArray) -> NDArray:
    return values[np.isfinite(values)]


def _sizes_and_values(method: Method, subject: Comparison) -> tuple[NDArray, NDArray]:
    """Training examples and metric of each client: its mean over the seeds, or a mark for each where clients differ."""
    sizes = [np.asarray(run.sizes["train"], np.float64) for run in method.runs]
    values = _clients(method, subject)
    if subject._replace(methods=(method,)).same_clients:
        sizes, values = sizes[:1], [np.mean(values, axis=0)]
    every, metric = np.concatenate(sizes), np.concatenate(values)
    shown = np.isfinite(metric) & (every > 0)
    return every[shown], metric[shown]


def _shares_and_values(method: Method, subject: Comparison) -> tuple[NDArray, NDArray]:
    """Percent of the rounds and metric of each client: means over the seeds, or all where clients differ."""
    shares = [100.0 * np.asarray(run.availability, np.float64) for run in method.runs]
    values = _clients(method, subject)
    if subject._replace(methods=(method,)).same_clients:
        shares, values = [np.mean(shares, axis=0)], [np.mean(values, axis=0)]
    share, metric = np.concatenate(shares), np.concatenate(values)
    shown = np.isfinite(metric) & np.isfinite(share)
    return share[shown], metric[shown]


def _pairs(run: RunView, subject: Comparison) -> NDArray:
    """Each client's metric with the global model and with its own, ``(2, K)``."""
    names = (of_global(subject.metric), subject.metric)
    return np.stack([client_values(run, subject.split, name) for name in names])


# --- the figures of a page ----------------------------------------------------------------------------------------

_MOST_EXTRA_FIGURES = 6


def gallery(subject: Comparison, further: Sequence[str] = ()) -> str:
    """Learning curves, then what each client gets, then further figures and whatever else was recorded."""
    shown = [*_curve_figures(subject), *_amount_figures(subject), *_client_figures(subject), *further]
    for i, key in enumerate(_extra_series(subject.runs)):
        name = key.replace("_", " ")
        name = name if len(name) < 4 else capital(name)  # short ones are symbols, such as mu
        shown.append(svg(series(subject, key), f"series{i}", name, "By round.", f"{name} by round."))
    return section("Figures", _how_to_read(subject), '<div class="figures">', *shown, "</div>")


def _how_to_read(subject: Comparison) -> str:
    """Notes on all figures."""
    whose, training = subject.covered, covered(subject.runs, "train")
    notes = [] if whose.is_complete else [f"Of {whose.text}."]
    if not whose.is_complete and training.text != whose.text and subject.split != "train":
        notes[0] = f"{capital(SPLIT_NAMES[subject.split])}: of {whose.text}. Training: of {training.text}."
    if len(subject.methods) > draw.MOST_SHARED:
        notes.append("A panel per method, on equal scales; grey: the other methods.")
    if subject.seeds > 1:
        seeds = f"{subject.seeds} seeds"
        notes.append(f"Lines are means over {seeds}; bands span the lowest to the highest seed.")
    return note(" ".join(notes), "caption")


def _curve_figures(subject: Comparison) -> list[str]:
    """The metric by round, if it was measured by round, and, unless that is the loss, the loss."""
    runs, metric, split, several = subject.runs, subject.metric, subject.split, len(subject.methods) > 1
    if not any(len(run.history["round"]) for run in runs):
        return []
    shown = list[str]()
    if is_by_round(subject):
        title = f"{subject.quantity} by round".capitalize()
        text = "Mean over clients" if over_clients(subject, split, metric) else "Mean over all examples"
        if several:
            text += "; dashed: worst tenth of the clients."
        else:
            text += "." if subject.seeds > 1 else "; band: worst to best tenth of the clients."
        text = subject.worded(text)
        shown = [svg(learning_curve(subject), "curve", title, text, f"{title}. {_message(subject)}")]
    loss_split = "train" if several else split
    if metric != "loss" and any(f"{loss_split}_loss" in run.history for run in runs):
        title = f"{'Training loss' if several else 'Loss'} by round"
        figure = learning_curve(subject._replace(metric="loss", split=loss_split))
        shown.append(svg(figure, "loss", title, "Mean over all examples.", f"{title}."))
    return shown


def _amount_figures(subject: Comparison) -> list[str]:
    """The metric against what clients have received and sent, and against simulated time."""
    shown: list[str] = []
    for key, name, words in (
        ("bytes", "communication", "All clients together, up to each evaluation"),
        ("time", "time", "A round lasts as long as its slowest client, or until the deadline"),
    ):
        if is_by_round(subject) and has_amount(subject, AMOUNTS[key]):
            title = f"{subject.quantity} against {name}".capitalize()
            text = f"{words}; dashed: worst tenth of the clients."
            alt = f"{title}. {_message(subject)}"
            shown.append(svg(metric_against(subject, AMOUNTS[key]), name, title, text, alt))
    return shown


def _client_figures(subject: Comparison) -> list[str]:
    """What each client gets at the end of the run."""
    quantity, message = subject.quantity, _message(subject)
    most = max(_finite(client_values(run, subject.split, subject.metric)).size for run in subject.runs)
    medians = " Lines: medians by size." if most >= MEDIANS_FROM else ""
    say, a_client = subject.worded, subject.worded("client")
    title, alt = (
        say("How many clients get how much"),
        f"Histogram of the {quantity} per {a_client}. {message}",
    )
    histogram = svg(
        client_histogram(subject), "histogram", title, f"{capital(a_client)}s by {quantity}.", alt
    )
    title, text = (
        say("Every client, worst served first"),
        "The flatter, the more even. Shaded: the worst tenth.",
    )
    alt = f"The {quantity} of every {a_client}, worst served first. {message}"
    curve = svg(client_curve(subject), "clients", title, text, alt)
    title, text = say("Does a client's size decide what it gets?"), f"One mark per {a_client}.{medians}"
    alt = f"The {quantity} of every {a_client} against its number of training examples."
    return [histogram, curve, svg(size_scatter(subject), "sizes", title, text, alt)]


def personal_figures(subject: Comparison) -> list[str]:
    """The figure of global and personal models, if anybody has a personal model."""
    methods = personalized(subject)
    if not methods:
        return []
    split, metric = subject.split, subject.metric
    words = " ".join(f"{isolated(m.name)}: {in_words(m.runs[0], split, metric)}" for m in methods)
    side = "above" if direction("mean", metric) > 0 else "below"
    text = f"One mark per client; {side} the line, the personal model serves it better."
    if any(run.unseen is not None for method in methods for run in method.runs):
        text += " Hollow: clients unseen in training."
    text += " Clients that never trained are left out." if left_out(methods) else ""
    figure = personal_scatter(subject._replace(methods=methods))
    return [svg(figure, "personal", "Global or personal model?", text, words)]


def availability_figures(subject: Comparison) -> list[str]:
    """The figure of availability and what clients get, if some clients were not always available."""
    methods = availability_limited(subject)
    if not any(differs_in_availability(run) for method in methods for run in method.runs):
        return []
    words = " ".join(availability_words(method, subject.split, subject.metric) for method in methods)
    figure = availability_scatter(subject._replace(methods=methods))
    title = "Are rarely available clients served worse?"
    return [svg(figure, "availability", title, "One mark per client.", words)]


def _message(subject: Comparison) -> str:
    """The figure's message in words, for those who cannot see it."""
    sentences: list[str] = []
    for method in subject.methods:
        means = method.means(subject.split, subject.metric)
        mean, low, high = (value(means[key], subject.metric) for key in ("mean", "worst10", "best10"))
        sentences.append(f"{isolated(method.name)}: mean {mean}, worst tenth {low}, best tenth {high}.")
    return " ".join(sentences)


def _extra_series(runs: Sequence[RunView]) -> list[str]:
    """Other recorded series that change during some run, such as ``mu``: not metrics or their statistics."""
    metrics = ("round", "bytes_", "time", *(f"{split}_" for split in SPLITS))
    keys = dict.fromkeys(key for run in runs for key in run.history if not key.startswith(metrics))

    def moves(key: str) -> bool:
        past = [np.asarray(run.history.get(key, []), np.float64) for run in runs]
        return any(np.unique(_finite(x)).size > 1 for x in past)

    return [key for key in keys if moves(key)][:_MOST_EXTRA_FIGURES]
