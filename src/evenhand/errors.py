"""The exception that says: the input is at fault, not the program; and the warning: the result is not what it seems."""

import operator

__all__ = ["EvenhandError", "EvenhandWarning", "whole_number"]


class EvenhandError(ValueError):
    """Bad input, told in one sentence: what is wrong, where, and what to do.

    The command line prints the sentence and exits with 2; in Python it is a ``ValueError``.
    """


class EvenhandWarning(UserWarning):
    """What a reader must know before believing a run's numbers, told in one sentence: it diverged, say.

    To silence these alone: ``warnings.simplefilter("ignore", evenhand.errors.EvenhandWarning)``.
    """


def whole_number(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """``value`` as an int if it is a whole number from ``least`` to ``most``, else one sentence."""
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType]  (the point is to try)
    except TypeError:
        raise EvenhandError(f"{name}={value!r}: give a whole number.") from None
    if not least <= number <= most:
        raise EvenhandError(f"{name}={value}: give a whole number from {least} to {most}.")
    return number
