"""One exchange of a round at the server: what is asked, who answers, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import rounds, tree
from evenhand.aggregators import reduce_uploads
from evenhand.errors import EvenhandError
from evenhand.exchange import ServerHalf, uploads_of
from evenhand.network.calling import Caller
from evenhand.network.keeping import key_words
from evenhand.network.terms import is_masked, occasion_of_sum, sum_form_of
from evenhand.rounds import Step
from evenhand.streams import Keys
from evenhand.types import Array, Cohort, Info, Key, PyTree, Report, Sum, Upload
from evenhand.wire.messages import Packet, PacketError, packed, unpacked
from evenhand.wire.secure_sums import Asks, SecureTotal, secure_exchanges
from evenhand.wire.sum_messages import OFFER, REVEAL, SURVIVORS, sum_terms

__all__ = ["Patience", "PhaseOfServer", "ServerExchange", "SharedSetting", "carried", "phase_of_server"]

NDArray = npt.NDArray[Any]


class Patience(NamedTuple):
    """How long the server waits, and for whom.

    Attributes:
      deadline: seconds for each exchange.
      min_answers: clients of a cohort that must answer; with fewer, the exchange is repeated.  A cohort with fewer
        clients than that needs all of them.
      pause: seconds before it is repeated.
      attempts: how often it is tried before the server gives up; None: for ever.
    """

    deadline: float = 600.0
    min_answers: int = 1
    pause: float = 1.0
    attempts: int | None = None


class SharedSetting(NamedTuple):
    """What all exchanges of a run share.

    Attributes:
      caller: the way to the clients.
      keys: the roots of what the server draws.
      patience: how long it waits.
      authority: the public key of the federation's authority, for secure sums.
      colluding: how many clients may collude with the server in a secure sum.
    """

    caller: Caller
    keys: Keys
    patience: Patience = Patience()
    authority: bytes = b""
    colluding: int = 0


class PhaseOfServer(NamedTuple):
    """The server's half of one phase, and its parts, compiled."""

    half: ServerHalf
    broadcast: Callable[[PyTree, Array], PyTree]
    sane: Callable[[Report], Array]
    weighed: Callable[[Report, Cohort, PyTree], tuple[Array, PyTree, Info]]
    finite: Callable[[PyTree, int], Array]
    bounded: Callable[[PyTree], Array]
    total: Callable[[PyTree], PyTree]
    lower: Callable[[PyTree, PyTree, Key], tuple[PyTree, PyTree]]
    reduce: Callable[..., tuple[PyTree, PyTree]]
    step: Callable[..., Step]


def phase_of_server(half: ServerHalf) -> PhaseOfServer:
    """The server's half of a phase, of which each part is compiled when it is first called."""
    aggregator = half.aggregator

    def reduce(
        uploads: Upload, present: Array, memory: PyTree, key: Key, noise: Key
    ) -> tuple[PyTree, PyTree]:
        return reduce_uploads(aggregator, uploads, present, memory, key, noise)

    def bounded(lifted: PyTree) -> Array:
        """What a client that clips can have sent; a malicious one might leave that out."""
        bound = aggregator.sensitivity if isinstance(aggregator, Sum) else None
        if bound is None or not all(
            jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(lifted)
        ):
            return jnp.bool_(True)
        return jax.vmap(tree.norm)(lifted) <= bound * (1 + 1e-5)

    def lower(total: PyTree, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        assert isinstance(aggregator, Sum)
        return aggregator.lower(total, memory, key)

    return PhaseOfServer(
        half=half,
        broadcast=jax.jit(half.phase.broadcast),
        sane=jax.jit(half.sane),
        weighed=jax.jit(half.weighed),
        finite=jax.jit(half.finite, static_argnums=1),
        bounded=jax.jit(bounded),
        total=jax.jit(lambda lifted: jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), lifted)),
        lower=jax.jit(lower),
        reduce=jax.jit(reduce),
        step=jax.jit(half.step),
    )


class ServerExchange:
    """One phase of a round: who is asked, who has answered, and what comes of it.

    Attributes:
      tag: of the work, once it was asked for.
      absent: clients of the cohort that did not answer.
      is_revealed: whether clients have been asked for shares of a secure sum, and would refuse another one of the same
        numbers.
    """

    def __init__(self, setting: SharedSetting, parts: PhaseOfServer, cohort: Cohort, round: int) -> None:
        self._setting, self._caller, self._parts, self._round = setting, setting.caller, parts, round
        self._half, self._index = parts.half, parts.half.number
        self._server: PyTree = ()
        self._cohort, self._ids = cohort, [int(k) for k in np.asarray(cohort.ids)]
        self.tag = -1
        self.absent = set[int]()
        self.is_revealed = False
        self._begin: Callable[[], None] = lambda: None
        self._reveal: Callable[[], None] = lambda: None
        self._present = np.array(cohort.present)

    def done(
        self,
        server: PyTree,
        memory: PyTree,
        begin: Callable[[], None] = lambda: None,
        reveal: Callable[[], None] = lambda: None,
    ) -> tuple[Step, NDArray]:
        """The server's step, and which slots of the cohort counted; repeated until enough clients have answered.

        Args:
          server: the method's state.
          memory: that of the aggregator.
          begin: is called before each attempt, once there is a client that has agreed to the run.
          reveal: is called before the first shares of a secure sum are asked for.
        """
        self._reveal = reveal
        patience, drawn = self._setting.patience, int(np.sum(np.asarray(self._cohort.present)))
        attempt = 0
        while True:
            self.absent = set()
            self._present = np.array(self._cohort.present)
            self._begin = begin
            result = self._attempt(server, memory)
            if self.is_revealed or drawn - len(self.absent) >= min(patience.min_answers, drawn):
                self._begin_once()  # also a round that asked nobody, whose step clients see
                return result
            attempt += 1
            if patience.attempts is not None and attempt >= patience.attempts:
                raise EvenhandError(
                    f"Round {self._round + 1} had {drawn - len(self.absent)} answers in {attempt} attempts, and "
                    f"{patience.min_answers} are needed: check why clients are absent, and run again to resume."
                )
            time.sleep(patience.pause)

    def _begin_once(self) -> None:
        """Calls ``begin``, if this attempt has not."""
        begin, self._begin = self._begin, lambda: None
        begin()

    def lost(self, server: PyTree, memory: PyTree) -> tuple[Step, NDArray]:
        """The step of an exchange in which nobody counts, arguments as for :meth:`done`: clients would refuse another
        secure sum of the same numbers."""
        key, step_key = self._half.keys(self._setting.keys, self._round)
        self.absent = {self._ids[slot] for slot in np.flatnonzero(self._present)}
        self._present[:] = False
        direction, nobody = self._nothing(memory, key), jnp.asarray(self._present)
        return self._parts.step(server, (memory, memory), direction, nobody, {}, step_key), self._present

    def _attempt(self, server: PyTree, before: PyTree) -> tuple[Step, NDArray]:
        self._server = server
        half, parts, keys = self._half, self._parts, self._setting.keys
        aggregator = half.aggregator
        key, step_key = half.keys(keys, self._round)
        weights: Array | None = None
        after, info = before, dict[str, Array]()
        if half.weighs:
            (reports,) = self._gathered("report", (self._wire.report,))
            self._among(parts.sane(reports))
            cohort = self._cohort._replace(present=jnp.asarray(self._present))
            weights, after, shown = parts.weighed(reports, cohort, before)
            info = dict(shown)
        if isinstance(aggregator, Sum) and aggregator.compression is None:
            direction, after = self._summed(aggregator, after, weights, key)
        else:
            # The server sees each upload, and reduces all of them at once.
            reports, deltas = self._gathered(
                "work", (self._wire.report, self._wire.delta), self._extra(weights, ())
            )
            self._among(parts.sane(reports) & parts.finite(deltas, len(self._ids)))
            present = jnp.asarray(self._present)
            uploads = uploads_of(reports, deltas, reports.weight if weights is None else weights, present)
            noise = _noise_keys(keys, self._round, half.streams, self._cohort.ids)
            direction, after = parts.reduce(uploads, present, after, key, noise)
        accepted = jnp.asarray(self._present)
        step = parts.step(server, (before, after), direction, accepted, info, step_key)
        return step, self._present

    def _summed(
        self, aggregator: Sum, memory: PyTree, weights: Array | None, key: Key
    ) -> tuple[PyTree, PyTree]:
        """``(direction, memory)`` from sums of what clients lift, in as many passes as the aggregator takes."""
        direction: PyTree = ()
        if is_masked(aggregator):
            self._gathered("work", (), self._extra(weights, ()))
        for number in range(aggregator.passes):
            public = packed(aggregator.publish(memory))
            if is_masked(aggregator):
                total = self._secure_total(number, public)
                if total is None:
                    return tree.zeros_like(direction) if number else self._nothing(memory, key), memory
                direction, memory = self._parts.lower(total, memory, jax.random.fold_in(key, number))
                continue
            if number == 0:
                reports, lifted = self._gathered(
                    "work", (self._wire.report, self._wire.lifted), self._extra(weights, public)
                )
                self._among(self._parts.sane(reports))
            else:
                (lifted,) = self._gathered(
                    "pass",
                    (self._wire.lifted,),
                    dict.fromkeys(self._ids, public),
                    {"number": number, "exchange": self.tag},
                )
            self._among(self._parts.finite(lifted, len(self._ids)))
            self._among(self._parts.bounded(lifted))
            present = jnp.asarray(self._present)
            total = self._parts.total(tree.among(present, lifted))
            direction, memory = self._parts.lower(total, memory, jax.random.fold_in(key, number))
        return direction, memory

    def _nothing(self, memory: PyTree, key: Key) -> PyTree:
        """The direction of no uploads."""
        zeros = tree.zeros(self._wire.lifted)
        return tree.zeros(jax.eval_shape(self._parts.lower, zeros, memory, key)[0])

    def _secure_total(self, number: int, public: Sequence[NDArray]) -> PyTree | None:
        """The sum of a pass, of which the server learns the total alone; None: it is lost, and nobody counts."""
        caller, form = self._caller, sum_form_of(self._caller.agreed, self._index)
        clients = [client for slot, client in enumerate(self._ids) if self._present[slot]]
        broadcast = packed(self._parts.broadcast(self._server, jnp.int32(self._ids[0])))
        if int(np.sum(np.asarray(self._cohort.present))) < 2:
            return tree.zeros(self._wire.lifted)  # as in a simulation: the sum of one client is not found
        try:
            terms = sum_terms(
                occasion_of_sum(caller.agreed, self._index, (self.tag, number), broadcast, public),
                clients,
                bits=form.bits,
                size=form.size,
                colluding=self._setting.colluding,
            )
            total = self._summation(secure_exchanges(terms, self._setting.authority), number, public)
        except EvenhandError as error:
            sentence = f"Round {self._round + 1}: {error}"
            caller.log("absent", sentence, {"round": self._round + 1})
            self.absent |= set(clients)
            self._present[:] = False
            return None
        for client, reason in total.rejected.items():
            caller.log("refused", f"Client {client}: {reason}", {"client": client})
        counted = set(total.clients)
        self.absent |= set(clients) - counted
        self._present &= np.array([client in counted for client in self._ids])
        return jax.tree.map(jnp.asarray, form.tree(total.numbers))

    def _summation(
        self, exchanges: Generator[Asks, Asks, SecureTotal], number: int, public: Sequence[NDArray]
    ) -> SecureTotal:
        """A secure sum, which stops before shares are revealed if too few have sent numbers."""
        least = min(self._setting.patience.min_answers, int(np.sum(np.asarray(self._cohort.present))))

        def begin(kind: str, clients: int) -> None:
            if kind == SURVIVORS and clients < least:
                raise EvenhandError(
                    f"{clients} clients have sent their numbers, but {least} are needed: the sum is started again."
                )
            if kind == REVEAL and not self.is_revealed:
                self._reveal()
                self.is_revealed = True

        fields = {**self._common(), "exchange": self.tag, "number": number}
        return carried(self._caller, exchanges, fields, public, begin)

    # What is asked, and what comes.

    @property
    def _wire(self) -> rounds.Wire:
        return self._caller.agreed.wires[self._index]

    def _extra(self, weights: Array | None, public: Sequence[NDArray]) -> dict[int, tuple[NDArray, ...]]:
        """What each client of the cohort gets beside the broadcast: its weight, and what the aggregator publishes."""
        if weights is None:
            return dict.fromkeys(self._ids, tuple(public))
        # Empty slots have numbers, too, perhaps those of clients that are there.
        slots = [slot for slot in range(len(self._ids)) if self._present[slot]]
        return {self._ids[slot]: (np.asarray(weights[slot]), *public) for slot in slots}

    def _gathered(
        self,
        kind: str,
        like: tuple[PyTree, ...],
        extra: Mapping[int, Sequence[NDArray]] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> tuple[PyTree, ...]:
        """Asks those of the cohort that are left, and stacks what they send, zeros in the slots of the others."""
        slots = [slot for slot in range(len(self._ids)) if self._present[slot]]
        questions = {self._ids[slot]: self._question(kind, slot, extra or {}, fields or {}) for slot in slots}
        asked = self._caller.ask(kind, questions, self._begin_once)
        if kind == "work":
            self.tag = self._caller.tag
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        rows = [zeros] * len(self._ids)
        for slot in slots:
            client = self._ids[slot]
            self._present[slot] = client in asked.answers
            if client not in asked.answers:
                self.absent |= {client} - asked.rejected
                continue
            try:
                rows[slot] = unpacked(asked.answers[client].arrays, like, "an answer")
            except PacketError as error:
                self._caller.refuse(client, error)
                self._present[slot] = False
        return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *rows)

    def _question(
        self, kind: str, slot: int, extra: Mapping[int, Sequence[NDArray]], fields: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[NDArray, ...]]:
        client, terms = self._ids[slot], self._caller.agreed.terms
        common = {**self._common(), **fields}
        if kind == "pass":
            return common, tuple(extra[client])
        message = self._parts.broadcast(self._server, jnp.int32(client))
        common["progress"] = float(self._cohort.progress[slot])
        if terms.seed is None and self._caller.agreed.algorithm.privacy is None:
            key = rounds.work_key(self._setting.keys, self._round, self._half.streams, jnp.int32(client))
            common["key"] = key_words(key)
        return common, (*packed(message), *extra.get(client, ()))

    def _common(self) -> dict[str, Any]:
        """What each message of the exchange says of it."""
        cohort = int(np.sum(np.asarray(self._cohort.present)))
        return {"phase": self._index, "round": self._round, "cohort": cohort}

    def _among(self, accepted: Array) -> None:
        """Leaves out the slots whose answers do not count."""
        error = PacketError(
            "Its upload is not finite, or its report is not one that an honest client can send."
        )
        for slot in np.flatnonzero(self._present & ~np.asarray(accepted)):
            self._caller.refuse(self._ids[slot], error)
        self._present &= np.asarray(accepted)


def carried(
    caller: Caller,
    exchanges: Generator[Asks, Asks, SecureTotal],
    fields: Mapping[str, Any],
    public: Sequence[NDArray] = (),
    begin: Callable[[str, int], None] = lambda kind, clients: None,
) -> SecureTotal:
    """Carries the messages of a secure sum.

    Args:
      caller: the way to the clients.
      exchanges: the server's half.
      fields: what each message says besides.
      public: what the aggregator publishes, which goes with the first message.
      begin: is called with the kind of each step and how many clients are asked, and may raise an error.
    """
    asks = next(exchanges)
    while True:
        kind = next((message.kind for message in asks.values()), "")
        begin(kind, len(asks))
        questions = {
            client: (
                {
                    **fields,
                    "inner": {"kind": message.kind, "fields": dict(message.fields)},
                    "count": len(message.arrays),
                },
                (*message.arrays, *(public if kind == OFFER else ())),
            )
            for client, message in asks.items()
        }
        answers = {
            client: Packet(str(answer.fields.get("kind")), answer.fields.get("fields") or {}, answer.arrays)
            for client, answer in caller.ask("sum", questions).answers.items()
        }
        try:
            asks = exchanges.send(answers)
        except StopIteration as end:
            return end.value


@jax.jit
def _noise_keys(keys: Keys, round: Array | int, phase: Any, ids: Array) -> Key:
    return jax.vmap(lambda k: rounds.lift_key(keys, round, phase, k))(ids)
