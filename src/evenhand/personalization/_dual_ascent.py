"""Dual coordinate ascent of :func:`evenhand.personalization.mocha`, and the relations of the clients."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand.types import Array, Key

__all__ = ["Examples", "Rows", "ascent", "padded", "related", "weights_of"]

_FLOOR = 1e-7
"""The smallest eigenvalue of the models' products, as in the authors' code."""


class Examples(Protocol):
    """The examples of all clients, such as a split of a data set: client ``k`` has rows ``offsets[k]`` to the next."""

    @property
    def x(self) -> npt.NDArray[Any]:
        """Features, ``(rows, ...)``."""
        ...

    @property
    def y(self) -> npt.NDArray[Any]:
        """Labels 0 and 1, ``(rows,)``."""
        ...

    @property
    def offsets(self) -> npt.NDArray[Any]:
        """``(K + 1,)``."""
        ...


class Rows(NamedTuple):
    """Each client's examples, padded with zeros to the longest: ``(K, n, d)``, ``(K, n)``, ``(K,)``."""

    x: Array
    y: Array
    sizes: Array


def padded(split: Examples) -> Rows:
    """The examples of a split, with labels -1 and 1."""
    sizes, rows = np.diff(split.offsets), len(split.x)
    place = np.concatenate([np.arange(size) for size in sizes])
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = np.zeros((len(sizes), int(sizes.max()), int(np.prod(split.x.shape[1:]))), np.float32)
    y = np.zeros(x.shape[:2], np.float32)
    x[client, place], y[client, place] = split.x.reshape(rows, -1), np.where(split.y == 1, 1.0, -1.0)
    return Rows(jnp.asarray(x), jnp.asarray(y), jnp.asarray(sizes, jnp.float32))


def weights_of(rows: Rows, alphas: Array, relations: Array, lam: Array | float) -> Array:
    """The models :math:`W = B \\Sigma / \\lambda`, ``(K, d)``."""
    return relations @ _sums(rows, alphas) * (1.0 / lam)


def _sums(rows: Rows, alphas: Array) -> Array:
    """:math:`b_k` in rows, ``(K, d)``."""
    return jnp.einsum("kn,knd->kd", alphas, rows.x) / rows.sizes[:, None]


def related(weights: Array) -> Array:
    """:math:`\\Sigma` of these models."""
    values, vectors = jnp.linalg.eigh(weights @ weights.T)
    root = (vectors * jnp.sqrt(jnp.maximum(values, _FLOOR))[None]) @ vectors.T
    return root / jnp.trace(root)


@partial(jax.jit, static_argnums=(6, 7))
def ascent(
    rows: Rows, alphas: Array, relations: Array, key: Key, lam: Array, share: Array, steps: int, inner: int
) -> tuple[Array, Array]:
    """The dual variables after ``inner`` rounds, and the objectives ``(inner, 2)``."""
    own = jnp.diagonal(relations)
    rho = jnp.max(jnp.sum(jnp.abs(relations), axis=1) / own)

    def client(x: Array, y: Array, size: Array, alpha: Array, w: Array, sigma: Array, key: Key) -> Array:
        drawn = jax.random.randint(key, (steps,), 0, size.astype(jnp.int32))
        count = jnp.maximum(1, (share * size).astype(jnp.int32))
        scale = lam * size / sigma

        def step(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            alpha, change = carry
            i = drawn[t]
            slack = 1.0 - y[i] * jnp.dot(x[i], w + rho * change)
            room = scale * slack / (rho * jnp.maximum(jnp.dot(x[i], x[i]), 1e-30))
            new = jnp.where(t < count, y[i] * jnp.clip(room + y[i] * alpha[i], 0.0, 1.0), alpha[i])
            return alpha.at[i].set(new), change + (new - alpha[i]) / scale * x[i]

        return lax.fori_loop(0, steps, step, (alpha, jnp.zeros_like(w)))[0]

    def communicate(alphas: Array, key: Key) -> tuple[Array, Array]:
        weights = weights_of(rows, alphas, relations, lam)
        keys = jax.random.split(key, alphas.shape[0])
        alphas = jax.vmap(client)(*rows, alphas, weights, own, keys)
        return alphas, _objectives(rows, alphas, relations, lam)

    return lax.scan(communicate, alphas, jax.random.split(key, inner))


def _objectives(rows: Rows, alphas: Array, relations: Array, lam: Array) -> Array:
    sums, weights = _sums(rows, alphas), weights_of(rows, alphas, relations, lam)
    penalty = jnp.sum(weights * sums) / 2.0  # lam / 2 tr(W Omega W^T), since W = B Sigma / lam
    hinge = jnp.maximum(0.0, 1.0 - rows.y * jnp.einsum("knd,kd->kn", rows.x, weights)) * jnp.abs(rows.y)
    losses = jnp.sum(jnp.sum(hinge, axis=1) / rows.sizes)
    return jnp.stack(
        [
            losses + penalty,
            jnp.sum(jnp.sum(alphas * rows.y, axis=1) / rows.sizes) - penalty,
        ]
    )
