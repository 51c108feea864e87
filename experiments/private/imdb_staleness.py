"""How far the delay of DP2 takes its divisor from the gradients of film reviews, h(s).

Figure 6.9 of the paper on DP2 (Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*,
ICLR 2023), at the settings that :mod:`experiments.private.imdb` has chosen.  The norms are those of gradients without
noise, so that the numbers are not private.  From the root of the repository:

    python -m experiments.private.imdb_staleness --imdb.data-dir DIR
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

import evenhand as eh
from evenhand import privacy
from evenhand.types import Model
from experiments.private import imdb
from experiments.private.sweeps import chosen_by
from experiments.private.table import earlier, save, wanted

PARTS = {"with noise": 1.0, "without noise": 0.0}
"""What is measured -> by how much the noise of the budget is multiplied."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run, with the place that a default comes from, or else "ours"."""

    imdb: imdb.Config = field(default_factory=imdb.Config)
    """Data, lengths, seeds and the budget."""
    chosen: Path = Path("experiments/private/results/imdb.json")
    """Where the settings are."""
    out: Path = Path("experiments/private/results")
    """Folder that gets imdb_staleness.json."""
    delays: tuple[int, ...] = (1, 30, 195, 348, 1043, 2781)
    """In steps, as those of figure 6.12 in imdb_sweeps.json."""
    parts: tuple[str, ...] = ()
    """Only these, beside what the file has of others; none: all."""


def measured(config: Config, part: str, delay: int) -> dict[str, Any]:
    """What :func:`evenhand.privacy.staleness` finds at one delay.

    Returns:
      h(s) with the expectations over all seeds; the largest ratio of each seed by itself; both of its norms, means over
      seeds and steps; and the second norm as it would be if all gradients were 0.
    """
    data = imdb.texts(config.imdb).data
    model = eh.models.softmax_regression(features=10_000, classes=2)
    given = imdb.budget(config.imdb, data.train.rows)
    given["noise_multiplier"] *= PARTS[part]
    phases = imdb.phases({**chosen_by(config.chosen, "accuracy")["DP2-RMSProp"], "delay": delay})
    runs = [
        privacy.staleness(model, public=data.train.client(0), runs=1, seed=seed, **phases, **given)
        for seed in range(config.imdb.seeds)
    ]
    gradients = np.mean([run.gradients[delay:] for run in runs], axis=0)
    accumulators = np.mean([run.accumulators[delay:] for run in runs], axis=0)
    deviation = given["noise_multiplier"] * phases["clips"][0] / config.imdb.batch / delay**0.5
    return {
        "h": float((gradients / accumulators).max()),
        "seeds": [run.largest for run in runs],
        "gradient": float(gradients.mean()),
        "accumulator": float(accumulators.mean()),
        "noise": parameters(model) * (deviation * (2 / np.pi) ** 0.5 + phases["eps"]),
    }


def parameters(model: Model) -> int:
    """How many numbers it has."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def main(config: Config) -> None:
    """Each delay, with noise and without it; saved as soon as it is done."""
    settings = {**asdict(config), "imdb": {key: str(value) for key, value in asdict(config.imdb).items()}}
    path = config.out / "imdb_staleness.json"
    found: dict[str, Any] = earlier(path, settings).get("staleness", {})
    for part in wanted(PARTS, config.parts):
        found[part] = {}
        for delay in config.delays:
            found[part][str(delay)] = measured(config, part, delay)
            save(path, {"staleness": found}, settings, digits=4)
            print(f"{part}, {delay}", found[part][str(delay)], flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.imdb_staleness", description=__doc__))
