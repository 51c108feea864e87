"""A round's memory must not grow with its cohort, nor its program with the clients; and devices work in parallel."""

import gc
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import tree
from evenhand._jaxpr import jaxpr_as_fun
from evenhand.simulation import Execution, Job, engine
from evenhand.simulation.program import ById
from evenhand.simulation.setup import set_up
from evenhand.types import Cohort, Stack
from nursery import Nursery

CLIENTS = 100_003  # a size that nothing else has
PARAMS = 50_000


def _wide_model():
    """More parameters than rows, so that nearly all that a round keeps in memory is models."""
    return eh.models.from_functions(
        init=lambda key: {"w": jnp.zeros(PARAMS), "b": jnp.zeros(())},
        apply=lambda params, x: x[:, 0] * jnp.sum(params["w"]) + params["b"],
        losses=lambda outputs, y: (outputs - y) ** 2,
    )


def _data(clients, test_fraction=0.0):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients, 3)).astype(np.float32), rng.normal(size=clients).astype(np.float32)
    return eh.data.from_arrays(x, y, np.arange(clients), test_fraction=test_fraction)


def _method(model, **options):
    return eh.algorithms.fedavg(eh.local.sgd(model, 0.01, steps=2, batch_size=1), **options)


def _traced(method, data, **settings):
    setup = set_up(
        Job.from_arguments({"algorithm": method, "data": data, "rounds": 1, "devices": 1, **settings})
    )
    arguments = (setup.state, setup.rows, setup.keys, np.int32(0), np.int32(1))
    traced = engine._traced(ById(setup.program), *tree.form(arguments))
    return jaxpr_as_fun(traced.jaxpr), jax.tree.leaves(arguments)


def _scratch(method, **settings):
    """The memory that a compiled round needs besides its arguments, in models."""
    function, arguments = _traced(method, _data(64), **settings)
    memory = jax.jit(function).lower(*arguments).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes / (4 * PARAMS)


def test_memory_of_sums_grows_with_the_lanes_and_not_with_the_cohort():
    method = _method(_wide_model())
    few, many = (_scratch(method, cohort=cohort, lanes=2) for cohort in (4, 64))
    assert many < few + 1
    assert _scratch(method, cohort=64, lanes=32) > many + 30


def test_memory_of_methods_that_see_every_upload_grows_with_the_cohort():
    first = Stack(
        lambda like, clients: (),
        lambda uploads, present, state, key: (jax.tree.map(lambda u: u[0], uploads.delta), state),
    )
    method = _method(_wide_model(), aggregator=first)
    few, many = (_scratch(method, cohort=cohort, lanes=2) for cohort in (4, 64))
    assert many > few + 50


def _computed_shapes(jaxpr):
    """The shapes of everything that a program computes, at any depth."""
    for equation in jaxpr.eqns:
        for output in equation.outvars:
            yield str(equation.primitive), getattr(output.aval, "shape", ())
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _computed_shapes(inner)


@pytest.mark.parametrize(
    ("sampling", "grows"),
    [
        (eh.sampling.uniform(), False),
        (eh.sampling.uniform()._replace(draw=lambda key, sizes, m: Cohort.of(jnp.argsort(sizes)[:m])), True),
    ],
    ids=["uniform", "one that sorts all clients"],
)
def test_a_round_computes_nothing_that_has_an_entry_per_client(sampling, grows):
    method = _method(eh.testing.toy_model(), sampling=sampling)
    toy = eh.testing.toy_data().train
    x, y = np.resize(toy.x, (CLIENTS, *toy.x.shape[1:])), np.resize(toy.y, CLIENTS)
    data = eh.data.from_arrays(x, y, np.arange(CLIENTS), test_fraction=0.0)
    function, arguments = _traced(method, data, cohort=5, lanes=2)
    # When each client trained last is written in place: a scatter of the cohort, carried through the loop of rounds.
    in_place = {("while", (CLIENTS,)), ("jit", (CLIENTS,)), ("scatter", (CLIENTS,))}
    per_client = [
        at
        for at in _computed_shapes(jax.make_jaxpr(function)(*arguments).jaxpr)
        if CLIENTS in at[1] and at not in in_place
    ]
    assert bool(per_client) == grows, per_client


def test_two_devices_train_at_the_same_time():
    """Each client's loss waits for that on the other device: one after the other, they would wait for ever."""
    meeting = threading.Barrier(2)

    def meet(outputs):
        meeting.wait(timeout=20)
        return outputs

    def losses(outputs, y):
        shape = jax.ShapeDtypeStruct(outputs.shape, outputs.dtype)
        zero = 0.0 * jax.pure_callback(meet, shape, jax.lax.stop_gradient(outputs))
        return (outputs - y) ** 2 + zero

    model = eh.models.from_functions(
        init=lambda key: {"b": jnp.zeros(())}, apply=lambda params, x: x[:, 0] + params["b"], losses=losses
    )
    setup = set_up(Job(_method(model), _data(2), rounds=1, execution=Execution(lanes=1, devices=2)))
    state, _ = engine.run_rounds(setup.program, setup.state, setup.rows, setup.keys, 0, 1)
    assert np.asarray(state.server.params["b"]) != 0


def test_a_second_process_finds_its_programs_compiled(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import evenhand as eh, jax, optax\n"
        "events = []\n"
        "jax.monitoring.register_event_listener(lambda event, **_: events.append(event))\n"
        "method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))\n"
        "eh.simulate(method, eh.testing.toy_data(), rounds=2, cohort=3)\n"
        "print(*(sum(e.endswith('/cache_' + kind) for e in events) for kind in ('hits', 'misses')))\n"
    )
    bare = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    bare |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def hits_and_misses():
        done = subprocess.run(
            [sys.executable, str(script)], env=bare, capture_output=True, text=True, check=True
        )
        return tuple(map(int, done.stdout.split()))

    hits, misses = hits_and_misses()
    assert misses > hits
    hits, again = hits_and_misses()
    assert hits >= misses and again == 0


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks are not part of the package")
def test_the_worker_of_the_benchmark_answers(nursery: Nursery, tmp_path):
    plan, shown, file = tmp_path / "plan.npz", tmp_path / "shown", str(BENCHMARKS / "evenhand_rounds.py")
    worker = (
        "import io, runpy, sys\n"
        "folder, file, commands = sys.argv[1:]\n"
        "sys.path.insert(0, folder)\n"
        "sys.stdin = io.StringIO(commands)\n"
        "runpy.run_path(file, run_name='__main__')\n"
    )
    words = [str(BENCHMARKS), file, f"load lr-mnist\ncheck {plan}\ntime\ntwin\n"]
    assert nursery.start("program", shown, source=worker, arguments=words).wait() == 0
    about, check, engine, twin = map(eval, shown.read_text().splitlines())
    assert about["compile"] > 0 and about["lanes"] >= 1
    assert 0 < check["loss"] < np.log(10) and np.load(plan)["ids"].shape == (10,)
    assert set(engine) == set(twin) and 0 < engine["wall"] < twin["wall"]
    assert re.fullmatch(r"1\.0*", f"{twin['padded']:.3f}")


def _stores(clients):
    """The number of distinct arrays in memory that have an entry for each client's parameters."""
    arrays = [leaf for leaf in jax.live_arrays() if leaf.shape == (clients, 4, 3)]
    return len({leaf.unsafe_buffer_pointer() for leaf in arrays})


SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 5, "eval_every": 1, "devices": 1}


def _stateful():
    """A method that keeps states of a shape that no other test has, and 90 clients."""
    x, y = np.zeros((270, 4), np.float32), np.arange(270, dtype=np.int32) % 3
    data = eh.data.from_arrays(x + y[:, None], y, np.repeat(np.arange(90), 3), test_fraction=0.0)
    model = eh.models.softmax_regression(features=4, classes=3)
    return eh.algorithms.scaffold(eh.local.sgd(model, 0.1, epochs=1)), data


def _states(run):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.state.clients)])


def test_client_states_are_not_copied_for_runs_that_have_released_them():
    gc.collect()
    before, seen = _stores(90), []
    for run in eh.simulation.iterate(*_stateful(), **SETTINGS):
        seen.append(_stores(90) - before)
        run.release()
        with pytest.raises(eh.EvenhandError, match="released"):
            run.state  # noqa: B018
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))
    assert seen == [1, 1, 1, 1]


def test_light_client_states_remain_with_each_run_that_is_held():
    gc.collect()
    before = _stores(90)
    held = list(eh.simulation.iterate(*_stateful(), **SETTINGS))
    assert _stores(90) - before == 4
    assert len({tuple(_states(run).tolist()) for run in held}) == 4, "each has the states of its own round"


def test_heavy_client_states_are_lent_until_training_continues(monkeypatch):
    light = [_states(run) for run in eh.simulation.iterate(*_stateful(), **SETTINGS)]
    monkeypatch.setattr("evenhand.simulation.store._LIGHT", 0)
    gc.collect()
    before, held = _stores(90), []
    for run in eh.simulation.iterate(*_stateful(), **SETTINGS):
        np.testing.assert_array_equal(_states(run), light[len(held)])
        held.append(run)
        assert _stores(90) - before == 1
    for run in held[:-1]:
        with pytest.raises(eh.EvenhandError, match=r"trained on since.*of 0 MB.*run\.keep\(\)"):
            run.state  # noqa: B018
        with pytest.raises(eh.EvenhandError, match="trained on since"):
            run.keep()
    np.testing.assert_array_equal(_states(held[-1]), light[-1])
    with pytest.warns(eh.errors.EvenhandWarning, match="one answer"):
        run = eh.simulate(*_stateful(), **SETTINGS)
    np.testing.assert_array_equal(_states(run), light[-1])


@pytest.mark.parametrize("offload", [False, True])
def test_a_run_that_keeps_its_client_states_has_them_when_training_continues(offload, monkeypatch):
    light = [_states(run) for run in eh.simulation.iterate(*_stateful(), **SETTINGS)]
    monkeypatch.setattr("evenhand.simulation.store._LIGHT", 0)
    held = []
    for run in eh.simulation.iterate(*_stateful(), **SETTINGS, offload=offload):
        run.keep()
        held.append(run)
    for run, states in zip(held, light, strict=True):
        np.testing.assert_array_equal(_states(run), states)
        client = jax.tree.leaves(run.kept.client(3))
        for leaf, of_all in zip(client, jax.tree.leaves(run.state.clients), strict=True):
            np.testing.assert_array_equal(leaf, of_all[3])
