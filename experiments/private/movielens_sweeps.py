"""DP2 on ratings of films over delays, budgets and epochs, and delayed RMSProp without privacy.

Figures 6.8 and 6.10 to 6.12 of the paper on DP2 (Li et al., *Differentially Private Adaptive Optimization with Delayed
Preconditioners*, ICLR 2023), for MovieLens and at the settings that :mod:`experiments.private.movielens` has chosen.
From the root of the repository:

    python -m experiments.private.movielens_sweeps --movielens.data-dir DIR --folder runs/movielens_sweeps
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from experiments.fairness import Experiment
from experiments.private import movielens
from experiments.private.sweeps import Sweep, Task, chosen_by, run
from experiments.private.table import error

PAPER: dict[str, Any] = {
    "budgets": {
        "noise_multiplier": [0.5, 0.4, 0.35],
        "DP-SGD": [3.10, 2.08, 1.76],
        "DP-RMSProp": [3.04, 2.14, 1.80],
        "DP2-RMSProp": [2.72, 1.98, 1.76],
    },
    "delays": {
        "epochs": [0.5, 1.0, 10.0, 16.0, 25.0, 30.0, 40.0],
        "DP2-RMSProp": [3.02, 3.04, 2.92, 2.88, 2.72, 2.76, 2.88],
    },
}
"""Mean squared error on test ratings, read off figures 6.11 and 6.12, over 50 epochs."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    movielens: movielens.Config = field(default_factory=movielens.Config)
    """Data, lengths and seeds; the budget of the sweep over delays."""
    chosen: Path = Path("experiments/private/results/movielens.json")
    """Where the settings are."""
    out: Path = Path("experiments/private/results")
    """Folder that gets movielens_sweeps.json and movielens_sweeps.png."""
    folder: Path | None = None
    """Folder that keeps the runs over delays and budgets (ours): an experiment that was stopped goes on with it."""
    epsilons: tuple[float, ...] = (4.32, 9.8, 26.5, 49.8)
    """The paper's noise multipliers of 0.5, 0.4 and 0.35 (figure 6.11) at our delta, and what it takes 0.5 for."""
    delays: tuple[int, ...] = (18, 37, 367, 587, 917, 1101, 1468)
    """Figure 6.12: the same shares of a run."""
    late: tuple[int, ...] = (37, 367, 917)
    """Figure 6.8's (ours)."""
    step_sizes: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    """Of figure 6.8's adaptive steps; validation ratings choose."""
    parts: tuple[str, ...] = ()
    """Only these, beside what the file has of others; none: all."""


def task_of(config: Config) -> Task:
    """The ratings, and the settings that were chosen for them, with a delay of half a run."""
    of = config.movielens
    ratings = movielens.Ratings(of)
    chosen = chosen_by(config.chosen, "error")
    half = of.epochs * ratings.rows // of.batch // 2
    return Task(
        data=ratings,
        model=movielens.model_of(of.dimension),
        candidates=partial(movielens.candidates, ratings=ratings),
        config=of,
        chosen={**chosen, "DP2-RMSProp": {**chosen["DP2-RMSProp"], "delay": half}},
        rows=ratings.rows,
        delta=of.delta,
        measure="squared_error",
        metric="mean squared error on test ratings",
        score=lambda outcome: error(outcome, "test"),
        unit=1.0,
        sgd=10.0,
    )


def main(config: Config) -> None:
    """Each part; saved as soon as it is done."""
    over = Sweep(config.epsilons, config.delays, config.late, config.step_sizes, config.parts)
    settings = asdict(config)
    settings["movielens"] = {key: str(value) for key, value in settings["movielens"].items()}
    run(task_of(config), over, config.out / "movielens_sweeps.json", settings, PAPER, config.folder)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.movielens_sweeps", description=__doc__))
