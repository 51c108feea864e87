"""The exception for bad input, the warning for misleading results, and how both are worded."""

import inspect
import math
import operator
import shlex
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from types import FunctionType, UnionType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jax.core import Tracer

__all__ = [
    "Argument",
    "EvenhandError",
    "EvenhandWarning",
    "ModelError",
    "StorageError",
    "array_of",
    "expect",
    "is_truth_value",
    "named",
    "nearest",
    "perhaps",
    "real_number",
    "truth_value",
    "warn_caller",
    "whole_number",
]


class Argument(NamedTuple):
    """An argument that a sentence names, as Python spells it; the command line spells it as an option.

    Attributes:
      name: the argument.
      value: what it is set to, as Python writes it.
      option: the same as a shell writes it, where that differs.
    """

    name: str
    value: str
    option: str | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def named(name: str, column: str) -> Argument:
    """The argument ``name``, which takes a list of names, with one ``column`` in it.

    Example:
      >>> named("drop", "last, first").value, named("drop", "last name").option
      ("['last, first']", "'last name'")
    """
    cell = '"' + column.replace('"', '""') + '"' if {",", '"'} & set(column) else column
    return Argument(name, repr([column]), shlex.quote(cell))


class _Sentence(Exception):
    """A sentence in parts, some of which are arguments, which the command line spells as options."""

    def __init__(self, *parts: str | Argument) -> None:
        super().__init__(*parts)
        self.parts = parts

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


class EvenhandError(_Sentence, ValueError):
    """Bad input, in one sentence: what is wrong, where, and what to do.

    The command line prints the sentence and exits with 2; in Python it is a ``ValueError``.

    Args:
      parts: the sentence, in one piece or around the :class:`Argument` values that it names.
    """


class ModelError(EvenhandError):
    """What does not fit the model that is trained, such as the path of a parameter: it may fit another."""


class StorageError(EvenhandError):
    """What is kept of a run cannot be written, as on a full disk, or read: it says nothing about the run itself."""


class EvenhandWarning(_Sentence, UserWarning):
    """What a reader must know before trusting a run's numbers, in one sentence: for example, that it diverged.

    To silence only these: ``warnings.simplefilter("ignore", evenhand.errors.EvenhandWarning)``.

    Args:
      parts: as of :class:`EvenhandError`.
    """


def warn_caller(warning: EvenhandWarning) -> None:
    """Warns at the line that called this package, however far from it the cause was found."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "evenhand":
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


def whole_number(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """``value`` as an int if it is a whole number from ``least`` to ``most``, else an error."""
    try:
        if is_truth_value(value):  # which Python takes for 0 or 1
            raise TypeError
        number = operator.index(value)  # pyright: ignore[reportArgumentType]  (the point is to try)
    except TypeError:
        raise EvenhandError(Argument(name, repr(value)), ": give a whole number.") from None
    if not least <= number <= most:
        # Python refuses to write integers of more than 4,300 digits.
        shown = str(number) if abs(number) < 10**100 else "a number of more than 100 digits"
        raise EvenhandError(Argument(name, shown), f": give a whole number from {least} to {most}.")
    return number


def is_truth_value(value: object) -> bool:
    """Whether ``value`` is True or False, of Python, NumPy or JAX, which computing takes for 1 and 0."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"


def truth_value(name: str, value: object) -> bool:
    """``value`` as a bool if it is a single truth value, else an error: Python takes ``"no"`` for true."""
    if not is_truth_value(value) or np.ndim(value):  # pyright: ignore[reportArgumentType]  (a truth value by now)
        raise EvenhandError(Argument(name, _described(value)), ": give True or False.")
    return bool(value)


def real_number(value: object) -> float:
    """``value`` as a float; NaN, which lies in no range, if it is no single number of Python, NumPy or JAX.

    Fractions and decimals, which arrays cannot be multiplied by, and truth values are no such numbers.  A traced value
    is returned as it is: its derivative is wanted, or JAX says where it has no value.
    """
    if isinstance(value, Tracer):
        return value  # pyright: ignore[reportReturnType]
    kind = getattr(getattr(value, "dtype", None), "kind", "")  # "V" is bfloat16 and its like
    is_scalar = isinstance(value, int | float) or (kind in {*"iufV"} and not getattr(value, "ndim", 0))
    try:
        return float(value) if is_scalar and not is_truth_value(value) else math.nan  # pyright: ignore
    except (TypeError, OverflowError):  # a record, or a whole number of 400 digits
        return math.nan


def array_of(values: object) -> npt.NDArray[Any]:
    """``values`` as an array; one of objects, which no check of types lets pass, where rows differ in length."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError):
        return np.empty((), object)


def expect(name: str, value: object, kind: type | UnionType, example: str) -> None:
    """Checks that ``value`` is of the ``kind`` that the argument ``name`` takes.

    Raises:
      EvenhandError: it is not; the sentence says what it is instead, and gives the ``example``.
    """
    if not isinstance(value, kind):
        raise EvenhandError(f"{name}={_described(value)}: give a value such as {example}.")


_PACKAGES = {
    "equinox",
    "evenhand",
    "flax",
    "jax",
    "keras",
    "numpy",
    "optax",
    "pandas",
    "sklearn",
    "tensorflow",
    "torch",
}


def _described(value: object) -> str:
    """A value of the wrong kind in a few words; a user's class is described by the library that it derives from."""
    made = value if isinstance(value, type) else type(value)
    roots = (base.__module__.partition(".")[0] for base in made.__mro__)
    library = next((f"{root}'s " for root in roots if root in _PACKAGES), "")
    if isinstance(value, type):
        return f" got {library or 'the '}class {made.__name__} itself"
    if library:  # its repr may be long, or cost a transfer
        return f" got an instance of {library}{made.__name__}"
    if isinstance(value, FunctionType):
        return f" got the function {value.__name__} itself, not what it returns"
    return f"{value!r:.60}"


_LIKENESS = 0.7
"""Least likeness of a misspelt word to the right one: one letter swapped, lost or added in five or more."""


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of ``words`` that ``word`` most likely misspells, or None if it resembles none.

    Case, hyphens, underscores and spaces do not count.

    Example:
      >>> nearest("Fed-Porx", ["fedavg", "fedprox"])
      'fedprox'
      >>> nearest("mpl", ["mlp", "svm"])
      'mlp'
      >>> nearest("krum", ["fedavg", "fedprox"])
    """
    folded, misspelt = {_folded(name): name for name in words}, _folded(word)
    close = get_close_matches(misspelt, folded, n=1, cutoff=_LIKENESS)
    # A short word with two letters swapped is less alike than that.
    close += [name for name in folded if sorted(name) == sorted(misspelt)]
    return folded[close[0]] if close else None


def perhaps(word: str, words: Iterable[str]) -> str:
    """``" (perhaps you meant ...)"``, to follow a misspelt word in a sentence; ``""`` if it resembles none."""
    meant = nearest(word, words)
    return "" if meant is None else f" (perhaps you meant {meant})"


def _folded(word: str) -> str:
    return str(word).casefold().translate(dict.fromkeys(map(ord, "-_ ")))
