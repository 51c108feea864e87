"""The owners of examples drawn uniformly: clients drawn in proportion to their sizes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand.types import Array, Key

__all__ = ["MANY", "Table", "distinct_owners", "owners", "tabulate"]

MANY = 4096
"""The number of clients from which a draw without replacement does not look at all of them."""


class Table(NamedTuple):
    """The sizes of the clients and their cumulative sums, ``(N,)`` each."""

    sizes: Array
    last: Array


def tabulate(sizes: Array) -> Table:
    """The table of these sizes."""
    return Table(sizes, jnp.cumsum(sizes))


def owners(key: Key, last: Array, m: int) -> Array:
    """Those of ``m`` examples drawn uniformly, int32 ``(m,)``."""
    # Exact in integers, unlike a float32 sum of a million sizes.
    row = jax.random.randint(key, (m,), 0, last[-1], dtype=jnp.int32)
    return jnp.searchsorted(last, row, side="right").astype(jnp.int32)


def distinct_owners(key: Key, last: Array, m: int) -> Array:
    """The first ``m`` distinct clients of a sequence drawn with replacement: successive draws without it."""
    vacant = jnp.int32(last.shape[0])

    def more(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        found, _, batch = carry
        new = jnp.concatenate([found, owners(jax.random.fold_in(key, batch), last, m)])
        order = jnp.argsort(new, stable=True)
        ranked = new[order]
        fresh = (ranked != jnp.roll(ranked, 1)) & (ranked < vacant)
        fresh = fresh.at[0].set(ranked[0] < vacant)
        kept = jnp.zeros(2 * m, bool).at[order].set(fresh)
        place = jnp.where(kept, jnp.cumsum(kept.astype(jnp.int32)) - 1, m)
        found = jnp.full(m, vacant).at[place].set(new, mode="drop")
        return found, jnp.minimum(jnp.sum(kept.astype(jnp.int32)), m), batch + 1

    begin = (jnp.full(m, vacant), jnp.int32(0), jnp.int32(0))
    return jax.lax.while_loop(lambda carry: carry[1] < m, more, begin)[0]
