"""The geometric median, by Weiszfeld's algorithm in sums: the aggregator of RFA."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators.mean import reciprocal
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Array, Key, PyTree, Radial, Sum, Upload

__all__ = ["geometric_median"]


class _Point(NamedTuple):
    """Where the iterations are, and how many of this round's are done."""

    z: PyTree
    done: Array


def geometric_median(passes: int = 5, *, nu: float = 1e-5, start: Literal["zero", "mean"] = "zero") -> Sum:
    r"""Geometric median (RFA): the point with the least sum of distances to the uploads, by smoothed Weiszfeld steps.

    .. math::
        \min_z \sum_k \omega_k \|z - \Delta_k\|: \qquad
        \beta_k = \frac{\omega_k}{\max(\nu, \|z_t - \Delta_k\|)}, \qquad
        z_{t+1} = \frac{\sum_k \beta_k \Delta_k}{\sum_k \beta_k}

    Each pass is one exchange with the cohort and needs sums only: clients get :math:`z_t` and send
    :math:`(\beta_k \Delta_k, \beta_k)`, so that it runs under secure summation.  ``passes=1`` is one-step RFA,
    :math:`\beta_k = \omega_k / \max(\nu, \|\Delta_k\|)`, at the price of FedAvg.

    Args:
      passes: exchanges per aggregation, each of which takes one upload from every client.
      nu: :math:`\nu`, below which a distance counts as this much; in the units of an update.
      start: ``"zero"``, the model that was broadcast: no upload, however long, moves the first iterate by more than
        its share of a typical step.  ``"mean"``: the first pass is the mean, and ``passes - 1`` iterations follow.

    Raises:
      EvenhandError: ``passes`` below 1, or ``nu`` below 1e-20.

    Robustness: breakdown point 1/2 of the weight.  A client that reports the largest admissible weight has that
    weight's share of the influence, and no more: see :func:`evenhand.aggregators.bounded_weights`.  From the mean,
    a far upload is shed by a constant factor per pass only: two to five passes do not withstand unbounded norms.

    Edge cases: an upload of norm 0, or nearly, has the weight :math:`\omega_k / \nu` in the first pass from zero.  With
    the paper's :math:`\nu`, a fifth of the clients can so stop training for all others: give about a tenth of an
    update's norm, which makes the distances' loss that of Huber, or begin at the mean.  Uploads that all agree are
    returned; without any upload, zeros.

    Differs from the paper: the paper and its code begin at the mean, which is ``start="mean"``; their two iterations
    are ``passes=3``.  They also stop when the objective settles, which would cost one more scalar per client.

    Cost: a pass reads each upload once, or twice where the server has all; between passes, each client keeps its own.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0, 0.1], [0.1, 0.0], [0.1, 0.1], [1e6, 1e6]])
      >>> bool(jnp.all(jnp.abs(eh.aggregators.aggregate(geometric_median(), deltas)) < 0.2))
      True

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, IEEE Transactions on Signal
    Processing 2022, algorithms 1 and 2; one step: section IV.
    """
    passes = whole_number("geometric_median(passes=)", passes, 1)
    if not 1e-20 <= real_number(nu) < math.inf:
        raise EvenhandError(
            f"geometric_median(nu={nu!r:.40}): give a distance of at least 1e-20, such as 1e-5."
        )
    if str(start) not in ("zero", "mean"):
        raise EvenhandError(f"geometric_median(start={start!r}): give 'zero' or 'mean'.")

    def init(like: PyTree, clients: int) -> _Point:
        return _Point(tree.zeros_like(like), jnp.int32(0))

    def factor(distance: Array, weight: Array, public: _Point) -> Array:
        beta = weight / jnp.maximum(distance, nu)
        return jnp.where(public.done == 0, weight, beta) if start == "mean" else beta

    def lift(upload: Upload, public: _Point, key: Key) -> PyTree:
        beta = factor(tree.norm(tree.subtract(upload.delta, public.z)), upload.weight, public)
        return tree.scale(beta, upload.delta), beta

    def lower(total: PyTree, state: _Point, key: Key) -> tuple[PyTree, _Point]:
        deltas, beta = total
        z, done = tree.scale(reciprocal(beta), deltas), state.done + 1
        last = done == passes
        return z, _Point(tree.select(last, tree.zeros_like(z), z), jnp.where(last, 0, done))

    radial = Radial(lift, point=lambda public: public.z, factor=factor)
    return Sum(init=init, lift=lift, lower=lower, publish=lambda state: state, passes=passes, radial=radial)
