"""A network in one process gives the numbers of a simulation, and refuses what no network can do."""

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.network.in_process import federation, states_of
from evenhand.network.server import run_from
from evenhand.personalization.methods import mocha
from evenhand.simulation import Job
from tests.unit.network.sites import DATA, MODEL, WORK

agg = eh.aggregators
MEDIAN = agg.geometric_median(3, start="mean")


def noisy_lift(upload, public, key):
    """Noise of a client, other in each pass."""
    lifted = MEDIAN.lift(upload, public, key)
    noise = jax.tree.map(lambda leaf: 0.01 * jax.random.normal(key, leaf.shape), lifted)
    return jax.tree.map(jax.numpy.add, lifted, noise)


HOW: dict[str, Any] = {"rounds": 3, "cohort": 3, "seed": 4, "eval_every": 2}
METHODS = {
    "fedavg": eh.algorithms.fedavg(WORK),
    "scaffold, three passes under noise of clients": eh.algorithms.scaffold(
        WORK, aggregator=MEDIAN._replace(lift=noisy_lift)
    ),
    "ditto around delta_fl": eh.personalization.ditto(eh.algorithms.delta_fl(WORK, theta=0.5), WORK, lam=0.5),
    "adapted, quantized uploads": eh.personalization.finetune(
        eh.algorithms.fedavg(WORK, aggregator=agg.quantized(4)), WORK
    ),
    "several levels": eh.algorithms.delta_fl_levels(WORK, theta=(0.3, 0.8)),
    "feddane, krum of the largest numbers": eh.algorithms.feddane(
        WORK, mu=0.1, aggregator=agg.top_k(0.5, then=agg.krum(0))
    ),
    "poisson cohorts, weights by losses": eh.algorithms.fedavg(
        WORK, aggregator=agg.loss_powers(2.0), sampling=eh.sampling.poisson(0.3)
    ),
    "noise of the server": eh.privacy.dp_fedavg(WORK, clip=0.5, noise_multiplier=1.0, rate=0.3),
}


VALIDATED = dataclasses.replace(DATA, valid=DATA.test)
"""Clients choose a level on validation examples."""


@cache
def runs(name, seed=HOW["seed"]):
    """The same run simulated and over messages."""
    method, data = METHODS[name], VALIDATED if name == "several levels" else DATA
    how = {**HOW, "seed": seed, "cohort": None if method.sampling.independent else HOW["cohort"]}
    return eh.simulate(method, data, **how), eh.network.local(method, data, **how)


@pytest.fixture(params=METHODS)
def pair(request):
    return runs(request.param)


def assert_close(simulated, deployed, name):
    np.testing.assert_allclose(
        np.asarray(deployed, float), np.asarray(simulated, float), rtol=2e-6, atol=1e-6, err_msg=name
    )


def assert_trees_close(simulated, deployed, name):
    assert jax.tree.structure(simulated) == jax.tree.structure(deployed)
    for one, other in zip(jax.tree.leaves(simulated), jax.tree.leaves(deployed), strict=True):
        assert_close(one, other, name)


def test_the_columns_of_a_table_are_on_their_scale(tmp_path):
    """Clients agree on none, as they do on machines: what was standardised already stays as it is."""
    rows = [f"{i % 3},{i * i % 7},{i % 4 == 1:d},{i % 2}" for i in range(24)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,a,b,label", *rows]) + "\n")
    data = eh.data.load(str(tmp_path / "rows.csv"))
    assert data.features is not None and data.features.standardized
    model = eh.models.softmax_regression(features=2, classes=2)
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=4))
    simulated, deployed = eh.simulate(method, data, rounds=1), eh.network.local(method, data, rounds=1)
    assert_trees_close(simulated.params, deployed.params, "params")
    assert deployed.data is data


def test_it_gives_the_numbers_of_a_simulation(pair):
    simulated, deployed = pair
    assert_trees_close(simulated.params, deployed.params, "parameters")
    assert set(deployed.history) - set(simulated.history) == {"absent"}
    assert set(simulated.history) <= set(deployed.history)
    for name in simulated.history:
        if not name.startswith("bytes"):
            assert_close(simulated.history[name], deployed.history[name], name)
    assert set(deployed.per_round) - set(simulated.per_round) == {"absent"}
    for name in simulated.per_round:
        assert_close(simulated.per_round[name], deployed.per_round[name], name)
    assert not np.any(deployed.per_round["absent"])


def test_it_gives_the_numbers_of_each_client(pair):
    simulated, deployed = pair
    assert {split: set(metrics) for split, metrics in simulated.clients.items()} == {
        split: set(metrics) for split, metrics in deployed.clients.items()
    }
    for split, metrics in simulated.clients.items():
        for name, values in metrics.items():
            assert_close(values, deployed.clients[split][name], f"{split} {name}")
    assert set(simulated.classes) == set(deployed.classes)
    for split, cells in simulated.classes.items():
        for name, one, other in zip(cells._fields, cells, deployed.classes[split], strict=True):
            assert_close(one, other, f"{split} {name}")
    for name in ("last_round", "initial_loss", "malicious"):
        assert_close(getattr(simulated, name), getattr(deployed, name), name)
    assert (simulated.level is None) == (deployed.level is None)
    if simulated.level is not None:
        np.testing.assert_array_equal(simulated.level, deployed.level)


def test_it_serves_the_models_of_a_simulation(pair):
    """From the states that the clients keep."""
    simulated, deployed = pair
    for client in range(DATA.num_clients):
        assert_trees_close(
            simulated.personal_params(client), deployed.personal_params(client), f"client {client}"
        )
    for split in ("train", "test"):
        assert_close(
            simulated.client_metrics(split)["loss"], deployed.client_metrics(split)["loss"], f"{split} loss"
        )


def test_it_counts_the_same_work(pair):
    simulated, deployed = pair
    assert set(simulated.info) <= set(deployed.info)
    for name in ("rounds", "cohort", "floats", "examples", "secure_sums", "restarts"):
        assert simulated.info[name] == deployed.info[name], name
    assert simulated.info["steps"]["useful"] == deployed.info["steps"]["useful"] > 0
    assert simulated.info.get("levels") == deployed.info.get("levels")
    for name in ("rounds", "took_part", "left_out", "per_client_and_round"):
        assert simulated.info["communication"][name] == deployed.info["communication"][name], name
    assert simulated.summary().keys() == deployed.summary().keys()


def test_it_sends_more_than_the_numbers_alone(pair):
    """Headers, terms and evaluations are counted, too, which a simulation knows nothing of."""
    simulated, deployed = pair
    for way in ("up", "down"):
        total = deployed.info["communication"]["total"][way]["bytes"]
        assert deployed.info["bytes"][way] == total > simulated.info["communication"]["total"][way]["bytes"]
        column = deployed.history[f"bytes_{way}"]
        assert np.all(np.diff(column) > 0) and column[-1] == deployed.info["bytes"][way]


def test_another_seed_gives_other_numbers():
    (_, one), (simulated, other) = runs("fedavg"), runs("fedavg", seed=5)
    assert np.max(np.abs(one.params["w"] - other.params["w"])) > 1e-3
    assert_trees_close(simulated.params, other.params, "parameters")


def test_empty_cohorts_change_nothing():
    """With one client in twenty, most rounds have none."""
    method = eh.algorithms.fedavg(WORK, sampling=eh.sampling.poisson(0.05))
    how: dict[str, Any] = {"rounds": 6, "seed": 1, "eval_every": 6}
    simulated, deployed = eh.simulate(method, DATA, **how), eh.network.local(method, DATA, **how)
    reported = simulated.per_round["reported"]
    assert 0 < np.sum(reported == 0) < 6
    np.testing.assert_array_equal(reported, deployed.per_round["reported"])
    assert_trees_close(simulated.params, deployed.params, "parameters")
    np.testing.assert_array_equal(simulated.last_round, deployed.last_round)


def test_training_starts_from_a_given_model():
    method = METHODS["scaffold, three passes under noise of clients"]
    start = jax.tree.map(lambda leaf: leaf + 1.5, MODEL.init(jax.random.key(9)))
    simulated = eh.simulate(method, DATA, **HOW, start=start)
    server, nodes = federation(Job(algorithm=method, data=DATA, start=start, **HOW), 3)
    for _ in server.run():
        pass
    deployed = run_from(server, server.progress, DATA, states_of(server, nodes))
    assert_trees_close(simulated.params, deployed.params, "parameters")
    assert_close(simulated.history["train_loss"], deployed.history["train_loss"], "train_loss")
    assert_trees_close(simulated.state.clients, deployed.state.clients, "states")
    usual, _ = runs("scaffold, three passes under noise of clients")
    assert np.max(np.abs(usual.params["b"] - deployed.params["b"])) > 1.0


def test_several_labels_per_example_are_measured_beside_an_empty_split():
    """A split without examples has as many labels as examples, which are no classes for that."""
    rng = np.random.default_rng(0)

    def split(rows):
        x, y = (rng.integers(0, 7, (2 * rows, 5)).astype(np.int32) for _ in range(2))
        return eh.data.Split(x, y, np.array([0, rows, 2 * rows]))

    data = eh.data.FederatedDataset(split(4), split(0), split(2), client_ids=("a", "b"))
    model = eh.models.transformer(vocabulary=7, width=4, heads=1, layers=1, length=5, predicts="all")
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=3))
    simulated, deployed = (train(method, data, rounds=1) for train in (eh.simulate, eh.network.local))
    assert simulated.classes == deployed.classes == {}
    for column in ("train_loss", "test_loss", "test_accuracy"):
        assert_close(simulated.history[column], deployed.history[column], column)


# --- what no network can do -------------------------------------------------------------------------------------------

REFUSED = {
    "fit": (
        lambda: eh.expressions.parse("fit(batch_size=4)", eh.types.Algorithm, MODEL, lambda: WORK),
        "trains on the examples of all clients in one place, which a deployment cannot do: deploy a federated "
        "method.",
    ),
    "fedprox_adaptive": (
        lambda: eh.algorithms.fedprox_adaptive(WORK, mu0=0.5),
        "needs the training loss over all clients before each round, which would take an exchange with every client: "
        "deploy fedprox(mu=...) with a fixed mu.",
    ),
    "repeats": (
        lambda: eh.algorithms.fedavg(WORK, sampling=eh.sampling.proportional()),
        "can draw a client twice in one round, but in a deployment a client works once: give "
        "sampling=eh.sampling.uniform().",
    ),
    "mocha": (
        lambda: mocha(eh.models.softmax_regression(4, classes=3), lam=0.1, inner=2),
        "keeps a number for each example of the largest client, so its clients would have to know how many examples "
        "that has: deploy another method.",
    ),
    "dp_delta_fl": (
        lambda: eh.privacy.dp_delta_fl(
            WORK, theta=0.5, clip=1.0, largest_loss=3.0, noise_multiplier=1.0, rate=0.5
        ),
        "sums numbers without masks, so that the server sees those of each client, which is only simulated: deploy "
        "another method, or let its clients add the noise, with at_server=False and fewest=... as in dp_delta_fl.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_a_method_in_a_sentence(name):
    build, sentence = REFUSED[name]
    method = build()
    with pytest.raises(eh.EvenhandError) as error:
        eh.network.local(method, DATA, rounds=1)
    assert str(error.value) == f"{method.name} {sentence}"
