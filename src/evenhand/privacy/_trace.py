"""The loss of one example as a program, and the accounts of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evenhand import programs
from evenhand.privacy._layers import Account, formed
from evenhand.privacy._walk import Plan, plan_of, run
from evenhand.types import Array, Key, Model, Params

__all__ = ["Rows", "Traced", "traced"]


class Rows(NamedTuple):
    """Examples: inputs, labels, and a key for each."""

    x: Array
    y: Array
    keys: Key


class Traced(NamedTuple):
    """The loss of one example.

    Attributes:
      program: of all leaves of the parameters, and an example's input, label and key.
      plan: which leaves belong to layers.
      numbers: how many numbers per example the accounts hold.
    """

    program: Any
    plan: Plan
    numbers: int

    def accounts(
        self, leaves: Sequence[Array], rows: Rows, divisors: Sequence[Array | None]
    ) -> list[Account | None]:
        """For each leaf, what the examples' gradients come to; None for one on which the loss does not depend."""
        layers, copied = self.plan.layers, {number: leaves[number] for number in self.plan.copied}
        taps = {number: jnp.zeros(layer.output.shape, layer.output.dtype) for number, layer in layers.items()}

        def loss(
            taps: dict[int, Array], copied: dict[int, Array], row: Rows
        ) -> tuple[Array, dict[int, Array]]:
            used = [copied.get(number, leaf) for number, leaf in enumerate(leaves)]
            return run(self.program, self.plan, used, row, taps)

        slope = jax.vmap(jax.grad(loss, (0, 1), has_aux=True), (None, None, 0))
        (slopes, gradients), others = slope(taps, copied, rows)
        found: list[Account | None] = [None] * len(leaves)
        for number, layer in layers.items():
            found[number] = layer.account(others[number], slopes[number], divisors[number])
        for number, gradient in gradients.items():
            found[number] = formed(gradient, divisors[number])
        return found


def traced(model: Model, params: Params, rows: Rows) -> Traced:
    """The loss of an example like those in ``rows``, in training.

    All leaves are copied where JAX stores the program in a way that is not known.
    """

    def loss(params: Params, row: Rows) -> Array:
        if model.apply_train is None:
            outputs = model.apply(params, row.x[None])
        else:
            outputs = model.apply_train(params, row.x[None], row.keys)
        return model.losses(outputs, row.y[None])[0]

    leaves, row = jax.tree.map(_shape, jax.tree.leaves(params)), jax.tree.map(_one, rows)
    program = jax.make_jaxpr(loss)(jax.tree.map(_shape, params), row)
    try:
        plan = plan_of(program, leaves)
        taps = {number: layer.output for number, layer in plan.layers.items()}
        jax.eval_shape(lambda leaves, row, taps: run(program, plan, leaves, row, taps), leaves, row, taps)
    except programs.UnknownForm:
        plan = Plan({}, range(len(leaves)))
    sizes = [math.prod(leaves[number].shape) for number in plan.copied]
    return Traced(program, plan, sum(sizes) + sum(layer.numbers for layer in plan.layers.values()))


def _shape(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _one(rows: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
