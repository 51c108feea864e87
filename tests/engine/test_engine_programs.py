"""Traced programs of unknown forms: no two of them share a key, and no run fails because of one."""

import gc
import itertools
import warnings
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

import evenhand as eh
from evenhand._jaxpr import programs
from evenhand._jaxpr.hoist import AsTraced, ByProgram, _by_program, hoist
from evenhand.evaluation import _evaluate
from evenhand.lowering import lowered
from evenhand.simulation import engine, evaluating, setup

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
ONE = jnp.float32(1.0)

made_up = Primitive("made_up")
"""Calls the program in its parameters, which no walk over programs knows."""


@made_up.def_impl
def _(x, program, note=None):
    return jaxpr_as_fun(program)(x)[0]


@made_up.def_abstract_eval
def _(x, program, note=None):
    return x


mlir.register_lowering(made_up, mlir.lower_fun(made_up.impl, multiple_results=False))


def calling(function, note=None):
    """``function`` behind the made-up primitive."""
    return lambda x: made_up.bind(x, program=jax.make_jaxpr(function)(x), note=note)


def key(function, x=ONE):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*numbers inside made_up")
        return hoist(jax.make_jaxpr(function)(x)).key


def train(lr=0.1, model=MODEL):
    """How many programs a run adds, and its parameters."""
    before = engine._compiled.cache_info().misses
    method = eh.algorithms.fedavg(eh.local.sgd(model, lr, epochs=1, batch_size=4))
    run = eh.simulate(method, DATA, rounds=2, cohort=4)
    return engine._compiled.cache_info().misses - before, np.array(run.params["w"])


@pytest.fixture(scope="module")
def trained():
    return train()[1]


@pytest.fixture
def fresh():
    """Forgets what other tests have prepared and compiled, and in the end what this one has."""
    caches = (engine._traced, engine._compiled)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


# --- keys --------------------------------------------------------------------------------------------------------


def array(value):
    return jnp.array([value, 1.0]) @ jnp.ones(2)


LONG = np.arange(5000.0, dtype=np.float32)
CHANGED = np.where(LONG == 2500, np.float32(-7), LONG)
TIMES_03, TIMES_07 = jax.jit(lambda x: x * 0.3), jax.jit(lambda x: x * 0.7)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (calling(lambda x: x * 0.3), calling(lambda x: x * 0.7)),
        (calling(lambda x: x + jnp.sum(LONG)), calling(lambda x: x + jnp.sum(CHANGED))),
        (calling(calling(lambda x: x + jnp.sum(LONG))), calling(calling(lambda x: x + jnp.sum(CHANGED)))),
        (calling(jnp.sin, (1,)), calling(jnp.sin, (True,))),
        (calling(jnp.sin, 0.0), calling(jnp.sin, -0.0)),
        (jax.jit(lambda x: x + jnp.sum(LONG)), jax.jit(lambda x: x + jnp.sum(CHANGED))),
        (lambda x: x + 0.0, lambda x: x + np.float32(-0.0)),
        (lambda x: TIMES_03(TIMES_03(x)), lambda x: TIMES_03(TIMES_07(x))),
        (lambda x: TIMES_03(calling(TIMES_03)(x)), lambda x: TIMES_03(calling(TIMES_07)(x))),
        (jnp.sin, lambda x: jax.random.normal(jax.random.key(0), ())),
    ],
    ids=[
        "number in an unknown primitive",
        "array in an unknown primitive",
        "array in one in another",
        "True is not 1",
        "0 is not -0 in a parameter",
        "array in a call",
        "0 is not -0",
        "one number in two places",
        "one program inside and outside of an unknown primitive",
        "another function",
    ],
)
def test_two_programs_are_never_taken_for_one(one, other):
    assert key(one) == key(one)
    assert key(one) != key(other)


@pytest.mark.parametrize(
    "function",
    [
        lambda factor, x: x.at[0].apply(lambda v: v * factor),
        lambda factor, x: lax.reduce_window(x, 0.0, lambda a, b: a + factor * b, (2,), (1,), "VALID"),
    ],
    ids=["scatter", "window"],
)
def test_numbers_where_jax_needs_the_program_whole_stay_and_are_not_warned_of(function):
    x = jnp.arange(4.0)
    hoisted = [hoist(jax.make_jaxpr(partial(function, factor))(x)) for factor in (0.3, 0.7)]
    assert hoisted[0].key != hoisted[1].key
    for factor, one in zip((0.3, 0.7), hoisted, strict=True):
        (result,) = one.run(jnp.asarray(one.values), one.constants, [x])
        np.testing.assert_array_equal(result, function(factor, x))


def test_two_ways_to_draw_random_numbers_are_two_programs():
    def draw(x):
        return x + jax.random.normal(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), ())

    keys = []
    for partitionable in (True, False):
        with jax.threefry_partitionable(partitionable):
            keys.append(key(draw))
    assert keys[0] != keys[1]


def test_a_number_used_twice_is_not_two_numbers():
    """The program with one number is compiled first: the other must not read it in both places."""
    results = []
    for function in (lambda x: TIMES_03(TIMES_03(x)), lambda x: TIMES_03(TIMES_07(x))):
        hoisted = hoist(jax.make_jaxpr(function)(ONE))
        results.append(float(hoisted.run(jnp.asarray(hoisted.values), hoisted.constants, [ONE])[0]))
    np.testing.assert_allclose(results, [0.09, 0.21], rtol=1e-6)


# --- forms -------------------------------------------------------------------------------------------------------


def test_a_program_is_opened_however_it_is_kept():
    """A closed program; an open one with arguments for its constants; a class that is both, as in JAX since 0.11."""
    rows = jnp.arange(3.0)
    closed = jax.make_jaxpr(lambda x: x + rows)(1.0)
    jaxpr, values = programs.opened(closed)
    assert values[0] is rows
    assert len(jaxpr.constvars) == len(values) == 1

    class Both:
        def __init__(self):
            self.eqns, self.invars, self.constvars, self.consts = (
                jaxpr.eqns,
                jaxpr.invars,
                jaxpr.constvars,
                [rows],
            )
            self.jaxpr = self

    both = Both()
    assert programs.opened(both) == (both, [rows])
    open_one = programs.opened(jax.make_jaxpr(jnp.sin)(1.0))[0]
    assert programs.opened(open_one) == (open_one, getattr(open_one, "consts", ()))
    with pytest.raises(programs.UnknownForm):
        programs.opened(object())


def test_counts_of_a_scan_are_read_or_refused():
    class Tree:
        def unpack(self):
            return (1, 2), (3,), ()

    assert programs.scan_counts({"num_consts": 2, "num_carry": 1}) == (2, 1)
    assert programs.scan_counts({"ft_in": Tree()}) == (2, 1)
    for unknown in ({}, {"ft_in": 3}, {"num_consts": 2}):
        with pytest.raises(programs.UnknownForm):
            programs.scan_counts(unknown)


def test_programs_in_an_unknown_container_have_different_keys():
    class Box:
        def __init__(self, program):
            self.program = program

    boxes = [Box(jax.make_jaxpr(lambda x, a=a: x * a)(ONE)) for a in (0.3, 0.7)]
    assert key(calling(jnp.sin, boxes[0])) == key(calling(jnp.sin, boxes[0]))
    assert key(calling(jnp.sin, boxes[0])) != key(calling(jnp.sin, boxes[1]))


# --- runs --------------------------------------------------------------------------------------------------------


def test_a_run_with_numbers_in_an_unknown_primitive_warns_once_and_continues(fresh, trained):
    def losses(outputs, y):
        zero = calling(lambda v: v * 0.3)(ONE) - 0.3
        return MODEL.losses(outputs, y) + lax.stop_gradient(zero)

    with pytest.warns(UserWarning, match="numbers inside made_up.*compiles the rounds again") as warned:
        _, params = train(model=MODEL._replace(losses=losses))
    assert len(warned) == 1
    np.testing.assert_allclose(params, trained, rtol=1e-6)


def test_what_cannot_be_hashed_leaves_the_program_as_it_is(fresh, trained, monkeypatch):
    monkeypatch.setattr("evenhand._jaxpr.hoist._counted", lambda value: [value])
    with pytest.warns(UserWarning, match="unhashable.*compiles the rounds again") as warned:
        _, params = train()
    assert len(warned) == 1
    np.testing.assert_allclose(params, trained, rtol=1e-6)


@pytest.mark.parametrize("kind", ["scan", "while", "jit"])
def test_a_run_on_an_unknown_form_of_program_warns_once_and_gives_the_same(fresh, trained, monkeypatch, kind):
    """As if a later JAX had given this kind of equation a parameter that is unknown today."""
    monkeypatch.setitem(programs.BESIDE, kind, "")
    with pytest.warns(UserWarning, match=f"UnknownForm.*{kind}.*compiles the rounds again") as warned:
        _, params = train()
    assert len(warned) == 1
    np.testing.assert_allclose(params, trained, rtol=1e-6)


def test_a_walk_that_fails_leaves_the_program_as_it_is(fresh, trained, monkeypatch):
    def fail(*_):
        raise AttributeError("no such thing any more")

    monkeypatch.setattr(programs, "again", fail)
    with pytest.warns(UserWarning, match="no such thing any more") as warned:
        _, params = train()
    assert len(warned) == 1
    np.testing.assert_allclose(params, trained, rtol=1e-6)


def test_without_hoisting_a_run_gives_the_same_and_compiles_each_number(trained, monkeypatch):
    train()
    monkeypatch.setenv("EVENHAND_HOIST", "off")
    added, params = train()
    assert added == 1
    np.testing.assert_array_equal(params, trained)
    added, off = train(0.2)
    assert added == 1
    monkeypatch.setenv("EVENHAND_HOIST", "on")
    added, on = train(0.2)
    assert added == 0
    np.testing.assert_array_equal(on, off)
    assert not np.array_equal(on, trained)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_trial_of_a_hoisted_program_is_the_trace_of_the_run(fresh, monkeypatch, devices):
    traces = []

    def counted(program):
        hoisted = hoist(program)

        def run(*arguments):
            traces.append(1)
            return hoisted.run(*arguments)

        return hoisted._replace(run=run)

    monkeypatch.setattr(engine, "hoist", counted)
    method = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4))
    eh.simulate(method, DATA, rounds=2, cohort=4, eval_every=1, devices=devices)
    assert len(traces) == 1


# --- lowering ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def looped():
    kernel, x = jnp.ones((3, 3, 1, 2)) * 0.1, jnp.ones((1, 6, 6, 1))
    conv = partial(
        lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )

    def score(kernel):
        return lax.scan(lambda c, _: (c + jnp.sum(conv(x, kernel)), None), 0.0, length=2)[0]

    return score, kernel


@pytest.mark.parametrize(
    "breaking",
    [
        lambda patch: patch.setitem(programs.BESIDE, "scan", ""),
        lambda patch: patch.setattr(programs, "evaluate", None),
    ],
    ids=["unknown form", "a walk that fails"],
)
def test_lowering_leaves_what_it_does_not_know(looped, monkeypatch, breaking):
    score, kernel = looped
    wanted = jax.grad(lowered(score))(kernel)
    breaking(monkeypatch)
    with pytest.warns(UserWarning, match="left to XLA") as warned:
        found = jax.grad(lowered(score))(kernel)
    assert len(warned) == 1
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def fresh_runs():
    """A personal method that evaluates each client with its own model, and one that adapts before; each built anew."""
    data, model = eh.testing.toy_data(), eh.testing.toy_model()
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
    inner = eh.algorithms.fedavg(work)
    for method in (eh.personalization.ditto(inner, work, lam=0.1), eh.personalization.finetune(inner, work)):
        eh.simulate(method, data, rounds=1, cohort=4)


@pytest.mark.filterwarnings("ignore:The model is no better than a guess")  # after one round
def test_a_method_that_is_built_anew_compiles_and_keeps_nothing_more():
    """Else a process that builds methods in a loop would take more memory with each of them."""
    by_program = (_evaluate._personal_program, evaluating._adapt, engine._compiled, setup._shared)
    fresh_runs()
    before = [cache.cache_info().misses for cache in by_program]
    fresh_runs()
    assert [cache.cache_info().misses for cache in by_program] == before
    # Those that hold a method's own functions hold few of them.
    by_method = (engine._traced, setup._beginning, setup._drawn_steps, setup._steps_of, _by_program)
    most = [cache.cache_info().maxsize for cache in by_method]
    assert all(size is not None and size <= 16 for size in most)


def test_a_program_that_methods_share_keeps_nothing_of_the_first_of_them():
    class Method:
        factor = 2.5

        def times(self, x):
            return {"w": self.factor * x}

    first, second = Method(), Method()
    traced = AsTraced(first.times, (jnp.ones(3),))
    assert traced == AsTraced(second.times, (jnp.ones(3),)) and hash(traced) == hash(
        AsTraced(second.times, (jnp.ones(3),))
    )
    second.factor = 3.5
    assert traced != AsTraced(second.times, (jnp.ones(3),))
    np.testing.assert_array_equal(traced(jnp.arange(3.0))["w"], [0.0, 2.5, 5.0])
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_a_program_with_a_large_array_is_not_kept_for_other_methods():
    def plus(array):
        return lambda x: x + array

    def is_kept(array):
        compiled = [
            setup._compiled(plus(array), (jax.ShapeDtypeStruct(array.shape, array.dtype),)) for _ in "12"
        ]
        return compiled[0] is compiled[1]

    assert is_kept(jnp.zeros(1000)) and not is_kept(jnp.zeros(1_000_000))


def test_functions_that_are_one_program_are_one_key():
    def key(function, *arguments):
        return ByProgram(function, arguments or (jnp.ones(3),))

    def times(factor):
        return lambda x: {"w": factor * x}

    assert key(times(2.5)) == key(times(2.5)) and hash(key(times(2.5))) == hash(key(times(2.5)))
    rows = np.arange(3, dtype=np.float32)
    assert key(times(jnp.array(rows))) == key(times(jnp.array(rows)))
    others = [
        key(times(3.5)),
        key(lambda x: {"v": 2.5 * x}),
        key(lambda x: {"w": 2.5 + x}),
        key(times(2.5), jnp.ones(4)),
        key(times(jnp.array(rows))),
        key(times(jnp.array(rows + 1))),
    ]
    for one, other in itertools.combinations([key(times(2.5)), *others], 2):
        assert one != other
