"""What TERM costs beside ERM: the steps of descent and the time of a step.

Section 7.5 of Li, Beirami, Sanjabi, Smith, *On Tilted Losses in Machine Learning*, JMLR 2023 (numbered as in the first
author's dissertation).  From the root of the repository, with ``term/hiv1_*Data.txt`` and ``term/qsar.npz`` in
``--data-dir``:

    python -m experiments.term.cost --data-dir DIR
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import lax

import evenhand as eh
from evenhand.types import Array, Model, Risk
from experiments.fairness import Measures
from experiments.term.table import TermExperiment, kept, run

RESIDUES = "ARNDCQEGHILKMFPSTWYV"
"""Order of the one-hot columns of each of an octamer's eight places, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class Config(TermExperiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    gap: float = 1e-3
    """Ours: a run ends when so small a share of the fall from the start to its own optimum is left."""
    qsar_gap: float = 0.1
    """Ours, for the sake of time: the same on QSAR, where ERM takes 10,000 steps to a hundredth."""
    wide_gap: float = 0.1
    """Ours: a second gap, for all three problems."""
    limit: int = 6000
    """Ours: most steps of a run."""
    hiv_tilts: tuple[float, ...] = (0.1, 1.0, 5.0, 50.0)
    """Section 7.7, without some between: the tilt over classes."""
    qsar_tilts: tuple[float, ...] = (-0.5, -1.0, -2.0)
    """Section 7.7 has -2; the others are ours."""
    toy_tilts: tuple[float, ...] = (-20.0, -5.0, -1.0, 1.0, 5.0, 20.0, 100.0)
    """Figure 7.5, without 500 and the smallest."""
    noise: float = 0.4
    """Table 7.2: the share of targets that are noise."""
    pairs: int = 25
    """Ours: timings of each method, by turns."""
    timed_steps: tuple[int, int, int] = (50, 50, 20_000)
    """Ours: steps in a timing on HIV-1, QSAR and the toy."""
    newton_steps: int = 300
    """Ours: steps of L-BFGS to the optimum."""


class Problem(NamedTuple):
    """A model, the risk of a tilt given the labels, the gap, the step sizes to try, and ``seed -> (x, y)``."""

    model: Model
    risk: Callable[[Array | float, Array], Risk]
    gap: float
    rates: np.ndarray
    rows: Callable[[int], tuple[Array, Array]]


# --- the three problems ----------------------------------------------------------------------------------------


@cache
def _octamers(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    paths = sorted((folder / "term").glob("hiv1_*Data.txt"))
    if not paths:
        raise SystemExit(f"There are no {folder}/term/hiv1_*Data.txt: say with --data-dir where they are.")
    lines = [line.split(",") for path in paths for line in path.read_text().split()]
    places = np.array([[RESIDUES.index(residue) for residue in octamer] for octamer, _ in lines])
    x = np.eye(len(RESIDUES), dtype=np.float32)[places].reshape(len(lines), -1)
    return x, np.array([int(label) > 0 for _, label in lines], np.int32)


def _linear(features: int, losses: Callable[[Array, Array], Array]) -> Model:
    """A linear model without an intercept, from 0."""
    return eh.models.from_functions(lambda key: jnp.zeros(features), lambda params, x: x @ params, losses)


def hiv(config: Config) -> Problem:
    """HIV-1: logistic regression, and a tilt over the two classes of their mean losses."""

    def rows(seed: int) -> tuple[Array, Array]:
        x, y = _octamers(config.data_dir)
        some = np.random.default_rng(seed).permutation(len(y))[: int(0.8 * len(y))]
        return jnp.asarray(x[some]), jnp.asarray(y[some])

    def risk(t: Array | float, y: Array) -> Risk:
        return eh.risks.hierarchical(eh.risks.tilted(t), eh.risks.mean(), y, 2)

    return Problem(
        _linear(8 * len(RESIDUES), eh.models.logistic), risk, config.gap, _halved(512.0, 0.5), rows
    )


def qsar(config: Config) -> Problem:
    """Drug discovery: linear regression with noise in the targets, and a tilt over rows."""
    path = config.data_dir / "term" / "qsar.npz"
    if not path.exists():
        raise SystemExit(f"There is no {path}: say with --data-dir where the folder term is.")
    with np.load(path) as file:
        x = np.concatenate([file["X_train"], file["X_test"]]).astype(np.float32)
        y = np.concatenate([file["y_train"], file["y_test"]])[:, 0].astype(np.float32)
    x = np.column_stack([x, np.ones(len(x), np.float32)])

    def rows(seed: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        some = rng.permutation(len(y))[: int(0.8 * len(y))]
        noisy, targets = int(config.noise * len(some)), y[some]
        targets[:noisy] = rng.normal(5.0, 5.0, noisy)
        return jnp.asarray(x[some]), jnp.asarray(targets)

    return Problem(
        _linear(x.shape[1], eh.models.squared_error),
        lambda t, y: eh.risks.tilted(t),
        config.qsar_gap,
        _halved(0.5, 0.002),
        rows,
    )


def toy(config: Config) -> Problem:
    """Figure 7.5: three parabolas of one number, from 0."""
    model = eh.models.from_functions(
        lambda key: jnp.zeros(()),
        lambda params, x: params - x,
        lambda outputs, y: jnp.square(outputs) + y,
    )
    rows = jnp.array([-0.2, 0.2, 1.2]), jnp.array([0.0, 0.1, 0.0])
    return Problem(model, lambda t, y: eh.risks.tilted(t), config.gap, _halved(2.0, 0.002), lambda seed: rows)


def _halved(largest: float, least: float) -> np.ndarray:
    """Step sizes, each the last one divided by the root of 2."""
    return largest * 2.0 ** (-0.5 * np.arange(1 + int(2 * np.log2(largest / least))))


PROBLEMS = {"HIV-1": hiv, "QSAR": qsar, "toy": toy}


# --- steps -----------------------------------------------------------------------------------------------------


class Programs(NamedTuple):
    """``risk(t, params, x, y)``; ``optimum(t, x, y)``; ``count(t, step size, risk to reach, most steps, x, y)``."""

    risk: Callable[..., Array]
    optimum: Callable[..., Array]
    count: Callable[..., Array]


def programs(config: Config, problem: Problem) -> Programs:
    """Compiled once for all tilts, step sizes and rows of a problem."""
    model = problem.model
    start, key = model.init(jax.random.key(0)), jax.random.key(0)

    def risk(t: Array, params: Array, x: Array, y: Array) -> Array:
        return problem.risk(t, y).value(model.losses(model.apply(params, x), y))

    def optimum(t: Array, x: Array, y: Array) -> Array:
        solver = eh.centralized.quasi_newton(model, lambda params, x, y: problem.risk(t, y))
        state = lax.fori_loop(
            0,
            config.newton_steps,
            lambda i, state: solver.step(state, x, y, i, key),
            solver.init(start, x, y),
        )
        return risk(t, solver.params(state), x, y)

    def count(t: Array, rate: Array, target: Array, limit: Array, x: Array, y: Array) -> Array:
        solver = eh.centralized.batch(model, problem.risk(t, y), optimiser=optax.sgd(rate))
        first = risk(t, start, x, y)

        def goes_on(carry: tuple[Array, Any, Array]) -> Array:
            number, _, value = carry
            # Descent that is far above its start diverges.
            return (value > target) & (number < limit) & (value < 10.0 * (1.0 + first))

        def body(carry: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
            number, state, _ = carry
            state = solver.step(state, x, y, number, key)
            return number + 1, state, risk(t, solver.params(state), x, y)

        number, _, value = lax.while_loop(goes_on, body, (jnp.int32(0), solver.init(start, x, y), first))
        return jnp.where(value <= target, number, limit)

    return Programs(jax.jit(risk), jax.jit(optimum), jax.jit(count))


def fastest(
    config: Config, problem: Problem, compiled: Programs, t: float, seed: int, gap: float
) -> Measures:
    """The fewest steps to the gap over the step sizes, the best step size, and the optimum."""
    x, y = problem.rows(seed)
    tilt = jnp.float32(t)
    first = float(compiled.risk(tilt, problem.model.init(jax.random.key(0)), x, y))
    least = float(compiled.optimum(tilt, x, y))
    target = jnp.float32(least + gap * (first - least))
    best, best_rate = config.limit, 0.0
    for rate in problem.rates:
        # Only fewer steps than the best so far are of interest.
        steps = int(compiled.count(tilt, jnp.float32(rate), target, jnp.int32(best), x, y))
        if steps < best:
            best, best_rate = steps, float(rate)
    return {"steps": best, "step size": best_rate, "risk": least}


@cache
def _prepared(config: Config, name: str) -> tuple[Problem, Programs]:
    problem = PROBLEMS[name](config)
    return problem, programs(config, problem)


def steps_of(config: Config, name: str, t: float, seed: int, *, wide: bool) -> float:
    """The steps of a tilt to the gap of its problem, or to the wide one."""
    problem, compiled = _prepared(config, name)
    gap = config.wide_gap if wide else problem.gap
    return kept(
        config,
        "cost",
        f"{name}, tilt {t:g}, rows {seed}, gap {gap:g}",
        lambda: fastest(config, problem, compiled, t, seed, gap),
    )["steps"]


def beside(config: Config, name: str, t: float, seed: int) -> Measures:
    """The steps of TERM and of ERM on the same rows, each at its fastest step size."""
    erm, term = (steps_of(config, name, tilt, seed, wide=False) for tilt in (0.0, t))
    wide = [steps_of(config, name, tilt, seed, wide=True) for tilt in (0.0, t)]
    return {"steps of ERM": erm, "steps": term, "ratio": term / erm, "wide ratio": wide[1] / wide[0]}


# --- time ------------------------------------------------------------------------------------------------------


def seconds(config: Config, name: str, t: float, steps: int) -> Measures:
    """Median microseconds of a step of either method, timed by turns in one process, and their ratio."""
    problem = PROBLEMS[name](config)
    x, y = problem.rows(0)
    risks = {"ERM": eh.risks.mean(), "TERM": problem.risk(t, y)}
    fits, times = {}, {method: [] for method in risks}
    for method, risk in risks.items():
        solver = eh.centralized.batch(problem.model, risk, optimiser=optax.sgd(1e-3))
        advance = partial(eh.centralized.fit, solver, x, y, steps=steps)
        fits[method] = (advance, advance())
    for _ in range(config.pairs):
        for method, (advance, before) in fits.items():
            begin = time.perf_counter()
            jax.block_until_ready(advance(after=before).params)
            times[method].append((time.perf_counter() - begin) / steps)
    medians = {f"microseconds, {method}": 1e6 * float(np.median(times[method])) for method in risks}
    return {**medians, "ratio": medians["microseconds, TERM"] / medians["microseconds, ERM"]}


def main(config: Config) -> None:
    """Steps for each problem and tilt, over seeds; then the time of a step on each problem."""
    tilts = {"HIV-1": config.hiv_tilts, "QSAR": config.qsar_tilts, "toy": config.toy_tilts}
    steps = dict(zip(tilts, config.timed_steps, strict=True))
    run(
        config,
        "cost",
        "Steps of descent",
        {f"{name}, t={t:g}": partial(beside, config, name, t) for name in PROBLEMS for t in tilts[name]},
        settings=asdict(config),
        more={
            "seconds": {
                name: kept(
                    config,
                    "cost",
                    f"{name}, seconds",
                    partial(seconds, config, name, tilts[name][-1], steps[name]),
                )
                for name in PROBLEMS
            }
        },
    )


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.cost", description=__doc__))
