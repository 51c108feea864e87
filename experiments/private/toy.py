"""Scales that are known beforehand, on linear regression with frequent and rare features.

Figure 6.4 of Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, with the settings of its
code.  From the root of the repository:

    python -m experiments.private.toy
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import evenhand as eh
from evenhand import privacy
from evenhand.report import statistics
from evenhand.studies import Outcome
from evenhand.types import Array, Key, Model, Params
from experiments.fairness import Experiment
from experiments.private.table import save, spent


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    out: Path = Path("experiments/private/results")
    """Folder that gets toy.json."""
    rows: int = 1000
    """Section 6.2.1, and so are the next two."""
    features: int = 500
    frequent: int = 50
    batch: int = 8
    """The authors' code, as all numbers below where nothing else is said."""
    noise: float = 0.7
    clip: float = 0.5
    steps: int = 2250
    open_steps: int = 40_000
    """Without privacy."""
    rates: tuple[float, float, float, float] = (0.1, 0.2, 0.03, 0.003)
    """Step sizes of DP-SGD, AdaDPS, SGD and AdaS."""
    delta: float = 1e-3
    """Figure 6.4."""
    seeds: int = 5
    """Figure 6.4: five runs; here, each with data of its own."""


def drawn(config: Config, seed: int) -> eh.data.FederatedDataset:
    """Features that are 1 nine times in ten, and others once in a hundred; targets with noise of deviation 0.01."""
    rng = np.random.default_rng(seed)
    is_frequent = np.arange(config.features) < config.frequent
    x = (rng.random((config.rows, config.features)) < np.where(is_frequent, 0.9, 0.01)).astype(np.float32)
    y = x @ np.where(is_frequent, 0.01, 1.0) + rng.normal(0.0, 0.01, config.rows)
    return eh.data.from_arrays(x, y, client=np.zeros(config.rows), test_fraction=0.0)


def model_of(features: int) -> Model:
    """Linear regression without an intercept, with half the squared error."""

    def init(key: Key) -> Params:
        return 0.1 * jax.random.normal(key, (features,))

    def apply(params: Params, x: Array) -> Array:
        return x @ params

    def losses(outputs: Array, y: Array) -> Array:
        return 0.5 * jnp.square(outputs - y)

    return eh.models.from_functions(init, apply, losses)


def methods(config: Config) -> dict[str, eh.local.Work]:
    """With privacy and without it; with scales and without them."""
    model = model_of(config.features)
    is_frequent = jnp.arange(config.features) < config.frequent
    scales = jnp.where(is_frequent, 1.0, 0.01) + 1e-3
    private: dict[str, Any] = {
        "clip": config.clip,
        "noise_multiplier": config.noise,
        "rate": config.batch / config.rows,
        "steps": config.steps,
    }
    plain: dict[str, Any] = {"steps": config.open_steps, "batch_size": config.batch}
    rates = config.rates
    return {
        "DP-SGD": privacy.dp_sgd(model, rates[0], **private),
        "AdaDPS": privacy.adadps(model, rates[1], divided_by=scales, **private),
        "SGD": eh.local.sgd(model, rates[2], **plain),
        "AdaS": privacy.adas(model, rates[3], divided_by=scales, **plain),
    }


def main(config: Config) -> None:
    """All methods on the same data; saved at the end."""
    every = methods(config)
    study = eh.study(
        {name: eh.algorithms.alone(work) for name, work in every.items()},
        lambda seed: drawn(config, seed),
        rounds=1,
        seeds=config.seeds,
        eval_every=1,
        select=("train", "mean"),
        folder=config.folder,
    )
    found: dict[str, list[float]] = {name: [] for name in every}
    for outcome in study.outcomes:
        found[outcome.setting.method].append(_loss(outcome))
    zero = [float(0.5 * np.mean(np.square(drawn(config, seed).train.y))) for seed in range(config.seeds)]
    content = {
        "loss": found,
        "loss of zero": zero,
        "privacy": spent(every["AdaDPS"], units=config.rows, delta=config.delta),
    }
    save(config.out / "toy.json", content, asdict(config), digits=7)
    for name, losses in found.items():
        print(f"{name:10} {np.mean(losses):.3g} ± {np.std(losses, ddof=1):.2g}")


def _loss(outcome: Outcome) -> float:
    if outcome.status == "failed" or outcome.seen is None:
        raise SystemExit(f"{outcome.setting}, seed {outcome.seed}: {outcome.reason}")
    return float(statistics(outcome.seen, "train", "loss")["mean"])


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.toy", description=__doc__))
