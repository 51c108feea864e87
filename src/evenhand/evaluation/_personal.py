"""Losses and metrics of every client, each evaluated with its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evenhand import tree
from evenhand.devices import dealt, everywhere
from evenhand.evaluation import _flat
from evenhand.evaluation._classes import ClassIndex, ClassMetrics
from evenhand.evaluation._flat import Prepared
from evenhand.evaluation._totals import Total, add, sum_of
from evenhand.lowering import lowered
from evenhand.types import Array, Model, Params, PyTree

__all__ = ["evaluate_personal"]

NDArray = npt.NDArray[Any]

_BLOCK_NUMBERS = 2**23
"""About how many numbers are sent to a device at a time, where the examples are on the host."""
_BLOCK_CLIENTS = 2**12
"""Most clients that are sent with them."""


def evaluate_personal(
    model: Model,
    states: PyTree,
    prepared: Prepared,
    *,
    params_of: Callable[[PyTree, Array], Params] = tree.take,
    lanes: int = 1,
) -> dict[str, npt.NDArray[np.float64]]:
    """Mean loss and mean metrics of each client, evaluated with its own parameters.

    Args:
      model: gives the losses and metrics.
      states: what the parameters are made from; by default the stacked parameters, with a leading axis ``K``.
      prepared: the examples, from :func:`prepare`.
      params_of: ``(states, k) -> params`` of client ``k``, a traced int32; pass the same function every time,
        or each call compiles again.
      lanes: how many clients are evaluated side by side.

    Returns:
      As :func:`evaluate`.
    """
    return personal_per_class(model, states, prepared, None, params_of=params_of, lanes=lanes)[0]


def personal_per_class(
    model: Model,
    states: PyTree,
    prepared: Prepared,
    index: ClassIndex | None,
    *,
    params_of: Callable[[PyTree, Array], Params] = tree.take,
    lanes: int = 1,
    widest: NDArray | None = None,
) -> tuple[dict[str, npt.NDArray[np.float64]], ClassMetrics | None]:
    """As :func:`evaluate_personal`; with an ``index``, also the accuracy of each class at each client.

    ``widest`` holds the sizes of all clients that will ever be evaluated, so that one program serves them all.
    """
    measures, sizes = _flat.measures_of(model), prepared.sizes
    totals = np.zeros((len(sizes), len(measures.names)))
    right = np.zeros(0 if index is None else len(index.clients))
    if prepared.x.shape[0]:
        width = min(_flat.chunk_rows(prepared.x), int((sizes if widest is None else widest).max()))
        states = everywhere(prepared.mesh, states)
        blocks = _on_host if isinstance(prepared.x, np.ndarray) else _on_device
        for block in blocks(prepared, len(sizes) if index is None else index.fitting()):
            windows: Any = tuple(part.astype(np.int32) for part in (block.ids, block.starts, block.sizes))
            classes = 0 if index is None else index.number
            fixed = (measures, params_of, width, lanes, prepared.mesh, block.spec, classes)
            found = np.asarray(_personal(*fixed)(states, block.x, block.y, windows), np.float64)
            clients, found = block.clients[block.clients >= 0], found[block.clients >= 0]
            totals[clients] = found[:, : len(measures.names)]
            if index is not None:
                cells, sums = index.cells(clients[0], found[:, len(measures.names) :])
                right[cells] = sums
    return _flat.means(totals.T, measures, prepared), None if index is None else index.metrics(right)


class _Block(NamedTuple):
    """A block of clients, equally many for each device.

    Attributes:
      x: features, on the devices.
      y: labels.
      clients: positions among those evaluated, -1 for padding.
      ids: the clients' numbers in the data set.
      starts: the first row of each client, counted from its device's first.
      sizes: how many rows each client has.
      spec: how ``x`` and ``y`` are divided among the devices.
    """

    x: Any
    y: Any
    clients: NDArray
    ids: NDArray
    starts: NDArray
    sizes: NDArray
    spec: PartitionSpec


def _on_device(prepared: Prepared, together: int) -> Iterator[_Block]:
    """All clients, divided evenly among the devices, each of which holds all rows; at most ``together`` on one."""
    count, devices = len(prepared.sizes), _devices(prepared)
    most = devices * min(-(-count // devices), together)
    for first in range(0, count, most):
        positions = np.arange(first, min(first + most, count))
        clients = np.pad(positions, (0, most - len(positions)), constant_values=-1)
        yield _block(prepared, prepared.x, prepared.y, clients, prepared.offsets[clients], PartitionSpec())


def _on_host(prepared: Prepared, together: int) -> Iterator[_Block]:
    """As many clients at a time as fit into a block of rows, one block per device."""
    offsets, mesh = prepared.offsets, prepared.mesh
    room = _BLOCK_NUMBERS // max(1, int(np.prod(prepared.x.shape[1:])))
    room = min(prepared.x.shape[0], max(room, int(prepared.sizes.max())))
    most = min(_BLOCK_CLIENTS, len(prepared.sizes), together)
    spec = PartitionSpec(*(() if mesh is None else mesh.axis_names))
    first = 0
    while first < len(prepared.sizes):
        xs, ys, clients, starts = list[NDArray](), list[NDArray](), list[NDArray](), list[NDArray]()
        for _ in range(_devices(prepared)):
            fitting = int(np.searchsorted(offsets, offsets[first] + room, "right")) - 1
            until = min(first + most, fitting)
            rows = slice(offsets[first], offsets[until])
            xs.append(filled(prepared.x, rows, room))
            ys.append(filled(prepared.y, rows, room))
            positions = np.arange(first, until)
            clients.append(np.pad(positions, (0, most - len(positions)), constant_values=-1))
            starts.append(np.pad(offsets[positions] - offsets[first], (0, most - len(positions))))
            first = until
        x, y = dealt(mesh, xs), dealt(mesh, ys)
        yield _block(prepared, x, y, np.concatenate(clients), np.concatenate(starts), spec)


def _block(
    prepared: Prepared, x: Any, y: Any, clients: NDArray, starts: NDArray, spec: PartitionSpec
) -> _Block:
    live = clients >= 0
    ids = clients if prepared.clients is None else prepared.clients[clients]
    sizes = np.where(live, prepared.sizes[clients], 0)
    return _Block(x, y, clients, np.where(live, ids, 0), np.where(live, starts, 0), sizes, spec)


def filled(part: Any, rows: slice, room: int) -> NDArray:
    """The rows ``part[rows]``, padded with zeros to ``room`` rows."""
    whole = np.zeros((room, *part.shape[1:]), part.dtype)
    whole[: rows.stop - rows.start] = part[rows]
    return whole


def _devices(prepared: Prepared) -> int:
    return 1 if prepared.mesh is None else prepared.mesh.size


@lru_cache(maxsize=64)  # a cache of JAX's would keep every method that was ever evaluated
def _personal(
    measures: _flat.Measures,
    params_of: Callable[[PyTree, Array], Params],
    width: int,
    lanes: int,
    mesh: Mesh | None,
    spec: PartitionSpec,
    classes: int,
) -> Callable[..., Array]:
    """``(states, x, y, windows)`` -> each client's totals of all measures, then of the accuracy by class,
    ``(K, measures + classes)``."""
    measures = measures._replace(apply=lowered(measures.apply))

    def on_device(states: PyTree, x: Array, y: Array, windows: tuple[Array, Array, Array]) -> Array:
        client = partial(_client, states, x, y, measures, params_of, width, classes)
        return lax.map(client, windows, batch_size=lanes if lanes > 1 else None)

    if mesh is not None:
        each = PartitionSpec(*mesh.axis_names)
        specs = (PartitionSpec(), spec, spec, each)
        on_device = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False)
    return jax.jit(on_device)


def _client(
    states: PyTree,
    x: Array,
    y: Array,
    measures: _flat.Measures,
    params_of: Callable[[PyTree, Array], Params],
    width: int,
    classes: int,
    window: tuple[Array, Array, Array],
) -> Array:
    k, offset, size = window
    params = params_of(states, k)

    def body(carry: tuple[Array, Total, Array]) -> tuple[Array, Total, Array]:
        done, total, right = carry
        start = jnp.minimum(offset + done, x.shape[0] - width)
        row = start + jnp.arange(width, dtype=jnp.int32)
        fresh = (row >= offset + done) & (row < offset + size)
        values = jnp.where(fresh[None], _flat.values_of(params, x, y, start, measures, width), 0.0)
        if classes:
            labels = lax.dynamic_slice_in_dim(y, start, width).reshape(width, 1)
            chosen = labels == jnp.arange(classes, dtype=labels.dtype)[None]
            accuracy = values[measures.names.index("accuracy")]
            right = right + jnp.sum(jnp.where(chosen, accuracy[:, None], 0.0), axis=0)
        return done + width, add(total, values), right

    nothing = jnp.zeros(len(measures.names), jnp.float32)
    begin = (jnp.int32(0), Total(nothing, nothing), jnp.zeros(classes, jnp.float32))
    _, total, right = lax.while_loop(lambda carry: carry[0] < size, body, begin)
    return jnp.concatenate([sum_of(total), right])
