"""FedMGDA+'s aggregator: the shortest combination of unit updates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.aggregators.stacked import combined, flattened, norms
from evenhand.errors import EvenhandError, real_number
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["min_norm"]

_ITERATIONS = 200
_HALVINGS = 25


def min_norm(epsilon: float) -> Stack:
    r"""FedMGDA+: the shortest combination of normalised uploads, with weights within ``epsilon`` of equal.

    .. math::
        \hat\Delta_k = \frac{\Delta_k}{\|\Delta_k\|}, \qquad
        \alpha^* = \arg\min_\alpha \tfrac12 \Big\| \sum_k \alpha_k \hat\Delta_k \Big\|^2
        \ \text{s.t.}\ \alpha \ge 0,\ \sum_k \alpha_k = 1,\ \Big| \alpha_k - \frac1m \Big| \le \epsilon, \qquad
        \Delta = \sum_k \alpha_k^* \hat\Delta_k

    At ``epsilon=1`` no client of the cohort gets worse in this direction, to first order.  The weights are found by
    accelerated projected gradient descent, in the compiled round.

    Args:
      epsilon: from 0 (the mean of unit vectors) to 1 (any combination).

    Raises:
      EvenhandError: ``epsilon`` outside [0, 1].

    Edge cases: uploads of norm 0 are left out, and ``m`` counts the others; without any, the direction is zero.
    Reported weights are ignored.  The direction has norm at most 1, whatever the uploads: the server's step size sets
    how far a round moves.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [10.0, 10.0]])
      >>> [round(x, 4) for x in eh.aggregators.aggregate(min_norm(1.0), deltas).tolist()]
      [0.5, 0.5]

    Source: Hu et al., *Federated Learning Meets Multi-Objective Optimization*, 2022, algorithm 1 (FedMGDA+).
    """
    if not 0.0 <= real_number(epsilon) <= 1.0:
        raise EvenhandError(
            f"min_norm(epsilon={epsilon!r:.40}): the distance from equal weights must lie in [0, 1]."
        )

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        lengths = norms(uploads.delta)
        usable = present & (lengths > 0)
        scale = jnp.where(usable, 1.0 / jnp.where(usable, lengths, 1.0), 0.0)
        unit = jax.tree.map(lambda leaf: _scaled(scale, leaf), uploads.delta)
        alpha = _weights(_products(unit), usable, epsilon)
        return combined(alpha, unit), state

    return Stack(lambda like, clients: (), apply)


def _scaled(scale: Array, leaf: Array) -> Array:
    factor = scale.reshape(-1, *(1,) * (leaf.ndim - 1)).astype(leaf.dtype)
    return jnp.where(factor > 0, factor * leaf, 0.0)


def _products(unit: PyTree) -> Array:
    """Inner products of the uploads, ``(m, m)``."""
    flat = [flattened(leaf) for leaf in jax.tree.leaves(unit)]
    return sum((leaf @ leaf.T for leaf in flat), jnp.zeros((flat[0].shape[0],) * 2, jnp.float32))


def _weights(products: Array, usable: Array, epsilon: float) -> Array:
    count = jnp.maximum(jnp.sum(usable.astype(jnp.float32)), 1.0)
    low = jnp.where(usable, jnp.maximum(1.0 / count - epsilon, 0.0), 0.0)
    high = jnp.where(usable, jnp.minimum(1.0 / count + epsilon, 1.0), 0.0)
    step = 1.0 / count  # the largest eigenvalue is at most the trace

    def descend(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        alpha, ahead, speed = carry
        new = _project(ahead - step * (products @ ahead), low, high)
        uphill = jnp.dot(ahead - new, new - alpha) > 0
        speed = jnp.where(uphill, 1.0, speed)
        faster = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * jnp.square(speed)))
        return new, new + (speed - 1.0) / faster * (new - alpha), faster

    begin = jnp.where(usable, 1.0 / count, 0.0)
    return lax.fori_loop(0, _ITERATIONS, descend, (begin, begin, jnp.float32(1.0)))[0]


def _project(y: Array, low: Array, high: Array) -> Array:
    """The closest point between ``low`` and ``high`` whose entries sum to 1."""

    def halve(_: Array, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = interval
        middle = 0.5 * (left + right)
        heavy = jnp.sum(jnp.clip(y - middle, low, high)) > 1.0
        return jnp.where(heavy, middle, left), jnp.where(heavy, right, middle)

    ends = (jnp.min(y) - 1.0, jnp.max(y))
    left, right = lax.fori_loop(0, _HALVINGS, halve, ends)
    return jnp.clip(y - 0.5 * (left + right), low, high)
