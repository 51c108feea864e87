"""Making the runs of a study: phase by phase where settings stop early, and from its folder where they ended before.

:func:`run_all` is the whole; :class:`_Runs` trains what is missing, here or at workers.  Each run is shown in a bar and
to trackers (:class:`Display`) while it trains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from evenhand.errors import EvenhandError, truth_value
from evenhand.live import line
from evenhand.report import RunView, direction, statistics
from evenhand.report.formatting import value
from evenhand.simulation import Checkpoint, Job, Run, identify
from evenhand.studies._columns import Crew, Measurements, Planned, Workers, columns_of, trained
from evenhand.studies._selection import Halving, Outcome, Rule, Setting, rungs, survivors
from evenhand.studies._store import UNASKED, Store
from evenhand.watch import Watcher, Watching


class _Phase(NamedTuple):
    """Rounds that all runs which are still alive make before the next choice of :class:`Halving`, or to the end.

    Attributes:
      rung: after how many rounds it ends; None: after the last.
      batches: which runs train together, as positions.
    """

    rung: int | None
    batches: list[list[int]]


def run_all(
    planned: Sequence[Planned],
    by: Rule,
    halving: Halving | None,
    measured: Measurements,
    store: Store | None,
    seconds: float,
    shown: Display,
    workers: Workers | None = None,
) -> list[Outcome]:
    """What comes of each run, in their order; those that the store holds already are not repeated.

    Args:
      planned: the runs.
      by: the rule by which settings are stopped.
      halving: when they are; None: never.
      measured: measures the runs by the user's function.
      store: where results are kept.
      seconds: between two saves of the state of a run that has not ended.
      shown: follows the runs; it counts those of a later call on from these.
      workers: where the runs train; None: in this process.
    """
    if not planned:
        return []
    with ExitStack() as stack:
        keeps = store
        if store is None and halving is not None:
            # Without a folder, too, runs continue after a rung from their checkpoints: those of all runs side by side
            # may not fit in memory.
            keeps = Store(Path(stack.enter_context(TemporaryDirectory(prefix="evenhand-"))))
        every = list(range(len(planned)))
        batches = [every] if keeps is None else keeps.plan([(run.setting, run.seed) for run in planned])
        runs = _Runs(planned, measured=measured, store=keeps, seconds=seconds, shown=shown, workers=workers)
        outcomes, alive, phases = dict[int, Outcome](), every, list[_Phase]()
        first = planned[0].job
        for rung in rungs(halving, first.rounds, first.eval_every):
            assert halving is not None
            phases.append(_Phase(rung, _among(batches, alive)))
            reached = runs.through(phases)
            best = survivors(list(reached.values()), by, halving.keep)
            ended = [i for i in alive if planned[i].setting not in best]
            alive = [i for i in alive if planned[i].setting in best]
            for i in ended:
                outcomes[i] = runs.stopped(i, reached[i], rung)
                shown.ended(i, outcomes[i])
        outcomes |= runs.through([*phases, _Phase(None, _among(batches, alive))])
    shown.advance(len(planned))
    return [outcomes[i] for i in range(len(planned))]


def _among(batches: list[list[int]], alive: Sequence[int]) -> list[list[int]]:
    """The batches without the runs that were stopped."""
    rest = set(alive)
    return [left for batch in batches if (left := [i for i in batch if i in rest])]


@dataclass(frozen=True)
class _Runs:
    """Makes the runs of a study that the store does not hold, phase by phase.

    All runs of a batch keep their places, also those that have ended before: how numbers are rounded depends on the
    columns in which runs train, and may not depend on when a study was interrupted.
    """

    planned: Sequence[Planned]
    measured: Measurements
    store: Store | None
    seconds: float
    shown: Display
    workers: Workers | None
    identities: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def through(self, phases: Sequence[_Phase]) -> dict[int, Outcome]:
        """Position -> outcome of the runs of the last of these phases, after it."""
        *before, phase = phases
        runs = sorted(i for batch in phase.batches for i in batch)
        saved = {i: self._saved(i, phase.rung) for i in runs}
        outcomes = {
            i: run
            for i, run in saved.items()
            if run is not None and not self._may_continue(i, run, phase.rung)
        }
        missing = [i for i in runs if i not in outcomes]
        if phase.rung is not None:
            self._check_rung(missing, phase.rung)
        for i in outcomes if phase.rung is None else ():
            self.shown.ended(i, outcomes[i])
        if self.store is not None:
            # A run whose state was lost makes each phase again, beside the same runs: one long phase would round
            # otherwise, since fewer runs are in the columns of later phases.
            for earlier in before:
                lost = [i for i in missing if self._reached(i) < (earlier.rung or 0)]
                self._train(earlier, lost)
        outcomes |= self._train(phase, missing)
        # In the order of the plan: of settings that are equally good, the first is chosen.
        return {i: outcomes[i] for i in sorted(outcomes)}

    def identity(self, i: int, rung: int | None) -> dict[str, Any]:
        """What distinguishes runs of the same name, such as those of a method that has been changed since."""
        job = self.planned[i].job
        # Without the seed: the seeds of a setting share what takes long, tracing the method and hashing the data.
        kind = id(job.algorithm), id(job.data), id(job.attack), id(job.systems), job.cohort, rung
        if kind not in self.identities:
            try:
                self.identities[kind] = UNASKED | identify(job if rung is None else job._replace(rounds=rung))
            except Exception:
                # It fails again, and is reported, when the run begins: no earlier result is its own.
                fault = {"method (with its settings, systems and attack)": "one that cannot be set up"}
                self.identities[kind] = fault
        return self.identities[kind] | ({"measured": True} if self.measured.asks else {})

    def _saved(self, i: int, rung: int | None) -> Outcome | None:
        setting, seed, *_ = self.planned[i]
        return self.store and self.store.load(setting, seed, self.identity(i, rung), rung)

    def stopped(self, i: int, outcome: Outcome, rung: int) -> Outcome:
        """The outcome of a run that goes no further than a rung; that of all rounds, if it has made them before."""
        whole = self._saved(i, None)
        if whole is not None and not self._may_continue(i, whole, None):
            return whole
        if outcome.status == "done":
            reason = f"Stopped after {rung} rounds, when others of its method were better."
            outcome = outcome._replace(status="stopped", reason=reason)
        # A study that is read back needs a result of every run; one that is started again does not take this one for an
        # end, since other settings may have come that are worse.
        if self.store is not None:
            self.store.save(outcome, self.identity(i, None), keeps_state=self._reached(i) > rung)
        return outcome

    def _may_continue(self, i: int, outcome: Outcome, rung: int | None) -> bool:
        """Whether a run ended at an earlier rung: it was stopped there, or had diverged, from which it may recover."""
        rounds = self.planned[i].job.rounds if rung is None else rung
        return outcome.status == "stopped" or (
            outcome.view is not None and outcome.view.info["rounds"] < rounds
        )

    def _check_rung(self, missing: Sequence[int], rung: int) -> None:
        """Refuses to choose at a rung that runs have passed, whose results or states would be lost."""
        # There is always one: a study without a folder keeps its states for halving in a temporary one.
        assert self.store is not None
        for i in missing:
            setting, seed, *_ = self.planned[i]
            whole = self._saved(i, None)
            is_beyond = whole is not None and whole.view is not None and whole.view.info["rounds"] > rung
            if is_beyond or self._reached(i) > rung:
                raise EvenhandError(
                    f"study(halving=...): {setting}, seed {seed}, has more than {rung} rounds done in "
                    f"{self.store.folder}, without a choice after these: start the study again without halving, which "
                    f"repeats no finished run, or give another folder."
                )

    def _reached(self, i: int) -> int:
        """Rounds done in the latest state of a run."""
        assert self.store is not None
        place = self.store.checkpoint(self.planned[i].setting, self.planned[i].seed)
        return max(Checkpoint(place).saved(), default=0)

    def _train(self, phase: _Phase, missing: Sequence[int]) -> dict[int, Outcome]:
        """Position -> outcome of these runs, which train beside the others of their batches."""
        outcomes = dict[int, Outcome]()
        for i, view, outcome in self._progress(phase, set(missing)):
            setting, _, job, _ = self.planned[i]
            self.shown.measured(i, setting, job, view)
            if outcome is None:
                continue
            outcomes[i] = outcome
            if self.store is not None:
                self.store.save(outcome, self.identity(i, phase.rung), phase.rung)
            if phase.rung is None:
                self.shown.ended(i, outcome)
        return outcomes

    def _progress(
        self, phase: _Phase, missing: set[int]
    ) -> Iterator[tuple[int, Run | RunView | None, Outcome | None]]:
        """Yields ``(position, run so far or None if it failed, its outcome if that was its end)``."""
        columns: list[tuple[list[int], Crew]] = []
        for batch in phase.batches:
            if not (wanted := [place for place, i in enumerate(batch) if i in missing]):
                continue
            runs = [self.planned[i]._replace(job=self._job(i, phase.rung)) for i in batch]
            if self.workers is not None:
                parts = columns_of(runs, wanted)
                columns += [([batch[place] for place in places], column) for places, column in parts]
                continue
            for place, result, outcome in trained(runs, wanted, self.measured):
                yield batch[place], None if isinstance(result, Exception) else result, outcome
        if self.workers is None:
            return
        # All at once, so that no worker waits for the columns of another batch.
        for position, outcomes in self.workers.train([column for _, column in columns]):
            for place, outcome in outcomes.items():
                yield columns[position][0][place], outcome.view, outcome

    def _job(self, i: int, rung: int | None) -> Job:
        setting, seed, job, _ = self.planned[i]
        if self.store is not None:
            # The state at a rung is saved however soon it comes: the next phase begins there.
            place = Checkpoint(self.store.checkpoint(setting, seed), self.seconds, last=rung is not None)
            job = job._replace(checkpoint=place)
        return job if rung is None else job._replace(rounds=rung)


# --- how far the study is -------------------------------------------------------------------------------------


class Display:
    """Updates a live line on stderr and the trackers; runs that have not ended on leaving are interrupted.

    Args:
      runs: the rounds of each run.
      by: the rule whose best setting is shown.
      trackers: what follows each run.
      show: whether there is a line.
    """

    def __init__(self, runs: Sequence[int], by: Rule, trackers: Sequence[Watcher], *, show: bool) -> None:
        self._begin, self._new, self._first = time.perf_counter(), 0, 0
        self._bar = line("runs", len(runs), show=truth_value("progress", show), is_text_long=True)
        self._rounds, self._done, self._by = list(runs), [0] * len(runs), by
        self._values: dict[Setting, list[float]] = {}
        self._trackers, self._watching = trackers, dict[int, Watching]()

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        for watching in self._watching.values():
            watching.end("interrupted")

    def advance(self, runs: int) -> None:
        """So many runs are over: the next ones are counted from 0 again."""
        self._first += runs

    def measured(self, run: int, setting: Setting, job: Job, view: Run | RunView | None) -> None:
        """A run has come to an evaluation, or has failed: then there is no ``view`` of it."""
        run += self._first
        if self._trackers and run not in self._watching:
            about = {"data": job.data.name, "clients": job.data.num_clients, "rounds": job.rounds}
            about |= {"seed": job.seed, "cohort": job.cohort, "eval_every": job.eval_every}
            about |= {"method": setting.method, **setting.numbers, **setting.case}
            self._watching[run] = Watching(self._trackers, f"{setting}, seed {job.seed}", about)
        if view is not None:
            self._move(run, view.info["rounds"])
            if run in self._watching:
                self._watching[run].show(view.history)

    def ended(self, run: int, outcome: Outcome) -> None:
        """A run has ended, now or in an earlier session."""
        run += self._first
        self._done[run] = self._rounds[run]
        if outcome.status == "done" and outcome.seen is not None:
            by, view = self._by, outcome.seen
            metric = by.metric_of([view])
            sign, stats = direction(by.statistic, metric), statistics(view, by.split, metric)
            self._values.setdefault(outcome.setting, []).append(sign * stats[by.statistic])
            means = {setting: float(np.mean(values)) for setting, values in self._values.items()}
            # Without a choice there need not be examples to choose by.
            if finite := {setting: mean for setting, mean in means.items() if np.isfinite(mean)}:
                best = max(finite, key=lambda setting: finite[setting])
                shown = value(sign * finite[best], metric)
                self._bar.update(latest=f"best so far {best}: {by.split} {by.statistic} {shown}")
        self._show()
        if run in self._watching:
            self._watching.pop(run).end(outcome.status)

    def _move(self, run: int, rounds: int) -> None:
        """A run has come this far.  Parts of runs count, since runs that train together end together."""
        self._new += rounds - self._done[run]
        self._done[run] = rounds
        # Of the rounds of this session alone: those that were found in the folder took no time.
        minutes = (time.perf_counter() - self._begin) / 60
        rate = self._new / max(float(np.mean(self._rounds)), 1.0) / max(minutes, 1e-9)
        self._bar.update(rate=f"{rate:.3g} a minute")
        self._show()

    def _show(self) -> None:
        shares = [done / max(whole, 1) for done, whole in zip(self._done, self._rounds, strict=True)]
        self._bar.update(int(sum(shares)))
