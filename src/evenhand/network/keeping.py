"""Where a server and its clients keep their states, and the keys and events that both sides know."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np

from evenhand import records
from evenhand.network.terms import Terms
from evenhand.streams import Keys, Purpose, client_stream, stream
from evenhand.types import Key, PyTree
from evenhand.wire.messages import Packet, packed, unpacked, whole

__all__ = [
    "ClientRecord",
    "FileStore",
    "MemoryStore",
    "StateStore",
    "adapt_key",
    "key_words",
    "record_from",
    "record_message",
]


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
            temporary.touch(mode=0o600)  # a client's personal model, or the metrics of all
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


class ClientRecord(NamedTuple):
    """What is in the store.

    Attributes:
      terms: of the run.
      client: the client's number in it.
      tag: the largest tag of any message that it has answered.
      trained: whether an upload of its last exchange in a round has ever counted.
      pending: the tag of the work whose state is not settled yet; None: all is settled.
      state: what it keeps between rounds.
      next: what it will keep if the pending work counts.
      closes: whether the pending work is that of a round's last exchange.
      place: ``(round, phase)`` of the latest work.
      repeats: how often it has worked where it had worked before, since the server was killed or missed others.
      revealed: ``(round, phase, pass)`` of the last secure sum in which it has revealed shares: it takes part in no
        second sum of the same numbers, whose difference from the first would be those of single clients.
      counted: the last evaluation, by the rounds before it, in whose histogram it has been counted.
    """

    terms: Terms
    client: int
    tag: int
    trained: bool
    pending: int | None
    state: PyTree
    next: PyTree
    closes: bool = False
    place: tuple[int, int] = (-1, 0)
    repeats: int = 0
    revealed: tuple[int, int, int] = (-1, 0, 0)
    counted: int = -1


def record_message(kept: ClientRecord) -> Packet:
    """What a client keeps, as a message to itself."""
    fields = {
        "terms": kept.terms.to_json(),
        "client": kept.client,
        "tag": kept.tag,
        "trained": kept.trained,
        "pending": kept.pending,
        "closes": kept.closes,
        "place": list(kept.place),
        "repeats": kept.repeats,
        "revealed": list(kept.revealed),
        "counted": kept.counted,
    }
    following = () if kept.pending is None else packed(kept.next)
    return Packet("kept", fields, (*packed(kept.state), *following))


def record_from(message: Packet, terms: Terms, like: PyTree) -> ClientRecord:
    """The inverse of :func:`record_message`; ``like`` has the shapes of a client's state.

    Raises:
      PacketError, KeyError, TypeError, ValueError: the message is something else.
    """
    fields, count = message.fields, len(jax.tree.leaves(like))
    state = unpacked(message.arrays[:count], like, "the client's state")
    is_settled = fields["pending"] is None
    return ClientRecord(
        terms=terms,
        client=whole(fields, "client"),
        tag=whole(fields, "tag"),
        trained=bool(fields["trained"]),
        pending=fields["pending"],
        state=state,
        next=state if is_settled else unpacked(message.arrays[count:], like, "the client's state"),
        closes=bool(fields["closes"]),
        place=(fields["place"][0], fields["place"][1]),
        repeats=whole(fields, "repeats"),
        revealed=(fields["revealed"][0], fields["revealed"][1], fields["revealed"][2]),
        counted=whole(fields, "counted"),
    )


def adapt_key(roots: Keys, client: int) -> Key:
    """The key with which a client adapts its model before each evaluation, as in a simulation."""
    return client_stream(stream(roots.shared, Purpose.PERSONAL, 0, 1), client)


def key_words(key: Key) -> list[int]:
    """A random key as the numbers of a message."""
    return [int(word) for word in np.asarray(jax.random.key_data(key))]
