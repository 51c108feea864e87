"""Settings that the tests of formulas leave at their defaults, and the defaults themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import server_opt
from evenhand.aggregators import aggregate, reference_tilt, running_tilt
from evenhand.centralized import Solver, fit, grouped, stochastic
from evenhand.streams import Purpose, stream
from evenhand.types import Cohort, Model, Report, Stack

MODEL = Model(
    init=lambda key: jax.random.normal(key),
    apply=lambda w, x: w - x[:, 0],
    losses=lambda outputs, y: jnp.square(outputs),
    metrics={},
)
X, Y = np.arange(20.0)[:, None], np.zeros(20)
NUMBERS: dict[Callable[..., Any], dict[str, Any]] = {
    # Reddi et al. write beta_1 = 0.9 and beta_2 = 0.99 for Adam and Yogi, none for Adagrad, and tau = 1e-3.
    server_opt.fedadam: {"b1": 0.9, "b2": 0.99, "tau": 1e-3},
    server_opt.fedyogi: {"b1": 0.9, "b2": 0.99, "tau": 1e-3},
    server_opt.fedadagrad: {"b1": 0.0, "tau": 1e-3},
    server_opt.fedavgm: {"learning_rate": 1.0, "momentum": 0.9},
    # The reference code uses one half.
    running_tilt: {"rate": 0.5},
    reference_tilt: {"rate": 0.5},
    eh.aggregators.drift_tilted: {"steps": 1},
    eh.algorithms.averaged: {"growth": 1.0, "initial": True},
    eh.algorithms.delta_fl: {"nu": 0.0, "filtered": False, "strict": True, "follow": False},
    eh.algorithms.fedmgda: {"epsilon": 0.1},
    eh.algorithms.fedtilt: {
        "tilt_class": 0.0,
        "tilt_sample": 0.0,
        "tilt_server": 0.0,
        "prox_mu": 0.01,
        "tied": False,
        "server_steps": 1,
    },
    eh.algorithms.qmaml: {"adapt": True, "second_order": False, "support": 0.5, "finetune_steps": 5},
    eh.risks.tail_mean: {"strict": False},
    eh.risks.tilted_value_at_risk: {"floor": 0.0},
    stochastic: {"two_batches": False},
    eh.sampling.uniform: {"replace": False, "weighted": True},
    eh.sampling.proportional: {"replace": True, "weighted": False},
    # Comparisons of methods under stragglers depend on which of them keep partial work.
    eh.algorithms.feddane: {"keep_partial": True, "fresh_cohort": True},
    eh.algorithms.fedprox: {"keep_partial": True},
    eh.algorithms.fedprox_adaptive: {"keep_partial": True},
}


@pytest.mark.parametrize("factory", NUMBERS, ids=lambda factory: factory.__name__)
def test_default_numbers_and_switches_are_those_of_the_sources(factory: Callable[..., Any]) -> None:
    """All of them but ``keep_partial=False``, so that a new one must be added here on purpose."""
    plain = {
        name: parameter.default
        for name, parameter in inspect.signature(factory).parameters.items()
        if isinstance(parameter.default, bool | int | float)
        and (name, parameter.default) != ("keep_partial", False)
    }
    assert plain == NUMBERS[factory]


@pytest.mark.parametrize("rate", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("make", [running_tilt, reference_tilt])
def test_normalisers_over_rounds_use_the_rate_they_are_given(make: Any, rate: float) -> None:
    """Three rounds of three clients in NumPy, by the formulas of either docstring."""
    t, aggregator = 0.7, make(0.7, rate)
    state = aggregator.init(jnp.zeros(1), 3)
    old = cast(Any, 0.0 if make is reference_tilt else None)
    for losses in np.array([[1.0, 2.0, 0.5], [0.3, 0.1, 3.0], [1.0, 1.0, 1.5]]):
        rows = np.array([1.0, 2.0, 5.0])
        weights, state = aggregator.weigh(
            Report(jnp.asarray(rows, jnp.float32), jnp.asarray(losses, jnp.float32)),
            Cohort.of(jnp.arange(3)),
            state,
        )
        if make is reference_tilt:
            powers = np.exp(t * (losses - losses.max()))
            old = (1 - rate) * old + rate * powers.mean()
            expected = powers / 3 / (3 * old)
        else:
            powers = rows / rows.sum() * np.exp(t * losses)
            old = powers.sum() if old is None else (1 - rate) * old + rate * powers.sum()
            expected = powers / old
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_an_aggregator_that_draws_uses_the_seed() -> None:
    noisy = Stack(
        lambda like, clients: (), lambda uploads, present, state, key: (jax.random.normal(key), state)
    )
    drawn = [float(aggregate(noisy, jnp.zeros(2), seed=seed)) for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert drawn[0] == float(aggregate(noisy, jnp.zeros(2)))


def test_a_fit_begins_and_draws_by_its_seed() -> None:
    """The seed gives the initial parameters and the rows of batches, also where a fit continues with another seed."""
    solver = stochastic(MODEL, t=0.0, rate=0.5, batch_size=2, optimiser=optax.sgd(0.1))
    for seed in (0, 3):
        begin = MODEL.init(stream(jax.random.key(seed), Purpose.INIT))
        assert float(fit(solver, X, Y, steps=0, seed=seed).params) == float(begin)
    assert float(fit(solver, X, Y, steps=0).params) == float(fit(solver, X, Y, steps=0, seed=0).params)
    zero = jnp.float32(0.0)
    ends = [float(fit(solver, X, Y, steps=3, seed=seed, params=zero).params) for seed in (0, 3, 0)]
    assert ends[0] == ends[2] != ends[1]
    half = fit(solver, X, Y, steps=3, seed=3, params=zero)
    continued = [fit(solver, X, Y, steps=2, seed=seed, after=half) for seed in (None, 3, 0)]
    assert float(continued[0].params) == float(continued[1].params) != float(continued[2].params)
    assert [(each.steps, each.seed) for each in continued] == [(5, 3), (5, 3), (5, 0)]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda **how: stochastic(MODEL, t=1.0, **how),
        lambda **how: stochastic(MODEL, t=1.0, two_batches=True, **how),
        lambda **how: grouped(MODEL, groups=np.zeros(20, int), t=1.0, tau=1.0, **how),
    ],
)
def test_batches_have_as_many_rows_as_asked(
    make: Callable[..., Solver], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[Any] = []
    whole = jax.random.randint

    def spy(key: Any, shape: Any, *arguments: Any, **options: Any) -> Any:
        shapes.append(shape)
        return whole(key, shape, *arguments, **options)

    monkeypatch.setattr(jax.random, "randint", spy)
    solver = make(rate=0.5, batch_size=size, optimiser=optax.sgd(0.1))
    state = solver.init(jnp.float32(0.0), jnp.asarray(X), jnp.asarray(Y))
    jax.eval_shape(solver.step, state, jnp.asarray(X), jnp.asarray(Y), jnp.int32(0), jax.random.key(0))
    assert shapes and set(shapes) == {(size,)}
