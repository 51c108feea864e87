"""Where a server and its clients keep their states, and the keys and events that both sides know."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np

from evenhand import records
from evenhand.streams import Keys, Purpose, client_stream, stream
from evenhand.types import Key

__all__ = ["FileStore", "MemoryStore", "StateStore", "adapt_key", "key_words"]


class StateStore(Protocol):
    """Where one side keeps its state."""

    def read(self) -> bytes | None:
        """What was written last; None: nothing was."""
        ...

    def write(self, data: bytes) -> None:
        """Replaces it in one step.

        Raises:
          OSError: it cannot; what was there is as it was.
        """
        ...


class FileStore(NamedTuple):
    """A file that is replaced in one step."""

    path: Path

    def read(self) -> bytes | None:
        """What was written last; None: nothing was."""
        return self.path.read_bytes() if self.path.is_file() else None

    def write(self, data: bytes) -> None:
        """Replaces it in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with records.replacing(self.path) as temporary:
            temporary.write_bytes(data)


class MemoryStore:
    """A store that ends with the process, for networks in one process."""

    def __init__(self) -> None:
        self._data: bytes | None = None

    def read(self) -> bytes | None:
        """What was written last; None: nothing was."""
        return self._data

    def write(self, data: bytes) -> None:
        """Replaces it."""
        self._data = data


def adapt_key(roots: Keys, client: int) -> Key:
    """The key with which a client adapts its model before each evaluation, as in a simulation."""
    return client_stream(stream(roots.shared, Purpose.PERSONAL, 0, 1), client)


def key_words(key: Key) -> list[int]:
    """A random key as the numbers of a message."""
    return [int(word) for word in np.asarray(jax.random.key_data(key))]
