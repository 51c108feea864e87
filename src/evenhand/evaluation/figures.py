"""Figures of runs, as free-standing matplotlib figures: no global state, no window.

Import this module by name: ``from evenhand.evaluation import figures``.  The package does not do so itself,
because matplotlib takes long to load and training needs none of it.

Every function takes one run or several, the name of a metric and that of a split, and gives a
``matplotlib.figure.Figure`` to be saved or shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evenhand.evaluation import _draw as draw
from evenhand.evaluation._summary import worst
from evenhand.evaluation._view import SPLIT_NAMES, RunView, client_values, is_higher_better, labels

__all__ = ["client_curve", "client_histogram", "learning_curve", "series", "size_scatter"]

MEDIANS_FROM = 40
"""With so many clients, a scatter gets a line of medians."""

NDArray = npt.NDArray[np.float64]


def learning_curve(runs: Sequence[RunView], metric: str, split: str) -> Figure:
    """A metric against the round.

    One run: a line per split, with a band from the worst to the best tenth of the clients of ``split``.
    Several runs: a line each on ``split``, and a thin dashed one for the worst tenth of its clients.
    """
    figure, axes = draw.axes()
    names = labels(runs)
    for i, run in enumerate(runs):
        rounds = np.asarray(run.history["round"], np.float64)
        if len(runs) == 1:
            for other, colour in (("valid", draw.PALETTE[2]), ("train", draw.MUTED)):
                if other != split:
                    name = f"{SPLIT_NAMES[other]} rows"
                    draw.line(
                        axes, rounds, draw.past(run, f"{other}_{metric}"), metric, colour, (0, (4, 2)), name
                    )
        low, high = draw.past(run, f"{split}_{metric}_worst10"), draw.past(run, f"{split}_{metric}_best10")
        colour, style = draw.look(i)
        name = f"{SPLIT_NAMES[split]} rows" if len(runs) == 1 else names[i]
        draw.line(axes, rounds, draw.past(run, f"{split}_{metric}"), metric, colour, style, name)
        if len(runs) == 1 and np.isfinite(low).any() and np.isfinite(high).any():
            thin = draw.thin(len(rounds))
            bounds = [draw.scaled(draw.finite(side), metric)[thin] for side in (low, high)]
            axes.fill_between(
                rounds[thin],
                *bounds,
                color=colour,
                alpha=0.15,
                linewidth=0,
                label="worst to best 10 % of clients",
            )
        else:
            draw.line(axes, rounds, low, metric, colour, (0, (2, 1.5)), "", width=1.1)
    axes.set_xlabel("round")
    axes.set_ylabel(draw.label(metric, split if len(runs) > 1 else None))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    draw.log_if_wide(axes)
    draw.legend(figure, axes)
    return figure


def client_histogram(runs: Sequence[RunView], metric: str, split: str) -> Figure:
    """How many clients get how much of a metric; a panel per run, on the same axes.

    A line marks the mean over clients, a dotted one that of the worst tenth.
    """
    values = [draw.finite_clients(run, split, metric) for run in runs]
    edges = draw.edges(np.concatenate(values), metric)
    with rc_context(draw.STYLE):
        figure = Figure(
            figsize=(draw.SIZE[0], max(draw.SIZE[1], 0.5 + 0.95 * len(runs))), layout="constrained"
        )
        panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for i, (axes, name) in enumerate(zip(panels, labels(runs), strict=True)):
        colour, _ = draw.look(i)
        axes.hist(
            draw.scaled(values[i], metric), draw.scaled(edges, metric), color=colour, alpha=0.75, rwidth=0.92
        )
        axes.yaxis.set_major_locator(MaxNLocator(3 if len(runs) > 1 else 6, integer=True))
        axes.grid(axis="x", visible=False)
        if values[i].size:
            tail = worst(values[i], higher_is_better=is_higher_better(metric))
            axes.axvline(draw.scaled(values[i].mean(), metric), color=draw.INK, linewidth=1.4, label="mean")
            axes.axvline(
                draw.scaled(tail, metric), color=draw.INK, linewidth=1.4, linestyle=":", label="worst 10 %"
            )
        if len(runs) > 1:
            axes.set_title(draw.short(name), loc="left", fontsize=9, color=colour, pad=3)
    panels[-1].set_xlabel(draw.label(metric, split))
    figure.supylabel("clients", fontsize=9, color=draw.INK)
    draw.legend(figure, panels[0])
    return figure


def client_curve(runs: Sequence[RunView], metric: str, split: str) -> Figure:
    """Every client of every run, worst served first; ``worst10`` is the mean over the shaded tenth."""
    figure, axes = draw.axes()
    axes.axvspan(0, 10, color=draw.GRID, linewidth=0)
    for i, (run, name) in enumerate(zip(runs, labels(runs), strict=True)):
        values = np.sort(draw.finite_clients(run, split, metric))
        if not is_higher_better(metric):
            values = values[::-1]
        share = 100 * (np.arange(values.size) + 0.5) / max(values.size, 1)
        colour, style = draw.look(i)
        draw.line(
            axes,
            share,
            values,
            metric,
            colour,
            style,
            name if len(runs) > 1 else "",
            marker=draw.MARKERS[i % 6],
        )
    axes.set_xlim(0, 100)
    axes.set_xlabel("clients, worst served first (%)")
    axes.set_ylabel(draw.label(metric, split))
    draw.log_if_wide(axes)
    draw.legend(figure, axes)
    return figure


def size_scatter(runs: Sequence[RunView], metric: str, split: str) -> Figure:
    """A metric of each client against its training rows; of many clients also the median by size."""
    figure, axes = draw.axes()
    everyone: list[NDArray] = []
    for i, (run, name) in enumerate(zip(runs, labels(runs), strict=True)):
        values, sizes = client_values(run, split, metric), np.asarray(run.sizes["train"], np.float64)
        shown = np.isfinite(values) & (sizes > 0)
        values, sizes = values[shown], sizes[shown]
        everyone.append(sizes)
        colour, style = draw.look(i)
        axes.plot(
            sizes,
            draw.scaled(values, metric),
            linestyle="none",
            marker=draw.MARKERS[i % len(draw.MARKERS)],
            markersize=5 if values.size <= 150 else 3,
            markeredgewidth=0,
            color=colour,
            alpha=0.7 if values.size <= 150 else 0.3,
            label=draw.short(name) if len(runs) > 1 else "",
            rasterized=values.size * len(runs) > draw.MOST_MARKERS,
        )
        if values.size >= MEDIANS_FROM:
            groups = np.array_split(np.argsort(sizes, kind="stable"), 8)
            medians = [[np.median(sizes[group]), np.median(values[group])] for group in groups]
            x, y = np.array(medians).T
            name = "median among clients of a size" if len(runs) == 1 else ""
            axes.plot(
                x,
                draw.scaled(y, metric),
                color=draw.INK if len(runs) == 1 else colour,
                linestyle=style,
                label=name,
            )
    axes.set_xlabel("training rows of the client")
    axes.set_ylabel(draw.label(metric, split))
    draw.count_axis(axes, np.concatenate(everyone))
    draw.log_if_wide(axes)
    draw.legend(figure, axes)
    return figure


def series(runs: Sequence[RunView], key: str) -> Figure:
    """Any recorded number against the round."""
    figure, axes = draw.axes()
    for i, (run, name) in enumerate(zip(runs, labels(runs), strict=True)):
        rounds, (colour, style) = np.asarray(run.history["round"], np.float64), draw.look(i)
        draw.line(axes, rounds, draw.past(run, key), "", colour, style, name if len(runs) > 1 else "")
    axes.set_xlabel("round")
    axes.set_ylabel(draw.short(key.replace("_", " ")))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    draw.log_if_wide(axes)
    draw.legend(figure, axes)
    return figure
