"""Who is told how far the runs of a study are: its bar, and trackers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from evenhand.simulation import Job, Run
from evenhand.studies._bar import Bar
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.watch import Watcher, Watching

__all__ = ["Shown"]


class Shown:
    """Tells the bar and the trackers; runs that have not ended on leaving are interrupted.

    Args:
      bar: the bar.
      trackers: what follows each run.
    """

    def __init__(self, bar: Bar, trackers: Sequence[Watcher]) -> None:
        self._bar, self._trackers = bar, trackers
        self._watching: dict[int, Watching] = {}

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._watching.values():
            each.end("interrupted")

    def measured(self, run: int, setting: Setting, job: Job, result: Run | Exception) -> None:
        """A run has come to an evaluation, or has failed."""
        if self._trackers and run not in self._watching:
            numbers = {"method": setting.method, **setting.numbers, **setting.case}
            how = {"rounds": job.rounds, "seed": job.seed, "cohort": job.cohort, "eval_every": job.eval_every}
            about = {"data": job.data.name, "clients": job.data.num_clients, **how, **numbers}
            self._watching[run] = Watching(self._trackers, f"{setting}, seed {job.seed}", about)
        if isinstance(result, Run):
            self._bar.move(run, result.info["rounds"])
            if run in self._watching:
                self._watching[run].show(result.history)

    def ended(self, run: int, outcome: Outcome) -> None:
        """A run has ended, now or in an earlier session."""
        self._bar.ended(run, outcome)
        if run in self._watching:
            self._watching.pop(run).end(outcome.status)
