"""Krum, multi-Krum and Bulyan: the uploads that have the closest neighbours."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.aggregators.coordinatewise import around_median
from evenhand.aggregators.stacked import distances, mean_of, robust
from evenhand.errors import truth_value, whole_number
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["bulyan", "krum", "multi_krum"]


def krum(malicious: int) -> Stack:
    r"""Krum: selects the upload closest to its nearest neighbours.

    .. math::
        s_i = \sum_{j \in \mathcal N_i} \|\Delta_i - \Delta_j\|^2, \qquad \Delta = \Delta_{\arg\min_i s_i}

    where :math:`\mathcal N_i` are the :math:`m - f - 2` uploads nearest to :math:`\Delta_i`, without itself.

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: withstands :math:`f < (m - 2) / 2`.  Reported weights are ignored, so that none can be gained by lying;
    the price is that a client with 0.6 % of the examples may set the whole direction, as may one with 30 %.

    Edge cases: of uploads with equal scores, such as all with :math:`m \le f + 2`, the one with the least sum of
    distances to all others; without any upload, zeros.  :math:`m` counts the accepted uploads.

    Cost: one product of the stacked uploads with themselves, :math:`m^2 d`, and all uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
      >>> eh.aggregators.aggregate(krum(1), deltas).tolist()
      [0.0, 0.0]

    Source: Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, NeurIPS 2017,
    section 4.
    """

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        apart = distances(uploads.delta, present, key, _neighbours(present, malicious))
        rank = _ranks(apart, present, malicious)
        chosen = tree.take(uploads.delta, jnp.argmin(rank))
        # Without any upload, the first slot is chosen, which may hold anything.
        return tree.select(jnp.any(present), chosen, tree.zeros_like(chosen))

    return robust("krum", malicious, lambda m: m > 2 * malicious + 2, reduced, skips_absent=True)


def multi_krum(malicious: int, *, keep: int | None = None, weighted: bool = False) -> Stack:
    r"""Multi-Krum: averages the uploads with the lowest scores of :func:`krum`.

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.
      keep: how many uploads are averaged; None: all but ``malicious``.
      weighted: whether their mean has the reported weights.

    Raises:
      EvenhandError: ``malicious`` below 0, or ``keep`` below 1.

    Robustness: as :func:`krum`, where none of the kept uploads is malicious; one that is moves the mean by no more
    than about its distance to the honest ones.  Without ``weighted`` each client counts alike, whatever it reports: one
    with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible weight has
    that weight's share, once it is kept: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: as :func:`krum`; ``keep`` beyond the accepted uploads keeps all of them.

    Cost: as :func:`krum`.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
      >>> eh.aggregators.aggregate(multi_krum(1), deltas).tolist()
      [0.75, 1.0]

    Source: Blanchard et al., *Machine Learning with Adversaries*, NeurIPS 2017, section 6.
    """
    weighted = truth_value("weighted", weighted)
    if keep is not None:
        keep = whole_number("multi_krum(keep=)", keep, 1)

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        apart = distances(uploads.delta, present, key, _neighbours(present, malicious))
        rank = _ranks(apart, present, malicious)
        best = jnp.sum(present) - malicious if keep is None else keep
        return mean_of(uploads, present & (rank < jnp.maximum(best, 1)), weighted, present)

    return robust("multi_krum", malicious, lambda m: m > 2 * malicious + 2, reduced, skips_absent=True)


def bulyan(malicious: int) -> Stack:
    r"""Bulyan: selects uploads one by one with Krum, and averages each coordinate around its median.

    .. math::
        S \leftarrow S \cup \{\arg\min_{i \notin S} s_i\} \text{ until } |S| = \theta = m - 2f, \qquad
        [\Delta]_j = \frac1\beta \sum_{k \in S_j} [\Delta_k]_j, \quad \beta = \theta - 2f

    with :math:`s_i` the scores of :func:`krum` among the uploads that are left, and :math:`S_j` the :math:`\beta`
    chosen uploads nearest to their median in coordinate :math:`j`.

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: withstands :math:`f \le (m - 3) / 4`, in every coordinate.  Reported weights are ignored, so that none
    can be gained by lying; the price is that a client with 0.6 % of the examples counts as much as one with 30 %.

    Edge cases: ``malicious=0`` is the mean; with fewer than :math:`4 f + 3` accepted uploads, at least one is chosen
    and one value averaged; without any, zeros.

    Cost: the distances, :math:`m^2 d`, a sort of them in each of :math:`\theta` choices, and 64 comparisons of each
    number.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]])
      >>> eh.aggregators.aggregate(bulyan(1), deltas).tolist()
      [3.0]

    Source: El Mhamdi, Guerraoui and Rouault, *The Hidden Vulnerability of Distributed Learning in Byzantium*, ICML
    2018, section 4.
    """

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        squares, m = distances(uploads.delta, present, key), present.shape[0]
        wanted = jnp.maximum(jnp.sum(present) - 2 * malicious, jnp.minimum(jnp.sum(present), 1))

        def choose(i: Array, left: Array) -> Array:
            among = jnp.where(left[:, None] & left[None, :], squares, jnp.inf)
            best = jnp.argmin(_ranks(among, left, malicious))
            return left.at[best].set(left[best] & (i >= wanted))

        chosen = present & ~lax.fori_loop(0, max(m - 2 * malicious, 1), choose, present)
        votes = chosen.astype(jnp.float32)
        count = jnp.maximum(jnp.sum(votes) - 2.0 * malicious, 1.0)
        return around_median(uploads.delta, votes, votes, count)

    return robust("bulyan", malicious, lambda m: m >= 4 * malicious + 3, reduced)


def _neighbours(present: Array, malicious: int) -> Array:
    """How many others make the score of an upload."""
    return jnp.sum(present) - malicious - 2


def _ranks(distances: Array, present: Array, malicious: int) -> Array:
    """The place of each upload by its score, ``(m,)``, from squared distances ``(m, m)``; empty slots come last.

    Two uploads that are each other's only neighbour have the same score: the sum of all distances then decides, so that
    the order of the clients does not.
    """
    m, nearest = present.shape[0], _neighbours(present, malicious)
    others = jnp.sort(jnp.where(jnp.eye(m, dtype=bool), jnp.inf, distances), axis=1)
    sums = jnp.sum(jnp.where(jnp.arange(m)[None] < nearest, others, 0.0), axis=1)
    totals = jnp.sum(jnp.where(jnp.isfinite(distances), distances, 0.0), axis=1)
    return jnp.argsort(jnp.lexsort((totals, sums, ~present)))
