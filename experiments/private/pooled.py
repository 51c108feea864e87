"""Methods that are private for single rows, where all rows are in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optax

import evenhand as eh
from evenhand import privacy
from experiments.private.rivals import Numbers, Rival
from experiments.private.table import stepping

__all__ = ["Pooled", "pooled_rivals"]


@dataclass(frozen=True)
class Pooled:
    """How long a model is trained on all rows, and what is tried.

    Attributes:
      clients: whose rows they are.
      public: rows that are public; they are nobody's.
      rows: all others that train.
      batch: rows of a step, on average.
      steps: of each run.
      clips: of gradients.
      rates: step sizes of DP-SGD and PDA-DPMD.
      adam_rates: of DP-Adam and DP-RMSProp.
      scaled_clips: of gradients that have been divided by a scale.
      scaled_rates: of AdaDPS, and of the adaptive phase of DP2.
    """

    clients: int
    public: int
    rows: int
    batch: int
    steps: int
    clips: tuple[float, ...]
    rates: tuple[float, ...]
    adam_rates: tuple[float, ...]
    scaled_clips: tuple[float, ...]
    scaled_rates: tuple[float, ...]

    @property
    def delta(self) -> float:
        """One in the number of rows."""
        return 1.0 / self.rows


def pooled_rivals(setting: Pooled, model: eh.Model, public: tuple[Any, Any]) -> dict[str, Rival]:
    """All methods; each takes six settings.

    Args:
      setting: how long, and what is tried.
      model: what is trained.
      public: rows, with labels, that everybody may see.
    """
    common: dict[str, Any] = {"rate": setting.batch / setting.rows, "steps": setting.steps}

    def sgd(noise: float, n: Numbers) -> eh.local.Work:
        return privacy.dp_sgd(
            model, stepping(optax.sgd, n["lr"]), clip=n["clip"], noise_multiplier=noise, **common
        )

    def adam(noise: float, n: Numbers) -> eh.local.Work:
        chosen = stepping(optax.adam, n["lr"], eps=1e-8)
        return privacy.dp_sgd(model, chosen, clip=n["clip"], noise_multiplier=noise, **common)

    def rmsprop(noise: float, n: Numbers) -> eh.local.Work:
        chosen = stepping(optax.rmsprop, n["lr"], decay=0.9, eps=1e-3, eps_in_sqrt=False)
        return privacy.dp_sgd(model, chosen, clip=n["clip"], noise_multiplier=noise, **common)

    def mirror(noise: float, n: Numbers) -> eh.local.Work:
        given: dict[str, Any] = {"public": public, "total_steps": setting.steps, "noise_multiplier": noise}
        return privacy.pda_dpmd(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **given, **common)

    def adadps(noise: float, n: Numbers) -> eh.local.Work:
        given: dict[str, Any] = {"public": public, "eps": 1e-2, "noise_multiplier": noise}
        return privacy.adadps(model, stepping(optax.sgd, n["lr"]), clip=n["clip"], **given, **common)

    def delayed(noise: float, n: Numbers) -> eh.local.Work:
        given: dict[str, Any] = {"delay": max(1, setting.steps // 10), "eps": 1e-2, "noise_multiplier": noise}
        first = setting.rates[len(setting.rates) // 2]
        return privacy.dp2(model, (first, n["lr"]), clips=(setting.clips[-1], n["clip"]), **given, **common)

    scaled = {"lr": setting.scaled_rates, "clip": setting.scaled_clips}
    plain, moments = ({"lr": rates, "clip": setting.clips} for rates in (setting.rates, setting.adam_rates))
    each: dict[str, tuple[Any, Mapping[str, Sequence[Any]]]] = {
        "DP-SGD": (sgd, plain),
        "DP-Adam": (adam, moments),
        "DP-RMSProp": (rmsprop, moments),
        "PDA-DPMD": (mirror, plain),
        "AdaDPS": (adadps, scaled),
        "DP2-RMSProp": (delayed, scaled),
    }
    return {name: _rival(work, grid, setting) for name, (work, grid) in each.items()}


def _rival(work: Any, grid: Mapping[str, Sequence[Any]], setting: Pooled) -> Rival:
    def make(noise: float, n: Numbers) -> eh.Algorithm:
        return eh.algorithms.alone(work(noise, n))

    def needed(epsilon: float) -> float:
        if math.isinf(epsilon):
            return 0.0
        given: dict[str, Any] = {"steps": setting.steps, "delta": setting.delta}
        return privacy.noise_for(epsilon=epsilon, rate=setting.batch / setting.rows, **given)

    return Rival(make, grid, needed)
