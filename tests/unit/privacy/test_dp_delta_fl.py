"""Delta-FL under privacy: without noise it is the filtered method, and its two exchanges are accounted for together."""

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.privacy import dp_delta_fl, dp_fedavg, spent
from evenhand.types import Release

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1)
N = DATA.num_clients
ARGUMENTS = {"largest_loss": 4.0, "clip": 1e3, "noise_multiplier": 1e-3, "rate": 1.0, "fewest": 5, "bins": 64}


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
    assert np.isclose(quantile, edges[1:][np.argmin(np.abs(below - (1 - theta) * N))], atol=1e-5)
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


def test_it_says_that_the_size_of_a_cohort_is_taken_to_be_public():
    told = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS).privacy
    assert "how many clients take part in each round" in told.public
    assert set(dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0, rate=0.5).privacy.public) < set(told.public)


def test_a_cohort_of_too_few_takes_no_quantile():
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"fewest": 2 * N})
    assert run(method).per_round["quantile"].tolist() == [0.0]


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
    state = state._replace(inner=state.inner._replace(quantile=quantile))
    rows = DATA.train
    data = eh.types.ClientData(rows.x, rows.y, 0, rows.sizes[0], 1.0, int(rows.sizes.max()))
    data = jax.tree.map(jax.numpy.asarray, data._replace(capacity=None))._replace(capacity=data.capacity)
    delta, _ = method.phases[1].work(method.phases[1].broadcast(state, 0), (), data, jax.random.key(0))
    found = np.abs(flat(delta)).max()
    assert found > 1e-3


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"theta": 1.5}, {"share": 0.0}, {"noise_multiplier": 0.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(eh.EvenhandError, match="at most 1, and two numbers above 0"):
        dp_delta_fl(WORK, **{"theta": 0.5, **ARGUMENTS} | wrong)


def test_it_obeys_the_contract():
    method = dp_delta_fl(WORK, theta=0.5, **ARGUMENTS | {"noise_multiplier": 1.0, "rate": 0.6, "clip": 1e-2})
    eh.testing.check_algorithm(method, rounds=2)
