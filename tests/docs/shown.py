"""What a page shows as output, against what its commands print."""

from __future__ import annotations

import re
from collections.abc import Iterator

NUMBER = re.compile(r"[-+−±]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def outputs(page: str) -> list[str]:
    """The blocks of a page that name no language: what its commands print, and what files hold."""
    return [
        block
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        if not language
    ]


def absent(shown: str, printed: str) -> list[str]:
    """The lines of a page that a program did not print, or not in this order; a page may leave out some of its lines.

    Spaces, line breaks within a sentence and rules do not count.  A number may differ by one in its last digit, because
    machines round differently.
    """
    words, missing = _words(printed), list[str]()
    for line in shown.splitlines():
        wanted = _words(line)
        if (end := next(_ends(wanted, words), None)) is None:
            missing.append(line)
        else:
            words = words[end:]
    return missing


def _words(text: str) -> list[str]:
    return [word for word in re.sub(r"[─-]{3,}", " ", text).split() if word != "|"]


def _ends(wanted: list[str], words: list[str]) -> Iterator[int]:
    """Where the wanted words end, wherever they stand next to each other."""
    for start in range(len(words) - len(wanted) + 1):
        end = start + len(wanted)
        if all(map(is_same, wanted, words[start:end])):
            yield end


def is_same(shown: str, printed: str) -> bool:
    """Whether words are equal, and numbers in them up to rounding (:func:`is_near`).

    Example:
      >>> is_same("±0.3*", "±0.4*"), is_same("12.35", "12.37"), is_same("0.3", "0.3*")
      (True, False, False)
    """
    if NUMBER.split(shown) != NUMBER.split(printed):
        return False
    return all(is_near(*pair) for pair in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True))


def is_near(shown: str, printed: str) -> bool:
    """Whether a number is that which is shown, to one in its last digit or a thousandth of it."""
    value, exact = (float(text.translate(str.maketrans("−", "-", ",±"))) for text in (shown, printed))
    mantissa, _, exponent = shown.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    # Whole numbers count things.
    return (
        value == exact
        if "." not in shown and "e" not in shown
        else abs(value - exact) <= max(1.01 * last, abs(value) / 1000)
    )
