"""Training rows that stay on the host or in a file, while those of the next rounds' clients are on the devices."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.devices import everywhere
from evenhand.errors import EvenhandError
from evenhand.rounds import malicious_clients
from evenhand.simulation._ahead import Ahead, Block, room_for
from evenhand.simulation._rows import Resident, tabulated
from evenhand.simulation.program import Program, Rows
from evenhand.streams import Keys
from evenhand.types import Array, PyTree

__all__ = ["Source", "Streamed"]

NDArray = npt.NDArray[Any]


class Streamed:
    """Where each client's rows are in the block that is on the devices.

    A client without rows in the block is placed at its end, where there are only NaN: if a round ever drew another
    cohort than the one drawn ahead, the loss would be NaN, and never that of another client's rows.

    Attributes:
      like: the shapes of all rows.
    """

    def __init__(self, program: Program, data: FederatedDataset, seed: int, keys: Keys) -> None:
        if program.algorithm.observe is not None:
            raise EvenhandError(
                "This method looks at the training loss over all clients before each round, so all rows must be on the "
                "device: give stream=False, and rows that fit there."
            )
        train = data.train
        self._mesh, self._clients = program.mesh, data.num_clients
        sizes, malicious = (
            train.sizes.astype(np.int32),
            malicious_clients(program.attack, data.client_ids, seed),
        )
        table = tabulated(program.algorithm.sampling, sizes)
        self._shared: tuple[Array, Array, PyTree] = everywhere(self._mesh, (sizes, malicious, table))
        x, y = (_shape(part) for part in (train.x, train.y))
        starts: Any = jax.ShapeDtypeStruct((self._clients,), np.int32)
        self.like = Rows(x, y, starts, *self._shared)
        self._ahead = Ahead(program, train, malicious, self._shared, seed, keys)
        self._now: Block | None = None
        self._resize(room_for(program, train))

    def block(self, first: int, count: int) -> tuple[Rows, int]:
        """As :meth:`Resident.block`; the rows that it gave before may be gone."""
        now = self._now
        if now is None or not now.first <= first < now.until:
            now = self._now = self._ahead.block(first, self._room)
            self._place(now)
            self._ahead.prepare(now.until, self._room)
        return Rows(now.x, now.y, self._starts, *self._shared), min(count, now.until - first)

    def _resize(self, room: int) -> None:
        """Makes room for so many rows; another size compiles the round again."""
        self._room = room
        self._starts = everywhere(self._mesh, np.full(self._clients, room, np.int32))
        self._placed = np.zeros(0, np.int64)

    def _place(self, block: Block) -> None:
        """Records where the rows of the block's clients are, and that those of the block before are gone."""
        room = block.x.shape[0] - 1
        if room > self._room:
            self._resize(room)
        count = 2 ** max(len(block.clients) - 1, len(self._placed) - 1, 1).bit_length()

        def padded(values: NDArray, value: int) -> NDArray:
            return np.pad(values, (0, count - len(values)), constant_values=value).astype(np.int32)

        old, new = padded(self._placed, self._clients), padded(block.clients, self._clients)
        self._starts = _moved(self._starts, old, new, padded(block.starts, 0), np.int32(self._room))
        self._placed = block.clients


Source: TypeAlias = Resident | Streamed


def _shape(part: NDArray) -> Any:
    return jax.ShapeDtypeStruct(part.shape, part.dtype)


@partial(jax.jit, donate_argnums=0)
def _moved(starts: Array, old: Array, new: Array, places: Array, absent: Array) -> Array:
    """``starts`` with the old clients absent and the new ones in their places; ids from ``N`` on are padding."""
    return starts.at[old].set(absent, mode="drop").at[new].set(places, mode="drop")
