"""Clients' states on the host change no bit of a run, and its checkpoints save what has changed."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.errors import EvenhandWarning
from evenhand.simulation import Execution, Job
from evenhand.simulation import setup as setting_up
from evenhand.simulation._checkpoint import Segments
from evenhand.simulation.setup import set_up
from evenhand.simulation.store import HostStore

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
P = eh.personalization
METHODS = {
    "scaffold": eh.algorithms.scaffold(WORK),
    "ditto": P.ditto(eh.algorithms.scaffold(WORK), WORK, lam=0.5),
    "stacked, two phases": P.ditto(
        eh.algorithms.feddane(WORK, mu=0.1, aggregator=eh.aggregators.coordinate_median()), WORK, lam=0.5
    ),
    "adapted": P.finetune(P.fedalt(WORK, personal="b"), WORK),
    "chosen": P.dynamic_ditto(eh.algorithms.fedavg(WORK), WORK, per_run=True),
}
SETTINGS: dict[str, Any] = {"rounds": 12, "cohort": 3, "eval_every": 4, "seed": 1}
DITTO = METHODS["ditto"]


@pytest.fixture(scope="module")
def resident():
    return {name: eh.simulate(method, DATA, offload=False, **SETTINGS) for name, method in METHODS.items()}


@pytest.fixture(scope="module")
def longer():
    return eh.simulate(DITTO, DATA, **{**SETTINGS, "rounds": 20})


def assert_same_run(a, b):
    for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_array_equal(x, y)
    assert a.history.keys() == b.history.keys()
    for name, values in a.history.items():
        np.testing.assert_array_equal(values, b.history[name])
    for k in range(DATA.num_clients):
        for x, y in zip(*(jax.tree.leaves(run.personal_params(k)) for run in (a, b)), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", METHODS)
def test_states_on_the_host_change_no_bit(name, resident, tmp_path):
    for offload in (True, tmp_path / "states"):
        assert_same_run(eh.simulate(METHODS[name], DATA, offload=offload, **SETTINGS), resident[name])
    assert list((tmp_path / "states").iterdir())


@pytest.mark.parametrize(
    "how",
    [{"stream": True}, {"devices": 1}, {"eval_clients": 4}, {"cohort": 6, "eval_every": 1}, {"rounds": 0}],
)
def test_they_go_with_all_else(how):
    settings = SETTINGS | how
    both = (eh.simulate(DITTO, DATA, offload=offload, **settings) for offload in (True, False))
    assert_same_run(*both)


def test_few_rounds_at_a_time_and_states_gathered_ahead_are_the_same(resident, monkeypatch):
    monkeypatch.setattr(setting_up, "_STATE_BLOCK", 1)  # one round a block, whose clients the next may share
    assert_same_run(eh.simulate(DITTO, DATA, offload=True, **SETTINGS), resident["ditto"])


def test_small_states_stay_on_the_device_and_large_ones_do_not(monkeypatch):
    def store(method, **how):
        return set_up(Job(method, DATA, rounds=1, cohort=3, execution=Execution(**how))).store

    assert store(DITTO, offload=None) is None and store(DITTO) is None
    assert store(eh.algorithms.fedavg(WORK), offload=True) is None  # it keeps no states
    assert store(DITTO, offload=True) is not None
    monkeypatch.setattr(setting_up, "_RESIDENT", 100)
    assert store(DITTO, offload=None) is not None and store(DITTO, offload=False) is None


def test_the_states_of_a_run_are_there_until_it_trains_on():
    runs = eh.simulation.iterate(DITTO, DATA, offload=True, **SETTINGS)
    next(runs)  # before the first round every client is served the global model
    first = next(runs)
    trained = int(np.flatnonzero(first.last_round)[0])
    assert np.isfinite(first.personal_params(trained)["w"]).all()
    second = next(runs)
    with pytest.raises(eh.EvenhandError, match=r"on the host, are never copied.*offload=False"):
        first.personal_params(trained)
    with pytest.raises(eh.EvenhandError, match="never copied"):
        _ = first.state
    assert first.params is not None and second.personal_params(trained) is not None
    second.release()
    with pytest.raises(eh.EvenhandError, match="has released"):
        second.personal_params(trained)


# --- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True, "files"])
@pytest.mark.parametrize("after", [False, True, "files"])
def test_a_run_goes_on_wherever_its_states_were(before, after, longer, tmp_path):
    place = {"files": tmp_path / "states"}
    folder = tmp_path / "checkpoint"
    eh.simulate(DITTO, DATA, offload=place.get(before, before), checkpoint=folder, **SETTINGS)
    found = eh.simulate(
        DITTO, DATA, offload=place.get(after, after), checkpoint=folder, **{**SETTINGS, "rounds": 20}
    )
    assert_same_run(found, longer)


def segments(folder):
    return {path.name: path.stat().st_size for path in Path(folder, "clients").iterdir()}


def test_a_damaged_segment_is_noticed_and_the_run_goes_on_from_the_state_before(longer, tmp_path):
    how = {**SETTINGS, "offload": True, "checkpoint": tmp_path, "cohort": 1}
    whole = eh.simulate(DITTO, DATA, **{**how, "checkpoint": None})
    eh.simulate(DITTO, DATA, **how)
    newest = tmp_path / "clients" / max(segments(tmp_path))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    for damage in (bytes(content), bytes(content[:-1]), b""):
        newest.write_bytes(damage)
        with pytest.warns(EvenhandWarning, match=r"damaged \(.*clients' states"):
            again = eh.simulate(DITTO, DATA, **how)
        assert_same_run(again, whole)
        newest = tmp_path / "clients" / max(segments(tmp_path))
    for path in (tmp_path / "clients").iterdir():
        path.write_bytes(b"")
    with pytest.raises(eh.EvenhandError, match="is damaged"):
        eh.simulate(DITTO, DATA, **how)


def store_of(clients=50, folder=None):
    return HostStore({"v": np.arange(3, dtype=np.float32), "n": np.int32(7)}, clients, folder)


def states(ids, value):
    return {"v": np.full((len(ids), 3), value, np.float32), "n": np.full(len(ids), value, np.int32)}


@pytest.mark.parametrize("mapped", [False, True])
def test_a_store_has_new_clients_states_until_it_gets_others(mapped, tmp_path):
    store = store_of(folder=tmp_path if mapped else None)
    found = store.read(np.array([3, 1]), room=4)
    np.testing.assert_array_equal(found["v"], [[0, 1, 2]] * 4)
    store.put(np.array([1]), states([1, 2], 5))  # more than there are ids: the rest is padding
    found = store.read(np.array([3, 1, 1]))
    np.testing.assert_array_equal(found["n"], [7, 5, 5])
    np.testing.assert_array_equal(found["v"], [[0, 1, 2], [5, 5, 5], [5, 5, 5]])
    assert store.touched.sum() == store.changed.sum() == 1
    store.settle()
    assert store.touched.sum() == 1 and not store.changed.any()
    assert store.whole()["v"].shape == (50, 3)
    store.reset()
    np.testing.assert_array_equal(store.read(np.array([1]))["n"], [7])


def test_a_save_writes_what_has_changed_and_now_and_then_all_anew(tmp_path):
    """16 bytes a state and 8 for its id."""
    store, folder = store_of(), tmp_path / "clients"
    log = Segments(folder, store)

    def saved(number):
        listed = log.save(number)
        assert listed is not None
        return listed

    assert saved(0) == []
    listed, most = [], 0
    rng = np.random.default_rng(0)
    expected = store.whole()
    for number in range(1, 30):
        ids = np.sort(rng.choice(50, 4, replace=False))
        for name, leaf in states(ids, number).items():
            expected[name][ids] = leaf
        store.put(ids, states(ids, number))
        before, listed = listed, saved(number)
        log.saved(listed)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert sizes[listed[-1]["name"]] == 24 * listed[-1]["clients"]
        assert set(sizes) == {each["name"] for each in (*before, *listed)}
        if len(listed) > 1:
            assert listed[-1]["clients"] == 4
        assert sum(each["clients"] for each in listed) <= 2 * store.touched.sum()
        most = max(most, len(listed))
        other = store_of()
        assert Segments(folder, other).restored(listed, (), ()) == ()
        np.testing.assert_array_equal(other.touched, store.touched)
        for name, leaf in other.whole().items():
            np.testing.assert_array_equal(leaf, expected[name])
    assert most > 5 > len(saved(31)) - most
    assert saved(31) == listed  # nothing has changed since
    with pytest.raises(ValueError, match="clients that do not exist"):
        Segments(folder, store_of(3)).restored(listed, (), ())


def test_a_checkpoint_holds_each_clients_state_once_or_twice(tmp_path):
    eh.simulate(DITTO, DATA, offload=True, checkpoint=tmp_path, **{**SETTINGS, "rounds": 40})
    each = sum(
        leaf.nbytes
        for leaf in jax.tree.leaves(
            jax.tree.map(jnp.asarray, DITTO.init_client(MODEL.init(jax.random.key(0))))
        )
    )
    assert 0 < sum(segments(tmp_path).values()) <= 4 * DATA.num_clients * (each + 8)


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(eh.EvenhandError, match=r"Clients' states cannot be kept in .*file"):
        eh.simulate(DITTO, DATA, offload=tmp_path / "file" / "below", **SETTINGS)


def test_a_client_whose_state_is_missing_is_rejected_rather_than_given_anothers(monkeypatch):
    original = setting_up.cohorts

    def other_rounds(*arguments):
        draw = original(*arguments)
        return lambda sizes, table, keys, first: draw(sizes, table, keys, np.int32(first + 1))

    monkeypatch.setattr(setting_up, "cohorts", other_rounds)
    monkeypatch.setattr(setting_up, "_STATE_BLOCK", 1)
    with pytest.warns(EvenhandWarning, match="reject"):
        spoilt = eh.simulate(METHODS["scaffold"], DATA, offload=True, **SETTINGS)
    assert spoilt.per_round["rejected"].any()
