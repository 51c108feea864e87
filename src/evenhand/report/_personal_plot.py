"""The figure of global and personal models."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenhand.evaluation import of_global
from evenhand.report import draw, panels
from evenhand.report._view import RunView, among, client_values
from evenhand.report.comparison import Comparison
from evenhand.report.gains import trained

__all__ = ["personal_scatter"]

_FEW = 150
"""Clients up to which marks are large."""


def personal_scatter(of: Comparison) -> Figure:
    """See :func:`evenhand.report.figures.personal_scatter`."""
    metric = of.metric
    names = [f"{draw.label(metric, of.split)} of the {whose} model" for whose in ("global", "client's own")]
    if len(of.methods) > 1:
        colours = [draw.look(i)[0] for i in range(len(of.methods))]
        figure, every = panels.panels(of.names, colours, *names)
    else:
        figure, axes = panels.one(*names)
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


def _pairs(run: RunView, split: str, metric: str) -> draw.NDArray:
    """Each client's metric with the global model and with its own, ``(2, K)``."""
    return np.stack([client_values(run, split, name) for name in (of_global(metric), metric)])


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
