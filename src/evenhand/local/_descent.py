"""Mini-batch descent on a client's examples."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from evenhand.errors import EvenhandError, expect
from evenhand.local._batches import Batch, Batches, batches, over_batches
from evenhand.local._estimator import Estimator, RowRisk, batch_gradient
from evenhand.local._work import Continued, Parts, Solver, Work, check_model
from evenhand.types import Array, ClientData, Key, Model, Params, PyTree

__all__ = ["SCHEDULE", "continued", "descent", "marked", "sgd"]

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
    if isinstance(client_opt, optax.GradientTransformation):
        optimiser, step_size = client_opt, None
    else:
        optimiser, step_size = _plain(client_opt)
    optimiser = marked(optimiser)
    schedule = batches(epochs=epochs, steps=steps, batch_size=batch_size)

    def of_risk(risk: RowRisk | None) -> Work:
        parts = Parts(schedule, batch_gradient(model, risk), optimiser)
        # Work that already has a risk does not take another.
        another = of_risk if risk is None else None
        return Work(model, descent(*parts), schedule.effort, step_size, another, parts, continued(*parts))

    return of_risk(risk)


def descent(schedule: Batches, estimate: Estimator, client_opt: optax.GradientTransformation) -> Solver:
    """A solver that takes one step of the optimiser per batch, on the corrected estimate of the gradient."""

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        def step(carry: _Descent, batch: Batch, key: Key) -> _Descent:
            gradient = estimate(carry.params, batch, key)
            corrected, correction_state = correction.update(gradient, carry.correction, carry.params)
            updates, optimiser = client_opt.update(corrected, carry.optimiser, carry.params)
            return _Descent(optax.apply_updates(carry.params, updates), optimiser, correction_state)

        begin = _Descent(params, client_opt.init(params), correction.init(params))
        end = over_batches(schedule, step, begin, data, key)
        return end.params, end.correction

    return solve


def continued(schedule: Batches, estimate: Estimator, client_opt: optax.GradientTransformation) -> Continued:
    """The same descent, with the optimiser's state kept from round to round."""

    def solve(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        def step(carry: tuple[Params, PyTree], batch: Batch, key: Key) -> tuple[Params, PyTree]:
            updates, after = client_opt.update(estimate(carry[0], batch, key), carry[1], carry[0])
            return optax.apply_updates(carry[0], updates), after

        return over_batches(schedule, step, (params, state), data, key)

    return Continued(client_opt.init, solve)


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


def _plain(step: Array | float) -> tuple[optax.GradientTransformation, float | None]:
    """Plain gradient descent, and its step size, or None if that is a tracer."""
    expect("client_opt", step, Real | np.ndarray | jax.Array, "0.1, or an optax optimiser")
    try:
        known = math.nan if isinstance(step, bool) or np.ndim(step) else float(step)
    except jax.errors.ConcretizationTypeError:
        return optax.sgd(step), None
    except (
        OverflowError,
        TypeError,
        ValueError,
    ):  # a number of more than 300 digits, a complex one, an array of text
        known = math.nan
    if not 0.0 <= known < math.inf:
        raise EvenhandError(f"eh.local.sgd() got the step {step!s:.40}: give a finite number >= 0.")
    return optax.sgd(known), known


class _Descent(NamedTuple):
    params: Params
    optimiser: optax.OptState
    correction: optax.OptState
