r"""Local work: what a client does with its own rows between a broadcast and its upload.

A *solver* runs some optimiser on :math:`F_k` from the broadcast parameters.  What a method adds to the gradient (a
proximal term, a control variate) is an optax transformation placed before the optimiser, so that any method works
with any optimiser and any solver of the user's own.

No row is wasted or counted twice: batches are consecutive slices of a fresh permutation of the client's own rows,
the last one may be smaller and is used with the mean over its own size, and nothing is padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import permutation, tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.lowering import lowered
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, PyTree

__all__ = [
    "Sgd",
    "Solver",
    "effort_of",
    "full_gradient",
    "full_loss",
    "mean_gradient",
    "proximal",
    "sgd",
    "shift",
]

Solver: TypeAlias = Callable[[Params, ClientData, Key, optax.GradientTransformation], tuple[Params, PyTree]]
"""``(params, data, key, correction) -> (params, correction_state)``.

A solver must pass each gradient of :math:`F_k` through ``correction.update(gradient, state, params)`` before it
uses it, start from ``correction.init(params)``, and return the last state.
"""

_MOST = 10**6
"""Most epochs, steps or rows per batch: more is a slip of the keyboard, and would overflow an int32."""
_CHUNK_NUMBERS = 2**17
"""Numbers in the rows of one slice of a pass over a client's rows, about: bounds memory."""
_CHUNK_ROWS = (64, 512)
"""Fewest and most rows in a slice."""


class Sgd(NamedTuple):
    """Mini-batch descent, made by :func:`sgd`: a :data:`Solver` that can tell how much work it has.

    Attributes:
      solve: the solver itself; calling the tuple calls it.
      effort: ``data -> Effort``.
    """

    solve: Solver
    effort: Callable[[ClientData], Effort]

    def __call__(
        self, params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        """``solve``."""
        return self.solve(params, data, key, correction)


def effort_of(solver: Solver) -> Callable[[ClientData], Effort] | None:
    """How much work ``solver`` has with a client, where it can tell."""
    return solver.effort if isinstance(solver, Sgd) else None


def sgd(
    model: Model,
    *,
    client_opt: optax.GradientTransformation,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
) -> Sgd:
    r"""Mini-batch descent with any optax optimiser: each step is

    .. math:: w \leftarrow w + \text{client\_opt}\big(\text{correction}(\nabla F_k(w; b))\big)

    for a batch ``b`` of the client's rows, and :math:`\nabla F_k(w; b)` the gradient of the mean loss over ``b``.

    Args:
      model: gives the losses.
      client_opt: the optimiser; its state starts anew in every round.
      epochs: passes over the client's rows, reshuffled each time; or else
      steps: how many batches, over as many passes as that takes.
      batch_size: rows per batch; None: all rows of the client, one step per epoch.

    A straggler (``data.progress < 1``) does ``1 + floor(progress * epochs)`` epochs, or that share of its steps
    where there is one epoch only or where work is counted in steps.

    Raises:
      EvenhandError: not exactly one of ``epochs`` and ``steps``, or one that is no whole number from 1 to a million.
    """
    _check_work(epochs, steps, batch_size)
    slope = jax.jit(jax.grad(partial(_mean_loss, model)))  # traced once, whoever traces the solver

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
            if batch_size is None:
                return full_gradient(model, params, data, step_key)
            first = (i % per_epoch) * batch_size
            positions = first + jnp.arange(min(batch_size, data.capacity), dtype=jnp.int32)
            inside = positions < data.size
            order = permutation.permute(positions, data.size, word, i // per_epoch)
            x, y = _rows(data, jnp.where(inside, order, 0))
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


def full_gradient(model: Model, params: Params, data: ClientData, key: Key | None = None) -> Params:
    r""":math:`\nabla F_k(w)`: the gradient of the mean loss over all rows of the client, as in ``params``.

    With ``key`` the forward pass is the one for training (dropout), without it the one for evaluation.
    """
    count = jnp.maximum(data.size, 1).astype(jnp.float32)

    def add(total: Params, x: Array, y: Array, inside: Array, chunk: Array) -> Params:
        chunk_key = None if key is None else jax.random.fold_in(key, chunk)
        return tree.add(total, jax.grad(_sum_loss)(params, model, x, y, inside, chunk_key))

    return tree.scale(1.0 / count, _over_rows(data, tree.zeros_like(params), add))


def full_loss(model: Model, params: Params, data: ClientData) -> Array:
    r""":math:`F_k(w)`: the mean loss over all rows of the client, a float32 scalar."""
    count = jnp.maximum(data.size, 1).astype(jnp.float32)

    def add(total: Array, x: Array, y: Array, inside: Array, chunk: Array) -> Array:
        return total + _sum_loss(params, model, x, y, inside, None)

    return _over_rows(data, jnp.float32(0.0), add) / count


def proximal(mu: Array | float, anchor: Params) -> optax.GradientTransformation:
    r"""Adds :math:`\mu (w - w^t)`, the gradient of :math:`\frac{\mu}{2} \|w - w^t\|^2`, with ``anchor`` as :math:`w^t`.

    Example:
      >>> import jax.numpy as jnp
      >>> pull = proximal(0.5, jnp.array([1.0]))
      >>> pull.update(jnp.array([0.0]), pull.init(jnp.array([3.0])), jnp.array([3.0]))[0].tolist()
      [1.0]
    """

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        pulled = jax.tree.map(lambda g, w, a: g + (mu * (w - a)).astype(g.dtype), updates, params, anchor)
        return pulled, state

    return optax.GradientTransformation(_stateless, update)


def shift(offset: Params) -> optax.GradientTransformation:
    """Adds the same ``offset`` to every gradient: a control variate, or FedDane's gradient correction."""

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        return tree.add(updates, offset), state

    return optax.GradientTransformation(_stateless, update)


class MeanGradient(NamedTuple):
    """State of :func:`mean_gradient`: the running mean and how many gradients are in it."""

    mean: Params
    seen: Array


def mean_gradient() -> optax.GradientTransformation:
    """Passes gradients through unchanged and keeps their mean in its state, a :class:`MeanGradient`."""

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        assert isinstance(state, MeanGradient)
        seen = state.seen + 1
        mean = jax.tree.map(lambda m, g: m + (g - m) / seen.astype(m.dtype), state.mean, updates)
        return updates, MeanGradient(mean, seen)

    return optax.GradientTransformation(
        lambda params: MeanGradient(tree.zeros_like(params), jnp.int32(0)), update
    )


class _Descent(NamedTuple):
    step: Array
    params: Params
    optimiser: optax.OptState
    correction: optax.OptState


def _stateless(params: Params) -> optax.OptState:
    return optax.EmptyState()


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


def _rows(data: ClientData, positions: Array) -> tuple[Array, Array]:
    if jax.default_backend() != "cpu":
        return data.x[data.start + positions], data.y[data.start + positions]
    # XLA:CPU gathers number by number, and works out each index anew for each; a slice per row is a copy of memory.
    index = lax.optimization_barrier(data.start + positions)

    def copy(row: Array, batch: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(batch, lax.dynamic_slice_in_dim(data.x, index[row], 1), row, 0)

    batch = jnp.zeros((*index.shape, *data.x.shape[1:]), data.x.dtype)
    return lax.fori_loop(0, index.shape[0], copy, batch), data.y[index]


def _over_rows(
    data: ClientData, begin: PyTree, add: Callable[[PyTree, Array, Array, Array, Array], PyTree]
) -> PyTree:
    """Folds ``add(total, x, y, inside, chunk)`` over the client's rows, a slice at a time."""
    fewest, most = _CHUNK_ROWS
    fitting = _CHUNK_NUMBERS // max(1, math.prod(data.x.shape[1:]))
    width = min(max(fewest, min(fitting, most)), data.capacity)

    def body(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        chunk, total = carry
        positions = chunk * width + jnp.arange(width, dtype=jnp.int32)
        inside = positions < data.size
        x, y = _rows(data, jnp.where(inside, positions, 0))
        return chunk + 1, add(total, x, y, inside, chunk)

    return lax.while_loop(lambda carry: carry[0] * width < data.size, body, (jnp.int32(0), begin))[1]


def _sum_loss(params: Params, model: Model, x: Array, y: Array, inside: Array, key: Key | None) -> Array:
    if key is None or model.apply_train is None:
        outputs = lowered(model.apply)(params, x)
    else:
        outputs = lowered(model.apply_train)(params, x, key)
    return jnp.sum(jnp.where(inside, model.losses(outputs, y), 0.0))


def _mean_loss(model: Model, params: Params, x: Array, y: Array, inside: Array, key: Key) -> Array:
    return _sum_loss(params, model, x, y, inside, key) / jnp.maximum(jnp.sum(inside), 1).astype(jnp.float32)


def _check_work(epochs: int | None, steps: int | None, batch_size: int | None) -> None:
    if (epochs is None) == (steps is None):
        raise EvenhandError("Local work needs exactly one of epochs= and steps=: give one of them.")
    for name, value in (("epochs", epochs), ("steps", steps), ("batch_size", batch_size)):
        if value is not None:
            whole_number(name, value, 1, _MOST)
