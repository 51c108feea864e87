"""Gradients on public examples, which cost no privacy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evenhand import local, tree
from evenhand.errors import EvenhandError
from evenhand.local import Batch, Batches, Estimator
from evenhand.privacy._moments import squares
from evenhand.types import Array, ClientData, Key, Model, Params

__all__ = ["Public", "public_examples"]


class Public(NamedTuple):
    """Public examples, and how gradients are taken on them.

    Attributes:
      x: inputs.
      y: labels.
      schedule: the mini-batches of one pass over them.
      estimate: the gradient on a mini-batch.
    """

    x: Any
    y: Any
    schedule: Batches
    estimate: Estimator

    def data(self) -> ClientData:
        """The examples as those of a client."""
        size = len(self.x)
        x, y = jnp.asarray(self.x), jnp.asarray(self.y)
        return ClientData(x, y, jnp.int32(0), jnp.int32(size), jnp.float32(1.0), size)

    def gradient(self, params: Params, key: Key) -> Params:
        """The mean gradient on a mini-batch drawn without replacement, or on all examples."""
        order, masks = jax.random.split(key)
        return self.estimate(params, self.schedule.draw(self.data(), order)(jnp.int32(0)), masks)

    def moments(self, params: Params, key: Key) -> tuple[Params, Params]:
        """Over the mini-batches of one pass: the mean of their gradients, and of the squares of these."""

        def add(total: tuple[Params, Params], batch: Batch, key: Key) -> tuple[Params, Params]:
            gradient = self.estimate(params, batch, key)
            return tree.add(total[0], gradient), tree.add(total[1], squares(gradient))

        data, nothing = self.data(), tree.zeros_like(params)
        sums = local.over_batches(self.schedule, add, (nothing, nothing), data, key)
        share = 1.0 / self.schedule.effort(data).steps.astype(jnp.float32)
        return tree.scale(share, sums[0]), tree.scale(share, sums[1])


def public_examples(who: str, model: Model, public: tuple[Array, Array], batch_size: int | None) -> Public:
    """Public examples, checked.

    Raises:
      EvenhandError: they are not a pair of arrays of as many inputs as labels, or a batch size is out of range.
    """
    local.check_model(model)
    if len(public) != 2 or not 0 < len(public[0]) == len(public[1]):
        raise EvenhandError(f"{who}(public=...): give (x, y), as many inputs as labels, and at least one.")
    x, y = public
    return Public(x, y, local.batches(epochs=1, batch_size=batch_size), local.batch_gradient(model))
