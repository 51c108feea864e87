"""What the figures share: colours, lines, bins and scales; then the layout, with labels and legends.

Colour-blind readers can tell the colours apart, and each has a different marker.  Axes are shared or there is a panel
per method; lines are labelled where they end, or in a legend that the figure grows to make room for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from evenhand._figure import ShownFigure
from evenhand.errors import EvenhandError, truth_value
from evenhand.evaluation import SPLIT_NAMES, is_share
from evenhand.report.formatting import GRID, INK, MUTED, PALETTE
from evenhand.text import visible

# What other packages draw with; the other names are for this package.
__all__ = [
    "INK",
    "MARKERS",
    "MUTED",
    "Looks",
    "band",
    "label",
    "legend",
    "line",
    "look",
    "looks",
    "scaled",
    "short",
    "single_panel",
]

NDArray = npt.NDArray[Any]

MARKERS = ("o", "s", "^", "D", "v", "P")

_DASHES = ("-", (0, (6, 1.5)), (0, (1, 1)))

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.xmargin": 0.02,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}

MOST_POINTS = 500

MOST_MARKERS = 1200
"""More marks than this are drawn as pixels, since a page of vectors would take long to open."""

_PUBLISHED_BINS = 39


# --- names and values as they are drawn ---------------------------------------------------------------------------


def look(i: int) -> tuple[str, Any]:
    """The colour and the dashes of the method at a position."""
    return PALETTE[i % len(PALETTE)], _DASHES[i // len(PALETTE) % len(_DASHES)]


class Looks(NamedTuple):
    """How a figure shows its methods.

    Attributes:
      panels: whether each method has a panel; None: if there are more than :data:`MOST_SHARED`.
      colors: method -> its colour; the others have those of their positions.
    """

    panels: bool | None = None
    colors: Mapping[str, str] = MappingProxyType({})

    def shared(self, methods: int) -> bool:
        """Whether so many methods share one pair of axes."""
        return methods <= MOST_SHARED if self.panels is None or methods == 1 else not self.panels

    def at(self, i: int, name: str) -> tuple[str, Any]:
        """The colour and the dashes of the method at a position."""
        colour, dashes = look(i)
        return self.colors.get(name, colour), dashes


def looks(panels: bool | None, colors: Mapping[str, str] | None) -> Looks:
    """The looks that a caller asked for.

    Raises:
      EvenhandError: a colour that matplotlib does not know.
    """
    panels = None if panels is None else truth_value("panels", panels)
    for name, color in (colors or {}).items():
        if not is_color_like(color):
            words = "matplotlib knows no such colour: give a name or a code, such as 'black' or '#0072b2'"
            raise EvenhandError(f"colors={{{name!r}: {color!r:.40}}}: {words}.")
    return Looks(panels, {visible(name): color for name, color in (colors or {}).items()})


def label(metric: str, split: str | None) -> str:
    """The name of a metric, with its unit, on a split if one is named."""
    name = short(metric.replace("_", " ")) + (" (%)" if is_share(metric) else "")
    return f"{SPLIT_NAMES[split]} {name}" if split else name


def short(name: str, most: int = 40) -> str:
    """A name for a figure: visible, not too long, no formula to matplotlib, not dropped for a leading underscore."""
    name = visible(name)
    name = name if len(name) <= most else name[: most - 1] + "…"
    return name.replace("$", r"\$").replace("_", " _", name.startswith("_"))


def scaled(values: Any, metric: str) -> Any:
    """Values as they are drawn: shares in percent."""
    return values * 100 if is_share(metric) else values


def finite(values: NDArray) -> NDArray:
    """Values with NaN for those that are infinite."""
    return np.where(np.isfinite(values), values, np.nan)


def _thin(count: int, most: int = MOST_POINTS) -> NDArray:
    """At most ``most`` evenly spaced indices, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def edges(values: NDArray, metric: str, clients: int, rows: float = math.inf) -> NDArray:
    """The edges of bins: for shares, those of the equal bins on [0, 1] that cover the values, else by their spread.

    Few clients get wide bins, and so do clients of few examples, ``rows`` of a typical one: an accuracy over ten
    examples has eleven values, and narrower bins between them are empty.
    """
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if is_share(metric) and low >= 0 and high <= 1:
        bins = _PUBLISHED_BINS if clients >= 100 else 20 if clients >= 40 else 10
        bins = int(max(1, min(bins, rows + 1)))
        first = min(int(low * bins), max(0, bins - 8))
        last = max(int(np.ceil(high * bins)), min(first + 8, bins))
        return np.arange(first, last + 1) / bins
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return np.linspace(low - 0.5, low + 0.5, 8)
    spread = np.histogram_bin_edges(values, "auto")
    return np.linspace(low, high, int(np.clip(spread.size, 8, _PUBLISHED_BINS + 1)))


# --- lines and scales ---------------------------------------------------------------------------------------------


def line(
    axes: Axes,
    x: NDArray,
    y: NDArray,
    metric: str,
    colour: str,
    style: Any,
    name: str,
    *,
    width: float = 1.8,
    marker: str = "o",
    alpha: float = 1.0,
    most: int = MOST_POINTS,
) -> None:
    """A line through the finite points, thinned to what can be seen; points get markers if they are few."""
    y = finite(y)
    if not np.isfinite(y).any():
        return
    kept = _thin(len(x), most)
    few = np.isfinite(y).sum() <= 25 and most == MOST_POINTS
    look: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": width, "alpha": alpha}
    look |= {"marker": marker if few else "", "markersize": 3.5 if width > 1.5 else 2.2}
    axes.plot(x[kept], scaled(y[kept], metric), label=short(name) if name else "", **look)


def band(
    axes: Axes, x: NDArray, low: NDArray, high: NDArray, metric: str, colour: str, name: str = ""
) -> None:
    """The area between two lines, where both are finite."""
    low, high = finite(low), finite(high)
    if np.isfinite(low).any() and np.isfinite(high).any():
        kept = _thin(len(x))
        bounds = [scaled(bound[kept], metric) for bound in (low, high)]
        axes.fill_between(x[kept], *bounds, color=colour, alpha=0.15, linewidth=0, label=name)


def log_if_wide(metric: str, *every: Axes) -> None:
    """Logarithmic axes if all values are positive and span a wide range; shares have a linear scale in any case."""
    if is_share(metric):
        return
    lines = [np.asarray(line.get_ydata(), np.float64) for axes in every for line in axes.lines]
    y = np.concatenate([*lines, np.zeros(0)])
    y = y[np.isfinite(y)]
    if y.size > 1 and y.min() > 0 and y.max() / y.min() > 50:
        for axes in every:
            axes.set_yscale("log")


def count_axis(axes: Axes, counts: NDArray, *, dense: bool = True) -> None:
    """Logarithmic where clients differ much in size, with whole numbers as labels."""
    if counts.size and counts.max() >= 3 * counts.min():
        axes.set_xscale("log")
        decades = np.log10(counts.max() / counts.min())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if dense and decades < 2.5 else (1,)))
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, position: ""))
    else:
        # With one tick at least: two, of equal counts, would have to stand at fractions.
        axes.xaxis.set_major_locator(MaxNLocator(6 if dense else 4, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.0f}"))


def percent_axis(axes: Axes, low: float, most: int) -> None:
    """Ticks from 100 % downwards, to about ``low`` percent, in at most so many steps."""
    step = next(step for step in _STEPS if (100 - low) / step <= most)
    axes.set_xticks(np.arange(100, low - step / 2, -step)[::-1])


_STEPS = (5, 10, 20, 25, 50, 100)


# --- axes ---------------------------------------------------------------------------------------------------------

MOST_SHARED = 3
"""Up to this many methods share one pair of axes; more get a panel each."""

_WIDTH, _HEIGHT = 4.4, 3.1

_LONGEST_END = 18
"""How many letters fit beside the axes, even in the wider fonts of browsers."""

_FARTHEST_END = 0.05
"""How far a label may be from its line's end, as a share of the axes' height."""

_LETTERS = 54
"""How many letters a row of a legend holds, counting 7 for each line's sample."""


def single_panel(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    # A plain `Figure`: pyplot would keep each one in memory until it is closed.
    with rc_context(_STYLE):
        figure = ShownFigure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def panels(names: Sequence[str], colours: Sequence[str], x: str, y: str) -> tuple[Figure, list[Axes]]:
    """A panel for each name, in its colour and on the same scales: one column of up to three, else two columns."""
    columns = 1 if len(names) <= MOST_SHARED else 2
    rows = -(-len(names) // columns)
    with rc_context(_STYLE):
        height = max(_HEIGHT, 0.55 + (1.0 if columns == 1 else 1.15) * rows)
        figure = ShownFigure(figsize=(_WIDTH, height), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        figure.supxlabel(x, fontsize=9, color=INK)
        figure.supylabel(y, fontsize=9, color=INK)
    every = list(grid.flat)
    for axes in every[len(names) :]:  # the last row may have one place too many
        axes.set_axis_off()
        every[len(names) - 1].tick_params(labelbottom=True)
        grid[-2, -1].tick_params(labelbottom=True)
    for axes, name, colour in zip(every, names, colours, strict=False):
        short_name = short(name, 24 if columns == 2 else 60)
        axes.set_title(short_name, loc="left", fontsize=8.5, color=colour, pad=3)
        if columns == 2:
            axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_locator(MaxNLocator(3))
    return figure, every[: len(names)]


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


# --- labels and legends -------------------------------------------------------------------------------------------


class End(NamedTuple):
    """Where a line ends, and what it is called."""

    x: float
    y: float
    name: str
    colour: str


Style: TypeAlias = tuple[Artist, str]
"""What a kind of line or area means, whatever its colour: an example of it, and its name."""


def label_ends(figure: Figure, axes: Axes, ends: Sequence[End], styles: Sequence[Style] = ()) -> None:
    """Each line's name where the line ends; in a legend if names are too long or ends too close together.

    What has a label and no end, such as a band, is in the legend in either case, and so are the ``styles``.
    """
    # matplotlib sets the limits when it draws; before, the transform would be that of empty axes.
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_axes.transform((end.x, end.y))[1] for end in ends])
    placed = _apart(heights, gap=0.07)
    too_far = np.abs(placed - heights).max(initial=0) > _FARTHEST_END
    if too_far or max((len(end.name) for end in ends), default=0) > _LONGEST_END:
        legend(figure, axes, styles)
        return
    for end, y in zip(ends, placed, strict=True):
        look: dict[str, Any] = {"va": "center", "fontsize": 8.5, "color": end.colour, "clip_on": False}
        axes.text(1.02, float(y), short(end.name), transform=axes.transAxes, **look)
    legend(figure, axes, styles, but=[end.name for end in ends])


def _apart(heights: NDArray, gap: float) -> NDArray:
    """Heights on [0, 1], moved in the same order until neighbours are ``gap`` apart."""
    if not len(heights):
        return heights
    order = np.argsort(heights, kind="stable")
    moved = np.clip(heights[order], 0, 1)
    # Two neighbours that move apart may meet the next ones, so that it takes several passes.
    for _ in range(50 * len(moved)):
        for i in range(1, len(moved)):
            overlap = max(0.0, gap - float(moved[i] - moved[i - 1]))
            moved[i - 1] -= overlap / 2
            moved[i] += overlap / 2
    placed = np.empty_like(heights)
    placed[order] = moved
    return placed - max(0.0, float(placed.max()) - 1.0)


def legend(figure: Figure, axes: Axes, styles: Sequence[Style] = (), *, but: Sequence[str] = ()) -> None:
    """A legend above the axes, without the names in ``but``; the figure grows to make room for it."""
    left_out = set(map(short, but))
    pairs = [pair for pair in zip(*axes.get_legend_handles_labels(), strict=True) if pair[1] not in left_out]
    pairs += styles
    if pairs:
        handles, names = zip(*pairs, strict=True)
        columns = _columns(names, _LETTERS)
        figure.set_figheight(figure.get_figheight() + 0.17 * (-(-len(names) // columns) - 1))
        _legend(figure, handles, names, columns)


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    with rc_context(_STYLE):
        made = figure.legend(handles, names, loc="outside upper left", ncols=columns, fontsize=8.5)
    # Pale lines and marks would be hard to see in a legend.
    for handle in made.legend_handles:
        if isinstance(handle, Line2D):
            handle.set_alpha(1)


def _columns(names: Sequence[str], letters: int) -> int:
    """Of a legend whose rows hold so many letters."""
    one_row = sum(map(len, names)) + 7 * len(names) <= letters
    return len(names) if one_row else max(1, letters // (max(map(len, names)) + 7))
