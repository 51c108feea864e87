"""What methods add to a client's gradients, as optax transformations."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.types import Array, Params

__all__ = ["MeanGradient", "mean_gradient", "proximal", "shift"]


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


def _stateless(params: Params) -> optax.OptState:
    return optax.EmptyState()
