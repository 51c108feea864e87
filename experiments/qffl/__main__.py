"""q-FFL: how evenly a model serves its devices, against federated averaging, uniform sampling and AFL.

Checks Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020 (arXiv 1905.10497), on its synthetic data
and on Adult.  Tables are numbered as in chapter 4 of the first author's dissertation.  From the root of the repository:

    python -m experiments.qffl --data-dir <folder with adult.npz>
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import tyro

import evenhand as eh
from experiments.evidence import section
from experiments.fairness import Experiment, accuracy, collect, views
from experiments.qffl.data import adult, synthetic
from experiments.qffl.figure import draw
from experiments.qffl.methods import against_afl, by_device, course, each_its_own, family
from experiments.qffl.paper import ADULT, HETEROGENEITY, TEST, TRAIN
from experiments.qffl.speed import Runs, Setting, study_speed

Claim = Literal["afl", "fairness", "heterogeneity", "speed"]


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run.  The defaults are the paper's, with the place they come from, or else "ours"."""

    claims: tuple[Claim, ...] = field(default_factory=lambda: get_args(Claim))
    """Table 4.2; tables 4.1, 4.6 to 4.9, 4.11 and 4.12; table 4.10; figures 4.4 and 4.10."""
    data_dir: Path = Path("data")
    """Folder with adult.npz, for table 4.2, and shakespeare_speakers.npz, for figure 4.4."""
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
    speed: Setting = field(default_factory=Setting)
    """Figures 4.4 and 4.10."""


def fairness(config: Config) -> None:
    """Tables 4.1, 4.6 to 4.9, 4.11 and 4.12: one set of runs."""
    data = partial(synthetic, 1.0, config.clients, config.size_sigma, config.held_out)
    powers = sorted({*config.powers, *config.more_powers})
    study = _study(config, "fairness", powers, data, config.rounds)
    runs, title = views(study), "Synthetic(1, 1), {} accuracy"
    by_rounds = f"{title.format('test')} by rounds"
    collect(config.out / "course.json", by_rounds, asdict(config), course(runs))
    family_of = [each for each in study.outcomes if each.setting.method != "uniform sampling"]
    among = replace(study, outcomes=tuple(family_of))
    chosen = [among.at(seed).best().method for seed in range(config.seeds)]
    same = zip(*(runs[name] for name in among.methods), strict=True)
    runs["each device its own q"] = [each_its_own(each) for each in same]
    runs["q chosen on validation rows"] = [runs[name][seed] for seed, name in enumerate(chosen)]
    for split, paper in (("test", TEST), ("train", TRAIN)):
        found = {name: [accuracy(run, split) for run in each] for name, each in runs.items()}
        for name, numbers in zip(chosen, found["q chosen on validation rows"], strict=True):
            numbers["q"] = float(name.removeprefix("q="))
        path = config.out / f"family_{split}.json"
        collect(path, title.format(split), asdict(config), found, paper)
    print(f"Figure: {draw(config.out / 'family_test.json')}", flush=True)


def heterogeneity(config: Config) -> None:
    """Table 4.10."""
    kinds = {"IID": None, "(1, 1)": 1.0, "(2, 2)": 2.0}
    data = {
        f"{kind}, {clients} devices": partial(synthetic, spread, clients, config.size_sigma, config.held_out)
        for (kind, spread), clients in product(kinds.items(), (config.clients, config.clients // 2))
    }
    runs = views(_study(config, "heterogeneity", (0.0, 1.0), data, config.heterogeneity_rounds))
    found = {name: [accuracy(run) for run in each] for name, each in runs.items()}
    collect(config.out / "heterogeneity.json", "Test accuracy", asdict(config), found, HETEROGENEITY)


def _study(config: Config, name: Claim, powers: Sequence[float], data: Any, rounds: int) -> eh.studies.Study:
    """The family of q's over seeds, each of which makes its own data; the choice of q is by the paper's rule."""
    methods = family(powers, config.learning_rate, epochs=config.epochs, batch_size=config.batch_size)
    if name == "heterogeneity":
        del methods["uniform sampling"]
    return eh.study(
        methods,
        data,
        rounds=rounds,
        seeds=config.seeds,
        select=eh.studies.Rule("valid", "weighted_mean", within=0.01, then="variance", near="q=0"),
        cohort=config.cohort,
        eval_every=config.eval_every,
        folder=config.under(name),
        progress=True,
    )


def afl(config: Config) -> None:
    """Table 4.2 on Adult; the seed decides the initial model alone."""
    data = adult(config.data_dir)
    study = eh.study(
        against_afl(data, config.afl_powers, gamma_w=config.gamma_w, gamma_lambda=config.gamma_lambda),
        data,
        rounds=config.afl_rounds,
        seeds=config.seeds,
        eval_every=config.afl_rounds,
        folder=config.under("adult"),
        progress=True,
    )
    found = {name: [by_device(run) for run in each] for name, each in views(study).items()}
    collect(config.out / "adult.json", "Adult, test accuracy", asdict(config), found, ADULT)


def speed(config: Config) -> None:
    """Figures 4.4 and 4.10."""
    runs = Runs(
        clients=config.clients,
        size_sigma=config.size_sigma,
        held_out=config.held_out,
        cohort=config.cohort,
        epochs=config.epochs,
        batch_size=config.batch_size,
        seeds=config.seeds,
        data_dir=config.data_dir,
        folder=lambda place: config.under(f"speed, {place}"),
    )
    path = study_speed(config.speed, runs, config.out, asdict(config))
    for claim in json.loads(path.read_text())["findings"].values():
        print(section(claim), flush=True)


def main(config: Config) -> None:
    """Checks the claims one after the other."""
    known = {"afl": afl, "fairness": fairness, "heterogeneity": heterogeneity, "speed": speed}
    for claim in config.claims:
        known[claim](config)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.qffl", description=__doc__))
