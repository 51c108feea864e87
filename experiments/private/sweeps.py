"""DP2 and two rivals over delays, budgets and epochs, and delayed RMSProp without privacy, for any data.

Figures 6.8 and 6.10 to 6.12 of the paper on DP2 (Li et al., *Differentially Private Adaptive Optimization with Delayed
Preconditioners*, ICLR 2023), at settings that another experiment has chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import evenhand as eh
from evenhand import privacy
from evenhand.studies import Outcome
from evenhand.types import Model, Release
from experiments.fairness import picture
from experiments.private.table import Candidate, Numbers, Runs, earlier, save, spent, study, wanted

__all__ = ["COLORS", "Sweep", "Task", "chosen_by", "epochs", "one_epoch", "run"]

COLORS = {"DP-SGD": "#0072B2", "DP-RMSProp": "#009E73", "DP2-RMSProp": "#D55E00"}


class Task(NamedTuple):
    """What is swept over.

    Attributes:
      data: seed -> the private examples as one client.
      model: what is trained.
      candidates: a config of the experiment that chose the settings -> its methods.
      config: of that experiment: epsilon, epochs, batch and seeds.
      chosen: method -> its settings, with DP2's delay.
      rows: private examples.
      delta: of all promises.
      measure: the name of a metric.
      metric: the same for a figure.
      score: ``outcome -> number``, the metric on test rows.
      unit: by which it is multiplied.
      sgd: step size of the first phase of delayed RMSProp.
    """

    data: Callable[[int], eh.data.FederatedDataset]
    model: Model
    candidates: Callable[[Any], Mapping[str, Candidate]]
    config: Any
    chosen: Mapping[str, Numbers]
    rows: int
    delta: float
    measure: str
    metric: str
    score: Callable[[Outcome], float]
    unit: float
    sgd: float


class Sweep(NamedTuple):
    """Over what.

    Attributes:
      epsilons: the budgets.
      delays: in steps.
      late: those for delayed RMSProp.
      step_sizes: of its adaptive phase; the loss on validation rows chooses.
      parts: only these; none: all.
    """

    epsilons: Sequence[float]
    delays: Sequence[int]
    late: Sequence[int]
    step_sizes: Sequence[float]
    parts: Sequence[str] = ()


def chosen_by(path: Path, measure: str, names: Iterable[str] = COLORS) -> dict[str, Numbers]:
    """The settings of these methods in the file of an experiment."""
    found = json.loads(path.read_text())[measure]
    return {name: found[name]["chosen"] for name in names}


def promised(task: Task, epsilons: Sequence[float]) -> dict[str, dict[str, Any]]:
    """What a run gives away at each budget, whichever of the three methods it is of."""
    makes = {
        f"{epsilon:g}": task.candidates(replace(task.config, epsilon=epsilon))["DP-SGD"].make
        for epsilon in (*epsilons, task.config.epsilon)
    }
    chosen = task.chosen["DP-SGD"]
    return {key: spent(make(chosen), units=task.rows, delta=task.delta) for key, make in makes.items()}


def run(
    task: Task, over: Sweep, path: Path, settings: Mapping[str, Any], paper: Any, folder: Path | None
) -> None:
    """Runs each part, saves it as soon as it is done, and draws all of them; a folder keeps runs with one round."""
    parts: dict[str, Callable[[], Any]] = {
        "delays": lambda: delays(task, over.delays, folder),
        "budgets": lambda: budgets(task, over.epsilons, folder),
        "epochs": lambda: epochs(task),
        "delayed RMSProp": lambda: delayed(task, over),
    }
    given_away = promised(task, over.epsilons)
    found: dict[str, Any] = earlier(path, settings).get(task.measure, {})
    for name in wanted(parts, over.parts):
        found[name] = parts[name]()
        print(name, json.dumps(found[name], default=str), flush=True)
        save(path, {task.measure: found, "privacy": given_away, "paper": paper}, settings, digits=4)
        if set(parts) <= set(found):
            drawn = figure(json.loads(path.read_text())[task.measure], task.config.epsilon, task.metric)
            picture(drawn, path.with_suffix(".png"))


def delays(task: Task, steps: Sequence[int], folder: Path | None) -> dict[str, list[float]]:
    """Test metrics of DP2 over its delay."""
    of = "DP2-RMSProp"
    make = task.candidates(task.config)[of].make
    return {
        str(delay): _tested(task, f"{of}, delay {delay}", make, {**task.chosen[of], "delay": delay}, folder)
        for delay in steps
    }


def budgets(task: Task, epsilons: Sequence[float], folder: Path | None) -> dict[str, dict[str, list[float]]]:
    """Test metrics of three methods over epsilon."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in task.chosen}
    for epsilon in epsilons:
        every = task.candidates(replace(task.config, epsilon=epsilon))
        for name, numbers in task.chosen.items():
            title = f"{name}, epsilon {epsilon:g}"
            found[name][f"{epsilon:g}"] = _tested(task, title, every[name].make, numbers, folder)
    return found


def epochs(task: Task) -> dict[str, list[list[float]]]:
    """Test metrics of three methods after each epoch, with the noise of a run of all."""
    every = task.candidates(one_epoch(task))
    return {
        name: [
            [task.unit * n for n in _curves(task, every[name].make(numbers), seed=seed)["test"]]
            for seed in range(task.config.seeds)
        ]
        for name, numbers in task.chosen.items()
    }


def one_epoch(task: Task) -> Any:
    """The config of a single epoch at the noise of all, and so at the epsilon of a single one."""
    whole, rows = task.config, task.rows
    rate, steps = whole.batch / rows, whole.epochs * rows // whole.batch
    noise = privacy.noise_for(epsilon=whole.epsilon, rate=rate, steps=steps, delta=task.delta)
    first = privacy.spent([Release(noise, rate, times=rows // whole.batch)], delta=task.delta)
    return replace(whole, epochs=1, epsilon=first.epsilon)


def delayed(task: Task, over: Sweep) -> dict[str, dict[str, Any]]:
    """RMSProp and its delayed form without privacy: training losses after each epoch, at the best step size."""
    common: dict[str, Any] = {"epochs": 1, "batch_size": task.config.batch}

    def rmsprop(step_size: float) -> eh.local.Work:
        rule = optax.rmsprop(step_size, decay=0.9, eps=1e-3, eps_in_sqrt=False)
        return eh.local.sgd(task.model, rule, **common)

    def late(delay: int) -> Callable[[float], eh.local.Work]:
        return lambda step_size: privacy.delayed_rmsprop(
            task.model, (task.sgd, step_size), delay=delay, eps=1e-3, **common
        )

    makes = {"RMSProp": rmsprop, **{f"delay {delay}": late(delay) for delay in over.late}}
    found: dict[str, dict[str, Any]] = {}
    for name, make in makes.items():
        valid = {str(n): _curves(task, make(n), seed=task.config.seeds)["valid"][-1] for n in over.step_sizes}
        best = min(over.step_sizes, key=lambda n: valid[str(n)])
        curves = [_curves(task, make(best), seed=seed) for seed in range(task.config.seeds)]
        found[name] = {
            "chosen": best,
            "valid": valid,
            "train": [each["train"] for each in curves],
            "test": [task.unit * each["test"][-1] for each in curves],
        }
    return found


def _curves(task: Task, work: eh.local.Work, *, seed: int) -> dict[str, Any]:
    """Losses and the test metric after each epoch; a large number, 1e6, where a model was not finite."""
    algorithm, rounds = eh.algorithms.alone(work), task.config.epochs
    history = eh.simulate(algorithm, task.data(seed), rounds=rounds, seed=seed, eval_every=1).history
    told = {"train": "train_loss", "valid": "valid_loss", "test": f"test_{task.measure}"}
    # A model that is not finite is rejected, and the one before it stays.
    lost = np.nan_to_num(history["rejected"]).cumsum() > 0
    return {
        key: [1e6 if gone else float(n) for n, gone in zip(history[name], lost, strict=True)]
        for key, name in told.items()
    }


def _tested(task: Task, title: str, make: Any, numbers: Numbers, folder: Path | None) -> list[float]:
    runs = Runs(task.data, task.config.seeds, 0, folder=folder)
    grid = {key: (value,) for key, value in numbers.items()}
    *_, outcomes = study(title, Candidate(make, grid), runs)
    return [task.score(outcome) for outcome in outcomes]


def figure(found: Mapping[str, Any], epsilon: float, metric: str) -> Figure:
    """Four panels: the metric over epochs, over epsilon and over the delay, and losses without privacy."""
    drawn = Figure(figsize=(9.6, 6.0), layout="constrained")
    (first, second), (third, last) = drawn.subplots(2, 2)
    for name, seeds in found["epochs"].items():
        first.plot(np.mean(seeds, axis=0), color=COLORS[name], lw=1.2, label=name)
    _look(first, f"epsilon {epsilon:g} in the end", "epochs", metric)
    for name, by_budget in found["budgets"].items():
        _curve(second, by_budget, COLORS[name], name)
    _look(second, "budgets", "epsilon", metric)
    _curve(third, found["delays"], COLORS["DP2-RMSProp"], "DP2-RMSProp")
    third.set_xscale("log")
    _look(third, f"epsilon {epsilon:g}", "delay in steps", metric)
    for name, each in found["delayed RMSProp"].items():
        last.plot(np.mean(each["train"], axis=0), lw=1.2, label=name)
    last.set_yscale("log")
    last.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    last.yaxis.set_major_formatter("{x:g}")
    last.yaxis.set_minor_formatter("")
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
