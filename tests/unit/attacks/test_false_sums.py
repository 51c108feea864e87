"""A client that sends false numbers into a sum moves any aggregator, by no more than the fixed point allows."""

from __future__ import annotations

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import aggregators as agg
from evenhand.aggregators import reduce_uploads
from evenhand.attacks import both, by_clients, during, false_sum, sign_flip
from evenhand.errors import EvenhandError
from evenhand.rounds import lifted
from evenhand.secure import fixed_point
from evenhand.types import Attack, Upload

M, D = 10, 4
DELTAS = np.random.default_rng(0).normal(0.05, 0.01, (M, D)).astype(np.float32)
UPLOADS = Upload(jnp.asarray(DELTAS), jnp.ones(M), jnp.full(M, jnp.nan))
PRESENT = jnp.ones(M, bool)
LARGEST = 1024.0
SECURE = partial(agg.secure, largest=LARGEST, cohort=100)
ENDLESS = Attack(
    0.1, lifted=lambda numbers, public, key: jax.tree.map(lambda x: jnp.full_like(x, jnp.inf), numbers)
)


def direction(rule, attack, bad=0):
    """What ten uploads are reduced to, of which the one at ``bad`` adds false numbers."""

    def lift(slot, upload, public, key):
        return lifted(attack, rule, upload, public, slot == bad, 0, key)

    state = rule.init(jnp.zeros(D), M)
    noise = jax.random.split(jax.random.key(1), M)
    return np.asarray(reduce_uploads(rule, UPLOADS, PRESENT, state, jax.random.key(0), noise, lift)[0])


@pytest.mark.parametrize("masks", [True, False])
def test_one_client_moves_a_secure_geometric_median_at_will(masks):
    """The simulation checks no product of weight and upload in the clear, either, and gives the same numbers."""
    rule = SECURE(agg.geometric_median())
    rule = rule if masks else rule.unmasked
    honest = direction(rule, None)
    assert np.abs(honest).max() < 0.06
    moved = direction(rule, false_sum(0.1, scale=1e3))
    assert np.abs(moved).max() > 20 * np.abs(honest).max()
    np.testing.assert_allclose(moved, direction(agg.geometric_median(), false_sum(0.1, scale=1e3)), rtol=1e-3)
    false_upload = UPLOADS.delta.at[0].multiply(1e3)
    robust = agg.aggregate(rule, false_upload)
    assert np.abs(robust).max() < 0.07, "a false upload, in contrast, is withstood"


def test_a_sum_of_m_clients_is_bounded_by_m_times_the_largest_number():
    """Without the clip it reaches half of the modulus, which the test finds by decoding the same sum."""
    rule = SECURE(agg.mean())
    state, key = rule.init(jnp.zeros(D), M), jax.random.key(0)

    def total(attack):
        uploads = [jax.tree.map(partial(jnp.take, indices=i, axis=0), UPLOADS) for i in range(M)]
        add = [
            lifted(attack, rule, upload, (), jnp.bool_(i == 0), 0, key) for i, upload in enumerate(uploads)
        ]
        return jax.tree.map(lambda *leaves: sum(leaves), *add)

    point = fixed_point(64, largest=LARGEST, cohort=100)
    only_first = Attack(0.1, lifted=lambda n, public, key: (jnp.full_like(n[0], jnp.inf), n[1]))
    reached = np.asarray(point.decode(total(only_first)[0][0]))
    assert 100 * LARGEST <= point.reach <= 2 * 100 * LARGEST
    assert np.abs(reached).max() > 5 * M * LARGEST
    bounded = np.asarray(rule.lower(total(only_first), state, key)[0])
    np.testing.assert_allclose(np.abs(bounded), M * LARGEST / M, rtol=1e-6)

    # The count is in the same sum: a client that falsifies it, too, reaches the cohort at most.
    numbers, count = total(only_first)
    for claimed, most in ((30, 30 * LARGEST), (2, 2 * LARGEST), (101, 0.0)):
        false = count.at[0].set(jnp.uint32(claimed))
        moved = np.asarray(rule.lower((numbers, false), state, key)[0])
        np.testing.assert_allclose(np.abs(moved), most / M, rtol=1e-6)


def test_the_bound_changes_no_honest_sum_not_even_the_largest():
    uploads = Upload(jnp.full((M, D), LARGEST), jnp.ones(M), jnp.full(M, jnp.nan))
    for sign in (1.0, -1.0):
        full = agg.aggregate(SECURE(agg.mean()), sign * uploads.delta)
        assert np.asarray(full).tolist() == [sign * LARGEST] * D


def test_a_wrapped_sum_stays_within_the_modulus():
    rule = SECURE(agg.mean())
    found = direction(rule, ENDLESS)
    assert np.isfinite(found).all()
    twice = Attack(
        0.1, lifted=lambda numbers, public, key: jax.tree.map(lambda x: 1e30 * jnp.ones_like(x), numbers)
    )
    np.testing.assert_array_equal(found, direction(rule, twice))


def test_without_the_attack_or_outside_its_rounds_nothing_changes():
    rule = SECURE(agg.geometric_median())
    honest = direction(rule, None)
    np.testing.assert_array_equal(direction(rule, sign_flip(0.1)), honest)
    np.testing.assert_array_equal(direction(rule, during(false_sum(0.1), first=2)), honest)
    np.testing.assert_array_equal(direction(rule, false_sum(0.1), bad=-1), honest)
    assert not np.array_equal(direction(rule, during(false_sum(0.1), first=1)), honest)


def test_two_attacks_on_sums_follow_each_other():
    numbers = (jnp.ones(2), jnp.float32(1.0))
    joined = both(false_sum(0.2, scale=2.0), false_sum(scale=-5.0))
    alone = both(sign_flip(0.2), false_sum(scale=3.0))
    for attack, expected in ((joined, -10.0), (alone, 3.0)):
        assert attack.lifted is not None
        assert attack.lifted(numbers, (), jax.random.key(0))[0].tolist() == [expected, expected]


def test_sums_that_stand_for_no_real_numbers_refuse_the_attack():
    rule = eh.aggregators.in_parts([SECURE(agg.mean()), SECURE(agg.mean())])
    upload = Upload((jnp.ones(2), jnp.ones(2)), jnp.ones(2), jnp.ones(2))
    with pytest.raises(EvenhandError, match="replaces real numbers in a sum"):
        lifted(false_sum(0.1), rule, upload, ((), ()), jnp.bool_(True), 0, jax.random.key(0))


WORK = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)


@pytest.mark.parametrize(
    "rule",
    [
        agg.geometric_median(3),
        agg.mean(),
        SECURE(agg.geometric_median(2)),
        SECURE(agg.mean()),
    ],
)
def test_the_engine_and_its_twin_agree_on_the_attack(rule):
    method = eh.algorithms.fedavg(WORK, aggregator=rule)
    eh.testing.check_algorithm(method, attack=by_clients(false_sum(scale=-2.0), (0, 2)), rounds=2)


def test_a_run_under_the_attack_differs_and_krum_has_no_sums():
    def last(rule, attack):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method = eh.algorithms.fedavg(WORK, aggregator=rule)
            run = eh.simulate(method, eh.testing.toy_data(), rounds=2, eval_every=2, attack=attack, devices=1)
        return run.history["train_loss"][-1]

    rule, attack = SECURE(agg.geometric_median()), by_clients(false_sum(scale=-1e4), (0,))
    assert last(rule, attack) > 1.5 * last(rule, by_clients(false_sum(scale=1.0), (0,)))
    assert last(agg.krum(1), attack) == last(agg.krum(1), by_clients(Attack(), (0,)))
