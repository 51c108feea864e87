"""Traced programs, evaluated equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

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
