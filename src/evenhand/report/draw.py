"""What the figures share: colours, lines, bins and scales.

Colour-blind readers can tell the colours apart, and each has a different marker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from evenhand.evaluation import SPLIT_NAMES, is_share
from evenhand.text import visible

__all__ = [
    "DASHES",
    "GRID",
    "INK",
    "MARKERS",
    "MOST_MARKERS",
    "MOST_POINTS",
    "MUTED",
    "PALETTE",
    "PUBLISHED_BINS",
    "STYLE",
    "NDArray",
    "band",
    "count_axis",
    "edges",
    "finite",
    "label",
    "line",
    "log_if_wide",
    "look",
    "scaled",
    "short",
    "thin",
]

INK, MUTED, GRID = "#1f2430", "#667080", "#e2e5ea"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8609a", "#a87800", "#4a4a6a")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (6, 1.5)), (0, (1, 1)))

STYLE: dict[Any, Any] = {
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
PUBLISHED_BINS = 39

NDArray = npt.NDArray[Any]


def look(i: int) -> tuple[str, Any]:
    """The colour and the dashes of the method at a position."""
    return PALETTE[i % len(PALETTE)], DASHES[i // len(PALETTE) % len(DASHES)]


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
    kept = thin(len(x), most)
    few = np.isfinite(y).sum() <= 25 and most == MOST_POINTS
    axes.plot(
        x[kept],
        scaled(y[kept], metric),
        color=colour,
        linestyle=style,
        linewidth=width,
        marker=marker if few else "",
        markersize=3.5 if width > 1.5 else 2.2,
        label=short(name) if name else "",
        alpha=alpha,
    )


def band(
    axes: Axes, x: NDArray, low: NDArray, high: NDArray, metric: str, colour: str, name: str = ""
) -> None:
    """The area between two lines, where both are finite."""
    low, high = finite(low), finite(high)
    if np.isfinite(low).any() and np.isfinite(high).any():
        kept = thin(len(x))
        bounds = [scaled(bound[kept], metric) for bound in (low, high)]
        axes.fill_between(x[kept], *bounds, color=colour, alpha=0.15, linewidth=0, label=name)


def label(metric: str, split: str | None) -> str:
    """The name of a metric, with its unit, on a split if one is named."""
    name = short(metric.replace("_", " ")) + (" (%)" if is_share(metric) else "")
    return f"{SPLIT_NAMES[split]} {name}" if split else name


def scaled(values: Any, metric: str) -> Any:
    """Values as they are drawn: shares in percent."""
    return values * 100 if is_share(metric) else values


def finite(values: NDArray) -> NDArray:
    """Values with NaN for those that are infinite."""
    return np.where(np.isfinite(values), values, np.nan)


def short(name: str, most: int = 40) -> str:
    """A name for a figure: visible, not too long, no formula to matplotlib, not dropped for a leading underscore."""
    name = visible(name)
    name = name if len(name) <= most else name[: most - 1] + "…"
    return name.replace("$", r"\$").replace("_", " _", name.startswith("_"))


def thin(count: int, most: int = MOST_POINTS) -> NDArray:
    """At most ``most`` evenly spaced indices, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def edges(values: NDArray, metric: str, clients: int) -> NDArray:
    """The edges of bins: for shares, those of the equal bins on [0, 1] that cover the values, else by their spread.

    Few clients get wide bins: an accuracy over ten examples has eleven values, and narrow bins between them are empty.
    """
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if is_share(metric) and low >= 0 and high <= 1:
        bins = PUBLISHED_BINS if clients >= 100 else 20 if clients >= 40 else 10
        first = min(int(low * bins), max(0, bins - 8))
        last = max(int(np.ceil(high * bins)), min(first + 8, bins))
        return np.arange(first, last + 1) / bins
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return np.linspace(low - 0.5, low + 0.5, 8)
    spread = np.histogram_bin_edges(values, "auto")
    return np.linspace(low, high, int(np.clip(spread.size, 8, PUBLISHED_BINS + 1)))


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
        axes.xaxis.set_major_locator(MaxNLocator(6 if dense else 4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.0f}"))
