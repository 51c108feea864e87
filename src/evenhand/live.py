"""Live bars: one line on stderr in a terminal, one output under the cell of a notebook.

Rich and IPython are imported only when a bar is shown, since rich alone takes a tenth of a second.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from evenhand import notebook

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Bar", "line"]

_SECONDS = 0.5
"""Between two updates in a notebook."""


class Bar:
    """A bar that shows how far something is, inside a ``with``; this one is not seen.

    Attributes:
      is_shown: whether anybody sees it.
    """

    is_shown = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Shows it."""

    def stop(self) -> None:
        """Shows its end, or takes it away."""

    def update(
        self, completed: int | None = None, *, rate: str | None = None, latest: str | None = None
    ) -> None:
        """Moves it, or changes its texts; what is None stays."""


def line(noun: str, total: int, *, show: bool, is_text_long: bool = False) -> Bar:
    """A bar that is gone when it ends; in a notebook, its last state stays, and a file or a pipe gets nothing.

    Args:
      noun: what is counted, such as ``"round"``.
      total: how many there are.
      show: whether it is to be seen at all.
      is_text_long: whether the latest text gets the width that the bar has else; it is cut where it is longer.
    """
    if not show:
        return Bar()
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        return _UnderACell(noun, total)
    return _InTerminal(console, noun, total, is_text_long) if console.is_terminal else Bar()


class _InTerminal(Bar):
    """A line that rich redraws."""

    is_shown = True

    def __init__(self, console: Console, noun: str, total: int, is_text_long: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        column = Column(ratio=1, no_wrap=True) if is_text_long else None
        self._progress = Progress(
            TextColumn(noun),
            MofNCompleteColumn(),
            BarColumn(bar_width=12 if is_text_long else None),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}", markup=False, table_column=column),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what is printed into a file must not go to stderr
        )
        self._task = self._progress.add_task(noun, total=total, rate="", latest="")

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        self._progress.stop()

    def update(
        self, completed: int | None = None, *, rate: str | None = None, latest: str | None = None
    ) -> None:
        texts: dict[str, Any] = {"rate": rate, "latest": latest}
        texts = {name: text for name, text in texts.items() if text is not None}
        self._progress.update(self._task, completed=completed, **texts)


class _UnderACell(Bar):
    """One output of a cell, which each update replaces.

    Rich would need ipywidgets, whose bars are lost when a notebook is saved; text on stderr would add an output with
    each update.
    """

    is_shown = True

    def __init__(self, noun: str, total: int) -> None:
        self._noun, self._total, self._done, self._rate, self._latest = noun, total, 0, "", ""
        self._handle: Any = None
        self._is_over = False
        self._begin = self._updated = time.monotonic()
        self._first: int | None = None

    def start(self) -> None:
        display = import_module("IPython.display").display
        self._begin = self._updated = time.monotonic()
        self._handle = display(self._shown(), raw=True, display_id=True)

    def stop(self) -> None:
        self._is_over = True
        self._refresh()
        self._handle = None

    def update(
        self, completed: int | None = None, *, rate: str | None = None, latest: str | None = None
    ) -> None:
        if completed is not None:
            # What was done before, such as the rounds of a checkpoint, says nothing about the time.
            self._done, self._first = completed, completed if self._first is None else self._first
        self._rate = self._rate if rate is None else rate
        self._latest = self._latest if latest is None else latest
        if time.monotonic() - self._updated >= _SECONDS:
            self._refresh()

    def _refresh(self) -> None:
        if self._handle is not None:
            self._updated = time.monotonic()
            self._handle.update(self._shown(), raw=True)

    def _shown(self) -> dict[str, str]:
        """The bar as text and as HTML, from which a notebook chooses."""
        texts = [f"{self._noun} {self._done:,}/{self._total:,}", *filter(None, [self._rate, self._time()])]
        share = self._done / self._total if self._total else 1.0
        latest = [self._latest] if self._latest else []
        html = notebook.piece(notebook.gauge([texts[0], share, *texts[1:], *latest]))
        return {"text/plain": ", ".join([*texts, *latest]), "text/html": html}

    def _time(self) -> str:
        """The time that it took, also if it ended early, or that is left; empty before anything is known."""
        seconds, new = time.monotonic() - self._begin, self._done - (self._first or 0)
        if self._done >= self._total:
            return f"took {_clock(seconds)}"
        if self._is_over:
            return f"stopped after {_clock(seconds)}"
        return f"{_clock(seconds * (self._total - self._done) / new)} left" if new > 0 else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
