"""AdaGrad on film reviews, after the noise and as DP2 has it.

Figure 6.14 of the dissertation (Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*,
ICLR 2023, appendix), for IMDB.  From the root of the repository:

    python -m experiments.private.imdb_adagrad --imdb.data-dir DIR --folder runs/imdb_adagrad
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optax
import tyro

import evenhand as eh
from evenhand import privacy
from experiments.fairness import Experiment
from experiments.private import imdb, imdb_sweeps
from experiments.private.sweeps import Task, epochs
from experiments.private.table import Candidate, Numbers, Runs, earlier, save, spent, study, valid, wanted
from experiments.robust.breakdown import accuracy

MODEL = eh.models.softmax_regression(features=10_000, classes=2)

GRIDS = {
    "DP-AdaGrad": {"lr": (1.0, 3.0, 10.0), "clip": (0.1, 0.5)},
    "DP2-AdaGrad": {"lr": (3.0, 10.0, 30.0), "clip": (2.0, 5.0)},
}
"""The six settings that are tried of each."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    imdb: imdb.Config = field(default_factory=imdb.Config)
    """Data, lengths, seeds and the budget."""
    out: Path = Path("experiments/private/results")
    """Folder that gets imdb_adagrad.json."""
    parts: tuple[str, ...] = ()
    """Only these, beside what the file has of others; none: all."""


def candidates(config: imdb.Config) -> dict[str, Candidate]:
    """AdaGrad after the noise, and as DP2 has it."""
    common = imdb.budget(config, imdb.texts(config).data.train.rows)

    def adagrad(n: Numbers) -> eh.local.Work:
        rule = optax.adagrad(n["lr"], initial_accumulator_value=0.0, eps=1e-6)
        return privacy.dp_sgd(MODEL, rule, clip=n["clip"], **common)

    def delayed(n: Numbers) -> eh.local.Work:
        return privacy.dp2(MODEL, kind="adagrad", **imdb.phases(n), **common)

    makes = {"DP-AdaGrad": adagrad, "DP2-AdaGrad": delayed}
    return {name: Candidate(make, GRIDS[name]) for name, make in makes.items()}


def tuned(every: Mapping[str, Candidate], config: Config) -> dict[str, Any]:
    """Each at the setting that validation reviews choose: accuracies of the other seeds, and what was given away."""
    data, found = imdb.texts(config.imdb).data, {}
    for name, each in every.items():
        runs = Runs(data, config.imdb.seeds, config.imdb.tuning, folder=config.folder)
        best, tuning, outcomes = study(name, each, runs)
        work = each.make(best)
        found[name] = {
            "chosen": dict(best),
            "valid": valid(tuning, lambda outcome, split: accuracy(outcome, split)["mean"]),
            "test": [accuracy(outcome, "test")["mean"] for outcome in outcomes],
            "privacy": work.privacy and spent(work, units=data.train.rows, delta=4e-5),
        }
        print(name, found[name], flush=True)
    return found


def main(config: Config) -> None:
    """Each part; saved as soon as it is done."""
    settings = {**asdict(config), "imdb": {key: str(value) for key, value in asdict(config.imdb).items()}}
    path = config.out / "imdb_adagrad.json"
    found: dict[str, Any] = earlier(path, settings).get("accuracy", {})

    def task() -> Task:
        return imdb_sweeps.of_reviews(
            config.imdb, candidates, {name: each["chosen"] for name, each in found["table"].items()}
        )

    measures: dict[str, Callable[[], Any]] = {
        "table": lambda: tuned(candidates(config.imdb), config),
        "epochs": lambda: epochs(task()),
    }
    for part in wanted(measures, config.parts):
        found[part] = measures[part]()
        save(path, {"accuracy": found}, settings, digits=4)
        print(part, found[part], flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.imdb_adagrad", description=__doc__))
