"""What privacy for clients costs the worst-served tenth of them, and what it costs on average.

Ours; no paper has it.  From the root of the repository:

    python -m experiments.private.worst_tenth --data-dir DIR --folder runs/worst_tenth
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tyro
from matplotlib.figure import Figure

import evenhand as eh
from experiments.fairness import picture, write
from experiments.private.budgets import Found, Runs, over_budgets
from experiments.private.clients import PlaceName, label_shift, mnist
from experiments.private.rivals import Setting, rivals

LABEL_SHIFT = Setting(
    clients=2500,
    strangers=500,
    cohort=100,
    rounds=1000,
    learning_rate=0.1,
    batch_size=None,
    clips=(0.04, 0.1, 0.25),
    rates=(0.3, 1.0),
    adam_rates=(0.003, 0.01, 0.03),
    tree_rates=(0.1, 0.3),
    largest_loss=1.1,
)
"""Section 7.7 and appendix D.2 of Delta-FL, but for the clips and what is tuned."""

MNIST = Setting(
    clients=1000,
    strangers=0,
    cohort=100,
    rounds=150,
    learning_rate=0.1,
    batch_size=10,
    clips=(0.1, 0.3, 1.0),
    rates=(0.3, 1.0),
    adam_rates=(0.003, 0.01, 0.03),
    tree_rates=(0.1, 0.3),
    largest_loss=1.1,
)
"""Ours."""


@dataclass(frozen=True)
class Config:
    """What is run; all of it is ours."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz; label shift needs no file."""
    out: Path = Path("experiments/private/results")
    """Folder that gets worst_tenth.json and worst_tenth.png."""
    folder: Path | None = None
    """Folder that keeps each run: with it, an experiment that was stopped goes on."""
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


def main(config: Config) -> None:
    """Each method at each budget in each place; saved as soon as a method is done."""
    found: dict[str, dict[str, Found]] = {}
    for name in config.places:
        runs, model = everything(config, name)
        for method, rival in rivals(runs.setting, model).items():
            if config.methods and method not in config.methods:
                continue
            found.setdefault(name, {})[method] = over_budgets(method, rival, config.epsilons, runs)
            save(config, found)
            for budget, each in found[name][method].items():
                mean, tail = (
                    np.mean([one[f"test_{what}"] for one in each["seeds"]]) for what in ("mean", "worst10")
                )
                print(
                    f"{name:12} {method:24} {budget:>4} {mean:5.1f} {tail:5.1f}  {each['chosen']}", flush=True
                )


def everything(config: Config, name: PlaceName) -> tuple[Runs, eh.Model]:
    """How one place is run, and the model that is trained there."""
    at = config.folder and config.folder / name
    if name == "label shift":
        setting, features = config.label_shift, 20
        place = partial(label_shift, setting.clients, setting.strangers)
    else:
        setting, features = config.mnist, 784
        place = partial(mnist, config.data_dir, setting.clients)
    runs = Runs(place, setting, config.seeds, config.tuning, "valid_mean", at)
    return runs, eh.models.softmax_regression(features=features, classes=10)


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
    """A panel per place: accuracy over epsilon, on average and of the worst tenth."""
    drawn = Figure(figsize=(7.2, 3.2), layout="constrained")
    panels = drawn.subplots(1, len(places), squeeze=False)[0]
    for axes, (name, methods) in zip(panels, places.items(), strict=True):
        for number, (method, budgets) in enumerate(methods.items()):
            over = range(len(budgets))
            for what, style in (("mean", "-"), ("worst10", "--")):
                seeds = [[one[f"test_{what}"] for one in each["seeds"]] for each in budgets.values()]
                label = method if what == "mean" else None
                axes.plot(
                    over, [np.mean(each) for each in seeds], style, color=f"C{number}", label=label, lw=1.3
                )
            axes.set_xticks(over, ["∞" if budget == "inf" else budget for budget in budgets])
        axes.set_title({"mnist": "MNIST"}.get(name, name), fontsize=10)
        axes.set_xlabel("epsilon")
    panels[0].set_ylabel("accuracy in percent")
    panels[-1].legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.worst_tenth", description=__doc__))
