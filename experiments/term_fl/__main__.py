"""TERM over devices: does a tilt lift the worst devices as q-FFL does, at the average of FedAvg?

Checks table 7.5 (figure 7.12) of Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (ICLR 2021: *Tilted
Empirical Risk Minimization*), on stand-ins for Vehicle.  Tables are numbered as in chapter 7 of the first author's
dissertation.  From the root of the repository:

    python -m experiments.term_fl --data-dir DIR
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import jax.numpy as jnp
import tyro

import evenhand as eh
from evenhand.studies import Family, Rule
from experiments.fairness import Experiment, Measures, collect, measured
from experiments.term_fl.data import Label, Mixtures, apart, devices, sizes_like_vehicle, skewed
from experiments.term_fl.methods import agnostic, chosen, family, fedavg

Form = Literal["skewed", "apart"]
Table = Literal["tuned_rate", "more_rounds", "paper_rate"]

PAPER = {
    "FedAvg": {"mean": 85.3, "worst10": 42.1, "std": 17.3},
    "q-FFL, q=5, sums": {"mean": 86.2, "worst10": 70.4, "std": 6.4},
    "TERM reference, t=0.1, sums": {"mean": 85.3, "worst10": 70.7, "std": 6.1},
}
"""Table 7.5, on Vehicle."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours".  "Code" is that of the paper."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz."""
    forms: tuple[Form, ...] = field(default_factory=lambda: get_args(Form))
    """Digits by a Dirichlet draw per device; or three devices unlike the others (ours)."""
    tables: tuple[Table, ...] = field(default_factory=lambda: get_args(Table))
    """The paper's 30 rounds at FedAvg's best rate; more rounds of it; 30 rounds at the paper's rate."""
    out: Path = Path("experiments/term_fl/results")
    """Folder that gets the JSON files."""
    seeds: int = 5
    """Code: partition seeds 1 to 5; here 0 to 4.  A seed decides the devices too."""
    devices: int = 23
    """Vehicle has 23,"""
    size_mean: float = 1899.0
    """... of so many rows,"""
    size_std: float = 349.0
    """... give or take so many,"""
    features: int = 100
    """... and so many features."""
    held_out: float = 0.1
    """Code, for seeds other than 0: 80 % of a device's rows are for training, 10 % for validation and for testing."""
    label: Label = "parity"
    """Even or odd digit; or below 5 or not (ours)."""
    alpha: float = 0.2
    """"skewed": where FedAvg's worst devices are far below its average, itself well above guessing (--tune)."""
    few: int = 3
    """"apart": how many devices are unlike the others (ours)."""
    pair: tuple[int, int] = (4, 5)
    """"apart": their digits; of all pairs of an even and an odd one, that of FedAvg's widest gap (--tune)."""
    cohort: int = 10
    """Code: K = 10."""
    batch_size: int = 32
    """Code: 32."""
    rounds: int = 30
    """Code: 30."""
    more_rounds: int = 300
    """For convergence (ours)."""
    learning_rate: float = 0.01
    """That of FedAvg's lowest training objective after 30 rounds (--tune); 0.0003 on sums over a batch."""
    paper_rate: float = 0.32
    """Code: 0.01 on sums over a batch of 32."""
    tilt: float = 0.1
    """Code: t = 0.1 on sums over a device's rows."""
    tilts: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 50.0, 150.0)
    """On means: five of the paper's grid, and about what 0.1 is on sums over 1519 rows."""
    running_tilts: tuple[float, ...] = (1.0, 5.0)
    """On means, with the normaliser averaged over rounds (ours)."""
    powers: tuple[float, ...] = (1.0, 5.0)
    """Table 7.5: q = 5; 1 is ours."""
    afl_rounds: int = 1000
    """Full gradients of AFL (ours)."""
    gamma_w: float = 0.1
    """AFL's step (ours)."""
    gamma_lambda: float = 0.1
    """Its mixture's (ours)."""
    tune: bool = False
    """Try forms and learning rates with FedAvg alone, on seeds 5 to 9, in place of the comparison."""


def measure(run: eh.Run) -> Measures:
    """Accuracy over devices in percent, the mean and the worst training loss, and how many devices a round counts."""
    if not run.info["rounds"]:
        return {}
    test, valid, train = (run.summary(split, "accuracy") for split in ("test", "valid", "train"))
    told = {name: 100.0 * test[name] for name in ("mean", "worst10", "std", "weighted_mean")}
    told |= {f"valid_{name}": 100.0 * valid[name] for name in ("mean", "std")}
    told |= {f"train_{name}": 100.0 * train[name] for name in ("worst10", "std")}
    losses = run.summary("train", "loss")
    counted = run.per_round.get("effective_cohort")
    return told | {
        "train_loss": losses["mean"],
        "train_loss_max": losses["max"],
        "counted": float(run.info["cohort"] if counted is None else counted.mean()),
    }


def comparison(config: Config, form: Form, table: Table) -> None:
    """One table: all methods, and what validation rows would choose."""
    rate = config.paper_rate if table == "paper_rate" else config.learning_rate
    rounds = config.more_rounds if table == "more_rounds" else config.rounds
    known = family(
        rate,
        features=config.features,
        batch_size=config.batch_size,
        cohort=config.cohort,
        tilt=config.tilt,
        tilts=config.tilts,
        running_tilts=config.running_tilts,
        powers=config.powers,
    )
    data, folder = partial(dataset, config, form), config.under(f"{form}_{table}")
    study = eh.study(
        {name: Family(("form",), lambda numbers, of=of: of[numbers["form"]]) for name, of in known.items()},
        data,
        rounds=rounds,
        seeds=config.seeds,
        grid={name: {"form": list(of)} for name, of in known.items()},
        select=Rule(within=0.01, then="std", near="FedAvg"),
        cohort=config.cohort,
        eval_every=rounds,
        measure=measure,
        folder=folder,
        progress=True,
    )
    found = measured(study)
    if table == "tuned_rate":
        afl = eh.study(
            {"AFL": agnostic(config.features, config.batch_size, config.gamma_w, config.gamma_lambda)},
            data,
            rounds=config.afl_rounds,
            seeds=config.seeds,
            eval_every=config.afl_rounds,
            measure=measure,
            folder=folder and folder / "afl",
            progress=True,
        )
        found |= measured(afl)
    settings = asdict(config) | {"form": form, "rate": rate, "rounds": rounds}
    path, title = config.out / f"{form}_{table}.json", f"{form}, {table.replace('_', ' ')}"
    collect(path, title, settings, found | chosen(study, found), PAPER)


def dataset(config: Config, form: Form, seed: int) -> eh.data.FederatedDataset:
    """The devices of a seed."""
    mixtures: Mixtures = skewed(config.alpha) if form == "skewed" else apart(config.few, config.pair)
    return devices(
        config.data_dir,
        seed,
        mixtures,
        sizes=sizes_like_vehicle(config.devices, config.size_mean, config.size_std),
        features=config.features,
        label=config.label,
        held_out=config.held_out,
    )


def tune(config: Config) -> None:
    """FedAvg alone, on further seeds: which rate trains best, and which devices it serves least evenly."""
    rates = (0.32, 0.1, 0.032, 0.01, 0.0032, 0.001)
    known = {rate: fedavg(rate, features=config.features, batch_size=config.batch_size) for rate in rates}
    pairs = product(range(0, 10, 2), range(1, 10, 2))
    tried: dict[Form, dict[str, dict[str, Any]]] = {
        "skewed": {f"alpha={alpha:g}": {"alpha": alpha} for alpha in (0.1, 0.2, 0.3, 0.5, 1.0)},
        "apart": {f"{a} and {b}": {"pair": (a, b)} for a, b in pairs},
    }
    for form in config.forms:
        found: dict[str, list[Measures]] = {}
        for name, setting in tried[form].items():
            whole = form == "skewed" or setting["pair"] == config.pair
            study = eh.study(
                {f"rate {rate:g}": known[rate] for rate in (rates if whole else (config.learning_rate,))},
                {name: partial(dataset, replace(config, **setting), form)},
                rounds=config.rounds,
                seeds=range(config.seeds, 2 * config.seeds),
                cohort=config.cohort,
                eval_every=config.rounds,
                measure=partial(_fit, config),
                folder=config.under(f"{form}_tuning"),
                progress=True,
            )
            found |= measured(study)
        collect(config.out / f"{form}_tuning.json", f"{form}, FedAvg", asdict(config), found)


def _fit(config: Config, run: eh.Run) -> Measures:
    told = run.summary("valid", "accuracy")
    penalty = float(jnp.sum(jnp.square(run.params["kernel"]))) / (2 * config.batch_size)
    return {
        "objective": float(run.history["train_loss"][-1]) + penalty,
        "valid_mean": 100.0 * told["mean"],
        "valid_worst10": 100.0 * told["worst10"],
        "gap": 100.0 * (told["mean"] - told["worst10"]),
    }


def main(config: Config) -> None:
    """The tables of one form after the other, each saved as soon as it is done."""
    if config.tune:
        tune(config)
        return
    for form, table in product(config.forms, config.tables):
        comparison(config, form, table)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term_fl", description=__doc__))
