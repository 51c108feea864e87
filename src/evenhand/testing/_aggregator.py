"""The laws of an :data:`evenhand.types.Aggregator`, each as a check."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import rounds, tree
from evenhand._platform import check_process
from evenhand.aggregators import aggregate, reduce_uploads
from evenhand.types import Aggregator, Cohort, PyTree, Report, Sum, Upload

__all__ = ["check_aggregator", "check_slots"]


def check_aggregator(
    aggregator: Aggregator, *, uploads: int = 7, keeps_consensus: bool = True, tolerance: float = 1e-5
) -> None:
    """Checks that an aggregator obeys the laws every aggregator must obey.

    * The direction has the structure, shapes and dtypes of a delta.
    * It does not depend on the order of the uploads.
    * Empty slots have no vote: the direction with some slots filled is that of these uploads alone.
    * Uploads that all agree are returned as they are (unless ``keeps_consensus=False``).
    * The same seed gives the same bits; arguments are not modified.
    * For a sum: no uploads give zeros, unless noise is added; a declared sensitivity bounds ``||lift||`` for
      uploads of any size.

    Args:
      aggregator: what is checked.
      uploads: the number of uploads to generate.
      keeps_consensus: whether equal uploads must be returned as they are; False for one that adds noise, clips or
        shortens.
      tolerance: relative difference allowed between two orders of summation.

    Raises:
      AssertionError: a law does not hold; the message says which.

    Example:
      >>> import evenhand as eh
      >>> check_aggregator(eh.aggregators.mean())
    """
    check_process()
    rng = np.random.default_rng(0)
    deltas = {
        "w": rng.normal(size=(uploads, 3, 2)).astype(np.float32),
        "b": (rng.normal(size=uploads).astype(np.float32),),
    }
    weights = rng.integers(1, 20, uploads).astype(np.float32)
    losses = rng.uniform(0.1, 3.0, uploads).astype(np.float32)
    copies = jax.tree.map(np.copy, (deltas, weights, losses))

    def direction(order: Any = slice(None), of: PyTree = deltas) -> PyTree:
        chosen = jax.tree.map(lambda leaf: leaf[order], of)
        return jax.tree.map(
            np.array, aggregate(aggregator, chosen, jnp.asarray(weights[order]), jnp.asarray(losses[order]))
        )

    one = direction()
    first = jax.tree.map(lambda leaf: leaf[0], deltas)
    forms = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(t)] for t in (one, first)]
    assert forms[0] == forms[1] and jax.tree.structure(one) == jax.tree.structure(first), (
        "The direction does not look like a delta."
    )
    assert _gap(one, direction()) == 0, "The same uploads gave different bits."
    order = rng.permutation(uploads)
    assert _gap(one, direction(order)) <= tolerance, "The direction depends on the order of the uploads."
    state = aggregator.init(jax.tree.map(jnp.zeros_like, first), uploads)
    given = Upload(jax.tree.map(jnp.asarray, deltas), jnp.asarray(weights), jnp.asarray(losses))
    check_slots(aggregator, given, np.arange(uploads), state, tolerance)
    if keeps_consensus:
        same = jax.tree.map(lambda leaf: np.repeat(leaf[:1], uploads, axis=0), deltas)
        assert _gap(direction(of=same), first) <= tolerance, (
            "Uploads that all agree are not returned as they are."
        )
    if isinstance(aggregator, Sum):
        _check_sum(aggregator, deltas, weights, losses)
    assert _gap(copies, (deltas, weights, losses)) == 0, "The aggregator wrote to its arguments."


def check_slots(aggregator: Aggregator, uploads: Upload, ids: Any, state: PyTree, tolerance: float) -> None:
    """Checks that the direction with two of three slots filled is that of the uploads in them alone."""
    key, noise = jax.random.key(5), jax.random.split(jax.random.key(6), len(ids))
    ids, filled = jnp.asarray(ids, jnp.int32), np.arange(len(ids)) % 3 != 1

    def direction(slots: Any, present: Any) -> PyTree:
        taken, cohort = jax.tree.map(lambda leaf: leaf[slots], uploads), Cohort.of(ids[slots], present)
        reports = tree.among(present, Report(taken.weight, taken.loss))
        weights, after, _ = rounds.weighed(aggregator, reports, cohort, state)
        taken = tree.among(present, Upload(taken.delta, weights, reports.loss))
        return reduce_uploads(aggregator, taken, present, after, key, noise[slots])[0]

    some = direction(np.arange(len(ids)), jnp.asarray(filled))
    alone = direction(np.flatnonzero(filled), jnp.ones(int(filled.sum()), bool))
    assert _gap(some, alone) <= tolerance, (
        "An empty slot counts: the direction with some slots filled is not that of the uploads in them."
    )


def _check_sum(aggregator: Sum, deltas: PyTree, weights: Any, losses: Any) -> None:
    uploads = jax.tree.map(jnp.asarray, Upload(deltas, weights, losses))
    state = aggregator.init(jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), uploads.delta), len(weights))
    key, public = jax.random.key(0), aggregator.publish(state)
    lift = jax.vmap(aggregator.lift, in_axes=(0, None, None))
    lifted = lift(uploads, public, key)

    nothing, after = aggregator.lower(jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), lifted), state, key)
    assert aggregator.sensitivity is not None or _gap(nothing, tree.zeros_like(nothing)) == 0, (
        "The sum of no uploads does not give zeros."
    )
    assert jax.tree.structure(after) == jax.tree.structure(state), "Lowering changed the state's structure."
    if aggregator.sensitivity is not None:
        for size in (1e-3, 1.0, 1e4):
            scaled = uploads._replace(delta=tree.scale(size, uploads.delta))
            norms = jax.vmap(tree.norm)(lift(scaled, public, key))
            assert float(jnp.max(norms)) <= aggregator.sensitivity * (1 + 1e-5), (
                "An upload's contribution exceeds the declared sensitivity."
            )


def _gap(a: PyTree, b: PyTree) -> float:
    """The largest difference between two trees, relative to the larger of 1 and their entries."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    gaps = [
        np.max(np.abs(np.array(x) - np.array(y)) / max(1.0, np.max(np.abs(x))), initial=0.0) for x, y in pairs
    ]
    return float(max(gaps, default=0.0))
