"""The one exception that says: the input is at fault, not the program."""

import operator

__all__ = ["EvenhandError", "whole_number"]


class EvenhandError(ValueError):
    """Bad input, told in one sentence: what is wrong, where, and what to do.

    The command line prints the sentence and exits with 2; in Python it is a ``ValueError``.
    """


def whole_number(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """``value`` as an int if it is a whole number from ``least`` to ``most``, else one sentence."""
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType]  (the point is to try)
    except TypeError:
        raise EvenhandError(f"{name}={value!r}: give a whole number.") from None
    if not least <= number <= most:
        # Python refuses to write integers of more than 4,300 digits.
        shown = str(number) if abs(number) < 10**100 else "a number of more than 100 digits"
        raise EvenhandError(f"{name}={shown}: give a whole number from {least} to {most}.")
    return number
