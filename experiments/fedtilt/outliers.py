"""Persistent outliers: a client's features are disturbed anew in every round that it takes part in.

The engine knows rows that are poisoned once, before the run.  Here the local work itself is wrapped: it gets a
disturbed copy of the client's rows, made from the clean ones with a key that only the seed, the round and the client
decide.  So every method meets the same outliers, both models of a client do, and nothing accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

import evenhand as eh
from evenhand.streams import Purpose, stream
from evenhand.types import Array, ClientData, Key, PyTree

__all__ = ["Change", "Disturb", "add_noise", "own_rows", "persistent", "replace_pixels", "some_rows"]

Disturb: TypeAlias = Callable[[Array, Array, Array, Key], Array]
"""``(x, y, size, key) -> x``: features and labels of a client, of which the first ``size`` are rows of its own."""
Change: TypeAlias = Callable[[Array, Key], Array]
"""``(x, key) -> x``: what becomes of the features of the rows that are hit."""


def persistent(algorithm: eh.Algorithm, disturb: Disturb) -> eh.Algorithm:
    """The method, with each client's work done on a disturbed copy of its rows; labels and the store stay clean.

    Args:
      algorithm: of any number of phases; a phase's reports still speak of the clean rows.
      disturb: what happens to the features.
    """

    def wrapped(phase: eh.types.Phase) -> eh.types.Phase:
        def work(message: PyTree, own: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
            mine = own_rows(data)
            # The key itself is for the batches.
            x = disturb(mine.x, mine.y, mine.size, stream(key, Purpose.ATTACK))
            return phase.work(message, own, mine._replace(x=x), key)

        return phase._replace(work=work)

    return algorithm._replace(phases=tuple(wrapped(phase) for phase in algorithm.phases))


def own_rows(data: ClientData) -> ClientData:
    """A copy of the client's rows alone, ``capacity`` of them; those past ``size`` repeat its first one."""
    position = jnp.arange(data.capacity, dtype=jnp.int32)
    index = data.start + jnp.where(position < data.size, position, 0)
    return data._replace(x=data.x[index], y=data.y[index], start=jnp.int32(0))


def some_rows(percent: int, change: Change, label: int | None = None) -> Disturb:
    """Changes exactly ``percent`` in a hundred of a client's rows, or of those with one label, rounded down."""

    def disturb(x: Array, y: Array, size: Array, key: Key) -> Array:
        choice, what = jax.random.split(key)
        capacity = x.shape[0]
        eligible = jnp.arange(capacity) < size
        if label is not None:
            eligible &= y == label
        order = jnp.argsort(jnp.where(eligible, jax.random.uniform(choice, (capacity,)), jnp.inf))
        # As many as there can be at most; those that are too many stay as they were.
        hit = order[: percent * capacity // 100]
        chosen = jnp.arange(hit.shape[0]) < percent * jnp.sum(eligible) // 100
        chosen = chosen.reshape(-1, *[1] * (x.ndim - 1))
        return x.at[hit].set(jnp.where(chosen, change(x[hit], what), x[hit]))

    return disturb


def replace_pixels(percent: int, low: float, high: float) -> Change:
    """Uniform numbers in place of ``percent`` in a hundred of the features of each row, to the nearest."""

    def change(x: Array, key: Key) -> Array:
        choice, what = jax.random.split(key)
        features = x.shape[1]
        order = jnp.argsort(jax.random.uniform(choice, x.shape), axis=1)[:, : round(percent * features / 100)]
        fresh = jax.random.uniform(what, order.shape, minval=low, maxval=high)
        return jax.vmap(lambda row, places, values: row.at[places].set(values))(x, order, fresh)

    return change


def add_noise(deviation: float) -> Change:
    """Normal noise on every feature, not clipped."""
    return lambda x, key: x + deviation * jax.random.normal(key, x.shape)
