"""A schedule in the clients' optimiser restarts in each round, and every method's run says so."""

import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.algorithms import alone, fedavg, feddane, scaffold
from evenhand.errors import EvenhandWarning
from evenhand.local import descent
from evenhand.personalization import apfl, ditto, finetune, local_only
from evenhand.privacy import dp_sgd
from evenhand.rounds import wires
from evenhand.simulation.setup import device_rows

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
FALLING = optax.cosine_decay_schedule(0.1, 100)


@pytest.fixture(autouse=True)
def _mixed_types():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        yield


def work(optimiser):
    return eh.local.sgd(MODEL, optimiser, epochs=2, batch_size=4)


SCHEDULED, FIXED = work(optax.sgd(FALLING)), work(0.1)
PRIVATE = dp_sgd(MODEL, optax.sgd(FALLING), clip=1.0, noise_multiplier=1.0, rate=0.5, steps=3)


def restarts(method, data=DATA):
    rows = device_rows(data, None, 0)
    params = MODEL.init(jax.random.key(0))
    wire = wires(method, params, (rows.x, rows.y), int(data.train.sizes.max()), data.num_clients)
    return any(each.restarts for each in wire)


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.adam(FALLING),
        optax.chain(optax.clip(1.0), optax.sgd(FALLING, momentum=0.9)),
        optax.multi_transform({"a": optax.sgd(FALLING)}, lambda params: jax.tree.map(lambda _: "a", params)),
        optax.inject_hyperparams(optax.sgd)(learning_rate=FALLING),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1, b1=FALLING),
    ],
)
def test_a_schedule_is_found_wherever_it_is_in_an_optimiser(optimiser):
    assert restarts(fedavg(work(optimiser)))


@pytest.mark.parametrize(
    "optimiser",
    [
        0.1,
        optax.adam(0.1),
        optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.sgd(optax.constant_schedule(0.1)),
        optax.chain(optax.clip(1.0), optax.sgd(optax.constant_schedule(0.1), momentum=0.9)),
        optax.inject_hyperparams(optax.sgd)(learning_rate=optax.constant_schedule(0.1)),
    ],
)
def test_step_counts_of_other_optimisers_are_no_schedule(optimiser):
    assert not restarts(fedavg(work(optimiser)))


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (fedavg, fedavg),
        (scaffold, scaffold),
        (lambda w: feddane(w, mu=0.1), fedavg),
        (lambda w: ditto(fedavg(FIXED), w, lam=1.0), lambda w: ditto(fedavg(w), w, lam=1.0)),
        (lambda w: ditto(fedavg(w), FIXED, lam=1.0), local_only),
        (apfl, apfl),
        (local_only, local_only),
    ],
)
def test_every_method_shows_the_schedule_of_each_of_its_works(make, other):
    assert restarts(make(SCHEDULED))
    assert not restarts(make(FIXED))
    assert not restarts(other(FIXED))


def test_a_private_optimiser_restarts_too():
    assert restarts(fedavg(PRIVATE))


def test_what_continues_or_runs_once_does_not_restart():
    train, valid, test = (split_of_one(split) for split in (DATA.train, DATA.valid, DATA.test))
    one = eh.data.FederatedDataset(train, valid, test, ("a",))
    assert not restarts(alone(SCHEDULED), one)
    assert not restarts(fedavg(FIXED, server_opt=optax.sgd(FALLING)))
    assert not restarts(finetune(fedavg(FIXED), SCHEDULED))


def split_of_one(split):
    return split._replace(offsets=np.array([0, len(split.x)]))


def test_a_run_says_so_before_the_first_round_and_trains_by_the_same_bits():
    options: dict[str, Any] = {"rounds": 2, "cohort": 4, "eval_every": 1}
    with pytest.warns(EvenhandWarning, match="restarts in each round"):
        run = eh.simulate(fedavg(SCHEDULED), DATA, **options)
    assert "a constant step size and schedule=" in run.findings[0].sentence
    assert [finding.kind for finding in run.findings] == ["schedule"]
    assert next(eh.simulation.iterate(fedavg(SCHEDULED), DATA, **options)).findings == run.findings
    assert SCHEDULED.parts is not None
    parts = SCHEDULED.parts._replace(client_opt=lambda data: optax.sgd(FALLING))  # not marked
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = eh.simulate(fedavg(SCHEDULED._replace(solve=descent(*parts))), DATA, **options)
    assert same.findings == ()
    jax.tree.map(np.testing.assert_array_equal, run.params, same.params)
    study = eh.study(
        {"fedavg": lambda: fedavg(SCHEDULED)}, DATA, rounds=1, seeds=[0, 1], select=("train", "mean")
    )
    for outcome in study.outcomes:
        assert outcome.view is not None and "schedule" in [f.kind for f in outcome.view.findings]
