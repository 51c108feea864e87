"""The live bar, and how many rounds to run before it moves again."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from evenhand.live import line

__all__ = ["Progress"]

_SECONDS = 0.5


class Progress:
    """Shows round, rate, time left and the latest loss and accuracy; does nothing where ``show`` is false."""

    def __init__(self, rounds: int, show: bool) -> None:
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rate]:.1f} rounds/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
        )
        self._bar = line(*columns, show=show)
        self._task = self._bar.add_task("rounds", total=rounds, rate=0.0, latest="")
        self._show = not self._bar.disable
        self._begin = time.perf_counter()
        self._first: int | None = None
        self._done = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def next_count(self) -> int:
        """Rounds worth about half a second, so that the bar lives; without a bar, as many as can be."""
        if not self._show:
            return 2**31
        return max(1, int(self._rate() * _SECONDS))

    def update(self, done: int, latest: str) -> None:
        """Moves the bar; the first call says where the run begins, and ``latest`` what was last measured."""
        if self._first is None:
            self._first, self._begin = done, time.perf_counter()
        self._done = done
        self._bar.update(self._task, completed=done, rate=self._rate(), latest=latest)

    def _rate(self) -> float:
        return (self._done - (self._first or 0)) / max(time.perf_counter() - self._begin, 1e-9)
