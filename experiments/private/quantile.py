"""The private quantile alone: its error against the budget, the modulus and the number of bins.

Checks figure 5 of Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
Learning 2023.  From the root of the repository:

    python -m experiments.private.quantile
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure

from evenhand.privacy import Histogram, Sensitivity, histogram_for
from evenhand.types import Array, Key
from experiments.fairness import Experiment, picture, write

Data: TypeAlias = Literal["uniform", "chi-square"]
Panel: TypeAlias = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    out: Path = Path("experiments/private/results")
    """Folder that gets quantile.json and quantile.png."""
    folder: tyro.conf.Suppress[None] = None
    """There are no runs to keep."""
    clients: int = 256
    """Section 7.6: 256."""
    bins: int = 64
    """Figure 5: 64 where they do not vary."""
    largest: float = 10.0
    """Section 7.6: 10."""
    delta: float = 1e-5
    """Section 7.6: 1e-5."""
    repetitions: int = 40
    """Section 7.6: 10."""
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0)
    """Ours; figure 5 reaches from below 1 to above 10."""
    bits: tuple[int, ...] = (10, 12, 16)
    """Of the modulus; figure 5: 10, and others that the text does not name."""
    more_bins: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """Ours."""
    seed: int = 0


def main(config: Config) -> None:
    """All panels; saved at the end."""
    panels: dict[str, Panel] = {}
    for data in get_args(Data):
        panels[f"{data}, modulus"] = by_modulus(config, data)
    panels["uniform, bins"] = by_bins(config)
    panels["uniform, histogram"] = by_kind(config)
    command = {"command": shlex.join(["python", "-m", "experiments.private.quantile", *sys.argv[1:]])}
    content = {"title": "Error of the private quantile", **command, "panels": panels}
    write(config.out / "quantile.json", content, asdict(config), digits=4)
    picture(figure(panels), config.out / "quantile.png")
    for name, panel in panels.items():
        for line, each in panel.items():
            print(f"{name} | {line} | {' '.join(f'{error:.3f}' for error in each['error'])}")


def by_modulus(config: Config, data: Data) -> Panel:
    """A line per width of the modulus, over the budgets."""
    found = [
        measured(config, data, counting_for(config, epsilon), config.bits) for epsilon in config.epsilons
    ]
    lines = zip(config.bits, np.moveaxis(np.array(found), 1, 0), strict=True)
    return {f"{bits} bits": line("epsilon", config.epsilons, each) for bits, each in lines}


def by_bins(config: Config) -> Panel:
    """A line per budget, over the numbers of bins."""
    panel: Panel = {}
    for epsilon in (1.0, 5.0):
        made = [counting_for(config, epsilon, bins=bins) for bins in config.more_bins]
        found = [measured(config, "uniform", each, (each.bits,))[0] for each in made]
        panel[f"epsilon = {epsilon:g}"] = line("bins", config.more_bins, np.array(found))
    return panel


def by_kind(config: Config) -> Panel:
    """A line per kind of histogram, over the budgets: the paper's sensitivity, the true one, and bins alone."""
    kinds: Mapping[str, tuple[Sensitivity, bool]] = {
        "tree": ("paper", False),
        "tree, tight": ("tight", False),
        "flat": ("tight", True),
    }
    panel: Panel = {}
    for name, (sensitivity, flat) in kinds.items():
        made = [
            counting_for(config, epsilon, sensitivity=sensitivity, flat=flat) for epsilon in config.epsilons
        ]
        found = [measured(config, "uniform", each, (each.bits,))[0] for each in made]
        panel[name] = line("epsilon", config.epsilons, np.array(found))
    return panel


def counting_for(
    config: Config,
    epsilon: float,
    *,
    bins: int | None = None,
    sensitivity: Sensitivity = "paper",
    flat: bool = False,
) -> Histogram:
    """The histogram for (epsilon, delta), converted as in the paper: epsilon = rho + 2 sqrt(rho log(1 / delta))."""
    log = math.log(1 / config.delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    bins = config.bins if bins is None else bins
    largest, clients = config.largest, config.clients
    return histogram_for(rho, clients=clients, bins=bins, largest=largest, sensitivity=sensitivity, flat=flat)


def measured(config: Config, data: Data, counting: Histogram, bits: Sequence[int]) -> np.ndarray:
    """The error ``(bits, repetitions)``: a mean over theta = 0.1, ..., 0.9, of one sum each."""
    keys = jax.random.split(jax.random.key(config.seed), config.repetitions)
    return np.asarray(_measured(config.clients, data, counting, tuple(bits), keys)).T


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _measured(clients: int, data: Data, counting: Histogram, bits: tuple[int, ...], keys: Key) -> Array:
    thetas = [k / 10 for k in range(1, 10)]

    def once(key: Key) -> Array:
        of_data, of_noise = jax.random.split(key)
        losses = draw(data, of_data, clients, counting.largest)
        sent = jax.vmap(counting._replace(bits=32).encode)(losses, jax.random.split(of_noise, clients))
        errors: list[Array] = []
        for each in bits:
            ring = counting._replace(bits=each)
            total = ring.add(sent, jnp.ones(clients, bool))
            edges = jnp.stack([ring.decode(total, clients, theta=theta) for theta in thetas])
            below = jnp.mean(counting.clip(losses)[None] < edges[:, None], axis=1)
            errors.append(jnp.mean(jnp.abs(below - (1 - jnp.array(thetas)))))
        return jnp.stack(errors)

    return jax.lax.map(once, keys)


def draw(data: Data, key: Key, clients: int, largest: float) -> Array:
    """Section 7.6: uniform, or chi-square with four degrees of freedom."""
    if data == "uniform":
        return jax.random.uniform(key, (clients,), maxval=largest)
    return 2 * jax.random.gamma(key, 2.0, (clients,))


def line(what: str, over: Sequence[float], found: np.ndarray) -> dict[str, Any]:
    """``found`` ``(over, repetitions)`` as means and standard deviations."""
    return {
        what: list(over),
        "error": found.mean(axis=1).tolist(),
        "std": found.std(axis=1, ddof=1).tolist(),
    }


def figure(panels: Mapping[str, Panel]) -> Figure:
    """A plot per panel."""
    drawn = Figure(figsize=(11, 3), layout="constrained")
    for axes, (name, panel) in zip(drawn.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for label, each in panel.items():
            what = next(iter(each))
            axes.plot(each[what], each["error"], marker=".", label=label)
            axes.set_xlabel(what)
        axes.set_xscale("log")
        axes.set_title(name, fontsize=10)
        axes.legend(fontsize=8)
    drawn.axes[0].set_ylabel("error of the quantile's level")
    return drawn


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
