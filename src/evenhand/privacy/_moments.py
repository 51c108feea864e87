"""Arithmetic of adaptive steps: moments of gradients, what gradients are divided by, and the step itself."""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.types import Array, Params

__all__ = [
    "Kind",
    "adam_direction",
    "check_moments",
    "descend",
    "divide",
    "ones",
    "root",
    "second_moment",
    "squares",
]

Kind: TypeAlias = Literal["rmsprop", "adam", "adagrad", "yogi"]


def check_moments(who: str, kind: str, among: tuple[str, ...], decay: float, eps: float) -> None:
    """Checks which moment is meant, and its two numbers.

    Raises:
      EvenhandError: another kind than those, a decay outside [0, 1), or an ``eps`` that is not above 0.
    """
    if kind not in among:
        raise EvenhandError(f"{who}(kind={kind!r}): give one of {', '.join(map(repr, among))}.")
    if not 0.0 <= decay < 1.0 or not 0.0 < eps < float("inf"):
        raise EvenhandError(
            f"{who}(decay={decay}, eps={eps}): give a decay from 0 to below 1, and a finite eps above 0."
        )


def second_moment(kind: Kind, decay: float, before: Params, square: Params) -> Params:
    """The moment after one more square, both trees like the parameters."""

    def follow(v: Array, g2: Array) -> Array:
        if kind == "adagrad":
            return v + g2
        if kind == "yogi":
            return v + (1.0 - decay) * jnp.sign(g2 - v) * g2
        return decay * v + (1.0 - decay) * g2

    return jax.tree.map(follow, before, square)


def adam_direction(
    first: Params, second: Params, number: Array, decays: tuple[float, float], eps: float
) -> Params:
    """Adam's: the first moment over the root of the second, both corrected for the zeros before the first step."""
    since = number.astype(jnp.float32)

    def ratio(m: Array, v: Array) -> Array:
        return m / (1.0 - decays[0] ** since) / (jnp.sqrt(v / (1.0 - decays[1] ** since)) + eps)

    return jax.tree.map(ratio, first, second)


def squares(gradient: Params) -> Params:
    """The square of every number."""
    return jax.tree.map(jnp.square, gradient)


def root(moment: Params, eps: float) -> Params:
    r""":math:`\sqrt v + \epsilon`."""
    return jax.tree.map(lambda v: jnp.sqrt(v) + eps, moment)


def divide(a: Params, b: Params) -> Params:
    """``a / b``, number by number."""
    return jax.tree.map(jnp.divide, a, b)


def ones(params: Params) -> Params:
    """A tree of ones like the parameters."""
    return jax.tree.map(jnp.ones_like, params)


def descend(params: Params, direction: Params, step_size: Array | float) -> Params:
    """The parameters after one step against a direction."""
    return tree.add(params, tree.scale(-step_size, direction))
