"""What is fixed when a round is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from evenhand.simulation._groups import AXIS, Devices
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack

__all__ = ["Program", "copies", "everywhere", "here", "on_each", "over"]


class Program(NamedTuple):
    """What is fixed when a round is compiled.

    Attributes:
      algorithm: the method.
      cohort: clients drawn per round.
      capacity: rows of the largest client.
      lanes: clients trained side by side on a device.
      systems: stragglers, or None.
      attack: liars, or None.
      buffer: how many rounds' infos one call returns.
      mesh: the devices over which a cohort is spread; None: one.
    """

    algorithm: Algorithm
    cohort: int
    capacity: int
    lanes: int
    systems: Systems | None
    attack: Attack | None
    buffer: int
    mesh: Mesh | None = None

    @property
    def devices(self) -> Devices:
        """Those of the mesh."""
        return Devices(1 if self.mesh is None else self.mesh.size)


def everywhere(mesh: Mesh | None, values: Any) -> Any:
    """A tree of arrays, whole on each device of the mesh."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, values)
    return jax.device_put(values, NamedSharding(mesh, PartitionSpec()))


def on_each(mesh: Mesh | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as each device of the mesh runs it, on arguments that are whole everywhere."""
    if mesh is None:
        return function
    spec = PartitionSpec()
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


@jax.jit
def copies(values: Any) -> Any:
    """A tree of arrays in memory of its own, that rounds may take over."""
    return jax.tree.map(jnp.copy, values)


def here(values: Any) -> Any:
    """A tree of arrays that are whole on every device, as they are on the first one of this process."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), values)


def over(devices: int) -> Mesh | None:
    """The first so many devices, of all processes; None for one."""
    if devices == 1:
        return None
    return jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
