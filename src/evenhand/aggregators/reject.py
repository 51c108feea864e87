"""Rejection of a direction that is too long."""

from __future__ import annotations

import math

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.types import Aggregator, Array, Key, PyTree, Sum, Upload

__all__ = ["reject"]


def reject(longest: float, then: Aggregator) -> Aggregator:
    r"""The direction of another aggregator, or zeros where that is too long.

    .. math:: \Delta = \Delta' \ \text{ if } \|\Delta'\| < L, \ \text{ else } 0

    Args:
      longest: :math:`L`; RFA's authors use 1000, and 100,000 on Sent140.
      then: reduces the uploads.

    Raises:
      EvenhandError: ``longest`` not above 0.

    Robustness: a last resort that keeps a model finite: whoever can make the direction too long can also stop the
    training.

    Edge cases: the server still steps, along zeros: an optimiser with momentum goes on in its old direction.

    Differs from the paper: the authors' code also ends the run after 20 rejections in a row.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = reject(1000.0, then=eh.aggregators.mean())
      >>> [float(eh.aggregators.aggregate(rule, jnp.array([1.0, last]))) for last in (3.0, 3000.0)]
      [2.0, 0.0]

    Source: the code of Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, IEEE Transactions
    on Signal Processing 2022.
    """
    if not 0.0 < longest < math.inf:
        raise EvenhandError(f"reject(longest={longest}): give a length above 0.")

    def checked(direction: PyTree) -> PyTree:
        return tree.select(tree.norm(direction) < longest, direction, tree.zeros_like(direction))

    if isinstance(then, Sum):

        def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
            direction, state = then.lower(total, state, key)
            return checked(direction), state

        return then._replace(lower=lower)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        direction, state = then.apply(uploads, present, state, key)
        return checked(direction), state

    return then._replace(apply=apply)
