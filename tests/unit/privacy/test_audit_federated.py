"""Whole runs are audited, from the clients' examples to the final model: canaries are clients of one example each.

Everybody is there in each round: a rate below one is audited with the aggregator alone.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import evenhand as eh
from evenhand.privacy import (
    Histogram,
    adadps_fl,
    adaptive_clip,
    audit_scores,
    dp_delta_fl,
    dp_fed2,
    dp_fedavg,
    dp_ftrl,
    dp_term,
    spent,
)
from evenhand.privacy.dp_term import Tilted
from evenhand.types import Model, Release, Sum, Upload

DELTA, NOISE, ROUNDS, CANARIES = 1e-7, 2 / 0.3, 4, 6000
INCLUDED = np.random.default_rng(0).random(CANARIES) < 0.5
PRESENT = int(INCLUDED.sum())


def canaries(count=CANARIES):
    """The loss of client j is -100 times the j-th number, so that its updates are long and orthogonal."""

    def init(key):
        return {"w": jnp.zeros(count)}

    def apply(params, x):
        return 100.0 * params["w"][x[:, 0]]

    return Model(init, apply, lambda outputs, y: -outputs, {}, name="canaries")


WORK = eh.local.sgd(canaries(), 1.0, epochs=1, batch_size=1)
SCALES = {"w": jnp.where(jnp.arange(CANARIES) % 2 == 0, 0.1, 3.0)}
GIVEN: dict[str, Any] = {"clip": 1.0, "rate": 1.0}

METHODS = {
    "dp_fedavg": lambda noise: dp_fedavg(WORK, noise_multiplier=noise, **GIVEN),
    "an adaptive clip": lambda noise: dp_fedavg(
        WORK, clip=adaptive_clip(1.0, noise=2e3), noise_multiplier=noise, rate=1.0
    ),
    "adadps_fl": lambda noise: adadps_fl(WORK, divided_by=SCALES, noise_multiplier=noise, **GIVEN),
    "dp_delta_fl": lambda noise: dp_delta_fl(
        WORK, theta=1.0, largest_loss=1.0, share=0.01, noise_multiplier=noise, **GIVEN
    ),
    "dp_ftrl": lambda noise: dp_ftrl(WORK, clip=1.0, noise_multiplier=noise, cohort=PRESENT, clients=PRESENT),
}


def ends(method, clients_of_each=1):
    """Where the number of each canary ends."""
    rows = np.repeat(np.flatnonzero(INCLUDED), clients_of_each)
    train = eh.data.Split(
        rows[:, None].astype(np.int32), np.zeros(len(rows), np.float32), np.arange(len(rows) + 1)
    )
    none = eh.data.Split(train.x[:0], train.y[:0], np.zeros(len(rows) + 1, int))
    data = eh.data.FederatedDataset(
        train, none, none, tuple(str(i) for i in range(len(rows))), name="canaries"
    )
    run = eh.simulate(method, data, rounds=ROUNDS, eval_every=ROUNDS)
    return np.asarray(run.params["w"])


def loses(method, clients_of_each=1):
    return audit_scores(ends(method, clients_of_each), INCLUDED, delta=DELTA).epsilon


def says(method):
    return spent(method.privacy.releases(ROUNDS), delta=DELTA).epsilon


@pytest.mark.parametrize("name", METHODS)
def test_a_run_loses_no_more_than_it_says_and_is_caught_with_a_third_of_the_noise(name):
    make = METHODS[name]
    assert 0.3 < loses(make(NOISE)) < says(make(NOISE)) < loses(make(NOISE / 3))


# --- noise that is halved ----------------------------------------------------------------------------------------

SHIFTED = canaries()._replace(losses=lambda outputs, y: 2.0 - outputs)
TILTED: dict[str, Any] = {"largest_loss": 1.0, **GIVEN}
SCALED: dict[str, Any] = {"step_sizes": (1.0, 1.0), "clips": (1.0, 1.0), "delay": 2}
TIGHT = {
    "dp_fed2": lambda noise: dp_fed2(WORK, noise_multiplier=noise, rate=1.0, **SCALED),
    "dp_fed2, in turn": lambda noise: dp_fed2(
        WORK, noise_multiplier=noise, cohort=-(-PRESENT // 2), clients=PRESENT, **SCALED
    ),
    "dp_term, for the best": lambda noise: dp_term(WORK, t=-1.0, noise_multiplier=noise, **TILTED),
    "dp_term, for the worst": lambda noise: dp_term(
        eh.local.sgd(SHIFTED, 1.0, epochs=1, batch_size=1), t=1.0, noise_multiplier=noise, **TILTED
    ),
}


WORK_SENDS = Tilted(jnp.zeros(3), jnp.float32(1.0))
"""What a client of the largest weight uploads."""


def gaussian_epsilon(scores) -> Any:
    """The least epsilon of a Gaussian mechanism under which so many canaries above the mean score are likely.

    With 95 % confidence.  As it knows the shape of the noise, it is sharper than an audit that does not (Nasr et al.,
    *Tight Auditing of Differentially Private Machine Learning*, USENIX Security 2023).
    """
    high = scores > scores.mean()
    hits, misses, present, absent = (
        int(each.sum()) for each in (high & INCLUDED, high & ~INCLUDED, INCLUDED, ~INCLUDED)
    )
    true = stats.beta.ppf(0.025, hits, present - hits + 1)
    false = stats.beta.ppf(0.975, misses + 1, absent - misses)
    mu = max(stats.norm.ppf(true) - stats.norm.ppf(false), 1e-3)

    def delta(epsilon):
        return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
            -mu / 2 - epsilon / mu
        )

    return optimize.brentq(lambda epsilon: delta(epsilon) - DELTA, 0.0, 50.0)


@pytest.mark.parametrize("name", TIGHT)
def test_a_run_loses_no_more_than_it_says_and_is_caught_with_half_of_the_noise(name):
    """The last model alone is judged: in turn it hides more than all of them together."""
    make = TIGHT[name]
    sound, told, half = ends(make(2.0)), says(make(2.0)), ends(make(1.0))
    assert audit_scores(sound, INCLUDED, delta=DELTA).epsilon < told
    assert 0.4 * told < gaussian_epsilon(sound) < told < gaussian_epsilon(half)


def test_somebody_who_is_three_clients_is_caught():
    method = METHODS["dp_fedavg"](NOISE)
    assert loses(method, clients_of_each=3) > says(method)


# --- noise at the clients: a canary is replaced by its opposite --------------------------------------------------


FEW = 1000
SIGNS = np.where(INCLUDED[:FEW], 1.0, -1.0).astype(np.float32)


def of_opposites(method):
    """The epsilon that a run of whole numbers loses, from how far canaries and their opposites are apart.

    Scores are normal, as the noise of all clients is nearly, so that how far they are apart, over its standard
    deviation, says all; it is taken to be three standard errors smaller than it looks.
    """
    rows = np.arange(FEW)
    train = eh.data.Split(rows[:, None].astype(np.int32), SIGNS, np.arange(FEW + 1))
    none = eh.data.Split(train.x[:0], train.y[:0], np.zeros(FEW + 1, int))
    data = eh.data.FederatedDataset(train, none, none, tuple(map(str, rows)), name="opposites")
    run = eh.simulate(method, data, rounds=ROUNDS, eval_every=ROUNDS)
    models = run.params if isinstance(run.params, tuple) else (run.params,)
    scores = np.asarray(models[0]["w"], np.float64) * SIGNS
    deviation = scores.std()
    assert stats.kstest((scores - scores.mean()) / deviation, "norm").pvalue > 1e-3
    apart = (2 * scores.mean() - 3 * 2 * deviation / FEW**0.5) / deviation
    return spent([Release(1 / apart)], delta=DELTA).epsilon


def with_noise_at_clients(noise, theta: Any = 1.0):
    model = canaries(FEW)
    work = eh.local.sgd(model._replace(losses=lambda outputs, y: -outputs * y), 1.0, epochs=1, batch_size=1)
    given = {"theta": theta, "largest_loss": 1.0, "share": 0.01, "fewest": FEW, **GIVEN}
    return dp_delta_fl(work, noise_multiplier=noise, at_server=False, **given)


def test_a_run_with_noise_at_the_clients_loses_no_more_than_it_says_and_is_caught_with_half_of_it():
    sound, half = with_noise_at_clients(NOISE), with_noise_at_clients(NOISE / 2)
    assert 0.3 * says(sound) < of_opposites(sound) < says(sound) < of_opposites(half)


@pytest.mark.filterwarnings("ignore:No client has validation examples to choose a level on")
def test_several_levels_lose_no_more_than_one():
    """Each canary is in both models, under one clip; were each of them clipped by itself, they would lose more."""
    several = with_noise_at_clients(NOISE, (1.0, 0.5))
    assert says(several) == says(with_noise_at_clients(NOISE))
    assert 0.3 < of_opposites(several) < says(several)


def test_the_quantile_of_delta_fl_loses_no_more_than_its_part_and_is_caught_with_half_of_the_noise(
    monkeypatch,
):
    """Judged by the noisy counts on the path of one client, which the server sees before it reads a quantile off."""

    def on_the_path(self, total, clients, *, theta):
        leaf, levels = self.bins - 1, self.levels
        starts = np.cumsum([0, *(self.bins >> level for level in range(levels - 1))])
        return jnp.sum(self.counts(total)[starts + np.array([leaf >> level for level in range(levels)])])

    monkeypatch.setattr(Histogram, "decode", on_the_path)
    coins = np.random.default_rng(0).random(500_000) < 0.5

    def judged(noise):
        given = {"theta": 0.5, "largest_loss": 1.0, "share": 1.0, "bins": 4, **GIVEN}
        method = dp_delta_fl(WORK, noise_multiplier=noise, **given)
        rule = method.phases[0].aggregator
        assert isinstance(rule, Sum) and rule.release is not None

        @jax.jit
        @jax.vmap
        def score(here, key):
            upload = Upload(jnp.float32(1.0), jnp.float32(1.0), jnp.float32(jnp.nan))
            counts, clients = rule.lift(upload, rule.publish(rule.init(jnp.float32(0.0), 1)), key)
            return rule.lower((jnp.where(here, counts, 0), clients), (), key)[0]

        scores = score(jnp.asarray(coins), jax.random.split(jax.random.key(0), len(coins)))
        return audit_scores(np.asarray(scores), coins, delta=DELTA).epsilon, spent(
            [rule.release], delta=DELTA
        ).epsilon

    (sound, told), (half, _) = judged(2.0), judged(1.0)
    assert 0.3 < sound < told < half


def test_the_denominator_of_term_loses_no_more_than_its_part_and_is_caught_with_half_of_the_noise():
    """Judged by the noisy mean weight, of a client with the largest weight among a thousand that are expected."""
    coins = np.random.default_rng(0).random(500_000) < 0.5

    def judged(noise):
        rule = dp_term(WORK, t=2.0, share=1.0, noise_multiplier=noise, **TILTED).phases[0].aggregator
        assert isinstance(rule, Sum) and rule.release is not None
        like = jax.tree.map(jnp.zeros_like, WORK_SENDS)

        @jax.jit
        @jax.vmap
        def score(here, key):
            lifted = rule.lift(Upload(WORK_SENDS, jnp.float32(1.0), jnp.float32(jnp.nan)), (), key)
            total = jax.tree.map(lambda leaf: jnp.where(here, leaf, 0.0), lifted)
            return rule.lower(total, rule.init(like, 1000), key)[0].weight

        scores = score(jnp.asarray(coins), jax.random.split(jax.random.key(0), len(coins)))
        part = rule.release._replace(noise_multiplier=noise * 2**0.5)
        return audit_scores(np.asarray(scores), coins, delta=DELTA).epsilon, spent(
            [part], delta=DELTA
        ).epsilon

    (sound, told), (half, _) = judged(2.0), judged(1.0)
    assert 0.3 < sound < told < half


def test_counts_under_the_clients_noise_lose_no_more_than_their_part_and_are_caught_with_half_of_it():
    """A client is replaced by one at the other end: judged by the counts on one path, less those on the other."""
    coins = np.random.default_rng(0).random(200_000) < 0.5
    given = {"theta": 0.5, "largest_loss": 1.0, "share": 1.0, "bins": 4, "fewest": 2, **GIVEN}

    def judged(noise):
        rule = dp_delta_fl(WORK, noise_multiplier=noise, at_server=False, **given).phases[0].aggregator
        assert isinstance(rule, Sum) and rule.release is not None

        @jax.jit
        @jax.vmap
        def score(high, keys):
            losses = jnp.stack([high.astype(jnp.float32), jnp.float32(0.3)])
            uploads = Upload(losses, jnp.ones(2), jnp.full(2, jnp.nan))
            words, _ = jax.vmap(lambda upload, key: rule.lift(upload, (), key))(uploads, keys)
            return jax.lax.bitcast_convert_type(words.sum(axis=0, dtype=jnp.uint32), jnp.int32)

        counts = score(jnp.asarray(coins), jax.random.split(jax.random.key(0), (len(coins), 2)))
        scores = np.asarray(counts, float) @ [-1.0, 0.0, 0.0, 1.0, -1.0, 1.0]
        return audit_scores(scores, coins, delta=DELTA).epsilon, spent([rule.release], delta=DELTA).epsilon

    (sound, told), (half, _) = judged(2.0), judged(1.0)
    assert 0.3 < sound < told < half
