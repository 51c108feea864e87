"""Risks measured in float64, compiled once per risk and shape."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.risks import hierarchical, tilted
from evenhand.types import Risk


class Measured(NamedTuple):
    value: np.ndarray
    weights: np.ndarray
    gradient: np.ndarray


@functools.cache
def _compiled(risk: Risk) -> Any:
    def parts(f: Any, p: Any) -> Any:
        value, gradient = jax.value_and_grad(risk.value)(f, p)
        return value, risk.weights(f, p), gradient

    return jax.jit(jax.vmap(parts))


@functools.cache
def _value(risk: Risk) -> Any:
    return jax.jit(jax.vmap(risk.value))


def value_of(risk: Risk, losses: Any, weights: Any = None, dtype: Any = np.float64) -> Any:
    """The value of :func:`measure` alone, a third of the compilation."""
    f = np.asarray(losses, dtype)
    p = np.broadcast_to(np.ones_like(f) if weights is None else np.asarray(weights, dtype), f.shape)
    with jax.enable_x64(dtype == np.float64):
        found = np.array(_value(risk)(jnp.asarray(np.atleast_2d(f)), jnp.asarray(np.atleast_2d(p))))
    return found[0] if f.ndim == 1 else found


def measure(risk: Risk, losses: Any, weights: Any = None, dtype: Any = np.float64) -> Measured:
    """A risk of one vector of losses ``(n,)``, or of many ``(cases, n)``."""
    f = np.asarray(losses, dtype)
    p = np.broadcast_to(np.ones_like(f) if weights is None else np.asarray(weights, dtype), f.shape)
    rows, masses = np.atleast_2d(f), np.atleast_2d(p)
    with jax.enable_x64(dtype == np.float64):
        parts = [np.array(part) for part in _compiled(risk)(jnp.asarray(rows), jnp.asarray(masses))]
    return Measured(*(part[0] if f.ndim == 1 else part for part in parts))


@jax.jit
def _tilt(t: Any, f: Any, p: Any) -> Any:
    return jax.vmap(lambda t, f: (tilted(t).value(f, p), tilted(t).weights(f, p)), in_axes=(0, None))(t, f)


def tilt(ts: Any, losses: Any, weights: Any = None, dtype: Any = np.float64) -> Any:
    """Values and weights of the tilted risk at finite tilts, ``(len(ts),)`` and ``(len(ts), n)``."""
    f = np.asarray(losses, dtype)
    p = np.ones_like(f) if weights is None else np.asarray(weights, dtype)
    with jax.enable_x64(dtype == np.float64):
        value, each = _tilt(*(jnp.asarray(np.asarray(x, dtype)) for x in (ts, f, p)))
        return np.array(value), np.array(each)


@functools.partial(jax.jit, static_argnums=5)
def _two_level(tau: Any, lam: Any, f: Any, p: Any, groups: Any, number: int) -> Any:
    def one(tau: Any, lam: Any) -> Any:
        risk = hierarchical(tilted(tau), tilted(lam), groups, number)
        value, gradient = jax.value_and_grad(risk.value)(f, p)
        return value, risk.weights(f, p), gradient

    return jax.vmap(one)(tau, lam)


def two_level(
    tau: Sequence[float], lam: Sequence[float], losses: Any, groups: Any, number: int, weights: Any = None
) -> Measured:
    """The hierarchical tilted risk at pairs of finite tilts, outer ``tau`` and inner ``lam``."""
    f = np.asarray(losses, np.float64)
    p = np.ones_like(f) if weights is None else np.asarray(weights, np.float64)
    with jax.enable_x64(True):
        pair = [jnp.asarray(np.asarray(x, np.float64)) for x in (tau, lam)]
        out = _two_level(
            *pair, jnp.asarray(f), jnp.asarray(p), jnp.asarray(np.asarray(groups, np.int32)), number
        )
        return Measured(*(np.array(part) for part in out))


def normal(weights: Any) -> np.ndarray:
    """Weights that sum to 1."""
    return np.asarray(weights, np.float64) / np.sum(weights, axis=-1, keepdims=True)


def tilt_by_hand(t: float, losses: Any, weights: Any = None) -> float:
    """The tilted risk by its formula, in long double."""
    f = np.asarray(losses, np.longdouble)
    p = np.ones_like(f) if weights is None else np.asarray(weights, np.longdouble)
    p = p / p.sum()
    if t == 0:
        return float(p @ f)
    top = np.max(t * f[p > 0])
    return float((top + np.log(np.sum(p * np.exp(t * np.where(p > 0, f, 0) - top)))) / t)
