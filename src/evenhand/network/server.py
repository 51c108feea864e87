"""The server of a federation: rounds over a carrier, evaluations on the clients, and a state that survives a kill.

The server draws cohorts, asks, reduces what comes and steps, with the same functions as the simulation
(:mod:`evenhand.rounds`, :mod:`evenhand.exchange`).  Every exchange has a deadline.  Where fewer clients answer than
must, the exchange is repeated under new tags.  The state is written after each round, and the largest tag before each
exchange, so that a server that was killed resumes where it was and never asks for the same thing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import evaluation, rounds, tree
from evenhand.aggregators import reduce_uploads
from evenhand.errors import EvenhandError
from evenhand.evaluation import ClassMetrics
from evenhand.exchange import ServerHalf, uploads_of
from evenhand.network.carriers import Carrier
from evenhand.network.measuring import served_from, shown_state
from evenhand.network.messages import Packet, PacketError, decode, encode, packed, unpacked
from evenhand.network.node import Log, StateStore, adapt_key
from evenhand.network.secure_sums import Asks, SecureTotal, secure_exchanges
from evenhand.network.sum_messages import OFFER, REVEAL, SURVIVORS, Occasion, sum_terms
from evenhand.network.terms import Agreed, example_rows, is_masked, sum_form_of
from evenhand.rounds import RoundState, Step
from evenhand.simulation.evaluating import Served, columns_of
from evenhand.simulation.program import EXECUTED, ROWS, USEFUL, WORK, Rows, efforts
from evenhand.streams import Keys
from evenhand.types import Array, Cohort, Effort, Info, Key, Params, PyTree, Report, Sum, Upload

__all__ = ["Patience", "Server", "ServerRecord"]

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


class ServerRecord(NamedTuple):
    """A run so far, all of which is in the store.

    Attributes:
      state: of the server and the aggregators; ``clients`` is empty, since clients keep their own.
      done: rounds done.
      tag: the largest tag that was ever sent.
      attempts: exchanges of the last phase that were begun: private rounds count when they are broadcast.
      counted: for each client, the tag of its latest work that counted; -1: none did.
      history: one row per evaluation.
      per_round: what each round has reported.
      bytes: ``(down, up)`` of all messages so far.
      last: each client's latest measurements.
      initial_loss: of each client with the initial model, where clients have models of their own.
    """

    state: RoundState
    done: int
    tag: int
    attempts: int
    counted: NDArray
    history: list[dict[str, float]]
    per_round: dict[str, list[float]]
    bytes: tuple[int, int]
    last: Served
    initial_loss: NDArray


class Asked(NamedTuple):
    """The answers to one question.

    Attributes:
      answers: by client.
      rejected: clients that answered, but with nothing that counts.
    """

    answers: dict[int, Packet]
    rejected: set[int]


class _Parts(NamedTuple):
    """The server's part in one phase, compiled."""

    broadcast: Callable[[PyTree, Array], PyTree]
    sane: Callable[[Report], Array]
    weighed: Callable[[Report, Cohort, PyTree], tuple[Array, PyTree, Info]]
    finite: Callable[[PyTree, int], Array]
    total: Callable[[PyTree], PyTree]
    lower: Callable[[PyTree, PyTree, Key], tuple[PyTree, PyTree]]
    reduce: Callable[..., tuple[PyTree, PyTree]]
    step: Callable[..., Step]


def _parts(half: ServerHalf) -> _Parts:
    aggregator = half.aggregator

    def reduce(
        uploads: Upload, present: Array, memory: PyTree, key: Key, noise: Key
    ) -> tuple[PyTree, PyTree]:
        return reduce_uploads(aggregator, uploads, present, memory, key, noise)

    def lower(total: PyTree, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        assert isinstance(aggregator, Sum)
        return aggregator.lower(total, memory, key)

    return _Parts(
        broadcast=jax.jit(half.phase.broadcast),
        sane=jax.jit(half.sane),
        weighed=jax.jit(half.weighed),
        finite=jax.jit(half.finite, static_argnums=1),
        total=jax.jit(lambda lifted: jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), lifted)),
        lower=jax.jit(lower),
        reduce=jax.jit(reduce),
        step=jax.jit(half.step),
    )


class Server:
    """A run on a network.

    Args:
      agreed: the run.
      carrier: the way to the clients.
      store: where its state is kept.
      keys: the roots of everything random that the server draws.
      sizes: split -> examples of each client, ``(N,)``.
      start: the initial parameters.
      eval_every: rounds between two evaluations.
      patience: how long it waits.
      log: for events and sentences about them.
      authority: the public key of the federation's authority, for secure sums.
      colluding: how many clients may collude with the server in a secure sum.
    """

    def __init__(
        self,
        agreed: Agreed,
        carrier: Carrier,
        store: StateStore,
        *,
        keys: Keys,
        sizes: Mapping[str, NDArray],
        start: Params,
        eval_every: int,
        patience: Patience,
        log: Log = lambda event, sentence, fields: None,
        authority: bytes = b"",
        colluding: int = 0,
    ) -> None:
        self.agreed, self.sizes, self.patience = agreed, sizes, patience
        self._carrier, self._store, self._start, self.log = carrier, store, start, log
        self.authority, self.colluding = authority, colluding
        self.keys, self._eval_every = rounds.roots(agreed.algorithm, keys), eval_every
        self._rows = jnp.asarray(sizes["train"], jnp.int32)
        self._phases = agreed.algorithm.phases
        halves = [
            ServerHalf(agreed.algorithm, index, agreed.terms.capacity) for index in range(len(self._phases))
        ]
        self.halves, self.parts = halves, [_parts(half) for half in halves]
        self._draw = jax.jit(self._drawn, static_argnums=1)
        self._effort = jax.jit(self._efforts, static_argnums=0)
        self._introduced = set[int]()
        self.seconds = {"compile": 0.0, "data": 0.0, "train": 0.0, "evaluate": 0.0}
        resumed = self._loaded()
        self.is_resumed = resumed is not None
        self.progress = self._beginning() if resumed is None else resumed

    # Rounds and evaluations.

    def run(self) -> Iterator[ServerRecord]:
        """Trains to the last round, and yields the run so far at each evaluation, once that is on disk."""
        rounds_asked = self.agreed.terms.rounds
        if not self.progress.history:
            self._evaluate()
            yield self.progress
        while self.progress.done < rounds_asked:
            begin = time.perf_counter()
            self.train_round()
            self.seconds["train"] += time.perf_counter() - begin
            done = self.progress.done
            if done % self._eval_every == 0 or done == rounds_asked:
                self._evaluate()
                self._save()
                yield self.progress
            else:
                self._save()

    def _drawn(self, round: Array, phase: int) -> Cohort:
        algorithm, slots = self.agreed.algorithm, self.agreed.terms.slots
        return rounds.cohort(algorithm, None, self._rows, slots, self.keys, round, phase)

    def train_round(self) -> None:
        """Trains one round more."""
        round = self.progress.done
        infos = dict.fromkeys((*WORK, "reported", "rejected", "absent"), 0.0)
        for index in range(len(self._phases)):
            cohort = self._draw(jnp.int32(round), index)
            self._reserve(charge=index == len(self._phases) - 1)
            exchange = ServerExchange(self, index, cohort, round)
            step, accepted = exchange.done()
            state = self.progress.state
            aggregators = (*state.aggregators[:index], step.memory, *state.aggregators[index + 1 :])
            state = state._replace(server=step.server, aggregators=aggregators)
            if index == len(self._phases) - 1:
                last = rounds.last_rounds(state.last_round, cohort, jnp.asarray(accepted), round)
                state = state._replace(last_round=last)
            counted = self.progress.counted.copy()
            ids = np.asarray(cohort.ids)
            counted[ids[accepted]] = exchange.tag
            self.progress = self.progress._replace(state=state, counted=counted)
            drawn = int(np.sum(np.asarray(cohort.present)))
            infos |= {name: float(value) for name, value in step.info.items()}
            counted_cohort = cohort._replace(present=cohort.present & jnp.asarray(accepted))
            steps, examples = (
                float(jnp.sum(part)) for part in self._effort(index, counted_cohort, jnp.int32(round))
            )
            for name, count in ((USEFUL, steps), (EXECUTED, steps), (ROWS, examples)):
                infos[name] += count
            infos["reported"] = float(np.sum(accepted))
            infos["absent"] += len(exchange.absent)
            infos["rejected"] += drawn - float(np.sum(accepted)) - len(exchange.absent)
        per_round = self.progress.per_round
        for name, value in infos.items():
            per_round.setdefault(name, []).append(value)
        self.progress = self.progress._replace(done=round + 1, per_round=per_round)

    def _efforts(self, index: int, cohort: Cohort, round: Array) -> Effort:
        """The work of each client of a cohort; it depends on how many examples there are, and on none of them."""
        x, y = (jnp.zeros(like.shape, like.dtype) for like in example_rows(self.agreed.terms, 1))
        nobody = jnp.zeros(self._rows.shape, bool)
        rows = Rows(x=x, y=y, starts=jnp.zeros_like(self._rows), sizes=self._rows, malicious=nobody)
        return efforts(self._phases[index].effort, self.agreed.terms.capacity, rows, cohort, round)

    def ask(self, kind: str, questions: Mapping[int, tuple[Mapping[str, Any], Sequence[NDArray]]]) -> Asked:
        """One question to some clients: their answers, by client; who does not answer is logged."""
        self.introduce(questions)
        terms, progress = self.agreed.terms, self.progress
        tag = progress.tag + 1
        self.progress = progress._replace(tag=tag)
        asks = {
            client: encode(
                Packet(
                    kind,
                    {
                        "run": terms.run,
                        "schema": self.agreed.schema,
                        "tag": tag,
                        "counted": int(progress.counted[client]),
                        **fields,
                    },
                    tuple(arrays),
                )
            )
            for client, (fields, arrays) in questions.items()
        }
        return self._collected(asks)

    def introduce(self, clients: Iterable[int]) -> None:
        """Announces the run to those of the clients that have not heard of it from this process."""
        clients = sorted(set(clients) - self._introduced)
        if not clients:
            return
        terms, start = self.agreed.terms, packed(self._start)
        fields = {"version": terms.version, "method": terms.method, "terms": terms.to_json()}
        asks = {client: encode(Packet("terms", {**fields, "client": client}, start)) for client in clients}
        for client, answer in self._collected(asks).answers.items():
            if answer.fields.get("schema") == self.agreed.schema:
                self._introduced.add(client)
            else:
                sentence = (
                    "its schema is another: its model, its method or its version differ from the server's."
                )
                self.log("refused", f"Client {client}: {sentence}", {"client": client})

    def _collected(self, asks: Mapping[int, bytes]) -> Asked:
        """The answers of clients that obey."""
        came = self._carrier.ask(asks, self.patience.deadline)
        down, up = self.progress.bytes
        down, up = down + sum(map(len, asks.values())), up + sum(map(len, came.answers.values()))
        self.progress = self.progress._replace(bytes=(down, up))
        for client, sentence in came.absent.items():
            self.log("absent", f"Client {client}: {sentence}", {"client": client})
        answers, rejected = dict[int, Packet](), set[int]()
        for client, data in came.answers.items():
            try:
                answer = decode(data)
            except PacketError as error:
                self.log("refused", f"Client {client}: {error}", {"client": client})
                rejected.add(client)
                continue
            if answer.kind in ("refused", "failed", "rejected"):
                event = str(answer.fields.get("event", "refused"))
                sentence = str(answer.fields.get("sentence", ""))[:500]
                self.log(event, f"Client {client}: {sentence}", {"client": client})
                if answer.kind == "rejected":
                    rejected.add(client)
                continue
            answers[client] = answer
        return Asked(answers, rejected)

    def refuse(self, client: int, error: PacketError) -> None:
        """Logs that a client's answer does not count."""
        self.log("refused", f"Client {client}: {error}", {"client": client})

    # Evaluation.

    def _evaluate(self) -> None:
        begin = time.perf_counter()
        agreed, state = self.agreed, self.progress.state
        arrays = shown_state(agreed, state.server)
        last = np.asarray(state.last_round)
        shared_keys = agreed.terms.seed is None and agreed.algorithm.privacy is None
        questions = {
            client: (
                {
                    "own": bool(last[client] > 0),
                    **({"key": key_words(adapt_key(self.keys, client))} if shared_keys else {}),
                },
                arrays,
            )
            for client in range(agreed.terms.clients)
        }
        measured: dict[int, Served] = {}
        for client, answer in self.ask("evaluate", questions).answers.items():
            if answer.kind != "measured":  # its own file keeps its numbers
                continue
            try:
                measured[client] = served_from(answer)
            except PacketError as error:
                self.refuse(client, error)
        served = joined(measured, agreed.terms.clients)
        initial = self.progress.initial_loss
        if self.progress.done == 0 and not self.progress.history and "train" in served.clients:
            initial = served.clients["train"].get(evaluation.of_global("loss"), initial)
        chosen = np.zeros(agreed.terms.clients, bool)
        chosen[list(measured)] = True
        reported = {name: values[-1] for name, values in self.progress.per_round.items()}
        row = {
            "round": self.progress.done,
            **columns_of(served, self.sizes, chosen),
            "bytes_down": float(self.progress.bytes[0]),
            "bytes_up": float(self.progress.bytes[1]),
            **reported,
        }
        history = [*self.progress.history, row]
        self.progress = self.progress._replace(history=history, last=served, initial_loss=initial)
        self.seconds["evaluate"] += time.perf_counter() - begin

    # What is kept.

    @cached_property
    def _begun(self) -> RoundState:
        agreed = self.agreed
        state = rounds.begin(
            agreed.algorithm, self._start, agreed.terms.clients, agreed.wires, agreed.terms.capacity
        )
        return state._replace(clients=(), last_round=jnp.zeros(agreed.terms.clients, jnp.int32))

    def _beginning(self) -> ServerRecord:
        clients = self.agreed.terms.clients
        return ServerRecord(
            state=self._begun,
            done=0,
            tag=0,
            attempts=0,
            counted=np.full(clients, -1, np.int64),
            history=[],
            per_round={},
            bytes=(0, 0),
            last=Served({}, {}),
            initial_loss=np.zeros(0),
        )

    def _save(self) -> None:
        """Writes the run so far.

        Raises:
          OSError: it cannot be written.
        """
        self._store.write(progress_bytes(self.agreed, self.progress))

    def _reserve(self, charge: bool) -> None:
        """Writes the tags that may be sent before the next save, so that no resumed server sends one again, and that
        another round is broadcast, if it is charged for."""
        self.progress = self.progress._replace(attempts=self.progress.attempts + int(charge))
        tag = self.progress.tag
        self._store.write(progress_bytes(self.agreed, self.progress._replace(tag=tag + _RESERVED)))

    def _loaded(self) -> ServerRecord | None:
        data = self._store.read()
        return None if data is None else progress_from(data, self.agreed, self._begun)


_RESERVED = 2**16
"""Tags that a server may send between two saves."""


def key_words(key: Key) -> list[int]:
    """A random key as the numbers of a message."""
    return [int(word) for word in np.asarray(jax.random.key_data(key))]


def joined(measured: Mapping[int, Served], clients: int) -> Served:
    """The measurements of all clients, NaN for those that sent none."""
    if not measured:
        return Served({}, {})
    first = next(iter(measured.values()))
    rows = {
        split: {name: np.full(clients, np.nan) for name in metrics}
        for split, metrics in first.clients.items()
    }
    for client, served in measured.items():
        for split, metrics in rows.items():
            for name, values in metrics.items():
                if split in served.clients and name in served.clients[split]:
                    values[client] = served.clients[split][name][0]
    cells = {
        split: ClassMetrics.joined(
            {
                client: served.classes[split]
                for client, served in sorted(measured.items())
                if split in served.classes
            }
        )
        for split in first.classes
    }
    level = None
    if first.level is not None:
        level = np.zeros(clients, np.int64)
        for client, served in measured.items():
            level[client] = 0 if served.level is None else int(served.level[0])
    return Served(rows, cells, level)


# --- one exchange -----------------------------------------------------------------------------------------------------


class ServerExchange:
    """One phase of a round: who is asked, who has answered, and what comes of it.

    Attributes:
      tag: of the work, once it was asked for.
      absent: clients of the cohort that did not answer.
      is_revealed: whether clients have been asked for shares of a secure sum, and would refuse another one of the same
        numbers.
    """

    def __init__(self, server: Server, index: int, cohort: Cohort, round: int) -> None:
        self._server, self._index, self._round = server, index, round
        self._half, self._parts = server.halves[index], server.parts[index]
        self._cohort, self._ids = cohort, [int(k) for k in np.asarray(cohort.ids)]
        self.tag = -1
        self.absent = set[int]()
        self.is_revealed = False
        self._present = np.array(cohort.present)

    def done(self) -> tuple[Step, NDArray]:
        """The server's step, and which slots of the cohort counted; repeated until enough clients have answered."""
        patience, drawn = self._server.patience, int(np.sum(np.asarray(self._cohort.present)))
        attempt = 0
        while True:
            self.absent = set()
            self._present = np.array(self._cohort.present)
            result = self._attempt()
            if self.is_revealed or drawn - len(self.absent) >= min(patience.min_answers, drawn):
                return result
            attempt += 1
            if patience.attempts is not None and attempt >= patience.attempts:
                raise EvenhandError(
                    f"Round {self._round + 1} had {drawn - len(self.absent)} answers in {attempt} attempts, and "
                    f"{patience.min_answers} are needed: see why clients are absent, and run again, which resumes."
                )
            time.sleep(patience.pause)

    def _attempt(self) -> tuple[Step, NDArray]:
        server, half, parts = self._server, self._half, self._parts
        aggregator, before = half.aggregator, server.progress.state.aggregators[self._index]
        key, step_key = half.keys(server.keys, self._round)
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
            noise = _noise_keys(server.keys, self._round, half.streams, self._cohort.ids)
            direction, after = parts.reduce(uploads, present, after, key, noise)
        accepted = jnp.asarray(self._present)
        server_state = server.progress.state.server
        step = parts.step(server_state, (before, after), direction, accepted, info, step_key)
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
        server, form = self._server, sum_form_of(self._server.agreed, self._index)
        clients = [client for slot, client in enumerate(self._ids) if self._present[slot]]
        run = server.agreed.terms.run
        try:
            terms = sum_terms(
                Occasion(run, run, self.tag, number),
                clients,
                bits=form.bits,
                size=form.size,
                colluding=server.colluding,
            )
            total = self._summation(secure_exchanges(terms, server.authority), number, public)
        except EvenhandError as error:
            sentence = f"Round {self._round + 1}: {error}"
            server.log("absent", sentence, {"round": self._round + 1})
            self.absent |= set(clients)
            self._present[:] = False
            return None
        for client, reason in total.rejected.items():
            server.log("refused", f"Client {client}: {reason}", {"client": client})
        counted = set(total.clients)
        self.absent |= set(clients) - counted
        self._present &= np.array([client in counted for client in self._ids])
        return jax.tree.map(jnp.asarray, form.tree(total.numbers))

    def _summation(
        self, exchanges: Generator[Asks, Asks, SecureTotal], number: int, public: Sequence[NDArray]
    ) -> SecureTotal:
        """Carries the messages of a secure sum, and stops before shares are revealed if too few have sent numbers."""
        asks = next(exchanges)
        least = min(self._server.patience.min_answers, int(np.sum(np.asarray(self._cohort.present))))
        while True:
            kind = next((message.kind for message in asks.values()), "")
            if kind == SURVIVORS and len(asks) < least:
                raise EvenhandError(
                    f"{len(asks)} clients have sent their numbers, and {least} are needed: the sum is begun anew."
                )
            self.is_revealed |= kind == REVEAL
            questions = {
                client: (
                    {
                        **self._common(),
                        "exchange": self.tag,
                        "number": number,
                        "inner": {"kind": message.kind, "fields": dict(message.fields)},
                        "count": len(message.arrays),
                    },
                    (*message.arrays, *(public if kind == OFFER else ())),
                )
                for client, message in asks.items()
            }
            answers = {
                client: Packet(
                    str(answer.fields.get("kind")), answer.fields.get("fields") or {}, answer.arrays
                )
                for client, answer in self._server.ask("sum", questions).answers.items()
            }
            try:
                asks = exchanges.send(answers)
            except StopIteration as end:
                return end.value

    # What is asked, and what comes.

    @property
    def _wire(self) -> rounds.Wire:
        return self._server.agreed.wires[self._index]

    def _extra(self, weights: Array | None, public: Sequence[NDArray]) -> dict[int, tuple[NDArray, ...]]:
        """What each client of the cohort gets beside the broadcast: its weight, and what the aggregator publishes."""
        if weights is None:
            return dict.fromkeys(self._ids, tuple(public))
        return {k: (np.asarray(weights[slot]), *public) for slot, k in enumerate(self._ids)}

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
        asked = self._server.ask(kind, questions)
        if kind == "work":
            self.tag = self._server.progress.tag
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
                self._server.refuse(client, error)
                self._present[slot] = False
        return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *rows)

    def _question(
        self, kind: str, slot: int, extra: Mapping[int, Sequence[NDArray]], fields: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[NDArray, ...]]:
        server, client = self._server, self._ids[slot]
        common = {**self._common(), **fields}
        if kind == "pass":
            return common, tuple(extra[client])
        message = self._parts.broadcast(server.progress.state.server, jnp.int32(client))
        common["progress"] = float(self._cohort.progress[slot])
        if server.agreed.terms.seed is None and server.agreed.algorithm.privacy is None:
            key = rounds.work_key(server.keys, self._round, self._half.streams, jnp.int32(client))
            common["key"] = key_words(key)
        return common, (*packed(message), *extra.get(client, ()))

    def _common(self) -> dict[str, Any]:
        """What each message of the exchange says of it."""
        cohort = int(np.sum(np.asarray(self._cohort.present)))
        return {"phase": self._index, "round": self._round, "cohort": cohort}

    def _among(self, accepted: Array) -> None:
        """Leaves out the slots whose answers do not count."""
        self._present &= np.asarray(accepted)


@jax.jit
def _noise_keys(keys: Keys, round: Array | int, phase: Any, ids: Array) -> Key:
    return jax.vmap(lambda k: rounds.lift_key(keys, round, phase, k))(ids)


# --- the run on disk --------------------------------------------------------------------------------------------------


def progress_bytes(agreed: Agreed, progress: ServerRecord) -> bytes:
    """A run so far as bytes; :func:`progress_from` reads them."""
    served = progress.last
    metrics = [[split, list(values)] for split, values in served.clients.items()]
    fields = {
        "schema": agreed.schema,
        "done": progress.done,
        "tag": progress.tag,
        "attempts": progress.attempts,
        "history": [{name: _json(value) for name, value in row.items()} for row in progress.history],
        "per_round": {
            name: [_json(value) for value in values] for name, values in progress.per_round.items()
        },
        "bytes": list(progress.bytes),
        "metrics": metrics,
        "classes": list(served.classes),
        "level": served.level is not None,
    }
    arrays = [values for split in served.clients.values() for values in split.values()]
    cells = [np.asarray(part) for split in served.classes.values() for part in split]
    levels = [] if served.level is None else [served.level]
    state = packed(progress.state._replace(clients=()))
    return encode(
        Packet("run", fields, (*state, progress.counted, progress.initial_loss, *arrays, *cells, *levels))
    )


def progress_from(data: bytes, agreed: Agreed, like: RoundState) -> ServerRecord:
    """The run that some bytes are.

    Raises:
      EvenhandError: they are of another run, or damaged.
    """
    message = decode(data)
    fields = message.fields
    if fields["schema"] != agreed.schema:
        raise EvenhandError(
            "The saved run has another schema than the files say: its method, clients or version have changed since it "
            "began. Restore them, or begin a new federation in another folder."
        )
    count = len(jax.tree.leaves(like))
    state = jax.tree.map(jnp.asarray, unpacked(message.arrays[:count], like, "the server's state"))
    counted, initial, *rest = message.arrays[count:]
    arrays = iter(rest)
    clients = {split: {name: next(arrays) for name in names} for split, names in fields["metrics"]}
    classes = {
        split: ClassMetrics(*(next(arrays) for _ in ClassMetrics._fields)) for split in fields["classes"]
    }
    level = next(arrays) if fields["level"] else None
    return ServerRecord(
        state=state,
        done=fields["done"],
        tag=fields["tag"],
        attempts=fields["attempts"],
        counted=counted,
        history=[{name: _number(value) for name, value in row.items()} for row in fields["history"]],
        per_round={
            name: [_number(value) for value in values] for name, values in fields["per_round"].items()
        },
        bytes=(fields["bytes"][0], fields["bytes"][1]),
        last=Served(clients, classes, level),
        initial_loss=initial,
    )


def _json(value: float) -> float | int | str:
    """A number of JSON; those that are not finite as text."""
    return value if np.isfinite(value) else str(value)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
