"""Who withstands which attack, and what that costs unlike honest clients?

Checks what Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning* (RFA), IEEE Transactions on
Signal Processing 2022, claim, repeats the robust rivals of Li et al., *Ditto*, ICML 2021, under its attacks A1 to A3,
and maps every aggregator against every attack.  From the root of the repository:

    python -m experiments.robust --data-dir DIR --folder runs/robust
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

import tyro

from experiments.fairness import Experiment, Measures, write
from experiments.robust import least_squares, rfa, rivals, synthetic
from experiments.robust.breakdown import Cells, Map, cells, tuned
from experiments.robust.data import Deal
from experiments.robust.figure import draw, summary

Part = Literal["map", "least squares", "synthetic", "rfa", "rivals"]


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz."""
    parts: tuple[Part, ...] = field(default_factory=lambda: get_args(Part))
    """Which of the experiments."""
    out: Path = Path("experiments/robust/results")
    """Folder that gets the JSON files and the figures."""
    seeds: int = 5
    """0 to 4; a seed decides the clients, too, and who is malicious."""
    fractions: tuple[float, ...] = (0.2, 0.3, 0.45)
    """Map: shares of malicious clients, known to the rules (ours)."""
    rules: tuple[str, ...] = ()
    """Map: only these rules; none: all."""
    attacks: tuple[str, ...] = ()
    """Map: only these attacks; none: all."""
    clients: int = 20
    """Map: all take part in each round (ours)."""
    images: int = 12_000
    """Map: of all clients (ours)."""
    alpha: float = 0.3
    """Map: of the Dirichlet draws (ours)."""
    rounds: int = 30
    """Map (ours)."""
    batch_size: int = 32
    """Map (ours)."""
    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    """Step sizes that validation images choose from (ours)."""
    lengths: tuple[float, ...] = (0.1, 0.3, 1.0)
    """Map: lengths that clipping, centred clipping and normalisation try (ours)."""
    unlike: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4)
    """Least squares: Omega_Y (ours)."""
    malicious: tuple[int, ...] = (0, 4, 10, 14, 18)
    """Least squares: of 40 clients, with Omega_Y = 0.4 (ours)."""
    pattern_clients: int = 2500
    """Synthetic (Delta-FL, section 7.7)."""
    pattern_cohort: int = 100
    """Synthetic (the other implementation)."""
    pattern_rounds: int = 150
    """Synthetic (the other implementation)."""
    nets: tuple[rfa.Net, ...] = ("linear", "convnet")
    """RFA: the models; code: the same two kinds on EMNIST."""
    many_clients: int = 100
    """RFA and rivals (ours; Ditto has 500 on Fashion MNIST)."""
    many_images: int = 20_000
    """RFA and rivals (ours)."""
    cohort: int = 10
    """RFA (ours; code: 100) and rivals (code: 10)."""
    communications: int = 90
    """RFA with the linear model (ours; code: 6000 on EMNIST)."""
    convnet_images: int = 10_000
    """RFA with the ConvNet (ours)."""
    convnet_communications: int = 45
    """RFA with the ConvNet (ours; code: 2000 for FedAvg on EMNIST, 3000 for RFA)."""
    rival_rounds: int = 100
    """Rivals (ours)."""
    deals: tuple[Deal, ...] = ("dirichlet", "two classes")
    """Rivals: how digits are dealt (ours)."""


def breakdown(config: Config) -> None:
    """The map, saved after each share of malicious clients."""
    setup = Map(
        config.data_dir,
        config.clients,
        config.images,
        config.alpha,
        config.rounds,
        config.batch_size,
        config.rules,
        config.attacks,
    )
    at = {fraction: _at(config, f"map_{fraction:g}") for fraction in (0, *config.fractions)}
    settings = tuned(setup, 0.2, config.rates, config.lengths, _later(config), at[0])
    found: dict[str, Cells] = {}
    for fraction in config.fractions:
        found[f"{fraction:g}"] = cells(setup, fraction, settings, config.seeds, at[fraction])
        content = {"settings": settings, "percent": found}
        path = write(config.out / "map.json", content, asdict(config), digits=3)
        draw(path)
    print(summary(config.out / "map.json"), flush=True)


def theorem(config: Config) -> None:
    """The squared distance to the solution of least squares, round by round."""
    found: dict[str, list[list[float]]] = {}
    for unlike in config.unlike:
        for rule in least_squares.RULES:
            problem = least_squares.Problem(unlike=unlike)
            found[f"{rule}, Omega_Y={unlike:g}"] = least_squares.errors(problem, rule, config.seeds)
    for malicious in config.malicious:
        problem = least_squares.Problem(unlike=0.4, malicious=malicious)
        found[f"RFA, {malicious} malicious"] = least_squares.errors(problem, "RFA", config.seeds)
    write(config.out / "least_squares.json", {"squared_errors": found}, asdict(config), digits=3)
    for name, each in found.items():
        print(f"{name:28} {' '.join(f'{sum(at) / len(at):8.2g}' for at in zip(*each, strict=True))}")


def pattern(config: Config) -> None:
    """RFA's starts and iterations on synthetic data, beside another implementation."""
    setup = synthetic.Setup(config.pattern_clients, config.pattern_cohort, config.pattern_rounds)
    found = synthetic.table(setup, config.seeds, _at(config, "synthetic"))
    content = {"percent": found, "other": synthetic.ANCHORS}
    write(config.out / "synthetic.json", content, asdict(config), digits=4)
    for name, row in found.items():
        other = " ".join(f"{each:5.1f}" for each in synthetic.ANCHORS[name])
        print(
            f"{name:16} {' '.join(f'{sum(of) / len(of):5.1f}' for of in row.values())}   [{other}]",
            flush=True,
        )


def against_fedavg(config: Config) -> None:
    """RFA and FedAvg at equal communication, for each model."""
    for net in config.nets:
        size = (
            (config.many_images, config.communications)
            if net == "linear"
            else (config.convnet_images, config.convnet_communications)
        )
        setup = rfa.Setup(config.data_dir, net, config.many_clients, size[0], config.cohort, size[1])
        folder = _at(config, f"rfa_{net}")
        rate = rfa.tuned(setup, config.rates, _later(config), folder and folder / "tuning")
        found = rfa.compared(setup, rate, config.seeds, folder)
        content = {"rate": rate, "percent": found, "paper": rfa.PAPER}
        write(config.out / f"rfa_{net}.json", content, asdict(config), digits=4)
        _show(found, "weighted_mean")


def rival_tables(config: Config) -> None:
    """Ditto's robust rivals, for each way to deal the digits."""
    for deal in config.deals:
        setup = rivals.Rivals(
            config.data_dir,
            deal,
            config.many_clients,
            config.many_images,
            config.cohort,
            config.rival_rounds,
            config.rates,
        )
        found = rivals.table(setup, config.seeds, _at(config, "rivals"))
        content = {"percent": found, "paper": rivals.PAPER}
        write(config.out / f"rivals_{deal.replace(' ', '_')}.json", content, asdict(config), digits=4)
        _show(found, "mean")


def _show(found: dict[str, dict[str, list[Measures]]], what: str) -> None:
    for name, row in found.items():
        cells = [f"{other} {sum(one[what] for one in each) / len(each):.1f}" for other, each in row.items()]
        print(f"{name:14} {', '.join(cells)}", flush=True)


def _later(config: Config) -> range:
    """Two further seeds, to choose by."""
    return range(config.seeds, config.seeds + 2)


def _at(config: Config, name: str) -> Path | None:
    return config.under(name)


def main(config: Config) -> None:
    """Each part after the other."""
    run = {
        "map": breakdown,
        "least squares": theorem,
        "synthetic": pattern,
        "rfa": against_fedavg,
        "rivals": rival_tables,
    }
    for part in config.parts:
        run[part](config)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.robust", description=__doc__))
