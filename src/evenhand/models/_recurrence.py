"""The loop of an LSTM or a GRU over time, with a gradient that multiplies once for all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.types import Array

Cell: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""``(gates, c_{t-1}) -> (h_t, c_t)``."""


class Gates(NamedTuple):
    """How the gates of a step are made of what drives them; a linear map, and its transpose.

    Attributes:
      join: ``(driven, recurrent) -> gates``: what comes from the inputs, and what from the last output.
      part: ``d_gates -> (d_driven, d_recurrent)``.
    """

    join: Callable[[Array, Array], Array]
    part: Callable[[Array], tuple[Array, Array]]


ADDED = Gates(lambda driven, recurrent: driven + recurrent, lambda d_gates: (d_gates, d_gates))
"""Those of an LSTM: the sum, four for each unit."""

_Steps: TypeAlias = tuple[Array, Array, Array]


def recurrence(
    cell: Cell, driven: Array, kernel: Array, output: Array, memory: Array, gates: Gates = ADDED
) -> tuple[Array, Array]:
    """The outputs of all steps, ``(T, n, h)``, and the last memory, ``(n, h)``.

    Args:
      cell: what a step makes of its gates.
      driven: what comes from the inputs, ``(T, n, i)``.
      kernel: of what comes from the last output, ``(h, k)``.
      output: :math:`h_0`, ``(n, h)``.
      memory: :math:`c_0`, ``(n, h)``.
      gates: how both make the gates.
    """
    return _loop(cell, gates, driven, kernel, output, memory)


def _plain(
    cell: Cell, gates: Gates, driven: Array, kernel: Array, output: Array, memory: Array
) -> tuple[Array, Array]:
    return _forward(cell, gates, driven, kernel, output, memory)[0]


_loop = jax.custom_vjp(_plain, nondiff_argnums=(0, 1))


def _run(cell: Cell, gates: Gates, driven: Array, kernel: Array, output: Array, memory: Array) -> _Steps:
    """Outputs, memories and gates of all steps."""

    def step(carry: tuple[Array, Array], drive: Array) -> tuple[tuple[Array, Array], _Steps]:
        output, memory = carry
        joined = gates.join(drive, output @ kernel)
        output, memory = cell(joined, memory)
        return (output, memory), (output, memory, joined)

    return lax.scan(step, (output, memory), driven)[1]


_Saved: TypeAlias = tuple[Array, Array, Array, _Steps]


def _forward(
    cell: Cell, gates: Gates, driven: Array, kernel: Array, output: Array, memory: Array
) -> tuple[tuple[Array, Array], _Saved]:
    steps = _run(cell, gates, driven, kernel, output, memory)
    return (steps[0], steps[1][-1]), (kernel, output, memory, steps)


def _backward(
    cell: Cell, gates: Gates, saved: _Saved, given: tuple[Array, Array]
) -> tuple[Array, Array, Array, Array]:
    # The transpose of a scan adds an (h, k) matrix at every step; here one product does it for all steps.
    kernel, output, memory, (outputs, memories, joined) = saved
    # Made once: XLA:CPU moves the transpose of a constant of the loop into the loop, and makes it at every step.
    back = lax.optimization_barrier(kernel.T)
    before, memories_before = (
        jnp.concatenate([first[None], later[:-1]]) for first, later in ((output, outputs), (memory, memories))
    )

    def step(carry: tuple[Array, Array], at: _Steps) -> tuple[tuple[Array, Array], Array]:
        d_output, d_memory = carry
        d_given, joined, memory = at
        pull = jax.vjp(cell, joined, memory)[1]
        d_gates, d_memory = pull((d_output + d_given, d_memory))
        return (gates.part(d_gates)[1] @ back, d_memory), d_gates

    ends = (jnp.zeros_like(output), given[1])
    (d_output, d_memory), d_gates = lax.scan(step, ends, (given[0], joined, memories_before), reverse=True)
    d_driven, d_recurrent = gates.part(d_gates)
    hidden, width = kernel.shape
    return d_driven, before.reshape(-1, hidden).T @ d_recurrent.reshape(-1, width), d_output, d_memory


_loop.defvjp(_forward, _backward)
