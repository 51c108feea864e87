"""What a method promises about the privacy of its clients, or of their examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from evenhand.text import short

__all__ = ["Privacy", "Release"]


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


class Privacy(NamedTuple):
    """A promise of differential privacy, which travels with the method that makes it.

    Attributes:
      unit: what is protected: all of one client's examples together, or each example by itself.
      releases: ``rounds -> releases``, all that so many rounds give away; a sequence of :class:`Release`.
      neighbours: the relation between data sets that must not be told apart, such as "one client added or removed".
      released: what is given away, such as "the global model after each round".
      public: what is taken to be known already, such as "the number of clients".
      unprotected: what the promise does not cover, such as "personal models".
      delta: the probability that its epsilon is told for; None: the usual one for the number of units.
    """

    unit: Literal["client", "example"]
    releases: Callable[[int], tuple[Release, ...]]
    neighbours: str
    released: tuple[str, ...]
    public: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    delta: float | None = None
    __repr__ = short
