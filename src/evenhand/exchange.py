"""The two halves of one exchange: what a client does, and what the server does with what its cohort has sent.

The readable twin runs both in one process, one compiled function for each half.  A network runs the client's half on
the client's machine and the server's on the server's, with messages in between.  The functions are the same, and so are
the numbers.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import rounds, tree
from evenhand.rounds import Step
from evenhand.streams import Keys, Purpose, stream
from evenhand.types import (
    Aggregator,
    Algorithm,
    Array,
    Attack,
    ClientData,
    Cohort,
    Info,
    Key,
    Phase,
    PyTree,
    Report,
    Sum,
    Upload,
)

__all__ = ["ClientHalf", "ServerHalf", "Worked", "uploads_of"]


class Worked(NamedTuple):
    """The result of a client's part in one exchange.

    Attributes:
      report: what it has reported before its work.
      delta: its upload.
      state: what it keeps, if the server accepts the upload.
    """

    report: Report
    delta: PyTree
    state: PyTree


class ClientHalf(NamedTuple):
    """A client's half.

    Attributes:
      algorithm: the method.
      number: of the phase, from 0.
      attack: what malicious clients do; a network has none.
    """

    algorithm: Algorithm
    number: int
    attack: Attack | None = None

    @property
    def phase(self) -> Phase:
        """The phase of the method."""
        return self.algorithm.phases[self.number]

    def report(
        self, message: PyTree, state: PyTree, data: ClientData, malicious: Array | bool, key: Key
    ) -> Report:
        """What the client reports before its work; ``key`` is its own in this exchange."""
        report = self.phase.report(message, state, data)
        return rounds.false_report(self.attack, report, jnp.asarray(malicious), _round(data), key)

    def work(
        self, message: PyTree, state: PyTree, data: ClientData, malicious: Array | bool, key: Key
    ) -> Worked:
        """The client's work, with its report."""
        report = self.report(message, state, data, malicious, key)
        delta, state = self.phase.work(message, state, data, key)
        # Aggregators multiply uploads by weights, and give them back in the uploads' precision.
        params, is_malicious = (
            rounds.received_params(self.algorithm, self.number, message),
            jnp.asarray(malicious),
        )
        delta = rounds.false_delta(self.attack, tree.real(delta), is_malicious, _round(data), key, params)
        return Worked(report, delta, state)

    def lift(
        self, upload: Upload, public: PyTree, malicious: Array | bool, round: Array | int, key: Key
    ) -> PyTree:
        """What the client adds to the sum of one pass; ``key`` is its own for that pass."""
        aggregator = self.phase.aggregator
        assert isinstance(aggregator, Sum)
        return rounds.lifted(self.attack, aggregator, upload, public, jnp.asarray(malicious), round, key)


def _round(data: ClientData) -> Array:
    assert data.round is not None, "an exchange is part of a round"
    return data.round


class ServerHalf(NamedTuple):
    """The server's half.

    Attributes:
      algorithm: the method.
      number: of the phase, from 0.
      capacity: rows of the largest client.
    """

    algorithm: Algorithm
    number: int
    capacity: int

    @property
    def phase(self) -> Phase:
        """The phase of the method."""
        return self.algorithm.phases[self.number]

    @property
    def aggregator(self) -> Aggregator:
        """The aggregator of the phase."""
        return self.phase.aggregator

    @property
    def streams(self) -> int:
        """The number of the phase's streams."""
        return rounds.phase_stream(self.algorithm, self.number)

    @property
    def weighs(self) -> bool:
        """Whether the server weighs clients by what they report, and so must know that before they send anything."""
        return isinstance(self.aggregator, Sum) and self.aggregator.weigh is not None

    def sane(self, reports: Report) -> Array:
        """Which reports an honest client can have sent, bool ``(m,)``."""
        largest = rounds.largest_weight(self.algorithm, self.capacity)
        return jax.vmap(lambda report: rounds.accepts_report(self.aggregator, report, largest))(reports)

    def weighed(self, reports: Report, cohort: Cohort, memory: PyTree) -> tuple[Array, PyTree, Info]:
        """As :func:`evenhand.rounds.weighed`."""
        return rounds.weighed(self.aggregator, reports, cohort, memory)

    def finite(self, deltas: PyTree, m: int) -> Array:
        """Which uploads are finite, bool ``(m,)``."""
        # Where nothing is shared, deltas are empty trees, which do not tell how many there are.
        return jax.vmap(rounds.accepts_delta, axis_size=m)(deltas)

    def keys(self, keys: Keys, round: Array | int) -> tuple[Key, Key]:
        """The keys of the aggregator and of the server's step, from the secret root."""
        made = partial(stream, keys.secret)
        return made(Purpose.AGGREGATOR, round, self.streams), made(Purpose.SERVER, round, self.streams)

    def step(
        self,
        server: PyTree,
        memories: tuple[PyTree, PyTree],
        direction: PyTree,
        accepted: Array,
        info: Info,
        key: Key,
    ) -> Step:
        """The server's step once uploads are one direction, with what weighing them has shown."""
        count = jnp.sum(accepted.astype(jnp.int32))
        step = rounds.server_step(self.phase, server, memories, direction, count, key)
        return step._replace(info={**info, **step.info})


def uploads_of(reports: Report, deltas: PyTree, weights: Array, present: Array) -> Upload:
    """The uploads of a cohort, ``(m, ...)``, in which empty slots are zeros."""
    return tree.among(present, Upload(deltas, weights, reports.loss))
