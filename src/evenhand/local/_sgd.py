"""Mini-batch descent on a client's rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import permutation
from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.local._passes import full_gradient, losses_of, rows_at
from evenhand.naming import short
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, PyTree, Risk

__all__ = ["RowRisk", "Sgd", "Solver", "effort_of", "sgd", "step_per_row"]

Solver: TypeAlias = Callable[[Params, ClientData, Key, optax.GradientTransformation], tuple[Params, PyTree]]
"""``(params, data, key, correction) -> (params, correction_state)``.

A solver must pass each gradient of :math:`F_k` through ``correction.update(gradient, state, params)`` before it
uses it, start from ``correction.init(params)``, and return the last state.
"""

RowRisk: TypeAlias = Risk | Callable[[Array], Risk]
"""A risk over the rows of a batch, or a function of the batch's labels that gives one."""

_MOST = 10**6
"""Most epochs, steps or rows per batch: more is a slip of the keyboard, and would overflow an int32."""


class Sgd(NamedTuple):
    """Mini-batch descent, made by :func:`sgd`: a :data:`Solver` that can tell how much work it has.

    Attributes:
      solve: the solver itself; calling the tuple calls it.
      effort: ``data -> Effort``.
    """

    solve: Solver
    effort: Callable[[ClientData], Effort]
    __repr__ = short

    def __call__(
        self, params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        """``solve``."""
        return self.solve(params, data, key, correction)


def effort_of(solver: Solver) -> Callable[[ClientData], Effort] | None:
    """How much work ``solver`` has with a client, where it can tell."""
    return solver.effort if isinstance(solver, Sgd) else None


def step_per_row(data: ClientData) -> Effort:
    """What work is taken for that cannot be told: one step, of one row, per row that a straggler gets to."""
    rows = jnp.ceil(data.size.astype(jnp.float32) * jnp.minimum(data.progress, 1.0)).astype(jnp.int32)
    return Effort(rows, rows)


def sgd(
    model: Model,
    *,
    client_opt: optax.GradientTransformation,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    risk: RowRisk | None = None,
) -> Sgd:
    r"""Mini-batch descent with any optax optimiser: each step is

    .. math:: w \leftarrow w + \text{client\_opt}\big(\text{correction}(\nabla F_k(w; b))\big)

    for a batch ``b`` of the client's rows, and :math:`\nabla F_k(w; b)` the gradient of the mean loss over ``b``, or of
    another risk of its losses.

    Args:
      model: gives the losses.
      client_opt: the optimiser; its state starts anew in every round.
      epochs: passes over the client's rows, reshuffled each time; or else
      steps: how many batches, over as many passes as that takes.
      batch_size: rows per batch; None: all rows of the client, one step per epoch.
      risk: what becomes of the losses of a batch, such as ``eh.risks.tilted(1.0)``; None: their mean.  A function of
        the batch's labels, where losses are grouped by them: ``lambda y: eh.risks.hierarchical(..., y, classes)``.  The
        risk of a batch is not an unbiased estimate of that of all rows, unless it is the mean.

    A straggler (``data.progress < 1``) does ``1 + floor(progress * epochs)`` epochs, or that share of its steps
    where there is one epoch only or where work is counted in steps.

    Raises:
      EvenhandError: not exactly one of ``epochs`` and ``steps``, or one that is not a whole number from 1 to a million.
    """
    expect("client_opt", client_opt, optax.GradientTransformation, "optax.sgd(0.1)")
    _check_work(epochs, steps, batch_size)
    slope = jax.jit(jax.grad(partial(_batch_loss, model, risk)))  # traced once, whoever traces the solver

    def batches_per_epoch(data: ClientData) -> Array:
        return jnp.int32(1) if batch_size is None else (data.size + (batch_size - 1)) // batch_size

    def effort(data: ClientData) -> Effort:
        per_epoch = jnp.maximum(batches_per_epoch(data), 1)
        over = (total := _num_steps(data, per_epoch, epochs, steps)) % per_epoch
        rest = data.size if batch_size is None else jnp.minimum(over * batch_size, data.size)
        return Effort(total, total // per_epoch * data.size + jnp.where(over > 0, rest, 0))

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        word, per_epoch, total = permutation.words(key), batches_per_epoch(data), effort(data).steps

        def gradient(i: Array, params: Params) -> Params:
            step_key = jax.random.fold_in(key, i) if model.apply_train is not None else key
            if batch_size is None and risk is None:
                return full_gradient(model, params, data, step_key)
            rows = batch_size or data.capacity
            positions = (i % per_epoch) * rows + jnp.arange(min(rows, data.capacity), dtype=jnp.int32)
            inside = positions < data.size
            order = permutation.permute(positions, data.size, word, i // per_epoch)
            x, y = rows_at(data, jnp.where(inside, order, 0))
            return slope(params, x, y, inside, step_key)

        def step(carry: _Descent) -> _Descent:
            grads, correction_state = correction.update(
                gradient(carry.step, carry.params), carry.correction, carry.params
            )
            updates, opt_state = client_opt.update(grads, carry.optimiser, carry.params)
            params = optax.apply_updates(carry.params, updates)
            return _Descent(carry.step + 1, params, opt_state, correction_state)

        begin = _Descent(jnp.int32(0), params, client_opt.init(params), correction.init(params))
        end = lax.while_loop(lambda carry: carry.step < total, step, begin)
        return end.params, end.correction

    return Sgd(solve, effort)


class _Descent(NamedTuple):
    step: Array
    params: Params
    optimiser: optax.OptState
    correction: optax.OptState


def _batch_loss(
    model: Model, risk: RowRisk | None, params: Params, x: Array, y: Array, inside: Array, key: Key
) -> Array:
    losses = losses_of(params, model, x, y, inside, key)
    if risk is None:
        return jnp.sum(losses) / jnp.maximum(jnp.sum(inside), 1).astype(jnp.float32)
    return (risk if isinstance(risk, Risk) else risk(y)).value(losses, inside.astype(losses.dtype))


def _num_steps(data: ClientData, per_epoch: Array, epochs: int | None, steps: int | None) -> Array:
    """Local steps of this client in this round: all, or the part that a straggler manages."""

    def part(whole: Array) -> Array:
        done = 1 + jnp.floor(data.progress * whole.astype(jnp.float32)).astype(jnp.int32)
        return jnp.where(data.progress < 1, jnp.minimum(done, whole), whole)

    if steps is not None:
        total = part(jnp.int32(steps))
    elif epochs == 1:
        total = part(per_epoch)
    else:
        total = part(jnp.int32(epochs or 0)) * per_epoch
    return jnp.where(data.size > 0, total, 0)


def _check_work(epochs: int | None, steps: int | None, batch_size: int | None) -> None:
    if (epochs is None) == (steps is None):
        raise EvenhandError("Local work needs exactly one of epochs= and steps=: give one of them.")
    for name, value in (("epochs", epochs), ("steps", steps), ("batch_size", batch_size)):
        if value is not None:
            whole_number(name, value, 1, _MOST)
