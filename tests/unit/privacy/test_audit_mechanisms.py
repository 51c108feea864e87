"""Every mechanism is audited: it loses no more than it says, and less noise or a broken rule is caught."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.privacy import (
    adadps,
    audit_scores,
    audit_work,
    dp2,
    dp2_extra_query,
    dp_adam_pub,
    dp_ftrl,
    dp_r_pub,
    dp_sgd,
    epsilon,
    noisy_mean,
    pda_dpmd,
    scale_then_privatize,
    spent,
)
from evenhand.privacy.gaussian import with_gaussian
from evenhand.privacy.per_example import clipped_sum
from evenhand.types import Upload

DELTA, NOISE = 1e-7, 2 / 0.2
MANY = 500_000
"""Canaries: with so many, a mechanism with half of its noise is seen to lose more than it says."""


def coins(seed=0, many=MANY):
    return np.random.default_rng(seed).random(many) < 0.5


def judged(scores, included):
    return audit_scores(np.asarray(scores), included, delta=DELTA).epsilon


# --- local work: canaries are examples --------------------------------------------------------------------------------

STEPS = 4
COMMON = {"rate": 1.0, "steps": STEPS}
PUBLIC: Any = (np.arange(20, dtype=np.int32), np.zeros(20, np.float32))


def scales(model):
    """Small for one leaf and large for the other."""
    shapes = model.init(jax.random.key(0))
    return {"a": jnp.full_like(shapes["a"], 0.2), "b": jnp.full_like(shapes["b"], 3.0)}


MAKERS = {
    "dp_sgd": lambda model, noise: dp_sgd(model, 1.0, clip=1.0, noise_multiplier=noise, **COMMON),
    "dp_sgd, momentum": lambda model, noise: dp_sgd(
        model, optax.sgd(1.0, momentum=0.5), clip=1.0, noise_multiplier=noise, **COMMON
    ),
    "adadps, scales": lambda model, noise: adadps(
        model, 1.0, divided_by=scales(model), clip=1.0, noise_multiplier=noise, **COMMON
    ),
    "adadps, public": lambda model, noise: adadps(
        model, 1.0, public=PUBLIC, clip=1.0, noise_multiplier=noise, **COMMON
    ),
    "dp_r_pub": lambda model, noise: dp_r_pub(
        model, 1.0, public=PUBLIC, clip=1.0, noise_multiplier=noise, **COMMON
    ),
    # Without momentum, so that all steps weigh the same in the model that is judged.
    "dp_adam_pub": lambda model, noise: dp_adam_pub(
        model, 1.0, public=PUBLIC, betas=(1.0, 0.0, 0.5), eps=1.0, clip=1.0, noise_multiplier=noise, **COMMON
    ),
    "scale_then_privatize": lambda model, noise: scale_then_privatize(
        model, 1.0, b1=0.0, eps=1e3, scale_eps=1.0, clip=1.0, noise_multiplier=noise, **COMMON
    ),
    "pda_dpmd": lambda model, noise: pda_dpmd(
        model, 1.0, public=PUBLIC, total_steps=1000, clip=1.0, noise_multiplier=noise, **COMMON
    ),
    "dp2, both phases": lambda model, noise: dp2(
        model, (1.0, 1.0), clips=(1.0, 1.0), delay=2, eps=1.0, noise_multiplier=noise, **COMMON
    ),
}


def audited(make, noise, **how):
    given = {"length": 100.0, "delta": DELTA, "canaries": 250, "runs": 800}
    return audit_work(lambda model: make(model, noise), **given | how).epsilon


@pytest.mark.parametrize("name", MAKERS)
def test_local_work_loses_no_more_than_it_says_and_is_caught_with_half_of_the_noise(name):
    make = MAKERS[name]
    says = epsilon(noise_multiplier=NOISE, rate=1.0, steps=STEPS, delta=DELTA)
    assert 0.3 < audited(make, NOISE) < says < audited(make, NOISE / 2)


def test_scales_that_divide_after_the_clip_are_caught(monkeypatch):
    """What was clipped to a length of 1 is five times as long where it is then divided by 0.2."""

    def late(model, params, x, y, inside, key, *, clip, divided_by=None, plus=None):
        total, norms = clipped_sum(model, params, x, y, inside, key, clip=clip)
        return (total if divided_by is None else jax.tree.map(jnp.divide, total, divided_by)), norms

    monkeypatch.setattr("evenhand.privacy.update_rules.clipped_sum", late)
    says = epsilon(noise_multiplier=NOISE, rate=1.0, steps=STEPS, delta=DELTA)
    assert audited(MAKERS["adadps, scales"], NOISE, runs=200) > says


def test_noise_of_the_other_phase_is_caught(monkeypatch):
    """DP^2's adaptive phase under the noise of the SGD phase, whose clip is a third of its own."""

    def make(model, noise):
        return dp2(
            model, (0.0, 1.0), clips=(1 / 3, 1.0), delay=(1, 3), eps=1.0, noise_multiplier=noise, **COMMON
        )

    says = epsilon(noise_multiplier=NOISE, rate=1.0, steps=STEPS, delta=DELTA)
    assert 0.3 < audited(make, NOISE) < says
    plain = with_gaussian
    monkeypatch.setattr(
        "evenhand.privacy.update_rules.with_gaussian", lambda key, tree, _: plain(key, tree, NOISE / 3)
    )
    assert audited(make, NOISE) > says


def test_two_queries_a_step_cost_what_they_say():
    """The model shows the second of them only, so that half of the noise is not enough to be caught."""

    def make(model, noise):
        return dp2_extra_query(
            model, (1.0, 1.0), clips=(1.0, 1.0), delay=4, eps=1.0, noise_multiplier=noise, **COMMON
        )

    promise = make(eh.testing.toy_model(), NOISE).privacy
    assert promise is not None
    says = spent(promise.releases(1), delta=DELTA).epsilon
    assert says > epsilon(noise_multiplier=NOISE, rate=1.0, steps=STEPS, delta=DELTA)
    assert 0.3 < audited(make, NOISE) < says < audited(make, NOISE / 3)


# --- aggregators: canaries are clients, each with a number of its own -------------------------------------------------


def sums_of(rule, member, rounds, weights=None, seed=0):
    """The sum of all directions, or of as many as have weights, where ``member(t, key)`` says who uploads in round t.

    Each client uploads ``100 e_j``, of which ``lift`` leaves the clip; there are no other uploads.
    """
    like = {"w": jnp.zeros(MANY)}
    upload = Upload({"w": jnp.zeros(MANY).at[0].set(100.0)}, jnp.float32(1.0), jnp.float32(jnp.nan))
    steps = jnp.ones(rounds) if weights is None else jnp.asarray(weights, jnp.float32)

    @jax.jit
    def total():
        def step(carry, given):
            state, prefix, score = carry
            t, weight, key = given
            one, count = rule.lift(upload, rule.publish(state), key)
            here = member(t, jax.random.fold_in(key, 1))
            lifted = ({"w": jnp.where(here, one["w"][0], 0.0)}, count)
            direction, state = rule.lower(lifted, state, jax.random.fold_in(key, 2))
            prefix = prefix + direction["w"]
            return (state, prefix, score + weight * prefix), ()

        begin = (rule.init(like, MANY), jnp.zeros(MANY), jnp.zeros(MANY))
        given = (jnp.arange(rounds), steps, jax.random.split(jax.random.key(seed), rounds))
        return jax.lax.scan(step, begin, given)[0]

    _, prefix, score = total()
    return np.asarray(prefix if weights is None else score)


def tree_rule(noise):
    method = dp_ftrl(WORK, clip=2.0, noise_multiplier=noise, cohort=10, clients=40)
    assert method.privacy is not None
    return method.phases[0].aggregator, spent(method.privacy.releases(4), delta=DELTA).epsilon


WORK = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
TREE = 3**0.5 / 0.2
FIRST = (1.0, 1.0, 0.0, 1.0)
"""The prefixes whose noise is that of a single node which has the first round in it: nodes 1, 1-2 and 1-4."""


def test_tree_sums_lose_no_more_than_they_say_and_are_caught_with_half_of_the_noise():
    included = coins()
    (rule, says), (half, _) = tree_rule(TREE), tree_rule(TREE / 2)

    def loses(rule):
        return judged(sums_of(rule, lambda t, key: included & (t == 0), 4, FIRST), included)

    assert 0.3 < loses(rule) < says < loses(half)


def test_a_client_in_all_rounds_of_a_turn_is_caught():
    """As in a run with larger cohorts than the method's."""
    included, (rule, says) = coins(), tree_rule(TREE)
    everywhere = judged(sums_of(rule, lambda t, key: jnp.asarray(included), 4, FIRST), included)
    assert everywhere > says


RATE, ROUNDS = 0.1, 16


def test_a_rate_is_what_the_accountant_takes_it_for():
    """Samples three times as large as told are caught."""
    rule, included = noisy_mean(1.0, noise_multiplier=2.0, rate=RATE), coins()
    says = epsilon(noise_multiplier=2.0, rate=RATE, steps=ROUNDS, delta=DELTA, accountant="pld")

    def loses(rate):
        draw = eh.sampling.poisson(rate).draw

        def member(t, key):
            cohort = draw(key, jnp.ones(MANY, jnp.int32), 0)
            drawn = (
                jnp.zeros(MANY, bool).at[jnp.where(cohort.present, cohort.ids, MANY)].set(True, mode="drop")
            )
            return drawn & included

        return judged(sums_of(rule, member, ROUNDS), included)

    assert 0.1 < loses(RATE) < says < loses(3 * RATE)


def counts_of(noise, told, trials=MANY):
    """What the clip says of whether one more client was there, in independent rounds of an adaptive clip."""
    clip = eh.privacy.adaptive_clip(1.0, noise=noise)
    rule, included = noisy_mean(clip, noise_multiplier=told, rate=1.0), coins()
    upload = Upload(jnp.zeros(1), jnp.float32(1.0), jnp.float32(jnp.nan))

    @jax.jit
    @jax.vmap
    def score(here, key):
        state = rule.init(jnp.zeros(1), 10)
        delta, small = rule.lift(upload, rule.publish(state), key)
        _, state = rule.lower((delta, jnp.where(here, small, 0.0)), state, key)
        return -state.clip

    return judged(score(jnp.asarray(included), jax.random.split(jax.random.key(0), len(included))), included)


def test_an_adaptive_clips_count_loses_no_more_than_its_part():
    """One client moves it by a half: its noise of 2.5 is a multiplier of 5."""
    says = epsilon(noise_multiplier=5.0, rate=1.0, steps=1, delta=DELTA)
    assert 0.3 < counts_of(2.5, told=4.0) < says
    assert counts_of(2.5 / 2, told=2.0) > says


def quantile_losses(sigma, counting, clients):
    """Scores of one client's path in the sum of a histogram to which all clients add their noise."""
    noisy, included, nodes = counting._replace(sigma=sigma), coins(), counting.nodes
    leaf, levels = counting.bins - 1, counting.levels
    starts = np.cumsum([0, *(counting.bins >> level for level in range(levels - 1))])
    path = starts + np.array([leaf >> level for level in range(levels)])

    @jax.jit
    def scores(here, keys):
        def one(given):
            here, key = given
            own = noisy.encode(counting.largest, key)
            bare = own - jnp.zeros(nodes, jnp.uint32).at[path].set(jnp.uint32(counting.scale))
            others = eh.privacy.discrete_gaussian(
                jax.random.fold_in(key, 1), sigma=sigma, shape=(clients - 1, nodes)
            )
            rest = jax.lax.bitcast_convert_type(jnp.sum(others, axis=0), jnp.uint32)
            total = counting.modulo(jnp.where(here, own, bare) + rest)
            return jnp.sum(counting.counts(total)[path])

        return jax.lax.map(one, (here, keys), batch_size=2000)

    keys = jax.random.split(jax.random.key(0), len(included))
    return np.asarray(scores(jnp.asarray(included), keys), np.float64), included


def test_a_private_histogram_loses_no_more_than_it_says_and_is_caught_with_half_of_the_noise():
    clients = 5
    counting = eh.privacy.histogram_for(
        0.5 * 0.2**2, clients=clients, bins=4, largest=1.0, sensitivity="tight"
    )
    release = eh.privacy.concentrated(counting, clients=clients, sensitivity="tight")
    says = spent([release], delta=DELTA).epsilon
    sound, half = (judged(*quantile_losses(part * counting.sigma, counting, clients)) for part in (1.0, 0.5))
    assert 0.3 < sound < says < half


def replaced_client(rule, state, answering):
    """Scores of sums in which one client points up or down, and as many others as answer add noise alone."""
    included, nothing = coins(), jnp.float32(jnp.nan)

    def lifted(number, key):
        return rule.lift(Upload(jnp.full(1, number), jnp.float32(1.0), nothing), rule.publish(state), key)[0]

    @jax.jit
    def scores(here, keys):
        def one(given):
            here, key = given
            keys = jax.random.split(key, answering)
            words = lifted(jnp.where(here, 100.0, -100.0), keys[0])
            words = words + jnp.sum(jax.vmap(lambda key: lifted(0.0, key))(keys[1:]), axis=0)
            return rule.lower((words, jnp.uint32(ANSWERING)), state, key)[0][0]

        return jax.lax.map(one, (here, keys), batch_size=2000)

    keys = jax.random.split(jax.random.key(0), len(included))
    return judged(scores(jnp.asarray(included), keys), included)


ANSWERING = 8


def test_a_discrete_mean_loses_no_more_than_it_says_and_is_caught_where_too_few_add_noise():
    """A quarter of the clients that it counts on add half of the noise.

    With as little noise as here, a release that forgot that a replaced client counts twice would be caught, too.
    """
    rule = eh.privacy.discrete_mean(1.0, noise_multiplier=4.0, rate=1.0, fewest=ANSWERING)
    assert rule.release is not None
    says, state = spent([rule.release], delta=DELTA).epsilon, rule.init(jnp.zeros(1), ANSWERING)
    assert 0.3 < replaced_client(rule, state, ANSWERING) < says
    assert replaced_client(rule, state, ANSWERING // 4) > says


# --- the audit itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "included"),
    [
        (np.zeros(9), np.zeros(9, bool)),
        (np.zeros(10), np.zeros(11, bool)),
        (np.zeros((5, 2)), np.zeros((5, 2))),
    ],
)
def test_scores_without_a_coin_each_are_refused(scores, included):
    with pytest.raises(eh.EvenhandError, match="ten scores or more"):
        audit_scores(scores, included, delta=0.0)


def test_runs_have_canaries_of_their_own():
    found = audit_work(
        lambda model: MAKERS["dp_sgd"](model, 1.0), length=100.0, delta=DELTA, canaries=50, runs=3
    )
    parts = found.included.reshape(3, 50)
    assert len({part.tobytes() for part in parts}) == 3
    assert found.scores[found.included].mean() - found.scores[~found.included].mean() > STEPS / 2
    rest = found.scores.reshape(3, 50) - STEPS * parts
    assert np.abs(np.corrcoef(rest)[~np.eye(3, dtype=bool)]).max() < 0.5  # and noise
