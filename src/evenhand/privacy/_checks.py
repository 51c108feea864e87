"""Checks of the numbers that mechanisms and accounting take, each a sentence where it fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, cast

import jax
import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, perhaps, real_number, whole_number

Orders: TypeAlias = Sequence[float]
"""Orders of Renyi divergences, each a finite number above 1."""


Scheme: TypeAlias = Literal["poisson", "fixed"]
"""How units are drawn: independently, or a fixed number of them."""


Accountant: TypeAlias = Literal["rdp", "pld"]
"""What adds costs up: Renyi divergences, or distributions of privacy losses."""


NDArray: TypeAlias = npt.NDArray[np.float64]


_MOST = 2**53
"""Whole numbers beyond it are not exact as floating-point numbers."""


SMALLEST_CLIP = 1e-12
"""The square of a number below 1e-19 is 0 in float32: ten million of them lengthen this norm by less than rounding."""


LARGEST_CLIP = 1e15
"""Squares of this, and noise many times as large, are far from the largest float32."""


_LARGEST_NOISE = 1e150
"""The squares of this and of its inverse are floats."""


def _item(value: Any) -> Any:
    """The number of an array without axes; any other value is returned as it is."""
    return value.item() if isinstance(value, jax.Array | np.ndarray) and value.ndim == 0 else value


def _number(name: str, value: object, wanted: str, holds: Callable[[float], bool]) -> float:
    """``value`` as a float, if it is a number for which something ``holds``."""
    value = _item(value)
    if not isinstance(value, bool) and isinstance(value, int | float | np.floating | np.integer):
        with suppress(OverflowError):  # whole numbers of more than 308 digits
            number = float(value)
            if holds(number):
                return number
    raise EvenhandError(Argument(name, f"{value!r:.60}"), f": give {wanted}.")


def noise(name: str, value: object) -> float:
    """A noise multiplier: 0, where nothing is hidden, or a number whose square is neither 0 nor infinite."""
    wanted = (
        f"a number of at least 0 (0, or from {1.0 / _LARGEST_NOISE:g} to {_LARGEST_NOISE:g}): the noise's standard "
        "deviation over the sensitivity"
    )
    return _number(
        name, value, wanted, lambda number: number == 0.0 or 1.0 / _LARGEST_NOISE <= number <= _LARGEST_NOISE
    )


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    return _number(name, value, "a number above 0", lambda number: 0.0 < number < math.inf)


def checked_clip(name: str, value: object) -> float:
    """A clip: the largest norm of what is clipped, between bounds within which norms are exact to rounding."""
    wanted = (
        f"a number above 0, from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, within which float32 holds squares"
    )
    return _number(name, value, wanted, lambda number: SMALLEST_CLIP <= number <= LARGEST_CLIP)


def probability(name: str, value: object, *, zero: bool = False) -> float:
    """A number strictly between 0 and 1, such as delta, or ``zero`` too."""
    wanted = "a number of at least 0 and below 1" if zero else "a number above 0 and below 1"
    return _number(name, value, wanted, lambda number: 0.0 < number < 1.0 or (zero and number == 0.0))


def rate(name: str, value: object, *, least: float = 0.0) -> float:
    """A sampling rate, from ``least`` to 1; above 0 where ``least`` is above 0."""
    wanted = "the chance with which a unit takes part, " + ("above 0, at most 1" if least else "from 0 to 1")
    return _number(name, value, wanted, lambda number: least <= number <= 1.0)


def check_sampled_noise(method: str, noise_multiplier: object, chance: object) -> None:
    """Checks the noise and the sampling rate, the ``chance`` of a unit, that ``method`` was given."""
    noise(f"{method}(noise_multiplier=)", noise_multiplier)
    rate(f"{method}(rate=)", chance, least=math.ulp(0.0))


def check_decay(method: str, decay: float, eps: float, at: str = "") -> None:
    """Checks the two numbers of a moment; ``at`` says in the sentence of which step they are.

    Raises:
      EvenhandError: a decay outside [0, 1), or an ``eps`` that is not above 0.
    """
    if not 0.0 <= real_number(decay) < 1.0 or not 0.0 < real_number(eps) < math.inf:
        raise EvenhandError(
            f"{method}(decay={decay!r:.40}, eps={eps!r:.40}){at}: give a decay from 0 to below 1, and a finite eps "
            "above 0."
        )


def pair(name: str, value: object, parts: str) -> tuple[Any, Any]:
    """``value`` as a tuple of two, of which ``parts`` says what they are of."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise EvenhandError(f"{name}={value!r:.40}): give two, {parts}.")
    first, second = cast(Sequence[Any], value)
    return first, second


def checked_step(method: str, step_size: float) -> float:
    """``step_size``, checked to be finite and at least 0."""
    if not 0.0 <= real_number(step_size) < math.inf:
        raise EvenhandError(f"{method}() got the step {step_size!s:.40}: give a finite number >= 0.")
    return float(step_size)


def count(name: str, value: object, least: int = 0) -> int:
    """A whole number of steps, rounds or clients."""
    return whole_number(name, value, least, _MOST)


def one_of(name: str, value: str, words: Sequence[str]) -> None:
    """Checks that it is one of a few words."""
    if value not in words:
        choices, hint = " or ".join(map(repr, words)), perhaps(str(value), words)
        raise EvenhandError(Argument(name, f"{value!r:.60}"), f": give {choices}{hint}.")


def orders(orders: Orders | NDArray) -> NDArray:
    """The orders as an array, each above 1."""
    array = np.asarray(orders, np.float64)
    if array.ndim != 1 or array.size == 0 or not np.all((array > 1.0) & (array < math.inf)):
        raise EvenhandError("orders: give a sequence of finite numbers above 1, such as ORDERS.")
    return array
