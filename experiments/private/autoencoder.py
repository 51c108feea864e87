"""Private adaptive methods on an autoencoder of digits, all at one epsilon.

Its rows in tables 6.1, 6.2 and 6.6 to 6.9 of Li et al., *Private Adaptive Optimization with Side Information*,
ICML 2022, with a narrower network and fewer steps of larger batches.  From the root of the repository:

    python -m experiments.private.autoencoder --data-dir DIR --folder runs/autoencoder

and at the larger epsilon of table 6.1, only methods that the table has:

    python -m experiments.private.autoencoder --data-dir DIR --folder runs/autoencoder_3 --epsilon 3
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import tyro

import evenhand as eh
from evenhand import privacy
from experiments.fairness import Experiment
from experiments.private.table import (
    BY_ERROR,
    Candidate,
    Numbers,
    Runs,
    earlier,
    error,
    save,
    spent,
    stepping,
    study,
    valid,
    wanted,
)

PAPER = {
    "DP-SGD": 5.013,
    "DP-Adam": 3.697,
    "DP-RMSProp": 3.636,
    "DP-SGD, warm start": 4.9,
    "DP-Adam-Pub": 6.4,
    "PDA-DPMD": 3.9,
    "AdaDPS, RMSProp": 3.566,
    "AdaDPS, Adam": 3.443,
    "SGD": 5.013,
    "Adam": 1.151,
    "AdaS": 1.805,
}
"""Test error per pixel times 100 (tables 6.2, 6.6 to 6.8 at epsilon 1.6, and table 6.9 without privacy)."""

PAPER_AT_3 = {"DP-SGD": 3.792, "DP-Adam": 3.286, "AdaDPS, RMSProp": 3.158}
"""The same at epsilon 3 (table 6.1)."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    data_dir: Path = Path("data")
    """Folder with mnist.npz."""
    out: Path = Path("experiments/private/results")
    """Folder that gets autoencoder.json; with another epsilon than 1.6, in a folder of its own."""
    methods: tuple[str, ...] = ()
    """Only these methods, beside what the file has of others; none: all."""
    epsilon: float = 1.6
    """Table 6.5; or 3, as in table 6.1."""
    widths: tuple[int, ...] = (256, 128, 64, 30)
    """Of the encoder, the code last (ours); the paper has 1000, 500, 250 and 30."""
    batch: int = 256
    """Ours; the paper has 64."""
    steps: int = 3000
    """Ours; the authors' code has 75,000."""
    public: int = 600
    """Section 6.6: 1 % of the images; here, not among the private ones."""
    seeds: int = 5
    """Ours; the paper has 3."""
    tuning: int = 1
    """Seeds that tune, not among the others."""
    valid: int = 2400
    """Images of the training part that choose (ours; the paper chooses by test or training images)."""
    images: int = 60_000
    """Of the training part."""


class Images(NamedTuple):
    """The private images as one client, and the public ones."""

    data: eh.data.FederatedDataset
    public: tuple[Any, Any]


@cache
def images(config: Config) -> Images:
    """The images, from 0 to 1, in an order drawn once; an image is its own label, so that labels are zeros."""
    with np.load(config.data_dir / "mnist.npz") as arrays:
        train, test = (arrays[f"x_{part}"].reshape(-1, 784) / np.float32(255) for part in ("train", "test"))
    order = np.random.default_rng(0).permutation(len(train))[: config.images]
    public, valid, private = np.split(order, [config.public, config.public + config.valid])
    splits = [
        eh.data.Split(x, np.zeros(len(x), np.float32), np.array([0, len(x)]))
        for x in (train[private], train[valid], test)
    ]
    data = eh.data.FederatedDataset(splits[0], splits[1], splits[2], ("all",), name="mnist")
    return Images(data, (jnp.asarray(train[public]), jnp.zeros(len(public))))


def candidates(config: Config) -> dict[str, Candidate]:
    """All methods; each takes six settings."""
    data, public = images(config)
    model = eh.models.autoencoder(784, widths=config.widths)
    rows, steps = data.train.rows, config.steps
    rate, delta = config.batch / rows, 1 / rows
    noise = privacy.noise_for(epsilon=config.epsilon, rate=rate, steps=steps, delta=delta)
    common: dict[str, Any] = {"noise_multiplier": noise, "rate": rate, "steps": steps}
    side: dict[str, Any] = {"public": public, "public_batch_size": 64, "eps": 1e-5}
    plain: dict[str, Any] = {"steps": steps, "batch_size": config.batch}

    def sgd(n: Numbers) -> eh.local.Work:
        return privacy.dp_sgd(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **common)

    def adam(n: Numbers) -> eh.local.Work:
        return privacy.dp_sgd(model, stepping(optax.adam, n["lr"], eps=1e-8), clip=n["clip"], **common)

    def rmsprop(n: Numbers) -> eh.local.Work:
        chosen = stepping(optax.rmsprop, n["lr"], decay=0.9, eps=1e-8, eps_in_sqrt=False)
        return privacy.dp_sgd(model, chosen, clip=n["clip"], **common)

    def adadps(n: Numbers) -> eh.local.Work:
        return privacy.adadps(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **side, **common)

    def adadps_adam(n: Numbers) -> eh.local.Work:
        return privacy.adadps(
            model, stepping(optax.sgd, n["lr"]), clip=n["clip"], kind="adam", **side, **common
        )

    def warm(n: Numbers) -> eh.local.Work:
        started = privacy.warm_start(model, optax.adam(n["warm"]), public=public)
        return privacy.dp_sgd(started, stepping(optax.sgd, n["lr"]), clip=0.01, **common)

    def adam_pub(n: Numbers) -> eh.local.Work:
        given = {"public": public, "public_batch_size": 64, "eps": 1e-8}
        return privacy.dp_adam_pub(model, n["lr"], clip=n["clip"], **given, **common)

    def mirror(n: Numbers) -> eh.local.Work:
        given = {"public": public, "public_batch_size": 64, "total_steps": steps}
        return privacy.pda_dpmd(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **given, **common)

    def open_sgd(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, stepping(optax.sgd, n["lr"]), **plain)

    def open_adam(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, stepping(optax.adam, n["lr"], eps=1e-8), **plain)

    def adas(n: Numbers) -> eh.local.Work:
        return privacy.adas(model, stepping(optax.sgd, n["lr"]), **side, **plain)

    clips = (0.01, 0.05)
    return {
        "DP-SGD": Candidate(sgd, {"lr": (100.0, 300.0, 1000.0), "clip": clips}),
        "DP-Adam": Candidate(adam, {"lr": (0.005, 0.01, 0.02), "clip": clips}),
        "DP-RMSProp": Candidate(rmsprop, {"lr": (0.005, 0.01, 0.02), "clip": clips}),
        "AdaDPS, RMSProp": Candidate(adadps, {"lr": (0.1, 0.2, 0.4), "clip": (3.0, 10.0)}),
        "AdaDPS, Adam": Candidate(adadps_adam, {"lr": (0.1, 0.2, 0.4), "clip": (3.0, 10.0)}),
        "DP-SGD, warm start": Candidate(warm, {"warm": (0.001, 0.01), "lr": (100.0, 300.0, 1000.0)}),
        "DP-Adam-Pub": Candidate(adam_pub, {"lr": (0.001, 0.003, 0.01), "clip": clips}),
        "PDA-DPMD": Candidate(mirror, {"lr": (30.0, 100.0, 300.0), "clip": (0.05, 0.15)}),
        "SGD": Candidate(open_sgd, {"lr": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)}),
        "Adam": Candidate(open_adam, {"lr": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)}),
        "AdaS": Candidate(adas, {"lr": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)}),
    }


def main(config: Config) -> None:
    """Tunes each method by validation images, runs it with the other seeds, and writes what came of it."""
    data, every = images(config).data, candidates(config)
    usual = config.epsilon == Config.epsilon
    printed = {1.6: PAPER, 3.0: PAPER_AT_3}.get(config.epsilon, {})
    path = config.out / ("" if usual else f"epsilon_{config.epsilon:g}") / "autoencoder.json"
    runs = Runs(data, config.seeds, config.tuning, BY_ERROR, config.folder)
    before = earlier(path, asdict(config))
    found: dict[str, Any] = before.get("error", {})
    promised: dict[str, Any] = before.get("privacy", {})
    for name in wanted(every, config.methods or tuple(printed)):
        each = every[name]
        best, tuning, outcomes = study(name, each, runs)
        test = [100 * error(outcome, "test") for outcome in outcomes]
        chosen_by = valid(tuning, lambda outcome, split: 100 * error(outcome, split))
        found[name] = {"chosen": dict(best), "valid": chosen_by, "test": test, "paper": printed.get(name)}
        print(f"{name:20} {np.mean(test):6.3f} ± {np.std(test, ddof=1):.3f}  {dict(best)}", flush=True)
        work = each.make(best)
        if work.privacy is not None:
            promised = spent(work, units=data.train.rows, delta=1 / data.train.rows)
        save(path, {"error": found, "privacy": promised}, asdict(config))


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.autoencoder", description=__doc__))
