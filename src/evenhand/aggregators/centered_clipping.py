"""Centred clipping: uploads are clipped around the last direction."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators.clip import check_length
from evenhand.aggregators.mean import reciprocal
from evenhand.errors import whole_number
from evenhand.types import Key, PyTree, Sum, Upload

__all__ = ["centered_clipping"]


def centered_clipping(radius: float, *, passes: int = 1) -> Sum:
    r"""Centered clipping: adds the mean of the uploads' clipped differences to the last round's direction.

    .. math::
        v \leftarrow v + \frac{1}{\sum_k \omega_k} \sum_k \omega_k (\Delta_k - v)
        \min\Big(1, \frac{\tau}{\|\Delta_k - v\|}\Big)

    from the :math:`v` of the round before, which begins at zero.  It needs sums only.

    Args:
      radius: :math:`\tau`, in the units of an update: about how far honest uploads are from each other.
      passes: how often per round.

    Raises:
      EvenhandError: ``radius`` not above 0, or ``passes`` below 1.

    Robustness: no breakdown, and no recovery either: a share :math:`\delta` of the weight moves the direction by at
    most :math:`\delta \tau` per pass, however long its uploads, and can do so in every round.  A client that reports
    the largest admissible weight has that weight's share: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: uploads that all agree are reached only in steps of the radius; without any upload, zeros.

    Differs from the paper: its clients send momenta; here they send the updates of local work, weighted as reported.

    Cost: a pass reads each upload once.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> step = eh.aggregators.aggregate(centered_clipping(1.0), jnp.array([[0.3, 0.4], [300.0, 400.0]]))
      >>> [round(x, 3) for x in step.tolist()]
      [0.45, 0.6]

    Source: Karimireddy, He and Jaggi, *Learning from History for Byzantine Robust Optimization*, ICML 2021, algorithm
    2.
    """
    check_length("centered_clipping(radius", radius)
    passes = whole_number("centered_clipping(passes=)", passes, 1)

    def lift(upload: Upload, center: PyTree, key: Key) -> PyTree:
        apart = tree.subtract(upload.delta, center)
        share = upload.weight * radius / jnp.maximum(tree.norm(apart), radius)
        return tree.scale(share, apart), upload.weight

    def lower(total: PyTree, center: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        moved, weight = total
        center = tree.add(center, tree.scale(reciprocal(weight), moved))
        return tree.select(weight > 0, center, tree.zeros_like(center)), center

    return Sum(
        lambda like, clients: tree.zeros_like(like), lift, lower, publish=lambda center: center, passes=passes
    )
