"""The laws of an :class:`evenhand.types.Attack`, each as a check."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand._platform import check_process
from evenhand.types import Attack, PyTree, Report, Upload

__all__ = ["check_attack"]


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
