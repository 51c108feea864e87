"""Central training as a method, which runs, studies and the command line take like a federated one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand.aggregators import mean as average
from evenhand.centralized._solver import Solver, check_model
from evenhand.centralized._weighting import Weighed, Weighting, weighted
from evenhand.centralized.quasi_newton import RiskOf, quasi_newton
from evenhand.errors import EvenhandError, expect, real_number, whole_number
from evenhand.local import rows_in
from evenhand.models import with_loss
from evenhand.models.losses import Loss
from evenhand.risks import hierarchical, mean
from evenhand.sampling import uniform
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Effort,
    Key,
    Model,
    Params,
    Phase,
    PyTree,
    Report,
    Risk,
)

__all__ = ["fit"]

_MEAN = mean()
_RATE = 0.01
"""Adam's step size where none is given, for features and targets on the usual scale."""


class _State(NamedTuple):
    """The solver's state, and how many steps it has done."""

    solver: PyTree
    number: Array


def fit(
    model: Model,
    *,
    risk: Risk = _MEAN,
    inner: Risk | None = None,
    loss: Loss | None = None,
    weighting: Weighting | None = None,
    learning_rate: float | None = None,
    batch_size: int | float | None = None,
    steps: int = 10,
    length: int = 500,
) -> Algorithm:
    r"""Trains one model on the examples of all clients together, on any risk of their losses.

    .. math:: \min_\theta R\big(f(x_1, y_1; \theta), \dots, f(x_N, y_N; \theta)\big)

    Rounds only say when the model is measured and saved; clients, or groups of examples that take their place, are only
    evaluated.

    Args:
      model: what is trained.
      risk: :math:`R`, such as ``tilted(50)``.
      inner: the risk within each class of the labels, such as ``mean()``: ``risk`` is then one over classes,
        as in hierarchical TERM.  None: ``risk`` is over all examples.
      loss: of each example in training, such as ``focal(2)``; what is reported is the model's own,
        so that methods with different losses can be compared.  None: the model's own.
      weighting: of examples, such as ``self_paced()``, in place of a risk.
      learning_rate: the step size of Adam; None: 0.01 with batches or a weighting, else L-BFGS, which has no step size
        to choose.
      batch_size: examples per step, drawn uniformly with replacement; the risk is that of each batch.  A number below 1
        is the share of all examples, rounded down to at least one example.  None: all.
      steps: steps per round.
      length: the number of steps in the whole training, for weightings that change with the progress.

    Raises:
      EvenhandError: a number out of range, a weighting beside a risk, a class risk without classes, or L-BFGS for a
        model that draws random numbers in training.

    Edge cases: the risk of a batch is a biased estimate of that of all examples, the more so the larger the tilt;
    :func:`evenhand.centralized.stochastic` corrects this with a running normaliser.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=5)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> run = eh.simulate(fit(model, risk=eh.risks.tilted(1.0)), data, rounds=3)
      >>> bool(run.history["test_accuracy"][-1] > 0.9)
      True

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023.
    """
    check_model(model)
    steps = whole_number("steps", steps, 1, 10**6)
    if loss is not None:
        reported = {"loss": model.losses, **model.metrics}
        model = with_loss(model, loss)._replace(metrics=reported)
    rows_of = None if batch_size is None else rows_in(batch_size, "all examples")
    solver = _solver(model, risk, inner, weighting, learning_rate, batch_size, length)

    def begin(params: Params, x: Array, y: Array) -> _State:
        return _State(solver.init(params, x, y), jnp.int32(0))

    def train(message: Params, state: _State, data: ClientData, key: Key) -> tuple[Params, _State]:
        # All rows are this client's, so that the window on them is the whole.
        x, y = (lax.dynamic_slice_in_dim(part, data.start, data.capacity) for part in (data.x, data.y))

        def step(i: Array, inside: PyTree) -> PyTree:
            return solver.step(inside, x, y, state.number + i, jax.random.fold_in(key, i))

        after = lax.fori_loop(0, steps, step, state.solver)
        return solver.params(after), _State(after, state.number + steps)

    def effort(data: ClientData) -> Effort:
        rows = data.size if rows_of is None else jnp.int32(rows_of(data.size))
        # Of an empty slot, too, which no round has.
        return Effort(jnp.where(data.size > 0, steps, 0), jnp.where(data.size > 0, steps * rows, 0))

    phase = Phase(
        broadcast=lambda state, client: state,
        report=lambda message, state, data: Report(jnp.float32(1.0), jnp.float32(jnp.nan)),
        work=train,
        aggregator=average(),
        # The upload is the model itself: a difference added to the old one would round.
        server=lambda state, direction, reported, key: (direction, {}),
        effort=effort,
    )
    return Algorithm(
        model=model,
        init=lambda params, clients: params,
        phases=(phase,),
        global_params=lambda state: state,
        sampling=uniform(weighted=False),
        received=lambda message: message,
        pooled=begin,
        name="fit",
    )


def _solver(
    model: Model,
    risk: Risk,
    inner: Risk | None,
    weighting: Weighting | None,
    learning_rate: float | None,
    batch_size: int | float | None,
    length: int,
) -> Solver:
    """L-BFGS on all examples, or Adam on weights from the risk or the weighting."""
    expect("risk", risk, Risk, "eh.risks.tilted(1.0)")
    over_labels = risk if inner is None else _over_classes(model, risk, inner)
    if weighting is None and learning_rate is None and batch_size is None:
        return quasi_newton(model, over_labels)
    if weighting is None:
        weighting = _by_risk(over_labels)
    elif risk is not _MEAN or inner is not None:
        raise EvenhandError("fit() got a weighting and a risk: both weigh examples, so give one of them.")
    rate = _RATE if learning_rate is None else learning_rate
    if not 0.0 < real_number(rate) < float("inf"):
        raise EvenhandError(f"fit(learning_rate={rate}): give a finite number above 0.")
    return weighted(model, weighting, batch_size=batch_size, optimiser=optax.adam(rate), steps=length)


def _over_classes(model: Model, outer: Risk, inner: Risk) -> RiskOf:
    """A risk over the classes of the labels, of the risk within each."""

    def risk(params: Params, x: Array, y: Array) -> Risk:
        labels = y.reshape(y.shape[0])
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise EvenhandError(
                "fit(inner=...) is for a risk over classes, but the labels are real numbers: leave it out."
            )
        # Of a support vector machine, the outputs are its scores and its parameters.
        shape = jax.tree.leaves(jax.eval_shape(model.apply, params, x))[0].shape
        is_binary = len(shape) < 2 or shape[-1] == 1  # one score, for labels 0 and 1, or -1 and 1
        classes = 2 if is_binary else shape[-1]
        return hierarchical(outer, inner, (labels > 0).astype(jnp.int32) if is_binary else labels, classes)

    return risk


def _by_risk(risk: Risk | RiskOf) -> Weighting:
    """The weights of a risk of each batch."""

    def weigh(model: Model, state: PyTree, batch: Weighed) -> tuple[Array, PyTree]:
        now = risk if isinstance(risk, Risk) else risk(batch.params, batch.x, batch.y)
        return batch.losses.shape[0] * now.weights(batch.losses), state

    return Weighting(init=lambda model, x, y: (), weigh=weigh, name="a risk")
