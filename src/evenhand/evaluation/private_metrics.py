r"""How evenly a model serves its clients, from a histogram that they count together under a secure sum.

:func:`evenhand.evaluation.summarize` needs one number per client.  A server that may see no client's number learns the
same statistics, each with an error bound, from how many clients are in each bin::

    edges = private_metrics.edges(bins=100)                          # public
    sent = private_metrics.cells(accuracy, rows > 0, edges)          # at each client, whole numbers
    counts = ...                                                     # their secure sum, all that the server sees
    private_metrics.statistics(counts, edges)["worst10"]             # 0.705 ± 0.005

:func:`summarize` does all of this in one process, masks included.

* **What the server learns**: the histogram, and how many values were clipped or not a number.  Bins are as fine as the
  bound needs, no finer: a server that knows how many examples a client has knows which values it can have, and sums in
  finer steps, such as an exact mean, would single out clients.
* **What it does not prevent**: few clients in a histogram are nearly a list, so fewer than ``least`` are refused.  Two
  histograms, with and without a client, show that client's bin.  Against both it takes noise, which is not added here:
  there is no differential privacy.
* **Who must be trusted**: clients count themselves.  One that adds something else than a 1 can move any count; only
  sums that no clients could have are refused.  Clients must check for themselves that enough of them take part.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand._platform import check_process
from evenhand.errors import EvenhandError, real_number, truth_value, whole_number
from evenhand.evaluation._statistics import Vector, evenness
from evenhand.secure import masked_words
from evenhand.text import counted

__all__ = ["BINS", "LEAST", "Estimate", "cells", "edges", "statistics", "summarize"]

BINS = 100
"""Bins, if none are given: the bound is half of a percentage point for an accuracy."""

LEAST = 5
"""Clients below which a histogram is refused, if nothing else is asked for."""

_MOST_BINS = 10_000
_MOST_CLIENTS = 2**16
"""As many as a secure sum of masked words can add."""

_PERCENTILES = (10, 25, 50, 75, 90)
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Relative to the largest edge: what computing with 64 bits may add to a bound."""


class Estimate(NamedTuple):
    """A statistic that is known up to an error.

    Attributes:
      value: the middle of what is possible.
      bound: how far the exact statistic may be from it, at most.
    """

    value: float
    bound: float

    @property
    def low(self) -> float:
        """The least that the exact statistic can be."""
        return self.value - self.bound

    @property
    def high(self) -> float:
        """The most that it can be."""
        return self.value + self.bound

    @property
    def stated(self) -> float:
        """The bound to two digits, rounded up."""
        if not 0.0 < self.bound < math.inf:
            return self.bound
        unit = 10.0 ** (math.floor(math.log10(self.bound)) - 1)
        # What rounding adds to half a bin must not make 0.0050 of it 0.0051.
        return math.ceil(self.bound * (1 - 1e-9) / unit) * unit

    def __str__(self) -> str:
        """Both: ``0.705 ± 0.005``."""
        return f"{self.value:.4g} ± {self.stated:.2g}"


# --- the client's half --------------------------------------------------------------------------------------------


def edges(bins: int = BINS, *, largest: float = 1.0) -> Vector:
    r"""The edges of bins of equal width from 0 to ``largest``, ``(bins + 1,)``.

    Args:
      bins: how many; every bound of :func:`statistics` but that of the variance is at most half a bin.
      largest: public; 1 for accuracies.  Of a loss, choose it without looking at the clients: larger values are
        clipped to it.

    Raises:
      EvenhandError: an argument is out of range.

    Example:
      >>> edges(4).tolist()
      [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    bins = whole_number("bins", bins, 1, _MOST_BINS)
    if not 0.0 < real_number(largest) < math.inf:
        raise EvenhandError(f"largest={largest}: give a finite number above 0, which no value should exceed.")
    return np.linspace(0.0, largest, bins + 1)


def cells(value: npt.ArrayLike, has_examples: npt.ArrayLike, edges: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    r"""What a client adds to the secure sum: a 1 in the bin of its value, and zeros.

    .. math:: x_j = [l_j \le \min(\max(v, l_0), l_b) < l_{j+1}], \quad j = 0, \dots, b - 1

    where the last bin includes its upper edge.  Two more numbers say whether the value was clipped, and whether it was
    not a number, as after training that diverged; the latter is in no bin.

    Args:
      value: of the client, such as its accuracy; several clients' values ``(...)`` are treated alike.
      has_examples: whether the client has a value; without examples it adds zeros, which the masks hide.
      edges: of the bins, ascending, ``(bins + 1,)``.

    Returns:
      uint32 ``(..., bins + 2)``.

    Example:
      >>> cells(0.6, True, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
      [0, 0, 1, 0, 0, 0]
      >>> cells([7.0, float("nan"), 0.1], [True, True, False], [0.0, 0.5, 1.0]).tolist()
      [[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    """
    ends, values = _checked_edges(edges), np.asarray(value, np.float64)
    is_nan, inside = np.isnan(values), np.clip(values, ends[0], ends[-1])
    # By comparison with the edges, as the server reads them: a division could round to the next bin.
    place = np.searchsorted(ends[1:-1], inside, side="right")
    is_in_bin = (place[..., None] == np.arange(len(ends) - 1)) & ~is_nan[..., None]
    beside = np.stack([(inside != values) & ~is_nan, is_nan], axis=-1)
    sent = np.concatenate([is_in_bin, beside], axis=-1) & np.asarray(has_examples, bool)[..., None]
    return sent.astype(np.uint32)


# --- the server's half --------------------------------------------------------------------------------------------


def statistics(
    counts: npt.ArrayLike,
    edges: npt.ArrayLike,
    *,
    higher_is_better: bool = True,
    least: int = LEAST,
    clients: int | None = None,
) -> dict[str, Estimate]:
    r"""The statistics of :func:`evenhand.evaluation.summarize` over clients, from their histogram.

    ``mean``, ``min``, ``max``, ``worst10``, ``best10`` and the percentiles ``p10`` to ``p90`` never decrease when a
    value increases.  So with :math:`v^-` the values that are all at the lower edges of their bins, and :math:`v^+`
    those at the upper edges,

    .. math:: T(v^-) \le T(v) \le T(v^+), \qquad \hat T = \frac{T(v^+) + T(v^-)}{2}, \qquad
        |T(v) - \hat T| \le \frac{T(v^+) - T(v^-)}{2} = \frac{w}{2}

    for bins of width :math:`w`.  ``std`` and ``variance`` lie between the least and the largest that values in these
    bins can have; both are computed, and the bound of ``std`` is at most :math:`w / 2`, too.  So no bound could be
    smaller: each is reached, or come arbitrarily near to, by some values with this histogram.

    Args:
      counts: the sum of what clients sent (:func:`cells`), whole numbers ``(bins + 2,)``.
      edges: of the bins, as the clients had them.
      higher_is_better: False for losses and errors: the worst tenth is then that with the highest values.
      least: clients with a value, at least 2; fewer are refused.  Clients must see to that themselves, since a server
        that calls this has the counts already.
      clients: how many took part in the sum, so that counts of more are refused; None: up to 65,536.

    Returns:
      Name -> estimate: also ``clients``, how many have a value, and ``clipped``, how many of these were clipped, both
      exact.  The statistics are those of the clipped values.  All are NaN if a client's value is not a number, as in
      :func:`evenhand.evaluation.summarize`.

    Raises:
      EvenhandError: too few clients have a value, or no clients of this kind can have sent these counts.

    Example:
      >>> accuracy = [0.31, 0.64, 0.7, 0.85, 0.9]
      >>> report = statistics(cells(accuracy, [True] * 5, edges(10)).sum(axis=0), edges(10))
      >>> print(report["worst10"])
      0.35 ± 0.05
      >>> report["mean"].low <= 0.68 <= report["mean"].high
      True
    """
    higher_is_better = truth_value("higher_is_better", higher_is_better)
    ends = _checked_edges(edges)
    total, clipped, unknown = _checked_counts(counts, len(ends) - 1, clients)
    number = int(total.sum()) + unknown
    _check_number(number, least)
    report = {"clients": Estimate(float(number), 0.0), "clipped": Estimate(float(clipped), 0.0)}
    if unknown:
        return report | dict.fromkeys(_names(), Estimate(math.nan, math.nan))
    low, high = np.repeat(ends[:-1], total), np.repeat(ends[1:], total)
    largest = float(np.max(np.abs(ends)))
    least_of, most_of = (_monotone(side, higher_is_better) for side in (low, high))
    spread = (_least_std(low, high), _largest_std(low, high))
    between = {name: (least_of[name], most_of[name]) for name in least_of}
    between |= {"std": spread, "variance": (spread[0] ** 2, spread[1] ** 2)}
    return report | {
        name: Estimate((a + b) / 2, (b - a) / 2 + _ROUNDING * largest ** (2 if name == "variance" else 1))
        for name, (a, b) in between.items()
    }


def _monotone(values: Vector, higher_is_better: bool) -> dict[str, float]:
    """The statistics that never decrease when a value increases."""
    report = evenness(values, higher_is_better=higher_is_better)
    report |= {"min": float(values[0]), "max": float(values[-1])}
    at = np.percentile(values, _PERCENTILES).tolist()
    report |= {f"p{p}": x for p, x in zip(_PERCENTILES, at, strict=True)}
    return {name: x for name, x in report.items() if name != "variance"}


def _names() -> list[str]:
    return [*_monotone(np.zeros(1), True), "std", "variance"]


def _largest_std(low: Vector, high: Vector) -> float:
    """The largest standard deviation of ascending values, each between its ``low`` and its ``high``."""
    # It is convex in each value, so that every value is at an end: those below some place low, the others high.
    shift = (low[0] + high[-1]) / 2
    a, b = low - shift, high - shift
    sums, squares = (
        np.concatenate([[0.0], np.cumsum(a**power)])
        + np.concatenate([np.cumsum(b[::-1] ** power)[::-1], [0.0]])
        for power in (1, 2)
    )
    place = int(np.argmax(squares / len(a) - (sums / len(a)) ** 2))
    return float(np.std(np.concatenate([a[:place], b[place:]])))


def _least_std(low: Vector, high: Vector) -> float:
    """The least standard deviation of such values: all are as near to their mean as their bins allow."""
    centres = np.unique(np.concatenate([low, high]))

    def pull(centre: float) -> float:
        return float(np.mean(centre - np.clip(centre, low, high)))

    # It grows with the centre, is linear between two edges, and 0 where the centre is the mean.
    pulls = np.array([pull(float(centre)) for centre in centres])
    centre = float(np.interp(0.0, pulls, centres))
    return float(np.sqrt(np.mean((np.clip(centre, low, high) - centre) ** 2)))


def _check_number(number: int, least: int) -> None:
    """Refuses a histogram of too few clients."""
    if number < whole_number("least", least, 2):
        raise EvenhandError(
            f"Private metrics of {counted(number, 'client')} with a value: a histogram of fewer than {least} would "
            "show single clients. Evaluate more of them."
        )


def _checked_edges(edges: npt.ArrayLike) -> Vector:
    ends = np.asarray(edges, np.float64)
    if ends.ndim != 1 or len(ends) < 2 or not np.isfinite(ends).all() or not (np.diff(ends) > 0).all():
        raise EvenhandError(
            "The edges of a histogram must be at least two finite numbers in ascending order."
        )
    return ends


def _checked_counts(
    counts: npt.ArrayLike, bins: int, clients: int | None
) -> tuple[npt.NDArray[np.int64], int, int]:
    """The counts of the bins, of clipped values, and of those that are not numbers."""
    given: npt.NDArray[Any] = np.asarray(counts)
    if given.dtype.kind not in "iu" or given.shape != (bins + 2,):
        raise EvenhandError(
            f"The counts of {bins} bins are {bins + 2} whole numbers, but these are {given.dtype} of shape "
            f"{given.shape}: give the sum of what cells() made of the clients' values, with the same edges."
        )
    most = _MOST_CLIENTS if clients is None else whole_number("clients", clients, 0, _MOST_CLIENTS)
    # Each by itself first: counts near 2**64, below zero in a sum modulo that, would overflow when they are added.
    is_possible = bool((given >= 0).all() and (given <= most).all())
    total = given.astype(np.int64) if is_possible else np.zeros(bins + 2, np.int64)
    binned, clipped, unknown = total[:-2], int(total[-2]), int(total[-1])
    if not is_possible or binned.sum() + unknown > most or clipped > binned[0] + binned[-1]:
        raise EvenhandError(
            f"No {most:,} clients can have these counts: one of them sent something other than cells() makes, or the "
            "sum was taken modulo too small a number."
        )
    return binned, clipped, unknown


# --- both, in one process -----------------------------------------------------------------------------------------


def summarize(
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    bins: int = BINS,
    largest: float = 1.0,
    higher_is_better: bool = True,
    least: int = LEAST,
) -> dict[str, Estimate]:
    """What a server would learn of clients' values, which are masked, added and read as on a network.

    Args:
      values: ``(K,)``, one per client.
      weights: ``(K,)``, usually each client's examples: a client counts if its weight is above 0, and all that do count
        alike; None: those whose value is not NaN.
      bins: as in :func:`edges`.
      largest: likewise.
      higher_is_better: as in :func:`statistics`.
      least: likewise.

    Raises:
      EvenhandError: too few clients, or too many for one secure sum; a weight is negative or not finite; an argument is
        out of range.

    Example:
      >>> import numpy as np
      >>> accuracy = np.linspace(0.5, 1.0, 30)
      >>> report = summarize(accuracy)
      >>> print(report["p10"], "exact:", round(float(np.percentile(accuracy, 10)), 4))
      0.553 ± 0.005 exact: 0.55
    """
    higher_is_better = truth_value("higher_is_better", higher_is_better)
    check_process()
    numbers = np.asarray(values, np.float64).reshape(-1)
    shares = (
        np.where(np.isnan(numbers), 0.0, 1.0)
        if weights is None
        else np.asarray(weights, np.float64).reshape(-1)
    )
    if not (np.isfinite(shares) & (shares >= 0)).all():
        raise EvenhandError("A weight is negative or not finite: give each client's number of examples.")
    has_value = shares > 0
    if numbers.shape != has_value.shape:
        raise EvenhandError(
            f"There are {numbers.size} values but {has_value.size} weights: give one for each client."
        )
    count = numbers.size
    if count > _MOST_CLIENTS:
        raise EvenhandError(
            f"A secure sum of {count:,} clients: at most {_MOST_CLIENTS:,} can be added. Evaluate fewer of them."
        )
    ends = edges(bins, largest=largest)
    _check_number(int(has_value.sum()), least)  # before anything is added
    sent = jnp.asarray(cells(numbers, has_value, ends))
    # Any key will do: the masks cancel, whatever they are.
    counts = np.asarray(masked_words(sent, jnp.ones(count, bool), jax.random.key(0)))
    return statistics(counts, ends, higher_is_better=higher_is_better, least=least, clients=count)
