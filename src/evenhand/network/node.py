"""A client of a federation: it answers the server's messages, and refuses those that its own file does not allow.

A client trusts its own file and nothing that comes from the server: the method is built from its file, noise comes from
its own operating system, and what it keeps between rounds stays on its disk.  What an exchange makes of its state is
*pending* until the server's next message says that the upload counted; else the client keeps the state that it had, as
in a simulation.

Messages: ``hello`` (what data are there), ``terms`` (the run), ``report``, ``work``, ``pass``, ``sum`` (one step of a
secure sum), ``evaluate``.  Each has a ``tag`` that rises, so that no message is answered twice, also after a restart.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import rounds, tree
from evenhand._version import __version__
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import private_metrics
from evenhand.network.carriers import Log
from evenhand.network.compiled import ClientMethod
from evenhand.network.keeping import ClientRecord, StateStore, adapt_key, record_from, record_message
from evenhand.network.measuring import Evaluated, Measuring, served_message
from evenhand.network.summing import (
    COUNTED,
    HISTOGRAM,
    Scaling,
    Summing,
    histogram,
    number_columns,
    scaled,
)
from evenhand.network.terms import (
    Agreed,
    Allowed,
    Terms,
    check_epsilon,
    check_method,
    check_terms,
    is_masked,
    is_published,
    occasion_of_sum,
    sum_form_of,
)
from evenhand.rounds import Wire
from evenhand.streams import Keys, keys_of, wrapped_key
from evenhand.types import Array, Key, PyTree, Sum, Upload
from evenhand.wire.identities import Identity
from evenhand.wire.messages import Packet, PacketError, decode, encode, packed, unpacked, whole
from evenhand.wire.secure_sums import Protection
from evenhand.wire.sum_messages import REVEAL, Occasion

__all__ = ["Node", "Refusal"]

NDArray = npt.NDArray[Any]
_REPEATS = 3
"""How often a client does private work again, at least, since a server may be killed."""


class Refusal(EvenhandError):
    """A message that a client does not obey.

    Attributes:
      event: ``"refused"``, or ``"replayed"`` for one that it has seen.
    """

    def __init__(self, sentence: str, event: str = "refused") -> None:
        super().__init__(sentence)
        self.event = event


# --- the client -------------------------------------------------------------------------------------------------------


class Node:
    """A client of a federation, as a function from messages to answers.

    Args:
      method: the text of the method in its own file.
      methods: ``terms -> ClientMethod``, which builds it.
      data: the client's own examples, as a data set of one client.
      allowed: what its file allows.
      store: where it keeps its state.
      identity: what it signs offers of secure sums with; None: it takes part in none.
      protection: what it asks of every secure sum.
      log: for events and sentences about them.
      random: a source of random bytes, the operating system's.
      show: is given what each evaluation finds, whatever of it may leave the client.
    """

    def __init__(
        self,
        method: str,
        methods: Callable[[Terms], ClientMethod],
        data: FederatedDataset,
        allowed: Allowed,
        store: StateStore,
        *,
        identity: Identity | None = None,
        protection: Protection = Protection(),  # noqa: B008  (immutable)
        log: Log = lambda event, sentence, fields: None,
        random: Callable[[int], bytes] = secrets.token_bytes,
        show: Callable[[Evaluated], None] | None = None,
    ) -> None:
        self._text, self._methods, self._raw, self._allowed = method, methods, data, allowed
        self._data = data  # on the scale of the terms, once there are any
        self._store, self._log, self._random, self._show = store, log, random, show
        # What the server has broadcast for the work of a secure sum; and the sum in progress, by exchange and pass,
        # with what the server has published for it.
        self._broadcast: tuple[NDArray, ...] = ()
        self._summed: tuple[tuple[int, int], Occasion, tuple[NDArray, ...]] | None = None
        self._kept: ClientRecord | None = None
        self._method: ClientMethod | None = None
        self._rows: tuple[Array, Array] | None = None
        self._measuring: Measuring | None = None
        # The upload of the exchange in progress, which passes of a sum lift again, with its tag and phase; and the
        # last of these passes.
        self._upload: tuple[int, int, Upload] | None = None
        self._passed = 0
        self._summing, self._colluding = Summing(identity, protection), protection.colluding
        self._adding = Scaling(data, self._summing, store, allowed.cohort)
        # The tag of the latest evaluation whose metric may be counted, the rounds before it, and what it adds.
        self._counting: tuple[int, int, NDArray] | None = None

    def answer(self, data: bytes) -> bytes:
        """The answer to a message; a refusal, or a failure, is an answer, too."""
        try:
            message = decode(data)
            return encode(self._answered(message))
        except (Refusal, PacketError) as error:
            event = error.event if isinstance(error, Refusal) else "refused"
            self._log(event, str(error), {})
            return encode(Packet("refused", {"event": event, "sentence": str(error)}))
        except OSError as error:
            why = error.strerror or error
            sentence = f"The client's state could not be written ({why}): free some space on its disk."
            self._log("disk", sentence, {})
            return encode(Packet("failed", {"event": "disk", "sentence": sentence}))

    def latest(self, counted: int) -> PyTree:
        """What the client keeps between rounds, given the tag of its latest work that ``counted``."""
        kept = self._loaded()
        assert kept is not None, "the client takes part in no run yet"
        return kept.next if kept.pending == counted else kept.state

    def _answered(self, message: Packet) -> Packet:
        handlers: dict[str, Callable[[Packet], Packet]] = {
            "hello": self._hello,
            "terms": self._terms,
            "report": self._report,
            "work": self._work,
            "pass": self._pass,
            "sum": self._sum,
            "evaluate": self._evaluate,
            "settle": self._settle,
            "moments": self._moments,
        }
        if message.kind not in handlers:
            raise Refusal(
                f"The server asks for {message.kind!r:.40}, which this version of Evenhand does not know."
            )
        try:
            return handlers[message.kind](message)
        # EvenhandError is a ValueError; numbers of JSON may be too large for a float.
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, Refusal | PacketError):
                raise
            if isinstance(error, EvenhandError):
                raise Refusal(str(error)) from None
            raise PacketError(
                f"A message of the kind {message.kind!r} lacks a field, or has an invalid one ({error!r:.80})."
            ) from None

    # What it has, and what it takes part in.

    def _hello(self, message: Packet) -> Packet:
        self._check_method(message)
        form, splits = self._data.form, (self._data.train, self._data.valid, self._data.test)
        sizes = [int(split.rows) for split in splits]
        label = list(self._data.train.y.shape[1:])
        run = None if (kept := self._loaded()) is None else kept.terms.run
        about = {"form": form.to_json(), "label": label, "sizes": sizes, "run": run}
        columns = [] if self._raw.features is None else self._raw.features.to_json()["columns"]
        return Packet("here", {**about, "columns": columns, "numbers": len(number_columns(self._raw))})

    def _moments(self, message: Packet) -> Packet:
        """One step of the secure sum from which the scale of columns of numbers follows."""
        self._check_method(message)
        if self._loaded() is not None:
            raise Refusal(
                "The server asks for the scale of columns, which this client has already agreed on."
            )
        return self._adding.step(message)

    def _check_method(self, message: Packet) -> None:
        """The server's method and version are those of this client."""
        version, method = message.fields["version"], message.fields["method"]
        if version != __version__:
            raise Refusal(
                f"The server has Evenhand {version!s:.40}, and this client {__version__}: install the same version on "
                "both."
            )
        if method != self._text:
            raise Refusal(
                f"The server trains {method!s:.200}, and this client's file names {self._text}: change one of them."
            )

    def _terms(self, message: Packet) -> Packet:
        self._check_method(message)
        terms, client = Terms.from_json(message.fields["terms"]), whole(message.fields, "client")
        kept = self._loaded()
        if kept is not None and kept.terms.run != terms.run:
            raise Refusal(
                f"The server begins run {terms.run!s:.40}, and this client keeps the state of run "
                f"{kept.terms.run!s:.40}: move its state away before another run begins, or resume that run."
            )
        check_terms(self._allowed, terms)
        data = scaled(self._raw, terms.scale)
        if not 0 <= client < terms.clients or terms.capacity < self._data.train.rows:
            raise Refusal(
                "The terms of the run do not fit this client: its number or its examples are not in them."
            )
        if (terms.form.shape, terms.form.dtype, terms.label) != (
            self._raw.feature_shape,
            str(self._raw.train.x.dtype),
            tuple(self._raw.train.y.shape[1:]),
        ):
            raise Refusal(
                f"The federation trains on examples {terms.form.dtype}{list(terms.form.shape)}, and this client has "
                f"{self._data.train.x.dtype}{list(self._data.feature_shape)}: load its file as the others do."
            )
        # The terms of a run are settled: more rounds would spend more privacy than was agreed on.
        if kept is not None and (kept.terms, kept.client) != (terms, client):
            raise Refusal(
                f"The server changes the terms of run {terms.run:.40}, which this client has agreed to: begin another "
                "run."
            )
        method = self._methods(terms)
        self._check_allowed(method.agreed)
        # Once a message of the run was answered, its state is more than the initial model, even while work is pending.
        if kept is None or kept.tag < 0:
            start = unpacked(message.arrays, method.agreed.params, "the initial model")
            state = method.newcomer(jax.tree.map(jnp.asarray, start))
            kept = ClientRecord(
                terms=terms,
                client=client,
                tag=-1,
                trained=False,
                pending=None,
                state=state,
                next=state,
            )
        self._keep(kept)
        self._method, self._data, self._rows, self._measuring = method, data, None, None
        return Packet("agreed", {"schema": method.agreed.schema})

    def _check_allowed(self, agreed: Agreed) -> None:
        """The method protects this client as its own file asks."""
        check_method(self._allowed, self._colluding, agreed, int(self._data.train.rows))

    def _placed(self, kept: ClientRecord, agreed: Agreed, place: tuple[int, int]) -> ClientRecord:
        """Counts work in a round and phase: where it has worked before, that is one release more than agreed on."""
        if place > kept.place:
            return kept._replace(place=place)
        kept = kept._replace(repeats=kept.repeats + 1)
        most = max(_REPEATS, agreed.terms.rounds // 10)
        if agreed.algorithm.privacy is not None and kept.repeats > most:
            raise Refusal(
                f"The server has asked {kept.repeats} times for work of a round that this client had done, each time "
                f"with new noise: it does so at most {most} times in a run."
            )
        begin = f"The server repeats round {place[0] + 1}, with which the run would spend"
        rows = int(self._data.train.rows)
        check_epsilon(self._allowed, agreed, rows, agreed.terms.rounds + kept.repeats, begin)
        return kept

    # One exchange.

    def _report(self, message: Packet) -> Packet:
        kept, method = self._opened(message)
        index, round = self._checked(message, kept)
        if is_masked(method.agreed.algorithm.phases[index].aggregator):
            raise Refusal(
                "The server asks for a report, but in this method a secure sum hides what clients report."
            )
        wire, rest = self._received(message, method.agreed.wires[index])
        if rest:
            raise PacketError("The message has more arrays than the broadcast.")
        report = method.parts[index].report(
            wire, kept.state, self._window(message, round), self._work_key(message, kept, index, round)
        )
        self._keep(kept._replace(tag=whole(message.fields, "tag")))
        return Packet("reported", {}, packed(report))

    def _work(self, message: Packet) -> Packet:
        kept, method = self._opened(message)
        index, round = self._checked(message, kept)
        wire, agreed = method.agreed.wires[index], method.agreed
        broadcast, rest = self._received(message, wire)
        kept = self._placed(kept, agreed, (round, index))
        key = self._work_key(message, kept, index, round)
        done, accepted = method.parts[index].work(broadcast, kept.state, self._window(message, round), key)
        tag = whole(message.fields, "tag")
        kept = kept._replace(
            tag=tag, pending=tag, next=done.state, closes=index == len(agreed.algorithm.phases) - 1
        )
        self._upload = None
        if not bool(accepted):
            self._keep(kept._replace(pending=None, next=kept.state))
            return Packet(
                "rejected", {"sentence": "The client's update is not finite, or its report is not in range."}
            )
        aggregator = agreed.algorithm.phases[index].aggregator
        if not isinstance(aggregator, Sum) or aggregator.compression is not None:
            _check_norm(done.delta, self._allowed.clip)
            self._keep(kept)  # on disk before anything leaves the client, so that no kill makes it work twice
            return Packet("worked", {}, (*packed(done.report), *packed(done.delta)))
        weight = done.report.weight
        if aggregator.weigh is not None:
            weight, rest = unpacked(rest[:1], jax.eval_shape(lambda x: x, weight), "the weight"), rest[1:]
        upload = Upload(done.delta, jnp.asarray(weight), done.report.loss)
        if is_masked(aggregator):
            self._keep(kept)
            self._upload, self._summed = (tag, index, upload), None
            self._broadcast = message.arrays[: len(jax.tree.leaves(wire.message))]
            return Packet("worked")  # nothing of what it has reported or made leaves it but in sums
        lifted = self._lifted(kept, method, index, round, 0, upload, rest)
        self._keep(kept)
        self._upload, self._passed = (tag, index, upload), 0
        return Packet("worked", {}, (*packed(done.report), *packed(lifted)))

    def _pass(self, message: Packet) -> Packet:
        kept, method = self._opened(message)
        index, round = self._checked(message, kept)
        exchange, number = whole(message.fields, "exchange"), whole(message.fields, "number")
        upload = self._uploaded(kept, index, exchange, "pass")
        aggregator = method.agreed.algorithm.phases[index].aggregator
        if is_masked(aggregator):
            raise Refusal(
                "The server asks for what this client adds to a secure sum, which leaves the client only under masks."
            )
        passes = aggregator.passes if isinstance(aggregator, Sum) else 1
        if number != self._passed + 1 or number >= passes:
            raise Refusal(
                f"The server asks for pass {number + 1} of an exchange after pass {self._passed + 1} of {passes}: this "
                "client sends each of them once."
            )
        lifted = self._lifted(kept, method, index, round, number, upload, message.arrays)
        self._keep(kept._replace(tag=whole(message.fields, "tag")))
        self._passed = number
        return Packet("worked", {}, packed(lifted))

    def _sum(self, message: Packet) -> Packet:
        """One step of a secure sum."""
        kept, method = self._opened(message)
        if message.fields["phase"] == HISTOGRAM:
            return self._count(message, kept)
        index, round = self._checked(message, kept)
        exchange, number = whole(message.fields, "exchange"), whole(message.fields, "number")
        upload = self._uploaded(kept, index, exchange, "sum")
        place, form = (round, index, number), sum_form_of(method.agreed, index)
        if self._summed is None or self._summed[0] != (exchange, number):
            aggregator = method.agreed.algorithm.phases[index].aggregator
            passes = aggregator.passes if isinstance(aggregator, Sum) else 1
            before = -1 if self._summed is None or self._summed[0][0] != exchange else self._summed[0][1]
            if number != before + 1 or number >= passes:
                raise Refusal(
                    f"The server asks for the sum of pass {number + 1} after that of pass {before + 1} of {passes}: "
                    "this client takes part in one sum of each, in their order."
                )
            public = message.arrays[whole(message.fields, "count") :]
            if place <= kept.revealed:
                raise Refusal(
                    "This client has already revealed its shares in a sum of the same numbers: the difference of two "
                    "sums could be its update."
                )
            if not is_published(method.agreed, index, public):
                raise Refusal(
                    "The server publishes another scale of uploads than that of the method, for which this client's "
                    "noise would be too small."
                )
            occasion = occasion_of_sum(method.agreed, index, (exchange, number), self._broadcast, public)
            self._summing.is_new(occasion)  # refuses one that was given up
            self._summed = (exchange, number), occasion, public  # public comes with the first step
        _, occasion, public = self._summed

        def numbers() -> NDArray:
            return form.flat(self._lifted(kept, method, index, round, number, upload, public))

        answer, step = self._summing.step(message, occasion, numbers, form.fewest)
        # On disk before shares leave the client, so that no restart makes it reveal twice.
        revealed = place if step == REVEAL else kept.revealed
        self._keep(kept._replace(tag=whole(message.fields, "tag"), revealed=revealed))
        return answer

    def _count(self, message: Packet, kept: ClientRecord) -> Packet:
        """One step of the secure sum of a histogram."""
        exchange = whole(message.fields, "exchange")
        if self._counting is None or self._counting[0] != exchange:
            raise Refusal("The server asks for the counts of an evaluation that this client has not made.")
        _, done, counts = self._counting
        occasion = Occasion(kept.terms.run, kept.terms.run, exchange, 0)
        if self._summing.is_new(occasion) and done <= kept.counted:
            raise Refusal(
                "This client has already been counted in the histogram of this evaluation: the difference of two could "
                "be its metric."
            )
        smallest = max(private_metrics.LEAST, self._allowed.cohort)
        answer, step = self._summing.step(message, occasion, lambda: counts, smallest)
        counted = done if step == REVEAL else kept.counted
        self._keep(kept._replace(tag=whole(message.fields, "tag"), counted=counted))
        return answer

    def _uploaded(self, kept: ClientRecord, index: int, exchange: int, kind: str) -> Upload:
        """The upload of an exchange, while nothing has been said of whether it counted."""
        if self._upload is None or (kept.pending, *self._upload[:2]) != (exchange, exchange, index):
            raise Refusal(
                f"The server asks for a {kind} of an exchange that this client does not take part in."
            )
        return self._upload[2]

    def _lifted(
        self,
        kept: ClientRecord,
        method: ClientMethod,
        index: int,
        round: int,
        number: int,
        upload: Upload,
        arrays: tuple[NDArray, ...],
    ) -> PyTree:
        """What the client adds to the sum of a pass, of which the server has published ``arrays``."""
        public = unpacked(arrays, method.agreed.wires[index].published, "what the server publishes")
        key = jax.random.fold_in(self._lift_key(kept, method, index, round), number)
        part, aggregator = method.parts[index], method.agreed.algorithm.phases[index].aggregator
        lifted = part.lift(upload, public, jnp.int32(round), key)
        # The server publishes the clip, and may lie.
        bound = aggregator.sensitivity if isinstance(aggregator, Sum) else None
        if bound is not None and all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(lifted)):
            _check_norm(lifted, bound)
        if not math.isinf(self._allowed.clip):
            # Masks may hide it; the method was then compared with the file before the run.
            _check_norm(part.update(upload, public, key), self._allowed.clip)
        return lifted

    def _settle(self, message: Packet) -> Packet:
        kept, _ = self._opened(message)
        self._keep(kept._replace(tag=whole(message.fields, "tag")))
        return Packet("settled", {})

    # Evaluation.

    def _evaluate(self, message: Packet) -> Packet:
        kept, method = self._opened(message)
        tag = whole(message.fields, "tag")
        if not (self._allowed.metrics or self._allowed.histogram or self._show is not None):
            self._keep(kept._replace(tag=tag))
            return Packet("withheld", {})
        if self._measuring is None:
            self._measuring = Measuring(method.agreed, self._data, self._adapt_key(message, kept))
        server = self._measuring.server_state(message.arrays)
        served = self._measuring.served(server, kept.state, bool(message.fields["own"]))
        self._keep(kept._replace(tag=tag))
        done, split = whole(message.fields, "round"), str(message.fields["split"])
        if not 0 <= done <= kept.terms.rounds:
            raise ValueError("not a round of the run")
        if self._show is not None:
            self._show(
                Evaluated(
                    agreed=method.agreed,
                    data=self._data,
                    server=server,
                    client=kept.state,
                    own=kept.trained,
                    served=served,
                    round=done,
                    repeats=kept.repeats,
                )
            )
        if self._allowed.metrics:
            return served_message(served)
        values = served.clients[split].get(COUNTED)
        if not self._allowed.histogram or values is None:
            return Packet("withheld", {})
        self._counting = tag, done, histogram(float(values[0]))
        return Packet("withheld", {"histogram": True})

    # Keys.

    def _roots(self, kept: ClientRecord) -> Keys | None:
        """The roots of the test mode; None: there is no seed."""
        if kept.terms.seed is None:
            return None
        assert self._method is not None
        return rounds.roots(self._method.agreed.algorithm, keys_of(kept.terms.seed))

    def _fresh_key(self) -> Key:
        """A key from the operating system."""
        words = np.frombuffer(self._random(8), np.uint32)
        return wrapped_key(jnp.asarray(words))

    def _work_key(self, message: Packet, kept: ClientRecord, index: int, round: int) -> Key:
        assert self._method is not None
        algorithm, roots = self._method.agreed.algorithm, self._roots(kept)
        if roots is not None:
            phase = rounds.phase_stream(algorithm, index)
            return rounds.work_key(roots, round, phase, jnp.int32(kept.client))
        if algorithm.privacy is not None:
            return self._fresh_key()  # a server that knew the key could subtract the noise
        return _wrapped(message)

    def _lift_key(self, kept: ClientRecord, method: ClientMethod, index: int, round: int) -> Key:
        if (roots := self._roots(kept)) is None:
            return self._fresh_key()
        phase = rounds.phase_stream(method.agreed.algorithm, index)
        return rounds.lift_key(roots, round, phase, jnp.int32(kept.client))

    def _adapt_key(self, message: Packet, kept: ClientRecord) -> Key:
        """The key of what finetuning draws before an evaluation."""
        assert self._method is not None
        if (roots := self._roots(kept)) is not None:
            return adapt_key(roots, kept.client)
        if self._method.agreed.algorithm.privacy is not None:
            return self._fresh_key()
        return _wrapped(message)

    # What it checks, and what it keeps.

    def _opened(self, message: Packet) -> tuple[ClientRecord, ClientMethod]:
        """The client's state and method, if the message is of its run and new; what is pending is settled."""
        kept = self._loaded()
        if kept is None or message.fields["run"] != kept.terms.run:
            raise Refusal("The message is of a run in which this client does not take part.")
        if self._method is None:
            self._method = self._methods(kept.terms)
        if message.fields["schema"] != self._method.agreed.schema:
            raise Refusal(
                "The message has another schema than this client: the two sides differ in the method, the model, the "
                "number of clients or the version; restart both with the same files."
            )
        tag = whole(message.fields, "tag")
        if tag <= kept.tag:
            raise Refusal(
                f"The message has tag {tag}, and this client has answered tag {kept.tag}: it is late or replayed, and "
                "no work is done twice.",
                "replayed",
            )
        # Passes and sums go on with the pending work; any other message says whether it has counted.
        goes_on = message.kind in ("pass", "sum") and message.fields["exchange"] == kept.pending
        if kept.pending is not None and not goes_on:
            counted = whole(message.fields, "counted") == kept.pending
            state = kept.next if counted else kept.state
            kept = kept._replace(
                pending=None, state=state, next=state, trained=kept.trained or (counted and kept.closes)
            )
        return kept, self._method

    def _checked(self, message: Packet, kept: ClientRecord) -> tuple[int, int]:
        """The phase and the round of a message, if the client works in it."""
        index, round, cohort = (whole(message.fields, name) for name in ("phase", "round", "cohort"))
        assert self._method is not None
        if not 0 <= index < len(self._method.parts):
            raise Refusal(
                f"The server asks for exchange {index + 1} of a round, and the method has {len(self._method.parts)}."
            )
        if not 0 <= round < kept.terms.rounds:
            raise Refusal(
                f"The server asks for round {round + 1}, and the run has {kept.terms.rounds}: more would spend more "
                "privacy than was agreed on."
            )
        if cohort < self._allowed.cohort:
            raise Refusal(
                f"The cohort has {cohort} clients, and this client's file asks for at least {self._allowed.cohort}: "
                "draw larger cohorts."
            )
        return index, round

    def _received(self, message: Packet, wire: Wire) -> tuple[PyTree, tuple[NDArray, ...]]:
        """The broadcast, and the arrays after it."""
        count = len(jax.tree.leaves(wire.message))
        return unpacked(message.arrays[:count], wire.message, "the broadcast"), message.arrays[count:]

    def _window(self, message: Packet, round: int) -> tuple[Any, ...]:
        """The client's rows, padded to the capacity of the run, and how much of its work it does."""
        assert self._kept is not None
        if self._rows is None:
            capacity, train = self._kept.terms.capacity, self._data.train
            self._rows = jnp.asarray(padded(train.x, capacity)), jnp.asarray(padded(train.y, capacity))
        progress = message.fields["progress"]
        if type(progress) not in (int, float) or not 0 <= progress <= 1:
            raise ValueError("progress is not a share of the work")
        return (*self._rows, jnp.int32(self._data.train.rows), jnp.float32(progress), jnp.int32(round))

    def _loaded(self) -> ClientRecord | None:
        """What the client keeps, from its store after a restart."""
        if self._kept is None and (data := self._store.read()) is not None:
            try:
                message = decode(data)
                if message.kind == "moments":  # there are no terms yet
                    self._adding.restore(message)
                    return None
                terms = Terms.from_json(message.fields["terms"])
                self._method = method = self._methods(terms)
                self._data = scaled(self._raw, terms.scale)
                kept = record_from(message, terms, method.agreed.state)
            except (PacketError, KeyError, TypeError, ValueError, OverflowError) as error:
                raise Refusal(
                    f"The client's state is damaged ({error}): restore it from a backup, or move it away and begin "
                    "another run.",
                    "disk",
                ) from None
            # The file may have become stricter since the client agreed.
            check_terms(self._allowed, terms)
            self._check_allowed(method.agreed)
            self._kept = kept
        return self._kept

    def _keep(self, kept: ClientRecord) -> None:
        """Writes what the client keeps before it answers.

        Raises:
          OSError: it cannot be written; the client then keeps what it had.
        """
        self._store.write(encode(record_message(kept)))
        self._kept = kept


def _check_norm(numbers: PyTree, largest: float) -> None:
    """What is sent is no larger than the method and the client's file say."""
    if math.isinf(largest):
        return
    norm = float(tree.norm(numbers))
    if not norm <= largest * (1 + 1e-5):
        raise Refusal(
            f"The upload has norm {norm:.4g} with the clip that the server has published, and this client sends at "
            f"most {largest:g}: deploy the method with a smaller clip."
        )


def _wrapped(message: Packet) -> Key:
    """The key that the server has sent."""
    words = message.fields["key"]
    if len(words) != 2 or not all(type(word) is int and 0 <= word < 2**32 for word in words):
        raise ValueError("no key")
    return wrapped_key(jnp.asarray(np.array(words, np.uint32)))


def padded(part: NDArray, rows: int) -> NDArray:
    """Rows and zeros after them, so that there are at least so many."""
    missing = rows - len(part)
    if missing <= 0:
        return np.asarray(part)
    return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])
