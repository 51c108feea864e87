r"""Systems heterogeneity: which clients are available in a round, how fast they are, which are slow, which drop out.

The engine applies them in this order, whatever their order in :func:`chain`:

1. *Availability* (:func:`availability`, :func:`diurnal`).  The cohort is drawn among the clients that are present.
2. *Stragglers and dropouts* (:func:`stragglers`, :func:`dropouts`) change the cohort that was drawn, in turn.
3. *Speeds* (:func:`speeds`) say how long each client takes, and who is done by the deadline.

All draws depend on the seed, the round and the client alone, never on the method: methods that run with the same seed
meet the same conditions.
"""

from __future__ import annotations

import csv
import itertools
import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, expect, perhaps, real_number, truth_value, whole_number
from evenhand.streams import Purpose, client_stream, permutation_words, permute, stream
from evenhand.text import counted, listed, short
from evenhand.types import Array, Cohort, Key

__all__ = [
    "Pace",
    "Systems",
    "availability",
    "bound",
    "chain",
    "diurnal",
    "dropouts",
    "only_availability",
    "speeds",
    "stragglers",
]

NDArray = npt.NDArray[Any]
_LONGEST_DAY = 2**15
"""Rounds of a day at most: with as many groups, a product of both still is an int32."""


class Pace(NamedTuple):
    """How long clients take, in simulated seconds.

    Attributes:
      per_example: ``ids -> (m,)``, of these clients for each example whose gradient they compute.
      communication: of each exchange with a client, for the broadcast and the upload together.
      deadline: when the server stops to wait in an exchange; infinite: never.
    """

    per_example: Callable[[Array], Array]
    communication: float = 0.0
    deadline: float = math.inf
    __repr__ = short


class Systems(NamedTuple):
    """Which clients are available, which of a round's cohort are slow or drop out, and how long they take.

    Attributes:
      draw: ``(key, cohort, keep_partial) -> Cohort``, perhaps with fewer slots; ``keep_partial``, a Python bool:
        whether the method aggregates stragglers' partial work rather than dropping it.
      present: ``(key, round, clients) -> (clients,)`` bool, which of so many clients are available in a round, counted
        from 0; the cohort is drawn among these.  None: all of them.
      pace: how long clients take; None: time is not simulated.
      bind: ``client_ids -> Systems`` for the clients of a data set; None: it is the same for any clients.
    """

    draw: Callable[[Key, Cohort, bool], Cohort]
    present: Callable[[Key, Array, int], Array] | None = None
    pace: Pace | None = None
    bind: Callable[[tuple[str, ...]], Systems] | None = None
    __repr__ = short


def bound(systems: Systems | None, client_ids: Sequence[str]) -> Systems | None:
    """The systems of the clients with these ids; the same object for equal systems and ids.

    Raises:
      EvenhandError: they are made for other clients.
    """
    return systems if systems is None or systems.bind is None else systems.bind(tuple(client_ids))


def only_availability(systems: Systems | None) -> Systems | None:
    """Systems that say who is available, and change nothing else; None where all always are."""
    return None if systems is None or systems.present is None else Systems(_unchanged, systems.present)


# --- which clients are available --------------------------------------------------------------------------------------


def availability(table: str | Path | NDArray | Sequence[Sequence[int]]) -> Systems:
    r"""Availability by a table of time slots, such as one in a CSV file.

    Client :math:`k` is available in round :math:`t`, counted from 0, if

    .. math:: A_{k,\ t \bmod S} = 1 .

    A round's cohort is drawn among the clients that are available.  If these are fewer than the cohort, slots stay
    empty; if there are none, the round changes nothing.  What that means for each sampling is in
    :mod:`evenhand.sampling`.

    Args:
      table: :math:`A`, of 0 and 1, with one row for each client in the order of the data and one column for each of
        the :math:`S` time slots.  Or the path of a CSV file with a header, whose first
        column has the clients' ids, in any order; lines of clients that are not in the data are ignored.

    Raises:
      EvenhandError: the table holds something else than 0 and 1, or the file cannot be read.  When a run starts: the
        table has no row for some client.

    Example:
      >>> import evenhand as eh
      >>> turns = bound(availability([[1, 0], [0, 1], [1, 1]]), ("a", "b", "c"))
      >>> assert turns is not None and turns.present is not None
      >>> [turns.present(jax.random.key(0), jnp.int32(t), 3).tolist() for t in (0, 1, 2)]
      [[True, False, True], [False, True, True], [True, False, True]]
    """
    place = f"availability({str(table)!r:.80})" if isinstance(table, str | Path) else "availability(table)"
    ids, values = _read(Path(table), place) if isinstance(table, str | Path) else ((), _numbers(table, place))
    if values.ndim != 2 or not values.size:
        raise EvenhandError(
            f"{place}: the table has shape {values.shape}: give a row for each client and a column for each time slot."
        )
    if not np.isin(values, (0, 1)).all():
        wrong = values[~np.isin(values, (0, 1))][0]
        raise EvenhandError(f"{place}: the table holds {wrong:g}: give 0 or 1 for each client and time slot.")
    return _availability(place, ids, values.shape, np.packbits(values.astype(bool)).tobytes())


def diurnal(period: int, groups: int, *, smooth: bool = False) -> Systems:
    r"""Availability by the time of day: groups of clients take turns.

    A day has :math:`D` rounds, and the client at position :math:`k` is in group :math:`g = k \bmod G`, so each group
    has its own time zone.  Without ``smooth``, the groups take turns: group :math:`g` is available in round :math:`t`,
    counted from 0, if

    .. math:: \left\lfloor \tfrac{G}{D} (t \bmod D) \right\rfloor = g .

    With ``smooth``, each of its clients is available with probability

    .. math:: p_g(t) = \tfrac12 \Big( 1 + \cos 2 \pi \big( \tfrac tD - \tfrac gG \big) \Big)

    independently of all other clients and rounds: half of the rounds on average.

    Args:
      period: :math:`D`, the rounds of a day.
      groups: :math:`G`, at most ``period``.
      smooth: whether availability rises and falls rather than changing at once.

    For groups that differ in their data, or for a record of real devices, give :func:`availability` a table.

    Raises:
      EvenhandError: ``period`` or ``groups`` is no whole number from 1, or there are more groups than rounds in a day.

    Edge cases: where :math:`G` does not divide :math:`D`, some groups are available one round longer than others.  With
    one group and without ``smooth``, all clients are always available.

    Example:
      >>> day = diurnal(4, 2)
      >>> assert day.present is not None
      >>> [day.present(jax.random.key(0), jnp.int32(t), 3).tolist() for t in (0, 1, 2)]
      [[True, False, True], [True, False, True], [False, True, False]]

    Source: the turns are those of Eichner et al., *Semi-Cyclic Stochastic Gradient Descent*, ICML 2019.
    """
    smooth = truth_value("smooth", smooth)
    period = whole_number("diurnal(period=)", period, 1, _LONGEST_DAY)
    return _diurnal(period, whole_number("diurnal(groups=)", groups, 1, period), bool(smooth))


# --- how long clients take --------------------------------------------------------------------------------------------


def speeds(
    seconds: float | str | Path | NDArray | Sequence[float],
    deadline: float | None = None,
    *,
    spread: float = 0.0,
    communication: float = 0.0,
    seed: int = 0,
) -> Systems:
    r"""Simulated client speeds: a run gets a simulated clock, and the server may wait for a limited time only.

    Client :math:`k` takes :math:`c + s_k r_k` seconds for an exchange in which it computes the gradients of
    :math:`r_k` examples (each as often as it is used).  An exchange lasts as long as its slowest client, or until the
    deadline :math:`d` if that comes first; a round has one exchange, or as many as the method has.

    .. math:: T_t = \min\Big( d,\ \max_{k \in S_t} (c + s_k r_k) \Big)

    A client that is not done at the deadline sends the epochs (or steps) that it has completed, if the method keeps
    partial work, such as FedProx; if it has completed none, or the method drops partial work, it is left out.

    ``run.per_round["seconds"]`` has the seconds of each round, ``run.history["time"]`` those since the beginning.

    Args:
      seconds: :math:`s_k` for each example: of each client in the order of the data; or the path of a CSV file with a
        header, the clients' ids in the first column and their seconds in the second; or one number.
      deadline: :math:`d`, in seconds from the beginning of an exchange; None: the server waits for everybody.
      spread: for one number, the clients' seconds are log-normal: :math:`s_k = s\, e^{\sigma z_k}` with standard normal
        :math:`z_k` and this :math:`\sigma`; ``seconds`` is their median.
      communication: :math:`c`, seconds of each exchange for the broadcast and the upload together.
      seed: of the draw of :math:`z_k`, which is the same for all seeds of the training.

    Raises:
      EvenhandError: a number is negative or not finite, or the file cannot be read.  When a run starts: a client has
        no seconds.

    Edge cases: dropouts are not waited for.  An exchange without anybody takes no time.  Losses that clients report
    before they train, and passes of a secure sum, take no time of their own.

    Example:
      >>> import evenhand as eh
      >>> work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=2, batch_size=4)
      >>> method = eh.algorithms.fedavg(work, sampling=eh.sampling.uniform())
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2, systems=speeds(0.5, communication=1.0))
      >>> largest = eh.testing.toy_data().train.sizes.max()
      >>> run.per_round["seconds"].tolist() == [1.0 + 0.5 * 2 * largest] * 2
      True
    """
    words, options = "speeds(seconds)", (spread, communication, 0.0 if deadline is None else deadline)
    for name, number in zip(("spread", "communication", "deadline"), options, strict=True):
        if not 0.0 <= real_number(number) < math.inf:
            raise EvenhandError(f"speeds({name}={number!r:.40}): give a finite number of at least 0.")
    ids: tuple[str, ...] = ()
    if isinstance(seconds, str | Path):
        words = f"speeds({str(seconds)!r:.80})"
        ids, values = _read(Path(seconds), words)
        if values.shape[1] != 1:
            raise EvenhandError(
                f"{words}: it has {values.shape[1] + 1} columns: give two, client and seconds."
            )
        values = values[:, 0]
    else:
        values = _numbers(seconds, words)
    if values.ndim > 1 or not (np.isfinite(values) & (values >= 0)).all():
        raise EvenhandError(f"{words}: give one number, or one for each client, finite and at least 0.")
    if values.ndim and spread:
        raise EvenhandError(
            f"speeds(spread={spread:g}): only one number of seconds has a spread: leave it out."
        )
    seed = whole_number("speeds(seed=)", seed, 0, 2**32 - 1)
    until = math.inf if deadline is None else float(deadline)
    numbers = (until, float(spread), float(communication))
    return _speeds(words, ids, values.shape, values.astype(np.float64).tobytes(), numbers, seed)


# --- which clients of a cohort are slow or drop out -------------------------------------------------------------------


def stragglers(fraction: float) -> Systems:
    r"""Stragglers: in each round, a share of the *selected* clients is slow and does only part of its local work.

    A slow client does :math:`x \sim \mathrm{Unif}\{1, \dots, E\}` epochs; where ``E = 1``, or where local work is
    counted in steps, it does :math:`\mathrm{Unif}\{1, \dots, S\}` of its ``S`` steps.  The method decides
    about partial work: FedAvg drops it, FedProx keeps it.

    The draws depend on the seed, the round and the client alone, never on the method: methods run with the same
    seed have the same stragglers.

    Args:
      fraction: share of the cohort that is slow, in [0, 1]; ``round(m * (1 - fraction))`` of its ``m`` slots are fast.

    Raises:
      EvenhandError: ``fraction`` is not a number in [0, 1].

    Edge cases: the slow slots are drawn among all slots of a cohort, empty ones included.  If some are empty, as under
    :func:`availability` or :func:`evenhand.sampling.poisson`, each client is slow with the same probability, but the
    number of slow clients varies from round to round.

    Differs from the reference code, which draws from ``{1, ..., E - 1}`` and fails for ``E = 1``.

    Example:
      >>> cohort = Cohort.of(jnp.arange(10))
      >>> [len(stragglers(share).draw(jax.random.key(0), cohort, False).ids) for share in (0.0, 0.5, 0.9)]
      [10, 5, 1]

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.2.
    """
    return _stragglers(_share("stragglers", "slow clients", fraction))


def dropouts(fraction: float) -> Systems:
    """Dropouts: each client of the cohort drops out with a given probability, independently, and uploads nothing.

    Its state, where the method keeps one, stays as it was.  A client that drops out of a round drops out of all
    exchanges that the round has with the same cohort.

    Args:
      fraction: the probability, in [0, 1].

    Raises:
      EvenhandError: ``fraction`` is not a number in [0, 1].

    Example:
      >>> cohort = dropouts(0.5).draw(jax.random.key(0), Cohort.of(jnp.arange(1000)), False)
      >>> bool(450 < cohort.present.sum() < 550)
      True
    """
    return _dropouts(_share("dropouts", "clients that drop out", fraction))


def chain(*systems: Systems) -> Systems:
    """Combines several systems: ``chain(stragglers(0.5), dropouts(0.1))``.

    Each draws what it would draw alone; a second one of the same kind draws independently.  So systems of different
    kinds get the same key: your own must fold in a number of its own, ``jax.random.fold_in(key, 100)``.

    Args:
      systems: those, in order.

    Example:
      >>> both = chain(stragglers(0.5), dropouts(1.0))
      >>> both.draw(jax.random.key(0), Cohort.of(jnp.arange(4)), False).present.tolist()
      [False, False]
    """
    for system in systems:
        expect("systems", system, Systems, "eh.systems.stragglers(0.5)")
    # Flat, so that a chain in a chain does not begin to count its kinds anew.
    apart = [system.draw.systems if isinstance(system.draw, _Chained) else (system,) for system in systems]
    return _chain(tuple(itertools.chain(*apart)))


# --- as functions -----------------------------------------------------------------------------------------------------


def _unchanged(key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
    """The cohort as it was drawn."""
    return cohort


# All are cached: equal arguments give the same object, so that the engine reuses its compiled program.
@lru_cache(maxsize=32)
def _availability(place: str, ids: tuple[str, ...], shape: tuple[int, int], packed: bytes) -> Systems:
    table = (
        np.unpackbits(np.frombuffer(packed, np.uint8), count=shape[0] * shape[1]).astype(bool).reshape(shape)
    )

    @lru_cache(maxsize=8)
    def bind(client_ids: tuple[str, ...]) -> Systems:
        rows = table[_rows_of(client_ids, ids, len(table), place)]
        # By slots, so that a round reads one row of the array.
        by_slot = np.ascontiguousarray(rows.T)

        def present(key: Key, round: Array, clients: int) -> Array:
            return jnp.asarray(by_slot)[round % shape[1]]

        return Systems(_unchanged, present)

    return Systems(_unchanged, bind=bind)


@cache
def _diurnal(period: int, groups: int, smooth: bool) -> Systems:
    def present(key: Key, round: Array, clients: int) -> Array:
        group, time = jnp.arange(clients, dtype=jnp.int32) % groups, round % period
        if not smooth:
            return group == groups * time // period
        hours = time.astype(jnp.float32) / period - group.astype(jnp.float32) / groups
        chance = 0.5 * (1.0 + jnp.cos(2.0 * np.pi * hours))
        return jax.random.uniform(key, (clients,), jnp.float32) < chance

    return Systems(_unchanged, present)


@lru_cache(maxsize=32)
def _speeds(
    words: str,
    ids: tuple[str, ...],
    shape: tuple[int, ...],
    values: bytes,
    numbers: tuple[float, float, float],
    seed: int,
) -> Systems:
    given, (deadline, spread, communication) = np.frombuffer(values).reshape(shape), numbers

    @lru_cache(maxsize=8)
    def bind(client_ids: tuple[str, ...]) -> Systems:
        if given.ndim:
            seconds = given[_rows_of(client_ids, ids, len(given), words)]
        else:
            normal = np.random.default_rng(seed).standard_normal(len(client_ids))
            seconds = given * np.exp(spread * normal)
        rounded = seconds.astype(np.float32)

        def per_example(ids: Array) -> Array:
            return jnp.asarray(rounded)[ids]

        return Systems(_unchanged, pace=Pace(per_example, communication, deadline))

    return Systems(_unchanged, bind=bind)


@cache
def _stragglers(fraction: float) -> Systems:
    def draw(key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
        m = cohort.ids.shape[0]
        slots = jnp.arange(m, dtype=jnp.int32)
        words = permutation_words(stream(key, Purpose.COHORT))
        fast = permute(slots, jnp.int32(m), words, jnp.int32(0))[: round(m * (1.0 - fraction))]
        if not keep_partial:
            return jax.tree.map(lambda leaf: leaf[jnp.sort(fast)], cohort)
        share = _uniform(stream(key, Purpose.WORK), cohort.ids)
        is_fast = jnp.zeros(m, bool).at[fast].set(True)
        return cohort._replace(progress=jnp.where(is_fast, cohort.progress, share))

    return Systems(draw)


@cache
def _dropouts(fraction: float) -> Systems:
    def draw(key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
        stays = _uniform(stream(key, Purpose.DROPOUTS), cohort.ids) >= fraction
        return cohort._replace(present=cohort.present & stays)

    return Systems(draw)


class _Chained(NamedTuple):
    """The draws of several systems, one after the other."""

    systems: tuple[Systems, ...]

    def __call__(self, key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
        for system, own in zip(self.systems, _keys(key, [s.draw for s in self.systems]), strict=True):
            cohort = system.draw(own, cohort, keep_partial)
        return cohort


@cache
def _chain(systems: tuple[Systems, ...]) -> Systems:
    presences = [system.present for system in systems if system.present is not None]

    def present(key: Key, round: Array, clients: int) -> Array:
        every = [
            part(own, round, clients) for part, own in zip(presences, _keys(key, presences), strict=True)
        ]
        return jnp.all(jnp.stack(every), axis=0)

    def bind(client_ids: tuple[str, ...]) -> Systems:
        return _chain(tuple(system if system.bind is None else system.bind(client_ids) for system in systems))

    paces = [system.pace for system in systems if system.pace is not None]
    if len(paces) > 1:
        raise EvenhandError("chain(...) got more than one speeds(...): give one of them.")
    return Systems(
        draw=_Chained(systems),
        present=present if presences else None,
        pace=paces[0] if paces else None,
        bind=bind if any(system.bind is not None for system in systems) else None,
    )


def _keys(key: Key, functions: Sequence[Callable[..., Any]]) -> list[Key]:
    """A key for each function: the key itself for the first of its kind, another one for each that follows."""
    # A user's draw may be any callable, and those of one factory share this name.
    kinds = [getattr(function, "__qualname__", "") for function in functions]
    earlier = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    return [jax.random.fold_in(key, count) if count else key for count in earlier]


def _uniform(key: Key, ids: Array) -> Array:
    """A number in [0, 1) for each client."""
    return jax.vmap(lambda k: jax.random.uniform(client_stream(key, k), dtype=jnp.float32))(ids)


def _share(name: str, clients: str, fraction: float) -> float:
    if not 0.0 <= real_number(fraction) <= 1.0:
        raise EvenhandError(
            f"{name}(fraction={fraction!r}): the share of {clients} must be a number in [0, 1]."
        )
    return float(fraction)


# --- tables of clients ------------------------------------------------------------------------------------------------

_NAMED = 3
"""Most clients that a sentence names."""


def _numbers(values: Any, place: str) -> NDArray:
    """An array of numbers, float64."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):  # the last of a whole number of 400 digits
        raise EvenhandError(f"{place}: got {values!r:.60}: give an array of numbers, or a file.") from None


def _read(path: Path, place: str) -> tuple[tuple[str, ...], NDArray]:
    """The clients' ids in the first column of a CSV file with a header, and the numbers in all others, ``(N, S)``."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, strict=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EvenhandError(
            f"{place}: the file cannot be read ({error}): give a CSV file in UTF-8."
        ) from None
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    if not rows or len(header) < 2:
        raise EvenhandError(
            f"{place}: it holds no table: give a header, and below it a client's id and its numbers in each line."
        )
    for number, line in enumerate(rows, 2):
        if len(line) != len(header):
            raise EvenhandError(f"{place}: line {number} has {len(line)} fields, the header {len(header)}.")
    # As the data spell them.
    ids = tuple(unicodedata.normalize("NFC", line[0]).strip() for line in rows)
    if len(set(ids)) < len(ids):
        twice = next(name for i, name in enumerate(ids) if name in set(ids[:i]))
        raise EvenhandError(
            f"{place}: client {twice!r:.60} has more than one line: give one line for each client."
        )
    try:
        return ids, np.array([[float(field) for field in line[1:]] for line in rows], np.float64)
    except ValueError as error:
        raise EvenhandError(f"{place}: a field is not a number ({error}).") from None


def _rows_of(client_ids: tuple[str, ...], ids: tuple[str, ...], count: int, place: str) -> NDArray:
    """Which row of a table each client has; without ids, the rows are in the order of the clients.

    Raises:
      EvenhandError: some client has none.
    """
    if not ids:
        if count != len(client_ids):
            raise EvenhandError(
                f"{place} has {counted(count, 'row')}, the data have {counted(len(client_ids), 'client')}: give a row "
                "for each client."
            )
        return np.arange(count)
    places = {name: row for row, name in enumerate(ids)}
    if missing := [name for name in client_ids if name not in places]:
        names = [repr(name) for name in missing[:_NAMED]]
        names += [f"{len(missing) - _NAMED:,} more"] if len(missing) > _NAMED else []
        hint = perhaps(missing[0], ids[:10_000])
        raise EvenhandError(
            f"{place} has no line for {len(missing):,} of {counted(len(client_ids), 'client')} of the data: "
            f"{listed(names)}{hint}. Give a line for each; its first column must hold the client's id."
        )
    return np.array([places[name] for name in client_ids])
