"""Local work as a value: a model, and what a client does to train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import optax

from evenhand.errors import EvenhandError, expect
from evenhand.local._batches import Batches, step_per_row
from evenhand.local._estimator import Estimator, RowRisk
from evenhand.text import short
from evenhand.types import ClientData, Effort, Key, Model, Params, Privacy, PyTree

__all__ = ["Continued", "Parts", "Solver", "Work", "check_model", "check_work", "parts_of"]

Solver: TypeAlias = Callable[[Params, ClientData, Key, optax.GradientTransformation], tuple[Params, PyTree]]
"""``(params, data, key, correction) -> (params, correction_state)``.

A solver must pass each gradient of :math:`F_k` through ``correction.update(gradient, state, params)`` before it
uses it, start from ``correction.init(params)``, and return the last state.
"""


class Parts(NamedTuple):
    """What mini-batch descent is made of, for methods with a loop of their own.

    Attributes:
      schedule: the batches of a round.
      estimate: the gradient on a batch.
      client_opt: the optimiser that takes the steps.
    """

    schedule: Batches
    estimate: Estimator
    client_opt: optax.GradientTransformation
    __repr__ = short


class Continued(NamedTuple):
    """Local work that continues from round to round, with the state of its optimiser.

    Attributes:
      init: ``params -> state`` before the first step.
      solve: ``(params, state, data, key) -> (params, state)``.
    """

    init: Callable[[Params], PyTree]
    solve: Callable[[Params, PyTree, ClientData, Key], tuple[Params, PyTree]]
    __repr__ = short


class Work(NamedTuple):
    """Local work, the first argument of most methods.

    Made by :func:`evenhand.local.sgd`, or from a solver of your own by ``Work(model, solve)``.

    Attributes:
      model: what is trained.
      solve: the training itself, a :data:`Solver`.
      effort: ``data -> Effort``, so that clients of similar effort train at the same time.
      step_size: the step size, if this is plain gradient descent, else None.
      of_risk: ``risk -> Work``, the same work on another risk of each batch's losses; None: the risk cannot be changed.
      parts: what it is made of, where it is mini-batch descent; else None.
      continued: the same steps, continued from round to round; None: that is not possible.
      privacy: what it promises about the privacy of examples; None: nothing.

    ``solve`` and ``of_risk`` are bound to the model that they were made with: make new work for another model.
    """

    model: Model
    solve: Solver
    effort: Callable[[ClientData], Effort] = step_per_row
    step_size: float | None = None
    of_risk: Callable[[RowRisk | None], Work] | None = None
    parts: Parts | None = None
    continued: Continued | None = None
    privacy: Privacy | None = None
    __repr__ = short


def parts_of(work: Work, who: str) -> Parts:
    """The parts of local work, for the method ``who`` that takes its steps itself.

    Raises:
      EvenhandError: it is not mini-batch descent.
    """
    if work.parts is None:
        raise EvenhandError(
            f"{who}() takes its local steps itself, and got work that is not mini-batch descent: "
            "make it with eh.local.sgd(model, ...)."
        )
    return work.parts


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


def check_work(work: object, name: str = "work", *, private: bool = False) -> Work:
    """``work``, checked to be local work on a model.

    Args:
      work: what is checked.
      name: the argument that it was passed as.
      private: whether work that promises privacy is taken: by methods that look at examples in no other way.
    """
    expect(name, work, Work, "eh.local.sgd(model, 0.1, epochs=1, batch_size=10)")
    assert isinstance(work, Work)
    check_model(work.model)
    if work.privacy is not None and not private:
        raise EvenhandError(
            f"{name}: this work promises privacy, which this method would break, as it may look at examples in other "
            "ways, or share what the promise does not cover: give it to eh.algorithms.fedavg or eh.algorithms.alone."
        )
    for field, function in (("solve", work.solve), ("effort", work.effort)):
        if not callable(function):
            raise EvenhandError(f"{name}={work!r:.200}: its {field} is not a function; see eh.local.Work.")
    return work
