"""What a law looks like as a check: a name, and a function that checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from evenhand._platform import check_process

__all__ = ["Check", "check_all"]


class Check(NamedTuple):
    """One law of a method, an aggregator, a risk or an attack; calling it raises ``AssertionError`` if it is broken.

    Attributes:
      name: the law in a few words; no two checks of one subject have the same.
      law: the function that checks it.
    """

    name: str
    law: Callable[[], None]

    def __call__(self) -> None:
        """Checks the law; what earlier checks of the same subject have computed is not computed again."""
        check_process()
        self.law()


def check_all(checks: Iterable[Check]) -> None:
    """Checks one law after the other, up to the first that is broken."""
    for check in checks:
        check()
