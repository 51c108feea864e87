r"""How a round's cohort is drawn.

The two schemes of the literature both aim at the objective :math:`\sum_k p_k F_k(w)`, :math:`p_k = n_k / n`:

* scheme A, ``proportional(replace=True)``: client ``k`` is drawn with probability :math:`p_k`, plain mean; the
  expected average is exactly :math:`\sum_k p_k v_k`;
* scheme B, ``uniform()``: clients are drawn uniformly without replacement, mean weighted by :math:`n_k`; a ratio of
  two sums, hence exact in expectation only for clients of equal size or for a cohort of everybody.

Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.1 and figure 12.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand import permutation
from evenhand.types import Array, Key, Sampling

__all__ = ["proportional", "uniform"]


def uniform(*, replace: bool = False, weighted: bool = True) -> Sampling:
    """Every client is equally likely; by default without replacement and weighted by its rows (scheme B).

    Args:
      replace: draw with replacement, so that a client can count several times.
      weighted: weight a client by ``n_k``; False: all drawn clients count alike, which favours small clients.

    Without replacement the draw costs O(m), whatever the number of clients.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> cohort = uniform().draw(jax.random.key(0), jnp.full(1000, 20), 10)
      >>> len(set(cohort.tolist()))
      10
    """

    def draw(key: Key, sizes: Array, m: int) -> Array:
        clients = sizes.shape[0]
        if replace:
            return jax.random.randint(key, (m,), 0, clients, dtype=jnp.int32)
        slots = jnp.arange(m, dtype=jnp.int32)
        if m == clients:
            return slots
        return permutation.permute(slots, jnp.int32(clients), permutation.words(key), jnp.int32(0))

    return Sampling(draw, _rows if weighted else _one, repeats=replace)


def proportional(*, replace: bool = True, weighted: bool = False) -> Sampling:
    r"""Client ``k`` is drawn with probability :math:`n_k / n`; by default with replacement, plain mean (scheme A).

    Args:
      replace: draw with replacement, as the theory has it.  False: successive draws without replacement with
        probabilities proportional to :math:`n_k`, as the reference code of q-FFL does; the chance to be in the
        cohort is then no longer exactly proportional to :math:`n_k`.
      weighted: weight a drawn client by ``n_k`` once more.

    Edge cases: with as many draws as clients and no replacement everybody takes part; with the plain mean the
    objective is then the unweighted one.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = jnp.array([1, 1, 98])
      >>> proportional().draw(jax.random.key(0), sizes, 5).tolist().count(2) >= 3
      True
    """

    def draw(key: Key, sizes: Array, m: int) -> Array:
        clients = sizes.shape[0]
        if not replace:
            if m == clients:
                return jnp.arange(m, dtype=jnp.int32)
            race = jnp.log(sizes.astype(jnp.float32)) + jax.random.gumbel(key, (clients,), jnp.float32)
            return jax.lax.top_k(race, m)[1].astype(jnp.int32)
        # A uniform row names its owner: exact in integers, where a float32 sum of a million sizes is not.
        last = jnp.cumsum(sizes)
        row = jax.random.randint(key, (m,), 0, last[-1], dtype=jnp.int32)
        return jnp.searchsorted(last, row, side="right").astype(jnp.int32)

    return Sampling(draw, _rows if weighted else _one, repeats=replace)


def _rows(size: Array) -> Array:
    return size.astype(jnp.float32)


def _one(size: Array) -> Array:
    return jnp.ones_like(size, jnp.float32)
