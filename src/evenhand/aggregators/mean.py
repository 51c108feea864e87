"""The weighted mean."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand import tree
from evenhand.types import Array, Key, PyTree, Sum, Upload

__all__ = ["mean", "reciprocal"]


def mean() -> Sum:
    r"""Weighted mean of the uploads, with the weights that clients report (FedAvg).

    .. math:: \Delta = \frac{\sum_k \omega_k \Delta_k}{\sum_k \omega_k}

    The weights :math:`\omega_k` are the clients' numbers of examples, or 1, depending on the method's sampling
    scheme (:mod:`evenhand.sampling`).

    Edge cases: zeros if all weights are 0 or there is no upload.  Nothing finite is rejected: the mean offers no
    robustness at all.  Uploads in half precision are added in float32, but each product :math:`\omega_k \Delta_k` is in
    theirs: with large weights, float16 overflows above 65504.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand.aggregators import aggregate
      >>> float(aggregate(mean(), jnp.array([1.0, 5.0]), weights=jnp.array([1.0, 3.0])))
      4.0

    Source: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS
    2017, algorithm 1.
    """

    def init(like: PyTree, clients: int) -> PyTree:
        return ()

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        return tree.scale(upload.weight, upload.delta), upload.weight

    def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        deltas, weight = total
        return tree.scale(reciprocal(weight), deltas), state

    return Sum(init, lift, lower)


def reciprocal(weight: Array) -> Array:
    """One over ``weight``; 0 for 0."""
    return jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)
