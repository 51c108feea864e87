"""The examples that a run counts are those whose gradient its clients compute, whatever the method."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

import evenhand as eh
from evenhand.expressions import factories, parse
from evenhand.expressions.kinds import parameters
from evenhand.types import Algorithm, ClientData

KEY = jax.random.key(1)
SEEN = []
"""How many examples got a gradient, each time that one was computed."""


@jax.custom_vjp
def watched(losses):
    """The losses, which report when a gradient flows back through them: not for empty places in a batch, whose
    losses do not count, and not where losses alone are computed."""
    return losses


def _forward(losses):
    return losses, None


def _back(_, cotangents):
    jax.debug.callback(lambda count: SEEN.append(int(count)), jnp.sum(cotangents != 0))
    return (cotangents,)


watched.defvjp(_forward, _back)
TOY = eh.testing.toy_model()
MODEL = TOY._replace(losses=lambda outputs, y: watched(TOY.losses(outputs, y)))
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=2)
NEEDED = {"method": "fedavg()", "personal": "'b'", "head": "'b'", "cohort": "2", "clients": "4"}
BY_HAND = {
    "alone": "alone()",
    "dp_fed2": "dp_fed2(step_sizes=(1.0, 0.1), clips=(0.5, 2.0), noise_multiplier=0.5, delay=2)",
    "fit": "fit(learning_rate=0.1, batch_size=2, steps=3)",
    "private": "private(fedavg(aggregator=noisy_mean(0.5, noise_multiplier=0.5, rate=0.5), sampling=poisson(0.5)))",
}
MORE = {
    "fedtilt, two kinds of work": "fedtilt(tilt_class=1, classes=3, personal=sgd(0.1, steps=5, batch_size=2))",
    "fedtilt, tied": "fedtilt(tied=True, personal=sgd(0.1, steps=5, batch_size=2))",
    "per_fedavg, first order": "per_fedavg(alpha=0.5, first_order=True)",
    "dynamic_ditto, per run": "dynamic_ditto(fedavg(), per_run=True, held_out=0.5)",
    "ditto around feddane": "ditto(feddane(mu=0.5))",
    "fedalt, all of it": "fedalt(personal='*')",
    "fedalt, nothing of it": "fedalt(personal=())",
    "mapper, large batches": "mapper(sgd(0.1, epochs=3), gammas=(0.25, 0.5))",
    "pfedme, three steps": "pfedme(lam=0.5, inner_step=0.5, inner_steps=3)",
    "qmaml, second order": "qmaml(step_size=0.5, second_order=True, aggregator=mean())",
    "qmaml, without adaptation": "qmaml(q=0.5, step_size=0.5, adapt=False)",
}


def expressions():
    """Every public method, with 0.5 for each number that it needs, and some with other options."""
    found = dict(BY_HAND)
    for name, factory in factories(Algorithm).items():
        needed = [each.name for each in parameters(factory).values() if each.default is each.empty]
        found.setdefault(name, f"{name}({', '.join(f'{each}={NEEDED.get(each, 0.5)}' for each in needed)})")
    found["qfedsgd"] = "qfedsgd(q=0.5, step_size=0.5)"
    found["qmaml"] = "qmaml(q=0.5, step_size=0.5)"
    del found["mocha"]  # its steps compute no gradient of the losses: tests/unit/test_mocha_method.py
    del found["fedbn"]  # the model has no running statistics; its steps are those of fedsim
    return found | MORE


@cache
def method_of(text):
    scales = jax.tree.map(jnp.ones_like, MODEL.init(jax.random.key(0)))
    return parse(text, Algorithm, MODEL, lambda: WORK, {"divided_by": scales})


@cache
def counted(text, progress=1.0):
    """``(counted, computed)`` examples of one client with five of them, in one round."""
    method, data = method_of(text), client_data(5, progress)
    params = method.model.init(jax.random.key(0))
    state, client = method.init(params, 1 if method.name == "alone" else 4), method.init_client(params)
    if method.pooled is not None:
        client = method.pooled(params, data.x, data.y)
    efforts, computed = 0, 0
    for phase in method.phases:
        SEEN.clear()
        work = jax.jit(lambda message, client, rows, phase=phase: phase.work(message, client, of(*rows), KEY))
        _, client = work(phase.broadcast(state, jnp.int32(0)), client, data[:5])
        jax.effects_barrier()
        efforts += int((phase.effort or eh.local.step_per_row)(data).rows)
        computed += sum(SEEN)
    return efforts, computed


def of(*rows):
    return ClientData(*rows, capacity=7)


def client_data(size, progress=1.0):
    toy = eh.testing.toy_data().train
    x, y = jnp.asarray(toy.x[:9]), jnp.asarray(toy.y[:9])
    return of(x, y, jnp.int32(2), jnp.int32(size), jnp.float32(progress))


EXPRESSIONS = expressions()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_effort_counts_the_gradients_that_are_computed(name):
    """The last batch of each epoch of five examples has one; a straggler does one of two epochs."""
    text = EXPRESSIONS[name]
    for progress in (1.0, 0.3) if method_of(text).partial_work else (1.0,):
        efforts, computed = counted(text, progress)
        assert efforts == computed > 0
    for phase in method_of(text).phases:
        effort = (phase.effort or eh.local.step_per_row)(client_data(0))
        assert tuple(map(int, effort)) == (0, 0), "an empty slot"


def test_the_counts_differ_as_the_methods_do():
    """Ten examples of FedAvg; both models of Ditto, FedTilt and APFL; three candidates and a step of Mapper."""
    names = ("fedavg", "ditto", "fedtilt", "apfl", "mapper", "per_fedavg")
    assert [counted(EXPRESSIONS[name])[1] for name in names] == [10, 20, 20, 20, 31, 40]


def test_a_run_of_fedtilt_counts_as_many_examples_as_the_equal_ditto():
    data, work = eh.testing.toy_data(), eh.local.sgd(TOY, 0.1, epochs=2, batch_size=4)
    equal = eh.algorithms.fedavg(work, sampling=eh.sampling.uniform(weighted=False))
    methods = (eh.algorithms.fedtilt(work), eh.personalization.ditto(equal, work, lam=0.01))
    tilted, ditto = (eh.simulate(method, data, rounds=1) for method in methods)
    assert tilted.info["examples"] == ditto.info["examples"] == 2 * 2 * data.train.rows
    assert tilted.info["steps"] == ditto.info["steps"]
