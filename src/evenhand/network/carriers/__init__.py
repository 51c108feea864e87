"""What carries messages between a server and its clients.

A carrier knows bytes only: what they mean, which of them are answered how, and what is done without the clients that do
not answer is the business of the code that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

__all__ = ["Answers", "Carrier", "Log"]

Log: TypeAlias = Callable[[str, str, dict[str, object]], None]
"""Takes an event (such as ``absent``, ``late``, ``stranger``, ``resumed``), a sentence about it, and its fields."""


class Answers(NamedTuple):
    """What came back from one :meth:`Carrier.ask`; each client that was asked is in one of the two.

    Attributes:
      answers: from a client's number to its bytes.
      absent: from a client's number to the reason why there is no answer, in one sentence.
    """

    answers: dict[int, bytes]
    absent: dict[int, str]


class Carrier(Protocol):
    """The server's way to its clients, which are numbered from 0."""

    def ask(self, asks: Mapping[int, bytes], deadline: float) -> Answers:
        """Sends to each client its bytes, and waits for the answers, for at most ``deadline`` seconds.

        It always returns.  An answer that comes after the deadline is no answer to a later request.
        """
        ...

    def connected(self) -> frozenset[int]:
        """The clients that are there now; one that lost its power may be counted for half a minute."""
        ...
