"""What privacy for clients costs the worst-served tenth of them, and what it costs on average.

Ours; no paper has it.  From the root of the repository:

    python -m experiments.private.worst_tenth --data-dir DIR --folder runs/worst_tenth
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import evenhand as eh
from experiments.fairness import Experiment, picture, write
from experiments.private.budgets import Found, Runs, over_budgets
from experiments.private.clients import PlaceName, label_shift, mnist, pooled_mnist, public_images
from experiments.private.pooled import Pooled, pooled_rivals
from experiments.private.rivals import Rival, Setting, rivals

LABEL_SHIFT = Setting(
    clients=2500,
    strangers=500,
    cohort=100,
    rounds=300,
    learning_rate=0.1,
    batch_size=None,
    clips=(0.04, 0.12),
    rates=(2.0, 4.0, 8.0),
    adam_rates=(0.01, 0.03, 0.1),
    tree_rates=(0.3, 1.0, 3.0),
    largest_loss=1.1,
)
"""The clients of section 7.7 of Delta-FL; 1000 rounds there."""

MNIST = Setting(
    clients=1000,
    strangers=0,
    cohort=100,
    rounds=100,
    learning_rate=0.1,
    batch_size=10,
    clips=(0.1, 0.5),
    rates=(0.3, 1.0, 3.0),
    adam_rates=(0.003, 0.01, 0.03),
    tree_rates=(0.1, 0.3, 1.0),
    largest_loss=1.1,
)
"""Ours."""

POOLED = Pooled(
    clients=1000,
    public=600,
    rows=49_500,
    batch=500,
    steps=500,
    clips=(0.3, 1.0),
    rates=(1.0, 3.0, 10.0),
    adam_rates=(0.003, 0.01, 0.03),
    scaled_clips=(10.0, 40.0),
    scaled_rates=(0.03, 0.1, 0.3),
)
"""Ours: the same clients, whose images have been brought together; privacy is for an image."""

TITLES = {
    "label shift": "label shift, 2,500 clients",
    "mnist": "MNIST, 1,000 clients",
    "pooled mnist": "MNIST, private for an image",
}
COLORS = ("#0072B2", "#56B4E9", "#009E73", "#999999", "#D55E00", "#CC79A7")
"""Told apart by the colour-blind, too."""
MARKERS = "osv^DP"
LOWEST = 45.0
"""Accuracies below it are told in numbers."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run; all of it is ours."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz; label shift needs no file."""
    out: Path = Path("experiments/private/results")
    """Folder that gets worst_tenth.json and worst_tenth.png."""
    places: tuple[PlaceName, ...] = field(default_factory=lambda: get_args(PlaceName))
    methods: tuple[str, ...] = ()
    """Only these methods; none: all."""
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, math.inf)
    seeds: int = 5
    """A seed decides who has which rows, too."""
    tuning: int = 1
    """Seeds that tune, not among the others."""
    label_shift: Setting = field(default_factory=lambda: LABEL_SHIFT)
    mnist: Setting = field(default_factory=lambda: MNIST)
    pooled_mnist: Pooled = field(default_factory=lambda: POOLED)
    pooled_epsilons: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, math.inf)
    """There, where privacy is for an image."""


def main(config: Config) -> None:
    """Each method at each budget in each place; saved as soon as a method is done."""
    found: dict[str, dict[str, Found]] = {}
    for name in config.places:
        runs, every, epsilons = everything(config, name)
        for method, rival in every.items():
            if config.methods and method not in config.methods:
                continue
            found.setdefault(name, {})[method] = over_budgets(method, rival, epsilons, runs)
            save(config, found)
            for budget, each in found[name][method].items():
                mean, tail = (
                    np.mean([one[f"test_{what}"] for one in each["seeds"]]) for what in ("mean", "worst10")
                )
                print(
                    f"{name:12} {method:24} {budget:>4} {mean:5.1f} {tail:5.1f}  {each['chosen']}", flush=True
                )


def everything(config: Config, name: PlaceName) -> tuple[Runs, dict[str, Rival], tuple[float, ...]]:
    """How one place is run, and the methods and budgets that are compared there."""
    model = eh.models.softmax_regression(features=20 if name == "label shift" else 784, classes=10)
    common = config.seeds, config.tuning, "valid_mean", config.under(name)
    if name == "pooled mnist":
        pooled = config.pooled_mnist
        place = partial(pooled_mnist, config.data_dir, pooled.clients, pooled.public)
        every = pooled_rivals(pooled, model, public_images(config.data_dir, pooled.public))
        return Runs(place, 1, pooled.rows, pooled.delta, *common), every, config.pooled_epsilons
    if name == "label shift":
        setting = config.label_shift
        place = partial(label_shift, setting.clients, setting.strangers)
    else:
        setting = config.mnist
        place = partial(mnist, config.data_dir, setting.clients)
    runs = Runs(place, setting.rounds, setting.clients, setting.delta, *common)
    return runs, rivals(setting, model), config.epsilons


def save(config: Config, found: Mapping[str, Mapping[str, Found]]) -> None:
    """The numbers and the figure."""
    command = {"command": shlex.join(["python", "-m", "experiments.private.worst_tenth", *sys.argv[1:]])}
    settings = {key: _finite(value) for key, value in asdict(config).items()}
    path = write(config.out / "worst_tenth.json", {**command, "places": found}, settings, digits=5)
    picture(figure(json.loads(path.read_text())["places"]), config.out / "worst_tenth.png")


def _finite(value: Any) -> Any:
    """The same with words in place of infinities, which JSON does not have."""
    if isinstance(value, tuple):
        return [_finite(each) for each in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def figure(places: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A panel per place: accuracy over epsilon, on average and of the worst tenth, with one standard deviation."""
    sets = [list(part) for _, part in groupby(places, key=lambda name: list(places[name]))]
    drawn = Figure(figsize=(0.6 + 3.3 * len(places), 3.6), layout="constrained")
    widths = [len(names) for names in sets]
    for part, names in zip(
        drawn.subfigures(1, len(sets), squeeze=False, width_ratios=widths)[0], sets, strict=True
    ):
        panels = part.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            _panel(axes, name, places[name])
        handles = panels[0].get_legend_handles_labels()[0]
        if names is sets[0]:
            panels[0].set_ylabel("accuracy in percent", fontsize=9)
            handles = [*_styles(), *handles]
        columns = 4 if len(names) > 1 else 3
        part.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return drawn


def _panel(axes: Axes, name: str, methods: Mapping[str, Any]) -> None:
    budgets: list[str] = []
    for (method, found), color, marker in zip(methods.items(), COLORS, MARKERS, strict=False):
        budgets = list(found)
        for what, style, inside in (("mean", "-", color), ("worst10", "--", "white")):
            seeds = np.array([[one[f"test_{what}"] for one in each["seeds"]] for each in found.values()])
            middle, spread = seeds.mean(axis=1), seeds.std(axis=1)
            # Those without noise stand apart: no line leads to infinity.
            for part in _runs_of([budget == "inf" for budget in budgets]):
                look: dict[str, Any] = {"color": color, "marker": marker, "ms": 4, "mfc": inside}
                look |= {"ls": style, "lw": 1.2, "elinewidth": 0.8}
                axes.errorbar(part, middle[part], spread[part], **look)
            for x in np.flatnonzero(middle < LOWEST):
                axes.text(x + 0.12, LOWEST + 0.6, f"{middle[x]:.0f} ↓", color=color, fontsize=8)
        axes.plot([], [], color=color, marker=marker, ms=4, lw=1.2, label=method)
    axes.set_ylim(bottom=max(LOWEST, axes.get_ylim()[0]))
    axes.set_xticks(range(len(budgets)), ["no noise" if each == "inf" else each for each in budgets])
    axes.set_title(TITLES[name], fontsize=9)
    axes.set_xlabel("epsilon", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _styles() -> list[Line2D]:
    return [
        Line2D([], [], color="0.3", ls=style, lw=1.2, marker="o", ms=4, mfc=inside, label=label)
        for style, inside, label in (("-", "0.3", "mean over clients"), ("--", "white", "worst-served tenth"))
    ]


def _runs_of(flags: Sequence[bool]) -> list[list[int]]:
    """The positions of the first kind, and those of the second."""
    found = [[i for i, flag in enumerate(flags) if flag == kind] for kind in (False, True)]
    return [part for part in found if part]


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.worst_tenth", description=__doc__))
