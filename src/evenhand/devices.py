"""Arrays on several devices: replicated on each of them, or a part on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

__all__ = ["Devices", "copies", "dealt", "everywhere", "here", "local", "over"]

_AXIS = "clients"


class Devices(NamedTuple):
    """The devices that share a round.

    Attributes:
      mesh: those devices; None for a single one.
    """

    mesh: Mesh | None

    @property
    def size(self) -> int:
        """How many they are."""
        return 1 if self.mesh is None else self.mesh.size

    def each(self, function: Callable[[Any], Any], dealt: Any) -> Any:
        """``function`` of every device's entry, run by that device; leaves ``(size, ...)`` before and after."""

        def on_device(mine: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], function(jax.tree.map(lambda leaf: leaf[0], mine)))

        if self.mesh is None:
            return on_device(dealt)
        each = PartitionSpec(_AXIS)
        return jax.shard_map(on_device, mesh=self.mesh, in_specs=each, out_specs=each, check_vma=False)(dealt)

    def whole(self, values: Any) -> Any:
        """The values, replicated on each device."""
        return self._placed(values, lambda leaf: PartitionSpec())

    def by_coordinate(self, values: Any, batched: int) -> Any:
        """The values, a part of the coordinates on each device: all axes but the first ``batched`` are coordinates.

        A leaf is cut along the longest of those axes that the devices divide evenly; without one, it is replicated.
        """

        def spec(leaf: Any) -> PartitionSpec:
            axes = [axis for axis in range(batched, leaf.ndim) if leaf.shape[axis] % self.size == 0]
            longest = max(axes, key=lambda axis: leaf.shape[axis], default=None)
            return PartitionSpec() if longest is None else PartitionSpec(*[None] * longest, _AXIS)

        return self._placed(values, spec)

    def _placed(self, values: Any, spec: Callable[[Any], PartitionSpec]) -> Any:
        if (mesh := self.mesh) is None:
            return values
        return jax.tree.map(
            lambda leaf: lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec(leaf))), values
        )


def over(devices: int) -> Mesh | None:
    """A mesh of the first devices, over all processes; None for a single one."""
    if devices == 1:
        return None
    return jax.make_mesh((devices,), (_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def local(mesh: Mesh | None) -> Mesh | None:
    """The devices of a mesh that belong to this process; None for one."""
    found = None if mesh is None else mesh.local_mesh
    return None if found is None or found.size == 1 else found


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


@jax.jit
def copies(values: Any) -> Any:
    """A copy of a tree of arrays, whose memory rounds may reuse."""
    return jax.tree.map(jnp.copy, values)
