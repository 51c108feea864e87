"""Dual coordinate ascent of :func:`evenhand.personalization.mocha`, and the relations of the clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand import tree
from evenhand.rounds import accepts_delta
from evenhand.types import Array, Key

NDArray = npt.NDArray[Any]

_FLOOR = 1e-7
"""The smallest eigenvalue of the models' products, as in the authors' code."""

Send: TypeAlias = Callable[[Array, Array, Key], tuple[Array, Array]]
"""``(changes, number, keys) -> (uploads, accepted)`` in a round, given what changed in each :math:`b_k`, ``(K, d)``."""


class PaddedRows(NamedTuple):
    """Each client's examples, padded with zeros to the longest: ``(K, n, d)``, ``(K, n)``, ``(K,)``."""

    x: Array
    y: Array
    sizes: Array


class Ascent(NamedTuple):
    """What is known between two rounds.

    Attributes:
      alphas: the clients' dual variables, ``(K, n)``.
      excess: by how much the server's :math:`b_k` differ from what these give, ``(K, d)``: 0 for honest clients.
      number: rounds done.
    """

    alphas: Array
    excess: Array
    number: Array


def padded(x: NDArray, y: NDArray, offsets: NDArray) -> PaddedRows:
    """The examples of all clients, with labels -1 and 1."""
    sizes, rows = np.diff(offsets), len(x)
    place = np.concatenate([np.arange(size) for size in sizes])
    client = np.repeat(np.arange(len(sizes)), sizes)
    features = np.zeros((len(sizes), int(sizes.max()), int(np.prod(x.shape[1:]))), np.float32)
    labels = np.zeros(features.shape[:2], np.float32)
    features[client, place], labels[client, place] = x.reshape(rows, -1), np.where(y == 1, 1.0, -1.0)
    return PaddedRows(jnp.asarray(features), jnp.asarray(labels), jnp.asarray(sizes, jnp.float32))


def weights_of(rows: PaddedRows, now: Ascent, relations: Array, lam: Array | float) -> Array:
    """The models :math:`W = B \\Sigma / \\lambda`, ``(K, d)``."""
    return relations @ (_sums(rows, now.alphas) + now.excess) * (1.0 / lam)


def _sums(rows: PaddedRows, alphas: Array) -> Array:
    """:math:`b_k` in rows, ``(K, d)``."""
    return jnp.einsum("kn,knd->kd", alphas, rows.x) / rows.sizes[:, None]


def related(weights: Array) -> Array:
    """:math:`\\Sigma` of these models."""
    values, vectors = jnp.linalg.eigh(weights @ weights.T)
    root = (vectors * jnp.sqrt(jnp.maximum(values, _FLOOR))[None]) @ vectors.T
    return root / jnp.trace(root)


@partial(jax.jit, static_argnums=(6, 7, 8))
def ascent(
    rows: PaddedRows,
    now: Ascent,
    relations: Array,
    key: Key,
    lam: Array,
    share: Array,
    steps: int,
    inner: int,
    send: Send | None,
) -> tuple[Ascent, tuple[Array, Array]]:
    """``inner`` rounds, the objectives ``(inner, 2)`` after each, and how many uploads each rejected ``(inner,)``."""
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

    def communicate(now: Ascent, key: Key) -> tuple[Ascent, tuple[Array, Array]]:
        weights = weights_of(rows, now, relations, lam)
        client_keys = jax.random.split(key, now.alphas.shape[0])
        alphas = jax.vmap(client)(*rows, now.alphas, weights, own, client_keys)
        change = _sums(rows, alphas - now.alphas)
        sent, accepted = _honest(change) if send is None else send(change, now.number, client_keys)
        excess = now.excess if send is None else now.excess + tree.among(accepted, sent - change)
        now = Ascent(tree.among(accepted, alphas, now.alphas), excess, now.number + 1)
        return now, (_objectives(rows, now, relations, lam), jnp.sum(~accepted))

    return lax.scan(communicate, now, jax.random.split(key, inner))


def _honest(change: Array) -> tuple[Array, Array]:
    return change, jax.vmap(accepts_delta)(change)


def _objectives(rows: PaddedRows, now: Ascent, relations: Array, lam: Array) -> Array:
    """That of the models, and that of the dual variables, which is never larger."""
    sums, weights = _sums(rows, now.alphas), weights_of(rows, now, relations, lam)
    # lam / 2 tr(W Omega W^T), since W = B Sigma / lam
    penalty = jnp.sum(weights * (sums + now.excess)) / 2.0
    dual_penalty = jnp.sum(relations @ sums * (1.0 / lam) * sums) / 2.0
    hinge = jnp.maximum(0.0, 1.0 - rows.y * jnp.einsum("knd,kd->kn", rows.x, weights)) * jnp.abs(rows.y)
    losses = jnp.sum(jnp.sum(hinge, axis=1) / rows.sizes)
    gains = jnp.sum(jnp.sum(now.alphas * rows.y, axis=1) / rows.sizes)
    return jnp.stack([losses + penalty, gains - dual_penalty])
