"""The picture of the map, and its summary: what each rule keeps at the worst of all attacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.fairness import picture

__all__ = ["draw", "summary"]

_MEASURES = {"mean": "mean", "worst10": "worst tenth"}
_COLUMNS = 6


def draw(path: Path) -> Path:
    """A panel per rule, attacks by share of malicious clients: the mean on the left, the worst tenth on the right."""
    content = json.loads(path.read_text())["percent"]
    fractions = sorted(content, key=float)
    rules = _order(content)
    attacks = list(content[fractions[0]]["mean"])
    rows = -(-len(rules) // _COLUMNS)
    with mpl.rc_context({"font.size": 6.5, "axes.titlesize": 7.5}):
        figure = Figure(figsize=(10.5, 2.55 * rows), layout="constrained")
        grid = figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True)
        image = None
        for axis in grid.ravel()[len(rules) :]:
            axis.remove()
        for axis, rule in zip(grid.ravel(), rules, strict=False):
            image = axis.imshow(
                _panel(content, rule, attacks, fractions), vmin=0, vmax=90, cmap="cividis", aspect="auto"
            )
            axis.set_title(rule)
            axis.axvline(len(fractions), color="white", linewidth=4)
            ticks = [*range(len(fractions)), *range(len(fractions) + 1, 2 * len(fractions) + 1)]
            axis.set_xticks(ticks, [f"{100 * float(each):.0f}" for each in fractions] * 2)
            axis.set_yticks(range(len(attacks)), attacks)
            axis.tick_params(length=0)
            for place, label in zip((0.22, 0.78), _MEASURES.values(), strict=True):
                axis.text(place, -0.13, label, transform=axis.transAxes, ha="center", va="top")
        if image is not None:
            figure.colorbar(
                image, ax=figure.axes, shrink=0.3, aspect=30, label="test accuracy of honest clients (%)"
            )
        figure.supxlabel("malicious clients (%)", fontsize=7.5)
        return picture(figure, path.with_suffix(".png"))


def summary(path: Path) -> str:
    """In Markdown: for each rule, its accuracy without attack and under the worst attack of each share, in percent.

    Without attack, a rule is set for the smallest share of malicious clients.
    """
    content = json.loads(path.read_text())["percent"]
    fractions = sorted(content, key=float)
    head = [f"worst attack, {100 * float(each):.0f} %" for each in fractions]
    calm = f"no attack, set for {100 * float(fractions[0]):.0f} %"
    lines = [f"| rule | {calm} | {' | '.join(head)} |", f"|---|{'---|' * (len(head) + 1)}"]
    for rule in _order(content):
        first = content[fractions[0]].get(rule, {}).get("none")
        cells = ["" if first is None else f"{_mean(first, 'mean'):.1f} / {_mean(first, 'worst10'):.1f}"]
        for fraction in fractions:
            of = {name: cell for name, cell in content[fraction].get(rule, {}).items() if name != "none"}
            if not of:
                cells.append("")
                continue
            worst = min(of, key=lambda name, of=of: _mean(of[name], "mean"))
            tenth = min(_mean(cell, "worst10") for cell in of.values())
            cells.append(f"{_mean(of[worst], 'mean'):.1f} / {tenth:.1f} ({worst})")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _panel(
    content: Mapping[str, Any], rule: str, attacks: list[str], fractions: list[str]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Accuracies, ``(attacks, 2 * fractions + 1)`` with a gap in the middle; NaN where nothing was run."""
    columns = []
    for measure in _MEASURES:
        for fraction in fractions:
            cells = content[fraction].get(rule, {})
            columns.append([_mean(cells[name], measure) if name in cells else np.nan for name in attacks])
    columns.insert(len(fractions), [np.nan] * len(attacks))
    return np.array(columns).T


def _order(content: Mapping[str, Any]) -> list[str]:
    """Rules, the one that keeps most at the worst attacks first, after the mean."""
    known = list(dict.fromkeys(rule for of in content.values() for rule in of))

    def kept(rule: str) -> float:
        least = [
            min(_mean(cell, "mean") for cell in of[rule].values()) for of in content.values() if rule in of
        ]
        return float(np.mean(least))

    return ["mean", *sorted((rule for rule in known if rule != "mean"), key=kept, reverse=True)]


def _mean(cell: Mapping[str, list[float]], measure: str) -> float:
    return float(np.mean(cell[measure]))
