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

from evenhand.errors import EvenhandError, expect, truth_value
from evenhand.local._batches import Batch, Batches, batches, over_batches, step_per_row
from evenhand.local._gradients import Estimator, RowRisk, batch_gradient, spared
from evenhand.local._schedules import ClientOpt, Schedule, by_round, schedule_from
from evenhand.text import short
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, Privacy, PyTree, RunningStatistics

Solver: TypeAlias = Callable[[Params, ClientData, Key, optax.GradientTransformation], tuple[Params, PyTree]]
"""``(params, data, key, correction) -> (params, correction_state)``.

A solver must pass each gradient of :math:`F_k` through ``correction.update(gradient, state, params)`` before it
uses it, start from ``correction.init(params)``, and return the last state.
"""


Corrected: TypeAlias = Callable[
    [Params, PyTree, ClientData, Key, optax.GradientTransformation], tuple[Params, PyTree, PyTree]
]
"""``(params, state, data, key, correction) -> (params, state, correction_state)``."""


class Parts(NamedTuple):
    """What mini-batch descent is made of, for methods with a loop of their own.

    Attributes:
      schedule: the batches of a round.
      estimate: the gradient on a batch.
      client_opt: ``data -> optimiser``, the one that takes the steps in the round of ``data``.
    """

    schedule: Batches
    estimate: Estimator
    client_opt: ClientOpt
    __repr__ = short


class Continued(NamedTuple):
    """Local work that continues from round to round, with the state of its optimiser.

    Attributes:
      init: ``params -> state`` before the first step.
      solve: ``(params, state, data, key) -> (params, state)``.
      corrected: ``(params, state, data, key, correction) -> (params, state, correction_state)``, the same with a
        correction of each gradient, as in a :data:`Solver`; None: gradients cannot be corrected.
    """

    init: Callable[[Params], PyTree]
    solve: Callable[[Params, PyTree, ClientData, Key], tuple[Params, PyTree]]
    corrected: Corrected | None = None
    __repr__ = short


class KeptOptimiser(NamedTuple):
    """Local work whose optimiser lives on at the client, as client state.

    Attributes:
      init: ``params -> state`` of a client that has not trained yet.
      solve: ``(params, state, data, key, correction) -> (params, state, correction_state)``.
    """

    init: Callable[[Params], PyTree]
    solve: Corrected
    __repr__ = short


class Work(NamedTuple):
    """Local work, the first argument of most methods.

    Made by :func:`evenhand.local.sgd`, or from a solver of your own by ``Work(model, solve)``.

    Attributes:
      model: what is trained.
      solve: the training itself, a :data:`Solver`.
      effort: ``data -> Effort``, so that clients of similar effort train at the same time.
      step_size: the step size, if this is plain gradient descent, else None; see :meth:`step_in`.
      of_risk: ``risk -> Work``, the same work on another risk of each batch's losses; None: the risk cannot be changed.
      parts: what it is made of, where it is mini-batch descent; else None.
      continued: the same steps, continued from round to round; None: that is not possible.
      privacy: what it guarantees about the privacy of examples; None: nothing.
      schedule: by what it multiplies the updates of each round; None: by nothing.
      keeps: whether its optimiser's state lives on at the client from round to round; a method then keeps the state of
        ``continued`` there, and one that cannot refuses the work.

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
    schedule: Schedule | None = None
    keeps: bool = False
    __repr__ = short

    def step_in(self, data: ClientData) -> Array | float | None:
        """The step size in the round of ``data``, where this is plain gradient descent, else None."""
        if self.step_size is None or self.schedule is None or data.round is None:
            return self.step_size
        return self.step_size * self.schedule(data.round)

    @property
    def kept(self) -> KeptOptimiser | None:
        """The work from the optimiser's state that a client has kept; None: it begins afresh in each round."""
        if not self.keeps or self.continued is None or self.continued.corrected is None:
            return None
        return KeptOptimiser(self.continued.init, self.continued.corrected)


def parts_of(work: Work, factory: str) -> Parts:
    """The parts of local work, for the method ``factory`` that takes its steps itself.

    Raises:
      EvenhandError: it is not mini-batch descent.
    """
    if (statistics := work.model.statistics) is not None:
        raise EvenhandError(
            f"{factory}() has its own loop of local steps, which would train the running statistics of the model "
            f"({statistics.paths[0]}) by gradients: use fedavg() or a variant of it, ditto(), finetune() or fedsim(), "
            "or a model with GroupNorm or LayerNorm."
        )
    if work.parts is None:
        raise EvenhandError(
            f"{factory}() has its own loop of local steps, and got work that is not mini-batch descent: "
            "make it with eh.local.sgd(model, ...)."
        )
    return work.parts


def check_model(model: object) -> None:
    """Checks that ``model`` is a :class:`~evenhand.types.Model`.

    Raises:
      EvenhandError: it is not; the sentence says how to make one.
    """
    example = "eh.models.softmax_regression(features=64, classes=10), or a flax module through "
    example += (
        "eh.models.from_flax(module, loss=..., sample=...), or one of equinox through eh.models.from_equinox"
    )
    expect("model", model, Model, example)


def check_rows_apart(model: Model, factory: str, reason: str) -> None:
    """Checks that the loss of an example depends on that example alone, in training, too.

    Args:
      model: what is trained.
      factory: the function that needs it.
      reason: why it does, for sentences.

    Raises:
      EvenhandError: the model measures running statistics on batches.
    """
    if (statistics := model.statistics) is not None:
        raise EvenhandError(
            f"{factory} does not take a model with running statistics ({statistics.paths[0]}): {reason}. Use "
            "GroupNorm or LayerNorm instead of BatchNorm."
        )


_TO_FEDAVG = "give this work to eh.algorithms.fedavg or eh.algorithms.alone"
_AROUND = (
    "ditto(...) and finetune(...) may then be put around fedavg, with ordinary work for the personal models"
)
_OTHERWISE = (
    "this method uses the examples in steps of its own, or sends what it computes from them, and the guarantee counts "
    f"only the steps of the work: {_TO_FEDAVG}; {_AROUND}"
)


def check_work(
    work: object,
    name: str = "work",
    *,
    private: bool = False,
    keeps: bool = False,
    statistics_stay: bool = False,
    objection: str = _OTHERWISE,
) -> Work:
    """``work``, checked to be local work on a model.

    Args:
      work: what is checked.
      name: the argument that it was passed as.
      private: whether work that guarantees privacy is taken: by methods that look at examples in no other way.
      keeps: whether work that keeps its optimiser is taken: by methods whose clients keep its state, and by finetuning,
        which begins afresh each time.
      statistics_stay: whether work on a model is taken whose running statistics stay with their client.
      objection: why work that guarantees privacy is not taken, and what to do.

    Raises:
      EvenhandError: it is no work, or of a kind that is not taken.
    """
    expect(name, work, Work, "eh.local.sgd(model, 0.1, epochs=1, batch_size=10)")
    assert isinstance(work, Work)
    check_model(work.model)
    if work.privacy is not None and not private:
        raise EvenhandError(f"{name}: this work guarantees privacy, but {objection}.")
    if work.keeps and not keeps:
        raise EvenhandError(
            f"{name}: this work has keep_optimiser=True, but the clients of this method keep no optimiser: leave it "
            "out, or use fedavg or a variant of it, scaffold, ditto or alone."
        )
    if (statistics := work.model.statistics) is not None and statistics.stay and not statistics_stay:
        raise EvenhandError(
            f'{name}: the running statistics of this model stay with their client (state="local"), and this method '
            'sends whole models: make the model with state="average", or use fedavg(), fedprox(), qfedavg(), '
            "delta_fl(), term(), fedmgda(), fedsim(), fedbn(), alone() or local_only()."
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
    batch_size: int | float | None = None,
    risk: RowRisk | None = None,
    schedule: Schedule | Callable[[Array], Any] | None = None,
    keep_optimiser: bool = False,
) -> Work:
    r"""Mini-batch descent with any optax optimiser, which starts afresh in every round unless it is kept.

    Each step is

    .. math:: w \leftarrow w + f(t) \, \text{client\_opt}\big(\text{correction}(\nabla F_k(w; b))\big)

    in round :math:`t`, counted from 0, for a batch ``b`` of the client's examples, and :math:`\nabla F_k(w; b)` the
    gradient of the mean loss over ``b``, or of another risk of its losses.  The correction is what a method adds, such
    as a proximal term.

    Args:
      model: what is trained.
      client_opt: the optimiser; a number means plain gradient descent with that step size.
      epochs: passes ``E`` over the client's examples, reshuffled each time; give this or ``steps``.
      steps: the number of batches, over as many passes as they take.
      batch_size: examples per batch; a number below 1 is the share of the client's examples, at least one; None: all of
        them, one step per epoch.
      risk: the risk of a batch's losses, such as ``eh.risks.tilted(1.0)``; None: their mean.  Or a function of the
        batch's labels that gives one, to group losses: ``lambda y: eh.risks.hierarchical(..., y, classes)``.
      schedule: :math:`f`, by which the updates of a round are multiplied, and so the step size: such as
        ``eh.local.steps(0.5, every=20)``, any optax schedule, or a traceable function of an int32 scalar; None: 1.
      keep_optimiser: keep the optimiser's state, such as momentum, at each client from round to round; False: it starts
        afresh in every round, and so does a schedule inside the optimiser.

    For the part that a straggler completes see :func:`evenhand.local.batches`.

    Edge cases: finetuning before an evaluation is no round: it takes the step size itself, and a fresh optimiser.  The
    kept optimiser of a client that drops out, or whose upload is rejected, stays as it was.

    Raises:
      EvenhandError: a step size that is negative or not finite; not exactly one of ``epochs`` and ``steps`` given; or
        one of these or ``batch_size`` is not a whole number from 1 to a million, nor a share; or a schedule that gives
        no number.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = sgd(model, 0.1, epochs=5, batch_size=10)
      >>> work.step_size
      0.1
      >>> work = sgd(model, 0.1, epochs=5, batch_size=10, schedule=eh.local.steps(0.5, every=20))
      >>> work.schedule
      <Schedule steps(0.5, every=20)>
    """
    keep_optimiser = truth_value("keep_optimiser", keep_optimiser)
    check_model(model)
    optimiser, step_size = _optimiser(client_opt)
    optimiser, factors = marked(optimiser), schedule_from(schedule)
    order = batches(epochs=epochs, steps=steps, batch_size=batch_size)

    def of_risk(risk: RowRisk | None) -> Work:
        parts = Parts(order, batch_gradient(model, risk), by_round(optimiser, step_size, factors))
        # Work that already has a risk does not take another.
        another = of_risk if risk is None else None
        return Work(
            model=model,
            solve=descent(*parts, model.statistics),
            effort=order.effort,
            step_size=step_size,
            of_risk=another,
            parts=parts,
            continued=continued(*parts, optimiser.init, model.statistics),
            schedule=factors,
            keeps=keep_optimiser,
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


def descent(
    schedule: Batches,
    estimate: Estimator,
    client_opt: ClientOpt,
    statistics: RunningStatistics | None = None,
) -> Solver:
    """A solver that takes one step of the optimiser per batch, on the corrected estimate of the gradient.

    ``statistics`` are those of the model: neither the correction nor the optimiser changes them.
    """

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        optimise = spared(client_opt(data), statistics, sign=-1.0)
        correction = spared(correction, statistics, sign=1.0)

        # The loop of over_batches, written out: a loss that fails is then few calls below the method that asks for it.
        def step(carry: tuple[Array, Params, PyTree, PyTree]) -> tuple[Array, Params, PyTree, PyTree]:
            (i, w, optimiser, corrected), after = carry, carry[0] + 1
            gradient = estimate(w, batch(i), jax.random.fold_in(key, i))
            gradient, corrected = correction.update(gradient, corrected, w)
            updates, optimiser = optimise.update(gradient, optimiser, w)
            return after, optax.apply_updates(w, updates), optimiser, corrected

        states = optimise.init(params), correction.init(params)
        batch, total = schedule.draw(data, key), schedule.effort(data).steps
        begin = jnp.int32(0), params, *states
        _, end, _, corrected = lax.while_loop(lambda carry: carry[0] < total, step, begin)
        return end, corrected

    return solve


def continued(
    schedule: Batches,
    estimate: Estimator,
    client_opt: ClientOpt,
    init: Callable[[Params], PyTree],
    statistics: RunningStatistics | None = None,
) -> Continued:
    """The same descent, with the optimiser's state, which ``init`` makes, kept from round to round."""

    def corrected(
        params: Params, state: PyTree, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree, PyTree]:
        optimise = spared(client_opt(data), statistics, sign=-1.0)
        correction = spared(correction, statistics, sign=1.0)

        def step(
            carry: tuple[Params, PyTree, PyTree], batch: Batch, key: Key
        ) -> tuple[Params, PyTree, PyTree]:
            w, before, corrected = carry
            gradient, corrected = correction.update(estimate(w, batch, key), corrected, w)
            updates, after = optimise.update(gradient, before, w)
            return optax.apply_updates(w, updates), after, corrected

        return over_batches(schedule, step, (params, state, correction.init(params)), data, key)

    def solve(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        params, state, _ = corrected(params, state, data, key, optax.identity())
        return params, state

    return Continued(init, solve, corrected)


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
