"""From a method and its data to a program that can run: rows on the devices, and the number of clients side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from evenhand import rounds
from evenhand.data import FederatedDataset
from evenhand.devices import copies, everywhere, here, over
from evenhand.errors import EvenhandError
from evenhand.rounds import RoundState
from evenhand.simulation import _client
from evenhand.simulation._groups import deal
from evenhand.simulation._host_store import HostStore
from evenhand.simulation._offloaded import Offloaded
from evenhand.simulation._rows import Resident, must_stream, resident
from evenhand.simulation._streamed import Source, Streamed
from evenhand.simulation.program import ById, Program, Rows
from evenhand.simulation.store import stored
from evenhand.streams import Keys, Purpose, keys_of
from evenhand.streams import stream as stream_of
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, Cohort, Params, PyTree

__all__ = ["SMALL_MODEL", "Setup", "device_rows", "set_up"]

_BUFFER = 4096
"""Most rounds in one call: fixed, so that no number of rounds compiles anything."""

SMALL_MODEL = 2**15
"""Parameters up to which clients train side by side on a CPU; beyond, a batch of products is slower than a loop."""
_MOST_LANES = {"cpu": 32, "gpu": 128, "tpu": 128}
_MOST_WASTE = 1.1
"""The largest ratio of executed to useful local steps on a CPU, which gains little from a lane."""
_RESIDENT = 2**30
"""Bytes of clients' states up to which a CPU trains on all of them in place."""
_COPIES = 8
"""Models that one lane keeps at a time, about: parameters, gradients, optimiser, sums."""


class Setup(NamedTuple):
    """All that a run needs before its first round.

    Attributes:
      program: what is compiled.
      source: the training rows.
      keys: the roots of everything random.
      state: before the first round.
      traffic: numbers that cross the wire per client and round, ``up`` and ``down``.
      offloaded: the clients' states, where they are on the host, and ``state`` has none; or None.
      restarts: whether a schedule of the clients' step sizes restarts in every round.
    """

    program: Program
    source: Source
    keys: Keys
    state: RoundState
    traffic: Mapping[str, int]
    offloaded: Offloaded | None = None
    restarts: bool = False

    @property
    def store(self) -> HostStore | None:
        """All clients' states, where they are on the host."""
        return None if self.offloaded is None else self.offloaded.store

    @property
    def like(self) -> RoundState:
        """The shapes of what training depends on: of the state with those of all clients, wherever they are."""
        like = jax.eval_shape(lambda state: state, self.state)._replace(last_round=())
        return like if self.offloaded is None else like._replace(clients=self.offloaded.store.like)

    @property
    def rows(self) -> Rows:
        """All rows on the devices; where they are streamed, the shapes of ``x`` and ``y``."""
        return self.source.rows if isinstance(self.source, Resident) else self.source.like


def set_up(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    cohort: int,
    seed: int,
    attack: Attack | None = None,
    systems: Systems | None = None,
    lanes: int | None = None,
    devices: int | None = None,
    stream: bool | None = None,
    rows: Resident | None = None,
    offload: bool | str | Path | None = False,
) -> Setup:
    """The program, its rows and the state it starts from; arguments as for ``simulate``.

    Args:
      rows: those of another run of the same data, sampling, seed and attack, or of any seed where there is no attack.
    """
    if data.train.rows >= 2**31:
        raise EvenhandError(
            f"{data.name} has {data.train.rows:,} training rows: give fewer than 2,147,483,648."
        )
    first, keys = keys_of(seed), rounds.roots(algorithm, keys_of(seed))
    mesh = over(_devices(cohort, devices))
    capacity = int(data.train.sizes.max())
    program = Program(
        algorithm, cohort, capacity, 1 if lanes is None else lanes, systems, attack, _BUFFER, mesh
    )
    source: Source
    if rows is not None:
        source = rows
    elif must_stream(data.train) if stream is None else stream:
        source = Streamed(program, data, seed, keys)
    else:
        source = resident(data, attack, seed, mesh, algorithm.sampling)
    params = algorithm.model.init(stream_of(first.shared, Purpose.INIT))
    if lanes is None:
        program = program._replace(lanes=_default_lanes(program, params, source))
    setup = Setup(program, source, keys, RoundState((), (), ()), {})
    like, clients = setup.rows, data.num_clients
    leaves, structure = jax.tree.flatten((params, (like.x, like.y)))
    form = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    wires, begin = _beginning(ById(program), structure, form, clients)

    # A copy: the first round takes its memory over, and the initial parameters may be the caller's arrays.
    begun = begin(params)._replace(last_round=jnp.zeros(clients, jnp.int32))
    state = copies(everywhere(mesh, begun))
    restarts = any(wire.restarts for wire in wires)
    setup = setup._replace(state=state, traffic=rounds.traffic(algorithm, wires), restarts=restarts)
    if _on_host(state.clients, clients, offload):
        folder = Path(offload) if isinstance(offload, str | Path) else None
        store = HostStore(jax.tree.map(np.asarray, here(state.clients)), clients, folder)
        offloaded = Offloaded(store, program, like.sizes, like.table, keys)
        return setup._replace(state=state._replace(clients=()), offloaded=offloaded)
    return setup._replace(state=state._replace(clients=stored(state.clients, clients)))


def _on_host(one: PyTree, clients: int, offload: bool | str | Path | None) -> bool:
    """Whether the clients' states stay on the host: where the user says so, or they are large."""
    size = clients * sum(leaf.nbytes for leaf in jax.tree.leaves(one))
    if size == 0 or offload is False:
        return False
    stats = {} if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats() or {}
    return offload is not None or size > stats.get("bytes_limit", 3 * _RESIDENT) / 3


@lru_cache(maxsize=16)
def _beginning(
    of: ById, structure: Any, form: tuple[Any, ...], clients: int
) -> tuple[tuple[rounds.Wire, ...], Callable[[Params], RoundState]]:
    """What crosses the wire, and the state before the first round as one program, not one per array."""
    algorithm, (params, rows) = of.program.algorithm, jax.tree.unflatten(structure, form)
    wires = rounds.wires(algorithm, params, rows, of.program.capacity, clients)
    return wires, jax.jit(partial(rounds.begin, algorithm, clients=clients, wires=wires))


def device_rows(data: FederatedDataset, attack: Attack | None, seed: int, mesh: Mesh | None = None) -> Rows:
    """The training rows on the devices, those of malicious clients poisoned."""
    return resident(data, attack, seed, mesh).rows


def _devices(cohort: int, asked: int | None) -> int:
    """How many devices share the cohort: all, unless the user has named one of them to JAX."""
    if jax.process_count() > 1:  # every process must take part
        return jax.device_count()
    config: Any = jax.config
    found = 1 if asked is None and config.jax_default_device is not None else jax.device_count()
    return min(found, cohort, found if asked is None else asked)


def _default_lanes(program: Program, params: Params, source: Source) -> int:
    """How many clients train side by side on a device: on a CPU a few if the model is small, else as many as fit."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    share = -(-program.cohort // program.devices.size)
    if jax.default_backend() != "cpu":
        stats = jax.devices()[0].memory_stats() or {}
        fitting = int(stats.get("bytes_limit", 2**34) / 2 / (4 * _COPIES * max(numbers, 1)))
        return max(1, min(share, fitting, _MOST_LANES[jax.default_backend()]))
    if numbers > SMALL_MODEL:
        return 1
    lanes, rows = min(share, _MOST_LANES["cpu"]), source.block(0, 0)[0]
    if lanes > 1:
        steps = _steps(program, rows)
        while lanes > 1 and _waste(program, steps, lanes) > _MOST_WASTE:
            lanes //= 2
    return lanes


def _steps(program: Program, rows: Rows) -> npt.NDArray[Any]:
    """The local steps in some random cohorts, ``(cohorts, m + 1)``, the longest work first, and a 0 at the end."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, rows.sizes.shape[0], (16, program.cohort), dtype=np.int32)

    @jax.jit  # one program, where each operation would be one
    def effort(rows: Rows, ids: Array) -> Array:
        of = program.algorithm.phases[-1].effort
        return _client.effort(of, program.capacity, rows, Cohort.of(ids)).steps

    steps = effort(rows, jnp.asarray(chosen.ravel()))
    steps = np.asarray(steps, np.float64).reshape(chosen.shape)
    return np.concatenate([-np.sort(-steps, axis=1), np.zeros((len(steps), 1))], axis=1)


def _waste(program: Program, steps: npt.NDArray[Any], lanes: int) -> float:
    """Executed over useful local steps, over these cohorts."""
    ranks = np.minimum(deal(program.cohort, lanes, program.devices.size), program.cohort)
    executed = steps[:, ranks].max(axis=-1).sum() * ranks.shape[-1]
    return float(executed / max(steps.sum(), 1.0))
