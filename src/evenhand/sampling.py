r"""How a round's cohort is drawn.

The two schemes of the literature both aim at the objective :math:`\sum_k p_k F_k(w)`, :math:`p_k = n_k / n`:

* scheme A, ``proportional(replace=True)``: client ``k`` is drawn with probability :math:`p_k`, plain mean; the
  expected average is exactly :math:`\sum_k p_k v_k`;
* scheme B, ``uniform()``: clients are drawn uniformly without replacement, mean weighted by :math:`n_k`; a ratio of
  two sums, hence exact in expectation only for clients of equal size or for a cohort of all clients.

Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.1 and figure 12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import permutation
from evenhand.types import Array, Cohort, Key, Sampling

__all__ = ["proportional", "uniform"]


def uniform(*, replace: bool = False, weighted: bool = True) -> Sampling:
    """Every client is equally likely; by default without replacement and weighted by size (scheme B).

    Args:
      replace: draw with replacement, so that a client can count several times.
      weighted: weight a client by ``n_k``; False: all drawn clients count equally, which favours small clients.

    Without replacement the draw costs O(m), whatever the number of clients.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> cohort = uniform().draw(jax.random.key(0), jnp.full(1000, 20), 10)
      >>> len(set(cohort.ids.tolist()))
      10
    """
    return Sampling(_uniform(replace), _rows if weighted else _one, repeats=replace)


# Cached, so that equal arguments give the same function.
@cache
def _uniform(replace: bool) -> Callable[[Key, Array, int], Cohort]:
    def ids(key: Key, sizes: Array, m: int) -> Array:
        clients = sizes.shape[0]
        if replace:
            return jax.random.randint(key, (m,), 0, clients, dtype=jnp.int32)
        slots = jnp.arange(m, dtype=jnp.int32)
        if m == clients:
            return slots
        return permutation.permute(slots, jnp.int32(clients), permutation.words(key), jnp.int32(0))

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        return Cohort.of(ids(key, sizes, m))

    return draw


def proportional(*, replace: bool = True, weighted: bool = False) -> Sampling:
    r"""Client ``k`` is drawn with probability :math:`n_k / n`; by default with replacement, plain mean (scheme A).

    Args:
      replace: draw with replacement, as the theory assumes.  False: successive draws without replacement with
        probabilities proportional to :math:`n_k`, as the reference code of q-FFL does; the chance of being in the
        cohort is then no longer exactly proportional to :math:`n_k`.
      weighted: weight a drawn client by ``n_k`` once more.

    Edge cases: with as many draws as clients and no replacement, all clients take part; with the plain mean the
    objective is then unweighted.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = jnp.array([1, 1, 98])
      >>> proportional().draw(jax.random.key(0), sizes, 5).ids.tolist().count(2) >= 3
      True
    """
    draw, look_up = _proportional(replace)
    return Sampling(draw, _rows if weighted else _one, replace, _tabulate, look_up)


@cache
def _proportional(
    replace: bool,
) -> tuple[Callable[[Key, Array, int], Cohort], Callable[[Key, _Table, int], Cohort]]:
    def ids(key: Key, table: _Table, m: int) -> Array:
        if replace:
            return _owners(key, table.last, m)
        clients = table.sizes.shape[0]
        if m == clients:
            return jnp.arange(m, dtype=jnp.int32)
        if clients >= _MANY and m <= clients // 4:
            return _distinct_owners(key, table.last, m)
        race = jnp.log(table.sizes.astype(jnp.float32)) + jax.random.gumbel(key, (clients,), jnp.float32)
        return jax.lax.top_k(race, m)[1].astype(jnp.int32)

    def look_up(key: Key, table: _Table, m: int) -> Cohort:
        return Cohort.of(ids(key, table, m))

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        return look_up(key, _tabulate(sizes), m)

    return draw, look_up


_MANY = 4096
"""The number of clients from which a draw without replacement does not look at all of them."""


class _Table(NamedTuple):
    """The sizes of the clients and their cumulative sums, ``(N,)`` each."""

    sizes: Array
    last: Array


def _tabulate(sizes: Array) -> _Table:
    return _Table(sizes, jnp.cumsum(sizes))


def _owners(key: Key, last: Array, m: int) -> Array:
    # The owner of an example drawn uniformly: exact in integers, unlike a float32 sum of a million sizes.
    row = jax.random.randint(key, (m,), 0, last[-1], dtype=jnp.int32)
    return jnp.searchsorted(last, row, side="right").astype(jnp.int32)


def _distinct_owners(key: Key, last: Array, m: int) -> Array:
    """The first ``m`` distinct clients of a sequence drawn with replacement: successive draws without it."""
    vacant = jnp.int32(last.shape[0])

    def more(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        found, _, batch = carry
        new = jnp.concatenate([found, _owners(jax.random.fold_in(key, batch), last, m)])
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


def _rows(size: Array) -> Array:
    return size.astype(jnp.float32)


def _one(size: Array) -> Array:
    return jnp.ones_like(size, jnp.float32)
