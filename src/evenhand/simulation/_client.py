"""What a client does in one phase of one round, as the engine calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import rounds
from evenhand.local import step_per_row
from evenhand.simulation._groups import Members
from evenhand.simulation.program import Program, Rows
from evenhand.streams import Keys
from evenhand.types import Array, ClientData, Cohort, Effort, Key, PyTree, Report, Sum, Upload

__all__ = ["Client", "Shared", "Trained", "effort"]


class Trained(NamedTuple):
    """What a client's local work leaves behind.

    Attributes:
      upload: what it sends.
      accepted: whether there is a client, and an honest one can have sent this.
      state: what it keeps.
    """

    upload: Upload
    accepted: Array
    state: PyTree


class Shared(NamedTuple):
    """What all clients of an exchange share.

    Attributes:
      server: the method's state, from which each broadcast is made.
      rows: of all clients.
      keys: the roots.
      number: of the round.
    """

    server: PyTree
    rows: Rows
    keys: Keys
    number: Array


class Client(NamedTuple):
    """A client's part, as functions of who it is.

    Attributes:
      report: ``(shared, member, state) -> (Report, accepted)``.
      train: ``(shared, member, state) -> Trained``; a member without a report makes one.
      noise: ``(shared, member) -> key`` of what it adds to what it sends.
      lift: ``(shared, client, upload, public, key) -> lifted``, what it adds to a sum in a pass, with its key for that
        pass.
    """

    report: Callable[[Shared, Members, PyTree], tuple[Report, Array]]
    train: Callable[[Shared, Members, PyTree], Trained]
    noise: Callable[[Shared, Members], Key]
    lift: Callable[[Shared, Array, Upload, PyTree, Key], PyTree]

    @staticmethod
    def of(program: Program, index: int) -> Client:
        """The client's part in phase ``index``."""
        algorithm, attack = program.algorithm, program.attack
        phase, streams = algorithm.phases[index], rounds.phase_stream(algorithm, index)
        largest = rounds.largest_weight(algorithm, program.capacity)

        def data(rows: Rows, member: Members, number: Array, key: Key) -> ClientData:
            clean = _data(program.capacity, rows, member)
            return rounds.fresh_data(attack, clean, rows.malicious, member.ids, number, key)

        def reported(
            member: Members, message: PyTree, state: PyTree, rows: Rows, number: Array, key: Key
        ) -> tuple[Report, Array]:
            report = phase.report(message, state, data(rows, member, number, key))
            report = rounds.false_report(attack, report, rows.malicious[member.ids], number, key)
            return report, member.present & rounds.accepts_report(phase.aggregator, report, largest)

        def report(shared: Shared, member: Members, state: PyTree) -> tuple[Report, Array]:
            server, rows, keys, number = shared
            key = rounds.work_key(keys, number, streams, member.ids)
            return reported(member, phase.broadcast(server, member.ids), state, rows, number, key)

        @jax.jit  # traced once, for the shapes and for the loop
        def train(shared: Shared, member: Members, state: PyTree) -> Trained:
            server, rows, keys, number = shared
            message = phase.broadcast(server, member.ids)
            key = rounds.work_key(keys, number, streams, member.ids)
            report, accepted = member.report, member.present
            if report is None:
                report, accepted = reported(member, message, state, rows, number, key)
            delta, state = phase.work(message, state, data(rows, member, number, key), key)
            delta = rounds.false_delta(attack, delta, rows.malicious[member.ids], number, key)
            return Trained(Upload(delta, *report), accepted & rounds.accepts_delta(delta), state)

        def noise(shared: Shared, member: Members) -> Key:
            return rounds.lift_key(shared.keys, shared.number, streams, member.ids)

        def lift(shared: Shared, client: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
            assert isinstance(phase.aggregator, Sum)
            malicious, number = shared.rows.malicious[client], shared.number
            return rounds.lifted(attack, phase.aggregator, upload, public, malicious, number, key)

        return Client(report, train, noise, lift)


def effort(of: Callable[[ClientData], Effort] | None, capacity: int, rows: Rows, cohort: Cohort) -> Effort:
    """What a phase whose effort is ``of`` costs each client of a cohort, fields ``(m,)``; nothing in an empty slot."""
    of = step_per_row if of is None else of
    return jax.vmap(lambda member: of(_data(capacity, rows, member)))(Members.of(cohort))


def _data(capacity: int, rows: Rows, member: Members) -> ClientData:
    # An empty slot has no rows, so that its local work is done at once.
    size = jnp.where(member.present, rows.sizes[member.ids], 0)
    return ClientData(rows.x, rows.y, rows.starts[member.ids], size, member.progress, capacity)
