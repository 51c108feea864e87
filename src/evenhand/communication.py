"""Communication: how many numbers and bits cross the wire, and methods whose clients shorten what they upload.

:func:`traffic` counts what :func:`evenhand.rounds.wires` finds, for one client in one round.  :func:`compressed` is a
method with uploads as its aggregators' :class:`evenhand.types.Compression` shortens them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.rounds import Wire, wires
from evenhand.streams import Purpose, stream
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Key, Params, Phase, PyTree, Sum

__all__ = ["Compressing", "Exchanged", "Load", "added", "compressed", "traffic"]

# --- how much crosses the wire ----------------------------------------------------------------------------------------


class Load(NamedTuple):
    """What crosses the wire in one direction, between the server and one client.

    Attributes:
      numbers: of up to 32 bits each; wider ones, such as those of a secure sum, count as several.
      bits: all of them together.
    """

    numbers: int
    bits: int

    @property
    def bytes(self) -> int:
        """Whole bytes that hold the bits."""
        return -(-self.bits // 8)


class Exchanged(NamedTuple):
    """What crosses the wire in one phase of a round, for a client that takes part in it.

    Attributes:
      down: what it gets.
      up: what it sends.
      secure_sums: sums of whole numbers under masks, so that the server sees the sum alone; each pass of an aggregator
        is one.  They are those of a deployment: a simulation leaves their masks out by default.
    """

    down: Load
    up: Load
    secure_sums: int


def traffic(algorithm: Algorithm, wires: tuple[Wire, ...]) -> tuple[Exchanged, ...]:
    """What crosses the wire in each phase of a round; keys and shares of secure sums are not counted."""
    return tuple(
        _exchanged(phase.aggregator, wire) for phase, wire in zip(algorithm.phases, wires, strict=True)
    )


def _exchanged(aggregator: Aggregator, wire: Wire) -> Exchanged:
    message, delta = _load(wire.message), _load(wire.delta)
    weight, loss = _load(wire.report.weight), _load(wire.report.loss if aggregator.needs_loss else ())
    if aggregator.compression is not None:
        bits = aggregator.compression.bits(wire.delta)
        delta = Load(-(-bits // 32), bits)
        if isinstance(aggregator, Sum) and aggregator.weigh is not None:
            message = added(message, weight)
    if not isinstance(aggregator, Sum) or aggregator.compression is not None:
        return Exchanged(message, added(delta, weight, loss), 0)
    passes, summation, sums = aggregator.passes, aggregator.summation, 0
    published, lifted = added(*[_load(wire.published)] * passes), _load(wire.lifted)
    if summation is not None:
        bits = passes * lifted.numbers * summation.bits
        lifted = Load(bits // 32, bits)
        sums = passes if summation.is_secure else 0
    else:
        lifted = added(*[lifted] * passes)
    if aggregator.weigh is None:
        return Exchanged(added(message, published), lifted, sums)
    return Exchanged(added(message, published, weight), added(lifted, weight, loss), sums)


def added(*loads: Load) -> Load:
    """Several loads as one."""
    return Load(sum(load.numbers for load in loads), sum(load.bits for load in loads))


def _load(message: PyTree) -> Load:
    leaves = jax.tree.leaves(message)
    return Load(
        sum(leaf.size for leaf in leaves), sum(8 * leaf.size * leaf.dtype.itemsize for leaf in leaves)
    )


# --- short uploads: what clients keep of the rest ---------------------------------------------------------------------


class Compressing(NamedTuple):
    """What a client keeps whose uploads are shortened.

    Attributes:
      own: the state that the method gives it.
      unsent: for each phase, what the compression keeps.
    """

    own: PyTree
    unsent: tuple[PyTree, ...]


def compressed(
    algorithm: Algorithm, params: Params, rows: tuple[Array, Array], capacity: int, clients: int
) -> Algorithm:
    """The method with uploads as its aggregators' :class:`evenhand.types.Compression` shortens them.

    What a compression keeps is part of the client's state, so that it is as it was where an upload is rejected or the
    client is absent, and is in checkpoints.  A method whose aggregators compress nothing is returned as it is.

    Args:
      algorithm: the method.
      params: as for :func:`wires`, like the arguments that follow.
      rows: likewise.
      capacity: likewise.
      clients: likewise.

    Raises:
      EvenhandError: a compression keeps something, and the sampling can draw a client twice in one round.
    """
    parts = [phase.aggregator.compression for phase in algorithm.phases]
    if algorithm.pooled is not None or all(part is None or part.shorten is None for part in parts):
        return algorithm
    like = [wire.delta for wire in wires(algorithm, params, rows, capacity, clients)]

    def begin() -> tuple[PyTree, ...]:
        zeros = [tree.zeros(delta) for delta in like]
        return tuple(() if part is None else part.begin(x) for part, x in zip(parts, zeros, strict=True))

    if algorithm.sampling.repeats and jax.tree.leaves(jax.eval_shape(begin)):
        raise EvenhandError(
            "This compression keeps unsent numbers at each client, but the method's sampling can draw a "
            "client twice in one round: sample without replacement, e.g. sampling=eh.sampling.uniform(), or give "
            "quantized(bits), which keeps nothing."
        )
    personal = algorithm.personal_params
    return algorithm._replace(
        phases=tuple(_shortening(phase, index) for index, phase in enumerate(algorithm.phases)),
        init_client=lambda params: Compressing(algorithm.init_client(params), begin()),
        personal_params=None if personal is None else lambda server, state: personal(server, state.own),
    )


def _shortening(phase: Phase, index: int) -> Phase:
    """A phase on the states of clients that may shorten what they upload."""
    compression = phase.aggregator.compression

    def work(message: PyTree, state: Compressing, data: ClientData, key: Key) -> tuple[PyTree, Compressing]:
        delta, own = phase.work(message, state.own, data, key)
        unsent = state.unsent
        if compression is not None and compression.shorten is not None:
            delta, kept = compression.shorten(
                tree.real(delta), unsent[index], stream(key, Purpose.COMPRESSION)
            )
            unsent = (*unsent[:index], kept, *unsent[index + 1 :])
        return delta, Compressing(own, unsent)

    aggregator = phase.aggregator
    if compression is not None:
        aggregator = aggregator._replace(compression=compression._replace(shorten=None))
    return phase._replace(
        report=lambda message, state, data: phase.report(message, state.own, data),
        work=work,
        aggregator=aggregator,
    )
