"""A cohort spread over devices: the same numbers, whoever trains whom."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.simulation.program import deal
from evenhand.streams import Purpose, stream
from evenhand.types import Stack

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
COHORT = 11
# A round or two teach too little to say whether the model has learnt.
pytestmark = pytest.mark.filterwarnings("ignore:The model's accuracy is no higher")


def _median():
    def apply(uploads, present, state, key):
        def middle(leaf):
            filled = present.reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.nanmedian(jnp.where(filled, leaf, jnp.nan), axis=0)

        return jax.tree.map(middle, uploads.delta), state

    return Stack(lambda like, clients: (), apply)


METHODS = {
    "fedavg": eh.algorithms.fedavg(WORK),
    "fedavg, median": eh.algorithms.fedavg(WORK, aggregator=_median()),
    "fedprox": eh.algorithms.fedprox(WORK, mu=0.5),
    "fedprox_adaptive": eh.algorithms.fedprox_adaptive(WORK, mu0=0.5),
    "feddane": eh.algorithms.feddane(WORK, mu=0.1),
    "scaffold": eh.algorithms.scaffold(WORK),
    "ditto, of two exchanges": eh.personalization.ditto(eh.algorithms.feddane(WORK, mu=0.1), WORK),
}


@pytest.fixture(scope="module")
def many():
    """Thirteen clients of the toy kind, of very unlike sizes."""
    toy = eh.testing.toy_data()
    rng = np.random.default_rng(0)
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 40])
    rows = rng.integers(0, toy.train.rows, sizes.sum())
    return eh.data.from_arrays(
        toy.train.x[rows], toy.train.y[rows], np.repeat(np.arange(13), sizes), test_fraction=0.0
    )


@pytest.mark.parametrize("name", METHODS)
def test_engine_and_twin_agree_at_all_lanes_on_one_and_four_devices(many, name):
    """All lanes for a sum and a stack; what else a method has does not know of its lanes."""
    lanes = (1, 3, COHORT) if name in ("fedavg", "fedavg, median") else (3,)
    eh.testing.check_algorithm(METHODS[name], many, cohort=COHORT, lanes=lanes, devices=(1, 4), rounds=2)


@pytest.mark.parametrize(
    "aggregator",
    [
        pytest.param(eh.aggregators.secure(eh.aggregators.mean()), id="secure"),
        pytest.param(eh.aggregators.mean(), id="mean"),
        pytest.param(eh.aggregators.geometric_median(2), id="passes"),
        pytest.param(eh.aggregators.running_tilt(1.0), id="weighed"),
    ],
)
@pytest.mark.filterwarnings("ignore:The model is no better than a guess")  # after one round
def test_a_second_exchange_trains_from_what_the_first_has_made(many, aggregator):
    """On whole batches and with a momentum, whose zeros JAX would place as it has placed the new model."""
    method = eh.algorithms.fedavg(
        eh.local.sgd(MODEL, optax.sgd(0.1, momentum=0.9), epochs=2), aggregator=aggregator
    )
    twice = method._replace(phases=method.phases * 2)
    one, two = (eh.simulate(twice, many, rounds=1, cohort=COHORT, seed=1, devices=d) for d in (1, 2))
    assert two.info["devices"] == 2 and two.info["steps"]["useful"] == 2 * 2 * COHORT
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The model is no better than a guess")  # after so few rounds
def test_a_run_on_four_devices_repeats_its_bits_and_differs_from_one_by_rounding_only(many):
    def run(devices):
        return eh.simulate(METHODS["scaffold"], many, rounds=4, cohort=COHORT, seed=1, devices=devices)

    one, four, again = run(1), run(4), run(4)
    assert (one.info["devices"], four.info["devices"]) == (1, 4)
    for a, b, c in zip(*(jax.tree.leaves(r.state) for r in (one, four, again)), strict=True):
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The model is no better than a guess")  # after one round
def test_each_device_reduces_a_part_of_the_coordinates(many):
    """The aggregator is written for whole uploads; norms are sums over coordinates, and so over devices."""
    placed = {}

    def apply(uploads, present, state, key):
        for name, leaf in uploads.delta.items():
            jax.debug.inspect_array_sharding(leaf, callback=partial(placed.__setitem__, name))
        squares = sum(jnp.sum(leaf**2, axis=range(1, leaf.ndim)) for leaf in uploads.delta.values())
        shortest = jnp.argmin(jnp.where(present, squares, jnp.inf))
        return jax.tree.map(lambda leaf: leaf[shortest], uploads.delta), squares

    def run(devices):
        method = eh.algorithms.fedavg(
            eh.local.sgd(eh.models.softmax_regression(features=4, classes=3), 0.1, epochs=1, batch_size=4),
            aggregator=Stack(lambda like, clients: jnp.zeros(6), apply),
        )
        return eh.simulate(method, many, rounds=1, cohort=6, seed=1, devices=devices)

    one, four = run(1), run(4)
    np.testing.assert_allclose(one.state.aggregators[0], four.state.aggregators[0], rtol=1e-5)
    shapes = {name: (6, *leaf.shape) for name, leaf in one.params.items()}
    held = {name: placed[name].shard_shape(shape) for name, shape in shapes.items()}
    assert held == {"kernel": (6, 1, 3), "bias": (6, 3)}, "4 devices do not divide the 3 biases"


def test_more_devices_than_clients_is_as_many_as_clients(many):
    assert eh.simulate(METHODS["fedavg"], many, rounds=1, cohort=2, devices=4).info["devices"] == 2


@pytest.mark.parametrize(
    ("m", "lanes", "devices"), [(1, 1, 1), (7, 2, 2), (100, 8, 4), (10, 64, 3), (5, 1, 4)]
)
def test_dealing_gives_everybody_one_place_and_no_device_the_longest(m, lanes, devices):
    ranks = deal(m, lanes, devices)
    assert sorted(ranks[ranks < m].tolist()) == list(range(m))
    assert ranks.shape[0] == devices and ranks.shape[2] <= lanes
    groups = ranks[:, :, 0].T  # the longest client of each group
    assert all(
        sorted(row.tolist()) == row.tolist() or sorted(row.tolist())[::-1] == row.tolist() for row in groups
    )
    work = np.where(ranks < m, m - ranks, 0).max(-1).sum(-1)
    assert work.max() - work.min() <= devices * ranks.shape[2]


@pytest.mark.filterwarnings("ignore:The model gives one answer")  # after so few rounds
def test_convolutions_agree_at_all_lanes_on_one_and_four_devices():
    """A network whose second layer is computed at interpolation points, where rounding is larger: within 1e-5."""

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(16, (3, 3))(x))
            x = nn.relu(nn.Conv(16, (3, 3))(x))
            return nn.Dense(3)(x.mean((1, 2)))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 12, 12, 1)).astype(np.float32), rng.integers(0, 3, 60)
    data = eh.data.from_arrays(x, y, np.repeat(np.arange(6), [4, 6, 8, 10, 12, 20]), test_fraction=0.0)
    model = eh.models.from_flax(Network(), loss="cross_entropy", sample=x[:1])
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.3, epochs=1, batch_size=4))

    def trained(lanes, devices):
        run = eh.simulate(method, data, rounds=2, cohort=5, lanes=lanes, devices=devices)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(run.params)]

    first = trained(1, 1)
    begun = [
        np.asarray(leaf) for leaf in jax.tree.leaves(model.init(stream(jax.random.key(0), Purpose.INIT)))
    ]
    assert max(np.abs(a - b).max() for a, b in zip(first, begun, strict=True)) > 1e-2
    for lanes, devices in ((5, 1), (1, 4), (3, 4)):
        for one, other in zip(first, trained(lanes, devices), strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)
