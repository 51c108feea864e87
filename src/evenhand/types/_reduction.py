"""Reductions of many losses to one number, and of many uploads to one direction.

A :class:`Risk` reduces losses, a :class:`Sum` or a :class:`Stack` reduces uploads.  An aggregator also says how many
uploads its guarantee needs (:class:`Need`) and what a round gives away under noise (:class:`Release`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeAlias

from evenhand.text import short
from evenhand.types._client import Array, Cohort, Key, PyTree, Report, State, Upload


class OfLosses(Protocol):
    """A function of losses ``(n,)`` and of nonnegative weights ``(n,)`` with any sum; None: equal weights."""

    def __call__(self, losses: Array, weights: Array | None = None) -> Array:
        """The function's value."""
        ...


class Risk(NamedTuple):
    """Reduces losses of examples, groups or clients to one number, and says how much each of them counts in it.

    Law: the value lies between the smallest and the largest loss and does not fall when a loss rises, unless the risk
    says otherwise; its gradient with respect to the losses is a nonnegative multiple of the weights; a loss of weight 0
    has no effect, even if NaN; the order of the losses does not matter.  Without any loss, value and weights are 0.

    Attributes:
      value: a scalar of the losses' dtype; differentiable.
      weights: ``(n,)``, nonnegative, that sum to 1.
    """

    value: OfLosses
    weights: OfLosses
    __repr__ = short


class Need(NamedTuple):
    """How many uploads a robust aggregator needs; ``m`` counts those that are accepted in a round.

    Attributes:
      name: the aggregator with the number that it is built for, such as ``"krum(5)"``.
      holds: ``m -> bool``, whether its guarantee holds with so many.
      works: ``m -> bool``, whether anything is left of so many once those that it distrusts are gone; it does not hold
        where this is False.
    """

    name: str
    holds: Callable[[int], bool]
    works: Callable[[int], bool]
    __repr__ = short

    @staticmethod
    def over(name: str, malicious: int, holds: Callable[[int], bool]) -> Need:
        """That of an aggregator that leaves ``malicious`` of the uploads out: one more must be there."""
        return Need(name, holds, lambda m: m > malicious)

    def least(self, m: int, most: int = 10**5) -> int | None:
        """The smallest number from ``m`` to ``most`` with which it holds; None: there is none."""
        return next((count for count in range(m, most + 1) if self.holds(count)), None)


class Release(NamedTuple):
    """Something computed from private data and given away under noise, so many times.

    Attributes:
      noise_multiplier: the noise's standard deviation over the sensitivity: how far one unit can move what is released.
      rate: the chance with which a unit takes part; 1: all do.
      sampling: whether units take part independently of each other (``"poisson"``), or a fixed number of them does,
        drawn without replacement (``"fixed"``).
      times: how often, each time with a new sample and new noise.
      mechanism: ``"gaussian"``, or ``"concentrated"`` where all that is known is that Renyi divergences of order
        ``alpha`` are at most ``alpha / (2 noise_multiplier^2)``, as for discrete noise.
    """

    noise_multiplier: float
    rate: float = 1.0
    sampling: Literal["poisson", "fixed"] = "poisson"
    times: int = 1
    mechanism: Literal["gaussian", "concentrated"] = "gaussian"


class Summation(NamedTuple):
    """How a sum is found that is not found by adding lifted arrays as they arrive.

    Attributes:
      bits: of each lifted number on the wire.
      add: ``(lifted, present, key) -> total`` of a whole cohort, whose lifted arrays have a leading axis ``m``; what
        empty slots hold does not matter; None: they are added as they arrive.
      numbers: as :attr:`Sum.lift`, but the real numbers before they become whole; None: it has none.
      anything: ``(numbers, key) -> lifted``, how a client that obeys no bound but the modulus would send such numbers.
    """

    bits: int
    add: Callable[[PyTree, Array, Key], PyTree] | None = None
    numbers: Callable[[Upload, PyTree, Key], PyTree] | None = None
    anything: Callable[[PyTree, Key], PyTree] | None = None
    __repr__ = short


class Sum(NamedTuple):
    """An aggregator that needs sums only: it streams, shards, works under secure summation and takes noise.

    Law: the direction does not depend on the order of the uploads, nor on how they are grouped into partial sums.

    Attributes:
      init: ``(like, num_clients) -> state``, where ``like`` is a tree with the structure of one upload's delta.
      lift: ``(upload, public, key) -> tree of arrays to be summed``; runs on the client, which keeps the key secret.
      lower: ``(total, state, key) -> (direction, state)``; runs on the server.  A total of no uploads gives zeros.
      publish: ``state -> public``, what clients learn of the state before each pass.
      weigh: ``(reports, cohort, state) -> (weights, state)`` turns the cohort's reports (fields of shape ``(m,)``)
        into the weights that the uploads get; None: the weights stay as reported and the server need not see them.
      needs_loss: whether clients must report their loss.
      passes: the number of exchanges in one aggregation; the client keeps its delta between them.
      sensitivity: a bound on ``||lift(upload)||_2`` over admissible uploads, None if there is none.
      summation: how the lifted arrays are added, where they are whole numbers; None: as real numbers, as they arrive.
      release: what one round gives away under noise; None: the sum itself.
      needs: how many uploads its guarantees need; each of them must hold.
    """

    init: Callable[[PyTree, int], State]
    lift: Callable[[Upload, PyTree, Key], PyTree]
    lower: Callable[[PyTree, State, Key], tuple[PyTree, State]]
    publish: Callable[[State], PyTree] = lambda state: ()
    weigh: Callable[[Report, Cohort, State], tuple[Array, State]] | None = None
    needs_loss: bool = False
    passes: int = 1
    sensitivity: float | None = None
    summation: Summation | None = None
    release: Release | None = None
    needs: tuple[Need, ...] = ()
    __repr__ = short

    @property
    def streams(self) -> bool:
        """Whether lifted arrays can be added as they arrive, so that nobody needs to keep them."""
        return self.summation is None or self.summation.add is None


class Stack(NamedTuple):
    """An aggregator that must see every upload: Krum, medians, filters.

    Law: the direction does not depend on the order of the uploads, except for ties.

    Attributes:
      init: ``(like, num_clients) -> state``, as for :class:`Sum`.
      apply: ``(uploads, present, state, key) -> (direction, state)``; each leaf of ``uploads`` has a leading axis
        ``m``, and those of empty slots, where ``present``, bool ``(m,)``, is False, are zeros.
      needs_loss: whether clients must report their loss.
      needs: how many uploads its guarantees need; each of them must hold.
    """

    init: Callable[[PyTree, int], State]
    apply: Callable[[Upload, Array, State, Key], tuple[PyTree, State]]
    needs_loss: bool = False
    needs: tuple[Need, ...] = ()
    __repr__ = short


Aggregator: TypeAlias = Sum | Stack
