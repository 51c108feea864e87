"""Bucketing: means of a few uploads at a time, before another aggregator."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.aggregators._reduce import before, check_then
from evenhand.aggregators.stacked import flattened
from evenhand.errors import whole_number
from evenhand.types import Aggregator, Array, Key, Need, PyTree, Stack, Upload

__all__ = ["bucketing"]


def bucketing(size: int, then: Aggregator) -> Stack:
    r"""Bucketing: averages the uploads in randomly drawn buckets, before another aggregator.

    .. math:: \Delta'_b = \frac{1}{|B_b|} \sum_{k \in B_b} \Delta_k, \qquad |B_b| = s, \text{ the last one smaller}

    Args:
      size: :math:`s`, uploads per bucket.
      then: reduces the :math:`\lceil m / s \rceil` means; it must expect up to ``size`` times the share of malicious
        ones, since one malicious upload spoils its bucket.

    Raises:
      EvenhandError: ``size`` below 1, or a ``then`` that weighs clients by their reports.

    Robustness: that of ``then`` for a share of :math:`s f / m`; honest means differ less by a factor of
    :math:`\sqrt s`.  Within a bucket each upload counts alike; ``then`` gets the sum of the reported weights.

    Edge cases: ``size=1`` changes nothing but the order.  The deal is random, and depends on the server's key and on
    what the uploads are, not on their order.  :math:`m` counts the accepted uploads.

    Differs from the paper: the losses that ``then`` may need are the means of the buckets'.

    Cost: each upload is read twice, and the means are in memory beside the uploads.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = bucketing(2, then=eh.aggregators.mean())
      >>> eh.aggregators.aggregate(rule, jnp.array([[1.0], [2.0], [3.0], [6.0]])).tolist()
      [3.0]

    Source: Karimireddy, He and Jaggi, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR 2022,
    algorithm 1.
    """
    size = whole_number("bucketing(size=)", size, 1)
    check_then("bucketing", then)

    def behind(need: Need) -> Need:
        return Need(
            f"{need.name} behind bucketing({size})",
            lambda m: need.holds(-(-m // size)),
            lambda m: need.works(-(-m // size)),
        )

    def deal(uploads: Upload, present: Array, key: Key) -> tuple[Upload, Array]:
        m = present.shape[0]
        buckets = -(-m // size)
        # Keyed by what an upload is: keyed by its place, another order of the clients would be another result.
        # Copies, such as a coalition's, are numbered: they would fill buckets of their own.
        marks = jnp.where(present, _marks(uploads), 0)
        place = jnp.argsort(jnp.argsort(marks, stable=True), stable=True)
        copy = place - jnp.searchsorted(jnp.sort(marks), marks)
        keys = jax.vmap(lambda mark, copy: jax.random.fold_in(jax.random.fold_in(key, mark), copy))
        draws = jax.vmap(jax.random.bits)(keys(marks, copy))
        # The slots of each bucket, ``(buckets, size)``, those that are present first.
        slots = jnp.pad(jnp.lexsort((draws, ~present)), (0, buckets * size - m)).reshape(buckets, size)
        inside = jnp.arange(buckets * size).reshape(buckets, size) < jnp.sum(present)
        count = jnp.sum(inside, axis=1)
        share = jnp.where(inside, 1.0 / jnp.maximum(count, 1).astype(jnp.float32)[:, None], 0.0)
        loss = jnp.sum(jnp.where(inside, share * uploads.loss[slots], 0.0), axis=1)
        weight = jnp.sum(jnp.where(inside, uploads.weight[slots], 0.0), axis=1)

        # Bucket by bucket: as a product with all shares, most of which are 0, it took twice as long.
        def mean(bucket: tuple[Array, Array, Array]) -> PyTree:
            def added(total: PyTree, place: Array) -> tuple[PyTree, None]:
                slot, share, is_inside = (part[place] for part in bucket)
                delta = tree.take(uploads.delta, slot)
                return tree.add(
                    total, tree.select(is_inside, tree.scale(share, delta), tree.zeros_like(delta))
                ), None

            like = tree.zeros_like(tree.take(uploads.delta, jnp.int32(0)))
            return lax.scan(added, like, jnp.arange(size), unroll=min(size, 4))[0]

        return Upload(lax.map(mean, (slots, share, inside)), weight, loss), count > 0

    return before(then, deal, "bucketing", tuple(map(behind, then.needs)), skips_absent=True)


def _marks(uploads: PyTree) -> Array:
    """A number for each upload that depends on all of its bits, uint32 ``(m,)``."""

    def mark(leaf: Array) -> Array:
        bits = lax.bitcast_convert_type(flattened(leaf), jnp.uint32)
        odd = 2 * jnp.arange(bits.shape[1], dtype=jnp.uint32) + 1
        return jnp.sum(bits * odd[None], axis=1, dtype=jnp.uint32)

    marks = [mark(leaf) for leaf in jax.tree.leaves(uploads)]
    return sum(((2 * i + 1) * of_leaf for i, of_leaf in enumerate(marks)), jnp.zeros_like(marks[0]))
