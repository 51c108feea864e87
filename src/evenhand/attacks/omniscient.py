"""Coalitions that set the mean, or that all send one value."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.attacks._coalition import everyone
from evenhand.types import Array, Attack, Key, PyTree, Upload

__all__ = ["omniscient", "same_value"]


def omniscient(fraction: float = 0.0) -> Attack:
    r"""Turns the weighted mean of the cohort into its opposite.

    .. math:: \Delta_k = \bar\Delta_C - \frac{2 N}{N_C} \bar\Delta

    with :math:`\bar\Delta` the weighted mean of all updates, :math:`\bar\Delta_C` that of the malicious clients, and
    :math:`N`, :math:`N_C` the sums of the weights: the mean of what is sent is then :math:`-\bar\Delta`.

    Args:
      fraction: share of the clients that are malicious.

    Edge cases: malicious clients whose weights are all 0 send zeros.

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022, section V.
    """

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        weights = jnp.where(present, uploads.weight, 0.0)
        theirs = jnp.where(malicious, weights, 0.0)
        part = jnp.sum(theirs)
        ratio = jnp.where(part > 0, 2.0 * jnp.sum(weights) / jnp.where(part > 0, part, 1.0), 0.0)
        mean, own = (tree.weighted_mean(uploads.delta, of) for of in (weights, theirs))
        return everyone(tree.subtract(own, tree.scale(ratio, mean)), uploads.delta)

    return Attack(fraction, collude=collude)


def same_value(fraction: float = 0.0, *, value: float = 1.0) -> Attack:
    r"""All malicious clients send the same number in every coordinate: :math:`\Delta_k = c \mathbf 1`.

    Args:
      fraction: share of the clients that are malicious.
      value: :math:`c`.

    Source: Li, Xu, Chen, Giannakis and Ling, *RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
    Learning from Heterogeneous Datasets*, AAAI 2019, section 5.
    """

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, value), uploads.delta)

    return Attack(fraction, collude=collude)
