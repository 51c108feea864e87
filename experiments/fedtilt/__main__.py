"""FedTilt: are the clients, and the classes within each, served evenly, also where features are disturbed?

Checks the toy suite and the MNIST suite of Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust
Federated Learning*, 2025.  From the root of the repository:

    python -m experiments.fedtilt --data-dir <folder with mnist.npz>
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import tyro

import evenhand as eh
from experiments.fairness import Measures, collect, compare
from experiments.fedtilt.data import mnist, toy
from experiments.fedtilt.measures import local_work, with_one_model, with_own_models, with_stacked_models
from experiments.fedtilt.methods import fedavg, mnist_methods, toy_methods
from experiments.fedtilt.paper import ANCHORS, PAPER, Setting

Suite = Literal["toy", "mnist"]
PLACES = ("client 1, class 1", "client 1, class 2", "client 2, class 1", "client 2, class 2")


@dataclass(frozen=True)
class Config:
    """What is run.  The defaults are the paper's, with the place they come from, or else "ours"."""

    suites: tuple[Suite, ...] = field(default_factory=lambda: get_args(Suite))
    """Section IV-A, figure 3; section IV-B, the rows on MNIST of tables II, III and VII."""
    settings: tuple[Setting, ...] = field(default_factory=lambda: get_args(Setting))
    """Tables II, III and VII, in this order."""
    experiments: tuple[int, ...] = (1, 2, 3)
    """Of the toy suite: figure 3, columns 1 to 3."""
    data_dir: Path = Path("data")
    """Folder with mnist.npz."""
    out: Path = Path("experiments/fedtilt/results")
    """Folder that gets the JSON files."""
    seeds: int = 5
    """Runs, each with data, deal and initial model of its own (ours: the paper shows one)."""
    rounds: int = 50
    """Section IV-B: T = 50 on MNIST; on the toy data ours."""
    learning_rate: float = 0.01
    """Section IV-B: 0.01, for both models of a client; on the toy data ours."""
    batch_size: int = 10
    """Section IV-B: B = 10; on the toy data ours."""
    prox_mu: float = 0.01
    """Section IV-B: mu = 0.01; on the toy data ours."""
    toy_epochs: int = 10
    """Ours: as on MNIST."""
    toy_test_rows: int = 20_000
    """Clean rows to test on, per class and client (ours: the paper has 10 to 30)."""
    clients: int = 100
    """Section IV-B: N = 100, two classes each."""
    cohort: int = 10
    """Section IV-B: 10 % of the clients in each round."""
    epochs: int = 1
    """Ours, to save time: the paper has E = 10."""
    rows_per_class: int | None = 271
    """Ours: as many training images as each part of the rarest digit has, so that all clients are of one size."""
    ditto_mus: tuple[float, ...] = (1.0,)
    """Ditto on clean data with these in place of ``prox_mu``, too (ours: the paper's is tuned, and not told)."""
    hidden: tuple[int, ...] = (300, 100)
    """Three linear layers; their widths are ours."""


def toy_suite(config: Config) -> None:
    """The personal models' accuracies on clean rows, beside those of another implementation."""
    described = {"epochs": config.toy_epochs, "batch_size": config.batch_size}
    for experiment in config.experiments:
        known = toy_methods(experiment, config.learning_rate, prox_mu=config.prox_mu, **described)
        anchors = zip(known, ANCHORS[experiment].values(), strict=False)
        compare(
            config.out / f"toy_{experiment}.json",
            f"Toy experiment {experiment}, class accuracy",
            asdict(config),
            known,
            partial(_toy_run, config, experiment),
            seeds=config.seeds,
            measure=lambda run: dict(zip(PLACES, 100.0 * run.class_metrics().accuracy, strict=True)),
            paper={name: dict(zip(PLACES, row, strict=True)) for name, row in anchors},
        )


def _toy_run(config: Config, experiment: int, method: eh.Algorithm, seed: int) -> eh.Run:
    data = toy(experiment, seed, config.toy_test_rows)
    return eh.simulate(method, data, rounds=config.rounds, seed=seed, eval_every=config.rounds)


def mnist_suite(config: Config) -> None:
    """Tables II, III and VII, each saved after each seed."""
    model = eh.models.mlp(784, classes=10, hidden=config.hidden)
    work = eh.local.sgd(model, config.learning_rate, epochs=config.epochs, batch_size=config.batch_size)
    shape = {"rounds": config.rounds, "cohort": config.cohort, "eval_every": config.rounds}
    for setting in config.settings:
        mus = (config.prox_mu, *(config.ditto_mus if setting == "clean" else ()))
        known = mnist_methods(setting, work, mus, prox_mu=config.prox_mu)
        tune = local_work(fedavg(setting, work))
        found: dict[str, list[Measures]] = {"FedAvg (A)": [], "FedAvg (B)": []}
        for seed in range(config.seeds):
            data = mnist(config.data_dir, seed, config.clients, config.rows_per_class)
            for place, (name, method) in enumerate(known.items()):
                run = eh.simulate(method, data, seed=seed, **shape)
                # Biases begin at 0, and no client that was trained keeps all of them there.
                drawn = np.any(np.asarray(run.state.clients["output"]["bias"]) != 0, axis=1)
                found.setdefault(name, []).append(with_own_models(run, drawn))
                shared = with_one_model(model, run.params, data, drawn)
                if place == 0:  # without tilts the global model is FedAvg's, whatever mu is
                    found["FedAvg (A)"].append(shared)
                    tuned = with_stacked_models(model, tune(run.params, data, seed), data, drawn)
                    found["FedAvg (B)"].append(tuned)
                elif name.startswith("FedTilt"):
                    found.setdefault(f"{name}, global", []).append(shared)
                print(f"{setting}: {name}, seed {seed}: {run.info['seconds']['train']:.1f} s", flush=True)
            path = config.out / f"mnist_{setting}.json"
            collect(path, f"MNIST, {setting}", asdict(config), found, PAPER[setting])


def main(config: Config) -> None:
    """Runs the suites one after the other."""
    for suite in config.suites:
        {"toy": toy_suite, "mnist": mnist_suite}[suite](config)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.fedtilt", description=__doc__))
