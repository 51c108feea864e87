"""Delta-FL end to end under privacy, beside DP-FedAvg.

Figure 6 of Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
Learning 2023: errors of clients with labels unlike those of the training clients.  From the root of the repository:

    python -m experiments.private.end_to_end --folder runs/end_to_end
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import tyro

import evenhand as eh
from experiments.fairness import Experiment, write
from experiments.private.budgets import Found, Runs, over_budgets
from experiments.private.clients import label_shift
from experiments.private.rivals import Setting, rivals
from experiments.private.worst_tenth import LABEL_SHIFT

PAPER = {
    "DP-FedAvg": {"5": 55.7},
    "DP-Delta-FL, theta=0.5": {"5": 52.6},
    "DP-Delta-FL, theta=0.25": {"5": 51.4},
}
"""The 90th percentile of the errors at epsilon 5 (section 7.7)."""

SETTING = replace(LABEL_SHIFT, rounds=1000, clips=(0.09, 0.11, 0.13, 0.15), rates=(1.0,))
"""Appendix D.2, with its clips in the units of an update; bound of the losses and share of the budget are fixed."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    out: Path = Path("experiments/private/results")
    """Folder that gets end_to_end.json."""
    epsilons: tuple[float, ...] = (3.0, 5.0, 10.0)
    """Appendix D.2, which has 15 and 20 too."""
    thetas: tuple[float, ...] = (0.5, 0.25)
    """Section 7.7."""
    seeds: int = 5
    """Appendix D.2.  A seed decides the clients, too (ours)."""
    tuning: int = 1
    """Seeds that tune, not among the others (ours)."""
    setting: Setting = field(default_factory=lambda: SETTING)


def main(config: Config) -> None:
    """Each method at each budget; saved as soon as a method is done."""
    setting = config.setting
    place = partial(label_shift, setting.clients, setting.strangers)
    runs = Runs(
        place,
        setting.rounds,
        setting.clients,
        setting.delta,
        config.seeds,
        config.tuning,
        "-valid_stranger_error_p90",
        config.folder,
    )
    model = eh.models.softmax_regression(features=20, classes=10)
    found: dict[str, Found] = {}
    command = {"command": shlex.join(["python", "-m", "experiments.private.end_to_end", *sys.argv[1:]])}
    for method, rival in rivals(setting, model, config.thetas).items():
        if method != "DP-FedAvg" and "Delta-FL" not in method:
            continue
        found[method] = over_budgets(method, rival, config.epsilons, runs)
        content = {**command, "methods": found, "paper": PAPER}
        write(config.out / "end_to_end.json", content, asdict(config), digits=5)
        for budget, each in found[method].items():
            mean, tail = (
                np.mean([one[f"test_stranger_error_{what}"] for one in each["seeds"]])
                for what in ("mean", "p90")
            )
            print(f"{method:24} {budget:>4} {mean:5.1f} {tail:5.1f}  {each['chosen']}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.end_to_end", description=__doc__))
