"""Toys about bounds on quantiles: figures 7.4, 7.15 and 7.16 of *On Tilted Losses in Machine Learning*."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import evenhand as eh
from experiments.fairness import Measures

__all__ = ["Chernoff", "Curves", "chernoff", "curves", "half_normal", "uniform"]

FloatArray = npt.NDArray[np.float64]


class Curves(NamedTuple):
    """Curves over the tail fraction; made by :func:`curves`.

    Attributes:
      alphas: the tail fractions.
      least: risk -> its least value over the parameters, figure 7.4.
      quantile: risk -> the value at risk at its minimiser, figure 7.16; under "VaR" the least, under "path" the least
        over the minimisers of tilted risks.
    """

    alphas: FloatArray
    least: dict[str, FloatArray]
    quantile: dict[str, FloatArray]


def curves(losses: FloatArray, alphas: FloatArray) -> Curves:
    r"""The least value of each risk over a grid of parameters, and the value at risk at each minimiser.

    Args:
      losses: ``(parameters, examples)``.
      alphas: tail fractions in (0, 1).
    """
    f = jnp.asarray(losses, jnp.float32)
    floor = float(f.min())
    width = float(f.max()) - floor
    tilts = np.concatenate([-np.logspace(3, -3, 40), np.logspace(-3, 2, 40)]) * 10 / width
    tilted = jax.jit(jax.vmap(lambda t, f: eh.risks.tilted(t).value(f), (None, 0)))
    risks = np.stack([np.asarray(tilted(jnp.float32(t), f), np.float64) for t in tilts])
    path = risks.argmin(axis=1)
    least: dict[str, list[float]] = {name: [] for name in ("VaR", "TiVaR", "CVaR", "EVaR")}
    quantile: dict[str, list[float]] = {name: [] for name in (*least, "inverse CVaR", "path")}
    for alpha in map(float, alphas):
        at_risk = np.asarray(jax.vmap(eh.risks.value_at_risk(alpha).value)(f))
        bound, tilted_place = _tilted_minimiser(alpha, floor, f, tilts, risks.min(axis=1), path)
        others = {
            "CVaR": eh.risks.superquantile(alpha),
            "EVaR": eh.risks.entropic_value_at_risk(alpha),
            "inverse CVaR": eh.risks.inverse_superquantile(alpha),
        }
        values = {name: np.asarray(jax.vmap(risk.value)(f)) for name, risk in others.items()}
        places = {"VaR": int(np.argmin(at_risk)), "TiVaR": tilted_place}
        places |= {name: int(np.argmin(value)) for name, value in values.items()}
        least["VaR"].append(float(at_risk.min()))
        least["TiVaR"].append(bound)
        for name in ("CVaR", "EVaR"):
            least[name].append(float(values[name].min()))
        for name, place in places.items():
            quantile[name].append(float(at_risk[place]))
        quantile["path"].append(float(at_risk[path].min()))
    columns = [{name: np.array(numbers) for name, numbers in curve.items()} for curve in (least, quantile)]
    return Curves(alphas, *columns)


def _tilted_minimiser(
    alpha: float, floor: float, f: jax.Array, tilts: FloatArray, least: FloatArray, path: npt.NDArray[np.intp]
) -> tuple[float, int]:
    """The least TiVaR and where it is: for a given tilt the bound grows with the tilted risk, so it is on the path."""
    powers = tilts * (least - floor)
    brackets = 1.0 + np.expm1(np.minimum(powers, 700.0)) / alpha
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.where(brackets > 1e-6, np.log(brackets) / tilts, np.inf)
    best = int(np.argmin(bounds))
    risk = eh.risks.tilted_value_at_risk(alpha, floor=floor)
    near = np.unique(path[max(best - 1, 0) : best + 2])
    values = [float(risk.value(f[place])) for place in near]
    return min(values), int(near[int(np.argmin(values))])


class Chernoff(NamedTuple):
    """A nonnegative variable, by what bounds of its tail need.

    Attributes:
      moment: ``t -> E exp(t X)``, for ``t`` other than 0.
      mean: its mean.
      tail: ``gamma -> P(X >= gamma)``.
    """

    moment: Callable[[float], float]
    mean: float
    tail: Callable[[float], float]


def uniform() -> Chernoff:
    """Uniform on [0, 2]."""
    return Chernoff(lambda t: float(np.expm1(2 * t) / (2 * t)), 1.0, lambda gamma: 1.0 - gamma / 2)


def half_normal() -> Chernoff:
    """The absolute value of a normal variable, of mean 1."""
    sigma = float(np.sqrt(np.pi / 2))

    def moment(t: float) -> float:
        return float(2 * np.exp((sigma * t) ** 2 / 2 + norm.logcdf(sigma * t)))

    return Chernoff(moment, 1.0, lambda gamma: float(2 * norm.sf(gamma / sigma)))


def chernoff(variable: Chernoff, gamma: float) -> Measures:
    r"""The tail, its bound by tilts of either sign, and the classical bound, by positive tilts alone.

    .. math:: P(X \ge \gamma) \le \inf_{t \in \mathbb R} \frac{E e^{tX} - 1}{e^{t \gamma} - 1}, \qquad
        P(X \ge \gamma) \le \inf_{t > 0} e^{-t \gamma} E e^{tX}

    Where the first has ``t = 0`` it is Markov's bound.
    """

    def either(t: float) -> float:
        if abs(t) < 1e-6:
            return variable.mean / gamma
        return (variable.moment(t) - 1.0) / float(np.expm1(t * gamma))

    def classical(t: float) -> float:
        return variable.moment(t) * float(np.exp(-t * gamma))

    return {
        "true": variable.tail(gamma),
        "either sign": _least(either, np.linspace(-200.0, 10.0, 421)),
        "classical": min(1.0, _least(classical, np.linspace(1e-6, 10.0, 51))),
    }


def _least(bound: Callable[[float], float], nodes: FloatArray) -> float:
    best = int(np.argmin([bound(float(t)) for t in nodes]))
    ends = (float(nodes[max(best - 1, 0)]), float(nodes[min(best + 1, len(nodes) - 1)]))
    finer: Any = minimize_scalar(bound, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return float(finer.fun)
