"""Traced programs, evaluated equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand._jaxpr import programs


def test_what_nothing_needs_is_left_out_and_effects_are_not() -> None:
    """The product is needed by nothing, the sine by a call of Python only, the sum by the result."""
    seen, called = list[str](), list[float]()

    def function(x: Any) -> Any:
        _ = jnp.cos(x) * 3.0
        jax.debug.callback(lambda value: called.append(float(value)), jnp.sin(x))
        return x + 1.0

    def step(equation: Any, operands: list[Any]) -> Sequence[Any]:
        seen.append(equation.primitive.name)
        return programs.as_it_is(equation, operands)

    program = jax.make_jaxpr(function)(0.0)
    assert "mul" in {equation.primitive.name for equation in program.eqns}
    [result] = programs.evaluate(*programs.opened(program), [0.0], step)
    jax.effects_barrier()
    assert seen == ["sin", "debug_callback", "add"]
    assert (float(result), called) == (1.0, [0.0])


# --- what is alive at once ------------------------------------------------------------------------------------------


def alive(function: Callable[..., Any], *arguments: Any) -> int:
    return programs.footprint(jax.make_jaxpr(function)(*arguments))


def test_results_are_counted_from_where_they_are_computed_to_their_last_use() -> None:
    x = jnp.ones(100)
    assert alive(jnp.sin, x) == 400
    assert alive(lambda x: jnp.cos(jnp.sin(x)), x) == 800
    assert alive(lambda x: jnp.exp(jnp.cos(jnp.sin(x))), x) == 800, "the sine is gone before the exponential"
    assert alive(lambda x: jnp.sin(x) + jnp.cos(jnp.sin(x) * 2.0), x) >= 1200, (
        "a value that is used again is not"
    )


def test_a_loop_counts_once_what_each_turn_computes() -> None:
    def turn(carry: Any, row: Any) -> tuple[Any, Any]:
        return jnp.sin(carry), jnp.sum(jnp.exp(row))

    def many(rows: Any) -> Any:
        return jax.lax.scan(turn, jnp.ones(100), rows)

    once, often = (alive(many, jnp.ones((count, 100))) for count in (1, 50))
    assert often - once == 49 * 4, "only the sums of the turns are kept"
    assert once >= 2 * 400


def test_of_branches_the_largest_counts() -> None:
    def chosen(which: Any, x: Any) -> Any:
        return jax.lax.switch(which, [lambda x: x, lambda x: jnp.exp(jnp.cos(jnp.sin(x)))], x)

    assert alive(chosen, 0, jnp.ones(1000)) >= 2 * 4000
    assert (
        alive(lambda which, x: jax.lax.switch(which, [lambda x: x, jnp.sin], x), 0, jnp.ones(1000)) < 3 * 4000
    )


def training(steps: Any, w: Any, rate: Any) -> tuple[Any, Any]:
    """A loop in a jitted function, with operations before and after it, and constants in the test and in the steps."""

    @jax.jit
    def descend(w: Any) -> Any:
        def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            i, w = carry
            return i + 1, w - rate * (w - jnp.sin(w + i.astype(jnp.float32)))

        return jax.lax.while_loop(lambda carry: carry[0] < steps, step, (jnp.int32(0), 2.0 * w))

    count, end = descend(w + 1.0)
    return end - w, count


@pytest.mark.parametrize("cut", range(7))
def test_a_loop_that_is_left_and_entered_again_is_the_loop(cut: int) -> None:
    arguments = [jnp.int32(5), jnp.linspace(-1.0, 1.0, 4), jnp.float32(0.3)]
    whole = training(*arguments)
    part = programs.interruptible(jax.make_jaxpr(training)(*arguments))
    assert part is not None and [leaf.shape for leaf in part.carry] == [(), (4,)]
    unfinished, middle = part.run(arguments, lambda *fresh: fresh, jnp.int32(cut))
    assert int(middle[0]) == min(cut, 5)
    results, _ = part.run(arguments, lambda *fresh: middle, jnp.int32(10))
    for result, expected in zip(results, whole, strict=True):
        np.testing.assert_array_equal(result, expected)
    assert np.array_equal(unfinished[0], whole[0]) == (cut >= 5)


def test_no_loop_or_another_one_and_loops_of_keys_are_not_interrupted() -> None:
    def twice(w: Any) -> Any:
        return training(3, training(3, w, 0.1)[0], 0.1)

    def keys(key: Any) -> Any:
        return jax.lax.while_loop(
            lambda carry: carry[0] < 3,
            lambda carry: (carry[0] + 1, jax.random.fold_in(carry[1], carry[0])),
            (jnp.int32(0), key),
        )

    def after_a_scan(w: Any) -> Any:
        return training(3, jax.lax.scan(lambda w, _: (2.0 * w, None), w, length=4)[0], 0.1)

    def in_a_branch(w: Any) -> Any:
        return jax.lax.cond(w[0] > 0, lambda: training(3, w, 0.1)[0], lambda: w)

    for function in (after_a_scan, in_a_branch):
        assert programs.interruptible(jax.make_jaxpr(function)(jnp.ones(3))) is None
    assert programs.interruptible(jax.make_jaxpr(jnp.sin)(1.0)) is None
    assert programs.interruptible(jax.make_jaxpr(twice)(jnp.ones(3))) is None
    assert programs.interruptible(jax.make_jaxpr(keys)(jax.random.key(0))) is None
