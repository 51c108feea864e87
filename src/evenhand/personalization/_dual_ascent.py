"""Dual coordinate ascent of MOCHA for all clients at once, the relations of the clients, and what its rounds need.

The solver uses the first part, the method the relations, the linear form of a model and the sum by client.
"""

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
from evenhand.errors import EvenhandError
from evenhand.rounds import accepts_delta
from evenhand.types import Array, Cohort, Key, Model, Params, PyTree, Report, Sum, Summation

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


# --- linear models, by their weights ------------------------------------------------------------------------------


class Linear(NamedTuple):
    """A linear model.

    Attributes:
      shape: of its weights, those of the intercept in the last row, ``(d, classes)``; one class: two with one score.
      params: ``weights -> parameters`` of the model.
      features: ``x -> (d,)`` of an example ``(1, ...)``, such that scores are ``features @ weights``.
      signs: ``y -> (classes,)``, 1 for the class of the example and -1 for all others.
    """

    shape: tuple[int, int]
    params: Callable[[Array], Params]
    features: Callable[[Array], Array]
    signs: Callable[[Array], Array]


def linear_form(model: Model) -> Linear:
    """The model as a linear one, whatever its parameters are called and whatever it does to the features first."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(model.init, jax.random.key(0)))
    matrices = [i for i, leaf in enumerate(leaves) if leaf.ndim == 2]
    vectors = [i for i, leaf in enumerate(leaves) if leaf.ndim == 1]
    if len(matrices) != 1 or len(matrices) + len(vectors) != len(leaves) or len(vectors) > 1:
        raise _not_linear(model)
    place, (rows, classes) = matrices[0], leaves[matrices[0]].shape
    if any(leaves[i].shape != (classes,) for i in vectors):
        raise _not_linear(model)

    def params(weights: Array) -> Params:
        parts = {place: weights[:rows], **dict.fromkeys(vectors, weights[-1])}
        return jax.tree.unflatten(structure, [parts[i] for i in range(len(leaves))])

    def scores(weights: Array, x: Array) -> Array:
        # The scores are all of the outputs, or come first, as in a margin with its penalty.
        return jax.tree.leaves(model.apply(params(weights), x))[0].reshape(-1)

    shape = (rows + len(vectors), classes)

    def features(x: Array) -> Array:
        # The score of the first class is linear in the weights of that class.
        return jax.grad(lambda weights: scores(weights, x)[0])(jnp.zeros(shape, jnp.float32))[:, 0]

    def signs(y: Array) -> Array:
        if not jnp.issubdtype(y.dtype, jnp.integer) or y.ndim != 1:
            raise EvenhandError("mocha() is for classes: give one class number per example as its label.")
        right = y > 0 if classes == 1 else y == jnp.arange(classes, dtype=y.dtype)
        return jnp.where(right, 1.0, -1.0)

    _check_linear(model, shape, rows, scores, features)
    return Linear(shape, params, features, signs)


def _check_linear(
    model: Model,
    shape: tuple[int, int],
    rows: int,
    scores: Callable[[Array, Array], Array],
    features: Callable[[Array], Array],
) -> None:
    """Checks at one example and one choice of weights that the scores are what the features give."""
    x = jnp.asarray(np.cos(np.arange(rows))[None], jnp.float32)
    weights = jnp.asarray(np.sin(np.arange(np.prod(shape))).reshape(shape), jnp.float32)
    try:
        gap = float(jnp.max(jnp.abs(scores(weights, x) - features(x) @ weights)))
    except (TypeError, ValueError):  # EvenhandError is a ValueError
        raise _not_linear(model) from None
    if not gap < 1e-3:
        raise _not_linear(model)


def _not_linear(model: Model) -> EvenhandError:
    name = f" {model.name}" if model.name else ""
    return EvenhandError(
        f"mocha() trains linear models, and the model{name} is none: give --model softmax or svm (Python: "
        "eh.models.softmax_regression or eh.models.svm)."
    )


# --- what the server adds up -------------------------------------------------------------------------------------


def by_client() -> Sum:
    """The uploads in the places of their clients, ``(N, ...)``, and zeros where none came."""

    def weigh(reports: Report, cohort: Cohort, places: Array) -> tuple[Array, Array]:
        slots = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32)
        # Ids of empty slots are arbitrary: they go to a place past the last, which is dropped.
        ids = jnp.where(cohort.present, cohort.ids, places.shape[0])
        return reports.weight, jnp.full_like(places, -1).at[ids].set(slots, mode="drop")

    def add(lifted: PyTree, present: Array, key: Key) -> PyTree:
        return tree.among(present, lifted)

    def lower(total: Array, places: Array, key: Key) -> tuple[Array, Array]:
        taken = total[jnp.maximum(places, 0)]
        return tree.among(places >= 0, taken), places

    return Sum(
        init=lambda like, clients: jnp.full(clients, -1, jnp.int32),
        lift=lambda upload, public, key: upload.delta,
        lower=lower,
        weigh=weigh,
        summation=Summation(bits=32, add=add, is_secure=False),
    )
