"""The noisy mean of clipped uploads: equal to NumPy without noise, and noise of the promised size on every number."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import evenhand as eh
from evenhand.aggregators import reduce_uploads
from evenhand.types import Upload

N = 40


def uploads(rng, m=9, scale=1.0):
    deltas = {"w": scale * rng.normal(size=(m, 4, 3)), "b": (scale * rng.normal(size=m),)}
    deltas = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), deltas)
    return Upload(deltas, jnp.asarray(rng.integers(1, 50, m), jnp.float32), jnp.full(m, jnp.nan))


def reduced(rule, given, present=None, seed=0, state=None):
    m = given.weight.shape[0]
    like = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), given.delta)
    present = jnp.ones(m, bool) if present is None else present
    state = rule.init(like, N) if state is None else state
    keys = jax.random.split(jax.random.key(seed + 1), m)
    return reduce_uploads(rule, given, present, state, jax.random.key(seed), keys)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(tree)])


def rows(given):
    return np.stack(
        [flat(jax.tree.map(lambda leaf, k=k: leaf[k], given.delta)) for k in range(given.weight.shape[0])]
    )


@pytest.mark.parametrize("clip", [0.5, 3.0, 1e6])
def test_without_noise_it_is_the_sum_of_clipped_uploads_over_the_expected_number(clip):
    """Not over the number that came, nor weighted by what clients report."""
    given, rate = uploads(np.random.default_rng(0)), 0.3
    present = jnp.arange(9) != 4
    found, _ = reduced(eh.privacy.noisy_mean(clip, noise_multiplier=0.0, rate=rate), given, present)
    each = np.delete(rows(given), 4, axis=0)
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    assert (norms > 3.0).any() and (norms < 6.0).any()
    expected = (each * np.minimum(1.0, clip / norms)).sum(axis=0) / (rate * N)
    np.testing.assert_allclose(flat(found), expected, rtol=2e-6, atol=1e-7)


def _noise(clip=2.0, noise_multiplier=1.5, rate=0.5, seeds=300):
    """The noise of many rounds without any client."""
    rule = eh.privacy.noisy_mean(clip, noise_multiplier=noise_multiplier, rate=rate)
    given = uploads(np.random.default_rng(0), m=1)
    one = jax.jit(lambda seed: reduced(rule, given, jnp.zeros(1, bool), seed)[0])
    return np.stack([flat(one(seed)) for seed in range(seeds)])


def test_noise_has_the_promised_size_on_every_number_and_two_thirds_of_it_would_be_noticed():
    found, size = _noise(), 1.5 * 2.0 / (0.5 * N)
    for column in found.T:
        assert stats.kstest(column, "norm", (0.0, size)).pvalue > 1e-4
    assert stats.kstest(found.reshape(-1), "norm", (0.0, size)).pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(found.reshape(-1), "norm", (0.0, wrong * size)).pvalue < 1e-6


def test_no_two_numbers_or_rounds_share_their_noise():
    """One key for two leaves would repeat it, and so would one key for two rounds."""
    found = _noise()
    assert len(np.unique(found)) == found.size
    across = np.corrcoef(found.T) - np.eye(found.shape[1])
    assert np.abs(across).max() < 5 / np.sqrt(len(found))


def test_noise_follows_clip_and_multiplier():
    base = _noise(seeds=200).std()
    assert np.isclose(_noise(clip=4.0, seeds=200).std(), 2 * base, rtol=0.1)
    assert np.isclose(_noise(noise_multiplier=3.0, seeds=200).std(), 2 * base, rtol=0.1)
    assert np.isclose(_noise(rate=0.25, seeds=200).std(), 2 * base, rtol=0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_an_upload_that_is_not_finite_counts_as_zero(bad):
    given = uploads(np.random.default_rng(1))
    rule = eh.privacy.noisy_mean(1.0, noise_multiplier=0.0, rate=0.5)
    without, _ = reduced(rule, given, jnp.arange(9) != 2)
    spoilt = given._replace(delta={**given.delta, "w": given.delta["w"].at[2].set(bad)})
    np.testing.assert_array_equal(flat(reduced(rule, spoilt)[0]), flat(without))


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_one_upload_moves_the_sum_by_at_most_the_clip(numbers, clip):
    rule = eh.privacy.noisy_mean(clip, noise_multiplier=0.0, rate=1.0)
    upload = Upload(jnp.asarray(numbers, jnp.float32), jnp.float32(1e6), jnp.float32(jnp.nan))
    lifted, _ = rule.lift(upload, jnp.float32(clip), jax.random.key(0))
    length = np.linalg.norm(np.asarray(lifted, np.float64))
    assert length <= clip * (1 + 1e-6)
    before = np.linalg.norm(np.asarray(numbers, np.float64))
    assert np.isclose(length, min(before, clip), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("clip", [1e-12, 1e-6, 1.0, 1e15])
def test_the_smallest_and_the_largest_clip_hold_to_rounding(clip):
    """Squares of numbers below 1e-19 are zeros in float32, of which ten thousand are in each upload."""
    rule = eh.privacy.noisy_mean(clip, noise_multiplier=1.0, rate=1.0)
    lift = jax.jit(rule.lift)
    for factor in (1e-4, 0.999, 1.001, 3.0, 1e3):
        even, one = np.full(10_000, factor * clip / 100.0), np.full(10_000, 1e-20)
        one[0] = factor * clip
        for delta in (even, one):
            given = jnp.asarray(delta, jnp.float32)
            lifted, _ = lift(
                Upload(given, jnp.float32(1), jnp.float32(0)), jnp.float32(clip), jax.random.key(0)
            )
            length = np.linalg.norm(np.asarray(lifted, np.float64))
            assert np.isclose(length, min(np.linalg.norm(delta), clip), rtol=1e-5, atol=0.0)


def test_uploads_in_half_precision_are_refused():
    """256 + 1 is 256 in bfloat16: rounding a sum may move it by more than one upload does."""
    rule = eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=0.5)
    for half in (jnp.bfloat16, jnp.float16):
        with pytest.raises(eh.EvenhandError, match="half precision"):
            rule.init({"w": jnp.zeros(3), "b": jnp.zeros(2, half)}, N)


def test_an_upload_of_zeros_stays():
    rule = eh.privacy.noisy_mean(1.0, noise_multiplier=0.0, rate=0.5)
    given = uploads(np.random.default_rng(1))
    nothing = given._replace(delta=jax.tree.map(jnp.zeros_like, given.delta))
    assert (flat(reduced(rule, nothing)[0]) == 0).all()


def test_the_adaptive_clip_follows_the_quantile_as_in_numpy():
    """Andrew et al., algorithm 1, without noise: three rounds, from a clip below all norms."""
    rng, rate = np.random.default_rng(2), 9 / N
    adaptive = eh.privacy.adaptive_clip(0.5, quantile=0.7, step=0.4, noise=1e-9)
    rule = eh.privacy.noisy_mean(adaptive, noise_multiplier=0.0, rate=rate)
    clip, state = 0.5, None
    for _ in range(3):
        given = uploads(rng, scale=0.3)
        found, state = reduced(rule, given, state=state)
        norms = np.linalg.norm(rows(given), axis=1)
        shortened = (rows(given) * np.minimum(1, clip / norms)[:, None]).sum(axis=0) / (rate * N)
        np.testing.assert_allclose(flat(found), shortened, rtol=1e-5)
        clip *= np.exp(-0.4 * ((norms <= clip).mean() - 0.7))
        np.testing.assert_allclose(float(state.clip), clip, rtol=1e-5)
    assert clip > 0.5


@pytest.mark.parametrize(("clip", "small"), [(4.9, -0.5), (5.0, 0.5), (5.1, 0.5)])
def test_an_upload_as_long_as_an_adaptive_clip_is_not_above_it(clip, small):
    rule = eh.privacy.noisy_mean(eh.privacy.adaptive_clip(1.0, noise=2.0), noise_multiplier=1.0, rate=0.5)
    upload = Upload(jnp.array([3.0, 4.0]), jnp.float32(1), jnp.float32(0))
    assert rule.lift(upload, jnp.float32(clip), jax.random.key(0))[1] == small


def test_the_adaptive_clip_settles_at_the_quantile():
    adaptive = eh.privacy.adaptive_clip(0.01, quantile=0.5, step=0.2, noise=2.0)
    rule = eh.privacy.noisy_mean(adaptive, noise_multiplier=1.0, rate=0.5)
    given = uploads(np.random.default_rng(3), m=20)
    step = jax.jit(lambda state, seed: reduced(rule, given, seed=seed, state=state)[1])
    state = rule.init(jax.tree.map(lambda leaf: leaf[0], given.delta), N)
    clips = []
    for seed in range(300):
        state = step(state, seed)
        clips.append(float(state.clip))
    median = np.median(np.linalg.norm(rows(given), axis=1))
    assert abs(np.mean(clips[-100:]) / median - 1) < 0.1


@pytest.mark.parametrize(
    ("first", "least", "most"), [(0.1, 1e-7, 1e5), (1e-9, 1e-12, 1e-3), (1e12, 1e6, 1e15)]
)
def test_the_adaptive_clip_stays_within_a_million_times_the_first_one(first, least, most):
    rule = eh.privacy.noisy_mean(
        eh.privacy.adaptive_clip(first, noise=1.0, step=20.0), noise_multiplier=1.0, rate=1.0
    )
    for small, bound in ((1.0, least), (-1.0, most)):
        state = rule.init(jnp.zeros(3), N)
        for seed in range(3):  # all uploads are shorter than the clip, or longer
            total = jnp.zeros(3), jnp.float32(small * N / 2)
            mean, state = rule.lower(total, state, jax.random.key(seed))
        np.testing.assert_allclose(float(state.clip), bound, rtol=1e-6)
        assert np.isfinite(mean).all() and (np.asarray(mean) != 0).all()


def test_counting_clips_takes_its_part_of_the_noise():
    """z^-2 = z_mean^-2 + (2 sigma_b)^-2: what both give away together is what a round may give away."""
    adaptive = eh.privacy.adaptive_clip(2.0, noise=1.0)
    rule = eh.privacy.noisy_mean(adaptive, noise_multiplier=1.5, rate=0.5)
    given = uploads(np.random.default_rng(0), m=1)
    one = jax.jit(lambda seed: reduced(rule, given, jnp.zeros(1, bool), seed))
    pairs = [one(seed) for seed in range(400)]
    size = np.std([flat(mean) for mean, _ in pairs]) * (0.5 * N) / 2.0
    assert np.isclose(size, (1.5**-2 - 0.25) ** -0.5, rtol=0.05)
    shares = [-np.log(float(state.clip) / 2.0) / 0.2 + 0.5 - 0.5 for _, state in pairs]
    assert np.isclose(np.std(shares), 1.0 / (0.5 * N), rtol=0.1)
    means = np.array([flat(mean)[0] for mean, _ in pairs])
    assert abs(np.corrcoef(means, shares)[0, 1]) < 0.25  # noise of their own


def test_noise_follows_an_adaptive_clip_and_the_promise_is_that_of_mean_and_count():
    rule = eh.privacy.noisy_mean(eh.privacy.adaptive_clip(2.0, noise=1.0), noise_multiplier=1.5, rate=0.5)
    given = uploads(np.random.default_rng(0), m=1)
    begin = rule.init(jax.tree.map(lambda leaf: leaf[0], given.delta), N)
    one, four = (
        flat(reduced(rule, given, jnp.zeros(1, bool), state=begin._replace(clip=jnp.float32(clip)))[0])
        for clip in (1.0, 4.0)
    )
    np.testing.assert_allclose(four, 4 * one, rtol=1e-5)
    assert rule.release == eh.types.Release(1.5, 0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (lambda clip=clip: eh.privacy.noisy_mean(clip, noise_multiplier=1.0, rate=0.1), "number above 0")
            for clip in cast(list[Any], [0.0, np.nan, np.inf, 1e-13, 1e16, 10**400, "1"])
        ),
        (lambda: eh.privacy.adaptive_clip(1e-22, noise=1.0), "number above 0, from 1e-12 to 1e\\+15"),
        (lambda: eh.privacy.noisy_mean(1.0, noise_multiplier=-1.0, rate=0.1), "at least 0"),
        (lambda: eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=0.0), "rate=.*the chance"),
        *(
            (
                lambda z=z: eh.privacy.noisy_mean(1.0, noise_multiplier=z, rate=0.1),
                r"noisy_mean\(noise_multiplier=",
            )
            for z in cast(list[Any], ["1", None, 1e160, 1e-170])
        ),
        (lambda: eh.privacy.adaptive_clip(noise=1e-200), "noise=.*=1e-200: give"),
        (lambda: eh.privacy.adaptive_clip(0.0, noise=1.0), "above 0"),
        (lambda: eh.privacy.adaptive_clip(quantile=1.0, noise=1.0), "above 0 and below 1"),
        (
            lambda: eh.privacy.noisy_mean(
                eh.privacy.adaptive_clip(noise=0.4), noise_multiplier=1.0, rate=0.1
            ),
            "more than 0.5",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(make, words):
    with pytest.raises(eh.EvenhandError, match=words):
        make()


@pytest.mark.parametrize(
    "rule",
    [
        eh.privacy.noisy_mean(1.0, noise_multiplier=0.3, rate=0.5),
        eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=0.5),
        eh.privacy.noisy_mean(0.1, noise_multiplier=50.0, rate=0.5, sampling="fixed"),
        eh.privacy.noisy_mean(eh.privacy.adaptive_clip(noise=4.0), noise_multiplier=1.0, rate=0.5),
        eh.privacy.noisy_mean(1.0, noise_multiplier=0.0, rate=0.5),
    ],
    ids=["little noise", "noise", "much noise, fixed", "adaptive", "none"],
)
def test_it_obeys_the_contract_of_aggregators(rule):
    eh.testing.check_aggregator(rule, keeps_consensus=False)
