"""Bulyan: Krum's choices, averaged around their median."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evenhand.aggregators._stacked import distances
from evenhand.aggregators.krum import ranks
from evenhand.aggregators.meamed import around_median
from evenhand.errors import whole_number
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = ["bulyan"]


def bulyan(malicious: int) -> Stack:
    r"""The mean around the median of the uploads that Krum chooses one after another.

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
    whole_number("bulyan(malicious=)", malicious, 0)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        squares, m = distances(uploads.delta, present, key), present.shape[0]
        wanted = jnp.maximum(jnp.sum(present) - 2 * malicious, jnp.minimum(jnp.sum(present), 1))

        def choose(i: Array, left: Array) -> Array:
            among = jnp.where(left[:, None] & left[None, :], squares, jnp.inf)
            best = jnp.argmin(ranks(among, left, malicious))
            return left.at[best].set(left[best] & (i >= wanted))

        chosen = present & ~lax.fori_loop(0, max(m - 2 * malicious, 1), choose, present)
        one = chosen.astype(jnp.float32)
        count = jnp.maximum(jnp.sum(one) - 2.0 * malicious, 1.0)
        return around_median(uploads.delta, one, one, count), state

    return Stack(
        lambda like, clients: (),
        apply,
        needs=(Need.over(f"bulyan({malicious})", malicious, lambda m: m >= 4 * malicious + 3),),
    )
