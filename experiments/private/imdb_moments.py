"""How much noise leaves of the second moments of gradients on film reviews, and how fast the divisors change.

Figures 6.2 and 6.3 of the dissertation: second moments with noise and without along a run of DP-Adam (Li et al.,
*Private Adaptive Optimization with Side Information*, ICML 2022), and divisors at several times of one run (Li et al.,
*Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023), at the settings that
:mod:`experiments.private.imdb` has chosen.  The gradients without noise are not private, nor is what is compared with
them.  From the root of the repository:

    python -m experiments.private.imdb_moments --imdb.data-dir DIR
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import tyro
from jax.flatten_util import ravel_pytree
from scipy.stats import rankdata

import evenhand as eh
from evenhand import privacy, tree
from evenhand.privacy.update_rules import oracle_work
from evenhand.types import Array, ClientData, Key, Params
from experiments.private import imdb
from experiments.private.sweeps import chosen_by
from experiments.private.table import earlier, save, wanted

NDArray = npt.NDArray[Any]

MODEL = eh.models.softmax_regression(features=10_000, classes=2)

PHASE, CYCLE = 195, 390
"""Steps of a phase of DP2 (table 6.12), and of its two."""

PARTS = ("noise", "change")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run, with the place that a default comes from, or else "ours"."""

    imdb: imdb.Config = field(default_factory=imdb.Config)
    """Data, lengths, seeds and the budget."""
    chosen: Path = Path("experiments/private/results/imdb.json")
    """Where the settings are."""
    out: Path = Path("experiments/private/results")
    """Folder that gets imdb_moments.json."""
    cycles: int = 14
    """Of 390 steps each, nearly all of a run."""
    windows: tuple[int, ...] = (1, 7, 28)
    """Over so many phases moments are taken (ours); each goes into those of a run."""
    rmsprop: float = 1.0
    """Step size of RMSProp without privacy, which imdb_sweeps.json has chosen."""
    parts: tuple[str, ...] = ()
    """Only these, beside what the file has of others; none: all."""


class Sums(NamedTuple):
    """Of the gradients of some steps: with noise, without, and of the squares of both."""

    noisy: Params
    clean: Params
    noisy_squares: Params
    clean_squares: Params


def watched(optimiser: optax.GradientTransformation) -> privacy.UpdateRule:
    """DP-SGD with an optimiser, and :class:`Sums` of its gradients beside it."""

    def init(params: Params) -> Sums:
        return Sums(*[tree.zeros_like(params)] * 4)

    def before(state: Sums, iteration: privacy.Iteration) -> tuple[privacy.Query, Sums]:
        clean = iteration.gradient()
        squares = tree.add(state.clean_squares, jax.tree.map(jnp.square, clean))
        return privacy.Query(), state._replace(clean=tree.add(state.clean, clean), clean_squares=squares)

    def after(answer: Params, state: Sums, iteration: privacy.Iteration) -> tuple[Params, Sums]:
        squares = tree.add(state.noisy_squares, jax.tree.map(jnp.square, answer))
        return answer, state._replace(noisy=tree.add(state.noisy, answer), noisy_squares=squares)

    return privacy.UpdateRule("imdb_moments", optimiser, init, before, after)


def states(
    work: eh.local.Work, data: ClientData, times: int, seed: int, fresh: bool = False
) -> Iterator[Any]:
    """The state after each of so many rounds of work; ``fresh``: that of the rule starts anew in each."""
    continued, rows = work.continued, data.capacity
    assert continued is not None

    @jax.jit  # with the reviews as arguments: constants would be copied
    def solve(params: Params, state: Any, key: Key, x: Array, y: Array) -> tuple[Params, Any]:
        given = ClientData(x, y, jnp.int32(0), jnp.int32(rows), jnp.float32(1.0), capacity=rows)
        return continued.solve(params, state, given, key)

    first, rest = jax.random.split(jax.random.key(seed))
    params = work.model.init(first)
    empty = state = continued.init(params)
    for key in jax.random.split(rest, times):
        params, state = solve(params, (state[0], empty[1]) if fresh else state, key, data.x, data.y)
        yield state


def client(config: Config) -> ClientData:
    """All private reviews."""
    x, y = map(jnp.asarray, imdb.texts(config.imdb).data.train.client(0))
    return ClientData(x, y, jnp.int32(0), jnp.int32(len(x)), jnp.float32(1.0), capacity=len(x))


def flat(params: Params) -> NDArray:
    """All numbers in a row, the two of the bias first."""
    return np.asarray(ravel_pytree(params)[0], np.float64)


def rank(first: NDArray, second: NDArray) -> float:
    """Spearman's correlation of two vectors: 1 if they order their coordinates alike, near 0 if chance does."""
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def averaged(seeds: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """A number for each seed, the mean of those of its windows."""
    return {key: [float(np.mean([each[key] for each in seed])) for seed in seeds] for key in seeds[0][0]}


# --- noise in second moments ------------------------------------------------------------------------------------------


def noise(config: Config) -> dict[str, Any]:
    """Over windows of a run of DP-Adam: means of squares, as Adam's moments are, and squares of means, as DP2's are."""
    given, data = imdb.budget(config.imdb, imdb.texts(config.imdb).data.train.rows), client(config)
    chosen = chosen_by(config.chosen, "accuracy", ["DP-Adam"])["DP-Adam"]
    rule = watched(optax.adam(chosen["lr"], eps=1e-8))
    work = oracle_work(MODEL, rule, privacy.Noise(chosen["clip"], **{**given, "steps": PHASE}))
    deviation = given["noise_multiplier"] * chosen["clip"] / config.imdb.batch
    runs = [
        np.array(
            [
                [flat(each) for each in sums]
                for _, sums in states(work, data, 2 * config.cycles, seed, fresh=True)
            ]
        )
        for seed in range(config.imdb.seeds)
    ]
    return {
        str(length * PHASE): {
            name: averaged(
                [[compared(*window) for window in windows(run, length, name, deviation)] for run in runs]
            )
            for name in MOMENTS
        }
        for length in config.windows
    }


MOMENTS = ("mean of squares", "square of mean")


def windows(
    run: NDArray, length: int, name: str, deviation: float
) -> Iterator[tuple[NDArray, NDArray, float]]:
    """Moments with noise and without, and what noise alone has on average, over so many phases at a time."""
    steps = length * PHASE
    for start in range(0, len(run) - length + 1, length):
        noisy, clean, noisy_squares, clean_squares = run[start : start + length].sum(axis=0) / steps
        if name == "mean of squares":
            yield noisy_squares, clean_squares, deviation**2
        else:
            yield noisy**2, clean**2, deviation**2 / steps


def compared(noisy: NDArray, clean: NDArray, alone: float) -> dict[str, float]:
    """How much moments with noise say of those without.

    Returns:
      their rank correlation; the share of the tenth with the largest clean ones that is in the noisy largest tenth;
      clean moments of words, on average, over those of noise; noisy moments of the bias over the median of all.
    """
    many = len(noisy) // 10
    shared = np.intersect1d(np.argsort(noisy)[-many:], np.argsort(clean)[-many:])
    return {
        "rank": rank(noisy, clean),
        "tenth": len(shared) / many,
        "words": float(clean[2:].mean() / alone),
        "bias": float(noisy[:2].mean() / np.median(noisy)),
    }


# --- how fast divisors change -----------------------------------------------------------------------------------------


def change(config: Config) -> dict[str, Any]:
    """Divisors every 390 steps, less the epsilon that all coordinates have in common: how they change."""
    given, data = imdb.budget(config.imdb, imdb.texts(config.imdb).data.train.rows), client(config)
    chosen, given["steps"] = chosen_by(config.chosen, "accuracy"), CYCLE

    def rmsprop(step_size: float) -> optax.GradientTransformation:
        return optax.rmsprop(step_size, decay=0.9, eps=1e-3, eps_in_sqrt=False)

    clean, late = {**given, "noise_multiplier": 0.0}, imdb.phases(chosen["DP2-RMSProp"])
    # No gradient is as long as this clip.
    free = oracle_work(MODEL, watched(rmsprop(config.rmsprop)), privacy.Noise(1e6, **clean))
    noisy = privacy.dp_sgd(
        MODEL, rmsprop(chosen["DP-RMSProp"]["lr"]), clip=chosen["DP-RMSProp"]["clip"], **given
    )
    makes: dict[str, tuple[eh.local.Work, Callable[[Any], Params]]] = {
        "mean of squares, without privacy": (
            free,
            lambda state: tree.scale(1.0 / CYCLE, state[1].clean_squares),
        ),
        "RMSProp, without privacy": (free, lambda state: optax.tree.get(state[0], "nu")),
        "DP-RMSProp": (noisy, lambda state: optax.tree.get(state[0], "nu")),
        "DP2, without noise": (privacy.dp2(MODEL, **late, **clean), lambda state: state[1].moment),
        "DP2": (privacy.dp2(MODEL, **late, **given), lambda state: state[1].moment),
    }
    found = {}
    for name, (work, moment) in makes.items():
        runs = [
            np.array(
                [flat(moment(state)) for state in states(work, data, config.cycles, seed, fresh=work is free)]
            )
            for seed in range(config.imdb.seeds)
        ]
        found[name] = averaged([[drift(*parts(run, name))] for run in runs])
    deviation = given["noise_multiplier"] * late["clips"][0] / config.imdb.batch / PHASE**0.5
    alone = [
        of_noise(config.cycles, flat(MODEL.init(jax.random.key(0))).size, deviation, seed)
        for seed in range(5)
    ]
    found["DP2, noise alone"] = averaged([[drift(*parts(run, "DP2"))] for run in alone])
    return found


def of_noise(cycles: int, size: int, deviation: float, seed: int) -> NDArray:
    """DP2's moments where all gradients are 0."""
    random, v, found = np.random.default_rng(seed), np.zeros(size), []
    for _ in range(cycles):
        v = 0.9 * v + 0.1 * np.square(deviation * random.standard_normal(size))
        found.append(v)
    return np.array(found)


def parts(moments: NDArray, name: str) -> tuple[NDArray, NDArray]:
    """The divisors, and what was new in each: of DP2, which weights the moment before by 0.9, not all of it."""
    if not name.startswith("DP2"):
        return np.sqrt(moments), np.sqrt(moments)
    before = np.concatenate([np.zeros_like(moments[:1]), moments[:-1]])
    # DP2's moments start at 0, which it does not correct for: they would grow without any change of gradients.
    grown = 1.0 - 0.9 ** np.arange(1, len(moments) + 1)[:, None]
    return np.sqrt(moments / grown), np.sqrt(np.maximum(moments - 0.9 * before, 0.0))


def drift(divisors: NDArray, news: NDArray) -> dict[str, float]:
    """How divisors change.

    Returns:
      from one to the next, on average: the sum of absolute changes over the sum of divisors, the rank correlation, and
      the same of what is new in them; from the first to the last: both; of the first, the last and the ratio of the
      bias's to the median of the last.
    """
    pairs, fresh = list(pairwise(divisors)), list(pairwise(news))

    def changed(first: NDArray, second: NDArray) -> float:
        return float(np.abs(second - first).sum() / first.sum())

    first, last = divisors[0], divisors[-1]
    return {
        "change": float(np.mean([changed(*pair) for pair in pairs])),
        "rank": float(np.mean([rank(*pair) for pair in pairs])),
        "rank of news": float(np.mean([rank(*pair) for pair in fresh])),
        "change in all": changed(first, last),
        "rank in all": rank(first, last),
        "first median": float(np.median(first)),
        "last median": float(np.median(last)),
        "bias": float(last[:2].mean() / np.median(last)),
    }


def main(config: Config) -> None:
    """Both parts; saved as soon as one is done."""
    settings = {**asdict(config), "imdb": {key: str(value) for key, value in asdict(config.imdb).items()}}
    path = config.out / "imdb_moments.json"
    found: dict[str, Any] = earlier(path, settings).get("moments", {})
    for part, measure in zip(PARTS, (noise, change), strict=True):
        if part in wanted(PARTS, config.parts):
            found[part] = measure(config)
            save(path, {"moments": found}, settings, digits=4)
            print(part, found[part], flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.private.imdb_moments", description=__doc__))
