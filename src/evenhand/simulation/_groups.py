"""A cohort cut into groups of clients that are trained side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.types import Array, PyTree, Report

__all__ = ["Groups", "Members", "live_sum", "side_by_side"]


class Members(NamedTuple):
    """The clients of a group, or of all groups.

    Attributes:
      ids: client ids.
      progress: share of the work that gets done.
      live: False for padding.
      report: what was reported before the training, where the aggregator had to know.
    """

    ids: Array
    progress: Array
    live: Array
    report: Report | None


class Groups(NamedTuple):
    """A cohort cut into groups of equal size, longest work first.

    Attributes:
      members: leaves ``(groups, lanes)``.
      order: ``(m,)``, which member of the cohort stands at each place.
    """

    members: Members
    order: Array

    @staticmethod
    def cut(ids: Array, progress: Array, sizes: Array, lanes: int) -> Groups:
        m = ids.shape[0]
        lanes = min(lanes, m)
        order = jnp.arange(m)
        if lanes > 1:
            work = sizes[ids].astype(jnp.float32) * jnp.minimum(progress, 1.0)
            order = jnp.argsort(-work, stable=True)
        count = -(-m // lanes)
        place = jnp.minimum(jnp.arange(count * lanes), m - 1).reshape(count, lanes)
        live = (jnp.arange(count * lanes) < m).reshape(count, lanes)
        return Groups(Members(ids[order][place], progress[order][place], live, None), order)

    def told(self, report: Report) -> Groups:
        """The same groups, with what their members reported, grouped."""
        return self._replace(members=self.members._replace(report=report))

    def map(self, function: Callable[[Array, Array], PyTree]) -> PyTree:
        """``function(id, progress)`` of every client, grouped."""
        each = (self.members.ids, self.members.progress)
        return lax.map(lambda group: side_by_side(function, *group), each)

    def ungroup(self, grouped: PyTree) -> PyTree:
        """From ``(groups, lanes, ...)`` to ``(m, ...)`` in the cohort's own order."""
        m = self.order.shape[0]
        back = jnp.argsort(self.order)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:m][back], grouped)

    def regroup(self, values: Array) -> Array:
        """From ``(m,)`` in the cohort's own order to ``(groups, lanes)``."""
        shape = self.members.ids.shape
        place = jnp.minimum(jnp.arange(self.members.ids.size), self.order.shape[0] - 1).reshape(shape)
        return values[self.order][place]


def side_by_side(function: Callable[..., PyTree], *batched: PyTree) -> PyTree:
    """``vmap``, except that a single lane is not batched: a batch of one costs XLA:CPU its fast paths."""
    if jax.tree.leaves(batched)[0].shape[0] > 1:
        return jax.vmap(function)(*batched)
    out = function(*(jax.tree.map(lambda leaf: leaf[0], argument) for argument in batched))
    return jax.tree.map(lambda leaf: leaf[None], out)


def live_sum(live: Array, leaf: Array) -> Array:
    """The sum over a group, padding left out whatever it holds."""
    mask = live.reshape(live.shape + (1,) * (leaf.ndim - 1))
    return jnp.sum(jnp.where(mask, leaf, jnp.zeros((), leaf.dtype)), axis=0)
