"""Arrays on several devices: replicated on each of them, or a part on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

__all__ = ["Devices", "copies", "dealt", "everywhere", "here", "on_each", "over"]

_AXIS = "clients"


class Devices(NamedTuple):
    """The devices that share a round; inside the program each runs its own part.

    Attributes:
      size: the number of devices.
    """

    size: int

    def mine(self, dealt: Any) -> Any:
        """This device's entry of leaves ``(size, ...)``."""
        me = lax.axis_index(_AXIS) if self.size > 1 else 0
        return jax.tree.map(lambda leaf: leaf[me], dealt)

    def total(self, part: Any) -> Any:
        """The sum over all devices."""
        return lax.psum(part, _AXIS) if self.size > 1 else part

    def all(self, mine: Any) -> Any:
        """Every device's entry, ``(size, ...)``."""
        if self.size > 1:
            return jax.tree.map(lambda leaf: lax.all_gather(leaf, _AXIS), mine)
        return jax.tree.map(lambda leaf: leaf[None], mine)


def over(devices: int) -> Mesh | None:
    """A mesh of the first devices, over all processes; None for a single one."""
    if devices == 1:
        return None
    return jax.make_mesh((devices,), (_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def everywhere(mesh: Mesh | None, values: Any) -> Any:
    """A tree of arrays, replicated on each device of the mesh."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, values)
    sharding = NamedSharding(mesh, PartitionSpec())

    def whole(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            # Replicated on every device of all processes: those of the mesh already have it.
            parts = {shard.device: shard.data for shard in leaf.addressable_shards}
            local_parts = [parts[device] for device in mesh.local_devices]
            return jax.make_array_from_single_device_arrays(leaf.shape, sharding, local_parts)
        return jax.device_put(leaf, sharding)

    return jax.tree.map(whole, values)


def dealt(mesh: Mesh | None, parts: list[Any]) -> Any:
    """An array split over the devices: parts of equal shape, one for each, in order."""
    if mesh is None:
        return parts[0]
    pieces = [jax.device_put(part, device) for part, device in zip(parts, mesh.devices.flat, strict=True)]
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    sharding = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces)


def here(values: Any) -> Any:
    """A tree of replicated arrays, as they are on the first device of this process."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), values)


def on_each(mesh: Mesh | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as each device of the mesh runs it, on replicated arguments."""
    if mesh is None:
        return function
    spec = PartitionSpec()
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


@jax.jit
def copies(values: Any) -> Any:
    """A copy of a tree of arrays, whose memory rounds may reuse."""
    return jax.tree.map(jnp.copy, values)
