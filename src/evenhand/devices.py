"""Arrays on several devices: replicated on each of them, or a part on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

__all__ = ["Devices", "as_entry", "copies", "dealt", "entry", "everywhere", "here", "local", "over"]

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

    def spread(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """``function(dealt, shared)`` as run by every device on its own part of ``dealt``, and on all of ``shared``.

        ``dealt`` and the result have leaves ``(size, ...)``, of which ``function`` sees and gives a leading axis of 1
        (:func:`entry`, :func:`as_entry`).
        """
        # The function may close over no array that an earlier exchange of the round has made: JAX gives that array's
        # zeros and its rows the placement of all devices, and refuses them on one.
        if self.mesh is None:
            return function
        dealt = PartitionSpec(_AXIS)
        specs = (dealt, PartitionSpec())
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=dealt, check_vma=False)

    def whole(self, values: Any) -> Any:
        """The values, replicated on each device."""
        return self._placed(values, lambda leaf: PartitionSpec())

    def from_next(self, values: Any) -> Any:
        """On each device, inside :meth:`spread`, the values of the next one; zeros on the last."""
        return lax.ppermute(values, _AXIS, [(device + 1, device) for device in range(self.size - 1)])

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


def entry(dealt: Any) -> Any:
    """A device's own entry of what was dealt."""
    return jax.tree.map(lambda leaf: leaf[0], dealt)


def as_entry(value: Any) -> Any:
    """A device's own entry of a result that is dealt."""
    return jax.tree.map(lambda leaf: leaf[None], value)


def over(devices: int) -> Mesh | None:
    """A mesh of the first devices, over all processes; None for a single one."""
    if devices == 1:
        return None
    return jax.make_mesh((devices,), (_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def local(mesh: Mesh | None) -> Mesh | None:
    """The devices of a mesh that belong to this process; None for one."""
    local_mesh = None if mesh is None else mesh.local_mesh
    return None if local_mesh is None or local_mesh.size == 1 else local_mesh


def everywhere(mesh: Mesh | None, values: Any) -> Any:
    """A tree of arrays, replicated on each device of the mesh."""
    if mesh is None:
        return jax.tree.map(_on_one, values)
    sharding = NamedSharding(mesh, PartitionSpec())

    def placed(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            leaf = _gathered(leaf)  # then those of the mesh already have it
            parts = {shard.device: shard.data for shard in leaf.addressable_shards}
            local_parts = [parts[device] for device in mesh.local_devices]
        elif len(mesh.local_devices) < mesh.size:
            # Not over all processes at once, as each has the same: JAX would compare them, and no NaN equals another.
            local_parts = [jax.device_put(leaf, device) for device in mesh.local_devices]
        else:
            return jax.device_put(leaf, sharding)
        return jax.make_array_from_single_device_arrays(jnp.shape(leaf), sharding, local_parts)

    return jax.tree.map(placed, values)


def _on_one(leaf: Any) -> jax.Array:
    # JAX compiles jnp.asarray for each new shape.  device_put does not, but may share the memory: hence the copy.
    return jax.device_put(np.array(leaf)) if isinstance(leaf, np.ndarray) else jnp.asarray(leaf)


def dealt(mesh: Mesh | None, parts: list[Any]) -> Any:
    """An array split over the devices: parts of equal shape, one for each, in order."""
    if mesh is None:
        return parts[0]
    pieces = [jax.device_put(part, device) for part, device in zip(parts, mesh.devices.flat, strict=True)]
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    sharding = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces)


def here(values: Any) -> Any:
    """A tree of arrays, each of them whole on the first device of this process.

    Arrays of which each device has a part are gathered: over several processes, all of them must call this.
    """
    return jax.tree.map(lambda leaf: _gathered(leaf).addressable_data(0), values)


def _gathered(leaf: jax.Array) -> jax.Array:
    """The array, replicated on each device that has a part of it."""
    if leaf.is_fully_replicated or not isinstance(leaf.sharding, NamedSharding):
        return leaf
    return _copied(NamedSharding(leaf.sharding.mesh, PartitionSpec()))(leaf)


@cache
def _copied(place: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """A copy of an array in another place: a program, since no process alone has all parts."""
    return jax.jit(jnp.copy, out_shardings=place)


@jax.jit
def copies(values: Any) -> Any:
    """A copy of a tree of arrays, whose memory rounds may reuse."""
    return jax.tree.map(jnp.copy, values)
