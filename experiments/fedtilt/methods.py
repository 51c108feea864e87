"""The methods of both suites, by the names that the tables give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import evenhand as eh
from evenhand.attacks import persistent_outliers
from experiments.fedtilt.data import BLACK, SCALE, WHITE
from experiments.fedtilt.outliers import persistent
from experiments.fedtilt.paper import ANCHORS, TILTS, Setting

__all__ = ["fedavg", "mnist_methods", "toy_methods"]

_LOGISTIC = eh.Model(  # with a bias, from zero
    init=lambda key: {"w": jnp.zeros(2), "b": jnp.zeros(())},
    apply=lambda params, x: x @ params["w"] + params["b"],
    losses=lambda score, y: jax.nn.softplus(score) - score * y.astype(jnp.float32),
    metrics={"accuracy": lambda score, y: ((score > 0) == (y > 0)).astype(jnp.float32)},
)
_DISTURBED = {
    "corruption": persistent_outliers(1.0, low=BLACK, high=WHITE),
    "gaussian": persistent_outliers(1.0, std=1.0 / SCALE),
}
"""Section IV-B2: 30 % of the rows, and of each 30 % of the pixels; or standard normal noise on pixels from 0 to 1."""


def toy_methods(experiment: int, rate: float, *, prox_mu: float, **described: Any) -> dict[str, eh.Algorithm]:
    """FedTilt with the tilts of the anchors; experiment 3 with outliers (10 % of class 1's rows), and without."""
    work = eh.local.sgd(_LOGISTIC, rate, **described)
    plain = {
        f"tau={tau:g}, lambda={lam:g}": eh.algorithms.fedtilt(
            work, classes=2, tilt_class=tau, tilt_sample=lam, prox_mu=prox_mu
        )
        for tau, lam in ANCHORS[experiment]
    }
    if experiment < 3:
        return plain
    noisy = persistent_outliers(1.0, examples=0.1, std=0.15, label=0)
    hit = {name: persistent(method, noisy) for name, method in plain.items()}
    return hit | {f"{name}, no outliers": method for name, method in plain.items()}


def mnist_methods(
    setting: Setting, work: eh.local.Work, mus: tuple[float, ...], *, prox_mu: float
) -> dict[str, eh.Algorithm]:
    """Ditto, which is FedTilt without tilts, and FedTilt with the tilts of the setting.

    Args:
      setting: decides about outliers, too.
      work: the local work of all.
      mus: Ditto's.
      prox_mu: FedTilt's mu.
    """
    build = partial(eh.algorithms.fedtilt, work, classes=10)
    known = {f"Ditto, mu={mu:g}": build(prox_mu=mu) for mu in mus}
    for name, (tau, lam) in TILTS[setting].items():
        known[name] = build(tilt_class=tau, tilt_sample=lam, prox_mu=prox_mu)
    return {name: _outliers(setting)(method) for name, method in known.items()}


def fedavg(setting: Setting, work: eh.local.Work) -> eh.Algorithm:
    """FedAvg over clients that count alike, with the setting's outliers."""
    return _outliers(setting)(eh.algorithms.fedtilt(work, classes=10, prox_mu=math.inf))


def _outliers(setting: Setting) -> Callable[[eh.Algorithm], eh.Algorithm]:
    if setting == "clean":
        return lambda method: method
    return partial(persistent, attack=_DISTURBED[setting])
