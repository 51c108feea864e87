"""Private adaptive methods on ratings of films, all at one epsilon, and what privacy costs the worst-served users.

The row on MovieLens of tables 6.11 and 6.14 of Li et al., *Differentially Private Adaptive Optimization with Delayed
Preconditioners*, ICLR 2023, with fewer steps of larger batches.  From the root of the repository:

    python -m experiments.private.movielens --data-dir DIR --folder runs/movielens

and the same with the paper's batches, steps and settings, where nothing is tuned:

    python -m experiments.private.movielens --data-dir DIR --folder runs/movielens_as_printed --as-printed --batch 64 \\
        --epochs 50
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import tyro

import evenhand as eh
from evenhand import privacy
from evenhand.evaluation import worst
from evenhand.types import Model
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

NDArray = npt.NDArray[Any]

USERS, FILMS = 943, 1682
PAPER = {
    "DP-SGD": 3.02,
    "DP-RMSProp": 2.96,
    "PDA-DPMD": 3.74,
    "AdaDPS": 2.86,
    "DP2-RMSProp": 2.78,
    "DP2, two queries": 3.32,
    "DP2, noise first": 3.18,
    "DP-SGD, two steps": None,
    "DP2, smaller eps": None,
    "SGD": None,
    "RMSProp": 0.88,
}
"""Mean squared error on test ratings (tables 6.11 and 6.14; section 6.10 without privacy)."""

PRINTED: dict[str, Numbers] = {
    "DP-SGD": {"lr": 0.1, "clip": 1.0},
    "DP-RMSProp": {"lr": 0.001, "clip": 0.5},
    "PDA-DPMD": {"lr": 0.1, "clip": 1.0},
    "AdaDPS": {"lr": 0.01, "clip": 10.0},
    "DP2-RMSProp": {"lr": 0.03, "clip": 5.0, "first_lr": 0.1},
    "DP-SGD, two steps": {"lr": 0.15, "clip": 1.0, "first_lr": 0.1},
}
"""Table 6.12, where the ablations' are missing; the last, which is ours, has steps as long as DP2's."""


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    data_dir: Path = Path("data")
    """Folder with movielens_100k.npz."""
    out: Path = Path("experiments/private/results")
    """Folder that gets movielens.json."""
    methods: tuple[str, ...] = ()
    """Only these methods, beside what the file has of others; none: all."""
    as_printed: bool = False
    """With the settings of table 6.12, and only the methods that it has; the numbers go to a folder "as_printed"."""
    epsilon: float = 9.8
    """Of the paper's noise multiplier of 0.5 on 80,000 ratings at this delta; it is 4.32 in the paper's figures."""
    delta: float = 1e-5
    """The paper's rule: the largest power of ten that is not above one in so many ratings."""
    batch: int = 1024
    """Ours; the paper has 64."""
    epochs: int = 25
    """Ours; the paper has 50."""
    dimension: int = 100
    """Of the vectors of users and films (the authors' code)."""
    public: int = 800
    """1 % of the training ratings, drawn once and not among the private ones."""
    test: int = 20_000
    """The authors' code."""
    valid: int = 4000
    """Ratings that choose, of those that train in the paper (ours; the paper chooses by training ratings)."""
    seeds: int = 5
    """Table 6.11."""
    tuning: int = 1
    """Seeds that tune, not among the others."""


class Ratings:
    """All ratings: which are public is drawn once, and which are for testing and choosing with each seed."""

    def __init__(self, config: Config) -> None:
        with np.load(config.data_dir / "movielens_100k.npz") as arrays:
            self._x = np.stack([arrays["user"], arrays["item"]], axis=1) - 1
            self._y = arrays["rating"]
        order = np.random.default_rng(0).permutation(len(self._x))
        public, self._others = np.split(order, [config.public])
        self.public = jnp.asarray(self._x[public]), jnp.asarray(self._y[public])
        self._ends = [config.test, config.test + config.valid]
        self.rows = len(self._others) - self._ends[1]
        self._of_seed: dict[int, eh.data.FederatedDataset] = {}

    def __call__(self, seed: int) -> eh.data.FederatedDataset:
        """The private ratings as one client."""
        if seed not in self._of_seed:
            drawn = np.random.default_rng([1, seed]).permutation(self._others)
            test, valid, private = np.split(drawn, self._ends)
            splits = [
                eh.data.Split(self._x[rows], self._y[rows], np.array([0, len(rows)]))
                for rows in (private, valid, test)
            ]
            self._of_seed[seed] = eh.data.FederatedDataset(
                splits[0], splits[1], splits[2], ("all",), name="movielens"
            )
        return self._of_seed[seed]


def model_of(dimension: int) -> Model:
    """The product of a user's vector and a film's, as in the authors' code."""

    return eh.models.matrix_factorisation(USERS, FILMS, dimension=dimension)


def served(run: eh.Run) -> Mapping[str, float]:
    """The mean error of users on the test ratings, and that of the worst-served tenth of them."""
    x, y = run.data.test.x, run.data.test.y
    squares = np.square(np.asarray(run.algorithm.model.apply(run.params, jnp.asarray(x))) - y)
    return by_user(squares, x[:, 0])


def by_user(squares: NDArray, user: NDArray) -> dict[str, float]:
    """Over the users that have test ratings."""
    count = np.bincount(user)
    each = np.bincount(user, squares)[count > 0] / count[count > 0]
    return {"users": float(each.mean()), "worst10": worst(each, higher_is_better=False)}


def candidates(config: Config, ratings: Ratings) -> dict[str, Candidate]:
    """All methods; each takes six settings."""
    model, steps = model_of(config.dimension), config.epochs * ratings.rows // config.batch
    rate = config.batch / ratings.rows
    noise = privacy.noise_for(epsilon=config.epsilon, rate=rate, steps=steps, delta=config.delta)
    common: dict[str, Any] = {"noise_multiplier": noise, "rate": rate, "steps": steps}
    # Two queries of a sample are one with a noise multiplier that is smaller by the root of two.
    twice: dict[str, Any] = common | {"noise_multiplier": 2**0.5 * noise}

    def sgd(n: Numbers) -> eh.local.Work:
        return privacy.dp_sgd(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **common)

    def two_steps(n: Numbers) -> eh.local.Work:
        chosen = optax.piecewise_constant_schedule(n["first_lr"], {steps // 2: n["lr"] / n["first_lr"]})
        return privacy.dp_sgd(model, optax.sgd(chosen), clip=n["clip"], **common)

    def rmsprop(n: Numbers) -> eh.local.Work:
        chosen = stepping(optax.rmsprop, n["lr"], decay=0.9, eps=1e-3, eps_in_sqrt=False)
        return privacy.dp_sgd(model, chosen, clip=n["clip"], **common)

    def mirror(n: Numbers) -> eh.local.Work:
        given = {"public": ratings.public, "total_steps": steps}
        return privacy.pda_dpmd(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **given, **common)

    def adadps(n: Numbers) -> eh.local.Work:
        return privacy.adadps(
            model, stepping(optax.sgd, n["lr"]), clip=n["clip"], public=ratings.public, eps=1e-2, **common
        )

    def delayed(n: Numbers, *, noise_first: bool = False) -> eh.local.Work:
        clips = 1.0, n["clip"]
        how = {"delay": n.get("delay", steps // 2), "noise_first": noise_first, "eps": n.get("eps", 1e-3)}
        return privacy.dp2(model, (n["first_lr"], n["lr"]), clips=clips, **how, **common)

    def two_queries(n: Numbers) -> eh.local.Work:
        clips, delay = (1.0, n["clip"]), max(1, steps // config.epochs)
        rates = n["first_lr"], n["lr"]
        return privacy.dp2_extra_query(model, rates, clips=clips, delay=delay, **twice)

    def open_sgd(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, stepping(optax.sgd, n["lr"]), epochs=n["epochs"], batch_size=config.batch)

    def open_rmsprop(n: Numbers) -> eh.local.Work:
        chosen = stepping(optax.rmsprop, n["lr"], decay=0.9, eps=1e-3, eps_in_sqrt=False)
        return eh.local.sgd(model, chosen, epochs=n["epochs"], batch_size=config.batch)

    # Around the best of six others, with up to 100 times the paper's step sizes, as there are 34 times fewer steps.
    first = partial(delayed, noise_first=True)
    several = (max(1, config.epochs // 5), config.epochs)
    small = (0.007, 0.01, 0.014)
    every = {
        "DP-SGD": Candidate(sgd, {"lr": (8.0, 10.0, 12.0), "clip": (0.5, 0.7)}),
        "DP-RMSProp": Candidate(rmsprop, {"lr": small, "clip": (1.0, 2.0)}),
        "PDA-DPMD": Candidate(mirror, {"lr": (10.0, 14.0, 20.0), "clip": (1.0, 2.0)}),
        "AdaDPS": Candidate(adadps, {"lr": (0.8, 1.0, 1.2), "clip": (5.0, 7.0)}),
        "DP2-RMSProp": Candidate(delayed, {"lr": (2.5, 3.0, 4.0), "clip": (2.0,), "first_lr": (5.0, 6.0)}),
        "DP-SGD, two steps": Candidate(
            two_steps, {"lr": (12.0, 16.0, 20.0), "clip": (0.5,), "first_lr": (8.0, 10.0)}
        ),
        "DP2, smaller eps": Candidate(
            delayed, {"lr": (2.0, 3.0, 4.0), "clip": (2.0,), "first_lr": (5.0,), "eps": (1e-5, 1e-7)}
        ),
        "DP2, noise first": Candidate(first, {"lr": small, "clip": (1.0,), "first_lr": (5.0, 6.0)}),
        "DP2, two queries": Candidate(
            two_queries, {"lr": (1.0, 1.4, 2.0), "clip": (5.0,), "first_lr": (3.0, 5.0)}
        ),
        "SGD": Candidate(open_sgd, {"lr": (3.0, 10.0, 30.0), "epochs": several}),
        "RMSProp": Candidate(open_rmsprop, {"lr": (0.001, 0.003, 0.01), "epochs": several}),
    }
    if not config.as_printed:
        return every
    return {
        name: Candidate(every[name].make, {key: (value,) for key, value in numbers.items()})
        for name, numbers in PRINTED.items()
    }


def constant(ratings: Ratings, seeds: int) -> dict[str, list[float]]:
    """What predicting the mean of the private ratings comes to, in the form of a method's numbers."""
    found: dict[str, list[float]] = {"test": [], "users": [], "worst10": []}
    for seed in range(seeds):
        data = ratings(seed)
        squares = np.square(data.test.y - data.train.y.mean())
        for name, value in {"test": squares.mean(), **by_user(squares, data.test.x[:, 0])}.items():
            found[name].append(float(value))
    return found


def main(config: Config) -> None:
    """Tunes each method by validation ratings, runs it with the other seeds, and writes what came of it."""
    ratings = Ratings(config)
    runs = Runs(
        ratings,
        config.seeds,
        config.tuning,
        BY_ERROR,
        config.folder,
        served,
    )
    path = config.out / ("as_printed" if config.as_printed else "") / "movielens.json"
    before = earlier(path, asdict(config))
    found: dict[str, Any] = before.get("error", {"constant": constant(ratings, config.seeds)})
    promised: dict[str, Any] = before.get("privacy", {})
    every = candidates(config, ratings)
    for name in wanted(every, config.methods):
        each = every[name]
        best, tuning, outcomes = study(name, each, runs)
        told = {what: [float(o.measures[what][-1]) for o in outcomes] for what in ("users", "worst10")}
        test = [error(outcome, "test") for outcome in outcomes]
        found[name] = {
            "chosen": dict(best),
            "valid": valid(tuning, error),
            "test": test,
            **told,
            "paper": PAPER[name],
        }
        print(
            f"{name:20} {np.mean(test):5.2f}, worst tenth {np.mean(told['worst10']):5.2f}  {dict(best)}",
            flush=True,
        )
        work = each.make(best)
        if work.privacy is not None:
            promised[name] = spent(work, units=ratings.rows, delta=config.delta)
        save(path, {"error": found, "privacy": promised}, asdict(config))


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.movielens", description=__doc__))
