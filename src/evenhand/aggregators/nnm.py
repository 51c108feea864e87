"""Nearest-neighbour mixing, before another aggregator."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand.aggregators._reduce import before, check_then
from evenhand.aggregators.stacked import cleared, combined_present, distances, least
from evenhand.errors import whole_number
from evenhand.types import Aggregator, Array, Key, Need, Stack, Upload

__all__ = ["nnm"]


def nnm(malicious: int, then: Aggregator) -> Stack:
    r"""Nearest-neighbour mixing (NNM): replaces each upload by the mean of its nearest ones, before another aggregator.

    .. math:: \Delta_i \leftarrow \frac{1}{m - f} \sum_{j \in \mathcal N_i} \Delta_j, \qquad
        \mathcal N_i \text{ the } m - f \text{ uploads nearest to } \Delta_i

    Honest uploads that are unlike each other come closer together, which is what robust rules need.

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.
      then: reduces the mixed uploads.

    Raises:
      EvenhandError: ``malicious`` below 0, or a ``then`` that weighs clients by their reports.

    Robustness: that of ``then``, with a smaller error where honest clients differ; :math:`f < m / 2`.  Within a mixture
    each upload counts alike; ``then`` gets the weight that each client reports, with the mixture around its upload.

    Edge cases: ``malicious=0`` makes all uploads their mean; of equally near uploads the first.  :math:`m` counts the
    accepted uploads.

    Cost: two products of the size :math:`m^2 d`, and all uploads in memory twice.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = nnm(1, then=eh.aggregators.krum(0))
      >>> eh.aggregators.aggregate(rule, jnp.array([[1.0], [2.0], [3.0], [90.0]])).tolist()
      [2.0]

    Source: Allouah et al., *Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity*, AISTATS 2023,
    algorithm 1.
    """
    malicious = whole_number("nnm(malicious=)", malicious, 0)
    check_then("nnm", then)

    def mix(uploads: Upload, present: Array, key: Key) -> tuple[Upload, Array]:
        uploads = cleared(uploads, present)
        count = jnp.maximum(jnp.sum(present) - malicious, 1)
        # Its own distance is 0, but so may be another's, which then comes first: either is the same upload.
        apart = distances(uploads.delta, present, key, count - 1)
        near = jax.vmap(lambda row: least(row, present, count))(apart)
        share = near.astype(jnp.float32) / count.astype(jnp.float32)
        return uploads._replace(delta=combined_present(share, uploads.delta, present)), present

    own = Need.over(f"nnm({malicious})", malicious, lambda m: m > 2 * malicious)
    return before(then, mix, "nnm", (own, *then.needs), skips_absent=True)
