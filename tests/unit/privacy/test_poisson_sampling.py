"""Poisson samples of clients: inclusion is as likely as promised, independent, secret, and never cut off."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand.rounds import lift_key, roots, work_key
from evenhand.sampling import included, slots_for
from evenhand.streams import keys_of

N, TRIALS = 12, 4000


@pytest.fixture(scope="module")
def drawn():
    """Which of N clients take part in each of many cohorts, bool ``(trials, N)``."""
    draw = eh.sampling.poisson(0.3).draw

    @jax.jit
    @jax.vmap
    def members(key):
        cohort = draw(key, jnp.ones(N, jnp.int32), 0)
        return jnp.zeros(N, bool).at[jnp.where(cohort.present, cohort.ids, N)].set(True, mode="drop")

    return np.asarray(members(jax.random.split(jax.random.key(0), TRIALS)))


def test_each_client_is_drawn_with_the_given_probability(drawn):
    counts = drawn.sum(axis=0)
    assert all(stats.binomtest(int(count), TRIALS, 0.3).pvalue > 1e-4 for count in counts)
    assert all(stats.binomtest(int(count), TRIALS, 0.25).pvalue < 0.01 for count in counts)  # a wrong rate


def test_two_clients_are_drawn_independently_of_each_other(drawn):
    """A fixed number of clients per cohort would make each pair's draws negatively correlated."""

    def smallest_p(rows):
        pairs = [(a, b) for a in range(N) for b in range(a)]
        tables = (np.histogram2d(rows[:, a], rows[:, b], bins=2)[0] for a, b in pairs)
        values: list[Any] = [stats.chi2_contingency(table)[1] for table in tables]
        return min(values) * len(pairs)

    assert smallest_p(drawn) > 0.01
    rng = np.random.default_rng(0)
    fixed = np.zeros_like(drawn)
    for row in fixed:
        row[rng.choice(N, 4, replace=False)] = True
    assert smallest_p(fixed) < 1e-6


def test_the_size_of_a_cohort_is_binomial(drawn):
    sizes = drawn.sum(axis=1)
    assert abs(sizes.mean() - 0.3 * N) < 0.1
    assert abs(sizes.var() - N * 0.3 * 0.7) < 0.2
    assert (sizes == 0).any()  # a cohort may be empty


def test_ids_are_distinct_and_empty_slots_have_valid_ones():
    cohort = eh.sampling.poisson(0.5).draw(jax.random.key(3), jnp.ones(40, jnp.int32), 0)
    ids, present = np.asarray(cohort.ids), np.asarray(cohort.present)
    assert len(set(ids[present])) == present.sum() > 10
    assert ((ids >= 0) & (ids < 40)).all()


def test_small_rates_are_kept_and_never_exceeded():
    """A float32 between 0 and 1 has steps of 2^-24, with which a rate of 1e-7 would be doubled."""
    rate, size = 1e-7, 2**20
    draw = jax.jit(lambda key: jnp.sum(included(key, rate, size, size, 8)[1]))
    found = sum(int(draw(jax.random.key(seed))) for seed in range(50))
    assert stats.binomtest(found, 50 * size, rate).pvalue > 1e-3


def test_all_take_part_at_a_rate_of_one():
    cohort = eh.sampling.poisson(1.0).draw(jax.random.key(0), jnp.ones(7, jnp.int32), 0)
    assert cohort.ids.tolist() == list(range(7)) and cohort.present.all()


def test_positions_beyond_the_size_are_never_included():
    positions, present = included(jax.random.key(0), 0.9, jnp.int32(5), 50, 50)
    assert set(np.asarray(positions)[np.asarray(present)]) <= set(range(5))


@pytest.mark.parametrize(("rate", "size"), [(0.01, 1000), (0.1, 500), (0.5, 64), (1e-4, 5000)])
def test_there_is_room_for_all_but_a_vanishing_chance(rate, size):
    slots = slots_for(rate, size)
    assert stats.binom.sf(slots, size, rate) < 1e-18
    assert slots == 1 or stats.binom.sf(slots - 1, size, rate) >= 1e-18  # and no more than that


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(eh.EvenhandError, match="probability above 0 and at most 1"):
        eh.sampling.poisson(rate)


def test_a_fixed_cohort_is_refused():
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
    method = eh.algorithms.fedavg(work, sampling=eh.sampling.poisson(0.5))
    with pytest.raises(eh.EvenhandError, match="leave the cohort out"):
        eh.simulate(method, eh.testing.toy_data(), rounds=1, cohort=3)


def test_who_is_drawn_by_a_private_method_cannot_be_computed_from_what_clients_know():
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
    private = eh.privacy.dp_fedavg(work, clip=1.0, noise_multiplier=1.0, rate=0.5)
    plain, keys = eh.algorithms.fedavg(work), keys_of(0)
    assert roots(plain, keys) == keys
    assert roots(private, keys).secret == keys.secret
    known = {str(jax.random.key_data(keys.shared)), str(jax.random.key_data(keys.secret))}
    assert str(jax.random.key_data(roots(private, keys).shared)) not in known


def test_a_clients_noise_comes_from_the_secret_root_and_is_new_in_each_round_and_exchange():
    def words(key, keys, number, phase, client):
        return tuple(jax.random.key_data(key(keys, number, phase, jnp.int32(client))).tolist())

    keys, others = keys_of(0), keys_of(1)
    same = words(lift_key, keys, 3, 1, 2)
    assert words(lift_key, keys._replace(shared=others.shared), 3, 1, 2) == same
    assert words(lift_key, keys._replace(secret=others.secret), 3, 1, 2) != same
    drawn = [(number, phase, client) for number in range(3) for phase in range(2) for client in range(3)]
    for key in (lift_key, work_key):
        assert len({words(key, keys, *each) for each in drawn}) == len(drawn)


def test_a_rate_below_the_smallest_step_draws_nobody():
    """It is rounded down, and must not become that of a comparison with 0, which all pass."""
    assert not included(jax.random.key(0), 1e-10, 1000, 1000, 1000)[1].any()


def test_all_that_are_drawn_count_equally():
    weights = jax.vmap(eh.sampling.poisson(0.5).weight)(jnp.array([1, 7, 1000]))
    assert weights.tolist() == [1.0, 1.0, 1.0]
