"""The trimmed mean of each coordinate."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.aggregators._order import middle, over_coordinates
from evenhand.errors import EvenhandError
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = ["trimmed_mean"]


def trimmed_mean(fraction: float, *, weighted: bool = False) -> Stack:
    r"""The mean of each coordinate without its largest and smallest values.

    .. math:: [\Delta]_j = \frac{1}{m - 2 l} \sum_{i = l + 1}^{m - l} [\Delta]_{(i), j}, \qquad
        l = \min\Big(\lceil \beta m \rceil, \Big\lfloor \frac{m - 1}{2} \Big\rfloor\Big)

    with :math:`[\Delta]_{(1), j} \le \dots \le [\Delta]_{(m), j}` the coordinate's values in order.

    Args:
      fraction: :math:`\beta`, the share of the uploads that is cut off on either side, below 1/2.
      weighted: whether the mean of the others has the reported weights.

    Raises:
      EvenhandError: ``fraction`` outside [0, 1/2).

    Robustness: breakdown point :math:`\beta`.  Without ``weighted`` each client counts alike, whatever it reports: one
    with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible weight has
    that weight's share wherever it is not cut off: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: ``fraction=0`` is the mean; at least one value or two remain.  Equal values at the edge share what is
    kept of them.  :math:`m` counts the accepted uploads; without any, zeros.

    Differs from the paper: none known; the limit on :math:`l` and the weights are those of RFA's comparison.

    Cost: exact, in 64 comparisons of each number, and all uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0], [1.0], [2.0], [3.0], [90.0]])
      >>> eh.aggregators.aggregate(trimmed_mean(0.2), deltas).tolist()
      [2.0]

    Source: Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning*, ICML 2018, definition 2.
    """
    if not 0.0 <= fraction < 0.5:
        raise EvenhandError(f"trimmed_mean(fraction={fraction}): give a share from 0 to below 0.5.")

    def holds(m: int) -> bool:
        return 2 * math.ceil(fraction * m - 1e-9) < m

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        m = present.shape[0]
        # For each number of accepted uploads, in Python: 0.1 of 30 is 3, not the 4 that float32 makes of it.
        cuts = np.ceil(np.arange(m + 1) * fraction - 1e-9)
        cut = jnp.asarray(np.minimum(cuts, np.maximum(np.arange(m + 1) - 1, 0) // 2), jnp.float32)
        one = present.astype(jnp.float32)
        weights = one * uploads.weight if weighted else one
        return _middles(uploads.delta, one, weights, cut[jnp.sum(present)]), state

    return Stack(
        lambda like, clients: (), apply, needs=(Need(f"trimmed_mean({fraction:g})", holds, lambda m: m > 0),)
    )


@jax.jit
def _middles(deltas: PyTree, present: Array, weights: Array, cut: Array) -> PyTree:
    return over_coordinates(middle, deltas, present, weights, cut)
