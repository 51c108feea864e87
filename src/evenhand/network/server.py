"""The server of a federation: rounds over a carrier, evaluations on the clients, and a state that survives a kill.

The server draws cohorts, asks, reduces what comes and steps, with the same functions as the simulation
(:mod:`evenhand.rounds`, :mod:`evenhand.exchange`).  Every exchange has a deadline.  Where fewer clients answer than
must, the exchange is repeated under new tags.  The state is written after each round, and the largest tag before each
exchange, so that a server that was killed resumes where it was and never asks for the same thing twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import communication, evaluation, records, rounds
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import ClassMetrics, private_metrics
from evenhand.exchange import ServerHalf
from evenhand.network.calling import Caller
from evenhand.network.carriers import Carrier, Log
from evenhand.network.exchanging import (
    Patience,
    ServerExchange,
    SharedSetting,
    carried,
    phase_of_server,
)
from evenhand.network.keeping import StateStore, adapt_key, key_words
from evenhand.network.measuring import served_from, shown_state
from evenhand.network.summing import HISTOGRAM, histogram, private_summary
from evenhand.network.terms import Agreed, as_deployed, example_rows
from evenhand.report import private_json
from evenhand.rounds import RoundState
from evenhand.simulation import Run
from evenhand.simulation.evaluating import Served, columns_of
from evenhand.simulation.program import EXECUTED, ROWS, USEFUL, WORK, Rows, efforts
from evenhand.simulation.store import Kept
from evenhand.streams import Keys
from evenhand.types import Array, Cohort, Effort, Params
from evenhand.wire.messages import Packet, PacketError, decode, encode, packed, unpacked
from evenhand.wire.secure_sums import secure_exchanges
from evenhand.wire.sum_messages import Occasion, sum_terms

__all__ = ["Server", "ServerRecord", "run_from"]

NDArray = npt.NDArray[Any]


class ServerRecord(NamedTuple):
    """A run so far, all of which is in the store.

    Attributes:
      state: of the server and the aggregators; ``clients`` is empty, since clients keep their own.
      done: rounds done.
      tag: the largest tag that was ever sent.
      attempts: rounds that private methods are charged for: those whose last exchange was broadcast, and each time
        that an exchange was broadcast again.
      phase: exchanges of the round in progress that are done.
      begun: whether the next exchange was broadcast.
      revealing: whether clients were asked for shares of a secure sum in it, and would refuse another of the same
        numbers.
      infos: what the round in progress has reported.
      counted: for each client, the tag of its latest work that counted; -1: none did.
      history: one row per evaluation.
      per_round: what each round has reported.
      bytes: ``(down, up)`` of all messages so far.
      last: each client's latest measurements.
      initial_loss: of each client with the initial model, if clients have personal models.
      private: what clients have measured together under a secure sum, as ``summary.json`` has it; empty: nothing.
    """

    state: RoundState
    done: int
    tag: int
    attempts: int
    phase: int
    begun: bool
    revealing: bool
    infos: dict[str, float]
    counted: NDArray
    history: list[dict[str, float]]
    per_round: dict[str, list[float]]
    bytes: tuple[int, int]
    last: Served
    initial_loss: NDArray
    private: Mapping[str, Any]


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

    Attributes:
      on_round: is called after each round, with how many are done.
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
        self.agreed, self.sizes, self._store, self._start = agreed, sizes, store, start
        self._keys, self._eval_every = rounds.roots(agreed.algorithm, keys), eval_every
        self.caller = Caller(agreed, carrier, start, patience.deadline, log)
        self._setting = SharedSetting(self.caller, self._keys, patience, authority, colluding)
        self._rows = jnp.asarray(sizes["train"], jnp.int32)
        self._phases = agreed.algorithm.phases
        halves = (
            ServerHalf(agreed.algorithm, number, agreed.terms.capacity) for number in range(len(self._phases))
        )
        self._parts = [phase_of_server(half) for half in halves]
        self._draw = jax.jit(self._drawn, static_argnums=1)
        self._effort = jax.jit(self._efforts, static_argnums=0)
        self.seconds = {"compile": 0.0, "data": 0.0, "train": 0.0, "evaluate": 0.0}
        self.on_round: Callable[[int], None] = lambda done: None
        resumed = self._loaded()
        self.is_resumed = resumed is not None
        self.done_before = 0 if resumed is None else resumed.done
        self.progress = self._beginning() if resumed is None else resumed
        self.caller.tag, self.caller.counted = self.progress.tag, self.progress.counted.copy()
        self.caller.down, self.caller.up = self.progress.bytes

    # Rounds and evaluations.

    def run(self) -> Iterator[ServerRecord]:
        """Trains to the last round, and yields the run so far at each evaluation, once that is on disk."""
        rounds_asked = self.agreed.terms.rounds
        while True:
            done, history = self.progress.done, self.progress.history
            is_due = done % self._eval_every == 0 or done == rounds_asked
            if is_due and not (history and history[-1]["round"] == done):
                # Before clients are told that their work has counted.
                self._save()
                self._evaluate()
                self._save()
                yield self.progress
            if done >= rounds_asked:
                return
            begin = time.perf_counter()
            self.train_round()
            self.seconds["train"] += time.perf_counter() - begin
            self.on_round(self.progress.done)

    def _drawn(self, round: Array, phase: int) -> Cohort:
        algorithm, slots = self.agreed.algorithm, self.agreed.terms.slots
        return rounds.cohort(algorithm, None, self._rows, slots, self._keys, round, phase)

    def train_round(self) -> None:
        """Trains one round more, or what is left of the round in progress."""
        for index in range(self.progress.phase, len(self._phases)):
            self._exchange(index)
        per_round, infos = self.progress.per_round, self.progress.infos
        for name, value in infos.items():
            per_round.setdefault(name, []).append(value)
        done = self.progress.done + 1
        self.progress = self.progress._replace(done=done, phase=0, infos={}, per_round=per_round)

    def _exchange(self, index: int) -> None:
        """One exchange of the round in progress."""
        round, is_last = self.progress.done, index == len(self._phases) - 1
        cohort, state = self._draw(jnp.int32(round), index), self.progress.state
        exchange = ServerExchange(self._setting, self._parts[index], cohort, round)
        memory = state.aggregators[index]
        if self.progress.revealing:
            sentence = f"Round {round + 1}: the server ended while shares of a secure sum were revealed, which is lost."
            self.caller.log("absent", sentence, {"round": round + 1})
            step, accepted = exchange.lost(state.server, memory)
        else:
            step, accepted = exchange.done(
                state.server, memory, lambda: self._reserve(is_last), self._revealing
            )
        aggregators = (*state.aggregators[:index], step.memory, *state.aggregators[index + 1 :])
        state = state._replace(server=step.server, aggregators=aggregators)
        if is_last:
            last = rounds.last_rounds(state.last_round, cohort, jnp.asarray(accepted), round)
            state = state._replace(last_round=last)
        self.caller.counted[np.asarray(cohort.ids)[accepted]] = exchange.tag
        drawn = int(np.sum(np.asarray(cohort.present)))
        infos = self.progress.infos or dict.fromkeys((*_HIDDEN, "reported", "rejected", "absent"), 0.0)
        infos |= {name: float(value) for name, value in step.info.items()}
        # As in a simulation: those whose upload reached the server, accepted or not.
        arrived = cohort.present & ~jnp.isin(cohort.ids, jnp.asarray(sorted(exchange.absent), jnp.int32))
        effort = self._effort(index, cohort._replace(present=arrived), jnp.int32(round))
        steps, examples = (float(jnp.sum(part)) for part in effort)
        for name, count in ((USEFUL, steps), (EXECUTED, steps), (ROWS, examples)):
            infos[name] += count
        # Of the last exchange, so that a client counts once in a round.
        infos[_TOOK_PART] = float(jnp.sum(arrived))
        infos["reported"] = float(np.sum(accepted))
        infos["absent"] = float(len(exchange.absent))
        infos["rejected"] += drawn - float(np.sum(accepted)) - len(exchange.absent)
        self.progress = self.progress._replace(
            state=state, phase=index + 1, begun=False, revealing=False, infos=infos
        )

    def _efforts(self, index: int, cohort: Cohort, round: Array) -> Effort:
        """The work of each client of a cohort; it depends on how many examples there are, and on none of them."""
        x, y = (jnp.zeros(like.shape, like.dtype) for like in example_rows(self.agreed.terms, 1))
        nobody = jnp.zeros(self._rows.shape, bool)
        rows = Rows(x=x, y=y, starts=jnp.zeros_like(self._rows), sizes=self._rows, malicious=nobody)
        return efforts(self._phases[index].effort, self.agreed.terms.capacity, rows, cohort, round)

    # Evaluation.

    def _evaluate(self) -> None:
        begin = time.perf_counter()
        agreed, state = self.agreed, self.progress.state
        arrays, split = shown_state(agreed, state.server), "test" if self.sizes["test"].any() else "train"
        last = np.asarray(state.last_round)
        shared_keys = agreed.terms.seed is None and agreed.algorithm.privacy is None
        questions = {
            client: (
                {
                    "own": bool(last[client] > 0),
                    "round": self.progress.done,
                    "split": split,
                    **({"key": key_words(adapt_key(self._keys, client))} if shared_keys else {}),
                },
                arrays,
            )
            for client in range(agreed.terms.clients)
        }
        measured, countable = dict[int, Served](), list[int]()
        for client, answer in self.caller.ask("evaluate", questions).answers.items():
            if answer.kind != "measured":  # its own file keeps its numbers
                countable += [client] if answer.fields.get("histogram") is True else []
                continue
            try:
                sizes = {name: int(rows[client]) for name, rows in self.sizes.items()}
                measured[client] = served_from(answer, agreed, sizes)
            except PacketError as error:
                self.caller.refuse(client, error)
        private = self._counted(countable, split) if countable else {}
        served = joined(measured, agreed.terms.clients, ("loss", *agreed.algorithm.client_model.metrics))
        initial = self.progress.initial_loss
        if self.progress.done == 0 and not self.progress.history and "train" in served.clients:
            initial = served.clients["train"].get(evaluation.of_global("loss"), initial)
        chosen = np.zeros(agreed.terms.clients, bool)
        chosen[list(measured)] = True
        reported = {name: values[-1] for name, values in self.progress.per_round.items()}
        row = {
            "round": self.progress.done,
            **columns_of(served, self.sizes, chosen),
            "bytes_down": float(self.caller.down),
            "bytes_up": float(self.caller.up),
            **reported,
        }
        history = [*self.progress.history, row]
        self.progress = self.progress._replace(
            history=history, last=served, initial_loss=initial, private=private
        )
        self.seconds["evaluate"] += time.perf_counter() - begin

    def _counted(self, clients: list[int], split: str) -> dict[str, Any]:
        """The statistics of the accuracy over clients that count themselves in a histogram, as ``summary.json`` has
        them."""
        run, size, tag = self.agreed.terms.run, len(histogram(math.nan)), self.caller.tag
        try:
            if len(clients) < private_metrics.LEAST:
                raise EvenhandError(
                    f"{len(clients)} clients would be in the histogram, and {private_metrics.LEAST} are needed, so "
                    "that it does not show a single client."
                )
            terms = sum_terms(
                Occasion(run, run, tag, 0), clients, bits=32, size=size, colluding=self._setting.colluding
            )
            exchanges = secure_exchanges(terms, self._setting.authority)
            cohort = {
                "phase": HISTOGRAM,
                "round": self.progress.done,
                "cohort": len(clients),
                "exchange": tag,
            }
            total = carried(self.caller, exchanges, cohort)
            return private_json(private_summary(total.numbers, len(total.clients), split))
        except EvenhandError as error:
            self.caller.log("refused", f"Private metrics: {error}", {})
            return private_json(refused=str(error))

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
            phase=0,
            begun=False,
            revealing=False,
            infos={},
            counted=np.full(clients, -1, np.int64),
            history=[],
            per_round={},
            bytes=(0, 0),
            last=Served({}, {}),
            initial_loss=np.zeros(0),
            private={},
        )

    def _save(self) -> None:
        """Writes the run so far, with the tags that may be sent before it is written again, so that no resumed server
        sends one of them a second time.

        Raises:
          OSError: it cannot be written.
        """
        latest = self._latest()
        self._store.write(progress_bytes(self.agreed, latest._replace(tag=latest.tag + _RESERVED)))

    def _revealing(self) -> None:
        """Writes that clients are asked for shares, so that no resumed server asks for the same sum in vain."""
        self.progress = self.progress._replace(revealing=True)
        self._save()

    def _reserve(self, is_last: bool) -> None:
        """Writes that an exchange is broadcast, which a private method is charged for."""
        charge = int(is_last or self.progress.begun)
        self.progress = self.progress._replace(attempts=self.progress.attempts + charge, begun=True)
        self._save()

    def _latest(self) -> ServerRecord:
        """The run so far, with what its caller has counted."""
        caller = self.caller
        self.progress = self.progress._replace(
            tag=caller.tag, counted=caller.counted.copy(), bytes=(caller.down, caller.up)
        )
        return self.progress

    def _loaded(self) -> ServerRecord | None:
        data = self._store.read()
        return None if data is None else progress_from(data, self.agreed, self._begun)


_RESERVED = 2**16
"""Tags that a server may send between two saves."""

_TOOK_PART = "took_part"
"""Uploads that arrived in the last exchange of a round, among what each round counts."""

_HIDDEN = (*WORK, _TOOK_PART)
"""Counts of a round that are in ``run.info`` alone."""


def joined(measured: Mapping[int, Served], clients: int, names: Sequence[str]) -> Served:
    """The measurements of all clients, NaN for those that sent none; ``names`` are the metrics if nobody did."""
    if not measured:
        unknown = {name: np.full(clients, np.nan) for name in names}
        return Served({split: dict(unknown) for split in ("train", "valid", "test")}, {})
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
        "phase": progress.phase,
        "begun": progress.begun,
        "revealing": progress.revealing,
        "infos": {name: _json(value) for name, value in progress.infos.items()},
        "history": [{name: _json(value) for name, value in row.items()} for row in progress.history],
        "per_round": {
            name: [_json(value) for value in values] for name, values in progress.per_round.items()
        },
        "bytes": list(progress.bytes),
        "metrics": metrics,
        "classes": list(served.classes),
        "level": served.level is not None,
        "private": records.as_json(progress.private),
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
            "The saved run does not match the files: its method, clients or version have changed since it "
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
        phase=fields["phase"],
        begun=fields["begun"],
        revealing=fields["revealing"],
        infos={name: _number(value) for name, value in fields["infos"].items()},
        counted=counted,
        history=[{name: _number(value) for name, value in row.items()} for row in fields["history"]],
        per_round={
            name: [_number(value) for value in values] for name, values in fields["per_round"].items()
        },
        bytes=(fields["bytes"][0], fields["bytes"][1]),
        last=Served(clients, classes, level),
        initial_loss=initial,
        private=fields.get("private", {}),  # states of earlier versions have none
    )


def _json(value: float) -> float | int | str:
    """A number of JSON; those that are not finite as text."""
    return value if np.isfinite(value) else str(value)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


# --- a run on a network as a result -----------------------------------------------------------------------------------


def run_from(
    server: Server,
    progress: ServerRecord,
    data: FederatedDataset,
    state: RoundState,
    *,
    seed: int | None = None,
    remote: bool = False,
) -> Run:
    """The result of a run on a network, with the clients' states where they are at hand.

    ``seed``: of the initial model and the cohorts, if clients do not know it.  ``remote``: their examples are
    elsewhere, and ``data`` has their numbers alone.
    """
    agreed, columns = server.agreed, dict[str, NDArray]()
    for name in dict.fromkeys(name for row in progress.history for name in row):
        columns[name] = np.array([row.get(name, np.nan) for row in progress.history])
    columns["round"] = columns["round"].astype(np.int64)
    return Run(
        algorithm=as_deployed(agreed) if remote else agreed.algorithm,
        data=data,
        seed=(agreed.terms.seed or 0) if seed is None else seed,
        history={name: values for name, values in columns.items() if name not in _HIDDEN},
        per_round={
            name: np.array(values) for name, values in progress.per_round.items() if name not in _HIDDEN
        },
        info=_info(server, progress),
        kept=Kept(state),
        clients=progress.last.clients,
        classes=progress.last.classes,
        malicious=np.zeros(agreed.terms.clients, bool),
        last_round=np.asarray(state.last_round, np.int64),
        remote=remote,
        initial_loss=progress.initial_loss,
        level=progress.last.level,
    )


def _info(server: Server, progress: ServerRecord) -> dict[str, Any]:
    agreed, sums = server.agreed, {name: sum(progress.per_round.get(name, [])) for name in WORK}
    traffic, sampling = communication.traffic(agreed.algorithm, agreed.wires), agreed.algorithm.sampling
    secure_sums = progress.done * sum(load.secure_sums for load in traffic)
    down, up = (
        communication.added(*loads) for loads in zip(*((load.down, load.up) for load in traffic), strict=True)
    )
    # The seconds are those of this process, which may have gone on with a run.
    rows, seconds = sum(progress.per_round.get(ROWS, [])[server.done_before :]), server.seconds["train"]
    took_part = round(sum(progress.per_round.get(_TOOK_PART, [])))
    sent = {"down": progress.bytes[0], "up": progress.bytes[1]}
    info: dict[str, Any] = {
        "rounds": progress.done,
        "charged": progress.attempts,
        # How many clients are drawn on average, where a cohort has more slots than that.
        "cohort": round((sampling.rate or 0.0) * agreed.terms.clients)
        if sampling.independent
        else agreed.terms.slots,
        "lanes": 1,
        "devices": 1,
        "floats": {"down": down.numbers, "up": up.numbers},
        "bytes": sent,
        "secure_sums": secure_sums,
        "communication": {
            "rounds": progress.done,
            "secure_sums": secure_sums,
            "per_client_and_round": {
                name: {"numbers": load.numbers, "bytes": load.bytes}
                for name, load in (("down", down), ("up", up))
            },
            "total": {
                name: {"numbers": took_part * load.numbers, "bytes": sent[name]}
                for name, load in (("down", down), ("up", up))
            },
            "took_part": took_part,
            "left_out": round(sum(progress.per_round.get("absent", []))),
            "covers": "All messages between the server and all clients, with headers, keys, shares and evaluations.",
        },
        "restarts": any(wire.restarts for wire in agreed.wires),
        "seconds": dict(server.seconds),
        "steps": {"useful": sums[USEFUL], "executed": sums[EXECUTED]},
        "padded": 0.0,
        "examples": sums[ROWS],
        "examples_per_second": rows / seconds if seconds else 0.0,
    }
    if levels := agreed.algorithm.levels:
        info["levels"] = [level.name for level in levels]
    return info
