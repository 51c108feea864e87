"""What is fixed when a round is compiled, and the rows on which it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from evenhand.devices import Devices
from evenhand.evaluation import Prepared, mean_loss
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, PyTree

__all__ = ["EXECUTED", "ROWS", "USEFUL", "WORK", "ById", "Program", "Rows", "observe"]

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
        return Devices(self.mesh)


class ById:
    """A program as a key: its parts are values, but hold functions that do not compare.

    It may also have the shardings of its first arguments, which are not part of the key.
    """

    def __init__(self, program: Program, places: Sequence[Any] = ()) -> None:
        self.program, self.places = program, places
        self._key = tuple(field if isinstance(field, int | Mesh) else id(field) for field in program)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and self._key == other._key


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
