"""Losses and gradients of a client: over all of its examples, on a batch of them, and what methods add to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import tree
from evenhand._paths import KeyPath, named_path
from evenhand.errors import ModelError
from evenhand.local._batches import Batch, rows_at
from evenhand.lowering import lowered
from evenhand.types import Array, ClientData, Key, Model, Params, PyTree, Risk, RunningStatistics

# --- over all examples -------------------------------------------------------------------------------------------

_CHUNK_NUMBERS = 2**17
"""About how many numbers one slice of a pass over a client's examples holds, to bound memory."""
_CHUNK_ROWS = (64, 512)
"""Fewest and most examples in a slice."""


def full_gradient(model: Model, params: Params, data: ClientData, key: Key | None = None) -> Params:
    r""":math:`\nabla F_k(w)`: the gradient of the mean loss over all of the client's examples, a tree like ``params``.

    With ``key`` the forward pass is the one for training (dropout), without it the one for evaluation.

    Raises:
      ModelError: the model keeps running statistics, which are measured on batches.
    """
    if model.statistics is not None:
        raise ModelError(
            f"{model.name or 'This model'} keeps running statistics ({model.statistics.paths[0]}), which are measured "
            "on batches, and this method takes a gradient over all examples of a client at once: use fedavg() or a "
            "variant of it, or a model with GroupNorm or LayerNorm."
        )
    count = jnp.maximum(data.size, 1).astype(jnp.float32)

    def add(total: Params, x: Array, y: Array, inside: Array, chunk: Array) -> Params:
        chunk_key = None if key is None else jax.random.fold_in(key, chunk)
        return tree.add(total, jax.grad(_sum_loss)(params, model, x, y, inside, chunk_key))

    return tree.scale(1.0 / count, _over_rows(data, tree.zeros_like(params), add))


def full_loss(model: Model, params: Params, data: ClientData) -> Array:
    r""":math:`F_k(w)`: the mean loss over all of the client's examples, a float32 scalar."""
    count = jnp.maximum(data.size, 1).astype(jnp.float32)

    def add(total: Array, x: Array, y: Array, inside: Array, chunk: Array) -> Array:
        return total + _sum_loss(params, model, x, y, inside, None)

    return _over_rows(data, jnp.float32(0.0), add) / count


def _over_rows(
    data: ClientData, begin: PyTree, add: Callable[[PyTree, Array, Array, Array, Array], PyTree]
) -> PyTree:
    """Folds ``add(total, x, y, inside, chunk)`` over the client's examples, a slice at a time."""
    fewest, most = _CHUNK_ROWS
    fitting = _CHUNK_NUMBERS // max(1, math.prod(data.x.shape[1:]))
    width = min(max(fewest, min(fitting, most)), data.capacity)

    def body(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        chunk, total = carry
        positions = chunk * width + jnp.arange(width, dtype=jnp.int32)
        inside = positions < data.size
        x, y = rows_at(data, jnp.where(inside, positions, 0))
        return chunk + 1, add(total, x, y, inside, chunk)

    return lax.while_loop(lambda carry: carry[0] * width < data.size, body, (jnp.int32(0), begin))[1]


def _sum_loss(params: Params, model: Model, x: Array, y: Array, inside: Array, key: Key | None) -> Array:
    return jnp.sum(jnp.where(inside, model.losses(_outputs(params, model, x, key), y), 0.0))


def _outputs(params: Params, model: Model, x: Array, key: Key | None) -> Array:
    """What the model gives; with a ``key``, by its forward pass for training."""
    if key is None or model.apply_train is None:
        return lowered(model.apply)(params, x)
    return lowered(model.apply_train)(params, x, key)


# --- on a batch --------------------------------------------------------------------------------------------------

Estimator: TypeAlias = Callable[[Params, Batch, Key], Params]
"""``(params, batch, key) -> gradient``; the key is for dropout and noise."""

RowRisk: TypeAlias = Risk | Callable[[Array], Risk]
"""A risk over the examples of a batch, or a function of the batch's labels that gives one."""


def batch_gradient(model: Model, risk: RowRisk | None = None) -> Estimator:
    r""":math:`\nabla F_k(w; b)`, the gradient of the mean loss over the batch, or of another risk of its losses.

    Args:
      model: gives the losses.
      risk: the risk of a batch's losses; None: their mean.  Except for the mean, the risk of a batch is a biased
        estimate of that of all examples.

    Running statistics of the model have no gradient: in their place is what they have to fall by, ``s - s_new``, which
    :func:`spared` keeps from what is done to gradients.
    """
    if model.statistics is not None:
        return _measured_gradient(model, model.statistics, risk)
    slope = jax.jit(jax.grad(partial(_batch_loss, model, risk)))  # traced once, however often the work is

    def estimate(params: Params, batch: Batch, key: Key) -> Params:
        if batch.positions is None and risk is None:
            return full_gradient(model, params, batch.data, key)
        return slope(params, *batch.read(), key)

    return estimate


def _batch_loss(
    model: Model, risk: RowRisk | None, params: Params, x: Array, y: Array, inside: Array, key: Key
) -> Array:
    # No function of its own: an error in a loss is read through everything that calls it.
    losses = jnp.where(inside, model.losses(_outputs(params, model, x, key), y), 0.0)
    return _of_batch(risk, losses, y, inside)


def _of_batch(risk: RowRisk | None, losses: Array, y: Array, inside: Array) -> Array:
    """The risk of a batch's losses, which are 0 where no example is."""
    if risk is None:
        return jnp.sum(losses) / jnp.maximum(jnp.sum(inside), 1).astype(jnp.float32)
    return (risk if isinstance(risk, Risk) else risk(y)).value(losses, inside.astype(losses.dtype))


# --- running statistics: measured on each batch, beside the gradient ---------------------------------------------


def _measured_gradient(model: Model, statistics: RunningStatistics, risk: RowRisk | None) -> Estimator:
    """As :func:`batch_gradient`, for a model with running statistics."""

    def loss(params: Params, x: Array, y: Array, inside: Array, key: Key) -> tuple[Array, Params]:
        outputs, after = lowered(statistics.forward)(params, x, inside, key)
        return _of_batch(risk, jnp.where(inside, model.losses(outputs, y), 0.0), y, inside), after

    slope = jax.jit(jax.grad(loss, has_aux=True))

    def estimate(params: Params, batch: Batch, key: Key) -> Params:
        gradient, after = slope(params, *batch.read(), key)
        return _chosen(statistics, tree.subtract(params, after), gradient)

    return estimate


def _chosen(statistics: RunningStatistics, measured: Params, learned: Params) -> Params:
    """A tree like the parameters, its running statistics from ``measured`` and all else from ``learned``."""
    paths = frozenset(statistics.paths)

    def leaf(path: KeyPath, measured: Array, learned: Array) -> Array:
        return measured if named_path(path) in paths else learned

    return jax.tree.map_with_path(leaf, measured, learned)


def spared(
    rule: optax.GradientTransformation, statistics: RunningStatistics | None, *, sign: float
) -> optax.GradientTransformation:
    """The rule on the gradients of what is learned; running statistics pass it by, as if their gradients were 0.

    Args:
      rule: an optimiser, or a correction of gradients.
      statistics: of the model; None: it has none, and the rule stays as it is.
      sign: by which what the statistics fall by is multiplied: -1 after an optimiser, whose updates are added, and 1
        after a correction.
    """
    if statistics is None:
        return rule

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        learned = _chosen(statistics, tree.zeros_like(updates), updates)
        changed, state = rule.update(learned, state, params)
        return _chosen(statistics, tree.scale(sign, updates), changed), state

    return optax.GradientTransformation(rule.init, update)


# --- corrections: what methods add to gradients, as optax transformations ----------------------------------------


def proximal(mu: Array | float, anchor: Params) -> optax.GradientTransformation:
    r"""Adds :math:`\mu (w - w^t)`, the gradient of :math:`\frac{\mu}{2} \|w - w^t\|^2`, with ``anchor`` as :math:`w^t`.

    Example:
      >>> import jax.numpy as jnp
      >>> pull = proximal(0.5, jnp.array([1.0]))
      >>> pull.update(jnp.array([0.0]), pull.init(jnp.array([3.0])), jnp.array([3.0]))[0].tolist()
      [1.0]
    """

    def pull(updates: Params, params: Params | None) -> Params:
        return jax.tree.map(lambda g, w, a: g + (mu * (w - a)).astype(g.dtype), updates, params, anchor)

    return optax.stateless(pull)


def shift(offset: Params) -> optax.GradientTransformation:
    """Adds the same ``offset`` to every gradient: a control variate, or FedDane's gradient correction."""
    return optax.stateless(lambda updates, params: tree.add(updates, offset))


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
