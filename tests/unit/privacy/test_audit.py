"""Audits: sound mechanisms pass, and those with half of the noise, a client twice or a layer unclipped are caught."""

import jax
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand import tree
from evenhand.privacy import audit_mean, audit_scores, audit_work, dp_sgd, epsilon, least_epsilon, noisy_mean
from evenhand.privacy.per_example import clipped_sum
from evenhand.types import Sum

DELTA, NOISE = 1e-7, 2 / 0.3
CLAIMED = epsilon(noise_multiplier=NOISE, rate=1.0, steps=4, delta=DELTA)


def audited(aggregator, **how):
    return audit_mean(aggregator, **{"rounds": 4, "length": 100.0, "delta": DELTA} | how)


def test_a_noisy_mean_loses_something_but_no_more_than_it_says():
    found = audited(noisy_mean(1.0, noise_multiplier=NOISE, rate=1.0))
    assert 0.2 < found.epsilon < CLAIMED


def _twice(rule):
    return rule._replace(lift=lambda upload, public, key: tree.scale(2.0, rule.lift(upload, public, key)))


def _one_layer_unclipped(rule):
    def lift(upload, public, key):
        (clipped, small) = rule.lift(upload._replace(delta={"a": upload.delta["a"]}), public, key)
        return {**clipped, "b": upload.delta["b"]}, small

    return rule._replace(lift=lift)


BROKEN = {
    "half of the noise": noisy_mean(1.0, noise_multiplier=NOISE / 2, rate=1.0),
    "a client twice": _twice(noisy_mean(1.0, noise_multiplier=NOISE, rate=1.0)),
    "a layer unclipped": _one_layer_unclipped(noisy_mean(1.0, noise_multiplier=NOISE, rate=1.0)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mean_is_caught(name):
    assert audited(BROKEN[name]).epsilon > CLAIMED


def test_a_mean_under_an_adaptive_clip():
    rule = noisy_mean(eh.privacy.adaptive_clip(1.0, noise=NOISE), noise_multiplier=NOISE, rate=1.0)
    assert audited(rule, rounds=1).epsilon < epsilon(noise_multiplier=NOISE, rate=1.0, steps=1, delta=DELTA)


def sgd(noise, steps=4):
    def make(model):
        return dp_sgd(model, 1.0, clip=1.0, noise_multiplier=noise, rate=1.0, steps=steps)

    return make


def of_work(make, canaries=3000):
    return audit_work(make, length=100.0, delta=DELTA, canaries=canaries)


def test_dp_sgd_passes_and_is_caught_with_a_third_of_the_noise():
    assert of_work(sgd(NOISE)).epsilon < CLAIMED < of_work(sgd(NOISE / 3)).epsilon


def test_dp_sgd_is_caught_where_a_layer_is_not_clipped(monkeypatch):
    def leaky(model, params, x, y, inside, key, *, clip, divided_by=None, plus=None):
        clipped, norms = clipped_sum(model, params, x, y, inside, key, clip=clip)
        whole, _ = clipped_sum(model, params, x, y, inside, key, clip=np.inf)
        return {"a": clipped["a"], "b": whole["b"]}, norms

    monkeypatch.setattr("evenhand.privacy.update_rules.clipped_sum", leaky)
    assert of_work(sgd(NOISE)).epsilon > CLAIMED


def test_guesses_that_are_no_better_than_a_coin_show_nothing():
    assert least_epsilon(50, 100, canaries=1000, delta=1e-6) == 0.0


@pytest.mark.parametrize(("correct", "guesses"), [(95, 100), (199, 200), (60, 80)])
def test_without_delta_the_bound_is_that_of_coins(correct, guesses):
    """Randomised response is the worst case of pure differential privacy: p = e^eps / (1 + e^eps)."""
    bound = least_epsilon(correct, guesses, canaries=guesses, delta=0.0)
    p = 1 / (1 + np.exp(-bound))
    assert np.isclose(stats.binom.sf(correct - 1, guesses, p), 0.05, rtol=1e-3)


def test_randomised_response_is_never_convicted_beyond_its_epsilon():
    """With 95 % confidence, 200 trials convict an honest mechanism some ten times; here it may be 20."""
    rng, true = np.random.default_rng(0), 1.0
    right = rng.binomial(100, 1 / (1 + np.exp(-true)), 200)
    bounds = np.array([least_epsilon(int(each), 100, canaries=100, delta=0.0) for each in right])
    assert (bounds > true).sum() <= 20 and (bounds > 0.3).mean() > 0.5


def test_delta_weakens_what_guesses_show():
    exact, loose = (least_epsilon(95, 100, canaries=1000, delta=delta) for delta in (0.0, 1e-4))
    assert loose < exact


def test_impossible_counts_are_refused():
    with pytest.raises(eh.EvenhandError, match="no more right guesses"):
        least_epsilon(11, 10, canaries=100, delta=0.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *(({"confidence": bad}, rf"confidence={bad}: give a number above 0") for bad in (95, 1.0, 0.0, -1)),
        *(({"delta": bad}, rf"delta={bad}: give a number of at least 0") for bad in (-1e-3, 1.0, np.nan)),
    ],
)
def test_odds_with_which_any_audit_would_pass_are_refused(wrong, words):
    odds = {"delta": 1e-6} | wrong
    scores, included = np.arange(20.0), np.arange(20) > 9
    rule = noisy_mean(1.0, noise_multiplier=1.0, rate=1.0)
    for run in (
        lambda: least_epsilon(90, 100, canaries=1000, **odds),
        lambda: audit_scores(scores, included, **odds),
        lambda: audit_mean(rule, rounds=1, length=1.0, **odds),
        lambda: audit_work(sgd(1.0), length=1.0, **odds),
    ):
        with pytest.raises(eh.EvenhandError, match=words):
            run()


def test_an_audit_repeats_itself_with_its_seed():
    rule = noisy_mean(1.0, noise_multiplier=2.0, rate=1.0)
    one, same, other = (audited(rule, canaries=200, runs=2, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.scores, same.scores) and not np.array_equal(one.scores, other.scores)
    assert len({coins.tobytes() for audit in (one, other) for coins in audit.included.reshape(2, 200)}) == 4


def test_the_bound_is_that_of_the_theorem():
    """Theorem 5.2 by sums over all outcomes."""
    correct, guesses, canaries, delta = 88, 100, 1000, 1e-5
    p = 1 / (1 + np.exp(-least_epsilon(correct, guesses, canaries=canaries, delta=delta)))
    law = stats.binom.pmf(np.arange(guesses + 1), guesses, p)
    worst = max(law[correct - i : correct].sum() / i for i in range(1, correct + 1))
    assert np.isclose(law[correct:].sum() + 2 * canaries * delta * worst, 0.05, rtol=1e-3)


def test_scores_that_say_nothing_convict_nobody_more_often_than_is_told():
    """Of 300 mechanisms that give nothing away, 15 may be convicted; without a price for tries, it is 60 or more."""
    rng = np.random.default_rng(0)
    found = [
        audit_scores(rng.normal(size=200), rng.random(200) < 0.5, delta=0.0).epsilon > 0 for _ in range(300)
    ]
    assert sum(found) <= 15


def test_each_try_at_the_highest_and_at_both_ends_has_a_part_of_the_doubt():
    """All guesses are right: 12 numbers of them are tried, for the highest alone and for both ends."""
    included = np.arange(1000) < 500
    found = audit_scores(-np.arange(1000.0), included, delta=0.0)
    assert found.correct == found.guesses == 1000
    part = least_epsilon(1000, 1000, canaries=1000, delta=0.0, confidence=1 - 0.05 / 24)
    assert found.epsilon == pytest.approx(part, rel=1e-6)


def test_clients_of_an_audit_add_noise_of_their_own():
    """The sum of 1 from each of some 200 clients has the deviation 14; that of the same noise from all, 200."""
    rule = Sum(
        lambda like, clients: (),
        lambda upload, public, key: jax.tree.map(
            lambda leaf: leaf + jax.random.normal(key, leaf.shape), upload.delta
        ),
        lambda total, state, key: (total, state),
        publish=lambda state: (),
    )
    found = audit_mean(rule, rounds=1, length=1e-3, delta=DELTA, canaries=400, runs=1)
    assert np.isclose(found.scores.std(), found.included.sum() ** 0.5, rtol=0.2)


def test_guesses_at_both_ends_are_counted_apart():
    """The highest are all in; of the lowest, half."""
    included = np.concatenate([np.ones(100, bool), np.arange(900) % 2 == 0])
    found = audit_scores(-np.arange(1000.0), included, delta=0.0)
    assert found.correct <= found.guesses and found.guesses <= 250
    assert found.correct >= 0.75 * found.guesses


def test_runs_of_a_mean_have_coins_of_their_own_and_rounds_noise_of_their_own():
    rule = noisy_mean(1.0, noise_multiplier=1.0, rate=1.0)
    found = audited(rule, rounds=9, canaries=400, runs=3)
    parts = found.included.reshape(3, 400)
    assert len({part.tobytes() for part in parts}) == 3
    scores = 400 * found.scores
    assert np.isclose(scores[found.included].mean() - scores[~found.included].mean(), 9.0, atol=0.8)
    assert np.isclose(scores[~found.included].std(), 3.0, rtol=0.1)
