"""The laws of an :data:`evenhand.types.Aggregator` and of an :class:`evenhand.types.Attack`, each as a check."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import rounds, tree
from evenhand._platform import check_process
from evenhand.aggregators import aggregate, reduce_uploads
from evenhand.types import Aggregator, Attack, Cohort, PyTree, Report, Sum, Upload

__all__ = ["check_aggregator", "check_attack", "check_slots"]


# --- aggregators ----------------------------------------------------------------------------------------------


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


# --- attacks --------------------------------------------------------------------------------------------------


def check_attack(attack: Attack, *, classes: int = 2, is_random: bool = False) -> None:
    """Checks that an attack obeys the laws every attack must obey.

    * Poisoned examples, false uploads and agreed uploads have the structure, shapes and dtypes of the true ones.
    * The same key gives the same bits; another key gives others, if the attack draws at random.
    * Fresh examples change none but the client's own.
    * A coalition's uploads do not depend on what empty slots hold, nor on the honest clients' order.
    * Arguments are not modified.

    Args:
      attack: what is checked.
      classes: labels are from 0 to ``classes - 1``.
      is_random: whether its uploads are drawn at random.

    Raises:
      AssertionError: a law does not hold; the message says which.

    Example:
      >>> import evenhand as eh
      >>> check_attack(eh.attacks.sign_flip(0.2))
    """
    check_process()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 4)).astype(np.float32), rng.integers(0, classes, 9).astype(np.int32)
    if attack.rows is not None:
        before = x.copy(), y.copy()
        found = attack.rows(x, y, np.random.default_rng(1))
        again = attack.rows(x, y, np.random.default_rng(1))
        assert [(np.shape(a), np.asarray(a).dtype) for a in found] == [(a.shape, a.dtype) for a in (x, y)], (
            "Poisoned examples do not look like clean ones."
        )
        assert _are_equal(found, again), "The same stream gave other poisoned examples."
        assert _are_equal((x, y), before), "The attack wrote to the examples."
    if attack.fresh is not None:
        _check_fresh(attack, x, y)
    deltas = {"w": jnp.asarray(rng.normal(size=(7, 3, 2)), jnp.float32), "b": jnp.arange(7.0)}
    one, keys = jax.tree.map(lambda leaf: leaf[0], deltas), jax.random.split(jax.random.key(0), 2)
    if attack.upload is not None:
        sent = attack.upload(one, keys[0])
        assert _form(sent) == _form(one), "A false upload does not look like a true one."
        assert _are_equal(sent, attack.upload(one, keys[0])), "The same key gave another upload."
        differs = not _are_equal(sent, attack.upload(one, keys[1]))
        assert differs == is_random, (
            "Another key must give another upload exactly if the attack draws at random."
        )
    if attack.report is not None:
        report = Report(jnp.float32(3.0), jnp.float32(0.5))
        assert _form(attack.report(report, keys[0])) == _form(report), (
            "A false report does not look like a true one."
        )
    if attack.collude is not None:
        _check_coalition(attack, deltas, keys[0])


def _check_fresh(attack: Attack, x: Any, y: Any) -> None:
    assert attack.fresh is not None
    clean, keys = (jnp.asarray(x), jnp.asarray(y)), jax.random.split(jax.random.key(0), 2)
    found = attack.fresh(*clean, jnp.int32(6), keys[0])
    assert _form(found) == _form(clean), "Fresh examples do not look like clean ones."
    assert _are_equal(found, attack.fresh(*clean, jnp.int32(6), keys[0])), "The same key gave other examples."
    assert _are_equal([part[6:] for part in found], [part[6:] for part in clean]), (
        "The attack changed examples beyond those of the client."
    )


def _check_coalition(attack: Attack, deltas: PyTree, key: Any) -> None:
    assert attack.collude is not None
    malicious, present = jnp.array([0, 0, 1, 0, 1, 0, 0], bool), jnp.array([1, 1, 1, 1, 1, 1, 0], bool)
    uploads = Upload(deltas, jnp.arange(1.0, 8.0), jnp.ones(7))
    agreed = attack.collude(uploads, malicious, present, key)
    assert _form(agreed) == _form(deltas), "The coalition's uploads do not look like those of its cohort."
    other = jax.tree.map(lambda leaf: leaf.at[6].set(0.0), deltas)
    for changed in (
        attack.collude(uploads._replace(delta=other), malicious, present, key),
        attack.collude(
            jax.tree.map(lambda leaf: leaf[jnp.array([3, 1, 2, 0, 4, 5, 6])], uploads),
            malicious,
            present,
            key,
        ),
    ):
        for a, b in zip(jax.tree.leaves(agreed), jax.tree.leaves(changed), strict=True):
            np.testing.assert_allclose(
                np.asarray(a, np.float32)[[2, 4]],
                np.asarray(b, np.float32)[[2, 4]],
                rtol=1e-2,
                atol=1e-3,
                err_msg="The coalition depends on empty slots or on the order of the honest clients.",
            )


def _form(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def _are_equal(a: PyTree, b: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True) for x, y in pairs)
