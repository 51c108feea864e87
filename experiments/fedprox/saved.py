"""What is kept of the runs: a JSON file per claim, and the table and the picture made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenhand.studies import Outcome
from experiments.fairness import picture, write
from experiments.fedprox.claims import Trial

__all__ = ["draw", "save", "stopping", "table"]

# Okabe and Ito's colours, told apart by colour-blind readers too; the dashes tell the lines apart in grey.
_STYLES = {
    "FedAvg": ("#D55E00", (0, (1, 1))),
    "FedProx, mu=0": ("#0072B2", (0, (5, 2))),
    "FedProx, mu=1": ("#009E73", "solid"),
}
_RIVALS = (("#CC79A7", (0, (4, 1, 1, 1))), ("#56B4E9", "solid"))
_AXES = {
    "train_loss": "training loss",
    "test_accuracy": "test accuracy",
    "uniform_variance": "variance of gradients",
}
_OWN_SCALE = ("uniform_variance",)
_LOGARITHMIC = {"feddane": "train_loss"}
_SHOWN = {"heterogeneity": ("train_loss", "test_accuracy", "uniform_variance")}


def save(
    path: Path, claim: str, config: Mapping[str, Any], runs: Sequence[tuple[Trial, Sequence[Outcome]]]
) -> Path:
    """Writes all curves of all seeds, and what they come to at the end."""
    content = {
        "claim": claim,
        "seeds": [outcome.seed for outcome in runs[0][1]],
        "runs": [{**trial._asdict(), "measures": _summarise(each, config)} for trial, each in runs],
    }
    return write(path, content, config, digits=4)


def table(path: Path) -> str:
    """The last rounds of each line as plain text: mean and deviation over the seeds."""
    content = json.loads(path.read_text())
    rows = [f"{content['claim']}: mean of the last {content['config']['last']} rounds"]
    for run in content["runs"]:
        told = ", ".join(
            f"{_AXES[name]} {_number(run['measures'][name]['last']['mean'])} "
            f"+- {_number(run['measures'][name]['last']['std'])}"
            for name in _AXES
        )
        if "stopped" in (accuracy := run["measures"]["test_accuracy"]):
            told += f", where it stops {_number(accuracy['stopped']['mean'])}"
        rows.append(f"  {run['panel']:<24} {run['line']:<34} {told}")
    return "\n".join(rows)


def stopping(losses: npt.ArrayLike) -> int:
    """The round in which the paper reads off an accuracy (the text on figure 7), given the loss of each round.

    It is the first in which the loss has changed by less than 1e-4 since the round before, or risen by more than 1 in
    ten rounds; else the last.
    """
    f = np.asarray(losses, np.float64)
    over = ~np.isfinite(f)
    over[1:] |= np.abs(np.diff(f)) < 1e-4
    over[10:] |= f[10:] - f[:-10] > 1.0
    return int(np.argmax(over)) if over.any() else len(f) - 1


def draw(path: Path) -> Path:
    """A panel per column and a measure per row; lines are means over the seeds, shades reach to their extremes."""
    content = json.loads(path.read_text())
    panels = list(dict.fromkeys(run["panel"] for run in content["runs"]))
    rivals = dict.fromkeys(run["line"] for run in content["runs"] if run["line"] not in _STYLES)
    styles = {**_STYLES, **dict(zip(rivals, _RIVALS, strict=False))}
    measures = _SHOWN.get(content["claim"], ("train_loss", "test_accuracy"))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(
            figsize=(max(5.6, 2.6 * len(panels) + 0.4), 2.1 * len(measures) + 0.5), layout="constrained"
        )
        axes = figure.subplots(len(measures), len(panels), sharex=True, squeeze=False)
        for row, name in zip(axes, measures, strict=True):
            row[0].set_ylabel(_AXES[name])
            for axis in row[1:] if name not in _OWN_SCALE else ():
                axis.sharey(row[0])
                axis.tick_params(labelleft=False)
            for axis in row if _LOGARITHMIC.get(content["claim"]) == name else ():
                axis.set_yscale("log")
        for run in content["runs"]:
            column = axes[:, panels.index(run["panel"])]
            for axis, name in zip(column, measures, strict=True):
                _line(axis, run["measures"][name], run["line"], styles[run["line"]])
        for column, panel in zip(axes.T, panels, strict=True):
            column[0].set_title(panel)
            column[-1].set_xlabel("round")
        handles = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper center",
            ncols=len(handles) if len(handles) <= 3 else 2,
            frameon=False,
            title=f"line: mean of {len(content['seeds'])} seeds; shade: from the lowest to the highest",
            title_fontsize=8,
        )
        return picture(figure, path.with_suffix(".png"))


def _line(axis: Axes, measure: Mapping[str, Any], label: str, style: tuple[str, Any]) -> None:
    colour, dashes = style
    rounds, curves = np.array(measure["round"]), np.array(measure["curves"], float)
    axis.plot(rounds, curves.mean(axis=0), color=colour, linestyle=dashes, linewidth=1.4, label=label)
    axis.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _summarise(runs: Sequence[Outcome], config: Mapping[str, Any]) -> dict[str, Any]:
    known = [{**outcome.measures, **(outcome.view.history if outcome.view else {})} for outcome in runs]
    told: dict[str, Any] = {}
    for name in ("train_loss", "test_accuracy", "gradient_variance", "uniform_variance"):
        rounds = known[0]["round"]
        told_at = rounds % (config["variance_every"] if name in runs[0].measures else 1) == 0
        rounds, curves = rounds[told_at], np.array([columns[name][told_at] for columns in known])
        ends = {"final": curves[:, -1], "last": curves[:, rounds > rounds[-1] - config["last"]].mean(axis=1)}
        told[name] = {
            what: {"mean": end.mean(), "std": end.std(), "per_seed": end.tolist()}
            for what, end in ends.items()
        }
        told[name] |= {"round": rounds.tolist(), "curves": curves.tolist()}
    losses, rounds = told["train_loss"]["curves"], told["train_loss"]["round"]
    if rounds == list(range(len(rounds))):
        stops = [stopping(curve) for curve in losses]
        read = [curve[at] for curve, at in zip(told["test_accuracy"]["curves"], stops, strict=True)]
        told["test_accuracy"]["stopped"] = {
            "mean": np.mean(read),
            "std": np.std(read),
            "per_seed": read,
            "round": stops,
        }
    return told


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3g}"
