"""What every risk begins with: losses as floats, and weights that sum to 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, real_number
from evenhand.types import Array, Risk

Weigh = Callable[[Array, Array], Array]
"""``(losses, p) -> (n,)`` for losses and weights as :func:`population` gives them."""


def risk(value: Callable[[Array, Array], Array], weigh: Weigh) -> Risk:
    """A risk from functions of losses and of weights that already sum to 1."""

    def risk_value(losses: Array, weights: Array | None = None) -> Array:
        return value(*population(losses, weights))

    def risk_weights(losses: Array, weights: Array | None = None) -> Array:
        return weigh(*population(losses, weights))

    risk_value.__qualname__, risk_weights.__qualname__ = value.__qualname__, weigh.__qualname__  # for reprs
    return Risk(risk_value, risk_weights)


def linear(weigh: Weigh) -> Risk:
    """A risk whose value is the mean of the losses under its weights, which are also its gradient."""

    def total(weights: Array, losses: Array, p: Array) -> Array:
        # A NaN must show, though its rank may give it no weight; losses with p = 0 are 0 here, even if they were NaN.
        return jnp.where(
            jnp.any(jnp.isnan(losses)), jnp.nan, jnp.sum(jnp.where(weights > 0, weights * losses, 0.0))
        )

    return dual(weigh, total)


def dual(weigh: Weigh, total: Callable[[Array, Array, Array], Array]) -> Risk:
    """A risk whose value is ``total(weights, losses, p)``, largest at its weights, which are also its gradient."""

    def value(losses: Array, p: Array) -> Array:
        weights = weigh(losses, p)
        return at(total(weights, losses, p), weights, losses)

    return risk(value, weigh)


def population(losses: Array, weights: Array | None) -> tuple[Array, Array]:
    """``(losses, p)``: ``p`` sums to 1, or is all 0 if ``weights`` are; losses of weight 0 become 0, even if NaN."""
    losses = jnp.asarray(losses)
    if losses.ndim != 1 or losses.shape[0] == 0:
        raise EvenhandError(
            f"A risk got losses of shape {losses.shape}: give a vector of at least one loss, shape (n,)."
        )
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        losses = losses.astype(jnp.float32)
    if weights is None:
        return losses, jnp.full_like(losses, 1.0 / losses.shape[0])
    weights = jnp.asarray(weights).astype(losses.dtype)
    if weights.shape != losses.shape:
        raise EvenhandError(
            f"A risk got {losses.shape[0]} losses and weights of shape {weights.shape}: give one weight per loss."
        )
    total = jnp.sum(weights)
    p = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), 0.0)
    return jnp.where(p > 0, losses, 0.0), p


def pinned(losses: Array) -> Array:
    """The same losses, computed once and read from memory: code that compares losses must start with this.

    XLA may recompute the losses in each kernel that needs them and round them differently, so that the quantile of a
    vector equals none of its entries.  It does not recompute the output of a sort.
    """
    return jax.lax.sort((jnp.arange(losses.shape[0], dtype=jnp.int32), losses), num_keys=1)[1]


def log_weights(p: Array) -> Array:
    """``log p``, minus infinity at 0, without NaN in gradients that pass through it."""
    return jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)), -jnp.inf)


def among(chosen: Array, p: Array) -> Array:
    """Weights ``p`` restricted to the chosen entries and scaled to sum to 1; zeros if those have no weight."""
    mass = jnp.where(chosen, p, 0.0)
    total = jnp.sum(mass)
    return mass / jnp.where(total > 0, total, 1.0)


@jax.custom_jvp
def at(value: Array, weights: Array, losses: Array) -> Array:
    """``value``, with ``weights`` as its gradient with respect to ``losses``."""
    return value


@at.defjvp
def _at(primals: Any, tangents: Any) -> tuple[Array, Array]:
    value, weights, _ = primals
    return value, jnp.sum(weights * tangents[2]).astype(value.dtype)


def bisected(low: Array, high: Array, steps: int, is_low: Callable[[Array], Array]) -> tuple[Array, Array]:
    """An interval halved so many times, to the half above its middle where that ``is_low``."""

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        below = is_low(middle)
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return jax.lax.fori_loop(0, steps, halve, (low, high))


def check_tail(theta: float, name: str, *, zero: bool = False) -> None:
    """Checks that ``theta`` is a fraction in (0, 1], or 0 if that has a meaning."""
    if not 0.0 <= real_number(theta) <= 1.0 or (theta == 0.0 and not zero):
        raise EvenhandError(
            f"{name}(theta={theta}): the tail fraction must lie in {'[' if zero else '('}0, 1]."
        )
