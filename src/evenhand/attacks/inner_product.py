"""Inner-product manipulation: uploads against the honest direction, short enough not to be seen."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from evenhand import tree
from evenhand.attacks._coalition import Honest, everyone, strongest
from evenhand.attacks.alie import check_against
from evenhand.types import Aggregator, Array, Attack, Key, PyTree, Upload

__all__ = ["inner_product"]


def inner_product(
    fraction: float = 0.0, *, epsilon: float | None = None, against: Aggregator | None = None
) -> Attack:
    r"""Each malicious client sends a multiple of the honest mean, in the opposite direction.

    .. math:: \Delta_k = -\epsilon \mu

    Args:
      fraction: share of the clients that are malicious.
      epsilon: :math:`\epsilon`; None: 0.5 without ``against``.
      against: the aggregator to be deceived: of 16 values of ``1 + epsilon``, from 1/16 to 16, the one that moves it
        farthest.

    Raises:
      EvenhandError: both ``epsilon`` and ``against`` are given, or an aggregator that weighs clients by their reports.

    Example:
      >>> import jax, jax.numpy as jnp, evenhand as eh
      >>> uploads = eh.types.Upload(jnp.array([[1.0], [3.0], [9.0]]), jnp.ones(3), jnp.ones(3))
      >>> malicious, present = jnp.array([False, False, True]), jnp.ones(3, bool)
      >>> inner_product(0.3).collude(uploads, malicious, present, jax.random.key(0))[2].tolist()
      [-1.0]

    Source: Xie, Koyejo and Gupta, *Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation*, UAI
    2019, section 4.
    """
    check_against("inner_product", "epsilon", epsilon, against)

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = Honest.of(uploads, malicious, present)
        direction = tree.scale(-1.0, honest.mean)
        factor = jnp.float32(1.0 + (0.5 if epsilon is None else epsilon))
        if against is not None:
            tried = jnp.asarray(np.geomspace(1 / 16, 16, 16), jnp.float32)
            factor = strongest(against, honest, direction, uploads, present, key, tried)
        return everyone(tree.add(honest.mean, tree.scale(factor, direction)), uploads.delta)

    return Attack(fraction, collude=collude)
