"""A network of Flower that others run: its `Grid` carries the messages of an app, whose clients answer them.

Flower starts a process for every message, so a client is told apart by what its folder says: a *greeting*, a message
without content, is answered with the client's number.  Flower's public interface alone is used here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from evenhand.network.carriers import Answers, Log
from evenhand.network.carriers._flwr import content_of, flower_message, record

__all__ = ["GridCarrier", "answered"]

_GREETING = 120.0
"""Seconds that a node has to say which client it is: its process loads JAX first."""
_AGAIN = 60.0
"""Seconds after which a node that gave no number is greeted again."""


class GridCarrier:
    """The server's way to its clients; a :class:`evenhand.network.carriers.Carrier`.

    Args:
      grid: Flower's, as a ``ServerApp`` gets it.
      clients: how many there are.
      log: is told of nodes that are not let in.
      pause: seconds between two questions whether answers have come.
      largest: bytes of an answer; a larger one counts as none.
    """

    def __init__(
        self, grid: Any, clients: int, log: Log, *, pause: float = 0.5, largest: int = 2**30
    ) -> None:
        self._grid, self._clients, self._log, self._pause = grid, clients, log, pause
        self._largest = largest
        self._nodes: dict[int, int] = {}  # from a client's number to its node
        self._greetings: dict[str, int] = {}  # from a message that was not answered yet to its node
        self._later: dict[int, float] = {}  # when a node is greeted again
        self._lock = threading.Lock()

    def connected(self) -> frozenset[int]:
        """The clients whose nodes are there and have said which clients they are; new nodes are asked."""
        with self._lock:
            present = set(self._grid.get_node_ids())
            self._greet(present - set(self._nodes.values()) - set(self._greetings.values()))
            if self._greetings:
                for reply in list(self._grid.pull_messages(list(self._greetings))):
                    node = self._greetings.pop(reply.metadata.reply_to_message_id, None)
                    if node is not None:
                        self._meet(node, reply, present)
            return frozenset(number for number, node in self._nodes.items() if node in present)

    def _greet(self, nodes: set[int]) -> None:
        """Asks nodes which clients they are."""
        now = time.monotonic()
        due = [node for node in sorted(nodes) if self._later.get(node, 0.0) <= now]
        self._greetings |= self._posted(dict.fromkeys(due, b""), _GREETING)
        self._later |= dict.fromkeys(due, now + _AGAIN)

    def _meet(self, node: int, reply: Any, present: set[int]) -> None:
        """Takes a node as the client that it says it is, unless another node that is there is that client."""
        try:
            number = int(self._content(reply))
            if not 0 <= number < self._clients:
                raise ValueError(f"it claims to be client {number}, but there are {self._clients}")
            if self._nodes.get(number, node) != node and self._nodes[number] in present:
                raise ValueError(f"it claims to be client {number}, as another node does")
        except ValueError as error:
            self._log("refused", f"Node {node} is not admitted: {error}.", {"node": node})
            return
        self._nodes[number] = node

    def ask(self, asks: Mapping[int, bytes], deadline: float) -> Answers:
        """Sends to each client its bytes, and waits for the answers, for at most ``deadline`` seconds.

        A client that is not connected is absent at once.
        """
        until, present = time.monotonic() + deadline, self.connected()
        absent = {number: "it is not connected." for number in asks if number not in present}
        numbers = {self._nodes[number]: number for number in asks if number in present}
        pending = self._posted({node: asks[number] for node, number in numbers.items()}, deadline)
        answers = dict[int, bytes]()
        while pending:
            for reply in list(self._grid.pull_messages(list(pending))):
                node = pending.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                try:
                    answers[numbers[node]] = self._content(reply)
                except ValueError as error:
                    absent[numbers[node]] = f"{error}."
            left = until - time.monotonic()
            if left <= 0:
                break
            if pending:
                time.sleep(min(self._pause, left))
        silent = f"no answer within {deadline:.0f} seconds."
        return Answers(answers, {number: silent for number in asks if number not in answers} | absent)

    def _content(self, reply: Any) -> bytes:
        """The bytes of a reply.

        Raises:
          ValueError: it is an error, not one of ours, or too large.
        """
        if reply.has_error():
            raise ValueError(f"its app failed ({reply.error.reason!s:.200})")
        content = content_of(reply)
        if len(content) > self._largest:
            raise ValueError(f"its answer has more than {self._largest:,} bytes")
        return content

    def _posted(self, contents: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        """Sends a message to each node; by the name of each, the node."""
        if not contents:
            return {}
        made = flower_message()
        records = {
            id(content): record(content) for content in contents.values()
        }  # one for all that get the same
        messages = [
            made(records[id(content)], dst_node_id=node, message_type="query", ttl=seconds)
            for node, content in contents.items()
        ]
        # Flower names none that it could not take, and nothing where all together were too large.
        names = list(self._grid.push_messages(messages))
        return {name: node for name, node in zip(names, contents, strict=False) if name}


def answered(message: Any, number: int, handler: Callable[[bytes], bytes]) -> Any:
    """A client's reply to a message of Flower's.

    Args:
      message: as a ``ClientApp`` gets it.
      number: the client's, with which it answers a greeting.
      handler: from a request's bytes to its answer's.
    """
    content = content_of(message)
    answer = handler(content) if content else str(number).encode()
    return flower_message()(record(answer), reply_to=message)
