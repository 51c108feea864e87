"""Is a model of one's own more accurate, fairer and more robust than one for all?

The table of Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, and the sweep
of its penalty, with all rivals tuned alike.  From the root of the repository:

    python -m experiments.personal --data-dir DIR --folder runs/personal
    python -m experiments.personal --parts joint partial --data-dir DIR --folder runs/personal
    python -m experiments.personal --parts stopping --data-dir DIR
    python -m experiments.personal --parts penalty tilted vehicle --data-dir DIR --folder runs/personal
    python -m experiments.personal --parts normalisation --data-dir DIR --folder runs/personal
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import tyro

import evenhand as eh
from evenhand import attacks
from experiments import evidence
from experiments.evidence import Finding, Rival
from experiments.fairness import Experiment, write
from experiments.personal import joint, normalisation, partly, penalty, stopping, vehicle
from experiments.personal.comparison import Found, Runs, compared, shown
from experiments.personal.methods import Candidates, candidates
from experiments.personal.places import PLACES, Place, clients_of, model_of

Part = Literal["table", "joint", "stopping", "partial", "penalty", "tilted", "vehicle", "normalisation"]
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


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz, shakespeare_speakers.npz and cifar10_jpeg.npz."""
    parts: tuple[Part, ...] = ("table",)
    """The table; Ditto's two solvers; finetuning from earlier rounds; a part of the model personal, with robust rules;
    Ditto's penalty against theory; TERM's tilts under random labels; MOCHA and other support vector machines; batch
    normalisation that stays."""
    places: tuple[Place, ...] = field(default_factory=lambda: get_args(Place))
    """The data (ours)."""
    attacks: tuple[Attack, ...] = field(default_factory=lambda: get_args(Attack))
    """The attacks and shares of malicious clients (Ditto, section 4)."""
    methods: tuple[str, ...] = ()
    """Only these methods; none: all."""
    out: Path = Path("experiments/personal/results")
    """Folder that gets the JSON files."""
    seeds: int = 5
    """0 to 4; a seed decides the clients, too, and who is malicious; further ones tune."""
    tuning: int = 1
    """Seeds beyond those, on whose validation rows each method chooses its numbers (ours)."""
    clients: int = 100
    """Ours; Ditto has 500 on Fashion MNIST."""
    images: int = 0
    """Of all clients (ours); 0: 20,000 of MNIST, 10,000 of CIFAR10."""
    cohort: int = 10
    """As the authors' code."""
    rounds: int = 100
    """Ours; the paper has 5000 on Fashion MNIST."""
    rates: tuple[float, ...] = ()
    """Step sizes that each method chooses from (ours); none: two that suit the place."""
    trials: int = 1000
    """Of Ditto's penalty against theory (the authors' notebook)."""
    vehicle_rows: float = 400.0
    """Of each device on average (ours); Vehicle's have 1,899."""
    camera_images: int = 300
    """Of each client with a camera of its own (ours); FedBN has 743."""
    camera_rounds: int = 15
    """With such clients (ours); FedBN has 300."""


def attack(name: str, cohort: int, classes: int = 10) -> eh.types.Attack | None:
    """Labels of malicious clients are wrong under all attacks, as in the authors' code."""
    if name == "clean":
        return None
    kind, share = name.split()
    fraction = float(share) / 100
    poisoned = attacks.uniform_labels(fraction, classes=classes)
    if kind == "A1":
        return poisoned
    second = {
        "A2": attacks.gaussian(fraction),
        "A3": attacks.model_replacement(fraction, boost=float(cohort)),
    }
    return attacks.both(poisoned, second[kind])


def table(config: Config, place: Place, name: Attack) -> Found:
    """All methods on one kind of data, under one attack."""
    share = 0.0 if name == "clean" else float(name.split()[1]) / 100
    kind = PLACES[place]
    every = candidates(model_of(place), int(config.cohort * share), strong=name.startswith("A3"))
    at = _under(config, place, name)
    return compared(
        _wanted(config, every),
        _runs(config, place, config.cohort, attack(name, config.cohort, kind.classes), at),
    )


def main(config: Config) -> None:
    """Each part; a file of the table is written after each attack."""
    if "joint" in config.parts:
        _joint(config)
    if "stopping" in config.parts:
        _stopping(config)
    if "partial" in config.parts:
        _partial(config)
    if "penalty" in config.parts:
        _penalty(config)
    if "tilted" in config.parts:
        _tilted(config)
    if "vehicle" in config.parts:
        _vehicle(config)
    if "normalisation" in config.parts:
        _normalisation(config)
    for place in config.places if "table" in config.parts else ():
        found: dict[str, Found] = {}
        for name in config.attacks:
            found[name] = table(config, place, name)
            content = {"percent": found, "paper": PAPER}
            write(config.out / f"{place.replace(' ', '_')}.json", content, asdict(config), digits=4)
            shown(f"{place}, {name}", found[name])


def _joint(config: Config) -> None:
    """Ditto's two solvers under model replacement."""
    found: dict[str, Found] = {}
    for place in joint.PLACES:
        runs = _runs(
            config, place, config.cohort, attack("A3 20", config.cohort), _under(config, "joint", place)
        )
        found[place] = compared(_wanted(config, joint.methods()), runs)
        shown(f"joint, {place}", found[place])
        write(config.out / "joint.json", {"percent": found}, asdict(config), digits=4)


def _stopping(config: Config) -> None:
    """Finetuning from earlier rounds of the run that the two solvers end with (figures 7 and 8)."""
    for place in joint.PLACES:
        if place not in config.places:
            continue
        runs = _runs(config, place, config.cohort, attack("A3 20", config.cohort), None)
        found = stopping.measured(runs._replace(rates=(stopping.RATE,)))
        print(stopping.markdown(found), flush=True)
        write(config.out / f"stopping_{place.replace(' ', '_')}.json", found, asdict(config), digits=4)


def _partial(config: Config) -> None:
    """A personal output layer, simultaneously or in turns, and with robust rules."""
    found: dict[str, Found] = {}
    for name, each in partly.corruptions().items():
        runs = _runs(config, "dirichlet", partly.COHORT, each, _under(config, "partial", name))
        every = _wanted(config, partly.methods(clean=each is None))
        found[name] = compared(every, runs._replace(everybody=True))
        shown(f"partial, {name}", found[name])
        write(
            config.out / "partial.json", {"percent": found, "paper": partly.PAPER}, asdict(config), digits=4
        )


def _penalty(config: Config) -> None:
    """Ditto's penalty against theory (figures 1 and 2)."""
    taus = (0.0001, *(round(0.0501 + 0.1 * i, 4) for i in range(10)))
    content = {
        "figure 1": {name: penalty.figure_1(case, config.trials, 0) for name, case in penalty.CASES.items()},
        "figure 2": {
            name: penalty.figure_2(config.trials, 0, taus, is_attacked=is_attacked)
            for name, is_attacked in (("clean", False), ("adversarial", True))
        },
        "claims": penalty.claims(config.trials),
    }
    write(config.out / "penalty.json", content, asdict(config), digits=5)


_SHARES = (20, 50, 80)
"""Of the clients, in percent, whose labels are random in figure 4."""


def _tilted(config: Config) -> None:
    """TERM's tilts under random labels (figure 4), and what else could explain the finding."""

    def compared_at(share: int, name: str, wanted: tuple[str, ...] = (), **changed: Any) -> Found:
        kind = attack(f"A1 {share}", config.cohort)
        runs = _runs(config, "two classes", config.cohort, kind, _under(config, "tilted", name))
        every = vehicle.tilted(model_of("two classes"))
        return compared({x: every[x] for x in wanted or every}, runs._replace(**changed))

    found = {f"A1 {share}": compared_at(share, str(share)) for share in _SHARES}
    pair = ("TERM, 5", "global")
    others: dict[evidence.Kind, Found] = {
        "tuning": compared_at(50, "tuning", pair, rates=(0.03, 0.1, 0.3, 1.0)),
        "seeds": compared_at(50, "seeds", pair, first=100),
        "selection": compared_at(50, "selection", pair, select=("valid", "worst10")),
    }
    text = {
        "tuning": ("two step sizes are too few", "step sizes 0.03 and 1 as well"),
        "seeds": ("these clients are special", "five other seeds"),
        "selection": ("the mean chose the step size", "step sizes chosen by the worst tenth"),
    }
    rivals = [Rival(kind, *text[kind], _contrast(other, *pair)) for kind, other in others.items()]
    sentence = (
        "With random labels at half of the clients, TERM with t = 5 changes the mean accuracy of the benign clients by "
        "{} against the global model."
    )
    claims = evidence.claims(Finding(sentence, _contrast(found["A1 50"], *pair)), rivals)
    write(config.out / "tilted.json", {"percent": found, "claims": claims}, asdict(config), digits=4)


_ON_VEHICLE = ("clean", "A1 50", "A2 50", "A3 20")
"""Columns of table 7."""


def _vehicle(config: Config) -> None:
    """MOCHA and other support vector machines (table 7), and what else could explain the finding."""

    def compared_at(column: str, name: str = "", wanted: tuple[str, ...] = (), **changed: Any) -> Found:
        kind = None if column == "clean" else attack(column, config.cohort, classes=2)
        runs = _runs(config, "two classes", config.cohort, kind, _under(config, "vehicle", name or column))
        deal = partial(vehicle.devices_of, config.data_dir, rows=config.vehicle_rows)
        every = vehicle.methods()
        rates = config.rates or (0.01, 0.1)
        return compared(
            {label: every[label] for label in wanted or every},
            runs._replace(**{"data": deal, "rates": rates, **changed}),
        )

    found = {column: compared_at(column) for column in _ON_VEHICLE}
    pair = ("MOCHA", "Ditto, 1")
    others: dict[evidence.Kind, Found] = {
        "tuning": compared_at("clean", "tuning", pair, rates=(0.003, 0.01, 0.03, 0.1, 0.3)),
        "seeds": compared_at("clean", "seeds", pair, first=100),
        "selection": compared_at("clean", "selection", pair, select=("valid", "worst10")),
    }
    text = {
        "tuning": ("Ditto has too few step sizes", "step sizes 0.003, 0.03 and 0.3 as well"),
        "seeds": ("these devices are special", "five other seeds"),
        "selection": ("the mean chose the settings", "settings chosen by the worst tenth"),
    }
    rivals = [Rival(kind, *text[kind], _contrast(other, *pair)) for kind, other in others.items()]
    sentence = (
        "Without attack, the mean accuracy over devices with MOCHA differs from that with Ditto at lambda = 1 "
        "by {}."
    )
    claims = evidence.claims(Finding(sentence, _contrast(found["clean"], *pair)), rivals)
    content = {"percent": found, "paper": vehicle.PAPER, "claims": claims}
    write(config.out / "vehicle.json", content, asdict(config), digits=4)


def _normalisation(config: Config) -> None:
    """Batch normalisation that is averaged or stays, of clients with unlike inputs; and other explanations."""

    def compared_for(name: str, wanted: tuple[str, ...] = (), **changed: Any) -> Found:
        deal = partial(normalisation.clients_of, config.data_dir, images=config.camera_images)
        runs = _runs(
            config, "dirichlet", len(normalisation.CAMERAS), None, _under(config, "normalisation", name)
        )
        rates = config.rates or (0.03, 0.1)
        every = normalisation.methods()
        return compared(
            {label: every[label] for label in wanted or _wanted(config, every)},
            runs._replace(**{"data": deal, "rates": rates, "rounds": config.camera_rounds, **changed}),
        )

    pair = (normalisation.LOCAL, normalisation.AVERAGE)
    found = compared_for("cameras")
    shown("cameras", found)
    others: dict[evidence.Kind, Found] = {
        "tuning": compared_for("tuning", pair, rates=config.rates or (0.01, 0.03, 0.1, 0.3)),
        "seeds": compared_for("seeds", pair, first=100),
        "selection": compared_for("selection", pair, select=("valid", "worst10")),
    }
    text = {
        "tuning": ("two step sizes are too few", "step sizes 0.01 and 0.3 as well"),
        "seeds": ("these images are special", "five other seeds"),
        "selection": ("the mean chose the step size", "step sizes chosen by the worst client"),
    }
    rivals = [Rival(kind, *text[kind], _contrast(other, *pair)) for kind, other in others.items()]
    sentence = (
        "Where each client has a camera of its own, statistics that stay with their client change the mean accuracy "
        "over clients by {} against statistics that are averaged."
    )
    claims = evidence.claims(Finding(sentence, _contrast(found, *pair)), rivals)
    write(config.out / "normalisation.json", {"percent": found, "claims": claims}, asdict(config), digits=4)


def markdown(percent: Mapping[str, Found], paper: Mapping[str, Mapping[str, float]]) -> str:
    """The mean over benign clients under each attack, ± over seeds, in Markdown; the paper's in square brackets."""
    lines = [f"| method | {' | '.join(percent)} |", f"|---|{'---:|' * len(percent)}"]
    for name in next(iter(percent.values())):
        cells: list[str] = []
        for column, found in percent.items():
            means = [seed["mean"] for seed in found[name]["seeds"]]
            theirs = paper.get(name, {}).get(column)
            cells.append(
                f"{np.mean(means):.1f} ± {np.std(means):.1f}" + ("" if theirs is None else f" [{theirs:g}]")
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _contrast(found: Found, method: str, baseline: str) -> evidence.Contrast:
    return evidence.contrast(found[method]["seeds"], found[baseline]["seeds"], "mean")


def _wanted(config: Config, every: Mapping[str, Candidates]) -> dict[str, Candidates]:
    return {label: each for label, each in every.items() if label in config.methods or not config.methods}


def _runs(
    config: Config, place: Place, cohort: int, attack: eh.types.Attack | None, folder: Path | None
) -> Runs:
    return Runs(
        data=partial(clients_of, place, config.data_dir, clients=config.clients, images=config.images),
        seeds=config.seeds,
        tuning=config.tuning,
        rates=config.rates or PLACES[place].rates,
        rounds=config.rounds,
        cohort=cohort,
        attack=attack,
        folder=folder,
    )


def _under(config: Config, *names: str) -> Path | None:
    return config.under("_".join(names).replace(" ", "_"))


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.personal", description=__doc__))
