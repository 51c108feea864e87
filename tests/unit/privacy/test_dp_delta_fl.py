"""Delta-FL under privacy: without noise it is the filtered method, and its two exchanges are accounted for together."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from private_oracle import promised
from scipy import stats

import evenhand as eh
from evenhand.aggregators import reduce_uploads
from evenhand.privacy import dp_delta_fl, dp_fedavg, spent
from evenhand.types import Release, Sum

chi2_contingency: Any = stats.chi2_contingency  # SciPy declares no type of what it returns

pytestmark = pytest.mark.filterwarnings("ignore:No client has validation examples to choose a level on")

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1)
N = DATA.num_clients
ARGUMENTS: dict[str, Any] = {
    "largest_loss": 4.0,
    "clip": 1e3,
    "noise_multiplier": 1e-3,
    "rate": 1.0,
    "bins": 64,
}


def flat(params):
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(params)])


def rule_of(method, exchange=0) -> Sum:
    return method.phases[exchange].aggregator


def noise_of(rule):
    assert rule.release is not None
    return rule.release.noise_multiplier


def run(method, rounds=1):
    return eh.simulate(method, DATA, rounds=rounds, eval_every=max(rounds, 1))


@cache
def local_steps():
    """What each client's full step changes in the first model, from runs with this client alone."""
    steps = []
    for k in range(N):
        train, valid, test = (eh.data.Split(*_rows(part, k)) for part in (DATA.train, DATA.valid, DATA.test))
        one = eh.data.FederatedDataset(train, valid, test, ("one",))
        before, after = (eh.simulate(eh.algorithms.fedavg(WORK), one, rounds=rounds) for rounds in (0, 1))
        steps.append(flat(after.params) - flat(before.params))
    return np.array(steps)


def _rows(split, k):
    rows = slice(*split.offsets[k : k + 2])
    return split.x[rows], split.y[rows], np.array([0, rows.stop - rows.start])


def test_nearly_without_noise_those_above_the_quantile_count_and_the_others_send_zeros():
    """Against NumPy: the tail's mean updates, over theta N, from each client's own full step."""
    theta = 0.5
    method = dp_delta_fl(WORK, theta=theta, **{**ARGUMENTS, "clip": 0.05, "noise_multiplier": 1e-4})
    before, after = run(method, 0), run(method, 1)
    losses = before.client_metrics("train")["loss"]
    quantile = after.per_round["quantile"][0]
    edges = np.linspace(0, 4.0, 65)
    below = np.array([(losses < edge).sum() for edge in edges[1:]])
    distance = np.abs(below - (1 - theta) * N)
    # Where several edges are equally near, noise chooses among them.
    assert distance[np.argmin(np.abs(edges[1:] - quantile))] == distance.min()
    steps = local_steps() * np.minimum(1.0, 0.05 / np.linalg.norm(local_steps(), axis=1, keepdims=True))
    tail = steps[losses >= quantile].sum(axis=0)
    np.testing.assert_allclose(flat(after.params) - flat(before.params), tail / (theta * N), atol=2e-5)
    everybody = run(dp_fedavg(WORK, clip=0.05, noise_multiplier=0.0, rate=1.0), 1)
    assert np.abs(flat(everybody.params) - flat(after.params)).max() > 1e-3


AT_CLIENTS: dict[str, Any] = {"at_server": False, "fewest": N}


def test_with_noise_at_the_clients_it_is_the_same_step():
    theta, clip = 0.5, 0.05
    given: dict[str, Any] = ARGUMENTS | {"clip": clip, "noise_multiplier": 1e-4}
    before = run(dp_delta_fl(WORK, theta=theta, **given), 0)
    losses, steps = before.client_metrics("train")["loss"], local_steps()
    factors = np.minimum(1.0, clip / np.linalg.norm(steps, axis=1))
    after = run(dp_delta_fl(WORK, theta=theta, **given, **AT_CLIENTS), 1)
    kept = losses >= after.per_round["quantile"][0]
    assert kept.sum() == theta * N
    expected = (kept * factors) @ steps / (theta * N)
    np.testing.assert_allclose(flat(after.params) - flat(before.params), expected, atol=2e-5)
    everybody = factors @ steps / N
    assert np.abs(expected - everybody).max() > 1e-3


def broken_at(k):
    """Work after which the parameters of one client are not finite; all sizes differ."""

    def solve(params, data, key, correction):
        after, drawn = WORK.solve(params, data, key, correction)
        broken = data.size == DATA.train.sizes[k]
        return jax.tree.map(lambda leaf: jnp.where(broken, jnp.nan, leaf), after), drawn

    assert len(set(DATA.train.sizes.tolist())) == N
    return WORK._replace(solve=solve)


@pytest.mark.parametrize("theta", [1.0, (1.0, 0.5)], ids=["one level", "several"])
def test_a_client_that_diverges_answers_with_zeros_and_its_noise(theta):
    """As many answer as with clean data, so that the sums are not given up, and all of the noise is there."""
    clip, given = 0.05, ARGUMENTS | AT_CLIENTS
    for noise in (1e-4, 1.0):
        method = dp_delta_fl(broken_at(2), theta=theta, **{**given, "clip": clip, "noise_multiplier": noise})
        found = run(method, 1)
        assert (found.per_round["rejected"].tolist(), found.per_round["reported"].tolist()) == ([0], [N])
        moved = flat(found.params[0] if isinstance(theta, tuple) else found.params)
        moved = moved - flat(MODEL.init(eh.streams.stream(jax.random.key(0), eh.streams.Purpose.INIT)))
        if not isinstance(theta, tuple) and noise < 1.0:
            steps = local_steps()
            factors = np.minimum(1.0, clip / np.linalg.norm(steps, axis=1))
            others = np.arange(N) != 2
            np.testing.assert_allclose(moved, (others * factors) @ steps / N, atol=2e-5)
        # Of z_w C / N in each number, for z_w = z sqrt(1 + r).
        deviation = noise * 1.5**0.5 * clip / N
        assert noise < 1.0 or 0.5 < np.linalg.norm(moved) / (deviation * moved.size**0.5) < 2.0


def test_several_levels_are_clipped_together_and_spend_what_one_does():
    """One histogram and one clipped update: the release of a round does not depend on how many levels there are."""
    clip, thetas = 0.05, (5 / 6, 0.5)
    given: dict[str, Any] = ARGUMENTS | {"clip": clip, "noise_multiplier": 1e-4}
    start = run(dp_delta_fl(WORK, theta=0.5, **given), 0)
    losses, steps = start.client_metrics("train")["loss"], local_steps()
    for how in ({}, AT_CLIENTS):
        several, single = (dp_delta_fl(WORK, theta=theta, **given, **how) for theta in (thetas, 0.5))
        assert promised(several).releases(7) == promised(single).releases(7)
        found = run(several, 1)
        tails = [losses >= found.per_round[f"quantile (theta={theta:g})"][0] for theta in thetas]
        assert [int(tail.sum()) for tail in tails] == [5, 3]
        joint = np.linalg.norm(np.concatenate([tail[:, None] * steps for tail in tails], axis=1), axis=1)
        factors = np.minimum(1.0, clip / np.maximum(joint, clip))
        for theta, tail, params in zip(thetas, tails, found.params, strict=True):
            expected = (tail * factors) @ steps / (theta * N)
            np.testing.assert_allclose(flat(params) - flat(start.params), expected, atol=3e-5)
            apart = np.minimum(1.0, clip / np.linalg.norm(steps, axis=1))
            assert np.abs(expected - (tail * apart) @ steps / (theta * N)).max() > 1e-3


def test_the_worked_example_of_the_spec_is_spent_exactly():
    """epsilon = 5, delta = 1 / 2500, q = 0.04, 1000 rounds: z = 1.2504; with r = 0.5, rho of both exchanges."""
    given = ARGUMENTS | {"clip": 1.1, "noise_multiplier": 1.2504, "rate": 0.04, "bins": 32}
    method = dp_delta_fl(WORK, theta=0.5, **given)
    rho_mean, rho_histogram = (0.5 / noise_of(rule_of(method, j)) ** 2 for j in (1, 0))
    assert (rho_mean, rho_histogram) == pytest.approx((0.21320, 0.10660), abs=1e-5)
    whole = tuple(float(order) for order in range(2, 257))
    found = spent(promised(method).releases(1000), delta=1 / 2500, orders=whole).epsilon
    assert found == pytest.approx(5.0, abs=1e-3)
    # A client that is replaced moves twice as much of the mean, and of twice as many counts.
    there = promised(dp_delta_fl(WORK, theta=0.5, **given, at_server=False, fewest=100))
    (release,) = there.releases(1000)
    assert release.noise_multiplier == pytest.approx(1.2504 / 2, rel=1e-9)
    assert (release.rate, release.sampling, release.mechanism) == (0.04, "fixed", "concentrated")
    assert "replaced" in there.neighbours
    assert any("which clients take part" in each for each in there.unprotected)


@pytest.mark.parametrize("fewest", [2, 50])
def test_the_clients_noise_is_that_of_the_fewest_of_them_and_of_a_client_that_is_replaced(fewest):
    """Of their sum over c: z_h sqrt(log2(b) / 2), the length sqrt(2 log2(b)) of two paths over 1 / (z_h / 2)."""
    z, share, bins = 1.5, 0.5, 16
    given = ARGUMENTS | {"noise_multiplier": z, "share": share, "bins": bins}
    method = dp_delta_fl(WORK, theta=0.5, **given, at_server=False, fewest=fewest)
    rule, draws = rule_of(method), 400
    upload = eh.types.Upload(jnp.float32(1.0), jnp.float32(1), jnp.float32(0))
    keys = jax.random.split(jax.random.key(3), draws * fewest).reshape(draws, fewest)
    words = jax.jit(jax.vmap(jax.vmap(lambda key: rule.lift(upload, (), key)[0])))(keys)
    numbers = np.asarray(words).view(np.int32).astype(float)
    noise = (numbers - np.round(numbers.mean(axis=(0, 1)))).sum(axis=1).ravel()
    scale = np.round(numbers.mean(axis=(0, 1))).max()
    expected = z * (1 + 1 / share) ** 0.5 * (np.log2(bins) / 2) ** 0.5
    assert noise_of(rule) == pytest.approx(z * (1 + 1 / share) ** 0.5 / 2)
    for factor in (2**-0.5, 1.0, 2**0.5):
        within = stats.chi2(noise.size).cdf(np.sum((noise / (factor * expected * scale)) ** 2))
        assert (1e-4 < within < 1 - 1e-4) == (factor == 1.0), (factor, within)


def test_masks_hide_both_sums_and_change_no_bit():
    given = ARGUMENTS | {"noise_multiplier": 1.0, "bins": 16}
    totals = []
    for bare in (True, False):
        for j, phase in enumerate(dp_delta_fl(WORK, theta=0.5, **given, **AT_CLIENTS).phases):
            rng, rule = np.random.default_rng(j), phase.aggregator.unmasked if bare else phase.aggregator
            shape = (N,) if j == 0 else (N, 15)
            deltas = jnp.asarray(rng.uniform(size=shape), jnp.float32)
            state = rule.init(deltas[0], N)
            keys = jax.random.split(jax.random.key(1), N)
            uploads = eh.types.Upload(deltas, jnp.ones(N), jnp.ones(N))
            found = reduce_uploads(rule, uploads, jnp.ones(N, bool), state, jax.random.key(2), keys)[0]
            totals.append(np.asarray(found))
            assert isinstance(rule, Sum) and rule.streams == bare
    assert np.array_equal(totals[0], totals[2]) and np.array_equal(totals[1], totals[3])
    assert totals[0] > 0 and totals[1].any()


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("needs fewest=", {"fewest": None}),
        (r"fewest=\)=1: give a whole number from 2", {"fewest": 1}),
        ("a cohort has 6 clients", {"fewest": 7}),
        ("could wrap around modulo", {"noise_multiplier": 1e-8, "clip": 1e-9}),
    ],
)
def test_noise_at_the_clients_that_cannot_suffice_is_refused(words, change):
    def begin():
        method = dp_delta_fl(WORK, **{"theta": 0.5, **ARGUMENTS, **AT_CLIENTS, **change})
        method.phases[1].aggregator.init({"w": jnp.zeros(15)}, N)
        method.init(MODEL.init(jax.random.key(0)), N)

    with pytest.raises(eh.EvenhandError, match=words):
        begin()


def test_theta_of_one_keeps_everybody():
    found = run(dp_delta_fl(WORK, theta=1.0, **{**ARGUMENTS, "clip": 1.0}))
    assert found.per_round["quantile"].tolist() == [0.0]
    plain = run(dp_fedavg(WORK, clip=1.0, noise_multiplier=0.0, rate=1.0))
    np.testing.assert_allclose(flat(found.params), flat(plain.params), atol=1e-3)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_both_exchanges_together_spend_what_was_asked_for(share):
    """1 / z^2 = 1 / z_mean^2 + 1 / z_histogram^2, on one sample."""
    given = {"noise_multiplier": 1.5, "rate": 0.3, "share": share, "clip": 1e-3}
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | given)
    (release,) = promised(method).releases(10)
    assert release.noise_multiplier == pytest.approx(1.5, rel=1e-12)
    assert (release.rate, release.times, release.mechanism) == (0.3, 10, "gaussian")
    found = promised(run(method, 2))
    assert found.epsilon == pytest.approx(
        spent([Release(1.5, 0.3, times=2)], delta=found.delta).epsilon, rel=1e-9
    )


def test_how_many_clients_take_part_is_never_used_in_the_clear():
    """One more client changes what the server computes only through the two noisy sums."""
    method = dp_delta_fl(WORK, theta=0.5, **{**ARGUMENTS, "noise_multiplier": 1.0, "rate": 0.5})
    plain = dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0, rate=0.5)
    assert promised(method).public == promised(plain).public
    rule = rule_of(method)
    state = rule.init(jnp.float32(0), N)
    numbers = jnp.arange(126, dtype=jnp.uint32)
    few, many = (rule.lower((numbers, jnp.uint32(m)), state, jax.random.key(0))[0] for m in (1, 20))
    assert few == many


def test_the_servers_noise_on_the_histogram_is_that_of_the_release():
    """One client moves log2(b) counts by 1: with four bins, noise of z sqrt(1 + 1 / r) sqrt(2) on each of six."""
    z, share = 1.0, 0.5
    method = dp_delta_fl(WORK, theta=0.5, **{**ARGUMENTS, "noise_multiplier": z, "share": share, "bins": 4})
    rule, each = rule_of(method), z * (1 + 1 / share) ** 0.5
    assert noise_of(rule) == pytest.approx(each)
    counts = np.array([5, 2, 1, 4, 7, 5])  # of the bins, and of both halves
    lower = jax.vmap(
        lambda key: rule.lower((jnp.asarray(16 * counts, jnp.uint32), jnp.uint32(9)), (), key)[0]
    )
    edges = np.asarray(lower(jax.random.split(jax.random.key(2), 4000)))
    rng = np.random.default_rng(0)
    for factor in (2 / 3, 1.0, 3 / 2):
        bins = (counts + factor * each * 2**0.5 * rng.normal(size=(40_000, 6))).T
        everyone = bins[4] + bins[5]
        below = np.stack([bins[0], bins[4], bins[4] + bins[2], everyone])
        expected = np.where(everyone > 0, 1 + np.argmin(np.abs(below - 0.5 * everyone), axis=0), 0)
        table = [[int((found == edge).sum()) for edge in range(5)] for found in (edges, expected)]
        assert (chi2_contingency(table).pvalue > 1e-3) == (factor == 1.0), (factor, table)


def test_clients_add_no_noise_of_their_own_to_the_histogram():
    rule = rule_of(dp_delta_fl(WORK, theta=0.5, **{**ARGUMENTS, "noise_multiplier": 9.0}))
    upload = eh.types.Upload(jnp.float32(1.0), jnp.float32(1), jnp.float32(0))
    numbers, count = rule.lift(upload, (), jax.random.key(0))
    assert sorted(np.asarray(numbers).tolist()) == [0] * 120 + [16] * 6 and count == 1


@pytest.mark.parametrize(
    ("shift", "changed"), [(10.0, {"theta": 0.5}), (-10.0, {"theta": 1.0}), (np.nan, {"theta": 0.5})]
)
def test_whoever_is_clipped_to_the_quantile_counts(shift, changed):
    """Losses of at least the largest are the largest, and so are those that are no numbers; negative ones are 0."""
    model = MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) + shift)
    method = dp_delta_fl(WORK._replace(model=model), **ARGUMENTS | changed)
    params, found = MODEL.init(jax.random.key(0)), 0.0
    state = method.init(params, N)
    quantile = np.float32(0.0 if changed["theta"] == 1.0 else 4.0)
    state = state._replace(inner=state.inner._replace(extra=quantile))
    rows = DATA.train
    x, y, size = (jnp.asarray(array) for array in (rows.x, rows.y, rows.sizes[0]))
    data = eh.types.ClientData(x, y, jnp.int32(0), size, jnp.float32(1.0), int(rows.sizes.max()))
    sent = method.phases[1].broadcast(state, jnp.int32(0))
    delta, _ = method.phases[1].work(sent, (), data, jax.random.key(0))
    found = np.abs(flat(delta)).max()
    assert found > 1e-3


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"theta": 1.5}, {"share": 0.0}, {"noise_multiplier": 0.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(eh.EvenhandError, match="above 0"):
        dp_delta_fl(WORK, **{"theta": 0.5, **ARGUMENTS} | wrong)


def test_it_obeys_the_contract():
    method = dp_delta_fl(WORK, theta=0.5, **{**ARGUMENTS, "noise_multiplier": 1.0, "rate": 0.6, "clip": 1e-2})
    eh.testing.check_algorithm(method, rounds=2)


def test_noise_that_32_bits_would_cut_off_is_refused():
    numbers: dict[str, Any] = {**ARGUMENTS, "theta": 0.5}
    dp_delta_fl(WORK, **{**numbers, "noise_multiplier": 1e5})
    with pytest.raises(eh.EvenhandError, match="does not fit into 32 bits"):
        dp_delta_fl(WORK, **{**numbers, "noise_multiplier": 1e7})
