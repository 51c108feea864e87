"""The one exception that says: the input is at fault, not the program."""

__all__ = ["EvenhandError"]


class EvenhandError(ValueError):
    """Bad input, told in one sentence: what is wrong, where, and what to do.

    The command line prints the sentence and exits with 2; in Python it is a ``ValueError``.
    """
