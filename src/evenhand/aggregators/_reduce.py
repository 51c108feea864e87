"""Running an aggregator on a whole cohort's uploads at once; the engine also streams it (see ``simulation``)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.streams import Purpose, stream
from evenhand.types import Aggregator, Array, Key, PyTree, Report, Sum, Upload

__all__ = ["aggregate", "reduce_uploads", "weigh"]


def aggregate(
    aggregator: Aggregator,
    deltas: PyTree,
    weights: Array | None = None,
    losses: Array | None = None,
    seed: int = 0,
) -> PyTree:
    """The direction that ``aggregator`` makes of ``m`` uploads, outside any training run.

    Args:
      aggregator: a ``Sum`` or a ``Stack``.
      deltas: tree whose leaves have a leading axis ``m``.
      weights: ``(m,)`` weights; None: all 1.
      losses: ``(m,)`` losses for aggregators that need them.
      seed: for aggregators that draw at random.

    Returns:
      A tree like one upload's delta.

    Raises:
      EvenhandError: leading axes disagree, there is no upload, or the aggregator needs losses and got none.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand.aggregators import mean
      >>> aggregate(mean(), jnp.array([[0.0, 2.0], [4.0, 2.0]]), weights=jnp.array([3.0, 1.0])).tolist()
      [1.0, 2.0]
    """
    deltas = jax.tree.map(jnp.asarray, deltas)
    sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(deltas)}
    if len(sizes) != 1 or sizes & {(), (0,)}:
        raise EvenhandError(
            f"aggregate(): the leaves of deltas have leading axes {sorted(sizes)}; give one entry per upload."
        )
    (m,) = sizes.pop()
    if aggregator.needs_loss and losses is None:
        raise EvenhandError("aggregate(): this aggregator weighs uploads by their loss; pass losses=.")
    weight = jnp.ones(m, jnp.float32) if weights is None else jnp.asarray(weights, jnp.float32)
    loss = jnp.full(m, jnp.nan, jnp.float32) if losses is None else jnp.asarray(losses, jnp.float32)
    if weight.shape != (m,) or loss.shape != (m,):
        raise EvenhandError(f"aggregate(): weights {weight.shape} and losses {loss.shape} must be ({m},).")
    state = aggregator.init(tree.zeros_like(tree.take(deltas, jnp.int32(0))), m)
    ids = jnp.arange(m, dtype=jnp.int32)
    weight, state = weigh(aggregator, Report(weight, loss), ids, state)
    key = stream(jax.random.key(seed), Purpose.AGGREGATOR)
    return reduce_uploads(aggregator, Upload(deltas, weight, loss), state, key)[0]


def weigh(aggregator: Aggregator, reports: Report, ids: Array, state: PyTree) -> tuple[Array, PyTree]:
    """The weights ``(m,)`` that the cohort's uploads get, given all reports."""
    if isinstance(aggregator, Sum) and aggregator.weigh is not None:
        return aggregator.weigh(reports, ids, state)
    return reports.weight, state


def reduce_uploads(aggregator: Aggregator, uploads: Upload, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
    """``(direction, state)`` from stacked uploads, in as many passes as the aggregator takes."""
    if not isinstance(aggregator, Sum):
        return aggregator.apply(uploads, state, key)
    direction: PyTree = ()
    for number in range(aggregator.passes):
        lifted = jax.vmap(aggregator.lift, in_axes=(0, None))(uploads, state)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), lifted)
        direction, state = aggregator.lower(total, state, jax.random.fold_in(key, number))
    return direction, state
