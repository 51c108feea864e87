"""The types hold six methods that differ most, with no change to the engine for any of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_methods

import evenhand as eh
from evenhand.types import Model

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)

METHODS = {
    "q-FedAvg": eh.algorithms.qfedavg(WORK, q=1.0, lipschitz=10.0),
    "Krum": eh.algorithms.fedavg(WORK, aggregator=small_methods.krum(1)),
    "geometric median": eh.algorithms.fedavg(WORK, aggregator=small_methods.geometric_median(3)),
    "SCAFFOLD": eh.algorithms.scaffold(WORK),
    "FedDane": eh.algorithms.feddane(WORK, mu=0.1),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_keep_the_contract(name):
    eh.testing.check_algorithm(METHODS[name], lanes=(2,))


@pytest.mark.parametrize("name", METHODS)
def test_ditto_wraps_every_method(name):
    eh.testing.check_algorithm(small_methods.ditto(METHODS[name], WORK, lam=0.5), lanes=(2,), rounds=2)


@pytest.mark.parametrize("name", ["q-FedAvg", "FedDane"])
def test_ditto_leaves_the_global_model_alone_bit_for_bit(name):
    """The personal model has random numbers of its own, so the global one cannot tell that it is there."""
    data = eh.testing.toy_data()
    alone = eh.simulate(METHODS[name], data, rounds=3, cohort=4, seed=5)
    for lam in (0.5, 2.0):
        wrapped = eh.simulate(
            small_methods.ditto(METHODS[name], WORK, lam=lam), data, rounds=3, cohort=4, seed=5
        )
        for a, b in zip(jax.tree.leaves(alone.params), jax.tree.leaves(wrapped.params), strict=True):
            np.testing.assert_array_equal(a, b)
        own = wrapped.personal_params(2)
        assert not np.array_equal(own["w"], wrapped.params["w"])
        assert not np.array_equal(
            wrapped.client_metrics("train")["loss"], alone.client_metrics("train")["loss"]
        )


def _quadratics(c):
    """F_k(w) = (w - c_k)^2 / 2, one row per client."""
    model = Model(
        init=lambda key: jnp.zeros(()),
        apply=lambda w, x: jnp.broadcast_to(w, x.shape),
        losses=lambda outputs, y: 0.5 * jnp.square(outputs - y),
        metrics={},
    )
    rows = np.asarray(c, np.float32)
    data = eh.data.from_arrays(np.zeros_like(rows), rows, np.arange(len(c)), test_fraction=0.0)
    return model, data


def test_ditto_follows_the_worked_trace():
    """Trace of the Ditto specification: c = (0, 2), lam = .5, step .2, two steps a round."""
    model, data = _quadratics([0.0, 2.0])
    work = eh.local.sgd(model, 0.2, steps=2)
    method = small_methods.ditto(eh.algorithms.fedavg(work), work, lam=0.5)
    runs = list(eh.simulation.iterate(method, data, rounds=3, eval_every=1))[1:]
    seen = [[float(run.personal_params(0)), float(run.personal_params(1)), float(run.params)] for run in runs]
    trace = [[0, 0.68, 0.36], [0.0612, 1.0744, 0.5904], [0.130356, 1.306824, 0.737856]]
    np.testing.assert_allclose(seen, trace, atol=1e-6)
    moving_anchor = [[0, 0.72], [0.054, 1.1268], [0.11502, 1.360692]]
    assert np.max(np.abs(np.array(seen)[:, :2] - moving_anchor)) > 1e-3


def test_krum_and_geometric_median_survive_what_the_mean_does_not():
    """The aggregator fixture of the Ditto specification, and an outlier."""
    deltas = jnp.array([[0.0, 0], [1, 0], [0, 2], [2, 2], [9, 9]])
    assert eh.aggregators.aggregate(small_methods.krum(1), deltas).tolist() == [0, 0]
    outlier = deltas.at[4].set(jnp.array([1e3, 1e3]))
    mean = eh.aggregators.aggregate(eh.aggregators.mean(), outlier)
    median = eh.aggregators.aggregate(small_methods.geometric_median(60), outlier)
    assert float(jnp.max(jnp.abs(mean))) > 100 > 3 > float(jnp.max(jnp.abs(median)))


@pytest.mark.parametrize("aggregator", ["median", "krum"])
def test_small_aggregators_keep_the_contract(aggregator):
    eh.testing.check_aggregator(
        {"median": small_methods.geometric_median(4), "krum": small_methods.krum(2)}[aggregator],
    )
