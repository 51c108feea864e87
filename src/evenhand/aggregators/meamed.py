"""The mean around the median of each coordinate."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand.aggregators._order import median, nearest, over_coordinates
from evenhand.errors import whole_number
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = ["around_median", "meamed"]


def meamed(malicious: int, *, weighted: bool = False) -> Stack:
    r"""The mean of each coordinate over the values nearest to its median.

    .. math:: [\Delta]_j = \frac{1}{m - f} \sum_{k \in S_j} [\Delta_k]_j, \qquad
        S_j \text{ the } m - f \text{ uploads nearest to } \operatorname{median}_k \, [\Delta_k]_j

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.
      weighted: whether the mean has the reported weights; the median never has.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: withstands :math:`f < m / 2`.  Without ``weighted`` each client counts alike, whatever it reports: one
    with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible weight has
    that weight's share wherever it is near the median: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: ``malicious=0`` is the mean; equally near values share the last place; at least one value remains.
    :math:`m` counts the accepted uploads; without any, zeros.

    Cost: exact, in 64 comparisons of each number, and all uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> eh.aggregators.aggregate(meamed(1), jnp.array([[1.0], [2.0], [4.0], [90.0]])).tolist()
      [2.3333332538604736]

    Source: Xie, Koyejo and Gupta, *Generalized Byzantine-Tolerant SGD*, 2018, definition 7.
    """
    whole_number("meamed(malicious=)", malicious, 0)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        one = present.astype(jnp.float32)
        count = jnp.maximum(jnp.sum(one) - malicious, 1.0)
        return around_median(uploads.delta, one, one * uploads.weight if weighted else one, count), state

    return Stack(
        lambda like, clients: (),
        apply,
        needs=(Need.over(f"meamed({malicious})", malicious, lambda m: m > 2 * malicious),),
    )


@jax.jit
def around_median(deltas: PyTree, present: Array, weights: Array, count: Array) -> PyTree:
    """The weighted mean of each coordinate over the ``count`` values nearest to the median of the present ones."""

    def of_columns(values: Array, present: Array, weights: Array, count: Array) -> Array:
        return nearest(values, present, weights, median(values, present), count)

    return over_coordinates(of_columns, deltas, present, weights, count)
