"""Which clients trained, and when: the same numbers however a run is made, and as a loop over its rounds finds them."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import rounds
from evenhand.simulation import Job, iterate_many, twin
from evenhand.simulation._checkpoint import resealed
from evenhand.simulation.setup import set_up
from evenhand.types import Attack

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
A, P = eh.algorithms, eh.personalization
DITTO = P.ditto(A.fedavg(WORK), WORK, lam=0.5)
DROPS = eh.systems.dropouts(0.5)
HOW: dict[str, Any] = {"rounds": 3, "cohort": 2, "seed": 5}


def poisson():
    noisy = eh.aggregators.mean()
    return A.fedavg(WORK, sampling=eh.sampling.poisson(0.3), aggregator=noisy)


METHODS = {
    "ditto": (DITTO, None),
    "dropouts": (DITTO, DROPS),
    "stragglers are discarded": (DITTO, eh.systems.stragglers(0.5)),
    "stragglers are kept": (A.fedprox(WORK, mu=0.1), eh.systems.stragglers(0.5)),
    "two cohorts": (A.feddane(WORK, mu=0.1, fresh_cohort=True), None),
    "stacked": (A.fedavg(WORK, aggregator=eh.aggregators.coordinate_median()), DROPS),
    "weighed": (A.qfedavg(WORK, q=1.0), None),
    "with replacement": (A.fedavg(WORK, sampling=eh.sampling.proportional()), None),
    "poisson": (poisson(), None),
}


def drawn(method, systems, how):
    """By a loop over the rounds: who is in the cohort of the last exchange, and not dropped."""
    cohort = None if method.sampling.rate is not None else how["cohort"]
    setup = set_up(Job(method, DATA, rounds=1, cohort=cohort, seed=how["seed"], systems=systems))
    last, phase = np.zeros(DATA.num_clients, int), len(method.phases) - 1
    sizes = jnp.asarray(DATA.train.sizes, jnp.int32)
    for number in range(how["rounds"]):
        one = rounds.cohort(method, systems, sizes, setup.program.cohort, setup.keys, number, phase)
        last[np.asarray(one.ids)[np.asarray(one.present)]] = number + 1
    return last


@pytest.mark.parametrize("name", METHODS)
def test_the_last_round_is_the_last_cohort_with_the_client(name):
    method, systems = METHODS[name]
    how = HOW if method.sampling.rate is None else {**HOW, "cohort": None}
    run = eh.simulate(method, DATA, systems=systems, **how)
    expected = drawn(method, systems, HOW)
    np.testing.assert_array_equal(run.last_round, expected)
    assert run.last_round.dtype == np.int64
    assert 0 < (expected == 0).sum() < DATA.num_clients, "some train, and some do not"
    assert run.last_round.max() <= 3


@pytest.fixture(scope="module")
def plain():
    return eh.simulate(DITTO, DATA, systems=DROPS, **HOW)


@pytest.mark.parametrize(
    "more",
    [{"devices": 2}, {"lanes": 1}, {"offload": True}, {"offload": True, "devices": 2}, {"stream": True}],
    ids=str,
)
def test_it_is_the_same_however_the_run_is_made(plain, more):
    how: dict[str, Any] = {"cohort": 2, "seed": 5, "rounds": 3, "systems": DROPS}
    np.testing.assert_array_equal(eh.simulate(DITTO, DATA, **how, **more).last_round, plain.last_round)


def test_two_exchanges_on_two_devices_count_the_last():
    method = P.ditto(A.feddane(WORK, mu=0.1, fresh_cohort=True), WORK)
    run = eh.simulate(method, DATA, devices=2, **HOW)
    np.testing.assert_array_equal(run.last_round, drawn(method, None, HOW))


def test_the_readable_twin_agrees():
    for method in (DITTO, METHODS["two cohorts"][0]):
        setup = set_up(Job(method, DATA, rounds=3, cohort=2, seed=5, systems=DROPS))
        state, _ = twin.run_rounds(setup.program, setup.state, setup.rows, setup.keys, 0, 3)
        np.testing.assert_array_equal(state.last_round, drawn(method, DROPS, HOW))


def test_runs_side_by_side_have_each_their_own():
    """The second method's uploads overflow at the client with large features only."""
    works = [eh.local.sgd(MODEL, step, epochs=1, batch_size=4) for step in (0.1, 3e37)]
    jobs = [Job(P.ditto(A.fedavg(work), work, lam=0.0), DATA, rounds=3, cohort=2, seed=5) for work in works]
    found: dict[int, Any] = dict(iterate_many(jobs))
    np.testing.assert_array_equal(found[0].last_round, drawn(DITTO, None, HOW))
    with pytest.warns(eh.errors.EvenhandWarning):
        alone = eh.simulate(jobs[1].algorithm, DATA, **HOW)
    np.testing.assert_array_equal(found[1].last_round, alone.last_round)
    assert found[1].last_round.max() < found[0].last_round.max()


def test_a_client_whose_upload_is_rejected_has_not_trained():
    bad = Attack(clients=(0, 3), upload=lambda delta, key: jax.tree.map(lambda leaf: leaf * jnp.nan, delta))
    with pytest.warns(eh.errors.EvenhandWarning, match="rejected"):
        run = eh.simulate(DITTO, DATA, rounds=2, attack=bad)
    assert (run.last_round == 0).nonzero()[0].tolist() == [0, 3]
    assert (run.last_round[[1, 2, 4, 5]] == 2).all()


def test_each_evaluation_has_its_own_and_the_run_is_the_callers():
    seen = [run.last_round for run in eh.simulation.iterate(DITTO, DATA, eval_every=1, **HOW)]
    for number, found in enumerate(seen):
        expected = drawn(DITTO, None, {**HOW, "rounds": number}) if number else np.zeros(DATA.num_clients)
        np.testing.assert_array_equal(found, expected)


def stopped(folder, systems):
    how = {**HOW, "systems": systems, "eval_every": 1, "checkpoint": folder}
    for run in eh.simulation.iterate(DITTO, DATA, **how):
        if run.info["rounds"] == 2:
            break
    return how


@pytest.mark.parametrize("offload", [False, True])
def test_a_resumed_run_knows_when_clients_trained_before(plain, tmp_path, offload):
    how = stopped(tmp_path, DROPS) | {"offload": offload}
    run = eh.simulate(DITTO, DATA, **how)
    np.testing.assert_array_equal(run.last_round, plain.last_round)
    for split in ("train", "test"):
        for metric, values in plain.client_metrics(split).items():
            np.testing.assert_array_equal(run.client_metrics(split)[metric], values)
    assert run.findings == plain.findings
    np.testing.assert_array_equal(run.initial_loss, plain.initial_loss)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_checkpoint_of_an_earlier_version_does_not_say_so_and_it_is_drawn_again(plain, tmp_path, devices):
    how = stopped(tmp_path, DROPS)
    for path in tmp_path.glob("*/about/metadata"):
        about = json.loads(path.read_text())
        del about["last_round"], about["identity"]["untrained"]
        path.write_text(json.dumps(resealed(about)))
    run = eh.simulate(DITTO, DATA, devices=devices, **how)
    np.testing.assert_array_equal(run.last_round, plain.last_round)
    # What is drawn again is all that is known: it is read where it is there.
    for path in tmp_path.glob("*/about/metadata"):
        about = json.loads(path.read_text())
        about["last_round"] = [9] * DATA.num_clients
        path.write_text(json.dumps(resealed(about)))
    assert (eh.simulate(DITTO, DATA, **how).last_round == 9).all()
