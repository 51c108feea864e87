"""A bound on the weights that clients report, before another aggregator."""

from __future__ import annotations

import math

import jax.numpy as jnp

from evenhand.aggregators._reduce import before, check_then
from evenhand.errors import EvenhandError, real_number
from evenhand.types import Aggregator, Array, Cohort, Key, PyTree, Report, Sum, Upload

__all__ = ["bounded_weights"]


def bounded_weights(ratio: float, then: Aggregator) -> Aggregator:
    r"""Caps reported weights at a multiple of the cohort's median weight, before another aggregator.

    .. math:: \omega_k \leftarrow \min(\omega_k, r \operatorname{median}_j \omega_j)

    A client that lies about its number of examples then has at most :math:`r` times a typical client's influence, and
    an honest client that has many examples has no more than that either.

    Args:
      ratio: :math:`r`, at least 1.
      then: reduces the uploads; one that uses the reported weights, else this changes nothing.

    Raises:
      EvenhandError: ``ratio`` below 1, or a ``then`` that hides the weights from the server.

    Robustness: the median withstands less than half of the cohort.  Without this, an upload's weight is bounded only
    by the largest client's, which the server knows.

    Edge cases: the median is the lower of the middle two; empty slots do not count.

    Cost: sums stay sums; the server sees the weights in the clear.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = bounded_weights(1.0, then=eh.aggregators.mean())
      >>> deltas, weights = jnp.array([[1.0], [2.0], [9.0]]), jnp.array([1.0, 1.0, 1000.0])
      >>> eh.aggregators.aggregate(rule, deltas, weights=weights).tolist()
      [4.0]

    Source: none; a bound in the manner of winsorising (Tukey, 1962).
    """
    if not 1.0 <= real_number(ratio) < math.inf:
        raise EvenhandError(
            f"bounded_weights(ratio={ratio!r:.40}): give a multiple of the median, at least 1."
        )

    check_then("bounded_weights", then)
    if isinstance(then, Sum) and then.summation is not None:
        raise EvenhandError(
            "bounded_weights(then=secure(...)): the server would see the weights that the secure sum hides: give "
            "secure(...) alone."
        )

    def bounded(weights: Array, present: Array) -> Array:
        count = jnp.sum(present)
        ascending = jnp.sort(jnp.where(present, weights, jnp.inf))
        return jnp.minimum(weights, ratio * ascending[jnp.maximum(count - 1, 0) // 2])

    if not isinstance(then, Sum):

        def change(uploads: Upload, present: Array, key: Key) -> tuple[Upload, Array]:
            return uploads._replace(weight=bounded(uploads.weight, present)), present

        return before(then, change, "bounded_weights")

    def weigh(reports: Report, cohort: Cohort, state: PyTree) -> tuple[Array, PyTree]:
        reports = reports._replace(weight=bounded(reports.weight, cohort.present))
        return (reports.weight, state) if then.weigh is None else then.weigh(reports, cohort, state)

    return then._replace(weigh=weigh)
