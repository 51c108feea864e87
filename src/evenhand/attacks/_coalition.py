"""What a coalition that sees the uploads of its cohort works with."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.aggregators import reduce_uploads
from evenhand.types import Aggregator, Array, Key, PyTree, Upload

__all__ = ["Honest", "everyone", "strongest"]


class Honest(NamedTuple):
    """The honest uploads of a cohort.

    Attributes:
      deltas: all uploads, leading axis ``m``.
      weights: ``(m,)``, 1 for each honest client and 0 for all others.
      mean: of the honest uploads.
    """

    deltas: PyTree
    weights: Array
    mean: PyTree

    @staticmethod
    def of(uploads: Upload, malicious: Array, present: Array) -> Honest:
        """Those among the present uploads whose clients are not malicious."""
        weights = (present & ~malicious).astype(jnp.float32)
        return Honest(uploads.delta, weights, tree.weighted_mean(uploads.delta, weights))

    def distances(self) -> Array:
        """The distance of each upload to the mean of the honest ones, ``(m,)``."""
        apart = jax.tree.map(lambda leaf, mean: leaf - mean[None], self.deltas, self.mean)
        return jax.vmap(tree.norm)(apart)

    def deviation(self) -> PyTree:
        """The standard deviation of each coordinate over the honest uploads."""
        squares = jax.tree.map(lambda leaf, mean: jnp.square(leaf - mean[None]), self.deltas, self.mean)
        return jax.tree.map(jnp.sqrt, tree.weighted_mean(squares, self.weights))


def everyone(delta: PyTree, like: PyTree) -> PyTree:
    """One update as that of each client."""
    return jax.tree.map(lambda one, many: jnp.broadcast_to(one, many.shape).astype(many.dtype), delta, like)


def strongest(
    against: Aggregator,
    honest: Honest,
    direction: PyTree,
    uploads: Upload,
    present: Array,
    key: Key,
    factors: Array,
) -> Array:
    """The factor with which ``mean + factor * direction`` moves an aggregate farthest from the honest mean.

    Args:
      against: the aggregator, in its state before the first round.
      honest: the honest uploads.
      direction: the coalition's, a tree like one delta.
      uploads: those of the whole cohort.
      present: which slots are not empty, bool ``(m,)``.
      key: for an aggregator that draws at random.
      factors: those that are tried.
    """
    state = against.init(tree.zeros_like(honest.mean), present.shape[0])
    noise = jax.random.split(key, present.shape[0])

    def moved(factor: Array) -> Array:
        sent = tree.add(honest.mean, tree.scale(factor, direction))
        deltas = tree.among(honest.weights > 0, uploads.delta, everyone(sent, uploads.delta))
        found, _ = reduce_uploads(against, uploads._replace(delta=deltas), present, state, key, noise)
        return tree.norm(tree.subtract(found, honest.mean))

    return factors[jnp.argmax(lax.map(moved, factors))]
