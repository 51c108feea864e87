"""A cohort cut into groups of clients that are trained side by side, and the groups dealt to the devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand.devices import Devices
from evenhand.types import Array, Cohort, PyTree, Report

__all__ = ["Groups", "Members", "deal", "side_by_side", "sum_of"]


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
    report: Report | None

    @staticmethod
    def of(cohort: Cohort) -> Members:
        """Those of a cohort, before any report."""
        return Members(cohort.ids, cohort.progress, cohort.present, None)


class Groups(NamedTuple):
    """A cohort cut into groups of equal size, longest work first.

    Attributes:
      devices: among whom the groups are dealt.
      members: of all groups, leaves ``(devices, groups, lanes)``.
      order: ``(m,)``, which member of the cohort has each rank.
      ranks: ``(devices, groups, lanes)``, from :func:`deal`.
      useful: local steps of the cohort.
      executed: the steps that the devices run for them: in every lane of a group as many as in its longest.
    """

    devices: Devices
    members: Members
    order: Array
    ranks: npt.NDArray[np.int64]
    useful: Array
    executed: Array

    @staticmethod
    def cut(cohort: Cohort, steps: Array, lanes: int, devices: Devices) -> Groups:
        """Groups of clients of like ``steps``, ``(m,)``."""
        m = cohort.ids.shape[0]
        ranks = deal(m, lanes, devices.size)
        order = jnp.arange(m)
        if ranks.shape[0] * ranks.shape[2] > 1:
            order = jnp.argsort(-steps, stable=True)
        live = ranks < m
        # Else XLA divides what follows, too, and adding up a few numbers takes another exchange between the devices.
        place = devices.whole(order[np.minimum(ranks, m - 1)])
        members = jax.tree.map(lambda leaf: leaf[place], Members.of(cohort))
        members = members._replace(present=members.present & live)
        slots = jnp.where(live, steps[place], 0).astype(jnp.float32)
        executed = jnp.sum(jnp.max(slots, axis=-1)) * ranks.shape[2]
        useful = jnp.sum(steps.astype(jnp.float32))
        return Groups(devices, members, order, ranks, useful, executed)

    def with_reports(self, report: Report, present: Array) -> Groups:
        """The same groups with what their members reported, and who is left: fields ``(m,)`` in the cohort's order."""
        place = self.order[np.minimum(self.ranks, self.order.shape[0] - 1)]
        report, present = jax.tree.map(lambda leaf: leaf[place], (report, present))
        return self._replace(
            members=self.members._replace(report=report, present=self.members.present & present)
        )

    def map_groups(self, function: Callable[[Members, PyTree], PyTree], shared: PyTree) -> PyTree:
        """``function(group, shared)`` of every group, ``(devices, groups, lanes, ...)``: a part stays on its device."""

        def on_device(members: Members, shared: PyTree) -> PyTree:
            return lax.map(lambda group: function(group, shared), members)

        return self.devices.each(on_device, self.members, shared)

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
        place = self.order[np.minimum(self.ranks, self.order.shape[0] - 1)]
        return self.as_dealt((self.members.ids, chosen[place] & self.members.present))

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


def side_by_side(function: Callable[..., PyTree], *batched: PyTree) -> PyTree:
    """``vmap``, except that a single lane is not batched: a batch of one costs XLA:CPU its fast paths."""
    if jax.tree.leaves(batched)[0].shape[0] > 1:
        return jax.vmap(function)(*batched)
    out = function(*(jax.tree.map(lambda leaf: leaf[0], argument) for argument in batched))
    return jax.tree.map(lambda leaf: leaf[None], out)


def sum_of(present: Array, uploads: PyTree) -> PyTree:
    """The sum over a group, leading axis of each leaf; what an empty slot holds does not matter."""

    def total(leaf: Array) -> Array:
        mask = present.reshape(present.shape + (1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(mask, leaf, jnp.zeros((), leaf.dtype)), axis=0)

    return jax.tree.map(total, uploads)
