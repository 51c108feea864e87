"""Inverse class frequencies: every class has the same total weight."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evenhand.centralized._weighting import Weighed, Weighting, one_class_each
from evenhand.types import Array, Model

__all__ = ["inverse_ratio"]


class _Classes(NamedTuple):
    """The sorted labels of the training examples, and the weight of each: a table without a number of classes."""

    labels: Array
    weights: Array


def inverse_ratio() -> Weighting:
    r"""Weights inversely proportional to the frequency of an example's class in the training set.

    .. math::
        w_i = \frac{1}{C \, \pi_{y_i}}, \qquad \pi_c = \frac{|\{j \le n : y_j = c\}|}{n}

    for :math:`C` classes.  The mean weight over the training set is 1, and every class has the same total weight.

    Raises:
      EvenhandError: labels that are not one class per example.

    Edge cases: if all classes are equally frequent, all weights are 1.  If every label is another one, as real-valued
    targets are, all weights are 1, too.  A class that the training set does not have weighs 0.

    Differs from the paper, which has two classes and weighs rare examples by :math:`\pi_{\text{common}}` and common
    ones by :math:`1 - \pi_{\text{common}}`: the same ratio, but a mean weight of
    :math:`2 \pi_{\text{rare}} \pi_{\text{common}}`.  Its code also sums the weighted losses of a batch;
    :func:`evenhand.centralized.weighted` takes their mean.  So a step size :math:`\alpha` of its code is
    :math:`2 m \pi_{\text{rare}} \pi_{\text{common}} \alpha` here, for batches of :math:`m`.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> y = jnp.array([0, 0, 0, 1])
      >>> even = inverse_ratio()
      >>> batch = eh.centralized.Weighed((), x=None, y=y, losses=jnp.ones(4), progress=0.0, key=None)
      >>> [round(w, 3) for w in even.weigh(None, even.init(None, None, y), batch)[0].tolist()]
      [0.667, 0.667, 0.667, 2.0]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, experiments on class imbalance.
    """

    def init(model: Model, x: Array, y: Array) -> _Classes:
        labels = jnp.sort(one_class_each("inverse_ratio", y))
        begins, ends = (jnp.searchsorted(labels, labels, side=side) for side in ("left", "right"))
        classes = 1 + jnp.sum(labels[1:] != labels[:-1])
        return _Classes(labels, labels.size / (classes * (ends - begins)).astype(jnp.float32))

    def weigh(model: Model, state: _Classes, batch: Weighed) -> tuple[Array, _Classes]:
        labels = one_class_each("inverse_ratio", batch.y)
        places = jnp.minimum(jnp.searchsorted(state.labels, labels), state.labels.size - 1)
        return jnp.where(state.labels[places] == labels, state.weights[places], 0.0), state

    return Weighting(init, weigh, "inverse_ratio()")
