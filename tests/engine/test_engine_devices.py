"""A cohort spread over devices: the same numbers, whoever trains whom."""

import logging
import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenhand as eh
from evenhand._jaxpr.programs import has_primitive
from evenhand.simulation import Execution, Job, engine, setup
from evenhand.simulation.program import deal, shifts_of
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


# --- clients that change the device halfway ---------------------------------------------------------------------------


def places(m: int, devices: int) -> list[tuple[int, int, int, float, int, int]]:
    """``(rank, device, half, share, entered, left)`` of each slot that is not empty; share 0: the rest of the work."""
    shifts = shifts_of(m, devices)
    slots = shifts.share.shape[1]
    return [
        (int(rank), device, 2 * slot // slots, float(share) if left else 0.0, int(entered), int(left))
        for device in range(devices)
        for slot, (rank, share, entered, left) in enumerate(
            zip(*(field[device].ravel() for field in (shifts.trained, *shifts[2:])), strict=True)
        )
        if rank < m
    ]


@pytest.mark.parametrize(("m", "devices"), [(5, 2), (7, 2), (7, 3), (8, 3), (11, 4), (13, 5), (33, 16)])
def test_shifts_give_each_device_the_same_work_in_each_half_and_nobody_two_places(m, devices):
    work, slots = np.zeros((devices, 2)), places(m, devices)
    for rank in range(m):
        mine = [slot for slot in slots if slot[0] == rank]
        first = next(slot for slot in mine if slot[4] == 0)
        _, device, half, share, _, left = first
        work[device, half] += share or 1.0
        if left == 0:
            assert len(mine) == 1
            continue
        (last,) = (slot for slot in mine if slot is not first)
        # Goes on here or on the device before, and in the second half.
        assert (half, last[1], last[2]) == (0, device if left == 1 else device - 1, 1)
        assert (last[4], last[5]) == (left, 0) and 0.0 < share < 1.0
        work[last[1], 1] += 1.0 - share
    np.testing.assert_allclose(work, m / devices / 2)
    for device in range(devices):
        for left in (1, 2):
            assert sum(slot[1] == device and slot[5] == left for slot in slots) <= 1, "one place to keep it"


def test_pieces_are_whole_steps_and_the_last_one_has_no_bound():
    pieces = shifts_of(5, 2).pieces(jnp.full((2, 4), 4))
    unbounded = np.iinfo(np.int32).max
    np.testing.assert_array_equal(
        pieces.most, [[unbounded, 1, unbounded, unbounded], [2, 3, unbounded, unbounded]]
    )


@given(st.integers(2, 16), st.integers(0, 60), st.integers(1, 12))
@settings(max_examples=100)
def test_how_long_shifts_take_is_the_longest_device_of_each_half(devices, more, steps):
    """Oracle: the pieces, in whole steps, where the last piece of a client is what the first has left of it."""
    m = 2 * devices + more + (more % devices == 0)
    work, left = np.zeros((devices, 2), int), np.full(m, steps)
    for rank, device, half, share, _, leaves in sorted(places(m, devices), key=lambda slot: slot[4]):
        part = int(np.round(share * steps)) if leaves else left[rank]
        work[device, half] += part
        left[rank] -= part
    assert not left.any() and shifts_of(m, devices).longest(steps) == work.max(0).sum()
    if steps >= 8:
        assert shifts_of(m, devices).longest(steps) <= steps * m / devices + 2


LARGE = eh.models.mlp(4, classes=3, hidden=(5_000,))
"""A model with 40,003 parameters, whose clients train one by one."""
MOMENTUM = eh.local.sgd(LARGE, optax.sgd(0.1, momentum=0.9), epochs=2, batch_size=3)
SHIFTING = {
    "fedavg": eh.algorithms.fedavg(MOMENTUM),
    "fedavg, masks": eh.algorithms.fedavg(MOMENTUM, aggregator=eh.aggregators.secure(eh.aggregators.mean())),
    "fedprox, its second exchange": eh.algorithms.fedprox_measured(
        eh.local.sgd(LARGE, 0.1, epochs=2, batch_size=3)
    ),
    "scaffold": eh.algorithms.scaffold(MOMENTUM),
    "ditto, two loops": eh.personalization.ditto(eh.algorithms.fedavg(MOMENTUM), MOMENTUM, lam=0.5),
    "q-fedavg, losses first": eh.algorithms.qfedavg(eh.local.sgd(LARGE, 0.1, epochs=2, batch_size=3), q=1.0),
}

DEALT = ("ditto, two loops", "q-fedavg, losses first")
"""Those whose clients stay where they are."""


@pytest.fixture(scope="module")
def equal():
    """Thirteen clients of ten rows, so that all take eight steps in two epochs."""
    toy = eh.testing.toy_data()
    rows = np.random.default_rng(1).integers(0, toy.train.rows, 130)
    return eh.data.from_arrays(
        toy.train.x[rows], toy.train.y[rows], np.repeat(np.arange(13), 10), test_fraction=0.0
    )


def rounds_of(method, data, cohort, devices, *, attack=None):
    """Two rounds: whether clients change the device, the arrays afterwards, and the infos."""
    execution = Execution(devices=devices, stream=False)
    ready = setup.set_up(Job(method, data, rounds=2, cohort=cohort, attack=attack, execution=execution))
    state, rows, keys = ready.state, ready.rows, ready.keys
    traced = jax.make_jaxpr(partial(engine.one_round, ready.program))(state, rows, keys, jnp.int32(0))
    state, infos = engine.run_rounds(ready.program, state, rows, keys, 0, 2)
    return (
        has_primitive(traced, {"ppermute"}),
        jax.tree.map(np.asarray, state),
        jax.tree.map(np.asarray, infos),
    )


@pytest.mark.parametrize(
    ("name", "cohort", "devices"), [("fedavg", 11, 4), *((name, 5, 2) for name in SHIFTING)]
)
def test_clients_that_change_the_device_train_as_on_one(equal, name, cohort, devices):
    shifts, one, steps = rounds_of(SHIFTING[name], equal, cohort, 1)
    assert not shifts
    shifts, other, steps_of_many = rounds_of(SHIFTING[name], equal, cohort, devices)
    assert shifts == (name not in DEALT)
    np.testing.assert_array_equal(steps["steps.useful"][:2], steps_of_many["steps.executed"][:2])
    np.testing.assert_array_equal(steps["reported"][:2], [cohort, cohort])
    np.testing.assert_array_equal(steps["reported"], steps_of_many["reported"])
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_no_step_is_trained_twice(equal):
    """A callback counts the gradients: nobody who changes the device begins again."""
    counted = []

    def losses(outputs, y):
        jax.debug.callback(lambda: counted.append(1))
        return LARGE.losses(outputs, y)

    work = eh.local.sgd(LARGE._replace(losses=losses), 0.1, epochs=2, batch_size=3)
    shifts, _, infos = rounds_of(eh.algorithms.fedavg(work), equal, 5, 2)
    jax.effects_barrier()
    assert shifts and len(counted) == infos["steps.useful"][:2].sum() == 2 * 5 * 8


def test_only_the_last_exchange_of_a_round_has_shifts(equal):
    """What an earlier one works is no number of steps that could be cut."""

    def exchanges(method):
        execution = Execution(devices=2, stream=False)
        ready = setup.set_up(Job(method, equal, rounds=1, cohort=5, execution=execution))
        arguments = (ready.state, ready.rows, ready.keys, jnp.int32(0))
        return str(jax.make_jaxpr(partial(engine.one_round, ready.program))(*arguments)).count("ppermute[")

    once = SHIFTING["fedavg"]
    assert exchanges(once._replace(phases=once.phases * 2)) == exchanges(once) > 0


@pytest.mark.filterwarnings("ignore:.*upload")
def test_a_client_whose_upload_is_rejected_leaves_nothing_to_others(equal):
    """Half of the clients send NaN and are rejected, some of them after they have changed the device."""
    attack = eh.attacks.non_finite(fraction=0.5)
    (_, one, infos), (shifts, other, others) = (
        rounds_of(SHIFTING["scaffold"], equal, 11, devices, attack=attack) for devices in (1, 4)
    )
    assert shifts and 0 < infos["reported"][:2].min() < 11
    np.testing.assert_array_equal(infos["reported"], others["reported"])
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cohort", "devices", "reason"),
    [(4, 2, "the devices divide it"), (3, 2, "fewer than two each"), (5, 1, "one device")],
)
def test_other_cohorts_are_dealt(equal, cohort, devices, reason):
    execution = Execution(devices=devices, stream=False)
    job = Job(SHIFTING["fedavg"], equal, rounds=1, cohort=cohort, execution=execution)
    assert not setup.set_up(job).program.shifts, reason


def test_clients_of_unequal_work_are_dealt(many, equal):
    def shifts(data, **options):
        method = options.pop("method", SHIFTING["fedavg"])
        execution = Execution(devices=2, stream=False, **options.pop("execution", {}))
        options = {"cohort": 5, **options}
        return setup.set_up(Job(method, data, rounds=1, execution=execution, **options)).program.shifts

    assert not shifts(many)
    x, y = equal.train.x[:120], equal.train.y[:120]
    two_lengths = eh.data.from_arrays(x, y, np.repeat(np.arange(8), [10, 20] * 4), test_fraction=0.0)
    assert not shifts(two_lengths)
    assert shifts(many, method=eh.algorithms.fedavg(eh.local.sgd(LARGE, 0.1, steps=4, batch_size=4)))
    assert shifts(equal) and not shifts(equal, execution={"lanes": 2})
    assert not shifts(equal, method=METHODS["fedavg"]), "a small model"
    assert not shifts(equal, systems=eh.systems.stragglers(0.5))
    poisson = eh.algorithms.fedavg(MOMENTUM, sampling=eh.sampling.poisson(0.3))
    assert setup.set_up(Job(poisson, equal, rounds=1)).program.cohort % 2, "the devices do not divide it"
    assert not shifts(equal, method=poisson, cohort=None)
    one_step = eh.algorithms.fedavg(eh.local.sgd(LARGE, 0.1, steps=1, batch_size=3))
    assert not shifts(equal, method=one_step), "nothing can be cut"


def test_methods_of_other_step_sizes_find_who_changes_the_device_by_one_program(equal, monkeypatch):
    compiled = []
    monkeypatch.setattr(logging.getLogger("jax._src.interpreters.pxla"), "handle", compiled.append)

    def programs(lr, **length):
        compiled.clear()
        method = eh.algorithms.fedavg(eh.local.sgd(LARGE, lr, batch_size=3, **length))
        job = Job(method, equal, rounds=1, cohort=5, execution=Execution(devices=2, stream=False))
        with jax.log_compiles():
            assert setup.set_up(job).program.shifts
        return sum("Compiling jit(drawn_steps)" in record.getMessage() for record in compiled)

    setup._drawn_steps.cache_clear()
    setup._shared.cache_clear()
    assert [programs(0.1, steps=7), programs(0.2, steps=7), programs(0.1, steps=6)] == [1, 0, 1]


def test_nothing_is_exchanged_beside_a_loop_that_exchanges(equal):
    """Where a CPU has fewer threads than devices, each of two exchanges at a time may wait for the other for ever.

    The clients of each place are known before they train, so that gathering them would not wait for the training.
    """
    ready = setup.set_up(
        Job(SHIFTING["scaffold"], equal, rounds=1, cohort=11, execution=Execution(devices=4, stream=False))
    )
    arguments = (ready.state, ready.rows, ready.keys, jnp.int32(0))
    compiled = str(jax.jit(partial(engine.one_round, ready.program)).lower(*arguments).compile().as_text())
    gathered = re.findall(r"= (\w+)\[[^ ]* all-gather\(", compiled)
    assert "f32" in gathered and "s32" not in gathered, "states afterwards, and not who has them"


def test_a_run_with_shifts_goes_on_from_a_checkpoint_on_other_devices(equal, tmp_path):
    def run(rounds, devices, folder):
        options = {"cohort": 5, "eval_every": 1, "checkpoint": folder}
        return eh.simulate(SHIFTING["scaffold"], equal, rounds=rounds, devices=devices, **options)

    whole = run(2, 2, tmp_path / "whole")
    for first, then in ((2, 2), (2, 1), (1, 2)):
        folder = tmp_path / f"{first}-{then}"
        run(1, first, folder)
        for a, b in zip(*(jax.tree.leaves(r.params) for r in (whole, run(2, then, folder))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=0.0 if first == then == 2 else 1e-6)
