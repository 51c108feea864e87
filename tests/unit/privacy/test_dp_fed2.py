"""DP^2 for clients: against a NumPy loop, DP^2 for examples, DP-FedAvg, DP-FTRL; its noise, and what it publishes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from private_oracle import MODEL, examples, far, mean_of, near, norms, promised, tree_map
from scipy import stats

import evenhand as eh
from evenhand.errors import EvenhandError
from evenhand.privacy import dp2, dp_fed2, dp_fedavg, dp_ftrl
from evenhand.types import Sum, Upload

DATA = eh.testing.toy_data()
N = DATA.num_clients
RATE, SIZES, CLIPS, EPS, BETA = 0.1, (1.0, 0.05), (0.03, 2.0), 0.01, 0.9
WORK = eh.local.sgd(MODEL, RATE, epochs=1)


def method(noise=0.0, work: Any = WORK, **settings: Any):
    given = {"step_sizes": SIZES, "clips": CLIPS, "delay": (2, 1), "eps": EPS, "rate": 1.0, **settings}
    return dp_fed2(work, noise_multiplier=noise, **given)


def rule_of(method) -> Sum:
    return method.phases[0].aggregator


def ran(method, rounds, data=DATA, cohort=None):
    given = {} if cohort is None else {"cohort": cohort}
    return eh.simulate(method, data, rounds=rounds, eval_every=rounds, **given)


# --- what it computes --------------------------------------------------------------------------------------------


def rmsprop(v, square):
    return BETA * v + (1 - BETA) * square


def adagrad(v, square):
    return v + square


def yogi(v, square):
    return v + (1 - BETA) * np.sign(square - v) * square


def loop(rounds, s1=2, s2=1, follow=rmsprop, noise_first=False, size_at=lambda size, t: size):
    """Without noise, all clients in each round, one full step per client."""
    w = tree_map(np.float64, eh.simulate(method(), DATA, rounds=0).params)
    v, total = tree_map(np.zeros_like, w), tree_map(np.zeros_like, w)
    for t in range(rounds):
        r = t % (s1 + s2)
        if r == 0:
            total = tree_map(np.zeros_like, w)
        if r == s1:
            mean = tree_map(lambda g: (g / s1) ** 2, total)
            v = tree_map(follow, v, mean)
        u = answer(w, v, int(r >= s1), noise_first)
        if r < s1:
            total = tree_map(np.add, total, u)
        size = size_at(SIZES[r >= s1], t)
        w = tree_map(lambda w, u, size=size: w + size * u, w, u)
    return w


def answer(w, v, divided, noise_first):
    """The mean of clipped updates, divided before or after the clip in the second phase."""
    scales = tree_map(lambda v: np.sqrt(v) + EPS if divided else np.ones_like(v), v)
    updates = [tree_map(lambda g: -RATE * g, mean_of(examples(w, *DATA.train.client(k)))) for k in range(N)]
    stacked = tree_map(lambda *leaves: np.stack(leaves), *updates)
    if not noise_first:
        stacked = tree_map(np.divide, stacked, scales)
    factors = np.minimum(1, CLIPS[divided] / norms(stacked))
    u = tree_map(lambda leaf: np.tensordot(factors, leaf, axes=1) / N, stacked)
    return tree_map(np.divide, u, scales) if noise_first else u


def fading(size, t):
    return size / (1.0 + t)


CASES = {
    "rmsprop": ({}, {}),
    "schedules": ({"step_sizes": tuple(partial(fading, size) for size in SIZES)}, {"size_at": fading}),
    "adagrad": ({"kind": "adagrad"}, {"follow": adagrad}),
    "yogi": ({"kind": "yogi"}, {"follow": yogi}),
    "equal delays": ({"delay": 2}, {"s2": 2}),
    "noise first": ({"noise_first": True}, {"noise_first": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_without_noise_it_is_the_algorithm_with_clients_for_examples(name):
    settings, of_loop = CASES[name]
    expected = loop(7, **of_loop)
    near(ran(method(**settings), 7).params, expected)
    if settings:
        far(ran(method(), 7).params, expected, least=1e-5)


def test_for_clients_of_one_example_and_a_step_of_one_it_is_dp2():
    x, y = DATA.train.x, DATA.train.y
    none = eh.data.Split(x[:0], y[:0], np.zeros(len(x) + 1, int))
    split = eh.data.Split(x, y, np.arange(len(x) + 1))
    single = eh.data.FederatedDataset(split, none, none, tuple(map(str, range(len(x)))), name="single")
    ends = np.array([0, len(x)])
    split, none = split._replace(offsets=ends), none._replace(offsets=0 * ends)
    pooled = eh.data.FederatedDataset(split, none, none, ("all",), name="pooled")
    given = {"clips": (0.5, 3.0), "delay": (2, 3), "eps": EPS, "rate": 1.0}
    clients = method(work=eh.local.sgd(MODEL, 1.0, steps=1), step_sizes=(0.3, 0.05), **given)
    of_examples = dp2(MODEL, (0.3, 0.05), noise_multiplier=0.0, steps=9, **given)
    one = ran(clients, 9, single).params
    near(one, tree_map(np.float64, ran(eh.algorithms.alone(of_examples), 1, pooled).params), atol=1e-5)
    plain = dp_fedavg(eh.local.sgd(MODEL, 0.3, steps=1), clip=0.15, noise_multiplier=0.0, rate=1.0)
    far(one, tree_map(np.float64, ran(plain, 9, single).params))


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_before_anything_is_learnt_and_with_a_constant_divisor_it_is_dp_fedavg(noise):
    plain = dp_fedavg(WORK, clip=CLIPS[0], noise_multiplier=noise, rate=1.0)
    for rounds, settings in (
        (4, {"delay": 4}),
        (6, {"eps": 1e6, "clips": (CLIPS[0], CLIPS[0] / 1e6), "step_sizes": (1.0, 1e6)}),
    ):
        expected = tree_map(np.float64, ran(plain, rounds).params)
        near(ran(method(noise, **settings), rounds).params, expected, atol=1e-6)
        far(ran(method(noise, delay=1), rounds).params, expected, least=1e-4)


def test_where_clients_take_turns_it_is_dp_ftrl_until_something_is_learnt():
    turns: dict[str, Any] = {"cohort": 2, "clients": N}
    plain = ran(dp_ftrl(WORK, clip=CLIPS[0], noise_multiplier=1.5, **turns), 4, cohort=2).params
    near(ran(method(1.5, delay=4, **turns), 4, cohort=2).params, tree_map(np.float64, plain), atol=1e-6)
    far(ran(method(1.5, delay=1, **turns), 4, cohort=2).params, tree_map(np.float64, plain), least=1e-4)


# --- what it gives away ------------------------------------------------------------------------------------------


def test_it_promises_what_dp_fedavg_and_dp_ftrl_promise():
    alike = promised(dp_fedavg(WORK, clip=1.0, noise_multiplier=1.5, rate=0.3))
    found = method(1.5, rate=0.3)
    assert promised(found).releases(9) == alike.releases(9)
    assert promised(found).neighbours == alike.neighbours
    turns: dict[str, Any] = {"cohort": 2, "clients": N}
    in_turn, ftrl = method(1.5, **turns), dp_ftrl(WORK, clip=1.0, noise_multiplier=1.5, **turns)
    assert promised(in_turn).releases(9) == promised(ftrl).releases(9)
    assert promised(in_turn).neighbours == promised(ftrl).neighbours != promised(found).neighbours
    assert in_turn.phases[0].steps_if_empty and found.phases[0].steps_if_empty


LIKE = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(4)}


def in_turn(rule, rounds, seeds):
    """The directions of rounds without uploads, for each seed, ``(seeds, rounds, d)``."""
    nothing = (LIKE, jnp.float32(0))

    def step(state, key):
        direction, state = rule.lower(nothing, state, key)
        return state, jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(direction)])

    def run(seed):
        return jax.lax.scan(step, rule.init(LIKE, N), jax.random.split(jax.random.key(seed), rounds))[1]

    return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(seeds)))


@pytest.mark.parametrize("turns", [{}, {"cohort": 2, "clients": N}], ids=["independent", "in turn"])
def test_the_noise_is_that_of_the_clip_of_each_phase(turns):
    """Under correlated noise, that of the nodes that a prefix has and the one before it has not."""
    noise, rate = 1.5, 0.5
    rule = method(noise, rate=rate, **turns).phases[0].aggregator
    found, over = in_turn(rule, 3, 500), 2 if turns else rate * N
    for t, (clip, size) in enumerate(((CLIPS[0], 1.0), (CLIPS[0], 1.0), (CLIPS[1], SIZES[1]))):
        nodes = {0: 1, 1: 2, 2: 1}[t] if turns else 1  # 1; 1-2 without 1; 1-2 and 3
        sample = found[:, t].ravel() * over / (size * clip * noise * np.sqrt(nodes))
        assert stats.kstest(sample, "norm").pvalue > 1e-4, t
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(sample * wrong, "norm").pvalue < 1e-6


@pytest.mark.parametrize("unbiased", [False, True])
def test_the_divisor_follows_from_the_noisy_means_alone(unbiased):
    """From the directions that the server has published, ``D`` can be computed: it tells nothing else."""
    noise, rate = 1.5, 0.5
    rule = rule_of(method(noise, rate=rate, unbiased=unbiased, delay=(3, 2)))
    state, directions = rule.init(LIKE, N), []
    for key in jax.random.split(jax.random.key(0), 3):
        assert all((np.asarray(leaf) == 1).all() for leaf in rule.publish(state)[0].scales.values())
        direction, state = rule.lower((LIKE, jnp.float32(0)), state, key)
        directions.append(tree_map(np.float64, direction))
    mean = tree_map(lambda *leaves: sum(leaves) / 3, *directions)
    bias = (noise * CLIPS[0] / (rate * N)) ** 2 / 3 if unbiased else 0.0
    query = rule.publish(state)[0]
    assert float(query.clip) == pytest.approx(CLIPS[1])
    near(query.scales, tree_map(lambda g: np.sqrt(0.1 * np.maximum(g**2 - bias, 0)) + EPS, mean), 1e-7)


def test_no_client_adds_more_than_the_clip():
    """Whatever it uploads, and whatever divides it; what is not finite adds nothing."""
    rule = rule_of(method(1.0, delay=1))
    _, state = rule.lower((LIKE, jnp.float32(0)), rule.init(LIKE, N), jax.random.key(1))
    public, rng = rule.publish(state), np.random.default_rng(0)
    lift = jax.jit(
        lambda delta: rule.lift(Upload(delta, jnp.float32(1), jnp.float32(0)), public, jax.random.key(0))
    )
    lengths = []
    for size in (1e-6, 1e-2, 1.0, 1e4, 1e30):
        delta = {
            name: jnp.asarray(size * rng.normal(size=leaf.shape), jnp.float32) for name, leaf in LIKE.items()
        }
        lengths.append(float(eh.tree.norm(lift(delta)[0])))
    assert max(lengths) <= 1 + 1e-6 and lengths[0] < 0.1 and lengths[2] == pytest.approx(1.0, rel=1e-5)
    for bad in (np.inf, np.nan):
        assert float(eh.tree.norm(lift({**LIKE, "b": jnp.full(4, bad)}))) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cohort": 2}, "give both"),
        ({"clients": 5}, "give both"),
        ({"cohort": 2, "clients": N, "unbiased": True}, "leave cohort= and clients= out"),
        ({"clips": (0.5, 0.0)}, "give a number above 0"),
        ({"clips": (0.5,)}, "give two"),
        ({"rate": 0.0}, "rate=.*the chance"),
        ({"delay": 0}, "delay"),
        ({"kind": "adam"}, "give one of"),
        ({"step_sizes": (1.0,)}, "give two"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, words):
    with pytest.raises(EvenhandError, match=words):
        method(1.0, **settings)


def test_in_turn_it_obeys_the_contract():
    """With independent cohorts it is checked with all methods."""
    given = {"clips": (0.01, 0.5), "cohort": 2, "clients": N}
    eh.testing.check_algorithm(method(0.5, **given), rounds=4, cohort=2)
