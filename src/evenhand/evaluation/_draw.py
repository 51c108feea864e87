"""What the figures share: colours, axes, lines, legends.

The colours are told apart by colour-blind readers, and each has a marker of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from evenhand.evaluation._view import SPLIT_NAMES, RunView, client_values, is_share

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
SIZE = (4.4, 3.1)
MOST_POINTS = 500
MOST_MARKERS = 1200
PUBLISHED_BINS = 39

NDArray = npt.NDArray[Any]


def axes() -> tuple[Figure, Axes]:
    with rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        return figure, figure.subplots()


def look(i: int) -> tuple[str, Any]:
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
) -> None:
    """A line through the finite points, thinned to what can be seen; its few points are marked."""
    y = finite(y)
    if not np.isfinite(y).any():
        return
    kept = thin(len(x))
    few = np.isfinite(y).sum() <= 25
    axes.plot(
        x[kept],
        scaled(y[kept], metric),
        color=colour,
        linestyle=style,
        linewidth=width,
        marker=marker if few else "",
        markersize=3.5 if width > 1.5 else 2.2,
        label=short(name),
    )


_LETTERS = 64
"""What a row of a legend holds, with 6 for each line's sample, in the wider fonts that browsers have."""


def legend(figure: Figure, axes: Axes) -> None:
    """A legend above the axes, for which the figure grows if it takes many lines."""
    handles, names = axes.get_legend_handles_labels()
    if names:
        one_row = sum(map(len, names)) + 6 * len(names) <= _LETTERS
        columns = len(names) if one_row else max(1, _LETTERS // (max(map(len, names)) + 6))
        figure.set_figheight(figure.get_figheight() + 0.17 * (-(-len(names) // columns) - 1))
        with rc_context(STYLE):
            made = figure.legend(handles, names, loc="outside upper left", ncols=columns, fontsize=8.5)
        for handle in made.legend_handles:
            if isinstance(handle, Line2D):
                handle.set_alpha(1)


def label(metric: str, split: str | None) -> str:
    name = metric.replace("_", " ") + (" (%)" if is_share(metric) else "")
    return f"{SPLIT_NAMES[split]} {name}" if split else name


def scaled(values: Any, metric: str) -> Any:
    return values * 100 if is_share(metric) else values


def past(run: RunView, key: str) -> NDArray:
    return np.asarray(run.history.get(key, np.full(len(run.history["round"]), np.nan)), np.float64)


def finite(values: NDArray) -> NDArray:
    return np.where(np.isfinite(values), values, np.nan)


def finite_clients(run: RunView, split: str, metric: str) -> NDArray:
    values = client_values(run, split, metric)
    return values[np.isfinite(values)]


def short(name: str) -> str:
    """A name for a legend: not too long, no formula to matplotlib, not hidden for its underscore."""
    name = name if len(name) <= 40 else name[:39] + "…"
    return name.replace("$", r"\$").replace("_", " _", name.startswith("_"))


def thin(count: int) -> NDArray:
    """At most ``MOST_POINTS`` evenly spaced indices, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))


def edges(values: NDArray, metric: str) -> NDArray:
    """Bins: for shares some of the equal bins on [0, 1] that cover the values, else by their spread."""
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if is_share(metric) and low >= 0 and high <= 1:
        bins = PUBLISHED_BINS if values.size >= 100 else 20
        first = min(int(low * bins), max(0, bins - 8))
        last = max(int(np.ceil(high * bins)), min(first + 8, bins))
        return np.arange(first, last + 1) / bins
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return np.linspace(low - 0.5, low + 0.5, 8)
    spread = np.histogram_bin_edges(values, "auto")
    return np.linspace(low, high, int(np.clip(spread.size, 8, PUBLISHED_BINS + 1)))


def log_if_wide(axes: Axes) -> None:
    """A logarithmic axis where positive numbers span much and most lie near the bottom."""
    y = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in axes.lines] or [np.zeros(1)])
    y = y[np.isfinite(y)]
    if y.size > 1 and y.min() > 0 and y.max() / y.min() > 50:
        axes.set_yscale("log")


def count_axis(axes: Axes, counts: NDArray) -> None:
    """Logarithmic where clients differ much in size, with whole numbers as labels."""
    if counts.size and counts.max() >= 3 * counts.min():
        axes.set_xscale("log")
        decades = np.log10(counts.max() / counts.min())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, position: ""))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.0f}"))
