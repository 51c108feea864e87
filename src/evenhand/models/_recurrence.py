"""The loop of an LSTM over time, with a gradient that multiplies once for all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.types import Array

Cell: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""``(gates (n, 4h), c_{t-1}) -> (h_t, c_t)``."""

_Steps: TypeAlias = tuple[Array, Array, Array]


def recurrence(cell: Cell, driven: Array, kernel: Array, output: Array, memory: Array) -> tuple[Array, Array]:
    """The outputs of all steps, ``(T, n, h)``, and the last memory, ``(n, h)``.

    Args:
      cell: what a step makes of its gates.
      driven: gates from the inputs, ``(T, n, 4h)``.
      kernel: of the gates from the last output, ``(h, 4h)``.
      output: :math:`h_0`, ``(n, h)``.
      memory: :math:`c_0`, ``(n, h)``.
    """
    return _loop(cell, driven, kernel, output, memory)


def _plain(cell: Cell, driven: Array, kernel: Array, output: Array, memory: Array) -> tuple[Array, Array]:
    return _forward(cell, driven, kernel, output, memory)[0]


_loop = jax.custom_vjp(_plain, nondiff_argnums=(0,))


def _run(cell: Cell, driven: Array, kernel: Array, output: Array, memory: Array) -> _Steps:
    """Outputs, memories and gates of all steps."""

    def step(carry: tuple[Array, Array], drive: Array) -> tuple[tuple[Array, Array], _Steps]:
        output, memory = carry
        gates = drive + output @ kernel
        output, memory = cell(gates, memory)
        return (output, memory), (output, memory, gates)

    return lax.scan(step, (output, memory), driven)[1]


_Saved: TypeAlias = tuple[Array, Array, Array, _Steps]


def _forward(
    cell: Cell, driven: Array, kernel: Array, output: Array, memory: Array
) -> tuple[tuple[Array, Array], _Saved]:
    steps = _run(cell, driven, kernel, output, memory)
    return (steps[0], steps[1][-1]), (kernel, output, memory, steps)


def _backward(cell: Cell, saved: _Saved, given: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
    # The transpose of a scan adds an (h, 4h) matrix at every step; here one product does it for all steps.
    kernel, output, memory, (outputs, memories, gates) = saved
    # Made once: XLA:CPU moves the transpose of a constant of the loop into the loop, and makes it at every step.
    back = lax.optimization_barrier(kernel.T)
    before, memories_before = (
        jnp.concatenate([first[None], later[:-1]]) for first, later in ((output, outputs), (memory, memories))
    )

    def step(carry: tuple[Array, Array], at: _Steps) -> tuple[tuple[Array, Array], Array]:
        d_output, d_memory = carry
        d_given, gates, memory = at
        pull = jax.vjp(cell, gates, memory)[1]
        d_gates, d_memory = pull((d_output + d_given, d_memory))
        return (d_gates @ back, d_memory), d_gates

    ends = (jnp.zeros_like(output), given[1])
    (d_output, d_memory), d_driven = lax.scan(step, ends, (given[0], gates, memories_before), reverse=True)
    hidden, width = kernel.shape
    return d_driven, before.reshape(-1, hidden).T @ d_driven.reshape(-1, width), d_output, d_memory


_loop.defvjp(_forward, _backward)
