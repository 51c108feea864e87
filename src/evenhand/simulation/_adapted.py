"""The models that clients are served; where the method does that, each client adapts its model to its rows first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evenhand import tree
from evenhand.data import Split
from evenhand.devices import everywhere, local, over
from evenhand.evaluation import Prepared, filled
from evenhand.simulation._hoist import ByProgram, by_program
from evenhand.simulation._served import Untrained, has_own
from evenhand.simulation.store import Kept
from evenhand.streams import Purpose, client_stream, stream
from evenhand.types import Algorithm, Array, ClientData, Key, Params, PyTree

__all__ = ["Adapt", "adapt_all", "fitting", "served_models"]

NDArray = npt.NDArray[Any]
Adapt: TypeAlias = Callable[[Params, ClientData, Key], Params]

_ROOM = 2**25
"""Numbers in the models of the clients that adapt together, and in their rows where these are not on the device."""


def _adapting_key(root: Key, client: Array | int) -> Key:
    """The same at every evaluation, so that evaluations differ by the model alone."""
    return client_stream(stream(root, Purpose.PERSONAL, 0, 1), client)


def served_models(
    algorithm: Algorithm,
    kept: Kept,
    train: Split,
    clients: slice,
    *,
    root: Key,
    last_round: NDArray,
    untrained: Untrained,
    lanes: int = 1,
    devices: int = 1,
) -> Iterator[tuple[slice, Params]]:
    """The models that the clients at these positions are served, some of them at a time.

    Args:
      algorithm: the method.
      kept: the states that its run has reached.
      train: the clients' training rows, to which a method may adapt the models.
      clients: positions, ``slice(first, last + 1)``.
      root: the run's key.
      last_round: the last round in which each client trained, ``(num_clients,)``; 0: it never did.
      untrained: what clients that never trained are served.
      lanes: how many clients adapt side by side.
      devices: over how many devices they are spread.

    Yields:
      Positions, and the parameters of these clients as NumPy arrays with a leading axis.
    """
    server, adapt = kept.server, algorithm.adapt
    shared = algorithm.global_params(server)
    mesh = local(over(devices))
    rows = Prepared(np.asarray(train.x), np.asarray(train.y), train.offsets, None, mesh)
    together = min(
        fitting(rows, sum(leaf.size for leaf in jax.tree.leaves(shared))), clients.stop - clients.start
    )
    for first in range(clients.start, clients.stop, together):
        window = slice(first, min(first + together, clients.stop))
        ids = np.arange(window.start, window.stop)
        params = _unadapted(algorithm, kept, shared, window, has_own(last_round[window], untrained))
        if adapt is not None:
            how = (together, root, int(train.sizes.max()), lanes)
            params = adapt_all(adapt, tree.take, params, rows.some(window), ids, ids - first, *how)
        yield window, jax.tree.map(np.asarray, params)


def _unadapted(algorithm: Algorithm, kept: Kept, shared: Params, window: slice, own: NDArray) -> Params:
    """The models of some clients before they adapt, with a leading axis: their ``own`` ones, or the global one."""
    states = kept.some(window) if algorithm.personal_params is not None and own.any() else None
    count = window.stop - window.start
    everyone = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), shared)
    if algorithm.personal_params is None or states is None:
        return everyone
    made = jax.vmap(algorithm.personal_params, in_axes=(None, 0))(
        kept.server, jax.tree.map(jnp.asarray, states)
    )
    return jax.vmap(tree.select)(jnp.asarray(own), made, everyone)


def adapt_all(
    adapt: Adapt,
    params_of: Callable[[PyTree, Array], Params],
    states: PyTree,
    train: Prepared,
    ids: NDArray,
    places: NDArray,
    together: int,
    root: Key,
    capacity: int,
    lanes: int,
) -> Params:
    """The models of the clients whose training rows these are, with a leading axis.

    Args:
      adapt: what each of them does.
      params_of: ``(states, place) -> params``, what each of them is served.
      states: what those parameters are computed from.
      train: the rows of these clients.
      ids: which clients these are.
      places: where ``params_of`` finds them.
      together: the most clients in one call: the program is compiled for that many.
      root: the run's key.
      capacity: the most training rows of any client of the run.
      lanes: how many clients adapt side by side.
    """
    mesh, x, y, starts = train.mesh, train.x, train.y, train.offsets[:-1]
    if isinstance(x, np.ndarray):
        rows, room = slice(train.offsets[0], train.offsets[-1]), together * capacity
        x, y, starts = filled(x, rows, room), filled(y, rows, room), starts - rows.start
    devices = 1 if mesh is None else mesh.size
    missing = -(-together // devices) * devices - len(ids)
    parts = (ids, places, starts, train.sizes)
    windows = tuple(np.pad(part.astype(np.int32), (0, missing)) for part in parts)
    sent = everywhere(mesh, (states, root, x, y))
    client = by_program(_Client(adapt, params_of, capacity), *sent, (np.int32(0),) * 4)
    found = _adapt(client, lanes, mesh)(*sent, windows)
    return jax.tree.map(lambda leaf: leaf[: len(ids)], found)


class _Client(NamedTuple):
    """``(states, root, x, y, window) -> params`` of one client, adapted."""

    adapt: Adapt
    params_of: Callable[[PyTree, Array], Params]
    capacity: int

    def __call__(self, states: PyTree, root: Key, x: Array, y: Array, window: tuple[Array, ...]) -> Params:
        k, place, start, size = window
        data = ClientData(x, y, start, size, jnp.float32(1.0), self.capacity)
        return self.adapt(self.params_of(states, place), data, _adapting_key(root, k))


@lru_cache(maxsize=64)  # a cache of JAX's would keep every method that ever adapted
def _adapt(client: ByProgram, lanes: int, mesh: Mesh | None) -> Callable[..., Params]:
    """``(states, root, x, y, windows)`` -> the adapted models, with a leading axis."""

    def on_device(
        states: PyTree, root: Key, x: Array, y: Array, windows: tuple[Array, Array, Array, Array]
    ) -> Params:
        mine = partial(client, states, root, x, y)
        return lax.map(mine, windows, batch_size=lanes if lanes > 1 else None)

    if mesh is not None:
        everything, each = PartitionSpec(), PartitionSpec(*mesh.axis_names)
        specs = (everything, everything, everything, everything, each)
        on_device = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False)
    return jax.jit(on_device)


def fitting(train: Prepared, params: int) -> int:
    """How many clients adapt at a time; ``params`` are the numbers of a model."""
    streamed = isinstance(train.x, np.ndarray)
    row = int(np.prod(train.x.shape[1:])) if streamed else 0
    return int(np.clip(_ROOM // (params + row * int(train.sizes.max())), 1, len(train.sizes)))
