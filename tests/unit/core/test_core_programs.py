"""Traced programs, evaluated equation by equation."""

from __future__ import annotations

from collections.abc import Sequence
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
