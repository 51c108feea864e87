"""Streamed rows give the numbers of resident ones, and evaluating a sample gives those of evaluating all clients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.data import FederatedDataset, Split, _validation
from evenhand.devices import over
from evenhand.evaluation import Prepared, evaluate_personal, per_client, prepare
from evenhand.simulation import Execution, Job, program, setup
from evenhand.simulation.setup import set_up
from evenhand.types import Attack

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
FEDAVG = eh.algorithms.fedavg(WORK)
SIZES = np.random.default_rng(3).integers(1, 30, 60)
CLIENTS = len(SIZES)
pytestmark = pytest.mark.filterwarnings("ignore:.* clients ha(ve|s) no test examples")


def arrays(sizes, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sizes.sum(), 4)).astype(np.float32)
    y = rng.integers(0, 3, len(x)).astype(np.int32)
    return x, y, np.concatenate([[0], np.cumsum(sizes)])


def dataset(*splits):
    (x, y, offsets), test = splits
    none = Split(x[:0], y[:0], np.zeros_like(offsets))
    ids = tuple(f"client {k}" for k in range(len(offsets) - 1))
    return FederatedDataset(Split(x, y, offsets), none, Split(*test), ids)


MEMORY = dataset(arrays(SIZES, 0), arrays(SIZES % 4, 1))


@pytest.fixture
def mapped(tmp_path):
    def on_disk(name, x, y, offsets):
        for part, values in (("x", x), ("y", y)):
            np.save(tmp_path / f"{name}_{part}.npy", values)
        return *(np.load(tmp_path / f"{name}_{part}.npy", mmap_mode="r") for part in ("x", "y")), offsets

    return dataset(on_disk("train", *arrays(SIZES, 0)), on_disk("test", *arrays(SIZES % 4, 1)))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(setup, "_ROW_BLOCK", 2**13)  # 409 rows: about three rounds


def leaves(run):
    return [np.asarray(leaf) for leaf in jax.tree.leaves((run.state, dict(run.per_round)))]


def assert_same_bits(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.history.keys() == other.history.keys()
    for name, values in one.history.items():
        np.testing.assert_allclose(values, other.history[name], rtol=1e-5, atol=1e-6)


def run(data, method=FEDAVG, **changes):
    options: dict[str, Any] = {"rounds": 11, "cohort": 8, "eval_every": 4, "seed": 1, **changes}
    return eh.simulate(method, data, **options)


METHODS = {
    "fedavg": (FEDAVG, {"systems": eh.systems.stragglers(0.5)}),
    "repeats": (eh.algorithms.fedavg(WORK, sampling=eh.sampling.proportional()), {}),
    "distinct": (
        eh.algorithms.fedavg(WORK, sampling=eh.sampling.proportional(replace=False)),
        {"devices": 4},
    ),
    "feddane": (eh.algorithms.feddane(WORK, mu=0.1), {"systems": eh.systems.stragglers(0.5)}),
    "scaffold": (eh.algorithms.scaffold(WORK), {"devices": 4}),
    "stragglers, devices": (FEDAVG, {"systems": eh.systems.stragglers(0.5), "devices": 4}),
    "empty cohorts": (FEDAVG, {"systems": eh.systems.stragglers(1.0)}),
}


@pytest.mark.filterwarnings("ignore:The model never changed")  # in the case of empty cohorts
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", METHODS)
def test_streamed_rows_give_the_bits_of_resident_ones(mapped, name):
    method, options = METHODS[name]
    streamed = run(mapped, method, **options)
    assert_same_bits(run(MEMORY, method, **options), streamed)
    assert streamed.info["seconds"]["data"] > 0


@pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")  # whatever rows it trains on
@pytest.mark.usefixtures("small_blocks")
def test_the_comparison_notices_rows_in_a_wrong_place(mapped, monkeypatch):
    original = setup._moved

    def shifted(starts, old, new, places, absent):
        return original(starts, old, new, (places + 1).astype(np.int32), absent)

    monkeypatch.setattr(setup, "_moved", shifted)
    with pytest.raises(AssertionError):
        assert_same_bits(run(MEMORY), run(mapped))


@pytest.mark.filterwarnings("ignore:The server rejected")
@pytest.mark.usefixtures("small_blocks")
def test_a_client_whose_rows_are_missing_is_rejected_rather_than_given_anothers_rows(mapped, monkeypatch):
    """Its upload is not a number, so that the server rejects it, and the run says so."""
    original = setup.cohorts

    def other_rounds(*arguments):
        draw = original(*arguments)
        return lambda sizes, table, keys, first: draw(sizes, table, keys, np.int32(first + 1))

    monkeypatch.setattr(setup, "cohorts", other_rounds)
    spoilt = run(mapped)
    assert spoilt.per_round["rejected"].any()
    assert [finding.kind for finding in spoilt.findings] == ["rejected", "unmeasured"]


def test_blocks_hold_what_their_rounds_need_and_nothing_stale(mapped, monkeypatch):
    monkeypatch.setattr(setup, "_ROW_BLOCK", 2**13)
    source = set_up(Job(FEDAVG, mapped, rounds=1, cohort=8, seed=1)).source
    number, ends = 0, []
    while number < 40:
        rows, count = source.block(number, 40 - number)
        again, fewer = source.block(number, 1)
        assert fewer == 1 and again.x is rows.x
        resident = np.asarray(rows.starts) < rows.x.shape[0] - 1
        for k in np.flatnonzero(resident):
            window = slice(int(rows.starts[k]), int(rows.starts[k]) + SIZES[k])
            np.testing.assert_array_equal(rows.x[window], mapped.train.client(k)[0])
            np.testing.assert_array_equal(rows.y[window], mapped.train.client(k)[1])
        assert 8 <= resident.sum() < CLIENTS
        assert np.isnan(rows.x[-1]).all() and rows.x.shape[0] == 513
        number += count
        ends.append(number)
    assert len(ends) > 5


def test_a_round_that_needs_more_than_the_block_has_makes_it_grow(monkeypatch):
    monkeypatch.setattr(setup, "_ROW_BLOCK", 1)
    sizes = np.array([1] * 50 + [600])
    data = dataset(arrays(sizes, 0), arrays(sizes % 3, 1))
    options: dict[str, Any] = {"cohort": 3, "rounds": 40}
    streamed, resident = run(data, stream=True, **options), run(data, **options)
    assert_same_bits(streamed, resident)
    job = Job(FEDAVG, data, rounds=1, cohort=3, seed=1, execution=Execution(stream=True))
    assert set_up(job).source.block(0, 1)[0].x.shape[0] < 600


@pytest.mark.usefixtures("small_blocks")
def test_rows_of_malicious_clients_are_poisoned_as_they_are_streamed(mapped):
    attack = Attack(
        fraction=0.4, rows=lambda x, y, rng: (x + rng.normal(size=x.shape).astype(x.dtype), 2 - y)
    )
    poisoned = run(mapped, attack=attack)
    assert_same_bits(run(MEMORY, attack=attack), poisoned)
    assert not np.array_equal(leaves(poisoned)[0], leaves(run(MEMORY))[0])


@pytest.mark.usefixtures("small_blocks")
def test_a_resident_run_continues_as_a_streamed_one(mapped, tmp_path):
    whole = run(MEMORY)
    run(MEMORY, rounds=6, checkpoint=tmp_path / "kept")
    assert_same_bits_of_state(whole, run(mapped, checkpoint=tmp_path / "kept"))


def assert_same_bits_of_state(one, other):
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_memory_map_is_never_copied(mapped):
    assert program.must_stream(mapped.train) and not program.must_stream(MEMORY.train)
    x = mapped.train.x
    assert isinstance(x, np.ndarray) and not x.flags.writeable and isinstance(x.base, np.memmap)
    resident = set_up(Job(FEDAVG, MEMORY, rounds=1, cohort=8)).rows.x
    assert resident.unsafe_buffer_pointer() == MEMORY.train.x.ctypes.data, "a CPU uses rows in place"


@pytest.mark.parametrize("row", [0, 400, 852])
def test_a_bad_number_is_found_in_whichever_slice_it_lies(monkeypatch, row):
    monkeypatch.setattr(_validation, "_SLICE", 160)  # ten rows
    x, y, offsets = arrays(SIZES, 0)
    x[row, 2] = np.inf
    with pytest.raises(eh.EvenhandError, match=rf"train\.x\[{row}\] holds inf"):
        dataset((x, y, offsets), arrays(SIZES % 4, 1))


def test_methods_that_need_all_rows_refuse_to_stream(mapped):
    method = eh.algorithms.fedprox_adaptive(WORK, mu0=0.5)
    with pytest.raises(eh.EvenhandError, match="stream=False"):
        run(mapped, method)
    assert run(mapped, method, stream=False).info["rounds"] == 11


def stacked():
    return jax.vmap(MODEL.init)(jax.random.split(jax.random.key(5), CLIENTS))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("block", [2**23, 256])
def test_rows_on_the_host_and_on_devices_are_evaluated_alike(monkeypatch, devices, block):
    from evenhand.evaluation import _evaluate

    monkeypatch.setattr(_evaluate, "_CHUNK_ROWS", (32, 32))
    monkeypatch.setattr(_evaluate, "_BLOCK_NUMBERS", block)
    params, mesh, split = MODEL.init(jax.random.key(0)), over(devices), MEMORY.train
    host = Prepared(split.x, split.y, split.offsets, None, mesh)
    on_device = prepare(split)
    expected = per_client(MODEL, params, on_device), evaluate_personal(MODEL, stacked(), on_device)
    for prepared in (host, Prepared(jnp.asarray(split.x), jnp.asarray(split.y), split.offsets, None, mesh)):
        found = per_client(MODEL, params, prepared), evaluate_personal(MODEL, stacked(), prepared)
        for one, other in zip(expected, found, strict=True):
            for name, values in one.items():
                np.testing.assert_allclose(values, other[name], rtol=1e-6)
    assert not np.allclose(expected[0]["loss"], expected[1]["loss"])


@pytest.mark.parametrize("devices", [1, 4])
def test_a_sample_of_the_clients_is_evaluated_with_their_own_models(devices):
    who = np.array([3, 17, 18, 41, 59])
    split = MEMORY.train
    index = np.concatenate([np.arange(*split.offsets[k : k + 2].tolist()) for k in who])
    offsets = np.concatenate([[0], np.cumsum(SIZES[who])])
    sample = Prepared(split.x[index], split.y[index], offsets, who, over(devices))
    losses = evaluate_personal(MODEL, stacked(), prepare(split))["loss"]
    np.testing.assert_allclose(evaluate_personal(MODEL, stacked(), sample)["loss"], losses[who], rtol=1e-6)
    with_first_models = sample._replace(clients=None)
    assert not np.allclose(evaluate_personal(MODEL, stacked(), with_first_models)["loss"], losses[who])


def test_only_a_sample_of_the_clients_is_evaluated_when_asked(tmp_path):
    whole, sampled = run(MEMORY), run(MEMORY, eval_clients=12)
    assert_same_bits_of_state(whole, sampled)
    assert sampled.evaluated is not None and len(sampled.evaluated) == 12 and whole.evaluated is None
    for split in ("train", "test"):
        for name, values in sampled.client_metrics(split).items():
            expected = np.full(CLIENTS, np.nan)
            expected[sampled.evaluated] = whole.client_metrics(split)[name][sampled.evaluated]
            np.testing.assert_allclose(values, expected, rtol=1e-6)
    rows, loss = SIZES[sampled.evaluated], whole.client_metrics("train")["loss"][sampled.evaluated]
    np.testing.assert_allclose(sampled.history["train_loss"][-1], np.average(loss, weights=rows), rtol=1e-6)
    assert sampled.summary("train")["clients"] == 12
    view = sampled.view()
    assert view.client_ids == tuple(MEMORY.client_ids[k] for k in sampled.evaluated)
    assert len(view.sizes["train"]) == 12
    sampled.report(tmp_path / "report.html")
    np.testing.assert_array_equal(sampled.evaluated, run(MEMORY, rounds=0, eval_clients=12).evaluated)
    other = run(MEMORY, rounds=0, eval_clients=12, seed=2).evaluated
    assert other is not None and not np.array_equal(sampled.evaluated, other)
    assert run(MEMORY, rounds=0, eval_clients=CLIENTS + 1).evaluated is None
    with pytest.raises(eh.EvenhandError, match="eval_clients"):
        run(MEMORY, eval_clients=0)


@pytest.mark.usefixtures("small_blocks")
def test_evaluating_a_sample_of_a_memory_map_gives_the_same_losses(mapped):
    np.testing.assert_allclose(
        run(mapped, eval_clients=12).client_metrics()["loss"],
        run(MEMORY, eval_clients=12).client_metrics()["loss"],
        rtol=1e-6,
    )
