"""Mimic: all malicious clients copy one honest client."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand import tree
from evenhand.attacks._coalition import Honest, everyone
from evenhand.types import Array, Attack, Key, PyTree, Upload

__all__ = ["mimic"]


def mimic(fraction: float = 0.0) -> Attack:
    r"""All malicious clients send what the most unlike honest client sends, so that it counts too much.

    .. math:: \Delta_k = \Delta_{i^*}, \qquad i^* = \arg\max_i \|\Delta_i - \mu\|

    over the honest clients :math:`i` with mean :math:`\mu`.  Each such upload is one that an honest client has made.

    Args:
      fraction: share of the clients that are malicious.

    Edge cases: without an honest client in the cohort, they send the first upload.

    Differs from the paper: there one client is copied in all rounds, the one farthest along a direction that is learnt
    over the first of them; here it is chosen anew in each round, as cohorts change.

    Example:
      >>> import jax, jax.numpy as jnp, evenhand as eh
      >>> uploads = eh.types.Upload(jnp.array([[1.0], [2.0], [6.0], [9.0]]), jnp.ones(4), jnp.ones(4))
      >>> malicious, present = jnp.array([False, False, False, True]), jnp.ones(4, bool)
      >>> mimic(0.25).collude(uploads, malicious, present, jax.random.key(0))[3].tolist()
      [6.0]

    Source: Karimireddy, He and Jaggi, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR 2022,
    section 3.
    """

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = Honest.of(uploads, malicious, present)
        apart = honest.distances()
        chosen = jnp.argmax(jnp.where(honest.weights > 0, apart, -1.0))
        return everyone(tree.take(uploads.delta, chosen), uploads.delta)

    return Attack(fraction, collude=collude)
