"""A method as a client runs it: compiled once, for all clients of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evenhand import rounds
from evenhand.data import Form
from evenhand.exchange import ClientHalf, Worked
from evenhand.network.terms import Agreed, Terms, agree
from evenhand.types import Algorithm, Array, ClientData, Key, PyTree, Report, Upload

__all__ = ["ClientMethod", "ClientParts", "methods_of"]


class ClientParts(NamedTuple):
    """A client's part in one phase, compiled.

    Attributes:
      report: ``(message, state, data..., key) -> Report``.
      work: likewise, ``-> (Worked, accepted)``.
      lift: ``(upload, public, round, key) -> lifted``.
    """

    report: Callable[..., Report]
    work: Callable[..., tuple[Worked, Array]]
    lift: Callable[..., PyTree]


class ClientMethod(NamedTuple):
    """A method as a client runs it: what both sides agree on, and its compiled parts."""

    agreed: Agreed
    parts: tuple[ClientParts, ...]
    newcomer: Callable[[PyTree], PyTree]


def methods_of(build: Callable[[Form], Algorithm]) -> Callable[[Terms], ClientMethod]:
    """``terms -> ClientMethod``; several clients in one process share the method of equal terms.

    ``build`` makes the algorithm for data of a form.
    """
    made = dict[tuple[Any, ...], ClientMethod]()

    def method(terms: Terms) -> ClientMethod:
        key = tuple(terms)
        if key not in made:
            made.clear()
            made[key] = _method(agree(build(terms.form), terms))
        return made[key]

    return method


def _method(agreed: Agreed) -> ClientMethod:
    algorithm, capacity = agreed.algorithm, agreed.terms.capacity
    largest = rounds.largest_weight(algorithm, capacity)

    def part(index: int) -> ClientParts:
        half = ClientHalf(algorithm, index)
        aggregator = half.phase.aggregator

        def data(x: Array, y: Array, size: Array, progress: Array, round: Array) -> ClientData:
            return ClientData(
                x=x, y=y, start=jnp.int32(0), size=size, progress=progress, capacity=capacity, round=round
            )

        def report(message: PyTree, state: PyTree, rows: tuple[Array, ...], key: Key) -> Report:
            return half.report(message, state, data(*rows), False, key)

        def work(message: PyTree, state: PyTree, rows: tuple[Array, ...], key: Key) -> tuple[Worked, Array]:
            done = half.work(message, state, data(*rows), False, key)
            sane = rounds.accepts_report(aggregator, done.report, largest)
            return done, sane & rounds.accepts_delta(done.delta)

        def lift(upload: Upload, public: PyTree, round: Array, key: Key) -> PyTree:
            return half.lift(upload, public, False, round, key)

        return ClientParts(jax.jit(report), jax.jit(work), jax.jit(lift))

    newcomer = jax.jit(partial(rounds.newcomer, algorithm, examples=capacity))
    return ClientMethod(agreed, tuple(part(index) for index in range(len(algorithm.phases))), newcomer)
