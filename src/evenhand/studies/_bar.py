"""How far a study is: runs done, their rate, the time left, and the best setting so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from evenhand.live import line
from evenhand.report import statistics
from evenhand.report.formatting import value
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.studies._select import Rule, direction

__all__ = ["Bar"]


class Bar:
    """A live line on stderr; nothing where ``show`` is false.

    Args:
      runs: the rounds of each run.
      by: the rule whose best setting is shown.
      show: whether anything is.
    """

    def __init__(self, runs: Sequence[int], by: Rule, show: bool) -> None:
        self._begin, self._new = time.perf_counter(), 0
        columns = (
            TextColumn("runs"),
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[best]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        )
        self._bar = line(*columns, show=show)
        self._runs = self._bar.add_task("runs", total=len(runs), rate="", best="")
        self._rounds, self._by = list(runs), by
        self._done = [0] * len(runs)
        self._rate, self._best = "", ""
        self._values: dict[Setting, list[float]] = {}

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def move(self, run: int, rounds: int) -> None:
        """A run has come this far.  Parts of runs count, since runs that train together end together."""
        self._new += rounds - self._done[run]
        self._done[run] = rounds
        minutes = (time.perf_counter() - self._begin) / 60
        rate = self._new / max(float(np.mean(self._rounds)), 1.0) / max(minutes, 1e-9)
        self._rate = f"{rate:.3g} a minute"
        self._show()

    def ended(self, run: int, outcome: Outcome) -> None:
        """A run has ended, now or in an earlier session."""
        self._done[run] = self._rounds[run]
        if outcome.status == "done" and outcome.seen is not None:
            by, view = self._by, outcome.seen
            metric = by.metric_of([view])
            sign, found = direction(by.statistic, metric), statistics(view, by.split, metric)
            self._values.setdefault(outcome.setting, []).append(sign * found[by.statistic])
            means = {
                setting: float(np.nan_to_num(np.mean(of), nan=-np.inf))
                for setting, of in self._values.items()
            }
            best = max(means, key=lambda setting: means[setting])
            if np.isfinite(means[best]):  # without a choice there need not be examples to choose by
                shown = value(sign * means[best], metric)
                self._best = f"best so far {best}: {by.split} {by.statistic} {shown}"
        self._show()

    def _show(self) -> None:
        shares = [done / max(whole, 1) for done, whole in zip(self._done, self._rounds, strict=True)]
        self._bar.update(self._runs, completed=int(sum(shares)), rate=self._rate, best=self._best)
