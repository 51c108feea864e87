"""Delta-FL under privacy: without noise it is the filtered method, and its two exchanges are accounted for together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

import evenhand as eh
from evenhand.privacy import discrete_gaussian, dp_delta_fl, dp_fedavg, histogram_for, spent
from evenhand.types import Release

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1)
N = DATA.num_clients
ARGUMENTS = {"largest_loss": 4.0, "clip": 1e3, "noise_multiplier": 1e-3, "rate": 1.0, "bins": 64}
BASE = jnp.array([2, 4], jnp.uint32)
"""A histogram of two losses below the middle, and four above."""


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
    assert 1.5 * 0.999 <= release.noise_multiplier <= 1.5 * 1.02
    assert (release.rate, release.times, release.mechanism) == (0.3, 10, "concentrated")
    found = run(method, 2).privacy
    gaussian = spent([Release(1.5, 0.3, times=2)], delta=found.delta).epsilon
    assert gaussian < found.epsilon < 4 * gaussian  # what is known of discrete noise under sampling is less


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
    """The noisy count of everybody is off by two nodes' noise: its variance is 2 sigma^2, and half of it is seen."""
    z, share = 1.0, 1.0
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": z, "share": share, "bins": 2})
    rule = method.phases[0].aggregator
    assert rule.release.noise_multiplier == pytest.approx(z * 2**0.5, rel=1e-3)
    counting = histogram_for(0.25, clients=1, bins=2, largest=4.0, sensitivity="tight", bits=32)
    keys = jax.random.split(jax.random.key(1), 4000)
    own = jax.vmap(lambda key: rule.lower((BASE, jnp.uint32(9)), (), key)[0])(
        jax.random.split(jax.random.key(2), 4000)
    )

    def edges(sigma):
        def one(key):
            noise = lax.bitcast_convert_type(discrete_gaussian(key, sigma=sigma, shape=(2,)), jnp.uint32)
            return counting.decode(BASE + noise, None, theta=0.5)

        return jax.vmap(one)(keys)

    for factor, same in ((1.0, True), (0.5, False)):
        table = [
            [int((found == edge).sum()) for edge in (2.0, 4.0)]
            for found in (edges(factor * counting.sigma), own)
        ]
        assert (stats.chi2_contingency(table).pvalue > 1e-3) == same


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"theta": 1.5}, {"share": 0.0}, {"noise_multiplier": 0.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(eh.EvenhandError, match="at most 1, and two numbers above 0"):
        dp_delta_fl(WORK, **{"theta": 0.5, **ARGUMENTS} | wrong)


def test_it_obeys_the_contract():
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": 1.0, "rate": 0.6, "clip": 1e-2})
    eh.testing.check_algorithm(method, rounds=2)
