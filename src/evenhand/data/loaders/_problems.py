"""All that is wrong with a table, in one error."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from evenhand.errors import Argument, EvenhandError

__all__ = ["Problems"]

_SHOWN = 10


class Problems:
    """What is wrong with one source, collected while it is read.

    A file is repaired in one go if all of its problems are known; with one error per run, each repair only leads to
    the next.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._sentences: list[tuple[str | Argument, ...]] = []

    @contextmanager
    def noted(self) -> Generator[None]:
        """Keeps an error for :meth:`check` instead of raising it."""
        try:
            yield
        except EvenhandError as error:
            if error.parts not in self._sentences:
                self._sentences.append(error.parts)

    def check(self) -> None:
        """Raises what was noted.

        Raises:
          EvenhandError: one problem as it was; of several, the first ten, numbered, and how many more there are.
        """
        if not self._sentences:
            return
        if len(self._sentences) == 1:
            raise EvenhandError(*self._sentences[0])
        parts: list[str | Argument] = [f"{self.source} has {len(self._sentences):,} problems:"]
        for number, sentence in enumerate(self._sentences[:_SHOWN], start=1):
            parts += [f" ({number}) ", *self._bare(sentence), ";"]
        rest = len(self._sentences) - _SHOWN
        parts[-1] = "." if rest <= 0 else f"; and {rest:,} more."
        raise EvenhandError(*parts)

    def _bare(self, sentence: tuple[str | Argument, ...]) -> list[str | Argument]:
        """A sentence without the name of the source and the full stop."""
        parts = list(sentence)
        if isinstance(parts[0], str):
            parts[0] = parts[0].removeprefix(f"{self.source}: ")
        if isinstance(parts[-1], str):
            parts[-1] = parts[-1].removesuffix(".")
        return parts
