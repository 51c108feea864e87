r"""How a round's cohort is drawn.

The two schemes of the literature both aim at the objective :math:`\sum_k p_k F_k(w)`, :math:`p_k = n_k / n`:

* scheme A, ``proportional(replace=True)``: client ``k`` is drawn with probability :math:`p_k`, plain mean; the
  expected average is exactly :math:`\sum_k p_k v_k`;
* scheme B, ``uniform()``: clients are drawn uniformly without replacement, mean weighted by :math:`n_k`; a ratio of
  two sums, hence exact in expectation only for clients of equal size or for a cohort of all clients.

:func:`poisson` is for private learning, whose guarantees rest on it: every client counts alike, :math:`p_k = 1 / N`;
:func:`fixed` and :func:`cyclic` are for guarantees of other kinds.

Under :func:`evenhand.systems.availability` a cohort is drawn among the clients that are present:

* :func:`uniform` and :func:`proportional` draw as they would from a federation of these clients alone, so the average
  aims at their part of the objective.  Without replacement, fewer clients than the cohort leave empty slots; with
  replacement, all slots are filled by those that are there.
* :func:`stratified` draws as many of each group as among all clients; where fewer are present, their slots stay empty.
* :func:`poisson`: each client that is present takes part with its chance :math:`q`.  The privacy guarantee holds as it
  stands: in every round a client's chance is at most :math:`q`, independently of all others.  It takes for granted that
  who is available does not depend on the private data, and does not hide it.
* :func:`cyclic` keeps its turns: a client that is absent in its turn leaves its slot empty and waits for the next one.
  Nobody takes part more often than without absences, which is what the guarantee rests on.
* :func:`fixed` is refused: its guarantee counts on :math:`\lfloor q N \rfloor` of all :math:`N` clients, and as many of
  fewer would have a larger chance than :math:`q`.

Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.1 and figure 12.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand.errors import EvenhandError, array_of, real_number, truth_value, whole_number
from evenhand.streams import permutation_words, permute
from evenhand.types import Array, Cohort, Key, Sampling

__all__ = ["cyclic", "fixed", "included", "poisson", "proportional", "slots_for", "stratified", "uniform"]

_Draw = Callable[[Key, Array, int], Cohort]
_Among = Callable[[Key, Array, Array, int], Cohort]


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
    replace = truth_value("replace", replace)
    weighted = truth_value("weighted", weighted)
    weight = _rows if weighted else _one
    return Sampling(_uniform(replace), weight, repeats=replace, among=_uniform_among(replace))


# Cached, so that equal arguments give the same function.
@cache
def _uniform(replace: bool) -> _Draw:
    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        clients = sizes.shape[0]
        if replace:
            return Cohort.of(jax.random.randint(key, (m,), 0, clients, dtype=jnp.int32))
        slots = jnp.arange(m, dtype=jnp.int32)
        if m == clients:
            return Cohort.of(slots)
        return Cohort.of(permute(slots, jnp.int32(clients), permutation_words(key), jnp.int32(0)))

    return draw


# The same cohort as above where all are present: ranks among those that are take the place of ids.
@cache
def _uniform_among(replace: bool) -> _Among:
    def among(key: Key, sizes: Array, present: Array, m: int) -> Cohort:
        clients, slots = sizes.shape[0], jnp.arange(m, dtype=jnp.int32)
        last = jnp.cumsum(present, dtype=jnp.int32)
        some = jnp.maximum(last[-1], 1)
        if replace:
            rank, filled = jax.random.randint(key, (m,), 0, some, dtype=jnp.int32), last[-1] > 0
        elif m == clients:
            return Cohort.of(slots, present)
        else:
            place = lax.rem(slots, jnp.full_like(slots, some))
            rank, filled = permute(place, some, permutation_words(key), jnp.int32(0)), slots < last[-1]
        ids = jnp.searchsorted(last, rank, side="right").astype(jnp.int32)
        return Cohort.of(jnp.minimum(ids, clients - 1), jnp.broadcast_to(filled, (m,)))

    return among


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
    replace = truth_value("replace", replace)
    weighted = truth_value("weighted", weighted)
    draw, look_up = _proportional(replace)
    return Sampling(
        draw=draw,
        weight=_rows if weighted else _one,
        repeats=replace,
        tabulate=_tabulate,
        look_up=look_up,
        among=_proportional_among(replace),
    )


@cache
def _proportional(replace: bool) -> tuple[_Draw, Callable[[Key, _Table, int], Cohort]]:
    def look_up(key: Key, table: _Table, m: int) -> Cohort:
        if replace:
            return Cohort.of(_owners(key, table.last, m))
        clients = table.sizes.shape[0]
        if m == clients:
            return Cohort.of(jnp.arange(m, dtype=jnp.int32))
        if _is_sparse(m, clients):
            return Cohort.of(_distinct_owners(key, table.last, m))
        return Cohort.of(_race(key, table.sizes, m)[1].astype(jnp.int32))

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        return look_up(key, _tabulate(sizes), m)

    return draw, look_up


@cache
def _proportional_among(replace: bool) -> _Among:
    def among(key: Key, sizes: Array, present: Array, m: int) -> Cohort:
        clients, table = sizes.shape[0], _tabulate(jnp.where(present, sizes, 0))
        somebody = table.last[-1] > 0
        if replace:
            # A total of 0 would leave nothing to draw from: the draw is then of any clients, and nobody is there.
            last = jnp.where(somebody, table.last, jnp.arange(1, clients + 1, dtype=jnp.int32))
            return Cohort.of(_owners(key, last, m), jnp.broadcast_to(somebody, (m,)))
        if m == clients:
            return Cohort.of(jnp.arange(m, dtype=jnp.int32), present)

        def by_race() -> tuple[Array, Array]:
            score, ids = _race(key, table.sizes, m)
            return ids.astype(jnp.int32), score > -jnp.inf

        if not _is_sparse(m, clients):
            return Cohort.of(*by_race())
        # With few clients present, drawing until so many differ could take for ever: also in a branch that is not
        # taken, since runs that train together take both.
        many = 4 * m <= jnp.sum(present, dtype=jnp.int32)
        last = jnp.where(many, table.last, jnp.arange(1, clients + 1, dtype=jnp.int32))

        def by_owners() -> tuple[Array, Array]:
            return _distinct_owners(key, last, m), jnp.ones(m, bool)

        return Cohort.of(*jax.lax.cond(many, by_owners, by_race))

    return among


def stratified(groups: tuple[int | str, ...], *, weighted: bool = True) -> Sampling:
    r"""Each group of clients has its share of every cohort; within a group, clients are drawn as by :func:`uniform`.

    Of a group of :math:`N_g` of the :math:`N` clients, a cohort of :math:`m` has :math:`\lfloor m N_g / N \rfloor`, or
    one more where that leaves most out, so that there are :math:`m` in all.

    Args:
      groups: the group of each client, in the order of the data, such as its region, or whether it is malicious.
      weighted: weight a client by ``n_k``; False: all drawn clients count equally.

    Raises:
      EvenhandError: no groups, or more than 256 different ones; when a run starts, groups of another number of clients,
        or a cohort that has no place for a group.

    Edge cases: a client of group ``g`` is drawn with a chance of its group's places over :math:`N_g`, which is
    :math:`m / N` only where these divide; of several groups that leave equally much out, the first have one more.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> cohort = stratified(("north",) * 6 + ("south",) * 3).draw(jax.random.key(0), jnp.full(9, 20), 3)
      >>> sorted((cohort.ids >= 6).tolist())
      [False, False, True]
    """
    weighted = truth_value("weighted", weighted)
    names = array_of(groups)
    if names.ndim != 1 or names.dtype.kind not in "biuU" or not 1 <= len(np.unique(names)) <= _MOST_GROUPS:
        raise EvenhandError(
            f"sampling.stratified(groups={groups!r:.40}): give each client the number or the name of its group, with "
            f"at most {_MOST_GROUPS} groups."
        )
    draw, among = _stratified(tuple(names.tolist()))
    return Sampling(draw, _rows if weighted else _one, among=among)


_MOST_GROUPS = 256
"""The draw of a group is a part of the program of its own."""


@cache
def _stratified(groups: tuple[int | str, ...]) -> tuple[_Draw, _Among]:
    members = {name: np.flatnonzero([group == name for group in groups]) for name in dict.fromkeys(groups)}

    def places(clients: int, m: int) -> list[int]:
        if clients != len(groups):
            raise EvenhandError(
                f"sampling.stratified: the data have {clients} clients, but there are groups for {len(groups)}: give "
                "each client one."
            )
        # In parts of a client, which are whole numbers.
        parts = [m * len(ids) for ids in members.values()]
        counts = [part // clients for part in parts]
        by_rest = sorted(range(len(parts)), key=lambda g: -(parts[g] % clients))
        for g in by_rest[: m - sum(counts)]:
            counts[g] += 1
        for (name, ids), count in zip(members.items(), counts, strict=True):
            if not count:
                raise EvenhandError(
                    f"sampling.stratified: a cohort of {m} has no place for group {name!r}, which has {len(ids)} of "
                    f"{clients} clients: draw more clients in a round, or make fewer groups."
                )
        return counts

    def by_group(
        sizes: Array, m: int, drawn_of: Callable[[int, npt.NDArray[np.int64], int], Cohort]
    ) -> Cohort:
        parts = list[Cohort]()
        for g, (ids, count) in enumerate(zip(members.values(), places(sizes.shape[0], m), strict=True)):
            part = drawn_of(g, ids, count)
            parts.append(part._replace(ids=jnp.asarray(ids, jnp.int32)[part.ids]))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        return by_group(
            sizes, m, lambda g, ids, count: _uniform(False)(jax.random.fold_in(key, g), sizes[ids], count)
        )

    def among(key: Key, sizes: Array, present: Array, m: int) -> Cohort:
        return by_group(
            sizes,
            m,
            lambda g, ids, count: _uniform_among(False)(
                jax.random.fold_in(key, g), sizes[ids], present[ids], count
            ),
        )

    return draw, among


def poisson(rate: float) -> Sampling:
    r"""Each client takes part with probability :math:`q`, independently of all others; all that do count equally.

    A cohort has :math:`q N` clients on average, and may have none.  The guarantees of private learning hold for this
    scheme, whose draws must then be secret.

    Args:
      rate: :math:`q`, above 0 and at most 1.

    Raises:
      EvenhandError: a rate outside that range.

    Edge cases: :math:`q` is rounded down to a multiple of :math:`2^{-32}`.  A cohort has :func:`slots_for` slots; that
    more clients than that are drawn has a probability below :math:`10^{-18}`, and those of the highest positions are
    then left out.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> cohort = poisson(0.1).draw(jax.random.key(0), jnp.full(1000, 20), 0)
      >>> 60 < int(cohort.present.sum()) < 140
      True
    """
    if not 0.0 < real_number(rate) <= 1.0:
        raise EvenhandError(f"sampling.poisson(rate={rate}): give a probability above 0 and at most 1.")

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        clients = sizes.shape[0]
        return Cohort.of(*included(key, rate, clients, clients, slots_for(rate, clients)))

    def among(key: Key, sizes: Array, present: Array, m: int) -> Cohort:
        clients = sizes.shape[0]
        return Cohort.of(*included(key, rate, clients, clients, slots_for(rate, clients), present))

    def slots(clients: int) -> int:
        return slots_for(rate, clients)

    return Sampling(draw=draw, weight=_one, rate=rate, slots=slots, independent=True, among=among)


def fixed(rate: float) -> Sampling:
    r"""Exactly :math:`\lfloor q N \rfloor` clients take part, drawn without replacement; all that do count equally.

    For private learning with cohorts that never differ in size.  Its guarantees then are for one client *replaced* by
    another, which moves a sum twice as far, so that they cost more noise than those of :func:`poisson`.

    Args:
      rate: :math:`q`, above 0 and at most 1.

    Raises:
      EvenhandError: a rate outside that range; when a run starts, fewer than :math:`1 / q` clients.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> fixed(0.1).draw(jax.random.key(0), jnp.full(1000, 20), 0).ids.shape
      (100,)
    """
    if not 0.0 < real_number(rate) <= 1.0:
        raise EvenhandError(f"sampling.fixed(rate={rate}): give a part above 0 and at most 1.")

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        return _uniform(False)(key, sizes, slots(sizes.shape[0]))

    def slots(clients: int) -> int:
        m = int(rate * clients + 1e-9)  # 0.29 * 100 is a little less than 29
        if not m:
            raise EvenhandError(
                f"sampling.fixed(rate={rate}): of {clients} clients, that is none: give a larger rate."
            )
        return m

    return Sampling(draw, _one, rate=rate, slots=slots)


def cyclic(cohort: int | None = None) -> Sampling:
    r"""Clients take turns: each takes part once in :math:`\lceil N / m \rceil` rounds, in an order drawn for each turn.

    All that take part count equally.  It is what private learning without independent draws rests on
    (:func:`evenhand.privacy.dp_ftrl`): how often a client takes part is known beforehand.

    Args:
      cohort: :math:`m`, where something rests on it: a run of other cohorts is then refused.  None: that of the run.

    Raises:
      EvenhandError: ``cohort`` is not a whole number from 1.  When a run starts: its cohorts have another size.

    Edge cases: where :math:`m` does not divide :math:`N`, the last cohort of each turn has empty slots.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> scheduled = cyclic().scheduled
      >>> assert scheduled is not None
      >>> turn = [scheduled(jax.random.key(0), jnp.int32(t), jnp.ones(6), 2).ids.tolist() for t in range(3)]
      >>> sorted(sum(turn, []))
      [0, 1, 2, 3, 4, 5]
    """

    if cohort is not None:
        cohort = whole_number("sampling.cyclic(cohort=)", cohort, 1)

    def scheduled(key: Key, number: Array, sizes: Array, m: int) -> Cohort:
        clients = sizes.shape[0]
        if cohort is not None and m != min(cohort, clients):
            raise EvenhandError(
                f"sampling.cyclic(cohort={cohort}): this run's cohorts have {m} clients: give it the same cohort."
            )
        rounds = -(-clients // m)
        place = number % rounds * m + jnp.arange(m, dtype=jnp.int32)
        words = permutation_words(jax.random.fold_in(key, number // rounds))
        ids = permute(jnp.minimum(place, clients - 1), jnp.int32(clients), words, jnp.int32(0))
        return Cohort.of(ids, place < clients)

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        return scheduled(key, jnp.int32(0), sizes, m)

    def slots(clients: int) -> int:
        return min(cohort or clients, clients)

    return Sampling(draw, _one, slots=None if cohort is None else slots, scheduled=scheduled)


def included(
    key: Key, rate: float, size: Array | int, capacity: int, slots: int, among: Array | None = None
) -> tuple[Array, Array]:
    """Positions below ``size``, each included with probability ``rate``, independently of all others.

    Args:
      key: of the draw.
      rate: from 0 to 1.
      size: of the population, at most ``capacity``; may be a tracer.
      capacity: the largest ``size``.
      slots: how many positions there is room for.
      among: which positions may be included, bool ``(capacity,)``; None: all below ``size``.

    Returns:
      Positions, int32 ``(slots,)``, ascending, and which of these are included, bool ``(slots,)``; others are 0.
    """
    # Compared as whole numbers: a float32 between 0 and 1 has too few bits for small rates.
    least = np.uint32(max(0, 2**32 - int(rate * 2**32)) % 2**32)
    chosen = jnp.arange(capacity) < size
    if among is not None:
        chosen &= among
    if rate < 1.0:
        chosen &= jax.random.bits(key, (capacity,), jnp.uint32) >= least if least else False
    positions = jnp.nonzero(chosen, size=slots, fill_value=0)[0].astype(jnp.int32)
    return positions, jnp.arange(slots) < jnp.sum(chosen)


@cache
def slots_for(rate: float, size: int) -> int:
    """Room for all that :func:`included` draws, but for a probability below ``1e-18``.

    Example:
      >>> slots_for(0.01, 10_000), slots_for(1.0, 30)
      (199, 30)
    """
    from scipy import stats  # half a second, which only private methods take

    if rate >= 1.0:
        return size
    return max(1, bisect_left(range(size), True, key=lambda k: bool(stats.binom.sf(k, size, rate) < 1e-18)))


def _rows(size: Array) -> Array:
    return size.astype(jnp.float32)


def _one(size: Array) -> Array:
    return jnp.ones_like(size, jnp.float32)


# --- clients drawn in proportion to their sizes, as the owners of examples drawn uniformly ------------------


_MANY = 4096
"""The number of clients from which a draw without replacement does not look at all of them."""


class _Table(NamedTuple):
    """The sizes of the clients and their cumulative sums, ``(N,)`` each."""

    sizes: Array
    last: Array


def _tabulate(sizes: Array) -> _Table:
    """The table of these sizes."""
    return _Table(sizes, jnp.cumsum(sizes))


def _is_sparse(m: int, clients: int) -> bool:
    """Whether few of many clients are drawn, so that a draw need not look at all of them."""
    return clients >= _MANY and m <= clients // 4


def _race(key: Key, sizes: Array, m: int) -> tuple[Array, Array]:
    """Scores and ids of the first ``m`` clients of successive draws without replacement; a size of 0 has no chance."""
    score = jnp.log(sizes.astype(jnp.float32)) + jax.random.gumbel(key, sizes.shape, jnp.float32)
    return jax.lax.top_k(score, m)


def _owners(key: Key, last: Array, m: int) -> Array:
    """Those of ``m`` examples drawn uniformly, int32 ``(m,)``."""
    # Exact in integers, unlike a float32 sum of a million sizes.
    row = jax.random.randint(key, (m,), 0, last[-1], dtype=jnp.int32)
    return jnp.searchsorted(last, row, side="right").astype(jnp.int32)


def _distinct_owners(key: Key, last: Array, m: int) -> Array:
    """The first ``m`` distinct clients of a sequence drawn with replacement: successive draws without it."""
    vacant = jnp.int32(last.shape[0])

    def more(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        chosen, _, batch = carry
        new = jnp.concatenate([chosen, _owners(jax.random.fold_in(key, batch), last, m)])
        order = jnp.argsort(new, stable=True)
        ranked = new[order]
        fresh = (ranked != jnp.roll(ranked, 1)) & (ranked < vacant)
        fresh = fresh.at[0].set(ranked[0] < vacant)
        kept = jnp.zeros(2 * m, bool).at[order].set(fresh)
        place = jnp.where(kept, jnp.cumsum(kept.astype(jnp.int32)) - 1, m)
        chosen = jnp.full(m, vacant).at[place].set(new, mode="drop")
        return chosen, jnp.minimum(jnp.sum(kept.astype(jnp.int32)), m), batch + 1

    begin = (jnp.full(m, vacant), jnp.int32(0), jnp.int32(0))
    return jax.lax.while_loop(lambda carry: carry[1] < m, more, begin)[0]
