"""The proximal weight that adapts to the loss, on made-up losses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from identity_runs import DATA, MODEL, runs
from jax import lax

import evenhand as eh
from evenhand.types import Algorithm, Array

_LENGTH = 24


def _follow(mu0: float, losses: list[float]) -> list[float]:
    """The weight used in each round, when the training loss before round ``t`` is ``losses[t]``."""
    padded = np.array(losses + [0.0] * (_LENGTH - len(losses)), np.float32)
    start = _method(mu0).init(MODEL.init(jax.random.key(0)), DATA.num_clients)
    return [round(float(mu), 6) for mu in np.asarray(_used(start, padded))[: len(losses)]]


def _method(mu0: float) -> Algorithm:
    idle = eh.local.Work(MODEL, lambda params, data, key, correction: (params, ()))
    return eh.algorithms.fedprox_adaptive(idle, mu0=mu0)


@jax.jit
def _used(start: Any, losses: Array) -> Array:
    """The ``mu`` that is broadcast after each loss; all that depends on its start is in ``start``."""
    method = _method(0.0)
    observe = method.observe
    assert observe is not None

    def step(state: Any, loss: Array) -> tuple[Any, Array]:
        state = observe(state, loss)
        return state, method.phases[0].broadcast(state, jnp.int32(0)).extra

    return lax.scan(step, start, losses)[1]


def _rule(mu0: float, losses: list[float]) -> list[float]:
    """The rule in words: +0.1 after a rise, -0.1 after five falls in a row, never below 0."""
    tenths, falls, used = round(10 * mu0), 0, [mu0]
    for before, now in itertools.pairwise(losses):
        if not math.isfinite(now) or now > before:
            tenths, falls = tenths + 1, 0
        elif now < before:
            falls += 1
            if falls == 5:
                tenths, falls = max(0, tenths - 1), 0
        else:
            falls = 0
        used.append(tenths / 10)
    return [round(mu, 6) for mu in used]


_NAN, _INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mu0", "losses", "mus"),
    [
        (0.0, [5, 6, 6.5, 7], [0.0, 0.1, 0.2, 0.3]),
        (1.0, [9, 8, 7, 6, 5, 4], [1.0, 1.0, 1.0, 1.0, 1.0, 0.9]),
        (1.0, [9, 8, 7, 6, 5], [1.0] * 5),
        (1.0, list(range(20, 8, -1)), [1.0] * 5 + [0.9] * 5 + [0.8] * 2),
        (1.0, [9, 8, 7, 6, 5, 5, 4, 3, 2, 1], [1.0] * 10),
        (1.0, [9, 8, 7, 6, 5, 5, 4, 3, 2, 1, 0], [1.0] * 10 + [0.9]),
        (1.0, [9, 8, 7, 6, 5, 6, 5, 4, 3, 2, 1], [1.0] * 5 + [1.1] * 5 + [1.0]),
        (0.0, [9, 8, 7, 6, 5, 4, 3], [0.0] * 7),
        (0.1, list(range(20, 4, -1)), [0.1] * 5 + [0.0] * 11),
        (0.0, [4, 4, 4], [0.0] * 3),
        (0.5, [4, _NAN, _NAN, 3, 2], [0.5, 0.6, 0.7, 0.7, 0.7]),
        (0.5, [4, _INF, _INF, 3, 2], [0.5, 0.6, 0.7, 0.7, 0.7]),
        (0.5, [9, 8, 7, 6, 5, _NAN, 4, 3, 2, 1], [0.5] * 5 + [0.6] * 5),
        (0.5, [9, 8, 7, 6, 5, _INF, 4, 3, 2, 1, 0], [0.5] * 5 + [0.6] * 5 + [0.5]),
    ],
)
def test_the_weight_is_the_one_computed_by_hand(mu0: float, losses: list[float], mus: list[float]) -> None:
    assert _follow(mu0, losses) == pytest.approx(mus, abs=1e-6)
    assert _rule(mu0, losses) == pytest.approx(mus, abs=1e-6)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    st.sampled_from([0.0, 1.0]),
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, _NAN, _INF]), max_size=_LENGTH - 1),
    st.integers(0, _LENGTH - 1),
)
def test_the_weight_follows_the_rule(mu0: float, tail: list[float], falls: int) -> None:
    losses = [50.0, *(49.0 - t for t in range(falls)), *tail][:_LENGTH]
    assert _follow(mu0, losses) == pytest.approx(_rule(mu0, losses), abs=1e-6)


def test_steps_of_a_tenth_do_not_drift() -> None:
    method = _method(0.0)
    observe = method.observe
    assert observe is not None
    observe_all = jax.jit(
        lambda state, count: lax.fori_loop(0, count, lambda t, s: observe(s, t.astype(jnp.float32)), state)
    )
    state = observe_all(method.init(MODEL.init(jax.random.key(0)), 6), 1001)
    mu = method.phases[0].broadcast(state, jnp.int32(0)).extra
    assert float(mu) == 100.0
    assert float(np.cumsum(np.full(1000, 0.1, np.float32))[-1]) != 100.0, "adding tenths in float32 drifts"


def test_a_run_follows_its_own_training_loss() -> None:
    run = runs("fedprox adaptive from 1", rounds=8)[-1]
    losses = run.history["train_loss"][:-1].tolist()
    used = run.per_round["mu"].tolist()
    assert used == pytest.approx(_rule(1.0, losses), abs=1e-6)
    assert len(set(used)) > 1


@pytest.mark.parametrize("mu0", [-0.1, 0.05, float("nan"), float("inf")])
def test_a_start_that_is_no_multiple_of_a_tenth_is_refused(mu0: float) -> None:
    with pytest.raises(eh.EvenhandError, match=r"multiple of 0\.1"):
        eh.algorithms.fedprox_adaptive(eh.local.sgd(MODEL, 0.1, epochs=1), mu0=mu0)


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_a_weight_below_zero_is_refused(mu: float) -> None:
    for make in (eh.algorithms.fedprox, eh.algorithms.feddane):
        with pytest.raises(eh.EvenhandError, match=r"finite number >= 0"):
            make(eh.local.sgd(MODEL, 0.1, epochs=1), mu=mu)
