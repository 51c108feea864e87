"""The layout of figures: shared axes or a panel per method, labels at the ends of lines, legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from evenhand.report import draw

__all__ = ["End", "Style", "fit", "label_ends", "legend", "one", "panels", "title"]

MOST_SHARED = 3
"""Up to this many methods share one pair of axes; more get a panel each."""

_WIDTH, _HEIGHT = 4.4, 3.1
_LONGEST_END = 18
"""How many letters fit beside the axes, even in the wider fonts of browsers."""

_FARTHEST_END = 0.05
"""How far a label may be from its line's end, as a share of the axes' height."""

_LETTERS = 54
"""How many letters a row of a legend holds, counting 7 for each line's sample."""


class End(NamedTuple):
    """Where a line ends, and what it is called."""

    x: float
    y: float
    name: str
    colour: str


class Style(NamedTuple):
    """What a kind of line or area means, whatever its colour."""

    handle: Artist
    name: str


def one(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    with rc_context(draw.STYLE):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def panels(names: Sequence[str], colours: Sequence[str], x: str, y: str) -> tuple[Figure, list[Axes]]:
    """A panel for each name, in its colour and on the same scales: one column of up to three, else two columns."""
    columns = 1 if len(names) <= MOST_SHARED else 2
    rows = -(-len(names) // columns)
    with rc_context(draw.STYLE):
        height = max(_HEIGHT, 0.55 + (1.0 if columns == 1 else 1.15) * rows)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        figure.supxlabel(x, fontsize=9, color=draw.INK)
        figure.supylabel(y, fontsize=9, color=draw.INK)
    every = list(grid.flat)
    for axes in every[len(names) :]:  # the last row may have one place too many
        axes.set_axis_off()
        every[len(names) - 1].tick_params(labelbottom=True)
        grid[-2, -1].tick_params(labelbottom=True)
    for axes, name, colour in zip(every, names, colours, strict=False):
        title(axes, name, colour, 24 if columns == 2 else 60)
        if columns == 2:
            axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_locator(MaxNLocator(3))
    return figure, every[: len(names)]


def title(axes: Axes, name: str, colour: str, most: int) -> None:
    """The name of a panel, at its upper left."""
    axes.set_title(draw.short(name, most), loc="left", fontsize=8.5, color=colour, pad=3)


def label_ends(figure: Figure, axes: Axes, ends: Sequence[End], styles: Sequence[Style] = ()) -> None:
    """Each line's name where the line ends; in a legend if names are too long or ends too close together.

    What has a label and no end, such as a band, is in the legend in either case, and so are the ``styles``.
    """
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_axes.transform((end.x, end.y))[1] for end in ends])
    placed = _apart(heights, gap=0.07)
    too_far = np.abs(placed - heights).max(initial=0) > _FARTHEST_END
    if too_far or max((len(end.name) for end in ends), default=0) > _LONGEST_END:
        legend(figure, axes, styles)
        return
    for end, y in zip(ends, placed, strict=True):
        axes.text(
            *(1.02, float(y), draw.short(end.name)),
            transform=axes.transAxes,
            va="center",
            fontsize=8.5,
            color=end.colour,
            clip_on=False,
        )
    legend(figure, axes, styles, but=[end.name for end in ends])


def legend(figure: Figure, axes: Axes, styles: Sequence[Style] = (), *, but: Sequence[str] = ()) -> None:
    """A legend above the axes, without the names in ``but``; the figure grows to make room for it."""
    left_out = set(map(draw.short, but))
    pairs = [pair for pair in zip(*axes.get_legend_handles_labels(), strict=True) if pair[1] not in left_out]
    pairs += [(style.handle, style.name) for style in styles]
    if pairs:
        handles, names = zip(*pairs, strict=True)
        columns = _columns(names, _LETTERS)
        figure.set_figheight(figure.get_figheight() + 0.17 * (-(-len(names) // columns) - 1))
        _legend(figure, handles, names, columns)


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    with rc_context(draw.STYLE):
        made = figure.legend(handles, names, loc="outside upper left", ncols=columns, fontsize=8.5)
    for handle in made.legend_handles:
        if isinstance(handle, Line2D):
            handle.set_alpha(1)


def _columns(names: Sequence[str], letters: int) -> int:
    """Of a legend whose rows hold so many letters."""
    one_row = sum(map(len, names)) + 7 * len(names) <= letters
    return len(names) if one_row else max(1, letters // (max(map(len, names)) + 7))


def fit(figure: Figure, width: float) -> None:
    """Makes a figure so many inches wide, in proportion; letters keep their size, so that legends take more rows."""
    across, down = figure.get_size_inches()
    rows = 0
    for made in list(figure.legends):
        names = [text.get_text() for text in made.get_texts()]
        before, after = (_columns(names, letters) for letters in (_LETTERS, int(_LETTERS * width / _WIDTH)))
        made.remove()  # its columns are fixed when it is made
        _legend(figure, made.legend_handles, names, after)
        rows += max(0, -(-len(names) // after) + len(names) // -before)
    figure.set_size_inches(width, width * down / across + 0.17 * rows)


def _apart(heights: draw.NDArray, gap: float) -> draw.NDArray:
    """Heights on [0, 1], moved in the same order until neighbours are ``gap`` apart."""
    if not len(heights):
        return heights
    order = np.argsort(heights, kind="stable")
    moved = np.clip(heights[order], 0, 1)
    for _ in range(50 * len(moved)):
        for i in range(1, len(moved)):
            overlap = max(0.0, gap - float(moved[i] - moved[i - 1]))
            moved[i - 1] -= overlap / 2
            moved[i] += overlap / 2
    placed = np.empty_like(heights)
    placed[order] = moved
    return placed - max(0.0, float(placed.max()) - 1.0)
