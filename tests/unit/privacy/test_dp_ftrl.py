"""DP-FTRL: the noise of a prefix is that of its nodes in a binary tree, and clients take turns."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand.privacy import dp_ftrl, epsilon
from evenhand.rounds import cohort, roots
from evenhand.sampling import cyclic
from evenhand.streams import keys_of
from evenhand.types import Sum

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
N, M = DATA.num_clients, 2
TURN = -(-N // M)
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)


def method(noise=2.0):
    return dp_ftrl(WORK, clip=0.5, noise_multiplier=noise, cohort=M, clients=N)


def rule_of(method) -> Sum:
    return method.phases[0].aggregator


def prefixes(rounds, seed):
    """The noise that the sum of directions carries after each round, ``(rounds, d)``; no client sends anything."""
    rule = rule_of(method())
    like = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(4)}

    def step(state, key):
        direction, state = rule.lower((like, jnp.float32(0)), state, key)
        return state, jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(direction)])

    keys = jax.random.split(jax.random.key(seed), rounds)
    return jnp.cumsum(jax.lax.scan(step, rule.init(like, N), keys)[1], axis=0)


def test_the_noise_of_a_prefix_is_that_of_as_many_nodes_as_it_has_binary_ones():
    """Within a turn; after it the noise stays, and a new tree begins."""
    rounds, unit = 2 * TURN, 2.0 * 0.5 / M
    found = np.asarray(jax.jit(jax.vmap(lambda seed: prefixes(rounds, seed)))(jnp.arange(400)))
    for t in range(1, rounds + 1):
        nodes = (t // TURN) * TURN.bit_count() + (t % TURN).bit_count()
        sample = found[:, t - 1].reshape(-1) / (unit * np.sqrt(nodes))
        assert stats.kstest(sample, "norm").pvalue > 1e-4, t
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(sample * wrong, "norm").pvalue < 1e-6


def test_every_turn_has_a_tree_of_its_own():
    """The noise of each round is as large in the third turn and the fourth as in the first, or a promise is broken.

    With the correlation of a turn's rounds it is drawn from the same distribution; keys differ, so do the draws.
    """
    turns = 4
    found = np.asarray(jax.jit(jax.vmap(lambda seed: prefixes(turns * TURN, seed)))(jnp.arange(400)))
    steps = np.diff(found, axis=1, prepend=0.0).reshape(400, turns, TURN, -1)
    spread = steps.std(axis=(0, 3))
    for turn in range(1, turns):
        np.testing.assert_allclose(spread[turn], spread[0], rtol=0.08)
        assert abs(np.corrcoef(steps[:, turn].ravel(), steps[:, 0].ravel())[0, 1]) < 0.05
    assert (
        np.ptp(spread[0]) > 0.2 * spread[0].mean()
    )  # rounds of a turn differ, so that turns out of step would show


def test_noise_cancels_where_a_node_replaces_those_below_it():
    """Rounds 1 and 2 share no node: the prefix of two rounds is independent of that of one."""
    found = np.asarray(jax.jit(jax.vmap(lambda seed: prefixes(4, seed)))(jnp.arange(400)))
    one, two, three = (found[:, t].reshape(-1) for t in (0, 1, 2))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.07
    assert np.isclose(np.corrcoef(two, three)[0, 1], 0.5**0.5, atol=0.05)  # 3 = 2 + 1


def test_without_noise_it_is_the_mean_of_clipped_updates_over_the_cohort():
    rule = rule_of(method(0.0))
    deltas = np.random.default_rng(0).normal(size=(M, 5)).astype(np.float32)
    state = rule.init(jnp.zeros(5), N)
    public = rule.publish(state)
    lifted = [
        rule.lift(eh.types.Upload(jnp.asarray(d), jnp.float32(3), jnp.float32(0)), public, jax.random.key(0))
        for d in deltas
    ]
    total = jax.tree.map(lambda *leaves: sum(leaves), *lifted)
    found, _ = rule.lower(total, state, jax.random.key(0))
    lengths = np.linalg.norm(deltas, axis=1, keepdims=True)
    np.testing.assert_allclose(found, (deltas * np.minimum(1, 0.5 / lengths)).sum(axis=0) / M, rtol=1e-5)


def test_clients_take_turns():
    scheduled = cyclic().scheduled
    assert scheduled is not None
    draw = jax.jit(lambda t: scheduled(jax.random.key(0), t, jnp.ones(7), 3))
    turns = [[draw(jnp.int32(3 * turn + t)) for t in range(3)] for turn in range(4)]
    orders = []
    for turn in turns:
        ids = [
            int(k) for cohort in turn for k, is_in in zip(cohort.ids, cohort.present, strict=True) if is_in
        ]
        assert sorted(ids) == list(range(7))
        orders.append(tuple(ids))
    assert len(set(orders)) > 1  # another order in each turn


def test_each_client_of_a_run_takes_part_once_a_turn_and_nobody_can_compute_when():
    """With an order drawn anew in each round, some would be there twice, under noise that is made for once."""
    promised, keys = method(), keys_of(0)
    sizes = jnp.asarray(DATA.train.sizes)
    members = [
        [
            int(k)
            for t in range(turn * TURN, (turn + 1) * TURN)
            for k in cohort(promised, None, sizes, M, of, t, 0).ids
        ]
        for of in (roots(promised, keys), keys)
        for turn in range(4)
    ]
    assert all(sorted(turn) == list(range(N)) for turn in members)
    assert members[:4] != members[4:]


def test_a_run_spends_one_gaussian_a_turn():
    run = eh.simulate(method(), DATA, rounds=TURN + 1, cohort=M, eval_every=TURN + 1)
    height = TURN.bit_length()
    assert run.privacy is not None
    expected = epsilon(noise_multiplier=2.0 / height**0.5, rate=1.0, steps=2, delta=run.privacy.delta)
    assert np.isclose(run.privacy.epsilon, expected, rtol=1e-9)
    assert run.per_round["reported"].max() == M


@pytest.mark.parametrize(("clients", "turn", "height"), [(7, 4, 3), (8, 4, 3), (9, 5, 3), (2, 1, 1)])
def test_a_turn_is_as_long_as_it_takes_for_all_to_have_been_in_it(clients, turn, height):
    promise = dp_ftrl(WORK, clip=0.5, noise_multiplier=2.0, cohort=2, clients=clients).privacy
    assert promise is not None
    for rounds, turns in ((turn, 1), (turn + 1, 2)):
        (release,) = promise.releases(rounds)
        assert release == eh.types.Release(2.0 / height**0.5, times=turns)


def test_it_promises_what_trees_can_and_steps_without_uploads():
    """Without a client the turns of the others would differ; a round without uploads still has its noise."""
    promise = method().privacy
    assert promise is not None
    assert promise.neighbours == "one client, whose updates are replaced by zeros"
    assert method().phases[0].steps_if_empty


def test_the_number_of_clients_must_be_told():
    with pytest.raises(eh.EvenhandError, match="give their number"):
        eh.simulate(
            dp_ftrl(WORK, clip=0.5, noise_multiplier=1.0, cohort=2, clients=50), DATA, rounds=1, cohort=2
        )


def test_cohorts_are_those_of_the_promise_whatever_a_run_asks_for():
    """In larger ones each client would take part more than once a turn, under noise that is made for once."""
    run = eh.simulate(method(), DATA, rounds=TURN, eval_every=TURN)
    assert run.per_round["reported"].tolist() == [M] * TURN
    for wrong in (M + 1, N):
        with pytest.raises(eh.EvenhandError, match="needs cohorts of 2"):
            eh.simulate(method(), DATA, rounds=1, cohort=wrong)
    scheduled = cyclic(2).scheduled
    assert scheduled is not None
    with pytest.raises(eh.EvenhandError, match="cohorts have 3 clients"):
        scheduled(jax.random.key(0), jnp.int32(0), jnp.ones(7), 3)


def test_cohorts_that_take_turns_may_have_any_size_where_nothing_rests_on_it():
    work = eh.algorithms.fedavg(WORK, sampling=cyclic())
    for size in (2, 3):
        assert eh.simulate(work, DATA, rounds=1, cohort=size).per_round["reported"].tolist() == [size]


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, "1"])
def test_noise_out_of_range_is_refused(wrong):
    with pytest.raises(eh.EvenhandError, match="noise_multiplier"):
        method(wrong)


def test_local_work_with_a_guarantee_of_its_own_is_refused():
    """Its guarantee for examples would give way to that for clients, without a word."""
    work = eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=1)
    turns: dict[str, Any] = {"noise_multiplier": 1.0, "cohort": M, "clients": N}
    with pytest.raises(eh.EvenhandError, match=r"dp_ftrl\(\): its local work already guarantees privacy"):
        dp_ftrl(work, clip=0.5, **turns)
    with pytest.raises(eh.EvenhandError, match=r"dp_fed2\(\): its local work already guarantees privacy"):
        eh.privacy.dp_fed2(work, step_sizes=(1.0, 1.0), clips=(0.5, 0.5), delay=2, **turns)


def test_it_obeys_the_contract():
    eh.testing.check_algorithm(method(), cohort=M, rounds=2)
