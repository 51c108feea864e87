"""The distributed noisy mean: clipped sums as in NumPy, noise of the promised size, masks that cancel, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand.aggregators import reduce_uploads
from evenhand.privacy import discrete_mean, noisy_mean, private
from evenhand.sampling import fixed, poisson
from evenhand.types import Release, Upload

N, M = 40, 8
HOW = {"rate": 0.2, "fewest": 6}


def uploads(scale=1.0, m=M, shape=(30,)):
    rng = np.random.default_rng(0)
    deltas = {"w": scale * rng.normal(size=(m, *shape)), "b": scale * rng.normal(size=(m, 2))}
    deltas = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), deltas)
    return Upload(deltas, jnp.asarray(rng.integers(1, 50, m), jnp.float32), jnp.full(m, jnp.nan))


def reduced(rule, given, present=None, seed=0):
    like = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), given.delta)
    present = jnp.ones(given.weight.shape[0], bool) if present is None else present
    keys = jax.random.split(jax.random.key(seed + 1), given.weight.shape[0])
    return reduce_uploads(rule, given, present, rule.init(like, N), jax.random.key(seed), keys)[0]


def flat(tree, count=1):
    leaves = [np.asarray(leaf, np.float64).reshape(count, -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, axis=1)


@pytest.mark.parametrize("clip", [0.5, 6.0])
def test_with_hardly_any_noise_it_is_the_sum_of_clipped_uploads_over_the_size_of_a_cohort(clip):
    given = uploads()
    present = jnp.arange(M) != 3
    z = 1e-4
    found = flat(reduced(discrete_mean(clip, noise_multiplier=z, **HOW), given, present))[0]
    each = np.delete(flat(given.delta, M), 3, axis=0)
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    assert (norms > 0.5).all() and (norms < 6.0).any() and (norms > 5.0).any()
    expected = (each * np.minimum(1.0, clip / norms)).sum(axis=0) / M
    np.testing.assert_allclose(found, expected, atol=6 * z * clip / M * np.sqrt(8 / 6))


def noise_of(z=2.0, clip=0.7, present=None):
    given = uploads(scale=0.0, shape=(4000,))
    return flat(reduced(discrete_mean(clip, noise_multiplier=z, **HOW), given, present))[0]


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
def test_noise_is_that_of_all_who_answer_and_no_other(factor):
    """Each adds the same: with 6 of them it is z C over m, lengthened by what rounding may add, with 8 more."""
    z, clip = 2.0, 0.7
    longest = np.sqrt(6) * 1024 / z
    one = clip / (longest - np.sqrt(4002)) * 1024 / M
    for answered in (6, 8):
        found = noise_of(present=jnp.arange(M) < answered)
        assert one * np.sqrt(6) > z * clip / M
        fits = stats.kstest(found, stats.norm(scale=factor * one * np.sqrt(answered)).cdf).pvalue > 1e-3
        assert fits == (factor == 1.0)


def test_the_sum_is_one_of_whole_numbers_and_no_two_noises_are_the_same():
    rule = discrete_mean(0.7, noise_multiplier=2.0, **HOW)
    like = {"w": jnp.zeros(5), "b": jnp.zeros(5)}
    state = rule.init(like, N)
    upload = Upload(like, jnp.float32(1), jnp.float32(0))
    keys = jax.random.split(jax.random.key(0), 2)
    sent = [rule.lift(upload, rule.publish(state), key)[0] for key in keys]
    drawn = [np.asarray(leaf).view(np.int32).tolist() for words in sent for leaf in jax.tree.leaves(words)]
    assert len({tuple(numbers) for numbers in drawn}) == 4
    total = jax.tree.map(lambda a, b: a + b, *sent)
    direction, _ = rule.lower((total, jnp.uint32(6)), state, keys[0])
    whole = flat(direction)[0] * float(state.scale) * M
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-2)
    added = [np.add(drawn[place], drawn[place + 2]) for place in (0, 1)]
    np.testing.assert_allclose(whole, np.concatenate(added), atol=1e-2)


def test_rounding_keeps_the_mean():
    """Of 0.3 of a step, which rounding to the nearest would lose: the noise is that without it, plus 0 or 1."""
    rule = discrete_mean(1.0, noise_multiplier=1.0, **HOW)
    d = 20_000
    state = rule.init(jnp.zeros(d), N)

    def sent(value):
        upload = Upload(jnp.full(d, value) / state.scale, jnp.float32(1), jnp.float32(0))
        return np.asarray(rule.lift(upload, state.scale, jax.random.key(0))[0]).view(np.int32)

    added = sent(0.3) - sent(0.0)
    assert set(added.tolist()) == {0, 1}
    assert abs(added.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / d)


def test_an_upload_gets_no_longer_than_the_noise_is_made_for():
    for d, fewest, z in ((100, 6, 2.0), (5000, 6, 2.0), (100, 3, 0.5)):
        rule = discrete_mean(0.7, noise_multiplier=z, rate=0.2, fewest=fewest)
        scale = float(rule.init(jnp.zeros(d), N).scale)
        np.testing.assert_allclose(scale * 0.7 + np.sqrt(d), np.sqrt(fewest) * 1024 / z, rtol=1e-6)


def test_masks_cancel_to_the_bit():
    given = uploads()
    rule = discrete_mean(0.5, noise_multiplier=1.0, **HOW)
    rules = (rule.unmasked, rule)
    bare, masked = (reduced(rule, given, jnp.arange(M) != 2) for rule in rules)
    assert np.array_equal(flat(bare), flat(masked))
    assert [rule.streams for rule in rules] == [True, False]
    assert [rule.summation and rule.summation.bits for rule in rules] == [32, 32]


def test_too_few_answers_are_given_up_and_what_is_not_finite_counts_as_zero():
    rule = discrete_mean(0.5, noise_multiplier=1e-4, **HOW)
    given = uploads()
    assert not flat(reduced(rule, given, jnp.arange(M) < 5)).any()
    assert flat(reduced(rule, given, jnp.arange(M) < 6)).any()
    like = jnp.zeros(4)
    state = rule.init(like, N)
    words, _ = rule.lift(
        Upload(like.at[0].set(jnp.nan), jnp.float32(1), jnp.float32(0)), state.scale, jax.random.key(0)
    )
    assert np.abs(np.asarray(words).view(np.int32)).max() < 10 * 1024


def test_it_is_private_with_cohorts_of_a_fixed_size_only():
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
    noisy = discrete_mean(0.5, noise_multiplier=1.0, rate=0.5, fewest=3)
    method = private(eh.algorithms.fedavg(work, aggregator=noisy, sampling=fixed(0.5)))
    assert method.privacy is not None
    assert method.privacy.releases(3) == (Release(0.5, 0.5, "fixed", 3, "concentrated"),)
    plain = private(
        eh.algorithms.fedavg(
            work, aggregator=noisy_mean(0.5, noise_multiplier=1.0, rate=0.5), sampling=poisson(0.5)
        )
    )
    assert plain.privacy is not None
    assert "individual uploads, which the server sees" in plain.privacy.unprotected
    assert not any("uploads" in each for each in method.privacy.unprotected)
    assert any("which clients take part" in each for each in method.privacy.unprotected)
    run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
    assert run.privacy is not None
    gaussian = eh.privacy.spent([Release(0.5, 0.5, "fixed", 2)], delta=run.privacy.delta).epsilon
    assert gaussian <= run.privacy.epsilon < 2 * gaussian
    assert (run.per_round["update_norm"] > 0).all()
    with pytest.raises(eh.EvenhandError, match="its sampling differs"):
        private(eh.algorithms.fedavg(work, aggregator=noisy, sampling=poisson(0.5)))
    hidden = eh.aggregators.secure(noisy_mean(0.5, noise_multiplier=1.0, rate=0.5))
    with pytest.raises(eh.EvenhandError, match="discrete_mean"):
        private(eh.algorithms.fedavg(work, aggregator=hidden, sampling=poisson(0.5)))


@pytest.mark.parametrize(
    ("words", "change", "numbers"),
    [
        ("number above 0", {"noise_multiplier": 0.0}, 10),
        ("noise_multiplier=", {"noise_multiplier": 1e-170}, 10),
        ("the chance", {"rate": 0.0}, 10),
        ("fewest", {"fewest": 1}, 10),
        ("a cohort has 8 clients", {"fewest": 9}, 10),
        ("rounded by more than is left", {"noise_multiplier": 2.0}, 2_000_000),
        ("rounded by more than is left", {"noise_multiplier": 2.0}, 1_400_000),  # to 71 of 1254
        ("wrap around", {"noise_multiplier": 1e-6}, 10),
        ("wrap around", {"noise_multiplier": 6**0.5 * 1024 / (2**28 - 5000)}, 10),  # by noise alone
    ],
)
def test_what_makes_no_sense_is_refused(words, change, numbers):
    with pytest.raises(eh.EvenhandError, match=words):
        discrete_mean(**{"clip": 0.5, "noise_multiplier": 1.0, **HOW} | change).init(jnp.zeros(numbers), N)
