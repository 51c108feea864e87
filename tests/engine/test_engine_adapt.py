"""Clients that adapt the model they are served: every way to evaluate them equals a loop over them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import local, tree
from evenhand.simulation import _adapted
from evenhand.testing import toy_data, toy_model

MODEL, DATA = toy_model(), toy_data()
TUNE = local.sgd(MODEL, client_opt=optax.sgd(0.1), steps=3, batch_size=2)
FEDAVG = eh.algorithms.fedavg(MODEL, client_opt=optax.sgd(0.1), epochs=1, batch_size=4)


def tuned(params, data, key):
    return TUNE(params, data, key, optax.identity())[0]


def own_bias(method):
    """Clients that serve themselves the global model plus their own number."""
    (phase,) = method.phases
    return method._replace(
        phases=(
            phase._replace(
                report=lambda message, own, data: phase.report(message, (), data),
                work=lambda message, own, data, key: (phase.work(message, (), data, key)[0], own + 1),
            ),
        ),
        init_client=lambda params: jnp.float32(0.0),
        personal_params=lambda server, own: tree.scale(1.0 + own, server.params),
    )


METHODS = {"global": FEDAVG._replace(adapt=tuned), "personal": own_bias(FEDAVG)._replace(adapt=tuned)}


def run(method, **how):
    return eh.simulate(method, DATA, rounds=2, cohort=3, seed=4, **how)


def looped(run, split):
    """Loss and accuracy of each client with its own model, one after the other."""
    found = []
    for k in range(DATA.num_clients):
        x, y = split.client(k)
        outputs = MODEL.apply(run.personal_params(k), jnp.asarray(x))
        found.append((np.mean(MODEL.losses(outputs, y)), np.mean(MODEL.metrics["accuracy"](outputs, y))))
    return np.array(found, np.float64).T


@pytest.mark.parametrize("name", METHODS)
def test_every_client_is_measured_with_its_adapted_model(name):
    found = run(METHODS[name])
    for split in ("train", "test"):
        expected = looped(found, getattr(DATA, split))
        metrics = found.client_metrics(split)
        np.testing.assert_allclose([metrics["loss"], metrics["accuracy"]], expected, rtol=1e-5)
    plain = run(METHODS[name]._replace(adapt=None))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, found.params, plain.params)))
    assert np.all(found.client_metrics("train")["loss"] < plain.client_metrics("train")["loss"])
    assert not np.array_equal(found.personal_params(0)["w"], plain.personal_params(0)["w"])


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"eval_clients": 4}, {"devices": 2}], ids=str)
def test_in_blocks_streamed_sampled_or_shared_it_is_the_same(monkeypatch, how):
    plain = run(METHODS["personal"], devices=how.get("devices"))
    monkeypatch.setattr(_adapted, "_ROOM", 40)
    some = run(METHODS["personal"], **how)
    who = np.arange(DATA.num_clients) if some.evaluated is None else some.evaluated
    for split in ("train", "test"):
        one, other = plain.client_metrics(split), some.client_metrics(split)
        for name in one:
            np.testing.assert_allclose(other[name][who], one[name][who], rtol=1e-5)
        classes, others = plain.class_metrics(split), some.class_metrics(split)
        kept = np.isin(classes.clients, who)
        for part, other_part in zip(classes, others, strict=True):
            np.testing.assert_allclose(other_part, part[kept])


def test_blocks_hold_what_there_is_room_for(monkeypatch):
    sizes = np.array([1, 5, 2, 2, 9, 1])
    train = eh.evaluation.Prepared(np.zeros((20, 3)), np.zeros(20), np.concatenate([[0], np.cumsum(sizes)]))
    monkeypatch.setattr(_adapted, "_ROOM", 30)
    cuts = [(own.start, own.stop) for own in _adapted.blocks(train, 4)]
    assert [cuts[0][0], *(end for _, end in cuts)] == [*(begin for begin, _ in cuts), 6]
    assert len(cuts) > 2
    on_device = train._replace(x=jnp.zeros((20, 3)))
    assert [(own.start, own.stop) for own in _adapted.blocks(on_device, 4)] == [(0, 6)]
