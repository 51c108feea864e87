"""What a client does in one phase of one round, as the engine calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import rounds
from evenhand.local import step_per_row
from evenhand.simulation._groups import Members
from evenhand.simulation.program import Program, Rows
from evenhand.streams import Keys
from evenhand.types import Array, ClientData, Cohort, Effort, Key, PyTree, Report, Sum, Upload

__all__ = ["Client", "Trained", "effort"]


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


class Client(NamedTuple):
    """A client's part, as functions of who it is.

    Attributes:
      report: ``(member, state) -> (Report, accepted)``.
      train: ``(member, state) -> Trained``; a member without a report makes one.
      noise: ``member -> key`` of what it adds to what it sends.
      lift: ``(client, upload, public, key) -> lifted``, what it adds to a sum in a pass, with its key for that pass.
    """

    report: Callable[[Members, PyTree], tuple[Report, Array]]
    train: Callable[[Members, PyTree], Trained]
    noise: Callable[[Members], Key]
    lift: Callable[[Array, Upload, PyTree, Key], PyTree]

    @staticmethod
    def of(program: Program, index: int, server: PyTree, rows: Rows, keys: Keys, number: Array) -> Client:
        """The client's part in phase ``index`` of round ``number``."""
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

        def report(member: Members, state: PyTree) -> tuple[Report, Array]:
            key = rounds.work_key(keys, number, streams, member.ids)
            return reported(member, phase.broadcast(server, member.ids), state, rows, number, key)

        @jax.jit  # traced once, for the shapes and for the loop
        def train(fixed: tuple[PyTree, Rows, Keys, Array], member: Members, state: PyTree) -> Trained:
            server, rows, keys, number = fixed
            message = phase.broadcast(server, member.ids)
            key = rounds.work_key(keys, number, streams, member.ids)
            report, accepted = member.report, member.present
            if report is None:
                report, accepted = reported(member, message, state, rows, number, key)
            delta, state = phase.work(message, state, data(rows, member, number, key), key)
            delta = rounds.false_delta(attack, delta, rows.malicious[member.ids], number, key)
            return Trained(Upload(delta, *report), accepted & rounds.accepts_delta(delta), state)

        def noise(member: Members) -> Key:
            return rounds.lift_key(keys, number, streams, member.ids)

        def lift(client: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
            assert isinstance(phase.aggregator, Sum)
            return rounds.lifted(
                attack, phase.aggregator, upload, public, rows.malicious[client], number, key
            )

        return Client(report, partial(train, (server, rows, keys, number)), noise, lift)


def effort(of: Callable[[ClientData], Effort] | None, capacity: int, rows: Rows, cohort: Cohort) -> Effort:
    """What a phase whose effort is ``of`` costs each client of a cohort, fields ``(m,)``; nothing in an empty slot."""
    of = step_per_row if of is None else of
    return jax.vmap(lambda member: of(_data(capacity, rows, member)))(Members.of(cohort))


def _data(capacity: int, rows: Rows, member: Members) -> ClientData:
    # An empty slot has no rows, so that its local work is done at once.
    size = jnp.where(member.present, rows.sizes[member.ids], 0)
    return ClientData(rows.x, rows.y, rows.starts[member.ids], size, member.progress, capacity)
