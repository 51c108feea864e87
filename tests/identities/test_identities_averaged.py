"""The averaged iterate against the mean of the iterates themselves, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fair_runs import METHODS, STEP, WORK
from identity_runs import DATA, MODEL, flat, gap

import evenhand as eh

ROUNDS = 4
ALL = {**METHODS, "feddane": eh.algorithms.feddane(WORK, mu=0.1)}
"""The last has two phases: a mean over phases would count each round twice."""


@cache
def iterates(name: str) -> np.ndarray:
    return np.stack(
        [flat(run.params) for run in eh.simulation.iterate(ALL[name], DATA, rounds=ROUNDS, eval_every=1)]
    )


def mean(name: str, **how: Any) -> eh.Run:
    return eh.simulate(eh.algorithms.averaged(ALL[name], **how), DATA, rounds=ROUNDS)


@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("growth", [1.0, 1.5, 1e6])
def test_the_model_is_the_weighted_mean_of_the_iterates(growth: float, initial: bool) -> None:
    """Theorem 5's weights beta^(1 + t), of which a common factor drops out."""
    each = iterates("theta 0.5").astype(np.float64)
    weights = growth ** np.arange(ROUNDS + 1.0) * np.r_[initial, np.ones(ROUNDS)]
    found = flat(mean("theta 0.5", growth=growth, initial=initial).params)
    assert gap(found, weights @ each / weights.sum()) < 1e-6
    if growth < 2:
        weights = weights[::-1] * np.r_[0.0, np.ones(ROUNDS)]
        assert gap(found, weights @ each / weights.sum()) > 1e-3
        assert gap(found, each[-1]) > 1e-3


def test_the_last_model_is_kept() -> None:
    method = ALL["theta 0.5"]
    kept = method.global_params(mean("theta 0.5").state.server.inner)
    assert np.array_equal(flat(kept), iterates("theta 0.5")[-1])


def test_a_round_of_two_exchanges_counts_once() -> None:
    assert gap(flat(mean("feddane").params), iterates("feddane").mean(axis=0)) < 1e-6


def test_clients_never_see_the_mean() -> None:
    """Their personal models are the same bit for bit."""
    plain, averaged = eh.simulate(ALL["tilts 0"], DATA, rounds=ROUNDS), mean("tilts 0")
    for k in range(DATA.num_clients):
        assert np.array_equal(flat(plain.personal_params(k)), flat(averaged.personal_params(k)))
    assert gap(flat(plain.params), flat(averaged.params)) > 1e-3


def test_the_weights_never_overflow() -> None:
    """1.1^2000 would, in float32; its sum in units of the last weight tends to 1.1 / 0.1."""
    method = eh.algorithms.averaged(ALL["theta 0.5"], growth=1.1)
    (phase,), state = method.phases, method.init(MODEL.init(jax.random.key(0)), DATA.num_clients)
    no_step = jax.tree.map(jnp.zeros_like, state.mean)

    def body(_: int, state: Any) -> Any:
        return phase.server(state, no_step, jnp.int32(6), jax.random.key(0))[0]

    end = jax.jit(lambda state: jax.lax.fori_loop(0, 2000, body, state))(state)
    assert float(end.total) == pytest.approx(11.0, rel=1e-5)
    assert gap(flat(end.mean), flat(state.mean)) < 1e-6


def test_the_mean_of_a_model_in_half_precision_is_in_float32() -> None:
    """After a first step from 4 to 6 its steps, of 2 / t^2, are soon below the 1/32 between two numbers of bfloat16."""

    def init(key: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 4, jnp.bfloat16), MODEL.init(key))

    work = eh.local.sgd(MODEL._replace(init=init), 0.05, steps=1)
    method = eh.algorithms.averaged(eh.algorithms.fedavg(work))
    (phase,), state = method.phases, method.init(init(jax.random.key(0)), DATA.num_clients)

    def body(t: jax.Array, state: Any) -> Any:
        step = jax.tree.map(
            lambda leaf: jnp.full_like(leaf, jnp.where(t == 0, 2.0, 0.0)), method.global_params(state)
        )
        return phase.server(state, step, jnp.int32(6), jax.random.key(0))[0]

    model = method.global_params(jax.jit(lambda state: jax.lax.fori_loop(0, 200, body, state))(state))
    assert all(leaf.dtype == jnp.bfloat16 and (leaf == 6).all() for leaf in jax.tree.leaves(model))


def test_a_bad_growth_and_a_method_that_observes_its_loss_are_refused() -> None:
    for growth in (0.9, float("inf"), float("nan")):
        with pytest.raises(eh.EvenhandError, match="grow by a finite factor"):
            eh.algorithms.averaged(ALL["fedavg"], growth=growth)
    adaptive = eh.algorithms.fedprox_adaptive(STEP, mu0=0.1)
    with pytest.raises(eh.EvenhandError, match="loss of its global model"):
        eh.algorithms.averaged(adaptive)


def test_a_round_without_uploads_does_not_count_where_the_method_counts_rounds() -> None:
    """q-FedAvg whose work has a schedule: its server steps in every round, since the schedule goes on."""
    work = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=8, schedule=eh.local.steps(0.9, every=1))
    method = eh.algorithms.averaged(eh.algorithms.qfedavg(work, q=1.0), initial=False)
    how: dict[str, Any] = {"rounds": 8, "cohort": 2, "systems": eh.systems.dropouts(0.7), "eval_every": 1}
    run = eh.simulate(method, DATA, **how)
    loss, empty = run.history["train_loss"], run.per_round["reported"] == 0
    assert 0 < empty.sum() < len(empty)
    np.testing.assert_array_equal(loss[1:][empty], loss[:-1][empty])
    assert (loss[1:][~empty] != loss[:-1][~empty]).all()


def test_the_method_inside_counts_rounds_without_uploads() -> None:
    base = ALL["fedavg"]
    counting = base.phases[0]._replace(
        server=lambda state, direction, reported, key: (state._replace(extra=state.extra + 1), {}),
        steps_if_empty=True,
    )
    method = eh.algorithms.averaged(
        base._replace(
            init=lambda params, n: base.init(params, n)._replace(extra=jnp.int32(0)), phases=(counting,)
        )
    )
    state = method.init(MODEL.init(jax.random.key(0)), DATA.num_clients)
    totals, counts = [], []
    for reported in (2, 0, 2):
        state, _ = method.phases[0].server(state, state.mean, jnp.int32(reported), jax.random.key(0))
        totals.append(float(state.total))
        counts.append(int(state.inner.extra))
    assert (totals, counts) == ([2.0, 2.0, 3.0], [1, 2, 3])


def test_where_the_count_of_uploads_is_private_the_mean_does_not_depend_on_it() -> None:
    private = eh.privacy.dp_fedavg(STEP, clip=1.0, noise_multiplier=1.0, rate=0.5)
    method = eh.algorithms.averaged(private)
    (phase,), state = method.phases, method.init(MODEL.init(jax.random.key(0)), DATA.num_clients)
    step = jax.tree.map(jnp.ones_like, state.mean)
    means = [flat(phase.server(state, step, jnp.int32(n), jax.random.key(0))[0].mean) for n in (0, 3)]
    assert np.array_equal(means[0], means[1])
    assert gap(means[0], flat(state.mean)) > 1e-2
