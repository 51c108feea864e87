"""Delta-FL: training for the worst-off fraction of the clients.

Checks the claim of Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*,
Machine Learning 2023 (arXiv 2112.09429): a lower 90th percentile of the clients' test errors than FedAvg and its
kin, at about the same mean.  From the root of the repository:

    python -m experiments.delta_fl --data-dir DIR
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
import optax
import tyro

import evenhand as eh
from experiments.delta_fl.data import HeldOut, Table, clients, network, shares
from experiments.delta_fl.newcomers import Runs, serve_newcomers
from experiments.delta_fl.settings import (
    FEMNIST,
    MNIST,
    MNIST_SMALL,
    NEWCOMERS,
    PAPER,
    SHAKESPEARE,
    SYNTHETIC,
    Newcomers,
    Setting,
)
from experiments.evidence import section
from experiments.fairness import Experiment, Measures, collect, measured


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz, shakespeare_speakers.npz and femnist_digits.npz; the synthetic table needs none."""
    parts: tuple[Literal["tables", "newcomers"], ...] = ("tables",)
    """The tables of section 7.3; table 4 and figures 4 and 9, on clients that were never seen in training."""
    places: tuple[HeldOut, ...] = field(default_factory=lambda: get_args(HeldOut))
    """Whose images the unseen clients have."""
    tables: tuple[Table, ...] = field(default_factory=lambda: get_args(Table))
    out: Path = Path("experiments/delta_fl/results")
    """Folder that gets a JSON file per table."""
    only: tuple[str, ...] = ("",)
    """Methods whose names begin like this (ours: all)."""
    seeds: int = 5
    """Section 7.2: 5.  A seed decides the data too."""
    sub_theta: float = 0.5
    """FedAvg-Sub draws this share of the cohort: the theta that is best in the paper's tables 2 and 3 (EMNIST)."""
    mu: float = 0.01
    """FedProx; one of the paper's grid (ours: the paper chooses on validation clients)."""
    qs: tuple[float, ...] = (0.1, 1.0)
    """q-FFL; two of the paper's grid."""
    afl_q: float = 10.0
    """Section 7.2: AFL is q-FFL with q = 10."""
    tilt: float = 1.0
    """Tilted-ERM; tables 6 to 9: 1 was best in all four."""
    fewest: int = 10
    """Clients with fewer test rows are left out of the percentiles (ours)."""
    tune: bool = False
    """Try learning rates and decays with FedAvg alone, on a seed that is not reported, in place of the comparison."""
    synthetic: Setting = field(default_factory=lambda: SYNTHETIC)
    mnist: Setting = field(default_factory=lambda: MNIST)
    mnist_small: Setting = field(default_factory=lambda: MNIST_SMALL)
    shakespeare: Setting = field(default_factory=lambda: SHAKESPEARE)
    unseen_mnist: Newcomers = field(default_factory=lambda: NEWCOMERS)
    unseen_femnist: Newcomers = field(default_factory=lambda: FEMNIST)


def methods(config: Config, setting: Setting, model: eh.Model) -> dict[str, eh.Algorithm]:
    """FedAvg and its rivals, all with the same local work and the same steps of the server."""
    rate, make = setting.learning_rate, eh.algorithms

    def described(rate: float = rate, decay: float = setting.decay) -> tuple[eh.local.Work, dict[str, Any]]:
        # The server's step, because the clients' optimisers start anew in every round and do not see its number.
        optimiser = optax.sgd(1.0)
        if decay != 1.0:
            steps = jnp.array([1.0, decay, decay**2])
            optimiser = optax.sgd(lambda count: steps[3 * jnp.asarray(count) // setting.rounds])
        work = eh.local.sgd(model, rate, epochs=1, batch_size=setting.batch_size)
        return work, {"server_opt": optimiser}

    if config.tune:
        tried = {f"FedAvg, {other:g}": described(other, 1.0) for other in setting.rates}
        tried |= {f"FedAvg, {rate:g}, decay {decay:g}": described(rate, decay) for decay in setting.decays}
        return {name: make.fedavg(work, **server) for name, (work, server) in tried.items()}
    powers = {f"q-FFL, q={q:g}": q for q in config.qs} | {f"AFL (q={config.afl_q:g})": config.afl_q}
    work, same = described()
    alike = {**same, "sampling": eh.sampling.uniform()}
    return {
        **{name: make.fedavg(work, **same) for name in ("FedAvg", "FedAvg-Sub")},
        f"FedProx, mu={config.mu:g}": make.fedprox(work, mu=config.mu, **same),
        f"Tilted-ERM, t={config.tilt:g}": make.term(work, t=config.tilt, **same),
        **{name: make.qfedavg(work, q=q, **alike) for name, q in powers.items()},
        **{
            f"Delta-FL, theta={theta:g}": make.delta_fl(work, theta=theta, **same) for theta in setting.thetas
        },
    }


def measure(config: Config, table: Table, setting: Setting, run: eh.Run) -> Measures:
    """Errors over the test clients in percent, all alike, and losses over the training clients."""
    data, tests = clients(table, config.data_dir, run.seed, **setting.data)
    told: Measures = {}
    for name, split in tests.items():
        right = eh.evaluation.evaluate(run.algorithm.model, run.params, split)["accuracy"]
        if name == "digits":
            # A client's expected error on its own mixture, without the chance of a few test rows.
            right = shares(data.train, len(right)) @ right
        else:
            right = np.where(split.sizes >= config.fewest, right, np.nan)
        found = eh.evaluation.summarize(right)
        found |= {"error_mean": 1 - found["mean"], "error_std": found["std"]}
        kept = ("mean", "p90") if name else ("mean", "p10", "p50", "p90", "superquantile90", "best10", "std")
        told |= {f"{name}_{what}".lstrip("_"): 100 * found[f"error_{what}"] for what in kept}
    told["train_loss"] = float(run.history["train_loss"][-1])
    return told | {"train_loss_std": run.summary("train", "loss")["std"]}


def compare(config: Config, table: Table, setting: Setting) -> None:
    """One table, or the learning rates of its data; saved as soon as it is done."""
    known = methods(config, setting, network(table, setting.hidden, **setting.data))
    known = {name: method for name, method in known.items() if name.startswith(config.only)}
    path = config.out / f"{table}{'_rates' if config.tune else ''}.json"
    found: dict[str, list[Measures]] = {}
    for few, share in ((False, 1.0), (True, config.sub_theta)):
        if chosen := {name: method for name, method in known.items() if (name == "FedAvg-Sub") == few}:
            study = eh.study(
                chosen,
                lambda seed: clients(table, config.data_dir, seed, **setting.data)[0],
                rounds=setting.rounds,
                # A learning rate is not chosen on a seed that is reported.
                seeds=[config.seeds] if config.tune else config.seeds,
                cohort=math.ceil(share * setting.cohort),
                eval_every=setting.rounds,
                measure=partial(measure, config, table, setting),
                folder=config.under(f"{path.stem}, {share:g}"),
                progress=True,
            )
            found |= measured(study)
    collect(
        path,
        table,
        _common(config) | asdict(setting),
        {name: found[name] for name in known},
        PAPER.get(table),
    )


def newcomers(config: Config, place: HeldOut) -> None:
    """Table 4 and figures 4 and 9 in one place."""
    runs = Runs(
        place=place,
        setting=config.unseen_mnist if place == "mnist" else config.unseen_femnist,
        data_dir=config.data_dir,
        seeds=config.seeds,
        tilt=config.tilt,
        folder=config.under(f"newcomers, {place}"),
    )
    path = serve_newcomers(runs, config.out, _common(config))
    for claim in json.loads(path.read_text())["findings"].values():
        print(section(claim), flush=True)


def _common(config: Config) -> dict[str, Any]:
    """The settings that are not of one table or place."""
    own = {*get_args(Table), "unseen_mnist", "unseen_femnist"}
    return {name: value for name, value in asdict(config).items() if name not in own}


def main(config: Config) -> None:
    """Runs the parts one after the other."""
    for place in config.places if "newcomers" in config.parts else ():
        newcomers(config, place)
    settings: dict[Table, Setting] = {
        "synthetic": config.synthetic,
        "mnist": config.mnist,
        "mnist_small": config.mnist_small,
        "shakespeare": config.shakespeare,
    }
    for table in config.tables if "tables" in config.parts else ():
        compare(config, table, settings[table])


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.delta_fl", description=__doc__))
