"""The laws of an :data:`evenhand.types.Aggregator` and of an :class:`evenhand.types.Attack`, each as a check."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import rounds, tree
from evenhand.aggregators import aggregate, reduce_uploads
from evenhand.testing._check import Check, are_equal, check_all, form
from evenhand.types import Aggregator, Attack, Cohort, PyTree, Report, Sum, Upload

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
    check_all(
        aggregator_checks(aggregator, uploads=uploads, keeps_consensus=keeps_consensus, tolerance=tolerance)
    )


def aggregator_checks(
    aggregator: Aggregator, *, uploads: int = 7, keeps_consensus: bool = True, tolerance: float = 1e-5
) -> tuple[Check, ...]:
    """The laws of :func:`check_aggregator`, each as a check of its own, for a test runner to show one by one.

    Arguments are those of :func:`check_aggregator`; nothing is computed before the first check is called.

    Returns:
      Checks with a ``name``, in the order in which :func:`check_aggregator` calls them.

    Example:
      >>> import evenhand as eh
      >>> [check.name for check in aggregator_checks(eh.aggregators.krum(1))][:2]
      ['the direction has the form of an upload', 'the same uploads give the same bits']
    """
    rule = _Rule(aggregator, uploads, tolerance)
    consensus = (Check("uploads that agree are returned", rule.check_consensus),) if keeps_consensus else ()
    sums: tuple[Check, ...] = ()
    if isinstance(aggregator, Sum):
        sums = (Check("nothing comes of no uploads", rule.check_nothing),)
        if aggregator.sensitivity is not None:
            sums += (Check("the sensitivity bounds uploads", rule.check_sensitivity),)
    return (
        Check("the direction has the form of an upload", rule.check_form),
        Check("the same uploads give the same bits", rule.check_same_bits),
        Check("the order does not matter", rule.check_order),
        Check("empty slots have no vote", rule.check_slots),
        *consensus,
        *sums,
        Check("arguments are not modified", rule.check_arguments),
    )


class _Rule:
    """An aggregator under test: its laws, and the uploads that they share."""

    def __init__(self, aggregator: Aggregator, count: int, tolerance: float) -> None:
        self.aggregator, self.tolerance = aggregator, tolerance
        rng = np.random.default_rng(0)
        deltas = {
            "w": rng.normal(size=(count, 3, 2)).astype(np.float32),
            "b": (rng.normal(size=count).astype(np.float32),),
        }
        weights: Any = rng.integers(1, 20, count).astype(np.float32)
        losses: Any = rng.uniform(0.1, 3.0, count).astype(np.float32)
        self.uploads = Upload(deltas, weights, losses)
        self.copies = jax.tree.map(np.copy, self.uploads)
        self.order = rng.permutation(count)
        self.upload = jax.tree.map(lambda leaf: leaf[0], deltas)

    def direction(self, uploads: Upload) -> PyTree:
        delta, weights, losses = uploads
        return jax.tree.map(
            np.array, aggregate(self.aggregator, delta, jnp.asarray(weights), jnp.asarray(losses))
        )

    @cached_property
    def once(self) -> PyTree:
        return self.direction(self.uploads)

    @cached_property
    def given(self) -> Upload:
        return jax.tree.map(jnp.asarray, self.uploads)

    def state(self) -> PyTree:
        like = jax.tree.map(jnp.zeros_like, self.upload)
        return self.aggregator.init(like, len(self.order))

    def check_form(self) -> None:
        forms = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(t)] for t in (self.once, self.upload)]
        assert forms[0] == forms[1] and jax.tree.structure(self.once) == jax.tree.structure(self.upload), (
            "The direction does not look like a delta."
        )

    def check_same_bits(self) -> None:
        assert _gap(self.once, self.direction(self.uploads)) == 0, "The same uploads gave different bits."

    def check_order(self) -> None:
        turned = self.direction(jax.tree.map(lambda leaf: leaf[self.order], self.uploads))
        assert _gap(self.once, turned) <= self.tolerance, "The direction depends on the order of the uploads."

    def check_slots(self) -> None:
        check_slots(self.aggregator, self.given, np.arange(len(self.order)), self.state(), self.tolerance)

    def check_consensus(self) -> None:
        same = jax.tree.map(lambda leaf: np.repeat(leaf[:1], len(self.order), axis=0), self.uploads.delta)
        assert _gap(self.direction(self.uploads._replace(delta=same)), self.upload) <= self.tolerance, (
            "Uploads that all agree are not returned as they are."
        )

    def lifted(self, uploads: Upload) -> PyTree:
        assert isinstance(self.aggregator, Sum)
        lift = jax.vmap(self.aggregator.lift, in_axes=(0, None, None))
        return lift(uploads, self.aggregator.publish(self.state()), jax.random.key(0))

    def check_nothing(self) -> None:
        assert isinstance(self.aggregator, Sum)
        state, lifted = self.state(), self.lifted(self.given)
        total = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), lifted)
        nothing, after = self.aggregator.lower(total, state, jax.random.key(0))
        assert self.aggregator.sensitivity is not None or _gap(nothing, tree.zeros_like(nothing)) == 0, (
            "The sum of no uploads does not give zeros."
        )
        assert jax.tree.structure(after) == jax.tree.structure(state), (
            "Lowering changed the state's structure."
        )

    def check_sensitivity(self) -> None:
        bound = self.aggregator.sensitivity if isinstance(self.aggregator, Sum) else None
        assert bound is not None
        for size in (1e-3, 1.0, 1e4):
            scaled = self.given._replace(delta=tree.scale(size, self.given.delta))
            norms = jax.vmap(tree.norm)(self.lifted(scaled))
            assert float(jnp.max(norms)) <= bound * (1 + 1e-5), (
                "An upload's contribution exceeds the declared sensitivity."
            )

    def check_arguments(self) -> None:
        assert self.once is not None, "what would have written to them"
        assert _gap(self.copies, self.uploads) == 0, "The aggregator wrote to its arguments."


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
    check_all(attack_checks(attack, classes=classes, is_random=is_random))


def attack_checks(attack: Attack, *, classes: int = 2, is_random: bool = False) -> tuple[Check, ...]:
    """The laws of :func:`check_attack` that concern what the attack does, each as a check of its own.

    Arguments are those of :func:`check_attack`; nothing is computed before the first check is called.

    Returns:
      Checks with a ``name``, in the order in which :func:`check_attack` calls them; none for an attack on the sum
      alone.

    Example:
      >>> import evenhand as eh
      >>> [check.name for check in attack_checks(eh.attacks.sign_flip(0.2))]
      ['false uploads have the form of true ones', 'uploads follow their keys']
    """
    made = _Made(attack, classes, is_random)
    checks = {
        "rows": (
            Check("poisoned examples have the form of clean ones", made.check_rows_form),
            Check("examples follow their stream and are copied", made.check_rows),
        ),
        "fresh": (
            Check("fresh examples have the form of clean ones", made.check_fresh_form),
            Check("fresh examples are the client's own", made.check_fresh),
        ),
        "upload": (
            Check("false uploads have the form of true ones", made.check_upload_form),
            Check("uploads follow their keys", made.check_upload),
        ),
        "report": (Check("false reports have the form of true ones", made.check_report),),
        "collude": (
            Check("agreed uploads have the form of true ones", made.check_coalition_form),
            Check("coalitions ignore empty slots and the order of others", made.check_coalition),
        ),
    }
    given = attack._asdict()
    return tuple(check for field in checks if given[field] is not None for check in checks[field])


class _Made:
    """An attack under test: its laws, and what it is given."""

    def __init__(self, attack: Attack, classes: int, is_random: bool) -> None:
        self.attack, self.is_random = attack, is_random
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(9, 4)).astype(np.float32)
        self.y = rng.integers(0, classes, 9).astype(np.int32)
        self.w = rng.normal(size=(7, 3, 2)).astype(np.float32)

    @cached_property
    def deltas(self) -> PyTree:
        return {"w": jnp.asarray(self.w), "b": jnp.arange(7.0)}

    @cached_property
    def keys(self) -> Any:
        return jax.random.split(jax.random.key(0), 2)

    def rows(self) -> Any:
        assert self.attack.rows is not None
        return self.attack.rows(self.x, self.y, np.random.default_rng(1))

    def check_rows_form(self) -> None:
        clean = [(part.shape, part.dtype) for part in (self.x, self.y)]
        assert [(np.shape(part), np.asarray(part).dtype) for part in self.rows()] == clean, (
            "Poisoned examples do not look like clean ones."
        )

    def check_rows(self) -> None:
        before = self.x.copy(), self.y.copy()
        assert are_equal(self.rows(), self.rows()), "The same stream gave other poisoned examples."
        assert are_equal((self.x, self.y), before), "The attack wrote to the examples."

    def fresh(self) -> tuple[Any, Any]:
        assert self.attack.fresh is not None
        clean = (jnp.asarray(self.x), jnp.asarray(self.y))
        return self.attack.fresh(*clean, jnp.int32(6), self.keys[0]), clean

    def check_fresh_form(self) -> None:
        drawn, clean = self.fresh()
        assert form(drawn) == form(clean), "Fresh examples do not look like clean ones."

    def check_fresh(self) -> None:
        drawn, clean = self.fresh()
        assert are_equal(drawn, self.fresh()[0]), "The same key gave other examples."
        assert are_equal([part[6:] for part in drawn], [part[6:] for part in clean]), (
            "The attack changed examples beyond those of the client."
        )

    def upload(self, which: int) -> tuple[PyTree, PyTree]:
        assert self.attack.upload is not None
        true = jax.tree.map(lambda leaf: leaf[0], self.deltas)
        return self.attack.upload(true, self.keys[which]), true

    def check_upload_form(self) -> None:
        sent, true = self.upload(0)
        assert form(sent) == form(true), "A false upload does not look like a true one."

    def check_upload(self) -> None:
        sent = self.upload(0)[0]
        assert are_equal(sent, self.upload(0)[0]), "The same key gave another upload."
        differs = not are_equal(sent, self.upload(1)[0])
        assert differs == self.is_random, (
            "Another key must give another upload exactly if the attack draws at random."
        )

    def check_report(self) -> None:
        assert self.attack.report is not None
        report = Report(jnp.float32(3.0), jnp.float32(0.5))
        assert form(self.attack.report(report, self.keys[0])) == form(report), (
            "A false report does not look like a true one."
        )

    def agreed(self, deltas: PyTree, order: Any = slice(None)) -> PyTree:
        """What a coalition of two sends, where the last slot is empty."""
        assert self.attack.collude is not None
        malicious, present = jnp.array([0, 0, 1, 0, 1, 0, 0], bool), jnp.array([1, 1, 1, 1, 1, 1, 0], bool)
        uploads = jax.tree.map(lambda leaf: leaf[order], Upload(deltas, jnp.arange(1.0, 8.0), jnp.ones(7)))
        return self.attack.collude(uploads, malicious, present, self.keys[0])

    def check_coalition_form(self) -> None:
        assert form(self.agreed(self.deltas)) == form(self.deltas), (
            "The coalition's uploads do not look like those of its cohort."
        )

    def check_coalition(self) -> None:
        agreed = self.agreed(self.deltas)
        other = jax.tree.map(lambda leaf: leaf.at[6].set(0.0), self.deltas)
        for changed in (self.agreed(other), self.agreed(self.deltas, jnp.array([3, 1, 2, 0, 4, 5, 6]))):
            for a, b in zip(jax.tree.leaves(agreed), jax.tree.leaves(changed), strict=True):
                np.testing.assert_allclose(
                    np.asarray(a, np.float32)[[2, 4]],
                    np.asarray(b, np.float32)[[2, 4]],
                    rtol=1e-2,
                    atol=1e-3,
                    err_msg="The coalition depends on empty slots or on the order of the honest clients.",
                )
