"""Local work as a value: a model and what a client does to train it; and mini-batch descent, the usual work."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from evenhand.errors import EvenhandError, expect
from evenhand.local._batches import Batch, Batches, batches, over_batches, step_per_row
from evenhand.local._gradients import Estimator, RowRisk, batch_gradient
from evenhand.text import short
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, Privacy, PyTree

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


def parts_of(work: Work, factory: str) -> Parts:
    """The parts of local work, for the method ``who`` that takes its steps itself.

    Raises:
      EvenhandError: it is not mini-batch descent.
    """
    if work.parts is None:
        raise EvenhandError(
            f"{factory}() takes its local steps itself, and got work that is not mini-batch descent: "
            "make it with eh.local.sgd(model, ...)."
        )
    return work.parts


def check_model(model: object) -> None:
    """Checks that ``model`` is a :class:`~evenhand.types.Model`.

    Raises:
      EvenhandError: it is not; the sentence says how to make one.
    """
    example = "eh.models.softmax_regression(features=64, classes=10), or a flax module through "
    expect("model", model, Model, example + "eh.models.from_flax(module, loss=..., sample=...)")


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


# --- mini-batch descent ------------------------------------------------------------------------------------------

SCHEDULE = "start_of_a_schedule"
"""What the call is named in which an optimiser with a schedule begins, for ``programs.has_call``."""


def sgd(
    model: Model,
    client_opt: optax.GradientTransformation | float | Array,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    risk: RowRisk | None = None,
) -> Work:
    r"""Mini-batch descent with any optax optimiser, which starts afresh in every round, and so does its schedule.

    Each step is

    .. math:: w \leftarrow w + \text{client\_opt}\big(\text{correction}(\nabla F_k(w; b))\big)

    for a batch ``b`` of the client's examples, and :math:`\nabla F_k(w; b)` the gradient of the mean loss over ``b``,
    or of another risk of its losses.  The correction is what a method adds, such as a proximal term.

    Args:
      model: what is trained.
      client_opt: the optimiser; a number means plain gradient descent with that step size.
      epochs: passes ``E`` over the client's examples, reshuffled each time; give this or ``steps``.
      steps: the number of batches, over as many passes as they take.
      batch_size: examples per batch; None: all of the client's examples, one step per epoch.
      risk: the risk of a batch's losses, such as ``eh.risks.tilted(1.0)``; None: their mean.  Or a function of the
        batch's labels that gives one, to group losses: ``lambda y: eh.risks.hierarchical(..., y, classes)``.

    For the part that a straggler completes see :func:`evenhand.local.batches`.

    Raises:
      EvenhandError: a step size that is negative or not finite; not exactly one of ``epochs`` and ``steps`` given; or
        one of these or ``batch_size`` is not a whole number from 1 to a million.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = sgd(model, 0.1, epochs=5, batch_size=10)
      >>> work.step_size
      0.1
    """
    check_model(model)
    optimiser, step_size = _optimiser(client_opt)
    optimiser = marked(optimiser)
    schedule = batches(epochs=epochs, steps=steps, batch_size=batch_size)

    def of_risk(risk: RowRisk | None) -> Work:
        parts = Parts(schedule, batch_gradient(model, risk), optimiser)
        # Work that already has a risk does not take another.
        another = of_risk if risk is None else None
        return Work(
            model=model,
            solve=descent(*parts),
            effort=schedule.effort,
            step_size=step_size,
            of_risk=another,
            parts=parts,
            continued=continued(*parts),
        )

    return of_risk(risk)


def _optimiser(step: Any) -> tuple[optax.GradientTransformation, float | None]:
    """The optimiser that was given, or plain gradient descent and its step size, or None if that is a tracer."""
    if isinstance(step, optax.GradientTransformation):
        return step, None
    expect("client_opt", step, Real | np.ndarray | jax.Array, "0.1, or an optax optimiser")
    try:
        step_size = math.nan if isinstance(step, bool) or np.ndim(step) else float(step)
    except jax.errors.ConcretizationTypeError:
        return optax.sgd(step), None
    # A number of more than 300 digits, a complex one, an array of text.
    except (OverflowError, TypeError, ValueError):
        step_size = math.nan
    if not 0.0 <= step_size < math.inf:
        raise EvenhandError(f"eh.local.sgd() got the step {step!s:.40}: give a finite number >= 0.")
    return optax.sgd(step_size), step_size


def descent(schedule: Batches, estimate: Estimator, client_opt: optax.GradientTransformation) -> Solver:
    """A solver that takes one step of the optimiser per batch, on the corrected estimate of the gradient."""

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        # The loop of over_batches, written out: a loss that fails is then few calls below the method that asks for it.
        def step(carry: tuple[Array, Params, PyTree, PyTree]) -> tuple[Array, Params, PyTree, PyTree]:
            (i, w, optimiser, corrected), after = carry, carry[0] + 1
            gradient = estimate(w, batch(i), jax.random.fold_in(key, i))
            gradient, corrected = correction.update(gradient, corrected, w)
            updates, optimiser = client_opt.update(gradient, optimiser, w)
            return after, optax.apply_updates(w, updates), optimiser, corrected

        states = client_opt.init(params), correction.init(params)
        batch, total = schedule.draw(data, key), schedule.effort(data).steps
        begin = jnp.int32(0), params, *states
        _, end, _, corrected = lax.while_loop(lambda carry: carry[0] < total, step, begin)
        return end, corrected

    return solve


def continued(schedule: Batches, estimate: Estimator, client_opt: optax.GradientTransformation) -> Continued:
    """The same descent, with the optimiser's state kept from round to round."""

    def solve(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        def step(carry: tuple[Params, PyTree], batch: Batch, key: Key) -> tuple[Params, PyTree]:
            updates, after = client_opt.update(estimate(carry[0], batch, key), carry[1], carry[0])
            return optax.apply_updates(carry[0], updates), after

        return over_batches(schedule, step, (params, state), data, key)

    return Continued(client_opt.init, solve)


# --- optimisers that have a schedule -----------------------------------------------------------------------------


def marked(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimiser; a traced program shows where it begins if it has a schedule.

    A schedule is one of optax: a step size that is a function of the number of steps, in any chain or mask, or a
    hyper-parameter injected as such a function.  A function that is constant is none.
    """

    def start(params: Params) -> optax.OptState:
        return optimiser.init(params)

    start.__name__ = SCHEDULE
    named = jax.jit(start)

    def init(params: Params) -> optax.OptState:
        state = optimiser.init(params)
        return named(params) if _has_schedule(optimiser, params, state) else state

    return optimiser._replace(init=init)


def _has_schedule(optimiser: optax.GradientTransformation, params: Params, state: PyTree) -> bool:
    """Whether the optimiser's updates depend on the steps that a schedule has counted, at any depth of its state.

    A constant schedule counts steps, too, but no update depends on them.
    """
    counts = _counts(state)
    if not any(jax.tree.leaves(counts)):
        return False
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        program = jax.make_jaxpr(lambda w, state: optimiser.update(w, state, w)[0])(params, state).jaxpr
    is_count = [*(False for _ in jax.tree.leaves(params)), *jax.tree.leaves(counts)]
    reached = {id(x) for x, chosen in zip(program.invars, is_count, strict=True) if chosen}
    for equation in program.eqns:
        if any(id(x) in reached for x in equation.invars):
            reached |= {id(x) for x in equation.outvars}
    return any(id(x) in reached for x in program.outvars)


def _counts(state: PyTree) -> PyTree:
    """Which leaves of an optimiser's state count the steps of a schedule; the same tree, of bools."""
    nodes = (optax.ScaleByScheduleState, optax.InjectStatefulHyperparamsState)

    def marks(node: Any) -> Any:
        if isinstance(node, optax.InjectStatefulHyperparamsState):
            none = jax.tree.map(lambda _: False, node)
            every = jax.tree.map(lambda _: True, node.hyperparams_states)
            return none._replace(hyperparams_states=every, inner_state=_counts(node.inner_state))
        return jax.tree.map(lambda _: isinstance(node, optax.ScaleByScheduleState), node)

    return jax.tree.map(marks, state, is_leaf=lambda node: isinstance(node, nodes))
