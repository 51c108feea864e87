"""Checks of the numbers that accounting takes, each a sentence where it fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, perhaps, whole_number

__all__ = ["checked_orders", "checked_rate", "count", "noise", "one_of", "positive", "probability"]

_MOST = 2**53
"""Whole numbers beyond it are not exact as floating-point numbers."""


def _number(name: str, value: object, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise EvenhandError(Argument(name, f"{value!r:.60}"), f": give {wanted}.")
    return float(value)


def noise(name: str, value: object) -> float:
    """A noise multiplier: 0, where nothing is hidden, or more."""
    wanted = "a number of at least 0: the noise's standard deviation over the sensitivity"
    number = _number(name, value, wanted)
    if not 0.0 <= number < math.inf:
        raise EvenhandError(Argument(name, repr(value)), f": give {wanted}.")
    return number


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    number = _number(name, value, "a number above 0")
    if not 0.0 < number < math.inf:
        raise EvenhandError(Argument(name, repr(value)), ": give a number above 0.")
    return number


def probability(name: str, value: object) -> float:
    """A number strictly between 0 and 1, such as delta."""
    number = _number(name, value, "a number above 0 and below 1")
    if not 0.0 < number < 1.0:
        raise EvenhandError(Argument(name, repr(value)), ": give a number above 0 and below 1.")
    return number


def checked_rate(name: str, value: object, *, least: float = 0.0) -> float:
    """A sampling rate, from ``least`` to 1; above 0 where ``least`` is above 0."""
    wanted = "the chance with which a unit takes part, " + ("above 0, at most 1" if least else "from 0 to 1")
    number = _number(name, value, wanted)
    if not least <= number <= 1.0:
        raise EvenhandError(Argument(name, repr(value)), f": give {wanted}.")
    return number


def count(name: str, value: object, least: int = 0) -> int:
    """A whole number of steps, rounds or clients."""
    return whole_number(name, value, least, _MOST)


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """One of a few words."""
    if value not in known:
        words = " or ".join(repr(word) for word in known)
        hint = perhaps(str(value), known)
        raise EvenhandError(Argument(name, f"{value!r:.60}"), f": give {words}{hint}.")
    return value


def checked_orders(orders: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The orders as an array, each above 1."""
    array = np.asarray(orders, np.float64)
    if array.ndim != 1 or array.size == 0 or not np.all((array > 1.0) & (array < math.inf)):
        raise EvenhandError("orders: give a sequence of finite numbers above 1, such as ORDERS.")
    return array
