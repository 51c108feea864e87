"""q-FFL: how evenly a model serves its devices, against federated averaging, uniform sampling and AFL.

Checks Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020 (arXiv 1905.10497), on its synthetic data
and on Adult.  Tables are numbered as in chapter 4 of the first author's dissertation.  From the root of the repository:

    python -m experiments.qffl --data-dir <folder with adult.npz>
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import tyro

import evenhand as eh
from experiments.fairness import Measures, accuracy, collect, compare
from experiments.qffl.data import adult, synthetic
from experiments.qffl.figure import draw
from experiments.qffl.methods import against_afl, family
from experiments.qffl.paper import ADULT, HETEROGENEITY, TEST, TRAIN
from experiments.qffl.runs import by_device, choose, each_its_own, follow

Claim = Literal["afl", "fairness", "heterogeneity"]


@dataclass(frozen=True)
class Config:
    """What is run.  The defaults are the paper's, with the place they come from, or else "ours"."""

    claims: tuple[Claim, ...] = field(default_factory=lambda: get_args(Claim))
    """Table 4.2; tables 4.1, 4.6 to 4.9, 4.11 and 4.12; table 4.10."""
    data_dir: Path = Path("data")
    """Folder with adult.npz, for table 4.2."""
    out: Path = Path("experiments/qffl/results")
    """Folder that gets the JSON files and the picture."""
    seeds: int = 5
    """Section 4.6: five splits, five initialisations.  A seed makes a synthetic data set of its own (ours)."""
    clients: int = 100
    """Table 4.4: 100 devices; half of them in half of table 4.10."""
    size_sigma: float = 1.0
    """Sizes are LogNormal(4, 1) + 50: their mean and deviation are those of table 4.4."""
    held_out: float = 0.1
    """Section 4.6: 80 % of a device's rows are for training, 10 % for validation, 10 % for testing."""
    cohort: int = 10
    """Section 4.6.2: 10 devices in each round."""
    rounds: int = 20_000
    """The reference code's command for the synthetic data."""
    epochs: int = 1
    """Section 4.6.2: E = 1."""
    learning_rate: float = 0.1
    """Section 4.6.2: 0.1 on synthetic data, tuned at q = 0; L is one over it."""
    batch_size: int = 10
    """Section 4.6.2: 10 on synthetic data."""
    eval_every: int = 2000
    """Rounds between two evaluations (ours)."""
    powers: tuple[float, ...] = (0.0, 0.1, 1.0, 2.0, 5.0)
    """Table 4.11: the family of q's."""
    more_powers: tuple[float, ...] = (0.01, 10.0)
    """Table 4.12: the others that a device can choose from (ours: without 0.001, which is nearly 0)."""
    heterogeneity_rounds: int = 20_000
    """Rounds of table 4.10."""
    afl_rounds: int = 600
    """The reference code's command for Adult."""
    afl_powers: tuple[float, ...] = (0.0, 0.01, 2.0)
    """Table 4.2: q = 0, q_1 = 0.01 and q_2 = 2."""
    gamma_w: float = 0.1
    """Section 4.6.2: the step of the model on Adult, AFL's and q-FedSGD's."""
    gamma_lambda: float = 0.1
    """Section 4.6.2: the step of AFL's mixture on Adult."""


def fairness(config: Config) -> None:
    """Tables 4.1, 4.6 to 4.9, 4.11 and 4.12: one set of runs, saved after each seed."""
    powers = tuple(sorted({*config.powers, *config.more_powers}))
    found: dict[str, dict[str, list[Measures]]] = {"test": {}, "train": {}, "course": {}}
    known = family(powers, config.learning_rate, epochs=config.epochs, batch_size=config.batch_size)
    for seed in range(config.seeds):
        data, runs = _synthetic(config, 1.0, config.clients, seed), dict[str, eh.Run]()
        for name, method in known.items():
            shape = {"rounds": config.rounds, "cohort": config.cohort, "eval_every": config.eval_every}
            runs[name], course = follow(method, data, seed=seed, **shape)
            for now, told in course.items():
                found["course"].setdefault(f"{name}, round {now}", []).append(told)
            print(f"seed {seed}, {name}: {runs[name].info['seconds']['train']:.0f} s", flush=True)
        each = {q: runs[f"q={q:g}"] for q in powers}
        runs["each device its own q"] = each_its_own(each)
        runs["q chosen on validation rows"] = each[chosen := choose(each)]
        print(f"seed {seed}: q = {chosen:g} chosen", flush=True)
        for split, paper in (("test", TEST), ("train", TRAIN)):
            for name, run in runs.items():
                extra = {"q": chosen} if name.startswith("q chosen") else {}
                found[split].setdefault(name, []).append(accuracy(run, split) | extra)
            title = f"Synthetic(1, 1), {split} accuracy"
            collect(config.out / f"family_{split}.json", title, asdict(config), found[split], paper)
        title = "Synthetic(1, 1), test accuracy by rounds"
        collect(config.out / "course.json", title, asdict(config), found["course"])
    print(f"Figure: {draw(config.out / 'family_test.json')}", flush=True)


def heterogeneity(config: Config) -> None:
    """Table 4.10, saved after each data set."""
    known = family((0.0, 1.0), config.learning_rate, epochs=config.epochs, batch_size=config.batch_size)
    shape = {"rounds": config.heterogeneity_rounds, "cohort": config.cohort, "eval_every": config.eval_every}
    found: dict[str, list[Measures]] = {}
    for spread, clients in product((None, 1.0, 2.0), (config.clients, config.clients // 2)):
        kind = "IID" if spread is None else f"({spread:g}, {spread:g})"
        for seed, name in product(range(config.seeds), ("q=0", "q=1")):
            run, _ = follow(known[name], _synthetic(config, spread, clients, seed), seed=seed, **shape)
            found.setdefault(f"{kind}, {clients} devices, {name}", []).append(accuracy(run))
        path = config.out / "heterogeneity.json"
        collect(path, "Test accuracy", asdict(config), found, HETEROGENEITY)


def afl(config: Config) -> None:
    """Table 4.2 on Adult; the seed decides the initial model alone."""
    data = adult(config.data_dir)
    compare(
        config.out / "adult.json",
        "Adult, test accuracy",
        asdict(config),
        against_afl(data, config.afl_powers, gamma_w=config.gamma_w, gamma_lambda=config.gamma_lambda),
        lambda method, seed: eh.simulate(
            method, data, rounds=config.afl_rounds, seed=seed, eval_every=config.afl_rounds
        ),
        seeds=config.seeds,
        measure=by_device,
        paper=ADULT,
    )


def _synthetic(config: Config, spread: float | None, clients: int, seed: int) -> eh.data.FederatedDataset:
    return synthetic(spread, clients, seed=seed, size_sigma=config.size_sigma, held_out=config.held_out)


def main(config: Config) -> None:
    """Checks the claims one after the other."""
    known = {"afl": afl, "fairness": fairness, "heterogeneity": heterogeneity}
    for claim in config.claims:
        known[claim](config)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.qffl", description=__doc__))
