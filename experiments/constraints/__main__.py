"""All constraints at once: what unlike clients, malicious ones and privacy cost ten methods, one by one and together.

Ours; no paper has the table.  *Ditto* (Li et al., ICML 2021) claims that its wrap suits privacy, and measures nothing:
the second part does.  From the root of the repository:

    python -m experiments.constraints --data-dir DIR --folder runs/constraints
    python -m experiments.constraints --parts budgets rivals --data-dir DIR --folder runs/constraints
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

import evenhand as eh
from evenhand import attacks
from experiments import evidence
from experiments.constraints.methods import CONDITIONS, Budget, Condition, methods
from experiments.evidence import Contrast, Finding, Rival
from experiments.fairness import Experiment, Measures, write
from experiments.personal.comparison import Found, Runs, compared, shown
from experiments.robust.data import mnist

Part = Literal["table", "budgets", "rivals"]

ABOUT_DITTO = ("fedavg", "finetune(fedavg)", "ditto(fedavg)")
"""The methods of the second part: one model for all, and two ways to a model of one's own."""
_PAIR = ("fedavg", "ditto(fedavg)")
"""The methods of both findings."""
_FEATURES, _CLASSES = 196, 10


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run; all of it is ours."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz."""
    out: Path = Path("experiments/constraints/results")
    """Folder that gets the JSON files."""
    parts: tuple[Part, ...] = ("table",)
    """The table; Ditto around DP-FedAvg at several budgets; rival explanations of the finding of each."""
    conditions: tuple[Condition, ...] = CONDITIONS
    methods: tuple[str, ...] = ()
    """Only these methods; none: all."""
    seeds: int = 5
    """0 to 4; a seed decides the clients, too, and who is malicious; the next ones tune."""
    tuning: int = 1
    """Seeds beyond those, on whose validation rows each method chooses its numbers."""
    clients: int = 500
    """Of two digits each."""
    images: int = 30_000
    """Of all clients."""
    rate: float = 0.1
    """Of the clients in a round; without privacy, a fixed number of them."""
    rounds: int = 100
    rates: tuple[float, ...] = (0.1, 0.3)
    """Step sizes that each method chooses from."""
    fraction: float = 0.2
    """Of the clients that are malicious: wrong labels, and updates scaled by the size of a cohort (A3 of Ditto)."""
    epsilon: float = 8.0
    epsilons: tuple[float, ...] = (2.0, 8.0)
    """Of the second part."""
    delta: float = 1e-3
    """Half of 1 / clients."""

    @property
    def cohort(self) -> int:
        """Clients in a round without privacy, and on average with it."""
        return round(self.rate * self.clients)


def budget(config: Config, epsilon: float) -> Budget:
    """The least noise that stays within a budget over all rounds."""
    noise = eh.privacy.noise_for(epsilon=epsilon, rate=config.rate, steps=config.rounds, delta=config.delta)
    return Budget(config.rate, noise)


def runs_of(config: Config, condition: Condition, *names: str) -> Runs:
    """What the runs of a condition have in common; ``names`` say where they are kept."""
    wrong = attacks.uniform_labels(config.fraction, classes=_CLASSES)
    boosted = attacks.model_replacement(config.fraction, boost=float(config.cohort))
    deal = partial(mnist, config.data_dir, deal="two classes", clients=config.clients, images=config.images)
    return Runs(
        data=deal,
        seeds=config.seeds,
        tuning=config.tuning,
        rates=config.rates,
        rounds=config.rounds,
        # A private method draws its cohorts itself.
        cohort=config.cohort if condition in ("plain", "attack") else None,
        attack=attacks.both(wrong, boosted) if condition in ("attack", "all") else None,
        folder=config.under("_".join(names)),
    )


def of_condition(
    config: Config, condition: Condition, epsilon: float, runs: Runs, wanted: tuple[str, ...] = ()
) -> Found:
    """The methods under a condition; without names, all that the configuration names."""
    model = eh.models.softmax_regression(_FEATURES, classes=_CLASSES)
    named = wanted or config.methods
    chosen = {
        name: candidates
        for name, candidates in methods(condition, model, budget(config, epsilon)).items()
        if name in named or not named
    }
    return compared(chosen, runs)


def main(config: Config) -> None:
    """Each part; the table is written after each condition."""
    if "table" in config.parts:
        percent: dict[str, Found] = {}
        for condition in config.conditions:
            percent[condition] = of_condition(
                config, condition, config.epsilon, runs_of(config, condition, condition)
            )
            shown(condition, percent[condition])
            write(config.out / "table.json", {"percent": percent}, asdict(config), digits=4)
    if "budgets" in config.parts:
        budgets: dict[str, Found] = {}
        for epsilon in config.epsilons:
            runs = runs_of(config, "privacy", f"epsilon_{epsilon:g}")
            budgets[f"{epsilon:g}"] = of_condition(config, "privacy", epsilon, runs, ABOUT_DITTO)
            shown(f"epsilon {epsilon:g}", budgets[f"{epsilon:g}"])
            write(config.out / "budgets.json", {"percent": budgets}, asdict(config), digits=4)
    if "rivals" in config.parts:
        parts: dict[str, Condition] = {"table": "all", "budgets": "privacy"}
        for name, condition in parts.items():
            saved = json.loads((config.out / f"{name}.json").read_text())
            part = saved["percent"][condition if name == "table" else f"{config.epsilon:g}"]
            content = {**saved, "claims": _claims(config, condition, part)}
            for key in ("command", "versions", "config"):
                content.pop(key)
            write(config.out / f"{name}.json", content, asdict(config), digits=4)


# --- the tables of the page -------------------------------------------------------------------------------------


def table(percent: Mapping[str, Found]) -> str:
    """Mean and worst tenth of the honest clients under each condition, ± over seeds, in Markdown."""
    titles = {"plain": "plain", "attack": "malicious clients", "privacy": "privacy", "all": "all at once"}
    return _markdown("method", {titles[name]: found for name, found in percent.items()})


def budgets_table(percent: Mapping[str, Found]) -> str:
    """The same at each budget of privacy."""
    return _markdown("private method", {f"epsilon {name}": found for name, found in percent.items()})


def _markdown(corner: str, columns: Mapping[str, Found]) -> str:
    names = list(next(iter(columns.values())))
    head = [corner, *(f"{title}: {part}" for title in columns for part in ("mean", "worst tenth"))]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for name in names:
        cells = [
            _cell([seed[part] for seed in found[name]["seeds"]])
            for found in columns.values()
            for part in ("mean", "worst10")
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values):.1f}"


# --- the finding of each part, and other explanations of it ----------------------------------------------


def _gain(percent: Mapping[str, Any]) -> Contrast:
    """How much better Ditto serves the worst tenth of the honest clients than the model that it is kept near."""
    measures: dict[str, list[Measures]] = {name: percent[name]["seeds"] for name in _PAIR}
    return evidence.contrast(measures["ditto(fedavg)"], measures["fedavg"], "worst10")


def _claims(config: Config, condition: Condition, percent: Mapping[str, Any]) -> dict[str, Any]:
    where = "With malicious clients and privacy" if condition == "all" else "With privacy"
    sentence = (
        f"{where} at epsilon {config.epsilon:g}, Ditto around DP-FedAvg changes the accuracy of the worst-served tenth "
        "of the honest clients by {} against DP-FedAvg alone, at the same promise for the global model."
    )
    runs = runs_of(config, condition, condition, "rivals")
    others = {
        "tuning": runs._replace(rates=tuple(sorted({*config.rates, 0.03, 1.0}))),
        "seeds": runs._replace(first=100),
        "selection": runs._replace(select=("valid", "worst10")),
    }
    gains = {
        kind: _gain(
            of_condition(
                config,
                condition,
                config.epsilon,
                other._replace(folder=config.under(f"{condition}_{kind}")),
                _PAIR,
            )
        )
        for kind, other in others.items()
    }
    rivals = [
        Rival("tuning", "two step sizes are too few", "step sizes 0.03 and 1 as well", gains["tuning"]),
        Rival("seeds", "these clients are special", "five other seeds", gains["seeds"]),
        Rival(
            "selection",
            "the mean chose the settings",
            "settings chosen by the worst tenth",
            gains["selection"],
        ),
    ]
    return evidence.claims(Finding(sentence, _gain(percent)), rivals)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.constraints", description=__doc__))
