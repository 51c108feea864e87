"""The private quantile: exact without noise, as near as it promises with noise, and as private as the paper says."""

import math
import warnings
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenhand as eh
from evenhand import EvenhandError
from evenhand.errors import EvenhandWarning
from evenhand.privacy import (
    concentrated,
    concentrated_epsilon,
    dyadic_partition,
    histogram,
    histogram_for,
    no_wrap_modulus,
    psi,
    quantile,
    quantile_error,
    quantile_sum,
)

EXACT = histogram(8, largest=8.0, sigma=0.0, scale=3)
LOSSES = jnp.array([0.5, 1.5, 1.7, 2.2, 3.3, 4.1, 5.0, 7.9])


def keys(m, seed=0):
    return jax.random.split(jax.random.key(seed), m)


@partial(jax.jit, static_argnums=0)
def sent(counting, losses, keys):
    return jax.vmap(counting.encode)(losses, keys)


@partial(jax.jit, static_argnums=0)
def total_of(counting, losses, keys):
    return counting.add(jax.vmap(counting.encode)(losses, keys), jnp.ones(losses.shape, bool))


def exactly(losses, theta, edges):
    """Algorithm 2 without noise, in words: the first edge below which the count is nearest to the target."""
    counts = [sum(loss < edge for loss in losses) for edge in edges[1:-1]] + [len(losses)]
    apart = [abs(count - (1 - theta) * len(losses)) for count in counts]
    least = min(apart)
    return edges[1 + next(j for j, each in enumerate(apart) if each <= least + 1e-5 * len(losses))]


# --- the tree ----------------------------------------------------------------------------------------------------


def test_partitions_are_the_fewest_nodes():
    assert dyadic_partition(1, bins=16) == ((0, 1),)
    assert dyadic_partition(5, bins=16) == ((2, 1), (0, 5))
    assert dyadic_partition(8, bins=16) == ((3, 1),)
    assert dyadic_partition(12, bins=16) == ((3, 1), (2, 3))
    assert dyadic_partition(15, bins=16) == ((3, 1), (2, 3), (1, 7), (0, 15))
    assert dyadic_partition(16, bins=16) == ((3, 1), (3, 2))  # the root is not there
    assert max(len(dyadic_partition(j, bins=64)) for j in range(1, 65)) == 6


@pytest.mark.parametrize("bins", [2, 4, 16, 64])
def test_sums_over_partitions_are_what_the_server_computes_even_where_levels_disagree(bins):
    counting = histogram(bins, largest=1.0)
    numbers = np.random.default_rng(bins).integers(-50, 50, counting.nodes)
    starts = [2 * bins - (2 * bins >> level) for level in range(counting.levels)]
    found = counting.below(jnp.asarray(numbers.astype(np.int32).view(np.uint32)))
    assert found.dtype == jnp.int32
    for j in range(1, bins + 1):
        nodes = dyadic_partition(j, bins=bins)
        covered = [leaf for r, o in nodes for leaf in range(2**r * (o - 1) + 1, 2**r * o + 1)]
        assert covered == list(range(1, j + 1))
        assert found[j - 1] == sum(numbers[starts[r] + o - 1] for r, o in nodes)


@given(st.lists(st.floats(-1.0, 9.0, width=32), min_size=12, max_size=12))
def test_without_noise_counts_are_exact_and_consistent_across_levels(losses):
    numbers = sent(EXACT, jnp.asarray(losses, jnp.float32), keys(12))
    assert numbers.shape == (12, 14) and numbers.dtype == jnp.uint32
    assert np.sum(np.asarray(numbers) == 3, axis=1).tolist() == [3] * 12
    assert np.sum(np.asarray(numbers)) == 12 * 3 * 3
    total = EXACT.add(numbers, jnp.ones(12, bool))
    clipped = np.clip(losses, 0, 8)
    expected = [np.sum(clipped < edge) for edge in range(1, 8)] + [12]
    assert EXACT.below(total).tolist() == [3 * count for count in expected]
    h = EXACT.counts(total).tolist()
    levels = h[:8], h[8:12], h[12:]
    for fine, coarse in pairwise(levels):
        assert [fine[2 * j] + fine[2 * j + 1] for j in range(len(coarse))] == coarse


def test_the_flat_histogram_has_the_bins_alone():
    flat = histogram(8, largest=8.0, sigma=0.0, flat=True)
    assert (flat.nodes, flat.levels, EXACT.nodes, EXACT.levels) == (8, 1, 14, 3)
    assert flat.below(total_of(flat, LOSSES, keys(8))).tolist() == [1, 3, 4, 5, 6, 7, 7, 8]


# --- the quantile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("theta", "edge", "kept"), [(0.5, 3, 4), (0.25, 5, 2), (0.75, 1, 7)])
def test_the_example_of_eight_losses(flat, theta, edge, kept):
    counting = EXACT._replace(flat=flat)
    total = total_of(counting, LOSSES, keys(8))
    assert counting.below(total).tolist() == [3 * count for count in (1, 3, 4, 5, 6, 7, 7, 8)]
    found = counting.decode(total, 8, theta=theta)
    assert float(found) == edge and int(jnp.sum(counting.clip(LOSSES) >= found)) == kept
    # The definition by ">" is another one.
    below = np.asarray(counting.below(total)) / 3
    assert 1 + int(np.argmax(below > (1 - theta) * 8)) == {0.5: 4, 0.25: 6, 0.75: 2}[theta]


THETAS = (0.1, 0.3, 0.5, 0.9, 0.999)
decoded = jax.jit(lambda losses, theta: quantile(EXACT, losses, keys(10), theta=theta), static_argnums=1)


@given(st.lists(st.floats(0.0, 8.0, width=32), min_size=10, max_size=10), st.sampled_from(THETAS))
def test_without_noise_it_is_the_edge_nearest_to_the_target(losses, theta):
    found = float(decoded(jnp.asarray(losses, jnp.float32), theta))
    assert found == exactly(np.float32(losses).tolist(), theta, EXACT.edges.tolist())


def test_counts_equally_far_from_a_rounded_target_give_the_first_edge():
    """None of 25 losses is below 1 and 15 are below 2, both 7.5 from a target that float32 rounds up."""
    losses = jnp.repeat(jnp.array([1.5, 2.5]), jnp.array([15, 10]))
    target = np.float32(1.0 - 0.7) * np.float32(25)
    assert target > 7.5 and exactly(np.asarray(losses), 0.7, EXACT.edges.tolist()) == 1.0
    assert float(quantile(EXACT._replace(scale=1), losses, keys(25), theta=0.7)) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_filtering_by_an_edge_keeps_just_who_was_not_counted_below_it(seed):
    counting = histogram(64, largest=0.7, sigma=0.0)  # whose edges are not floats
    edges = jnp.asarray(counting.edges)
    losses = jax.random.choice(jax.random.key(seed), edges, (500,))
    below = counting.below(total_of(counting, losses, keys(500)))
    kept = jnp.sum(counting.clip(losses)[:, None] >= edges[None, 1:-1], axis=0)
    assert (below[:-1] + kept).tolist() == [500] * 63


def test_who_is_absent_does_not_matter_and_what_is_not_a_number_counts_as_largest():
    present = jnp.array([True] * 8 + [False] * 2)
    losses = jnp.concatenate([LOSSES, jnp.array([7.0, jnp.nan])])
    found = quantile(EXACT, losses, keys(10), theta=0.5, present=present)
    assert float(found) == 3.0
    assert float(quantile(EXACT, losses, keys(10), theta=0.5, present=jnp.zeros(10, bool))) == 0.0
    ends = jnp.array([jnp.nan, jnp.inf, 100.0, 8.0, -1.0, -jnp.inf])
    assert EXACT.clip(ends).tolist() == [8.0, 8.0, 8.0, 8.0, 0.0, 0.0]
    counts = EXACT.counts(total_of(EXACT, ends, keys(6)))
    assert counts[:8].tolist() == [6, 0, 0, 0, 0, 0, 0, 12]


def test_the_whole_cohort_has_no_quantile():
    total = total_of(EXACT, LOSSES, keys(8))
    assert float(EXACT.decode(total, 8, theta=1.0)) == 0.0
    assert float(EXACT.decode(total, 8, theta=0.999)) == 1.0
    for theta in (0.0, 1.5, float("nan")):
        with pytest.raises(EvenhandError, match="tail fraction"):
            EXACT.decode(total, 8, theta=theta)


# --- noise and the ring ------------------------------------------------------------------------------------------


def test_every_node_of_every_client_gets_noise_of_its_own():
    counting = histogram(8, largest=8.0, sigma=2.0)
    drawn = np.asarray(counting.counts(sent(counting, jnp.full(2000, 0.5), keys(2000)).T)).T
    path = np.zeros(14)
    path[[0, 8, 12]] = 1
    assert np.abs(np.mean(drawn, axis=0) - path).max() < 5 * 2 / math.sqrt(2000)
    assert np.var(drawn, axis=0) == pytest.approx(4.0, rel=0.2)
    apart = np.corrcoef(drawn.T) - np.eye(14)
    assert np.abs(apart).max() < 5 / math.sqrt(2000)


@pytest.mark.parametrize("bits", [4, 10, 16, 31, 32])
@given(data=st.data())
@settings(max_examples=20)
def test_sums_in_the_ring_are_exact_up_to_half_of_it(bits, data):
    counting, half = histogram(2, largest=1.0, bits=bits), 2 ** (bits - 1)
    total = data.draw(st.integers(-(half - 1), half - 1))
    first = data.draw(st.integers(-(2**31), 2**31 - 1))
    parts = np.array([[first, 0], [total - first, half]], np.int64).astype(np.uint32)
    added = counting.add(jnp.asarray(parts), jnp.ones(2, bool))
    assert (np.asarray(added) < 2**bits).all()
    assert counting.counts(added).tolist() == [total, -half]


def test_a_ring_of_10_bits_wraps_around_and_the_quantile_is_lost():
    losses = jnp.linspace(0.0, 10.0, 256)
    wide = histogram_for(0.45, clients=256, bins=64, largest=10.0)
    narrow = wide._replace(bits=10)
    assert no_wrap_modulus(wide, clients=256, delta=1e-5) <= 2**wide.bits
    for counting, wraps in ((wide, False), (narrow, True)):
        noisy = counting.counts(total_of(counting, losses, keys(256)))
        exact = counting._replace(sigma=0.0, bits=32)
        counted = exact.counts(total_of(exact, losses, keys(256)))
        assert (np.abs(np.asarray(noisy - counted)).max() > 500) == wraps


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_as_an_aggregator_it_finds_the_same_with_masks_and_without(theta):
    counting = histogram_for(10.0, clients=8, bins=8, largest=8.0, bits=12)
    found = {
        masks: float(
            eh.aggregators.aggregate(quantile_sum(counting, theta=theta), LOSSES, seed=3, masks=masks)
        )
        for masks in (True, False)
    }
    assert found[True] == found[False]
    assert found[True] in (counting.edges[1:] if theta < 1 else [0.0])
    rule = quantile_sum(counting, theta=theta)
    assert rule.summation is not None and rule.summation.bits == 12 and not rule.streams
    assert rule.unmasked.streams
    if theta == 1.0:
        upload = eh.types.Upload(LOSSES[0], jnp.float32(1), jnp.float32(0))
        assert not rule.lift(upload, (), jax.random.key(0))[0].any()


def test_noise_of_the_server_is_rounded_to_the_nearest_count():
    """A tenth of a count moves none; rounded down, it would move half of them."""
    rule = quantile_sum(EXACT._replace(sigma=0.1, scale=1), theta=0.5, at_server=True, fewest=5)
    assert rule.summation is not None and rule.summation.fewest == 2, "no client has to add noise"
    total = total_of(EXACT._replace(scale=1), LOSSES, keys(8))
    edges = jax.vmap(lambda key: rule.lower((total, jnp.uint32(8)), (), key)[0])(keys(50))
    assert set(edges.tolist()) == {3.0}


def test_as_an_aggregator_it_leaves_out_the_broken_and_gives_up_on_too_few():
    exact = EXACT._replace(scale=1)
    losses = jnp.concatenate([LOSSES, jnp.array([jnp.nan, jnp.inf])])
    assert float(eh.aggregators.aggregate(quantile_sum(exact, theta=0.5), losses)) == 3.0
    assert float(eh.aggregators.aggregate(quantile_sum(exact, theta=0.5, fewest=8), losses)) == 3.0
    assert float(eh.aggregators.aggregate(quantile_sum(exact, theta=0.5, fewest=9), losses)) == 0.0
    with pytest.raises(EvenhandError, match="one number each"):
        eh.aggregators.aggregate(quantile_sum(exact, theta=0.5), jnp.zeros((3, 2)))


@given(st.lists(st.floats(0.0, 8.0, width=32), min_size=10, max_size=10))
@settings(max_examples=10)
def test_several_quantiles_come_from_one_sum(losses):
    """What clients send does not depend on how many are read off it, so that its privacy does not, either."""
    array = jnp.asarray(losses, jnp.float32)
    found = quantile(EXACT, array, keys(10), theta=THETAS)
    assert found.shape == (5,) and found.dtype == jnp.float32
    assert found.tolist() == [float(decoded(array, theta)) for theta in THETAS]


def test_an_aggregator_for_several_quantiles_sends_what_one_for_a_single_quantile_sends():
    counting = histogram(8, largest=8.0, sigma=2.0, scale=5)
    several, single = (quantile_sum(counting, theta=theta) for theta in ((0.75, 0.25), 0.5))
    upload = eh.types.Upload(LOSSES[3], jnp.float32(1), jnp.float32(0))
    lifted = [rule.lift(upload, (), jax.random.key(4))[0] for rule in (several, single)]
    assert np.array_equal(*lifted) and lifted[0].shape == (14,)
    noisy = eh.aggregators.aggregate(several, LOSSES, seed=1)
    alone = [
        eh.aggregators.aggregate(quantile_sum(counting, theta=theta), LOSSES, seed=1)
        for theta in (0.75, 0.25)
    ]
    assert noisy.tolist() == [float(edge) for edge in alone]
    # With nobody in a quantile, there is nothing to count; with somebody in one of them, there is.
    for theta, sent in ((1.0, False), ((1.0,), False), ((1.0, 0.5), True)):
        rule = quantile_sum(EXACT, theta=theta)
        assert bool(rule.lift(upload, (), jax.random.key(0))[0].any()) == sent
    assert eh.aggregators.aggregate(quantile_sum(EXACT, theta=(1.0, 0.5)), LOSSES).tolist() == [0.0, 3.0]
    for theta in ((), (0.5, 1.5), (0.0,)):
        with pytest.raises(EvenhandError, match="tail fraction"):
            quantile_sum(EXACT, theta=theta)


# --- guarantees --------------------------------------------------------------------------------------------------


def epsilon(scale, bins, sigma, kind: Any = "paper"):
    counting = histogram(bins, largest=1.0, sigma=sigma, scale=scale)
    found = concentrated(counting, clients=256, sensitivity=kind)
    assert found.mechanism == "concentrated" and (found.rate, found.times) == (1.0, 1)
    return 1 / found.noise_multiplier


def test_theorem_6a_has_the_known_values():
    settings = [(1, 64, 1.0), (3, 64, 1.19), (5, 64, 2.0)]
    assert [epsilon(*each) for each in settings] == pytest.approx([0.38125, 0.94548, 0.93750], abs=6e-6)
    tight = [epsilon(*each, "tight") for each in settings]
    assert tight == pytest.approx([0.15934, 0.38605, 0.38273], abs=6e-6)
    # The other term of the minimum.
    assert math.sqrt(36 / 256 + psi(1.0, clients=256) * 64) == pytest.approx(0.41950, abs=6e-6)


def test_a_flat_histogram_has_a_number_for_each_bin():
    counting = histogram(64, largest=1.0, sigma=1.0, flat=True)
    multiplier = concentrated(counting, clients=256).noise_multiplier
    for dimension, same in ((64, True), (128, False)):
        loss = concentrated_epsilon(1.0, sigma=1.0, clients=256, dimension=dimension)
        assert np.isclose(multiplier, 1 / loss, rtol=1e-12) == same


def test_the_tight_sensitivity_is_the_norm_of_what_a_client_sends():
    counting = histogram(64, largest=1.0, sigma=0.0, scale=5)
    numbers = np.asarray(counting.encode(jnp.float32(0.3), jax.random.key(0))).astype(float)
    assert np.linalg.norm(numbers) == pytest.approx(counting.sensitivity("tight"))
    assert counting.sensitivity("paper") == 30.0
    flat = counting._replace(flat=True)
    assert flat.sensitivity("paper") == flat.sensitivity("tight") == 5.0
    with pytest.raises(EvenhandError, match="tight"):
        counting.sensitivity("loose")  # pyright: ignore[reportArgumentType]


def test_coarse_noise_is_refused_or_warned_of():
    with pytest.raises(EvenhandError, match="at least 1/2"):
        concentrated(histogram(8, largest=1.0, sigma=0.49), clients=100)
    with pytest.raises(EvenhandError, match="at least 1/2"):
        concentrated(EXACT, clients=100)
    with pytest.warns(EvenhandWarning, match="psi=21"):
        found = concentrated(histogram(8, largest=1.0, sigma=0.5), clients=256)
    assert 1 / found.noise_multiplier > 10  # a promise that says nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        concentrated(histogram(8, largest=1.0, sigma=1.0), clients=256)
    with pytest.raises(EvenhandError, match="sensitivity"):
        concentrated_epsilon(0.0, sigma=1.0, clients=2, dimension=1)


def test_theorem_6b_and_the_modulus_have_the_known_values():
    one = histogram(64, largest=1.0, sigma=1.0)
    term = quantile_error(one, clients=256, delta=0.01)
    assert term == pytest.approx(0.97548, abs=2e-5)
    assert no_wrap_modulus(one, clients=256, delta=0.01) == pytest.approx(3506.6, abs=0.05)
    five = histogram(64, largest=1.0, sigma=2.0, scale=5)
    assert no_wrap_modulus(five, clients=256, delta=0.01) == pytest.approx(8547.2, abs=0.05)
    assert quantile_error(one._replace(flat=True), clients=256, delta=0.01) > 3 * term
    assert five.traffic(256) == 256 * 126 * 32
    for delta in (0.0, 1.0):
        with pytest.raises(EvenhandError, match="probability"):
            quantile_error(one, clients=256, delta=delta)


@pytest.mark.parametrize("kind", ["paper", "tight"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.45, 20.0])
def test_a_histogram_for_a_budget_is_within_it_and_not_far_below(rho, flat, kind):
    found = histogram_for(rho, clients=256, bins=64, largest=10.0, flat=flat, sensitivity=kind)
    spent = 0.5 / concentrated(found, clients=256, sensitivity=kind).noise_multiplier ** 2
    assert rho * 0.999 < spent <= rho * (1 + 1e-12)
    assert found.sigma >= 4 / 3 - 1e-9
    assert 2**found.bits >= no_wrap_modulus(found, clients=256, delta=1e-5)
    node = found.sigma * 16 / found.scale
    assert node == pytest.approx(found._replace(scale=1).sensitivity(kind) / math.sqrt(2 * rho), rel=1e-3)


def test_the_worked_example_of_the_end_to_end_budget():
    found = histogram_for(0.10660, clients=100, bins=32, largest=1.1)
    assert found.sigma / found.scale == pytest.approx(1.083, abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bins": 12}, "power of two"),
        ({"bins": 1}, "from 2"),
        ({"largest": 0.0}, "above 0"),
        ({"largest": math.inf}, "above 0"),
        ({"sigma": -1.0}, "4096"),
        ({"scale": 0}, "from 1"),
        ({"bits": 33}, "to 32"),
    ],
)
def test_a_histogram_that_makes_no_sense_is_refused(arguments, words):
    wrong = {"bins": 8, "largest": 1.0, **arguments}
    with pytest.raises(EvenhandError, match=words):
        histogram(wrong.pop("bins"), **wrong)


def test_a_budget_that_makes_no_sense_is_refused():
    with pytest.raises(EvenhandError, match="above 0"):
        histogram_for(0.0, clients=10, bins=8, largest=1.0)
    with pytest.raises(EvenhandError, match="wrap around"):
        histogram_for(0.1, clients=2**31 - 1, bins=8, largest=1.0)


# --- figure 5 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "error"), [(1.0, 0.14), (5.0, 0.03)])
def test_the_error_is_that_of_the_papers_figure_5(budget, error):
    """256 uniform losses on [0, 10], 64 bins, delta = 1e-5; averaged over theta = 0.1, ..., 0.9."""
    log = math.log(1e5)
    rho = (math.sqrt(log + budget) - math.sqrt(log)) ** 2
    counting = histogram_for(rho, clients=256, bins=64, largest=10.0)

    def once(key):
        data, noise = jax.random.split(key)
        losses = jax.random.uniform(data, (256,), maxval=10.0)
        total = counting.add(
            jax.vmap(counting.encode)(losses, jax.random.split(noise, 256)), jnp.ones(256, bool)
        )
        thetas = [k / 10 for k in range(1, 10)]
        edges = jnp.stack([counting.decode(total, 256, theta=theta) for theta in thetas])
        found = jnp.mean(losses[None] < edges[:, None], axis=1)
        return jnp.mean(jnp.abs(found - (1 - jnp.array(thetas))))

    errors = jax.jit(lambda keys: jax.lax.map(once, keys))(keys(60, seed=1))
    assert float(jnp.mean(errors)) == pytest.approx(error, rel=0.2)


def test_masked_sums_keep_counts_of_more_than_sixteen_bits():
    """Masks work on halves of numbers: with a large scale, counts are in both."""
    counting = histogram(8, largest=8.0, sigma=0.0, scale=50_000)
    losses = jnp.array([0.5, 1.5, 1.7, 2.2, 3.3, 4.1, 5.0, 7.9])
    for theta, edge in ((0.75, 1.0), (0.5, 3.0), (0.25, 5.0)):
        for masks in (True, False):
            rule = quantile_sum(counting, theta=theta)
            assert float(eh.aggregators.aggregate(rule, losses, masks=masks)) == edge
