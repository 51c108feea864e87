"""A method as a client runs it: compiled once, for all clients of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evenhand import rounds, tree
from evenhand.aggregators.mean import reciprocal
from evenhand.data import Form
from evenhand.exchange import ClientHalf, Worked
from evenhand.network.terms import Agreed, Terms, agree
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Key, PyTree, Report, Sum, Upload

__all__ = ["ClientMethod", "ClientParts", "methods_of"]


class ClientParts(NamedTuple):
    """A client's part in one phase, compiled.

    Attributes:
      report: ``(message, state, data..., key) -> Report``.
      work: likewise, ``-> (Worked, accepted)``.
      lift: ``(upload, public, round, key) -> lifted``.
      update: ``(upload, public, key) -> tree``, the numbers in what is lifted that stand for the update.
    """

    report: Callable[..., Report]
    work: Callable[..., tuple[Worked, Array]]
    lift: Callable[..., PyTree]
    update: Callable[..., PyTree]


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

        def update(upload: Upload, public: PyTree, key: Key) -> PyTree:
            return _update_in(aggregator, upload, public, key)

        return ClientParts(jax.jit(report), jax.jit(work), jax.jit(lift), jax.jit(update))

    newcomer = jax.jit(partial(rounds.newcomer, algorithm, examples=capacity))
    return ClientMethod(agreed, tuple(part(index) for index in range(len(algorithm.phases))), newcomer)


def _update_in(aggregator: Aggregator, upload: Upload, public: PyTree, key: Key) -> PyTree:
    """The numbers in what a client lifts that stand for its update, clipped as the aggregator does, but not weighted.

    Of a pair of an update and one number, such as a weight, it is the update; of anything else it is all of it.  Where
    masks and noise hide the real numbers, there are none.
    """
    assert isinstance(aggregator, Sum)
    summation = aggregator.summation
    lift = aggregator.lift if summation is None else summation.numbers
    if lift is None:
        return ()
    lifted = lift(upload._replace(weight=jnp.ones_like(upload.weight)), public, key)
    match lifted:
        case (update, jax.Array(ndim=0) as beside) if tree.form(update) == tree.form(upload.delta):
            # Where it is a factor that depends on the upload, the server divides by it.
            return update if aggregator.radial is None else tree.scale(reciprocal(beside), update)
        case _:
            return lifted
