"""Minimum-diameter averaging."""

from __future__ import annotations

from itertools import combinations
from math import comb

import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.aggregators.stacked import distances, mean_of, robust
from evenhand.errors import EvenhandError, truth_value
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["mda"]

_MOST_SETS = 200_000
"""Sets of clients to leave out that are tried."""


def mda(malicious: int, *, weighted: bool = False) -> Stack:
    r"""MDA (minimum-diameter averaging): the mean of the m - f uploads with the smallest diameter, f ``malicious``.

    .. math::
        S^* = \arg\min_{|S| = m - f} \ \max_{i, j \in S} \|\Delta_i - \Delta_j\|, \qquad
        \Delta = \frac{1}{m - f} \sum_{k \in S^*} \Delta_k

    The minimum is exact: every set is tried, so that this is for small cohorts.

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.
      weighted: whether the mean has the reported weights.

    Raises:
      EvenhandError: ``malicious`` below 0, or, when a run begins, a cohort with more than 200,000 sets.

    Robustness: withstands :math:`f < m / 2`.  Without ``weighted`` each client counts alike, whatever it reports: one
    with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible weight has
    that weight's share, once it is kept: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: sets with equal diameters are common; of those, the one with the least sum of squared distances.  With
    at most ``malicious`` accepted uploads, zeros.  :math:`m` counts the accepted uploads.

    Cost: the distances, :math:`m^2 d`, and :math:`m^2` for each of the :math:`\binom{m}{f}` sets.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> eh.aggregators.aggregate(mda(1), jnp.array([[0.0], [1.0], [2.0], [9.0]])).tolist()
      [1.0]

    Source: El Mhamdi, Guerraoui, Guirguis, Hoang and Rouault, *Genuinely Distributed Byzantine Machine Learning*,
    PODC 2020, section 3; Rousseeuw, *Multivariate Estimation with High Breakdown Point*, 1985.
    """
    weighted = truth_value("weighted", weighted)

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        squares = distances(uploads.delta, present, key)
        left_out = jnp.asarray(_sets(present.shape[0], malicious))

        def spread(without: Array) -> tuple[Array, Array]:
            kept = present.at[without].set(False)
            inside = jnp.where(kept[:, None] & kept[None, :], squares, 0.0)
            return jnp.max(inside), jnp.sum(inside)

        diameters, sums = lax.map(spread, left_out, batch_size=min(len(left_out), 64))
        best = jnp.argmin(jnp.where(diameters == jnp.min(diameters), sums, jnp.inf))
        kept = present.at[left_out[best]].set(False) & (jnp.sum(present) > malicious)
        return mean_of(uploads, kept, weighted)

    return robust("mda", malicious, lambda m: m > 2 * malicious, reduced)


def _sets(m: int, malicious: int) -> np.ndarray:
    """Whom to leave out of ``m`` slots, ``(sets, malicious)``."""
    if malicious >= m:
        return np.arange(m)[None]
    if comb(m, malicious) > _MOST_SETS:
        raise EvenhandError(
            f"mda(malicious={malicious}): a cohort of {m} has {comb(m, malicious):,} sets to try, more than "
            f"{_MOST_SETS:,}: give a smaller cohort, or take multi_krum(malicious={malicious})."
        )
    return np.array(list(combinations(range(m), malicious)), np.int32)
