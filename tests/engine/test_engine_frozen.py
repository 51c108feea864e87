"""Large arrays that a program closes over, such as frozen parameters, are arguments of what is compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import evenhand as eh
from evenhand._jaxpr import hoist as hoisting
from evenhand._jaxpr.hoist import has_large_arrays, hoist
from evenhand.evaluation import _evaluate
from evenhand.simulation import engine

WIDTH = 300
"""A square matrix of this width is large: 360 kB."""
RNG = np.random.default_rng(0)
X: Any = RNG.normal(size=(60, WIDTH)).astype(np.float32)
Y = RNG.integers(0, 3, 60).astype(np.int32)
DATA = eh.data.from_arrays(X, Y, np.arange(60) % 5, test_fraction=0.2)
MODEL = eh.models.mlp(WIDTH, classes=3, hidden=(WIDTH,))


def matrix(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)) / WIDTH, jnp.float32)


def scanned(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    step = jax.jit(lambda c: jnp.tanh(c @ a) @ b)
    return jax.lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0]


def looped(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    step = jax.jit(lambda c: c @ a)
    more = jax.jit(lambda c: jnp.sum(c @ b) < 1e6)
    return jax.lax.while_loop(lambda c: more(c[1]) & (c[0] < 3), lambda c: (c[0] + 1, step(c[1])), (0, x))[1]


def branched(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    one, other = jax.jit(lambda c: c @ a), jax.jit(lambda c: (c + 0.3) @ b)
    return jax.lax.switch((x[0, 0] > 0).astype(jnp.int32), [one, other], x)


def derived(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    loss = jax.jit(lambda c: jnp.sum(jax.nn.relu(c @ a) @ b))
    return jax.jit(jax.grad(loss))(x)


def batched(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    return jax.vmap(jax.jit(lambda row: (row @ a) @ b))(x)


def spread(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))
    part = PartitionSpec("devices")
    on_device = jax.jit(lambda c: 0.7 * (c @ a) @ b)
    return jax.shard_map(on_device, mesh=mesh, in_specs=part, out_specs=part)(x)


FUNCTIONS = [scanned, looped, branched, derived, batched, spread]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_program_with_large_arrays_as_arguments_computes_what_it_did(function: Any) -> None:
    a, b, x = matrix(1), matrix(2), jnp.asarray(X[:4])
    program = jax.make_jaxpr(partial(function, a, b))(x)
    hoisted = hoist(program)
    assert has_large_arrays(program) and {id(a), id(b)} <= {id(array) for array in hoisted.constants}
    run = jax.jit(hoisted.run)
    expected = jax.jit(partial(function, a, b))(x)
    np.testing.assert_allclose(run(hoisted.values, hoisted.constants, [x])[0], expected, rtol=2e-6, atol=1e-7)
    # The same program with other arrays, and the arrays are nowhere in what is compiled.
    swapped = {id(a): b, id(b): a}
    other = [swapped.get(id(array), array) for array in hoisted.constants]
    expected = jax.jit(partial(function, b, a))(x)
    np.testing.assert_allclose(run(hoisted.values, other, [x])[0], expected, rtol=2e-6, atol=1e-7)
    lowered = run.lower(hoisted.values, hoisted.constants, [x])
    assert 'dense<"0x' not in lowered.as_text() and "dense_resource" not in lowered.as_text()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_programs_that_differ_in_large_arrays_only_are_one(function: Any) -> None:
    def key(a: jax.Array, b: jax.Array) -> Any:
        return hoist(jax.make_jaxpr(partial(function, a, b))(jnp.asarray(X[:4]))).key

    a, b = matrix(1), matrix(2)
    assert key(a, b) == key(matrix(3), matrix(4))
    # One array in two places is another program than two arrays.
    assert key(a, a) != key(a, b)


def test_small_arrays_and_whole_numbers_stay_in_the_program() -> None:
    def traced(array: jax.Array) -> Any:
        inner = jax.jit(lambda x: x * array[0].astype(jnp.float32))
        return jax.make_jaxpr(lambda x: inner(x) + 1.0)(jnp.float32(1.0))

    for one, other in (
        (jnp.ones(3), jnp.zeros(3)),
        (jnp.ones(2**17, jnp.int32), jnp.zeros(2**17, jnp.int32)),
    ):
        assert not has_large_arrays(traced(one)) and not hoist(traced(one)).constants
        assert hoist(traced(one)).key != hoist(traced(other)).key


def frozen_run(seed: int, method: str = "fedavg") -> tuple[eh.types.Model, Any]:
    start = MODEL.init(jax.random.key(seed))
    model = eh.models.freeze(MODEL, start, "dense_0")
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
    algorithm = eh.algorithms.fedavg(work)
    if method == "ditto":
        algorithm = eh.personalization.ditto(algorithm, work, lam=0.1)
    return model, eh.simulate(algorithm, DATA, rounds=2)


def test_models_frozen_at_other_values_train_as_one_compiled_program() -> None:
    _, first = frozen_run(1)
    before = engine._compiled.cache_info().misses
    model, other = frozen_run(2)
    assert engine._compiled.cache_info().misses == before
    assert not np.allclose(first.params["output"]["kernel"], other.params["output"]["kernel"])
    losses = model.losses(model.apply(other.params, jnp.asarray(DATA.test.x)), jnp.asarray(DATA.test.y))
    np.testing.assert_allclose(np.mean(losses), other.history["test_loss"][-1], rtol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_run_is_the_same_without_hoisting(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    _, run = frozen_run(1, method)
    monkeypatch.setenv("EVENHAND_HOIST", "off")
    _, plain = frozen_run(1, method)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), run.params, plain.params)
    for split, metrics in plain.clients.items():
        for name, values in metrics.items():
            np.testing.assert_allclose(run.clients[split][name], values, rtol=1e-5)


def test_an_evaluation_has_frozen_parameters_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()

    def noted(program: Any) -> Any:
        seen.append(hoist(program))
        return seen[-1]

    monkeypatch.setattr(_evaluate, "hoist", noted)
    model, run = frozen_run(3)
    assert seen and all(any(c.nbytes == 4 * WIDTH**2 for c in program.constants) for program in seen)
    seen.clear()
    eh.evaluation.evaluate(MODEL, eh.models.thaw(model, run.params), DATA.test)
    assert not seen  # nothing is frozen: the program is compiled as it is


def test_several_devices_hold_frozen_parameters_once_each() -> None:
    start = MODEL.init(jax.random.key(1))
    model = eh.models.freeze(MODEL, start, "dense_0")
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
    one, two = (eh.simulate(eh.algorithms.fedavg(work), DATA, rounds=2, devices=count) for count in (1, 2))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), one.params, two.params)
    np.testing.assert_allclose(one.history["test_loss"], two.history["test_loss"], rtol=1e-5)


def test_the_bytes_from_which_an_array_is_large_are_fewer_than_those_here() -> None:
    assert hoisting._LARGE <= 4 * WIDTH**2
