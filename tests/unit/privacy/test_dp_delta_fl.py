"""Delta-FL under privacy: without noise it is the filtered method, and its two exchanges are accounted for together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand.privacy import dp_delta_fl, dp_fedavg, spent
from evenhand.types import Release

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


def run(method, rounds=1):
    return eh.simulate(method, DATA, rounds=rounds, eval_every=max(rounds, 1))


def test_nearly_without_noise_those_above_the_quantile_count_and_the_others_send_zeros():
    """Against NumPy: the tail's mean updates, over theta N, from each client's own full step."""
    theta = 0.5
    method = dp_delta_fl(WORK, theta=theta, **ARGUMENTS | {"clip": 0.05, "noise_multiplier": 1e-4})
    before, after = run(method, 0), run(method, 1)
    losses = before.client_metrics("train")["loss"]
    quantile = after.per_round["quantile"][0]
    edges = np.linspace(0, 4.0, 65)
    below = np.array([(losses < edge).sum() for edge in edges[1:]])
    distance = np.abs(below - (1 - theta) * N)
    # Where several edges are equally near, noise chooses among them.
    assert distance[np.argmin(np.abs(edges[1:] - quantile))] == distance.min()
    start = flat(before.params)
    tail = np.zeros_like(start)
    for k in np.flatnonzero(losses >= quantile):
        one = eh.data.FederatedDataset(
            *(eh.data.Split(*_rows(part, k)) for part in (DATA.train, DATA.valid, DATA.test)), ("one",)
        )
        step = flat(eh.simulate(eh.algorithms.fedavg(WORK), one, rounds=1).params) - start
        tail += step * min(1.0, 0.05 / np.linalg.norm(step))
    np.testing.assert_allclose(flat(after.params) - start, tail / (theta * N), atol=2e-5)
    everybody = run(dp_fedavg(WORK, clip=0.05, noise_multiplier=0.0, rate=1.0), 1)
    assert np.abs(flat(everybody.params) - flat(after.params)).max() > 1e-3


def _rows(split, k):
    rows = slice(*split.offsets[k : k + 2])
    return split.x[rows], split.y[rows], np.array([0, rows.stop - rows.start])


def test_theta_of_one_keeps_everybody():
    found = run(dp_delta_fl(WORK, theta=1.0, **ARGUMENTS | {"clip": 1.0}))
    assert found.per_round["quantile"].tolist() == [0.0]
    plain = run(dp_fedavg(WORK, clip=1.0, noise_multiplier=0.0, rate=1.0))
    np.testing.assert_allclose(flat(found.params), flat(plain.params), atol=1e-3)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_both_exchanges_together_spend_what_was_asked_for(share):
    """1 / z^2 = 1 / z_mean^2 + 1 / z_histogram^2, on one sample."""
    given = {"noise_multiplier": 1.5, "rate": 0.3, "share": share, "clip": 1e-3}
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | given)
    (release,) = method.privacy.releases(10)
    assert release.noise_multiplier == pytest.approx(1.5, rel=1e-12)
    assert (release.rate, release.times, release.mechanism) == (0.3, 10, "gaussian")
    found = run(method, 2).privacy
    assert found.epsilon == pytest.approx(
        spent([Release(1.5, 0.3, times=2)], delta=found.delta).epsilon, rel=1e-9
    )


def test_how_many_clients_take_part_is_never_used_in_the_clear():
    """One more client changes what the server computes only through the two noisy sums."""
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": 1.0, "rate": 0.5})
    assert method.privacy.public == dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0, rate=0.5).privacy.public
    rule = method.phases[0].aggregator
    state = rule.init(jnp.float32(0), N)
    numbers = jnp.arange(126, dtype=jnp.uint32)
    few, many = (rule.lower((numbers, jnp.uint32(m)), state, jax.random.key(0))[0] for m in (1, 20))
    assert few == many


def test_the_servers_noise_on_the_histogram_is_that_of_the_release():
    """One client moves log2(b) counts by 1: with four bins, noise of z sqrt(1 + 1 / r) sqrt(2) on each of six."""
    z, share = 1.0, 0.5
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": z, "share": share, "bins": 4})
    rule, each = method.phases[0].aggregator, z * (1 + 1 / share) ** 0.5
    assert rule.release.noise_multiplier == pytest.approx(each)
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
        assert (stats.chi2_contingency(table).pvalue > 1e-3) == (factor == 1.0), (factor, table)


def test_clients_add_no_noise_of_their_own_to_the_histogram():
    rule = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": 9.0}).phases[0].aggregator
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
    data = eh.types.ClientData(rows.x, rows.y, 0, rows.sizes[0], 1.0, int(rows.sizes.max()))
    data = jax.tree.map(jax.numpy.asarray, data._replace(capacity=None))._replace(capacity=data.capacity)
    delta, _ = method.phases[1].work(method.phases[1].broadcast(state, 0), (), data, jax.random.key(0))
    found = np.abs(flat(delta)).max()
    assert found > 1e-3


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"theta": 1.5}, {"share": 0.0}, {"noise_multiplier": 0.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(eh.EvenhandError, match="above 0"):
        dp_delta_fl(WORK, **{"theta": 0.5, **ARGUMENTS} | wrong)


def test_it_obeys_the_contract():
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": 1.0, "rate": 0.6, "clip": 1e-2})
    eh.testing.check_algorithm(method, rounds=2)
