"""Clients that adapt the model they are served: every way to evaluate them equals a loop over clients."""

import gc
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import local, tree
from evenhand.evaluation import _evaluate
from evenhand.simulation import evaluating
from evenhand.testing import toy_data, toy_model

MODEL, DATA = toy_model(), toy_data()
TUNE = local.sgd(MODEL, 0.1, steps=3, batch_size=2)
FEDAVG_WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
FEDAVG = eh.algorithms.fedavg(FEDAVG_WORK)


def tuned(params, data, key):
    return TUNE.solve(params, data, key, optax.identity())[0]


def with_personal_scale(method):
    """Clients that scale the global model by a number that each of them keeps."""
    (phase,) = method.phases
    return method._replace(
        phases=(
            phase._replace(
                report=lambda message, state, data: phase.report(message, (), data),
                work=lambda message, state, data, key: (phase.work(message, (), data, key)[0], state + 1),
            ),
        ),
        init_client=lambda params: jnp.float32(0.0),
        personal_params=lambda server, state: tree.scale(1.0 + state, server.params),
    )


METHODS = {
    "global": FEDAVG._replace(adapt=tuned),
    "personal": with_personal_scale(FEDAVG)._replace(adapt=tuned),
}


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


def test_models_around_a_private_method_are_those_that_were_measured():
    """A private method's keys do not follow from the seed's own, with which its clients must not adapt either."""
    private = eh.privacy.dp_fedavg(FEDAVG_WORK, clip=1.0, noise_multiplier=1.0, rate=0.5)
    found = eh.simulate(private._replace(adapt=tuned), DATA, rounds=2, seed=4)
    metrics = found.client_metrics("train")
    np.testing.assert_allclose([metrics["loss"], metrics["accuracy"]], looped(found, DATA.train), rtol=1e-5)


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"eval_clients": 4}, {"devices": 2}], ids=str)
def test_adapting_in_blocks_streamed_sampled_or_on_two_devices_gives_the_same(monkeypatch, how):
    plain = run(METHODS["personal"], devices=how.get("devices"))
    monkeypatch.setattr(evaluating, "_ROOM", 40)
    varied = run(METHODS["personal"], **how)
    who = np.arange(DATA.num_clients) if varied.evaluated is None else varied.evaluated
    for split in ("train", "test"):
        metrics, varied_metrics = plain.client_metrics(split), varied.client_metrics(split)
        for name in metrics:
            np.testing.assert_allclose(varied_metrics[name][who], metrics[name][who], rtol=1e-5)
        classes, varied_classes = plain.class_metrics(split), varied.class_metrics(split)
        kept = np.isin(classes.clients, who)
        for part, varied_part in zip(classes, varied_classes, strict=True):
            np.testing.assert_allclose(varied_part, part[kept])


def test_as_many_clients_adapt_together_as_there_is_room_for(monkeypatch):
    """The model has 4 numbers; rows of 3 numbers, at most 9 per client, count only where they must be sent."""
    sizes = np.array([1, 5, 2, 2, 9, 1])
    train = eh.evaluation.Prepared(np.zeros((20, 3)), np.zeros(20), np.concatenate([[0], np.cumsum(sizes)]))
    for room, streamed, on_device in ((30, 1, 6), (62, 2, 6), (93, 3, 6), (8, 1, 2), (3, 1, 1)):
        monkeypatch.setattr(evaluating, "_ROOM", room)
        assert evaluating.fitting(train, np.zeros(4)) == streamed
        assert evaluating.fitting(train._replace(x=jnp.zeros((20, 3))), np.zeros(4)) == on_device


def test_every_client_has_a_key_of_its_own():
    """With equal rows and equal models, two clients can differ by their keys only."""
    x = np.tile(toy_data().train.x[:6], (3, 1))
    y = np.tile(toy_data().train.y[:6], 3)
    data = eh.data.from_arrays(x, y, np.repeat(np.arange(3), 6), test_fraction=0.0)
    found = eh.simulate(METHODS["global"], data, rounds=0).client_metrics("train")["loss"]
    assert len(np.unique(found)) == 3
    again = eh.simulate(METHODS["global"], data, rounds=0).client_metrics("train")["loss"]
    np.testing.assert_array_equal(found, again)


def test_a_dropped_run_leaves_no_rows_on_the_device():
    """The programs that evaluate are kept, and must not hold the rows that they were first run on."""
    x = np.random.default_rng(0).normal(size=(5_000, 4)).astype(np.float32)
    data = eh.data.from_arrays(
        x, (x[:, 0] > 0).astype(np.int32), np.repeat(np.arange(5), 1_000), test_fraction=0.0
    )
    others = jax.live_arrays()  # of earlier tests
    for method in METHODS.values():
        eh.simulate(method, data, rounds=1)
        gc.collect()
        left = [array for array in jax.live_arrays() if not any(array is other for other in others)]
        assert not [array for array in left if array.size == x.size]


def test_blocks_share_their_programs(monkeypatch):
    """Six clients of unlike sizes, two at a time: one program adapts them, one measures each split."""
    monkeypatch.setattr(evaluating, "_ROOM", 30)
    adapting, measuring = [], []

    def noted(cached, made):
        @lru_cache
        def compiled(*key):
            made.append(cached.__wrapped__(*key))
            return made[-1]

        return compiled

    monkeypatch.setattr(evaluating, "_adapt", noted(evaluating._adapt, adapting))
    monkeypatch.setattr(_evaluate, "_personal_program", noted(_evaluate._personal_program, measuring))
    run(METHODS["personal"]._replace(adapt=lambda params, data, key: tuned(params, data, key)))
    assert sum(function._cache_size() for function in adapting) == 1
    assert 1 <= sum(function._whole._cache_size() for function in measuring) <= 2


def test_a_checkpoint_knows_how_clients_adapt(tmp_path):
    method = METHODS["global"]
    run(method, checkpoint=tmp_path)
    assert run(method, checkpoint=tmp_path).info["rounds"] == 2
    faster = local.sgd(MODEL, 0.2, steps=3, batch_size=2)
    changed = method._replace(
        adapt=lambda params, data, key: faster.solve(params, data, key, optax.identity())[0]
    )
    for other in (changed, method._replace(adapt=None)):
        with pytest.raises(eh.EvenhandError, match="another run"):
            run(other, checkpoint=tmp_path)


def test_an_adaptation_that_diverges_is_not_blamed_on_the_labels():
    diverging = METHODS["global"]._replace(adapt=lambda params, data, key: tree.scale(jnp.inf, params))
    with pytest.raises(eh.EvenhandError, match=r"adapted to its own rows.*smaller steps"):
        run(diverging)
