"""What a round is made of: the program that is compiled, the rows on which it trains, and a cohort cut into groups.

* :class:`Program` is all that is fixed when a round is compiled; :class:`Rows` are the clients' training rows.
* :class:`Resident` has all rows on the devices, where they fit; :mod:`evenhand.simulation.setup` streams them else.
* :class:`Groups` are the clients of a cohort that are trained side by side, dealt to the devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh

from evenhand._jaxpr.hoist import Keyed
from evenhand.data import FederatedDataset, Split
from evenhand.devices import Devices, as_entry, entry, everywhere
from evenhand.evaluation import Prepared, mean_loss
from evenhand.local import step_per_row
from evenhand.memory import aligned, empty_aligned, is_aligned, is_mapped
from evenhand.rounds import malicious_clients, poisoned
from evenhand.systems import Systems
from evenhand.types import (
    Aggregator,
    Algorithm,
    Array,
    Attack,
    ClientData,
    Cohort,
    Effort,
    PyTree,
    Report,
    Sampling,
)

# What other packages take; the other names are for this package.
__all__ = ["EXECUTED", "ROWS", "USEFUL", "WORK", "Program", "Rows", "efforts", "resident"]

NDArray = npt.NDArray[Any]

USEFUL, EXECUTED, ROWS = WORK = ("steps.useful", "steps.executed", "rows")
"""Names among a round's infos: local steps that were asked for, those that the lanes went through, rows trained on."""


class Program(NamedTuple):
    """What is fixed when a round is compiled.

    Attributes:
      algorithm: the method.
      cohort: clients drawn per round.
      capacity: rows of the largest client.
      lanes: clients trained side by side on a device.
      systems: stragglers and dropouts, or None.
      attack: what malicious clients do, or None.
      buffer: how many rounds' infos one call returns.
      mesh: the devices over which a cohort is spread; None: one.
      masks: whether secure sums draw their masks, which cancel.
      shifts: whether clients may change the device halfway in the last phase, where their work seems to be equal.
    """

    algorithm: Algorithm
    cohort: int
    capacity: int
    lanes: int
    systems: Systems | None
    attack: Attack | None
    buffer: int
    mesh: Mesh | None = None
    masks: bool = False
    shifts: bool = False

    def aggregator(self, phase: int) -> Aggregator:
        """That of a phase, which draws masks only if the run asks for them."""
        aggregator = self.algorithm.phases[phase].aggregator
        return aggregator if self.masks else aggregator.unmasked

    @property
    def devices(self) -> Devices:
        """Those of the mesh."""
        return Devices(self.mesh)


class ById(Keyed):
    """A program as a key: its parts are values, but hold functions that do not compare."""

    def __init__(self, program: Program) -> None:
        # The program is kept beside its key, so that no id in it can come to be that of another object.
        super().__init__(tuple(field if isinstance(field, int | Mesh) else id(field) for field in program))
        self.program = program


class Rows(NamedTuple):
    """All training rows, and which clients are malicious, on the device.

    Attributes:
      x: features of all clients, one client after the other.
      y: their labels.
      starts: int32 ``(N,)``, each client's first row.
      sizes: int32 ``(N,)``, each client's rows.
      malicious: bool ``(N,)``.
      table: what the sampling makes of the sizes once for all rounds, None for nothing.
      slots: int32 ``(N,)``, where each client's state is among those on the device; None: at its id.
    """

    x: Array
    y: Array
    starts: Array
    sizes: Array
    malicious: Array
    table: PyTree = None
    slots: Array | None = None


def observe(algorithm: Algorithm, server: PyTree, rows: Rows) -> PyTree:
    """The server state once the method has seen the training loss of the global model over all clients."""
    assert algorithm.observe is not None
    everything = Prepared(rows.x, rows.y, np.array([0, rows.x.shape[0]]))
    return algorithm.observe(server, mean_loss(algorithm.model, algorithm.global_params(server), everything))


class Source(Protocol):
    """The training rows, wherever they are.

    Attributes:
      rows: all rows; where they are streamed, the shapes of ``x`` and ``y``.
    """

    @property
    def rows(self) -> Rows: ...

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """Rows for rounds from ``first`` on, and for how many of the ``count`` rounds asked for they serve."""
        ...


# --- all rows on the devices ------------------------------------------------------------------------------------------

_ROW_SHARE = 3
"""One part in so many of an accelerator's memory may be filled with rows."""
_ROW_COPY = 2**30
"""Bytes that may be copied to where a CPU can use them in place; rows beyond, not aligned, are streamed."""


class Resident(NamedTuple):
    """All rows on every device."""

    rows: Rows

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """Rows for rounds from ``first`` on, and for how many of the ``count`` rounds asked for they serve."""
        return self.rows, count


def resident(
    data: FederatedDataset, attack: Attack | None, seed: int, mesh: Mesh | None, sampling: Sampling | None
) -> Resident:
    """All training rows on the devices, those of malicious clients poisoned."""
    x, y = data.train.x, data.train.y
    malicious = malicious_clients(attack, data.client_ids, seed)
    if attack is not None and attack.rows is not None:
        # Copies: the caller's rows, by which clients are evaluated, stay clean.
        x, y = x.copy(), y.copy()
        ids, offsets = np.flatnonzero(malicious), data.train.offsets
        poison(attack, seed, x, y, zip(ids, offsets[ids], offsets[ids + 1], strict=True))
    starts, sizes = data.train.offsets[:-1].astype(np.int32), data.train.sizes.astype(np.int32)
    if jax.default_backend() == "cpu":
        x, y = aligned(x), aligned(y)  # else each device would make a copy of its own
    table = tabulated(sampling, sizes)
    return Resident(Rows(*sent(mesh, (x, y)), *everywhere(mesh, (starts, sizes, malicious, table))))


def poison(attack: Attack, seed: int, x: NDArray, y: NDArray, windows: Iterable[tuple[Any, ...]]) -> None:
    """Overwrites the rows of some clients; ``windows`` are ``(client, first row, row after the last)``."""
    assert attack.rows is not None
    for client, first, end in windows:
        window = slice(int(first), int(end))
        x[window], y[window] = poisoned(attack.rows, x[window], y[window], seed, int(client))


def tabulated(sampling: Sampling | None, sizes: NDArray) -> PyTree:
    """What the sampling scheme makes of the clients' sizes once for all rounds."""
    if sampling is None or sampling.tabulate is None:
        return None
    return jax.tree.map(np.asarray, sampling.tabulate(jnp.asarray(sizes)))


def sent(mesh: Mesh | None, rows: tuple[NDArray, NDArray]) -> tuple[Array, Array]:
    """On the devices; a CPU uses them where they are."""
    return jax.device_put(rows) if mesh is None else everywhere(mesh, rows)


def rows_of(split: Split, clients: NDArray) -> tuple[NDArray, NDArray]:
    """Where the rows of some clients are, one client after the other, and the offsets that these then have."""
    sizes = split.sizes[clients]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return np.repeat(split.offsets[clients] - offsets[:-1], sizes) + np.arange(offsets[-1]), offsets


def gathered(part: NDArray, index: NDArray, room: int = 0) -> NDArray:
    """Some rows in memory that a CPU uses in place, with room for at least ``room`` of them."""
    rows = empty_aligned((max(len(index), room), *part.shape[1:]), part.dtype)
    if len(index):  # "clip": np.take would make a buffer as large as the result, to check the indices
        np.take(np.asarray(part), index, axis=0, out=rows[: len(index)], mode="clip")
    return rows


def must_stream(*splits: Split) -> bool:
    """Whether rows should stay on the host: they are in a file, or too large for the device."""
    parts = [part for split in splits for part in (split.x, split.y)]
    if any(is_mapped(part) for part in parts):
        return True
    if jax.default_backend() == "cpu":
        return sum(part.nbytes for part in parts if not is_aligned(part)) > _ROW_COPY
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit is not None and sum(part.nbytes for part in parts) > limit / _ROW_SHARE


# --- a cohort, cut into groups of clients -----------------------------------------------------------------------------


class Members(NamedTuple):
    """The clients of a group, or of all groups.

    Attributes:
      ids: client ids.
      progress: share of the work that gets done.
      present: False for an empty slot.
      report: what was reported before the training, where the aggregator had to know.
    """

    ids: Array
    progress: Array
    present: Array
    report: Report | None = None


class Groups(NamedTuple):
    """A cohort cut into groups of equal size, longest work first.

    Attributes:
      devices: among whom the groups are dealt.
      members: of all groups, leaves ``(devices, groups, lanes)``.
      order: ``(m,)``, which member of the cohort has each rank.
      ranks: ``(devices, groups, lanes)``, from :func:`deal`; those whose results count.
      pieces: which part of its work each group does, ``(devices, groups)``; None: all of it.
      trained: those whom the groups train, likewise.
      useful: local steps of the cohort.
      executed: the steps that the devices run for them: in every lane of a group as many as in its longest.
    """

    devices: Devices
    members: Members
    order: Array
    ranks: npt.NDArray[np.int64]
    pieces: Pieces | None
    trained: npt.NDArray[np.int64]
    useful: Array
    executed: Array

    @property
    def lanes(self) -> Lanes:
        """Those of a group."""
        return Lanes(self.ranks.shape[2])

    @staticmethod
    def cut(cohort: Cohort, steps: Array, lanes: int, devices: Devices, *, shifts: bool = False) -> Groups:
        """Groups of clients of like ``steps``, ``(m,)``; with ``shifts``, of one client or a piece of its work."""
        m = cohort.ids.shape[0]
        shares = shifts_of(m, devices.size) if shifts else None
        ranks = deal(m, lanes, devices.size) if shares is None else shares.ranks
        trained = ranks if shares is None else shares.trained
        order = jnp.arange(m)
        if ranks.shape[0] * ranks.shape[2] > 1:
            order = jnp.argsort(-steps, stable=True)
        live = trained < m
        # Else XLA divides what follows, too, and adding up a few numbers takes another exchange between the devices.
        place = devices.whole(order[np.minimum(trained, m - 1)])
        members = jax.tree.map(lambda leaf: leaf[place], Members(**cohort._asdict()))
        # On every device, where XLA would gather them again: next to a loop that exchanges, too, as nothing of theirs
        # waits for the loop, and on a CPU with fewer threads than devices each exchange could then wait for the other.
        members = devices.whole(members._replace(present=members.present & live))
        done = live if shares is None else ranks < m
        slots = jnp.where(done, steps[place], 0).astype(jnp.float32)
        executed = jnp.sum(jnp.max(slots, axis=-1)) * ranks.shape[2]
        useful = jnp.sum(steps.astype(jnp.float32))
        return Groups(
            devices=devices,
            members=members,
            order=order,
            ranks=ranks,
            pieces=None if shares is None else shares.pieces(steps[place[..., 0]]),
            trained=trained,
            useful=useful,
            executed=executed,
        )

    def with_reports(self, report: Report, present: Array) -> Groups:
        """The same groups with what their members reported, and who is left: fields ``(m,)`` in the cohort's order."""
        place = self.order[np.minimum(self.trained, self.order.shape[0] - 1)]
        report, present = jax.tree.map(lambda leaf: leaf[place], (report, present))
        members = self.members._replace(report=report, present=self.members.present & present)
        return self._replace(members=members)

    def map_groups(self, function: Callable[[Members, PyTree], PyTree], shared: PyTree) -> PyTree:
        """``function(group, shared)`` of every group, ``(devices, groups, lanes, ...)``: a part stays on its device."""

        def on_device(members: Members, shared: PyTree) -> PyTree:
            return as_entry(lax.map(lambda group: function(group, shared), entry(members)))

        return self.devices.spread(on_device)(self.members, shared)

    def total(self, parts: PyTree) -> PyTree:
        """The sum of leaves ``(devices, ...)``, on all devices."""
        return self.devices.whole(jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), parts))

    def ungroup(self, grouped: PyTree) -> PyTree:
        """From ``(devices, groups, lanes, ...)`` to ``(m, ...)`` in the cohort's order, on all devices."""
        return self._in_order(self.devices.whole(grouped))

    def as_dealt(self, grouped: PyTree) -> PyTree:
        """From ``(devices, groups, lanes, ...)`` to one entry per slot, in the order of the slots, on all devices."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), self.devices.whole(grouped))

    def slots(self, chosen: Array) -> tuple[Array, Array]:
        """The client of each slot, and whether it is there and ``chosen``, ``(m,)`` in the cohort's order."""
        place = self.order[np.minimum(self.trained, self.order.shape[0] - 1)]
        chosen = chosen[place] & self.members.present
        if self.pieces is not None:
            chosen &= self.ranks < self.order.shape[0]
        return self.as_dealt((self.members.ids, chosen))

    def by_coordinate(self, grouped: PyTree) -> PyTree:
        """As :meth:`ungroup`, with a part of the coordinates on each device."""
        return self._in_order(self.devices.by_coordinate(grouped, 3))

    def _in_order(self, grouped: PyTree) -> PyTree:
        m = self.order.shape[0]
        slot = np.argsort(self.ranks, axis=None, kind="stable")[:m]
        back = jnp.asarray(slot)[jnp.argsort(self.order)]
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:])[back], grouped)


def deal(m: int, lanes: int, devices: int) -> npt.NDArray[Any]:
    """Which ranks a device trains side by side, ``(devices, groups, lanes)``; ranks from ``m`` on are padding.

    Groups are as even as possible, and are dealt back and forth, so that no device gets all the longest.

    Example:
      >>> deal(7, 2, 2).tolist()
      [[[0, 1], [6, 7]], [[2, 3], [4, 5]]]
    """
    groups = -(-m // (lanes * devices))
    lanes = -(-m // (groups * devices))
    ranks = np.arange(groups * devices * lanes).reshape(groups, devices, lanes)
    ranks[1::2] = ranks[1::2, ::-1].copy()
    return np.ascontiguousarray(ranks.swapaxes(0, 1))


class Pieces(NamedTuple):
    """Which part of a client's work is done, all fields of one shape.

    Attributes:
      entered: 0: the piece begins the work; 1: it continues what this device began; 2: what the next device began.
      most: int32, the most steps; a piece that ends the work has no bound.
      left: 0: the piece ends the work; 1: this device continues it in the second half; 2: the previous device does.
    """

    entered: Array
    most: Array
    left: Array


class Shifts(NamedTuple):
    """Clients of equal work, dealt so that all devices work equally long in each half of a round; ``(devices, slots)``.

    Attributes:
      trained: the rank that a slot trains, ``(devices, slots, 1)``; the number of clients for an empty slot.
      ranks: the same, but the number of clients also where the slot does not end the client's work.
      share: of the client's work, if the slot does not end it.
      entered: as in :class:`Pieces`.
      left: likewise.
    """

    trained: NDArray
    ranks: NDArray
    share: NDArray
    entered: NDArray
    left: NDArray

    def longest(self, steps: int) -> int:
        """The steps after which the round ends if each client has so many: the devices meet after each half."""
        part, empty = np.round(self.share * steps).astype(int), self.ranks.max()
        trained = self.trained[..., 0]
        begun = np.bincount(trained[self.left > 0], part[self.left > 0], empty + 1)
        work = np.where(self.left > 0, part, np.where(self.entered > 0, steps - begun[trained], steps))
        work = np.where(trained == empty, 0, work)
        return int(work.reshape(len(work), 2, -1).sum(-1).max(0).sum())

    def pieces(self, steps: Array) -> Pieces:
        """The pieces of clients with so many steps."""
        part = jnp.round(jnp.float32(self.share) * steps.astype(jnp.float32)).astype(jnp.int32)
        most = jnp.where(self.left == 0, jnp.iinfo(jnp.int32).max, part)
        return Pieces(jnp.int32(self.entered), most, jnp.int32(self.left))


def shifts_of(m: int, devices: int) -> Shifts:
    """``m`` clients of equal work, at least two per device.

    Put all work on one line and cut it into one stretch per device, of which the first half is done first.  A client on
    a cut between two devices begins on the later one, in the first half of the round, and ends on the earlier one, in
    the second: no client is ever in two places (McNaughton's rule).

    Example:
      >>> shifts = shifts_of(5, 2)  # five clients in 2.5 times the work of one
      >>> shifts.trained[..., 0].tolist(), shifts.share.tolist()
      ([[0, 1, 1, 2], [2, 3, 3, 4]], [[1.0, 0.25, 1.0, 1.0], [0.5, 0.75, 1.0, 1.0]])
      >>> shifts.entered.tolist(), shifts.left.tolist()
      ([[0, 0, 1, 2], [0, 0, 1, 0]], [[0, 1, 0, 0], [2, 1, 0, 0]])
    """
    # In units of which a client takes 2 * devices, and half of a device's stretch m.
    client = 2 * devices
    windows = [[*range(begin // client, -(-(begin + m) // client))] for begin in range(0, client * m, m)]
    slots = max(map(len, windows))
    trained, entered, left = np.full((client, slots), m), *np.zeros((2, client, slots), int)
    share = np.ones((client, slots))
    for window, clients in enumerate(windows):
        for slot, rank in enumerate(clients):
            trained[window, slot] = rank
            first, last = rank * client // m, (rank * client + client - 1) // m
            if first == last:
                continue
            # From the first half of a device into its second one, or from a device to the one before.
            kind, earlier = (1, first) if first % 2 == 0 else (2, last)
            if window == earlier:
                cut = last * m - rank * client
                left[window, slot], share[window, slot] = kind, (cut if kind == 1 else client - cut) / client
            else:
                entered[window, slot] = kind
    ranks = np.where(left == 0, trained, m)
    fields = (field.reshape(devices, -1) for field in (trained, ranks, share, entered, left))
    return Shifts(*(field[..., None] if i < 2 else field for i, field in enumerate(fields)))


class Lanes(NamedTuple):
    """Clients that are computed side by side.

    Attributes:
      size: how many, which is the size of the leading axis.
    """

    size: int

    def batched(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """``function`` of all lanes, between :meth:`enter` and :meth:`leave`."""
        # A batch of one costs XLA:CPU its fast paths, so that a single client is computed without the axis.
        return jax.vmap(function) if self.size > 1 else function

    def enter(self, lanes: PyTree) -> PyTree:
        """What the batched function takes."""
        return lanes if self.size > 1 else entry(lanes)

    def leave(self, results: PyTree) -> PyTree:
        """What it gives, with the axis of the lanes."""
        return results if self.size > 1 else as_entry(results)


def side_by_side(function: Callable[..., PyTree], lanes: int) -> Callable[..., PyTree]:
    """``function`` of the clients in all lanes, arguments and results with a leading axis."""
    axis = Lanes(lanes)
    batched = axis.batched(function)
    return lambda *arguments: axis.leave(batched(*axis.enter(arguments)))


def sum_of(present: Array, uploads: PyTree) -> PyTree:
    """The sum over a group, leading axis of each leaf; what an empty slot holds does not matter."""

    def total(leaf: Array) -> Array:
        # A choice, not a product with the mask: an empty slot may hold NaN, and 0 times NaN is NaN.
        mask = present.reshape(present.shape + (1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(mask, leaf, jnp.zeros((), leaf.dtype)), axis=0)

    return jax.tree.map(total, uploads)


def efforts(
    effort: Callable[[ClientData], Effort] | None,
    capacity: int,
    rows: Rows,
    cohort: Cohort,
    round: Array | int,
) -> Effort:
    """What a phase with this ``effort`` costs each client of a cohort, fields ``(m,)``; nothing in an empty slot."""
    effort = step_per_row if effort is None else effort
    members = Members(**cohort._asdict())
    return jax.vmap(lambda member: effort(client_data(capacity, rows, member, round)))(members)


SECONDS = "seconds"
"""Name among a round's infos: how long the round lasts, in simulated seconds, where these are simulated."""
_HALVINGS = 24
"""Of an interval of shares: as many as a float32 has bits."""


def on_time(
    program: Program, index: int, rows: Rows, cohort: Cohort, round: Array | int
) -> tuple[Cohort, Array | None]:
    """The part of a cohort that is done with phase ``index`` by the deadline, and the seconds that this exchange lasts.

    Where time is not simulated, the whole cohort and None.
    """
    pace = None if program.systems is None else program.systems.pace
    if pace is None:
        return cohort, None
    per_example, effort = pace.per_example(cohort.ids), program.algorithm.phases[index].effort

    def seconds(progress: Array) -> Array:
        work = efforts(effort, program.capacity, rows, cohort._replace(progress=progress), round)
        return pace.communication + per_example * work.rows.astype(jnp.float32)

    full = seconds(cohort.progress)
    lasted = jnp.max(jnp.where(cohort.present, full, 0.0))
    if math.isinf(pace.deadline):
        return cohort, lasted
    late = full > pace.deadline
    if not program.algorithm.partial_work:
        cohort = cohort._replace(present=cohort.present & ~late)
        return cohort, jnp.minimum(lasted, pace.deadline)

    def halve(_: int, shares: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = shares
        middle = 0.5 * (low + high)
        fits = seconds(middle) <= pace.deadline
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    # The largest share that fits: an effort is any function of it, in steps of whole epochs or batches.
    least = jnp.zeros_like(cohort.progress)
    share = lax.fori_loop(0, _HALVINGS, halve, (least, jnp.minimum(cohort.progress, 1.0)))[0]
    some = seconds(least) <= pace.deadline
    cohort = cohort._replace(
        present=cohort.present & (~late | some), progress=jnp.where(late, share, cohort.progress)
    )
    return cohort, jnp.minimum(lasted, pace.deadline)


def client_data(capacity: int, rows: Rows, member: Members, round: Array | int) -> ClientData:
    """The rows that a member of a cohort works on in ``round``, and how much of its work it gets done."""
    # An empty slot has no rows, so that its local work is done at once.
    size = jnp.where(member.present, rows.sizes[member.ids], 0)
    return ClientData(
        x=rows.x,
        y=rows.y,
        start=rows.starts[member.ids],
        size=size,
        progress=member.progress,
        capacity=capacity,
        round=jnp.asarray(round, jnp.int32),
    )
