"""What a cell or a name of a text file stands for: a number, nothing, or a name that can be shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LONGEST", "MISSING", "first_repeated", "is_missing", "name_fault", "number", "numbers"]

MISSING = frozenset(
    ["", "nan", "NaN", "NAN", "-nan", "None", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaT"]
)
"""How programs write a missing value; none of these names a client."""

LONGEST = 255
"""Most characters of a name; a longer one is text in the wrong place, and would cost its length in each row."""


def number(text: str) -> float | None:
    """The number that a cell spells, or None if it spells none.

    One rule for all text: what :class:`float` reads, in ASCII and without underscores.  So ``"1e-3"``,
    ``" +.5 "``, ``"inf"`` and ``"nan"`` are numbers (the last two for others to refuse as not finite), and
    ``"1_000"``, ``"1,5"``, Arabic digits and a number beside a no-break space are not.

    Example:
      >>> number(" 1.5"), number("1_000"), number("nan")
      (1.5, None, nan)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if text.isascii() and "_" not in text else None


def numbers(cells: Sequence[str]) -> npt.NDArray[Any] | None:
    """:func:`number` of each cell as float64, or None if one of them spells none.

    Example:
      >>> numbers(["1", "2.5"]), numbers(["1", "2_5"])
      (array([1. , 2.5]), None)
    """
    text = "".join(cells)
    if "_" in text or not text.isascii():
        return None
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def is_missing(text: str) -> bool:
    """Whether a cell stands for a missing value, as ``""``, ``"nan"`` and ``"NULL"`` do."""
    return text.strip() in MISSING


def name_fault(text: str) -> str | None:
    r"""Why ``text`` cannot name a client or a class, beginning with "is" or "has"; None if it can.

    A name has to survive a terminal, a table and a file in UTF-8.

    Example:
      >>> name_fault("ann"), name_fault("a\0b")
      (None, 'has a NUL character in it')
    """
    if "\0" in text:
        return "has a NUL character in it"
    if len(text) > LONGEST:
        return f"is {len(text)} characters long"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "has half of a surrogate pair in it, which is not Unicode text"
    return None


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that occurred before, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
