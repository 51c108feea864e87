"""Ten methods, each in four forms: plain, robust, private, and what is left of the last under attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import optax

import evenhand as eh
from evenhand import aggregators, algorithms, privacy, risks, sampling
from evenhand import personalization as personal
from experiments.personal.methods import Candidates

__all__ = ["CONDITIONS", "Budget", "Condition", "methods"]

Numbers: TypeAlias = Mapping[str, Any]
Condition: TypeAlias = Literal["plain", "attack", "privacy", "all"]
"""Nothing but unlike clients; malicious ones; privacy for clients; malicious clients under privacy."""
CONDITIONS: tuple[Condition, ...] = get_args(Condition)

_LENGTHS = (0.1, 0.3, 1.0)
"""Of updates under attack, where a robust rule needs a bound."""
_CLIPS = (0.1, 0.3)
"""Of updates under privacy."""
_LAMS = (0.1, 1.0)
_EPOCHS = 20
"""Of finetuning."""
_LARGEST_LOSS = 2.5
"""About that of a guess among ten digits."""
_THETA, _T, _MU = 0.5, 1.0, 0.1


class Budget(NamedTuple):
    """A budget of privacy.

    Attributes:
      rate: with which each client takes part in a round.
      noise_multiplier: the least that stays within it.
    """

    rate: float
    noise_multiplier: float


class _Form(NamedTuple):
    """A method in one form.

    Attributes:
      make: ``(work, numbers) -> method``.
      grid: what is tried of it besides the step size.
    """

    make: Callable[[eh.local.Work, Numbers], eh.Algorithm]
    grid: Mapping[str, tuple[float, ...]]


def methods(condition: Condition, model: eh.Model, budget: Budget) -> dict[str, Candidates]:
    """The ten methods in the form for a condition: robust under attack, and private where clients are to be hidden.

    A private form needs no robust rule of its own: its clip bounds what one client can do.
    """
    is_private = condition in ("privacy", "all")
    forms = _private(budget) if is_private else _robust() if condition == "attack" else _plain()

    def work(n: Numbers, epochs: int = 1) -> eh.local.Work:
        return eh.local.sgd(model, n["rate"], epochs=epochs, batch_size=10)

    def alone(form: _Form) -> Candidates:
        return Candidates(lambda n: form.make(work(n), n), form.grid)

    def tuned(form: _Form) -> Candidates:
        return Candidates(lambda n: personal.finetune(form.make(work(n), n), work(n, _EPOCHS)), form.grid)

    def ditto(form: _Form) -> Candidates:
        def make(n: Numbers) -> eh.Algorithm:
            return personal.ditto(form.make(work(n), n), work(n), lam=n["lam"])

        return Candidates(make, {**form.grid, "lam": _LAMS})

    return {
        **{name: alone(form) for name, form in forms.items()},
        "finetune(fedavg)": tuned(forms["fedavg"]),
        "finetune(delta_fl)": tuned(forms["delta_fl"]),
        **{f"ditto({name})": ditto(forms[name]) for name in ("fedavg", "delta_fl", "term")},
    }


def _adam() -> optax.GradientTransformation:
    return eh.server_opt.fedadam(0.03)


def _plain() -> dict[str, _Form]:
    return {
        "fedavg": _Form(lambda work, n: algorithms.fedavg(work), {}),
        "fedprox": _Form(lambda work, n: algorithms.fedprox(work, mu=_MU), {}),
        "fedadam": _Form(lambda work, n: algorithms.fedavg(work, server_opt=_adam()), {}),
        "delta_fl": _Form(lambda work, n: algorithms.delta_fl(work, theta=_THETA), {}),
        "term": _Form(lambda work, n: algorithms.term(work, t=_T), {}),
    }


def _robust() -> dict[str, _Form]:
    """A geometric median; or, where losses weigh the updates, updates of bounded length."""
    median = aggregators.geometric_median()

    def weighted(risk: eh.types.Risk) -> _Form:
        def make(work: eh.local.Work, n: Numbers) -> eh.Algorithm:
            rule = aggregators.clip(n["clip"], then=aggregators.risk_weighted(risk))
            return algorithms.fedavg(work, aggregator=rule)

        return _Form(make, {"clip": _LENGTHS})

    return {
        "fedavg": _Form(lambda work, n: algorithms.fedavg(work, aggregator=median), {}),
        "fedprox": _Form(lambda work, n: algorithms.fedprox(work, mu=_MU, aggregator=median), {}),
        "fedadam": _Form(lambda work, n: algorithms.fedavg(work, aggregator=median, server_opt=_adam()), {}),
        "delta_fl": weighted(risks.superquantile(_THETA)),
        "term": weighted(risks.tilted(_T)),
    }


def _private(budget: Budget) -> dict[str, _Form]:
    """The noisy mean of clipped updates, on Poisson cohorts; losses weigh them in the form that hides losses."""
    rate, noise = budget

    def noisy(n: Numbers) -> eh.types.Sum:
        return privacy.noisy_mean(n["clip"], noise_multiplier=noise, rate=rate)

    def fedprox(work: eh.local.Work, n: Numbers) -> eh.Algorithm:
        near = algorithms.fedprox(work, mu=_MU, aggregator=noisy(n), sampling=sampling.poisson(rate))
        return privacy.private(near)

    def fedavg(work: eh.local.Work, n: Numbers) -> eh.Algorithm:
        return privacy.dp_fedavg(work, clip=n["clip"], noise_multiplier=noise, rate=rate)

    def fedadam(work: eh.local.Work, n: Numbers) -> eh.Algorithm:
        return privacy.dp_fedadam(work, clip=n["clip"], noise_multiplier=noise, rate=rate, server_lr=0.03)

    def delta_fl(work: eh.local.Work, n: Numbers) -> eh.Algorithm:
        return privacy.dp_delta_fl(
            work,
            theta=_THETA,
            largest_loss=_LARGEST_LOSS,
            clip=n["clip"],
            noise_multiplier=noise,
            rate=rate,
        )

    def term(work: eh.local.Work, n: Numbers) -> eh.Algorithm:
        return privacy.dp_term(
            work,
            t=_T,
            largest_loss=_LARGEST_LOSS,
            clip=n["clip"],
            noise_multiplier=noise,
            rate=rate,
        )

    makes = {"fedavg": fedavg, "fedprox": fedprox, "fedadam": fedadam, "delta_fl": delta_fl, "term": term}
    return {name: _Form(make, {"clip": _CLIPS}) for name, make in makes.items()}
