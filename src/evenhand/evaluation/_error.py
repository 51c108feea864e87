"""The error of the clients: its percentiles and its tails, with every client or every example counting alike.

NumPy in float64, on the host.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ERROR_NAMES", "error_statistics"]

_PERCENTILES = (10, 20, 50, 60, 80, 90, 95)
_TAILS = {"error_superquantile90": 0.10, "error_superquantile95": 0.05}
_BEST = "error_best10"
_PLAIN = (*(f"error_p{p}" for p in _PERCENTILES), *_TAILS, _BEST)

ERROR_NAMES = (*_PLAIN, *(f"weighted_{name}" for name in _PLAIN))

Vector = npt.NDArray[np.float64]


def error_statistics(a: Vector, c: Vector, *, higher_is_better: bool) -> dict[str, float]:
    """The part of :func:`~evenhand.evaluation.summarize` that is about errors.

    Args:
      a: values, at least one, ascending.
      c: their weights, all positive.
      higher_is_better: whether the errors are ``1 - a`` or the values themselves.
    """
    errors, weights = (1.0 - a[::-1], c[::-1]) if higher_is_better else (a, c)
    plain = dict(zip(_PLAIN, _statistics(errors, np.ones_like(errors)), strict=True))
    weighted = plain.values() if np.all(c == 1) else _statistics(errors, weights)
    return plain | {f"weighted_{name}": value for name, value in zip(_PLAIN, weighted, strict=True)}


def _statistics(errors: Vector, weights: Vector) -> list[float]:
    worst = (_tail(errors[::-1], weights[::-1], share) for share in _TAILS.values())
    return [*_percentiles(errors, weights), *worst, _tail(errors, weights, 0.1)]


def _percentiles(errors: Vector, weights: Vector) -> list[float]:
    """Percentiles of ascending errors, each counted as often as its weight says."""
    ends, shares, last = np.cumsum(weights), np.array(_PERCENTILES) / 100, len(errors) - 1
    if np.all(weights == np.floor(weights)):
        position = shares * (ends[-1] - 1)
        below = np.floor(position)
        part = position - below
        at, after = np.searchsorted(ends, below, "right"), np.searchsorted(ends, below + 1, "right")
    else:  # in the limit of many copies, neighbours differ only where a percentile falls between them
        position, part = shares * ends[-1], 1.0 - shares
        at = np.searchsorted(ends, position * (1 - 1e-12))
        after = np.searchsorted(ends, position * (1 + 1e-12), "right")
    low, high = errors[np.minimum(at, last)], errors[np.minimum(after, last)]
    apart = (part > 0) & (high > low)  # the difference of two infinities is undefined
    step = np.subtract(high, low, where=apart, out=np.zeros_like(low)) * part
    return [float(e) for e in np.minimum(low + step, high)]


def _tail(errors: Vector, weights: Vector, share: float) -> float:
    """Mean of the first ``share`` of all weight, the error at the boundary counted in part."""
    ends = np.cumsum(weights)
    room = share * ends[-1]
    taken = np.clip(room - (ends - weights), 0.0, weights)
    kept = taken > 1e-12 * room  # less is what rounding leaves at a boundary between two errors
    return float(np.sum(taken[kept] * errors[kept]) / np.sum(taken[kept]))
