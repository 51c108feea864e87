"""When a run compiles a program, and which arrays it may use up."""

import gc
import itertools
import logging
import os
import subprocess
import sys
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand._jaxpr.hoist import hoist
from evenhand.devices import everywhere
from evenhand.simulation import Execution, Job, engine, iterate, setup
from evenhand.types import Model

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()


def fedprox(lr=0.1, mu=0.3, model=MODEL):
    return eh.algorithms.fedprox(eh.local.sgd(model, lr, epochs=2, batch_size=4), mu=mu)


def compilations(method, **settings):
    """How many programs a run adds, and its parameters."""
    before = engine._compiled.cache_info().misses
    run = eh.simulate(method, DATA, **{"rounds": 3, "cohort": 4, **settings})
    return engine._compiled.cache_info().misses - before, np.array(run.params["w"])


@pytest.fixture(scope="module")
def first():
    return compilations(fedprox())[1]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (fedprox(lr=0.2), {}),
        (fedprox(mu=0.7), {}),
        (fedprox(), {"seed": 5}),
        (fedprox(), {"rounds": 17}),
        (fedprox(), {"rounds": 4, "eval_every": 1}),
    ],
    ids=["learning rate", "mu", "seed", "rounds", "evaluations"],
)
def test_other_numbers_compile_nothing_and_take_effect(first, method, settings):
    added, params = compilations(method, **settings)
    assert added == 0
    assert not np.array_equal(params, first)


def test_other_programs_compile(first):
    more_work = eh.algorithms.fedprox(eh.local.sgd(MODEL, 0.1, epochs=3, batch_size=4), mu=0.3)
    assert compilations(more_work)[0] == 1
    assert compilations(fedprox(), cohort=3)[0] == 1
    assert compilations(fedprox(mu=1.0))[0] == 1, (
        "a factor of 1 stays in the program, where the compiler can drop it"
    )


@pytest.mark.parametrize("streamed", [False, True], ids=["rows on the device", "rows that are sent"])
def test_with_another_step_size_nothing_else_compiles_either(streamed, monkeypatch):
    """But the first state; the cohorts ahead, the clients' steps and the best constant's losses are programs, too."""
    compiled = []
    monkeypatch.setattr(logging.getLogger("jax._src.interpreters.pxla"), "handle", compiled.append)

    def programs(lr, batch_size=4):
        compiled.clear()
        method = eh.algorithms.scaffold(eh.local.sgd(MODEL, lr, epochs=2, batch_size=batch_size))
        with jax.log_compiles():
            eh.simulate(method, DATA, rounds=2, cohort=4, stream=streamed)
        return [record.getMessage().split(" with global")[0] for record in compiled]

    programs(0.1)
    assert programs(0.2) == ["Compiling jit(begin)"]
    assert "Compiling jit(run)" in programs(0.1, batch_size=3)


def test_another_precision_of_products_traces_the_rounds_of_a_method_again():
    method = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4))
    (phase,) = method.phases
    traced = []

    def server(state, direction, reported, key):
        traced.append(cast(Any, jax.config).jax_default_matmul_precision)
        return phase.server(state, direction, reported, key)

    method = method._replace(phases=(phase._replace(server=server),))

    def traces():
        traced.clear()
        eh.simulate(method, DATA, rounds=1, cohort=3)
        return set(traced)

    assert traces() == {None}
    with jax.default_matmul_precision("float32"):
        assert traces() == {"float32"}
    assert traces() == set()  # those before are kept


def test_other_arrays_take_effect(first):
    """A learning rate and weights of the losses are arrays inside the programs that a round is made of."""

    def weighted(weights):
        model = MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) * weights[0])
        return compilations(fedprox(model=model))[1]

    same, other = (compilations(fedprox(lr=jnp.float32(lr)))[1] for lr in (0.1, 0.2))
    np.testing.assert_allclose(same, first, rtol=1e-6)
    np.testing.assert_allclose(other, compilations(fedprox(lr=0.2))[1], rtol=1e-6)
    same, other = weighted(jnp.array([1.0, 2.0])), weighted(jnp.array([2.0, 1.0]))
    np.testing.assert_allclose(same, first, rtol=1e-6)
    assert not np.allclose(other, first, rtol=1e-3)


def test_a_hoisted_program_computes_what_it_did():
    """Literals in loops, branches, scans and vmapped loops whose condition is a vector."""

    def program(x, n):
        doubled = jax.lax.scan(lambda c, v: (c * 0.3 + v, c - 0.7), x, jnp.arange(4.0))
        looped = jax.vmap(lambda v: jax.lax.while_loop(lambda c: c < 9.5, lambda c: c * 1.7 + 0.2, v))(
            jnp.array([1.5, 4.5]) * x
        )
        branch = jax.lax.switch(n, [lambda v: v + 0.25, lambda v: jax.nn.relu(v) * 2.5], x)
        return doubled, looped, branch, jnp.where(x > 0.5, x, 0.0)

    arguments = (jnp.float32(1.25), jnp.int32(1))
    traced = jax.make_jaxpr(program)(*arguments)
    hoisted = hoist(traced)
    out = jax.jit(hoisted.run)(hoisted.values, hoisted.constants, arguments)
    for a, b in zip(out, jax.tree.leaves(jax.jit(program)(*arguments)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert {0.3, 0.7, 9.5, 1.7, 0.2, 0.25, 2.5, 0.5} <= {round(float(v), 6) for v in hoisted.values}
    other = jax.jit(hoisted.run)(hoisted.values + 0.125, hoisted.constants, arguments)
    assert any(not np.array_equal(a, b) for a, b in zip(out, other, strict=True))


@pytest.mark.parametrize(
    "other", [lambda x: x * 0.1 + 0.0, lambda x: x * 0.1 - 1.0, lambda x: x / 0.1, lambda x: x * 2]
)
def test_programs_that_differ_in_more_than_numbers_have_different_keys(other):
    def key(function):
        return hoist(jax.make_jaxpr(function)(jnp.float32(1.0))).key

    assert key(lambda x: x * 0.1 + 1.0) == key(lambda x: x * 0.3 + 1.0)
    assert key(other) != key(lambda x: x * 0.1 + 1.0)


def test_two_callbacks_of_one_name_are_two_programs():
    def key(function):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return hoist(jax.make_jaxpr(lambda x: jax.pure_callback(function, shape, x))(jnp.float32(1.0))).key

    assert key(lambda x: x + np.float32(1)) != key(lambda x: x + np.float32(2))


def test_no_array_of_the_callers_is_deleted():
    """The initial parameters are the caller's own array, and so is one that the loss closes over."""
    initial, scale = jnp.zeros(MODEL.init(jax.random.key(0))["w"].shape), jnp.float32(2.0) * jnp.ones(())
    params = {**MODEL.init(jax.random.key(0)), "w": initial}
    model = Model(
        init=lambda key: params,
        apply=MODEL.apply,
        losses=lambda outputs, y: scale * MODEL.losses(outputs, y),
        metrics={},
    )
    runs = list(eh.simulation.iterate(fedprox(model=model), DATA, rounds=4, eval_every=1, cohort=4))
    for leaf in jax.tree.leaves((params, scale, [run.state for run in runs])):
        assert not leaf.is_deleted()
        np.asarray(leaf)
    weights = [np.array(run.params["w"]) for run in runs]
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(weights))


def test_the_state_given_to_the_engine_is_used_up():
    from evenhand.simulation.setup import set_up

    setup = set_up(Job(fedprox(), DATA, rounds=1, cohort=4))
    engine.run_rounds(setup.program, setup.state, setup.rows, setup.keys, 0, 1)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(setup.state.server))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((setup.rows, setup.keys)))


def test_a_run_reports_its_speed_and_its_padding():
    """Sizes 1 and 40 in two lanes: 2 epochs of 1 and of 10 batches, so that 22 of the 40 executed steps are useful."""
    sizes = np.array([1, 40])
    toy = DATA.train
    x, y = np.resize(toy.x, (41, *toy.x.shape[1:])), np.resize(toy.y, 41)
    data = eh.data.from_arrays(x, y, np.repeat([0, 1], sizes), test_fraction=0.0)
    run = eh.simulate(fedprox(), data, rounds=3, lanes=2)
    assert run.info["steps"] == {"useful": 3 * 22, "executed": 3 * 40}
    assert run.info["padded"] == pytest.approx(1 - 22 / 40)
    assert run.info["examples"] == 3 * 2 * 41
    assert run.info["examples_per_second"] == pytest.approx(3 * 82 / run.info["seconds"]["train"])
    assert "steps.useful" not in run.per_round and "rows" not in run.history
    slow = eh.simulate(fedprox(), data, rounds=1, systems=eh.systems.stragglers(0.99), seed=1)
    assert slow.info["examples"] < 82


def test_clients_with_similar_work_train_side_by_side():
    """Sizes 1, 40, 1, 40 in two groups of two lanes: sorted by work, every step that is executed is useful."""
    sizes = np.array([1, 40, 1, 40])
    x, y = np.resize(DATA.train.x, (82, DATA.train.x.shape[1])), np.resize(DATA.train.y, 82)
    data = eh.data.from_arrays(x, y, np.repeat(np.arange(4), sizes), test_fraction=0.0)
    run = eh.simulate(fedprox(), data, rounds=1, lanes=2)
    assert run.info["steps"] == {"useful": 44, "executed": 44}


def test_default_lanes_keep_padding_rare_on_log_normal_sizes():
    sizes = np.minimum(np.exp(np.random.default_rng(0).normal(4, 2, 300)).astype(int) + 1, 5000)
    x = np.random.default_rng(1).normal(size=(sizes.sum(), DATA.train.x.shape[1])).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    data = eh.data.from_arrays(x, y, np.repeat(np.arange(300), sizes), test_fraction=0.0)
    run = eh.simulate(fedprox(), data, rounds=2, cohort=100, eval_every=2)
    assert run.info["steps"]["executed"] <= 1.15 * run.info["steps"]["useful"]
    wide = eh.simulate(fedprox(), data, rounds=1, cohort=100, lanes=32)
    assert wide.info["steps"]["executed"] > 1.15 * wide.info["steps"]["useful"]


def test_the_steps_of_some_cohorts_are_found_by_one_program():
    """Each operation alone would be a program, thirty of them in every process that runs a small model.

    Runs of one method, such as those of a study, share it.
    """
    method = fedprox()
    small = eh.simulate(method, DATA, rounds=0, cohort=4).info["lanes"]  # as a run that finds its lanes
    ready = setup.set_up(Job(method, DATA, rounds=1, cohort=4, execution=Execution(lanes=small)))
    again = setup.set_up(Job(method, DATA, rounds=2, cohort=4, seed=1, execution=Execution(lanes=small)))
    setup._steps_of.cache_clear()
    setup._shared.cache_clear()
    compiled = []
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("jax._src.interpreters.pxla"), "handle", compiled.append)
        steps = setup._steps(ready.program, ready.rows)
        np.testing.assert_array_equal(steps, setup._steps(again.program, again.rows))
    with jax.disable_jit():
        np.testing.assert_array_equal(steps, setup._steps(ready.program, ready.rows))
    assert steps.shape == (16, 5) and len(np.unique(steps)) > 2
    assert sum("Compiling jit(effort)" in record.getMessage() for record in compiled) == 1
    assert len(compiled) <= 2


def test_clients_of_one_size_take_as_many_steps_as_each_other(monkeypatch):
    """So that nothing is compiled to find them; up to a factor, which no choice of lanes depends on."""
    rows, labels = np.ones((40, 4), np.float32), np.arange(40) % 2
    equal = eh.data.from_arrays(rows, labels, np.arange(40) // 5, test_fraction=0.0)
    method = eh.algorithms.fedprox(eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=2), mu=0.3)
    ready = setup.set_up(Job(method, equal, rounds=1, cohort=5, execution=Execution(lanes=1)))
    compiled = []
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("jax._src.interpreters.pxla"), "handle", compiled.append)
        steps = setup._steps(ready.program, ready.rows)
    assert not compiled and steps.shape == (16, 6)
    monkeypatch.setattr(setup.np, "ptp", lambda sizes: 1)
    counted = setup._steps(ready.program, ready.rows)
    np.testing.assert_array_equal(counted, 6 * steps)
    assert setup._waste(ready.program, counted, 4) == setup._waste(ready.program, steps, 4) > 1


def test_putting_arrays_of_new_shapes_on_a_device_compiles_nothing_and_shares_no_memory(monkeypatch):
    compiled, given = [], [np.ones((size, 3), np.float32) for size in range(211, 227)]
    monkeypatch.setattr(logging.getLogger("jax._src.interpreters.pxla"), "handle", compiled.append)
    with jax.log_compiles():
        placed = everywhere(None, given)
    assert not compiled
    for array in given:
        array[:] = 2.0
    assert all((np.asarray(leaf) == 1.0).all() for leaf in placed)


def test_rounds_between_two_evaluations_are_one_call(monkeypatch):
    counts = []
    run_rounds = engine.run_rounds

    def spy(program, state, rows, keys, first, count):
        counts.append(count)
        return run_rounds(program, state, rows, keys, first, count)

    monkeypatch.setattr(engine, "run_rounds", spy)
    eh.simulate(fedprox(), DATA, rounds=12, cohort=4, eval_every=5)
    assert counts == [0, 5, 5, 2], "the first call compiles"


def test_importing_keeps_the_users_settings_and_loads_nothing_needless(tmp_path):
    program = (
        "import jax, sys, evenhand; print(jax.config.jax_persistent_cache_min_compile_time_secs,"
        " jax.config.jax_compilation_cache_dir, {'flax.nnx', 'scipy', 'matplotlib', 'orbax'} & set(sys.modules))"
    )
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    bare["XDG_CACHE_HOME"] = str(tmp_path)

    def printed(before="", **changes):
        command = [sys.executable, "-c", before + program]
        return subprocess.run(
            command, env=bare | changes, capture_output=True, text=True, check=True
        ).stdout.split()

    assert printed() == ["0.1", str(tmp_path / "evenhand" / "compiled"), "set()"]
    # A folder of the cache that is there and cannot be written to, as in a home folder that is read-only.
    assert printed("import os; os.access = lambda *_: False; ")[:2] == ["1.0", "None"]
    assert printed(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="7")[0] == "7.0"
    assert printed(JAX_COMPILATION_CACHE_DIR="/elsewhere")[:2] == ["1.0", "/elsewhere"]


@pytest.mark.parametrize("by_the_user", [True, False])
def test_cycles_are_collected_while_a_run_trains_and_not_while_it_is_traced(by_the_user):
    """Unless the user has switched that off; a failure while it is traced changes nothing for later either."""
    traced, seen = [], []

    def losses(outputs, y):
        traced.append(gc.isenabled())
        if len(traced) > 40:
            raise ValueError("late")
        return MODEL.losses(outputs, y)

    method = eh.algorithms.fedavg(eh.local.sgd(MODEL._replace(losses=losses), 0.1, steps=1))
    before = gc.isenabled()
    (gc.enable if by_the_user else gc.disable)()
    try:
        seen += [gc.isenabled() for _ in iterate(method, DATA, rounds=2, cohort=2, eval_every=1)]
        traced_in_a_run = traced[:]
        traced += [True] * 50
        with pytest.raises(ValueError, match="late"):
            eh.simulate(method, DATA, rounds=2, cohort=3)
        seen.append(gc.isenabled())
    finally:
        (gc.enable if before else gc.disable)()
    assert not any(traced_in_a_run[-4:]) and len(traced_in_a_run) < 40
    assert seen == [by_the_user] * 4


FIRST_RUN = """
import logging, sys
import jax, numpy as np
import evenhand as eh

class Programs(logging.Handler):
    def emit(self, record):
        if "Finished XLA compilation of" in (text := record.getMessage()):
            print(text.split(" of ")[1].split(" in ")[0])

jax.config.update("jax_log_compiles", True)
logger = logging.getLogger("jax._src.dispatch")
logger.addHandler(Programs())
logger.propagate = False
x, y = np.random.default_rng(0).random((40, 6), np.float32), np.arange(40) % 3
data = eh.data.from_arrays(x, y, np.arange(40) // 10, test_fraction=0.2)
work = eh.local.sgd(eh.models.softmax_regression(6, classes=3), 0.1, epochs=1, batch_size=4)
eh.simulate(eh.algorithms.fedavg(work), data, rounds=2, cohort=2)
"""


def test_a_first_run_compiles_few_programs():
    """Each conversion or sum of JAX's arrays outside a program is a program of its own: there were 44 of them."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", FIRST_RUN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    programs = done.stdout.split()
    assert "jit(run)" in programs and "jit(init)" in programs, "the rounds and the initial model are counted"
    assert len(programs) <= 8, programs
