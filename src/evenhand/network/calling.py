"""The server's questions to its clients: numbered, counted in bytes, and logged where no answer counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.network.carriers import Carrier, Log
from evenhand.network.terms import Agreed
from evenhand.types import Params
from evenhand.wire.messages import Packet, PacketError, decode, encode, packed

__all__ = ["Asked", "Caller"]

NDArray = npt.NDArray[Any]


_ANSWERS = {
    "terms": ("agreed",),
    "report": ("reported",),
    "work": ("worked",),
    "pass": ("worked",),
    "sum": ("summed",),
    "evaluate": ("measured", "withheld"),
    "settle": ("settled",),
}
"""What a client may answer, beside that it refuses."""

_EVENTS = ("refused", "replayed", "disk")
"""What a client may say that has happened to it; other events are the server's."""


class Asked(NamedTuple):
    """The answers to one question.

    Attributes:
      answers: by client.
      rejected: clients that answered, but with nothing that counts.
    """

    answers: dict[int, Packet]
    rejected: set[int]


class Caller:
    """The way from a server to the clients of one run.

    Args:
      agreed: the run.
      carrier: what carries the bytes.
      start: the initial parameters, from which clients begin.
      deadline: seconds for each question.
      log: for events and sentences about them.

    Attributes:
      tag: the largest tag that was ever sent.
      counted: for each client, the tag of its latest work that counted; -1: none did.
      down: bytes sent to clients so far.
      up: bytes that came from them.
    """

    def __init__(self, agreed: Agreed, carrier: Carrier, start: Params, deadline: float, log: Log) -> None:
        self.agreed, self.deadline, self.log = agreed, deadline, log
        self._carrier, self._start = carrier, start
        self._introduced = set[int]()
        self.tag, self.down, self.up = 0, 0, 0
        self.counted: NDArray = np.full(agreed.terms.clients, -1, np.int64)

    def ask(
        self,
        kind: str,
        questions: Mapping[int, tuple[Mapping[str, Any], Sequence[NDArray]]],
        begin: Callable[[], None] = lambda: None,
    ) -> Asked:
        """One question to some clients: their answers, by client; who does not answer is logged.

        Clients that do not agree to the run are not asked; if any are, ``begin`` is called before.
        """
        self.introduce(questions)
        terms = self.agreed.terms
        self.tag = tag = self.tag + 1
        asks = {
            client: encode(
                Packet(
                    kind,
                    {
                        "run": terms.run,
                        "schema": self.agreed.schema,
                        "tag": tag,
                        "counted": int(self.counted[client]),
                        **fields,
                    },
                    tuple(arrays),
                )
            )
            for client, (fields, arrays) in questions.items()
            if client in self._introduced
        }
        if asks:
            begin()
        return self._collected(kind, asks)

    def introduce(self, clients: Iterable[int]) -> None:
        """Announces the run to those of the clients that have not heard of it from this process."""
        clients = sorted(set(clients) - self._introduced)
        if not clients:
            return
        terms, start = self.agreed.terms, packed(self._start)
        fields = {"version": terms.version, "method": terms.method, "terms": terms.to_json()}
        asks = {client: encode(Packet("terms", {**fields, "client": client}, start)) for client in clients}
        for client, answer in self._collected("terms", asks).answers.items():
            if answer.fields.get("schema") == self.agreed.schema:
                self._introduced.add(client)
            else:
                sentence = (
                    "its schema differs: its model, its method or its version is not that of the server."
                )
                self.log("refused", f"Client {client}: {sentence}", {"client": client})

    def _collected(self, kind: str, asks: Mapping[int, bytes]) -> Asked:
        """The answers of clients that obey."""
        came = self._carrier.ask(asks, self.deadline)
        self.down += sum(map(len, asks.values()))
        self.up += sum(map(len, came.answers.values()))
        for client, sentence in came.absent.items():
            self.log("absent", f"Client {client}: {sentence.rstrip('.')}.", {"client": client})
        answers, rejected = dict[int, Packet](), set[int]()
        for client, data in came.answers.items():
            try:
                answer = decode(data)
                if answer.kind in ("refused", "failed"):
                    self._refused(client, answer)
                    # It may have lost its state: it hears of the run again before anything else is asked of it.
                    self._introduced.discard(client)
                elif answer.kind == "rejected":
                    self._refused(client, answer)
                    rejected.add(client)
                elif answer.kind not in _ANSWERS[kind]:
                    due = " or ".join(map(repr, _ANSWERS[kind]))
                    raise PacketError(f"It answered {repr(answer.kind)[:40]} where {due} was expected.")
                else:
                    answers[client] = answer
            except PacketError as error:
                self.refuse(client, error)
                rejected.add(client)
        return Asked(answers, rejected)

    def _refused(self, client: int, answer: Packet) -> None:
        """Logs why a client does not obey; the words are its own, so only some of them are taken."""
        event, sentence = answer.fields.get("event"), answer.fields.get("sentence")
        words = " ".join(sentence.split())[:500] if isinstance(sentence, str) else "it gives no reason."
        self.log(event if event in _EVENTS else "refused", f"Client {client}: {words}", {"client": client})

    def refuse(self, client: int, error: PacketError) -> None:
        """Logs that a client's answer does not count."""
        self.log("refused", f"Client {client}: {error}", {"client": client})
