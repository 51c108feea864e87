"""The toys of *On Tilted Losses in Machine Learning*: figures 7.1 to 7.8 and 7.15 to 7.19, with their numbers.

Li et al., JMLR 2023 (figures numbered as in the first author's dissertation).  From the root of the repository:

    python -m experiments.term.toys
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import optax
import tyro
from jax import lax
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import evenhand as eh
from evenhand.records import write_text
from evenhand.types import Array, Model, Params
from experiments.fairness import Experiment, Measures, picture, write
from experiments.term import toy_risks

FloatArray = npt.NDArray[Any]
Numbers = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    out: Path = Path("experiments/term/results")
    """Folder that gets toys.json and the pictures."""
    seeds: int = 5
    """Section 7.7: five runs, for the toys with random data."""
    steps: int = 4000
    """Ours: of descent at each tilt of a path; the authors' notebooks have 10,000 to 100,000."""
    stochastic_steps: int = 20_000
    """Ours, in figure 7.17."""
    grid: int = 41
    """Ours: values of each parameter in figures 7.4 and 7.16, whose minima are sought on a grid."""
    alphas: int = 10
    """Ours: tail fractions there."""


# --- descent -----------------------------------------------------------------------------------------------------


def path(
    problem: str,
    x: FloatArray,
    y: FloatArray,
    tilts: Sequence[float],
    start: Params,
    *,
    rate: float,
    steps: int,
) -> list[Params]:
    """Minimisers of the tilted risk, each started from that of the tilt before.

    Args:
      problem: which of MODELS is trained.
      x: features.
      y: labels.
      tilts: in the order in which they are solved; the first is best 0.
      start: where descent on the first starts.
      rate: the step size, which falls with the curvature of positive tilts.
      steps: of descent at each tilt.
    """
    solver = _ramp(problem, tuple(tilts), rate, steps)
    fit: eh.centralized.Fit | None = None
    minimisers = []
    for _ in tilts:
        first = start if fit is None else None
        fit = eh.centralized.fit(solver, x, y, steps=steps, params=first, after=fit)
        minimisers.append(fit.params)
    return minimisers


@cache
def _ramp(problem: str, tilts: tuple[float, ...], rate: float, steps: int) -> eh.centralized.Solver:
    """One solver for a whole path, so that it is compiled once."""
    values = jnp.array(tilts)
    rates = rate / (1.0 + jnp.maximum(values, 0.0))

    def at(step: Array) -> Array:
        return jnp.minimum((step // steps).astype(jnp.int32), len(tilts) - 1)

    return eh.centralized.batch(
        MODELS[problem],
        lambda step: eh.risks.tilted(values[at(step)]),
        # Near the largest losses the curvature is large: there a step must not be longer than this.
        optimiser=optax.chain(
            optax.clip_by_global_norm(1.0), optax.sgd(lambda count: rates[at(jnp.asarray(count))])
        ),
    )


def trajectory(
    solver: eh.centralized.Solver, x: Any, y: Any, params: Params, steps: int, seed: int = 0
) -> Any:
    """The parameters before each step and after the last, stacked."""
    x, y = jnp.asarray(x), jnp.asarray(y)

    def body(state: Any, number: Array) -> tuple[Any, Params]:
        key = jax.random.fold_in(jax.random.key(seed), number)
        return solver.step(state, x, y, number, key), solver.params(state)

    last, before = lax.scan(body, solver.init(params, x, y), jnp.arange(steps, dtype=jnp.int32))
    return jax.tree.map(lambda path, end: jnp.concatenate([path, end[None]]), before, solver.params(last))


def losses_of(problem: str, params: Params, x: Any, y: Any) -> FloatArray:
    """The loss of each example."""
    model = MODELS[problem]
    return np.asarray(model.losses(model.apply(params, jnp.asarray(x)), jnp.asarray(y)))


def _point(full: bool) -> Model:
    """Point estimation: the squared distance, or without its constant, as in the authors' notebook."""

    def losses(outputs: Array, y: Array) -> Array:
        distance = jnp.sum(jnp.square(outputs), axis=1)
        return distance if full else distance - y

    return eh.models.from_functions(lambda key: jnp.zeros(2), lambda params, x: params[None] - x, losses)


def _three() -> Model:
    """Quadratics, one per example: a centre and a constant."""
    return eh.models.from_functions(
        lambda key: jnp.zeros(()), lambda params, x: params - x, lambda out, y: jnp.square(out) + y
    )


def _gce() -> Model:
    """Logistic regression with the generalised cross-entropy, q = 0.7."""

    def losses(outputs: Array, y: Array) -> Array:
        right = jnp.take_along_axis(jax.nn.softmax(outputs), y[:, None], axis=1)[:, 0]
        return (1.0 - right**0.7) / 0.7

    plain = eh.models.softmax_regression(2, classes=2)
    return eh.models.from_functions(plain.init, plain.apply, losses)


MODELS: dict[str, Model] = {
    "point": _point(full=True),
    "point without constant": _point(full=False),
    "regression": eh.models.linear_regression(1),
    "logistic": eh.models.softmax_regression(2, classes=2),
    "gce": _gce(),
    "three": _three(),
}

THREE = (np.array([-0.2, 0.2, 1.2]), np.array([0.0, 0.1, 0.0]))
"""Centres and constants."""


# --- figure 7.1: what a tilt does --------------------------------------------------------------------------------

_FALLING, _RISING = (-0.01, -0.1, -0.3, -1.0, -2.0, -5.0, -10.0), (0.01, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 50.0)


def points(seed: int) -> FloatArray:
    """80 points around (1, 1), the first 20 of which are overwritten by outliers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(1.0, 0.3, (80, 2))
    x[:20] = rng.normal(-0.6, 1.0, (20, 2))
    return x.astype(np.float32)


def line(seed: int) -> tuple[FloatArray, FloatArray]:
    """290 points along y = -x + 0.2, then 10 outliers to their left."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0.0, 0.5, 290)
    y = -x + 0.2 + rng.normal(0.0, 0.1, 290)
    x, y = np.append(x, rng.normal(-2.0, 0.5, 10)), np.append(y, rng.normal(0.0, 0.5, 10))
    return x[:, None].astype(np.float32), y.astype(np.float32)


def classes(seed: int) -> tuple[FloatArray, FloatArray]:
    """Two unequal classes, chosen by their margin, and one example of the rare class far on the wrong side."""
    rng = np.random.default_rng(seed)
    w = rng.random(3)
    x = np.concatenate([rng.normal((3.0, 1.0), 1.0, (2000, 2)), rng.normal((-5.0, -1.0), 2.0, (2000, 2))])
    margin = x @ w[:2] + w[2]
    wanted = [((0.2, 1.5), 3, 1), ((-0.5, -0.2), 5, 0), ((1.5, np.inf), 3, 1), ((-np.inf, -0.5), 50, 0)]
    parts = [(x[(low < margin) & (margin < high)][:most], label) for (low, high), most, label in wanted]
    parts.append((np.array([[-8.0, 0.0]]), 1))
    y = np.concatenate([np.full(len(part), label) for part, label in parts])
    return np.concatenate([part for part, _ in parts]).astype(np.float32), y.astype(np.int32)


def both_ways(problem: str, x: Any, y: Any, start: Params, rate: float, steps: int) -> dict[float, Params]:
    """Minimisers at tilts of both signs, each path from the one at 0."""
    down = path(problem, x, y, (0.0, *_FALLING), start, rate=rate, steps=steps)
    up = path(problem, x, y, (0.0, *_RISING), down[0], rate=rate, steps=steps)
    return dict(zip((0.0, *_FALLING, *_RISING), (*down, *up[1:]), strict=True))


def figure_1(config: Config) -> Numbers:
    """Point estimation, linear regression and logistic regression, from min-loss to max-loss."""
    per_seed = [_toys(config, seed) for seed in range(config.seeds)]
    numbers: dict[str, Any] = {"seeds": [measures for measures, _ in per_seed]}
    point, linear, logistic = per_seed[0][1]

    def draw(axes: Sequence[Axes]) -> None:
        x, solutions = points(0), np.stack([np.asarray(point[t]) for t in sorted(point)])
        axes[0].scatter(*x.T, s=8, c=np.where(np.arange(80) < 20, "tab:brown", "tab:green"))
        axes[0].scatter(
            *solutions.T, s=14, c=range(len(point)), cmap="coolwarm", edgecolors="k", linewidths=0.4
        )
        axes[0].set_title("(a) point estimation")
        x, y = line(0)
        axes[1].scatter(x[:, 0], y, s=4, c=np.where(np.arange(300) < 290, "tab:green", "tab:brown"))
        _lines(
            axes[1],
            x[:, 0],
            {t: (linear[t]["kernel"][0, 0], linear[t]["bias"][0]) for t in (-2.0, 0.0, 50.0)},
        )
        axes[1].set_title("(b) linear regression")
        x, y = classes(0)
        axes[2].scatter(*x.T, s=8, c=np.where(y == 1, "tab:brown", "tab:green"))
        _lines(axes[2], x[:, 0], {t: _boundary(logistic[t]) for t in (-2.0, 0.0, 50.0)})
        axes[2].set(title="(c) logistic regression", ylim=(x[:, 1].min() - 1, x[:, 1].max() + 1))

    return numbers | {"picture": str(_figure(config, "toys_1", 3, draw))}


def _toys(config: Config, seed: int) -> tuple[Measures, tuple[dict[float, Params], ...]]:
    x, zero = points(seed), np.zeros(80, np.float32)
    point = both_ways("point", x, zero, jnp.asarray(x.mean(axis=0)), 0.02, config.steps)
    constant = np.square(x).sum(axis=1)
    dropped = path(
        "point without constant", x, constant, (0.0, *_FALLING), point[0.0], rate=0.02, steps=config.steps
    )
    centre = x[20:].mean(axis=0)
    measures = {
        f"(a) distance to the inliers' mean, t={t:g}": _gap(point[t], centre) for t in (-2.0, 0.0, 10.0)
    }
    measures["(a) the same without the constant, t=-2"] = _gap(dropped[1 + _FALLING.index(-2.0)], centre)
    measures |= {
        f"(a) largest loss, t={t:g}": float(losses_of("point", point[t], x, zero).max()) for t in (0.0, 50.0)
    }
    features, targets = line(seed)
    linear = both_ways("regression", features, targets, _zeros(1, 1), 0.05, config.steps)
    for t in (-2.0, 0.0, 50.0):
        losses = losses_of("regression", linear[t], features, targets)
        measures[f"(b) slope, t={t:g}"] = float(linear[t]["kernel"][0, 0])
        measures[f"(b) largest loss, t={t:g}"] = float(losses.max())
    features, labels = classes(seed)
    logistic = both_ways("logistic", features, labels, _zeros(2, 2), 0.1, config.steps)
    for t in (-2.0, 0.0, 50.0):
        losses = losses_of("logistic", logistic[t], features, labels)
        measures[f"(c) largest loss, t={t:g}"] = float(losses.max())
        measures[f"(c) smallest loss, t={t:g}"] = float(losses.min())
    return measures, (point, linear, logistic)


# --- figures 7.2 and 7.5: three functions ------------------------------------------------------------------------

_TILTS_2 = (0.1, 1.0, 5.0, 20.0, 100.0)
_MINUS_2 = (-0.1, -0.5, -1.0, -2.0, -5.0, -20.0, -100.0)
_TILTS_5 = (-20.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0, 100.0, 500.0)
_RATES_5 = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Ours: the fastest is taken for each tilt.  The authors' are for a gradient with another third centre."""


def figure_2(config: Config) -> Numbers:
    """The tilted losses of three quadratics, and their minimisers along the path from t = 0."""
    c, b = THREE
    with jax.enable_x64(True):
        up = path("three", c, b, (0.0, *_TILTS_2), jnp.zeros(()), rate=0.2, steps=config.steps)
        down = path("three", c, b, (0.0, *_MINUS_2), up[0], rate=0.2, steps=config.steps)
        solved = dict(zip((0.0, *_TILTS_2, *_MINUS_2), (*up, *down[1:]), strict=True))
        numbers = {
            f"t={t:g}": {
                "minimiser": float(theta),
                "least": float(eh.risks.tilted(t).value(jnp.square(theta - c) + b)),
            }
            for t, theta in sorted(solved.items())
        }

    def draw(axes: Sequence[Axes]) -> None:
        theta = np.linspace(-0.8, 1.8, 200)
        losses = np.square(theta[:, None] - c) + b
        for place, t in enumerate((-np.inf, -20.0, -2.0, 0.0, 5.0, np.inf)):
            values = jax.vmap(eh.risks.tilted(t).value)(jnp.asarray(losses))
            axes[0].plot(theta, values, color=mpl.colormaps["coolwarm"](place / 5), label=f"t={t:g}")
        axes[0].set(xlabel="parameter", ylabel="tilted loss")
        axes[0].legend()

    return numbers | {"picture": str(_figure(config, "toys_2", 1, draw))}


def figure_5(config: Config) -> Numbers:
    """After how many steps descent on the three quadratics stays within 0.001 of its end, at the fastest rate."""
    falls: dict[float, FloatArray] = {}
    numbers: dict[str, dict[str, float]] = {}
    for t in _TILTS_5:
        best = min(((_settled(fall), rate, fall) for rate, fall in _falls(t)), key=lambda entry: entry[:2])
        numbers[f"t={t:g}"] = {"steps": best[0], "rate": best[1]}
        falls[t] = best[2]

    def draw(axes: Sequence[Axes]) -> None:
        for place, t in enumerate(sorted(falls)):
            color = mpl.colormaps["coolwarm"](place / (len(falls) - 1))
            axes[0].semilogy(falls[t][:80] + 1e-12, color=color, label=f"t={t:g}")
        axes[0].set(xlabel="steps", ylabel="tilted loss less its last", ylim=(1e-8, None))
        axes[0].legend(ncols=2)

    return numbers | {"picture": str(_figure(config, "toys_5", 1, draw))}


def _falls(t: float) -> list[tuple[float, FloatArray]]:
    """For each rate, the tilted loss from 0 less the least that any rate reaches."""
    with jax.enable_x64(True):
        c, b = (jnp.asarray(part) for part in THREE)

        @jax.jit
        def run(rate: Array) -> Array:
            solver = eh.centralized.batch(MODELS["three"], eh.risks.tilted(t), optimiser=optax.sgd(rate))
            thetas = trajectory(solver, c, b, jnp.zeros(()), 2000)
            return jax.vmap(eh.risks.tilted(t).value)(jnp.square(thetas[:, None] - c[None]) + b[None])

        risks = [np.asarray(run(jnp.asarray(rate))) for rate in _RATES_5]
    least = min(float(risk.min()) for risk in risks)
    return [(rate, risk - least) for rate, risk in zip(_RATES_5, risks, strict=True)]


def _settled(fall: FloatArray) -> int:
    return int(np.flatnonzero(np.append(True, fall > 1e-3))[-1])


# --- figures 7.3 and 7.18: weights -------------------------------------------------------------------------------


def figure_3(config: Config) -> Numbers:
    """The weight that outliers have at the minimiser: of linear regression, then of logistic regression."""
    x, y = line(0)
    solved = both_ways("regression", x, y, _zeros(1, 1), 0.05, config.steps)
    weights = {t: _weights("regression", solved[t], x, y, t) for t in (-2.0, 0.0, 2.0)}
    features, labels = classes(0)
    others = both_ways("logistic", features, labels, _zeros(2, 2), 0.1, config.steps)
    shares = {t: _weights("logistic", others[t], features, labels, t) for t in (-10.0, 0.0, 50.0)}
    numbers = {f"outliers' weight, t={t:g}": float(w[290:].sum()) for t, w in weights.items()}
    numbers |= {f"rare class's weight, t={t:g}": float(w[labels == 1].sum()) for t, w in shares.items()}

    def draw(axes: Sequence[Axes]) -> None:
        for axis, (t, w) in zip(axes, [*weights.items(), *shares.items()], strict=True):
            data = (x[:, 0], y) if len(w) == len(y) else features.T
            is_odd = np.arange(len(w)) >= 290 if len(w) == len(y) else labels == 1
            axis.scatter(
                *data, s=2 + 120 * w / w.max() * min(1.0, 3 * w.max() * 10), c=np.where(is_odd, "C5", "C2")
            )
            axis.set_title(f"t={t:g}")

    return numbers | {"picture": str(_figure(config, "toys_3", 6, draw))}


def _weights(problem: str, params: Params, x: Any, y: Any, t: float) -> FloatArray:
    return np.asarray(eh.risks.tilted(t).weights(jnp.asarray(losses_of(problem, params, x, y))))


# --- figures 7.6 to 7.8: regression with outliers ----------------------------------------------------------------

_SHARES = (0.0, 0.2, 0.4, 0.8)
_RAMP = (0.0, -0.02, -0.1, -0.5, -2.0)


def outliers(kind: str, share: float, seed: int) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
    """200 points along y = x, a share of which is replaced; settings ours, as the figures give none.

    Args:
      kind: ``"elsewhere"`` (a cloud with another mean), ``"same mean"`` (a cloud with the mean of the clean points),
        ``"narrow"`` (a cloud with another mean, half as wide), or ``"line"`` (points along another line).
      share: of the points.
      seed: of all draws.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(0.0, 1.0, 200)
    y = x + rng.normal(0.0, 0.1, 200)
    is_noise = np.arange(200) < round(200 * share)
    cloud = rng.normal(0.0, 1.5 if kind == "narrow" else 3.0, (200, 2))
    if kind in ("elsewhere", "narrow"):
        cloud += (1.0, -4.0)
    if kind == "line":
        cloud = np.stack([x, -2.0 * x + 1.0 + rng.normal(0.0, 0.1, 200)], axis=1)
    x, y = np.where(is_noise, cloud[:, 0], x), np.where(is_noise, cloud[:, 1], y)
    return x[:, None].astype(np.float32), y.astype(np.float32), is_noise


def figures_6_to_8(config: Config) -> Numbers:
    """The error on the line that clean points come from, for ERM and for tilts of both signs."""
    numbers: dict[str, list[Measures]] = {}
    drawn: dict[tuple[str, float], dict[str, tuple[float, float]]] = {}
    for kind in ("elsewhere", "same mean", "line", "narrow"):
        for share in _SHARES:
            for seed in range(config.seeds):
                x, y, _ = outliers(kind, share, seed)
                lines = _robust_lines(config, x, y)
                # The clean x are standard normal: this is the root mean squared distance of the two lines on them.
                error = {name: float(np.hypot(slope - 1.0, bias)) for name, (slope, bias) in lines.items()}
                numbers.setdefault(f"{kind}, {100 * share:.0f} %", []).append(error)
                drawn.setdefault((kind, share), lines)

    def draw(axes: Sequence[Axes]) -> None:
        for axis, ((kind, share), lines) in zip(axes, drawn.items(), strict=True):
            x, y, is_noise = outliers(kind, share, 0)
            axis.scatter(x[:, 0], y, s=2, c=np.where(is_noise, "tab:brown", "tab:green"))
            _lines(axis, x[:, 0], lines)
            axis.set(title=f"{kind}, {100 * share:.0f} %", ylim=(-10, 8))

    return numbers | {"picture": str(_figure(config, "toys_6", 16, draw))}


def _robust_lines(config: Config, x: FloatArray, y: FloatArray) -> dict[str, tuple[float, float]]:
    """Slope and intercept of four solutions; that of t = -2 from 0 at once, as in table 7.2, or along a ramp."""
    zero = _zeros(1, 1)
    ramped = path("regression", x, y, _RAMP, zero, rate=0.05, steps=config.steps)
    solved = {
        "t=-2": path("regression", x, y, (-2.0,), zero, rate=0.05, steps=config.steps)[0],
        "t=0": ramped[0],
        "t=2": path("regression", x, y, (0.0, 0.1, 2.0), zero, rate=0.02, steps=config.steps)[-1],
        "t=-2, ramped": ramped[-1],
    }
    return {
        name: (float(params["kernel"][0, 0]), float(params["bias"][0])) for name, params in solved.items()
    }


# --- figures 7.4, 7.15 and 7.16: bounds on quantiles -------------------------------------------------------------


def figures_4_and_16(config: Config) -> Numbers:
    """The least value of each risk, and the value at risk at its minimiser, for two problems."""
    alphas = np.linspace(0.05, 0.95, config.alphas)
    slopes, biases = np.linspace(-1.5, 0.5, config.grid), np.linspace(-0.5, 1.0, config.grid)
    x, y = line(0)
    means = np.linspace(-2.0, 2.0, 10 * config.grid)
    problems = {
        "mean": np.square(points(1)[None, :, 0] - means[:, None]),
        "regression": np.square(
            slopes[:, None, None] * x[None, None, :, 0] + biases[None, :, None] - y[None, None]
        ).reshape(-1, len(y)),
    }
    solved = {name: toy_risks.curves(losses, alphas) for name, losses in problems.items()}
    numbers: dict[str, Any] = {"alphas": alphas.tolist()}
    for name, curves in solved.items():
        numbers[name] = {
            "least": {risk: values.tolist() for risk, values in curves.least.items()},
            "quantile": {risk: values.tolist() for risk, values in curves.quantile.items()},
        }

    def draw(axes: Sequence[Axes]) -> None:
        for place, (name, curves) in enumerate(solved.items()):
            for axis, part in zip(axes[2 * place :], (curves.least, curves.quantile), strict=False):
                for risk, values in part.items():
                    axis.semilogy(alphas, values, marker=".", label=risk)
                axis.set(xlabel="tail fraction", ylim=(1e-4, None))
                axis.legend(fontsize=5.5)
            axes[2 * place].set_title(f"7.4, {name}: least value")
            axes[2 * place + 1].set_title(f"7.16, {name}: VaR at the minimiser")

    return numbers | {"picture": str(_figure(config, "toys_4", 4, draw))}


_GAMMAS = (0.1, 0.25, 0.5, 1.0, 1.5)


def figure_15(config: Config) -> Numbers:
    """Chernoff's bound with tilts of either sign, against the classical one and the tail itself."""
    variables = {"uniform on [0, 2]": toy_risks.uniform(), "half normal": toy_risks.half_normal()}
    numbers = {
        name: {f"{gamma:g}": toy_risks.chernoff(variable, gamma) for gamma in _GAMMAS}
        for name, variable in variables.items()
    }

    def draw(axes: Sequence[Axes]) -> None:
        gammas = np.linspace(0.05, 1.95, 30)
        for axis, (name, variable) in zip(axes, variables.items(), strict=True):
            bounds = [toy_risks.chernoff(variable, gamma) for gamma in gammas]
            for bound in bounds[0]:
                axis.plot(gammas, [values[bound] for values in bounds], label=bound)
            axis.set(title=name, xlabel="threshold")
            axis.legend()

    return numbers | {"picture": str(_figure(config, "toys_15", 2, draw))}


# --- figure 7.17: one batch or two -------------------------------------------------------------------------------


def figure_17(config: Config) -> Numbers:
    """The gap of stochastic TERM on point estimation, one example a batch, with one batch or two independent ones."""
    gaps = {
        f"t={t:g}, share {rate:.2g}, {name}": _gaps(config, t, rate, two)
        for t in (-0.5, 0.1)
        for rate in (1.0 - 1.0 / (2.0 * np.e), 0.1)
        for name, two in (("one batch", False), ("two batches", True))
    }
    numbers = {
        name: {"first": float(runs[0][0]), "last": [float(run[-20:].mean()) for run in runs]}
        for name, runs in gaps.items()
    }

    def draw(axes: Sequence[Axes]) -> None:
        count = np.arange(len(next(iter(gaps.values()))[0])) * (config.stochastic_steps // 200)
        for name, runs in gaps.items():
            axes[0].semilogy(count, np.mean(runs, axis=0), label=name)
        axes[0].set(xlabel="steps", ylabel="gap of the tilted risk")
        axes[0].legend(fontsize=5.5)

    return numbers | {"picture": str(_figure(config, "toys_17", 1, draw))}


def _gaps(config: Config, t: float, rate: float, two_batches: bool) -> list[FloatArray]:
    """The tilted risk less its minimum, at 200 steps of each seed; all start at 0."""
    x, zero, steps = points(1), np.zeros(80, np.float32), config.stochastic_steps
    *_, end = path(
        "point", x, zero, (0.0, t / 10, t), jnp.asarray(x.mean(axis=0)), rate=0.05, steps=config.steps
    )
    solver = eh.centralized.stochastic(
        MODELS["point"],
        t=t,
        rate=rate,
        batch_size=1,
        optimiser=optax.sgd(lambda count: 0.01 / (1 + count / 1000)),
        two_batches=two_batches,
    )
    value = jax.vmap(lambda theta: eh.risks.tilted(t).value(jnp.sum(jnp.square(theta[None] - x), axis=1)))
    run = jax.jit(lambda seed: value(trajectory(solver, x, zero, jnp.zeros(2), steps, seed)[:: steps // 200]))
    return [np.asarray(run(seed)) - float(value(end[None])[0]) for seed in range(config.seeds)]


# --- figure 7.19: classification with noisy labels ---------------------------------------------------------------


def noisy_classes(share: float, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """400 points of two classes, a share of whose labels is drawn again; also the right labels.  Settings ours."""
    rng = np.random.default_rng(seed)
    right = np.repeat([0, 1], 200)
    x = rng.normal(np.where(right[:, None] == 1, (1.5, 1.0), (-1.5, -1.0)), 0.8)
    is_noise = rng.random(400) < share
    y = np.where(is_noise, rng.integers(2, size=400), right)
    return x.astype(np.float32), y.astype(np.int32), right.astype(np.int32)


def figure_19(config: Config) -> Numbers:
    """Accuracy on the right labels, for TERM, GCE and ERM."""
    numbers: dict[str, list[Measures]] = {}
    drawn: dict[float, dict[str, tuple[float, float]]] = {}
    for share in (0.2, 0.4, 0.8):
        for seed in range(config.seeds):
            x, y, right = noisy_classes(share, seed)
            tilted = path("logistic", x, y, _RAMP, _zeros(2, 2), rate=0.2, steps=config.steps)
            solved = {"ERM": tilted[0], "TERM": tilted[-1]}
            solved["GCE"] = path("gce", x, y, (0.0,), tilted[0], rate=0.5, steps=config.steps)[0]
            scores = {
                name: float(
                    np.mean(np.argmax(MODELS["logistic"].apply(params, jnp.asarray(x)), axis=1) == right)
                )
                for name, params in solved.items()
            }
            numbers.setdefault(f"{100 * share:.0f} %", []).append(scores)
            drawn.setdefault(share, {name: _boundary(params) for name, params in solved.items()})

    def draw(axes: Sequence[Axes]) -> None:
        for axis, (share, lines) in zip(axes, drawn.items(), strict=True):
            x, y, _ = noisy_classes(share, 0)
            axis.scatter(*x.T, s=3, c=np.where(y == 1, "tab:brown", "tab:green"))
            _lines(axis, x[:, 0], lines)
            axis.set(title=f"{100 * share:.0f} % noise", ylim=(-4, 4))

    return numbers | {"picture": str(_figure(config, "toys_19", 3, draw))}


# --- shared by the figures ---------------------------------------------------------------------------------------


def _zeros(features: int, outputs: int) -> Params:
    return {"kernel": jnp.zeros((features, outputs)), "bias": jnp.zeros(outputs)}


def _gap(params: Params, centre: FloatArray) -> float:
    return float(np.linalg.norm(np.asarray(params) - centre))


def _boundary(params: Params) -> tuple[float, float]:
    """Slope and intercept of the line where both classes are as probable."""
    kernel, bias = (np.asarray(params[name], np.float64) for name in ("kernel", "bias"))
    w, b = kernel[:, 1] - kernel[:, 0], bias[1] - bias[0]
    return float(-w[0] / w[1]), float(-b / w[1])


def _lines(axis: Axes, x: FloatArray, lines: Mapping[Any, tuple[Any, Any]]) -> None:
    ends = np.array([x.min(), x.max()])
    for color, (name, (slope, bias)) in zip(
        ("tab:blue", "tab:purple", "tab:red", "tab:cyan"), lines.items(), strict=False
    ):
        label = name if isinstance(name, str) else f"t={name:g}"
        axis.plot(ends, float(slope) * ends + float(bias), color=color, label=label)
    axis.legend(fontsize=5.5)


def _figure(config: Config, name: str, panels: int, draw: Callable[[Sequence[Axes]], None]) -> Path:
    columns = min(panels, 4 if panels != 6 else 3)
    rows = -(-panels // columns)
    width = 4.2 if panels == 1 else 2.6 * columns
    with mpl.rc_context({"font.size": 7, "lines.linewidth": 1.2}):
        figure = Figure(figsize=(width, 2.5 * rows), layout="constrained")
        draw(list(figure.subplots(rows, columns, squeeze=False).ravel()))
        return picture(figure, config.out / f"{name}.png")


FIGURES: dict[str, Callable[[Config], Numbers]] = {
    "7.1": figure_1,
    "7.2": figure_2,
    "7.3 and 7.18": figure_3,
    "7.4 and 7.16": figures_4_and_16,
    "7.5": figure_5,
    "7.6 to 7.8": figures_6_to_8,
    "7.15": figure_15,
    "7.17": figure_17,
    "7.19": figure_19,
}


def main(config: Config) -> None:
    """All figures, and their numbers in one file."""
    config.out.mkdir(parents=True, exist_ok=True)
    numbers = {}
    folder = config.under("toys")
    for name, make in FIGURES.items():
        kept = folder and folder / f"{name}.json"
        if kept is not None and kept.exists():
            numbers[name] = json.loads(kept.read_text())
            continue
        numbers[name] = make(config)
        print(f"figure {name}: {numbers[name]}", flush=True)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, json.dumps(numbers[name]))
    command = shlex.join(["python", "-m", "experiments.term.toys", *sys.argv[1:]])
    write(config.out / "toys.json", {"command": command, "figures": numbers}, asdict(config))


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.toys", description=__doc__))
