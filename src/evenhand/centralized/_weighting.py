# The type that every weighting of this package is written in, as they come.
"""Weights of single examples that depend on labels, on losses or on clean examples, and the solver that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from evenhand.text import short
from evenhand.types import Array, Key, Model, Params, PyTree


class Weighed(NamedTuple):
    """What a weighting sees of a step.

    Attributes:
      params: the model's parameters before the step.
      x: the batch's features, ``(m, ...)``.
      y: its labels, ``(m, ...)``.
      losses: its losses at these parameters, ``(m,)``.
      progress: the share of the steps that are done, in [0, 1).
      key: for this step's random numbers.
    """

    params: Params
    x: Array
    y: Array
    losses: Array
    progress: Array
    key: Key


class Weighting(NamedTuple):
    """How much each example of a batch counts.

    A step is along :math:`\\frac1m \\sum_i w_i \\nabla f_i`, with the weights held constant: weights of 1 are plain
    training, and a batch whose weights are all 0 moves nothing.

    Attributes:
      init: ``(model, x, y) -> state``, given all training examples.
      weigh: ``(model, state, batch) -> (weights, state)``; weights are ``(m,)`` and nonnegative.
      name: as an expression makes it, such as ``"self_paced(percentile=70)"``.
    """

    init: Callable[[Model, Array, Array], PyTree]
    weigh: Callable[[Model, PyTree, Weighed], tuple[Array, PyTree]]
    name: str
    __repr__ = short
