"""The picture of the family of q's: what evenness costs."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.fairness import picture

__all__ = ["draw"]

_PANELS = {
    "weighted_mean": "test accuracy over rows (%)",
    "worst10": "worst 10 % of devices (%)",
    "variance": "variance over devices",
}
_OURS, _PAPER = "#0072B2", "#D55E00"


def draw(path: Path) -> Path:
    """A panel per measure with ``q`` along the axis, from the JSON file at ``path``; the PNG lies beside it."""
    content = json.loads(path.read_text())
    names = sorted((name for name in content["methods"] if name.startswith("q=")), key=_power)
    places = {name: place for place, name in enumerate(names)}
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.2, 2.6), layout="constrained")
        for axis, (measure, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
            seeds = [[seed[measure] for seed in content["methods"][name]["seeds"]] for name in names]
            means = [sum(each) / len(each) for each in seeds]
            axis.plot(places.values(), means, color=_OURS, marker="o", markersize=4, label="ours")
            low, high = [min(each) for each in seeds], [max(each) for each in seeds]
            axis.fill_between(places.values(), low, high, color=_OURS, alpha=0.15, linewidth=0)
            told = {
                places[name]: content["paper"][name][measure] for name in names if name in content["paper"]
            }
            axis.plot(
                told.keys(), told.values(), color=_PAPER, marker="s", markersize=4, ls=":", label="paper"
            )
            axis.set_xticks(list(places.values()), [name.removeprefix("q=") for name in names], rotation=45)
            axis.set_xlabel("q")
            axis.set_ylabel(label)
        axis.legend(frameon=False)
        return picture(figure, path.with_suffix(".png"))


def _power(name: str) -> float:
    return float(name.removeprefix("q="))
