"""Local work as a value: a model, and what a client does to train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import optax

from evenhand.errors import expect
from evenhand.local._batches import step_per_row
from evenhand.local._estimator import RowRisk
from evenhand.naming import short
from evenhand.types import ClientData, Effort, Key, Model, Params, PyTree

__all__ = ["Solver", "Work", "check_model"]

Solver: TypeAlias = Callable[[Params, ClientData, Key, optax.GradientTransformation], tuple[Params, PyTree]]
"""``(params, data, key, correction) -> (params, correction_state)``.

A solver must pass each gradient of :math:`F_k` through ``correction.update(gradient, state, params)`` before it
uses it, start from ``correction.init(params)``, and return the last state.
"""


class Work(NamedTuple):
    """Local work, the first argument of most methods.

    Made by :func:`evenhand.local.sgd`, or from a solver of your own by ``Work(model, solve)``.

    Attributes:
      model: what is trained.
      solve: the training itself, a :data:`Solver`.
      effort: ``data -> Effort``, so that clients of similar effort train at the same time.
      step_size: the step size, if this is plain gradient descent, else None.
      of_risk: ``risk -> Work``, the same work on another risk of each batch's losses; None: the risk cannot be changed.

    ``solve`` and ``of_risk`` are bound to the model that they were made with: make new work for another model.
    """

    model: Model
    solve: Solver
    effort: Callable[[ClientData], Effort] = step_per_row
    step_size: float | None = None
    of_risk: Callable[[RowRisk | None], Work] | None = None
    __repr__ = short


def check_model(model: object) -> None:
    """Checks that ``model`` is a :class:`~evenhand.types.Model`.

    Raises:
      EvenhandError: it is not; the sentence says how to make one.
    """
    expect(
        "model",
        model,
        Model,
        "eh.models.softmax_regression(features=64, classes=10), or a flax module through "
        "eh.models.from_flax(module, loss=..., sample=...)",
    )
