"""DP2 on film reviews over delays, budgets and epochs, and delayed RMSProp without privacy.

Figures 6.8 and 6.10 to 6.12 of the paper on DP2 (Li et al., *Differentially Private Adaptive Optimization with Delayed
Preconditioners*, ICLR 2023), for IMDB and at the settings that :mod:`experiments.private.imdb` has chosen.  From the
root of the repository:

    python -m experiments.private.imdb_sweeps --imdb.data-dir DIR --folder runs/imdb_sweeps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro

import evenhand as eh
from experiments.fairness import Experiment
from experiments.private import imdb
from experiments.private.sweeps import Sweep, Task, chosen_by, run
from experiments.private.table import Candidate, Numbers
from experiments.robust.breakdown import accuracy

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


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
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
    parts: tuple[str, ...] = ()
    """Only these, beside what the file has of others; none: all."""


def task_of(config: Config) -> Task:
    """The reviews, and the settings that were chosen for them."""
    return of_reviews(config.imdb, imdb.candidates, chosen_by(config.chosen, "accuracy"))


def of_reviews(
    config: imdb.Config,
    candidates: Callable[[imdb.Config], Mapping[str, Candidate]],
    chosen: Mapping[str, Numbers],
) -> Task:
    """The reviews, with methods of one's own at the settings that were chosen for them."""
    data = imdb.texts(config).data
    return Task(
        data=lambda seed: data,
        model=eh.models.softmax_regression(features=10_000, classes=2),
        candidates=candidates,
        config=config,
        chosen=chosen,
        rows=data.train.rows,
        delta=4e-5,
        measure="accuracy",
        metric="test accuracy in percent",
        score=lambda outcome: accuracy(outcome, "test")["mean"],
        unit=100.0,
        sgd=1.0,
    )


def main(config: Config) -> None:
    """Each part; saved as soon as it is done."""
    over = Sweep(config.epsilons, config.delays, config.delays[1:4], config.step_sizes, config.parts)
    settings = {**asdict(config), "imdb": {key: str(value) for key, value in asdict(config.imdb).items()}}
    run(task_of(config), over, config.out / "imdb_sweeps.json", settings, PAPER, config.folder)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.imdb_sweeps", description=__doc__))
