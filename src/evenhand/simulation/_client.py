"""What a client does in one phase of one round, as the engine calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand.local import step_per_row
from evenhand.simulation import _round
from evenhand.simulation._groups import Members
from evenhand.simulation._program import Program
from evenhand.simulation._round import Rows
from evenhand.types import Array, ClientData, Effort, Key, PyTree, Report, Upload

__all__ = ["Client", "effort"]


class Client(NamedTuple):
    """A client's part, as functions of who it is.

    Attributes:
      report: ``(member, state) -> Report``.
      upload: ``(member, state) -> (Upload, state)``; a member without a report makes its own.
    """

    report: Callable[[Members, PyTree], Report]
    upload: Callable[[Members, PyTree], tuple[Upload, PyTree]]

    @staticmethod
    def of(program: Program, index: int, server: PyTree, rows: Rows, root: Key, number: Array) -> Client:
        """The client's part in phase ``index`` of round ``number``."""
        phase = program.algorithm.phases[index]
        streams = _round.from_last(program.algorithm, index)

        def report(member: Members, state: PyTree) -> Report:
            message = phase.broadcast(server, member.ids)
            told = phase.report(message, state, _data(program, rows, member))
            key = _round.work_key(root, number, streams, member.ids)
            return _round.lie_in_report(program.attack, rows, told, member.ids, key)

        @jax.jit  # traced once, for the shapes and for the loop
        def upload(
            fixed: tuple[PyTree, Rows, Key, Array], member: Members, state: PyTree
        ) -> tuple[Upload, PyTree]:
            server, rows, root, number = fixed
            own = _data(program, rows, member)
            message = phase.broadcast(server, member.ids)
            key = _round.work_key(root, number, streams, member.ids)
            told = member.report
            if told is None:
                told = phase.report(message, state, own)
                told = _round.lie_in_report(program.attack, rows, told, member.ids, key)
            delta, state = phase.work(message, state, own, key)
            delta = _round.lie(program.attack, rows, delta, member.ids, key)
            return Upload(delta, told.weight, told.loss), state

        return Client(report, partial(upload, (server, rows, root, number)))


def effort(program: Program, index: int, rows: Rows, ids: Array, progress: Array) -> Effort:
    """What phase ``index`` costs each client of a cohort, fields ``(m,)``."""
    of = program.algorithm.phases[index].effort or step_per_row
    live = jnp.ones(ids.shape, bool)
    return jax.vmap(lambda member: of(_data(program, rows, member)))(Members(ids, progress, live, None))


def _data(program: Program, rows: Rows, member: Members) -> ClientData:
    # Padding has no rows, so that its local work is done at once.
    size = jnp.where(member.live, rows.sizes[member.ids], 0)
    return ClientData(rows.x, rows.y, rows.starts[member.ids], size, member.progress, program.capacity)
