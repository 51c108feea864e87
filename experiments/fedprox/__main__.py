"""FedProx: what stragglers and unlike clients do to federated averaging, and how a proximal term helps.

Checks figures 1 to 5, 9 and 12 of Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020
(arXiv 1812.06127), on its synthetic data.  From the root of the repository:

    python -m experiments.fedprox --seeds 5 --out experiments/fedprox/results
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import get_args

import optax
import tyro

import evenhand as eh
from experiments.fedprox.claims import Claim, Trial, trials
from experiments.fedprox.saved import Curves, draw, save, table


@dataclass(frozen=True)
class Config:
    """What is run.  The defaults are the paper's, with the place they come from, or else "ours"."""

    claims: tuple[Claim, ...] = field(default_factory=lambda: get_args(Claim))
    """Figures 1, 2, 9, 5, 3, 4 and 12, in this order."""
    out: Path = Path("experiments/fedprox/results")
    """Folder that gets one JSON file and one picture per claim."""
    seeds: int = 5
    """Runs of figures 1 and 2, each on a data set of its own (ours: the paper shows one run)."""
    more_seeds: int = 3
    """The same for the other figures (ours)."""
    clients: int = 30
    """Section 5.1: 30 devices."""
    cohort: int = 10
    """Section 5.1: 10 devices are selected in each round."""
    rounds: int = 200
    """Figures 1 and 2: the axis ends at 200."""
    epochs: int = 20
    """Figures 1 and 2: E = 20.  Figure 9 has E = 1."""
    learning_rate: float = 0.01
    """Appendix C.2: 0.01 on synthetic data."""
    batch_size: int = 10
    """Appendix C.2: 10."""
    max_size: int = 6000
    """Most rows a client can have (ours: sizes are LogNormal(4, 2) + 50; one can outweigh all the others)."""
    sampling_max_size: int = 300
    """The same for figure 12 (ours: scheme A keeps drawing the largest clients, which takes long)."""
    eval_every: int = 2
    """Rounds between two evaluations (ours: the paper evaluates every round)."""
    variance_every: int = 10
    """Rounds between two measurements of the gradients' variance; a multiple of the above (ours)."""
    last: int = 20
    """The mean over so many rounds at the end is reported beside the final value, which is noisy (ours)."""


def datasets(config: Config) -> dict[str, Callable[..., eh.data.FederatedDataset]]:
    """Generators, to be called with ``seed=``.  Section 5.1: 80 % of a device's rows are for training."""
    shape = {"clients": config.clients, "test_fraction": 0.2}
    synthetic = partial(eh.data.synthetic, max_size=config.max_size, **shape)
    return {
        "IID": partial(synthetic, iid=True),
        "(0, 0)": partial(synthetic, 0.0, 0.0),
        "(0.5, 0.5)": partial(synthetic, 0.5, 0.5),
        "(1, 1)": partial(synthetic, 1.0, 1.0),
        "(1, 1) capped": partial(synthetic, 1.0, 1.0, max_size=config.sampling_max_size),
    }


def methods(config: Config) -> dict[str, eh.Algorithm]:
    """One object per method for the whole session, so that equal shapes are compiled once."""
    model = eh.models.softmax_regression(features=60, classes=10)
    descent = optax.sgd(config.learning_rate)
    work = eh.local.sgd(model, descent, epochs=config.epochs, batch_size=config.batch_size)
    single = eh.local.sgd(model, descent, epochs=1, batch_size=config.batch_size)
    by_size = eh.sampling.proportional()
    return {
        "FedAvg": eh.algorithms.fedavg(work),
        "mu=0": eh.algorithms.fedprox(work, mu=0.0),
        "mu=1": eh.algorithms.fedprox(work, mu=1.0),
        "FedAvg, E=1": eh.algorithms.fedavg(single),
        "mu=0, E=1": eh.algorithms.fedprox(single, mu=0.0),
        "mu=1, E=1": eh.algorithms.fedprox(single, mu=1.0),
        "adaptive from 0": eh.algorithms.fedprox_adaptive(work, mu0=0.0),
        "adaptive from 1": eh.algorithms.fedprox_adaptive(work, mu0=1.0),
        "FedDane": eh.algorithms.feddane(work, mu=0.0),
        "mu=0, scheme A": eh.algorithms.fedprox(work, mu=0.0, sampling=by_size),
        "mu=1, scheme A": eh.algorithms.fedprox(work, mu=1.0, sampling=by_size),
    }


def follow(config: Config, method: eh.Algorithm, trial: Trial, seed: int) -> Curves:
    """One run; the seed decides the data too."""
    data = datasets(config)[trial.dataset](seed=seed)
    rows = eh.evaluation.prepare(data.train)
    curves: Curves = {"train_loss": {}, "test_accuracy": {}, "gradient_variance": {}, "uniform_variance": {}}
    for run in eh.simulation.iterate(
        method,
        data,
        rounds=config.rounds,
        cohort=config.cohort,
        seed=seed,
        eval_every=config.eval_every,
        systems=eh.systems.stragglers(trial.stragglers) if trial.stragglers else None,
    ):
        now = int(run.history["round"][-1])
        for name in ("train_loss", "test_accuracy"):
            curves[name][now] = float(run.history[name][-1])
        if now % config.variance_every == 0:
            unlike = eh.evaluation.dissimilarity(method.model, run.params, rows)
            curves["gradient_variance"][now] = unlike.gradient_variance
            curves["uniform_variance"][now] = unlike.uniform_variance
    return curves


def main(config: Config) -> None:
    """Runs the claims, each distinct run once, and saves each claim as soon as it is done."""
    known, done = methods(config), dict[tuple[str, str, float, int], Curves]()
    for claim in config.claims:
        seeds = range(config.seeds if claim in ("stragglers", "heterogeneity") else config.more_seeds)
        for trial, seed in product(trials(claim), seeds):
            if (*trial[2:], seed) not in done:
                begin = time.perf_counter()
                done[*trial[2:], seed] = follow(config, known[trial.method], trial, seed)
                seconds = time.perf_counter() - begin
                print(f"{claim}: {trial.panel}, {trial.line}, seed {seed}: {seconds:.1f} s", flush=True)
        runs = [(trial, [done[*trial[2:], seed] for seed in seeds]) for trial in trials(claim)]
        path = save(config.out / f"{claim}.json", claim, asdict(config), runs, last=config.last)
        print(table(path), f"Figure: {draw(path)}", sep="\n", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.fedprox", description=__doc__))
