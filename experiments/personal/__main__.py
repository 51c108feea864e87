"""Is a model of one's own more accurate, fairer and more robust than one for all?

The table of Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, and the sweep
of its penalty, with all rivals tuned alike.  From the root of the repository:

    python -m experiments.personal --data-dir DIR --folder runs/personal
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import tyro

import evenhand as eh
from evenhand import attacks
from evenhand.studies import Family, Outcome
from experiments.fairness import Measures, write
from experiments.personal.methods import Candidates, candidates
from experiments.robust.breakdown import accuracy
from experiments.robust.data import mnist

Place = Literal["two classes", "dirichlet", "synthetic"]
Attack = Literal["clean", "A1 50", "A3 10", "A2 50", "A3 20"]

PAPER: Mapping[str, Mapping[str, float]] = {
    "global": {"clean": 91.1, "A1 50": 85.5, "A3 10": 75.3, "A2 50": 88.2, "A3 20": 55.1},
    "local": {"clean": 87.6, "A1 50": 87.6, "A3 10": 87.7, "A2 50": 87.6, "A3 20": 87.4},
    "TERM": {"clean": 90.9, "A1 50": 63.7, "A3 10": 65.3, "A2 50": 63.7, "A3 20": 60.1},
    "median": {"clean": 88.4, "A1 50": 81.8, "A3 10": 85.6, "A2 50": 88.3, "A3 20": 82.9},
    "Krum": {"clean": 83.8, "A1 50": 81.8, "A3 10": 86.8, "A2 50": 87.0, "A3 20": 86.6},
    "multi-Krum": {"clean": 91.1, "A1 50": 88.9, "A3 10": 80.4, "A2 50": 82.7, "A3 20": 86.0},
    "clipping": {"clean": 91.3, "A1 50": 87.5, "A3 10": 90.1, "A2 50": 88.6, "A3 20": 84.4},
    "k-norm": {"clean": 91.1, "A1 50": 88.8, "A3 10": 76.5, "A2 50": 89.3, "A3 20": 85.4},
    "k-loss": {"clean": 89.8, "A1 50": 86.1, "A3 10": 53.8, "A2 50": 86.6, "A3 20": 25.7},
    "FedMGDA+": {"clean": 91.5, "A1 50": 87.4, "A3 10": 91.4, "A2 50": 90.0, "A3 20": 90.4},
    "finetuning": {"clean": 94.5, "A1 50": 93.5, "A3 10": 91.5, "A2 50": 93.0, "A3 20": 87.1},
    "Ditto": {"clean": 94.6, "A1 50": 93.5, "A3 10": 91.4, "A2 50": 93.0, "A3 20": 90.3},
    "Ditto, dynamic": {"clean": 94.3, "A1 50": 93.7, "A3 10": 92.1, "A2 50": 93.0, "A3 20": 90.2},
}
"""Fashion MNIST, 500 devices of five classes each, a CNN (tables 1, 5 and 9); Ditto with the best fixed penalty."""


@dataclass(frozen=True)
class Config:
    """What is run, with the place that a default comes from, or else "ours"."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz."""
    places: tuple[Place, ...] = field(default_factory=lambda: get_args(Place))
    """The data (ours)."""
    attacks: tuple[Attack, ...] = field(default_factory=lambda: get_args(Attack))
    """The attacks and shares of malicious clients (Ditto, section 4)."""
    methods: tuple[str, ...] = ()
    """Only these methods; none: all."""
    out: Path = Path("experiments/personal/results")
    """Folder that gets the JSON files."""
    folder: Path | None = None
    """Folder that keeps each run (ours): with it, an experiment that was stopped goes on."""
    seeds: int = 5
    """0 to 4; a seed decides the clients, too, and who is malicious; two further ones tune."""
    clients: int = 100
    """MNIST (ours; Ditto has 500 on Fashion MNIST) and Synthetic(1, 1) (ours)."""
    images: int = 20_000
    """MNIST (ours)."""
    cohort: int = 10
    """As the authors' code."""
    rounds: int = 100
    """Ours; the paper has 5000 on Fashion MNIST."""
    rates: tuple[float, ...] = (0.1, 0.3)
    """Step sizes that each method chooses from (ours)."""


def dataset(config: Config, place: Place, seed: int) -> eh.data.FederatedDataset:
    """The clients of one seed."""
    if place == "synthetic":
        return eh.data.synthetic(
            1.0, 1.0, clients=config.clients, seed=seed, max_size=400, valid_fraction=0.2
        )
    return mnist(config.data_dir, seed, deal=place, clients=config.clients, images=config.images)


def attack(name: Attack, cohort: int) -> eh.types.Attack | None:
    """Labels of malicious clients are wrong under all attacks, as in the authors' code."""
    if name == "clean":
        return None
    kind, share = name.split()
    fraction = float(share) / 100
    poisoned = attacks.uniform_labels(fraction, classes=10)
    if kind == "A1":
        return poisoned
    second = {
        "A2": attacks.gaussian(fraction),
        "A3": attacks.model_replacement(fraction, boost=float(cohort)),
    }
    return attacks.both(poisoned, second[kind])


def table(config: Config, place: Place, name: Attack) -> dict[str, dict[str, Any]]:
    """Method -> its chosen numbers, the numbers of each seed, and the sweep that chose them."""
    share = 0.0 if name == "clean" else float(name.split()[1]) / 100
    features, expected = (60 if place == "synthetic" else 196), int(config.cohort * share)
    every = candidates(features, expected, strong=name.startswith("A3"))
    every = {label: each for label, each in every.items() if label in config.methods or not config.methods}
    how: dict[str, Any] = {
        "rounds": config.rounds,
        "cohort": config.cohort,
        "eval_every": config.rounds,
        "attack": attack(name, config.cohort),
        "baseline": "global",
        "progress": True,
    }
    at = config.folder and config.folder / f"{place} {name}".replace(" ", "_")
    tuning = eh.study(
        {label: Family(("rate", *each.grid), each.make) for label, each in every.items()},
        partial(dataset, config, place),
        seeds=range(config.seeds, config.seeds + 2),
        grid={label: {"rate": list(config.rates), **_lists(each)} for label, each in every.items()},
        folder=at and at / "tuning",
        **how,
    )
    chosen = {label: _best([o for o in tuning.outcomes if o.setting.method == label]) for label in every}
    final = eh.study(
        {label: Family((), partial(_fixed, every[label], chosen[label])) for label in every},
        partial(dataset, config, place),
        seeds=config.seeds,
        folder=at and at / "final",
        **how,
    )
    found: dict[str, dict[str, Any]] = {}
    for label in every:
        mine = [each for each in final.outcomes if each.setting.method == label]
        tried = {
            str(dict(s)): v for s, v in _swept([o for o in tuning.outcomes if o.setting.method == label])
        }
        found[label] = {"chosen": chosen[label], "seeds": [accuracy(o, "test") for o in mine], "valid": tried}
    return found


def _lists(each: Candidates) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in each.grid.items()}


def _fixed(each: Candidates, numbers: Mapping[str, Any], _: Mapping[str, Any]) -> eh.Algorithm:
    return each.make(numbers)


def _swept(outcomes: Sequence[Outcome]) -> list[tuple[Mapping[str, Any], float]]:
    """Each setting with the mean of the validation accuracies of honest clients, over clients and seeds."""
    by_setting: dict[str, list[Outcome]] = {}
    for each in outcomes:
        by_setting.setdefault(str(each.setting.numbers), []).append(each)
    return [
        (part[0].setting.numbers, float(np.mean([accuracy(each, "valid")["mean"] for each in part])))
        for part in by_setting.values()
    ]


def _best(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return dict(max(_swept(outcomes), key=lambda each: each[1])[0])


def main(config: Config) -> None:
    """Each kind of data, under each attack; the file is written after each of these."""
    for place in config.places:
        found: dict[str, dict[str, Any]] = {}
        for name in config.attacks:
            found[name] = table(config, place, name)
            content = {"percent": found, "paper": PAPER}
            write(config.out / f"{place.replace(' ', '_')}.json", content, asdict(config), digits=4)
            print(f"{place}, {name}")
            for label, each in found[name].items():
                seeds: list[Measures] = each["seeds"]
                mean, std = (np.mean([one[what] for one in seeds]) for what in ("mean", "std"))
                print(f"  {label:18} {mean:5.1f} (std over clients {std:4.1f})  {each['chosen']}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.personal", description=__doc__))
