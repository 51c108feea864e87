"""Streams of randomness: no two draws of a run share a key."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.streams import MAX_PHASES, MAX_ROUNDS, Purpose, client_stream, root_key, stream
from evenhand.types import Key


def _words(key: Key) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_purposes_fit_into_four_bits() -> None:
    numbers = [purpose.value for purpose in Purpose]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) >= 0
    assert max(numbers) < 16


def test_purposes_keep_their_numbers() -> None:
    # Saved runs are reproduced by them.
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "INIT": 0,
        "COHORT": 1,
        "WORK": 2,
        "PERSONAL": 3,
        "ATTACK": 4,
        "MALICIOUS": 5,
        "AGGREGATOR": 6,
        "SERVER": 7,
        "STRAGGLERS": 8,
        "EVALUATION": 9,
        "NOISE": 10,
        "MASKS": 11,
        "DROPOUTS": 12,
        "AVAILABILITY": 13,
        "COMPRESSION": 14,
    }


def test_no_two_of_purpose_round_and_phase_share_a_key() -> None:
    root = jax.random.key(0)
    rounds = jnp.array([0, 1, 2, 15, 16, 17, 255, 2**20, MAX_ROUNDS - 1])
    keys: list[tuple[int, ...]] = []
    purposes: list[Any] = [*Purpose, 15]
    for purpose, phase in itertools.product(purposes, (0, 1, 15)):
        of_rounds = jax.vmap(lambda t, purpose=purpose, phase=phase: stream(root, purpose, t, phase))(rounds)
        keys += map(tuple, np.asarray(jax.random.key_data(of_rounds)).tolist())
    assert len(keys) == (len(Purpose) + 1) * 3 * len(rounds)
    assert len(set(keys)) == len(keys)


def test_one_round_too_many_runs_into_the_next_phase() -> None:
    # This is why a run may not be longer.
    root = jax.random.key(0)
    assert _words(stream(root, Purpose.WORK, MAX_ROUNDS, 0)) == _words(stream(root, Purpose.WORK, 0, 1))
    data, model = eh.testing.toy_data(), eh.testing.toy_model()
    method = eh.algorithms.fedavg(eh.local.Work(model, lambda params, data, key, correction: (params, ())))
    with pytest.raises(eh.EvenhandError, match=f"rounds={MAX_ROUNDS}"):
        eh.simulate(method, data, rounds=MAX_ROUNDS)


@pytest.mark.parametrize("exchanges", [0, MAX_PHASES + 1])
def test_one_exchange_too_many_has_the_keys_of_another_purpose_and_is_refused(exchanges: int) -> None:
    root = jax.random.key(0)
    assert _words(stream(root, Purpose.COHORT, 0, MAX_PHASES)) == _words(stream(root, Purpose.WORK, 0, 0))
    method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, steps=1, batch_size=2))
    method = method._replace(phases=method.phases * exchanges)
    for use in (
        lambda: eh.simulate(method, eh.testing.toy_data(), rounds=1),
        lambda: eh.testing.check_algorithm(method),
    ):
        with pytest.raises(eh.EvenhandError, match=f"fedavg has {exchanges} exchanges .* from 1 to 16"):
            use()


def test_a_round_may_be_traced() -> None:
    root = jax.random.key(4)
    traced = jax.jit(lambda t: jax.random.key_data(stream(root, Purpose.SERVER, t, 1)))(jnp.int32(9))
    assert tuple(traced.tolist()) == _words(stream(root, Purpose.SERVER, 9, 1))
    assert tuple(traced.tolist()) != _words(stream(root, Purpose.SERVER, 10, 1))


def test_clients_rounds_and_seeds_have_different_keys() -> None:
    keys = [
        _words(client_stream(stream(jax.random.key(seed), Purpose.WORK, t), client))
        for seed, t, client in itertools.product((0, 1), (0, 1), (0, 1, 2, 1000))
    ]
    assert len(set(keys)) == len(keys)


def _audit() -> Any:
    noisy = eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=1.0)
    return eh.privacy.audit_mean(noisy, rounds=1, length=1.0, delta=1e-2, canaries=20, runs=2).scores


def _fit() -> Any:
    rows = eh.testing.toy_data().train
    model, descent = eh.testing.toy_model(), optax.sgd(0.1)
    solver = eh.centralized.stochastic(model, t=1.0, rate=0.5, batch_size=2, optimiser=descent)
    return eh.centralized.fit(solver, rows.x, rows.y, steps=2).params


def _lora() -> Any:
    model = eh.testing.toy_model()
    start = jax.tree.map(jnp.ones_like, model.init(root_key(0)))
    factors = eh.models.lora(model, start, rank=1, on="*", train="b")
    return eh.models.thaw(factors, jax.tree.map(jnp.ones_like, factors.init(root_key(0))))


def _mocha() -> Any:
    train = eh.testing.toy_data().train
    return eh.personalization.mocha(train._replace(y=train.y % 2), lam=0.1, outer=1, inner=2).weights


@pytest.mark.parametrize("draw", [_audit, _fit, _lora, _mocha])
def test_another_default_generator_of_jax_changes_no_draw_outside_of_rounds(draw: Callable[[], Any]) -> None:
    with jax.default_prng_impl("rbg"):
        other = draw()
    for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(draw()), strict=True):
        np.testing.assert_array_equal(a, b)
