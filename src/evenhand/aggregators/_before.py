"""Aggregators that change the uploads before another aggregator reduces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax

from evenhand.aggregators._reduce import reduce_uploads
from evenhand.errors import EvenhandError
from evenhand.types import Aggregator, Array, Key, Need, PyTree, Stack, Sum, Upload

__all__ = ["Change", "before", "each"]

Change: TypeAlias = Callable[[Upload, Array, Key], tuple[Upload, Array]]
"""``(uploads, present, key) -> (uploads, present)``, with the same or another number of slots."""


def before(then: Aggregator, change: Change, name: str, needs: tuple[Need, ...] | None = None) -> Stack:
    """``then`` on what ``change`` makes of the uploads.

    Args:
      then: reduces the changed uploads.
      change: what comes before.
      name: that of the factory, for errors.
      needs: how many uploads the two of them need; None: as many as ``then``.

    Raises:
      EvenhandError: ``then`` weighs clients by their reports, which it would have to do before it sees an upload.
    """
    if isinstance(then, Sum) and then.weigh is not None:
        raise EvenhandError(
            f"{name}(then=): this aggregator weighs clients by their reports before they train, and cannot come after "
            "one that changes their uploads: give mean(), geometric_median() or another that takes uploads as they are."
        )

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        first, second, noise = jax.random.split(key, 3)
        changed, present = change(uploads, present, first)
        return reduce_uploads(
            then, changed, present, state, second, jax.random.split(noise, present.shape[0])
        )

    return Stack(then.init, apply, then.needs_loss, then.needs if needs is None else needs)


def each(then: Aggregator, change: Callable[[Upload], Upload], name: str) -> Aggregator:
    """``then`` on what ``change`` makes of each upload by itself: a sum stays a sum, and clients do it."""
    if not isinstance(then, Sum):
        return before(then, lambda uploads, present, key: (jax.vmap(change)(uploads), present), name)

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        return then.lift(change(upload), public, key)

    return then._replace(lift=lift, sensitivity=None)
