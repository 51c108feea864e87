"""DP2 on film reviews over delays, budgets and epochs, and delayed RMSProp without privacy.

Figures 6.8 and 6.10 to 6.12 of the paper on DP2 (Li et al., *Differentially Private Adaptive Optimization with Delayed
Preconditioners*, ICLR 2023), for IMDB and at the settings that :mod:`experiments.private.imdb` has chosen.  From the
root of the repository:

    python -m experiments.private.imdb_sweeps --data-dir DIR --folder runs/imdb_sweeps
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import evenhand as eh
from evenhand import privacy
from evenhand.types import Release
from experiments.fairness import picture
from experiments.private import imdb
from experiments.private.tuned import Candidate, Numbers, Runs, save, spent, tuned
from experiments.robust.breakdown import accuracy

COLORS = {"DP-SGD": "#0072B2", "DP-RMSProp": "#009E73", "DP2-RMSProp": "#D55E00"}
PAPER: dict[str, Any] = {
    "budgets": {
        "epsilon": [0.84, 1.47, 3.04, 6.99, 11.80],
        "DP-SGD": [63.8, 66.7, 68.7, 69.7, 70.0],
        "DP-RMSProp": [64.7, 67.9, 71.3, 73.4, 74.2],
        "DP2-RMSProp": [75.8, 79.3, 81.5, 82.5, 82.9],
    },
    "delays": {"epochs": [0.0, 0.09, 1.0, 3.0, 8.0], "DP2-RMSProp": [74.7, 80.0, 82.0, 82.0, 75.7]},
}
"""Test accuracy in percent, read off figures 6.11 and 6.12, the latter at epsilon 3.0 and over 100 epochs."""


@dataclass(frozen=True)
class Config:
    """What is run, with the place that a default comes from, or else "ours"."""

    imdb: imdb.Config = field(default_factory=imdb.Config)
    """Data, lengths and seeds; the budget of the sweep over delays."""
    chosen: Path = Path("experiments/private/results/imdb.json")
    """Where the settings are."""
    out: Path = Path("experiments/private/results")
    """Folder that gets imdb_sweeps.json and imdb_sweeps.png."""
    folder: Path | None = None
    """Folder that keeps the runs over delays and budgets (ours): an experiment that was stopped goes on with it."""
    epsilons: tuple[float, ...] = (0.84, 1.5, 3.04, 6.99)
    """Figure 6.11, which has 11.8 too, and 1.47 in place of 1.5."""
    delays: tuple[int, ...] = (1, 30, 195, 348, 1043, 2781)
    """Figure 6.12: 1 and 3 epochs are 348 and 1,043 steps here, 8 are 2,781; and the delay of table 6.12."""
    step_sizes: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Of figure 6.8's adaptive steps; validation reviews choose."""
    parts: tuple[str, ...] = ("delays", "budgets", "epochs", "delayed RMSProp")
    """Only these."""


def main(config: Config) -> None:
    """Each part; saved as soon as it is done."""
    chosen = json.loads(config.chosen.read_text())["accuracy"]
    numbers: dict[str, Numbers] = {name: chosen[name]["chosen"] for name in COLORS}
    parts = {"delays": delays, "budgets": budgets, "epochs": epochs, "delayed RMSProp": delayed}
    given_away, found = promised(config, numbers), dict[str, Any]()
    for name in config.parts:
        found[name] = parts[name](config, numbers)
        print(name, json.dumps(found[name], default=str), flush=True)
        path = config.out / "imdb_sweeps.json"
        settings = {**asdict(config), "imdb": {key: str(value) for key, value in asdict(config.imdb).items()}}
        content = {"accuracy": found, "privacy": given_away, "paper": PAPER}
        save(path, content, settings, digits=4)
        if set(parts) <= set(found):
            picture(figure(json.loads(path.read_text())["accuracy"]), config.out / "imdb_sweeps.png")


def promised(config: Config, chosen: Mapping[str, Numbers]) -> dict[str, dict[str, Any]]:
    """What a run gives away at each budget, whichever of the three methods it is of."""
    makes = {
        f"{epsilon:g}": imdb.candidates(replace(config.imdb, epsilon=epsilon))["DP-SGD"].make
        for epsilon in (*config.epsilons, config.imdb.epsilon)
    }
    rows = imdb.texts(config.imdb).data.train.rows
    return {key: spent(make(chosen["DP-SGD"]), units=rows, delta=4e-5) for key, make in makes.items()}


def delays(config: Config, chosen: Mapping[str, Numbers]) -> dict[str, list[float]]:
    """Test accuracies of DP2 over its delay."""
    make = imdb.candidates(config.imdb)["DP2-RMSProp"].make
    of = "DP2-RMSProp"
    return {
        str(delay): _tested(config, f"{of}, delay {delay}", make, {**chosen[of], "delay": delay})
        for delay in config.delays
    }


def budgets(config: Config, chosen: Mapping[str, Numbers]) -> dict[str, dict[str, list[float]]]:
    """Test accuracies of three methods over epsilon."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in chosen}
    for epsilon in config.epsilons:
        every = imdb.candidates(replace(config.imdb, epsilon=epsilon))
        for name, numbers in chosen.items():
            title = f"{name}, epsilon {epsilon:g}"
            found[name][f"{epsilon:g}"] = _tested(config, title, every[name].make, numbers)
    return found


def epochs(config: Config, chosen: Mapping[str, Numbers]) -> dict[str, list[list[float]]]:
    """Test accuracies of three methods after each epoch, with the noise of a run of all."""
    every = imdb.candidates(one_epoch(config.imdb))
    return {
        name: [
            [100 * n for n in _curves(config, every[name].make(numbers), seed=seed)["test"]]
            for seed in range(config.imdb.seeds)
        ]
        for name, numbers in chosen.items()
    }


def one_epoch(whole: imdb.Config) -> imdb.Config:
    """A single epoch at the noise of all, and so at the epsilon of a single one."""
    rows = imdb.texts(whole).data.train.rows
    rate, steps = whole.batch / rows, whole.epochs * rows // whole.batch
    noise = privacy.noise_for(epsilon=whole.epsilon, rate=rate, steps=steps, delta=4e-5)
    first = privacy.spent([Release(noise, rate, times=rows // whole.batch)], delta=4e-5)
    return replace(whole, epochs=1, epsilon=first.epsilon)


def delayed(config: Config, _: Mapping[str, Numbers]) -> dict[str, dict[str, Any]]:
    """RMSProp and its delayed form without privacy: training losses after each epoch, at the best step size."""
    model = eh.models.softmax_regression(features=10_000, classes=2)
    common: dict[str, Any] = {"epochs": 1, "batch_size": config.imdb.batch}

    def rmsprop(step_size: float) -> eh.local.Work:
        rule = optax.rmsprop(step_size, decay=0.9, eps=1e-3, eps_in_sqrt=False)
        return eh.local.sgd(model, rule, **common)

    def late(delay: int) -> Callable[[float], eh.local.Work]:
        return lambda step_size: privacy.delayed_rmsprop(
            model, (1.0, step_size), delay=delay, eps=1e-3, **common
        )

    makes = {"RMSProp": rmsprop, **{f"delay {delay}": late(delay) for delay in config.delays[1:4]}}
    found: dict[str, dict[str, Any]] = {}
    for name, make in makes.items():
        valid = {
            str(n): _curves(config, make(n), seed=config.imdb.seeds)["valid"][-1] for n in config.step_sizes
        }
        best = min(config.step_sizes, key=lambda n: valid[str(n)])
        curves = [_curves(config, make(best), seed=seed) for seed in range(config.imdb.seeds)]
        found[name] = {
            "chosen": best,
            "valid": valid,
            "train": [each["train"] for each in curves],
            "test": [100 * each["test"][-1] for each in curves],
        }
    return found


def _curves(config: Config, work: eh.local.Work, *, seed: int) -> dict[str, Any]:
    """Losses and test accuracies after each epoch."""
    data, rounds = imdb.texts(config.imdb).data, config.imdb.epochs
    history = eh.simulate(eh.algorithms.alone(work), data, rounds=rounds, seed=seed, eval_every=1).history
    told = {"train": "train_loss", "valid": "valid_loss", "test": "test_accuracy"}
    return {key: [float(n) for n in history[name]] for key, name in told.items()}


def _tested(config: Config, title: str, make: Any, numbers: Numbers) -> list[float]:
    runs = Runs(imdb.texts(config.imdb).data, config.imdb.seeds, 0, _accuracy, folder=config.folder)
    grid = {key: (value,) for key, value in numbers.items()}
    return [_accuracy(each, "test") for each in tuned(title, Candidate(make, grid), runs).outcomes]


def _accuracy(outcome: eh.studies.Outcome, split: str) -> float:
    return accuracy(outcome, split)["mean"]


def figure(found: Mapping[str, Any]) -> Figure:
    """Four panels: accuracy over epochs, over epsilon and over the delay, and losses without privacy."""
    drawn = Figure(figsize=(9.6, 6.0), layout="constrained")
    (first, second), (third, last) = drawn.subplots(2, 2)
    for name, seeds in found["epochs"].items():
        first.plot(np.mean(seeds, axis=0), color=COLORS[name], lw=1.2, label=name)
    _look(first, "epsilon 1.5 in the end", "epochs", "test accuracy in percent")
    for name, by_budget in found["budgets"].items():
        _curve(second, by_budget, COLORS[name], name)
    _look(second, "budgets", "epsilon", "test accuracy in percent")
    _curve(third, found["delays"], COLORS["DP2-RMSProp"], "DP2-RMSProp")
    third.set_xscale("log")
    _look(third, "epsilon 1.5", "delay in steps", "test accuracy in percent")
    for name, each in found["delayed RMSProp"].items():
        last.plot(np.mean(each["train"], axis=0), lw=1.2, label=name)
    last.set_yscale("log")
    _look(last, "without privacy", "epochs", "training loss")
    return drawn


def _curve(axes: Axes, found: Mapping[str, Sequence[float]], color: str, label: str) -> None:
    x, seeds = [float(each) for each in found], np.array(list(found.values()))
    axes.errorbar(
        x, seeds.mean(axis=1), seeds.std(axis=1, ddof=1), color=color, marker="o", ms=4, lw=1.2, label=label
    )


def _look(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.imdb_sweeps", description=__doc__))
