"""Making the runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from evenhand.errors import StorageError
from evenhand.records import held
from evenhand.simulation import Checkpoint, Job, identify, iterate_many
from evenhand.studies._halving import Halving, rungs, survivors
from evenhand.studies._measured import Measured
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.studies._select import Rule
from evenhand.studies._shown import Shown
from evenhand.studies._store import Store

__all__ = ["Planned", "run_all"]


class Planned(NamedTuple):
    """A run that a study has to make.

    Attributes:
      setting: the method and its hyper-parameters.
      seed: the run's seed.
      job: the run.
      new_data: whether each seed has its own data.
    """

    setting: Setting
    seed: int
    job: Job
    new_data: bool


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
    measured: Measured,
    store: Store | None,
    seconds: float,
    shown: Shown,
) -> list[Outcome]:
    """What comes of each run, in their order; those that the store holds already are not repeated.

    Args:
      planned: the runs.
      by: the rule by which settings are stopped.
      halving: when they are; None: never.
      measured: what a function of the user's tells of the runs.
      store: where results are kept.
      seconds: between two saves of the state of a run that has not ended.
      shown: follows the runs.
    """
    with ExitStack() as stack:
        stack.enter_context(shown)
        keeps = store
        if store is not None:
            stack.enter_context(held(store.folder))
        elif halving is not None:  # stopped runs go on from their checkpoints
            keeps = Store(Path(stack.enter_context(TemporaryDirectory(prefix="evenhand-"))))
        every = list(range(len(planned)))
        batches = [every] if keeps is None else keeps.plan([each[:2] for each in planned])
        runs = _Runs(planned, measured, keeps, seconds, shown)
        found, alive, phases = dict[int, Outcome](), every, list[_Phase]()
        first = planned[0].job
        for rung in rungs(halving, first.rounds, first.eval_every):
            assert halving is not None
            phases.append(_Phase(rung, _among(batches, alive)))
            reached = runs.through(phases)
            best = survivors(list(reached.values()), by, halving.keep)
            ended = [i for i in alive if planned[i].setting not in best]
            alive = [i for i in alive if planned[i].setting in best]
            for i in ended:
                found[i] = _stopped(reached[i], rung)
                shown.ended(i, found[i])
                if keeps is not None:
                    keeps.save(found[i], runs.identity(i, None))
        found |= runs.through([*phases, _Phase(None, _among(batches, alive))])
    return [found[i] for i in range(len(planned))]


def _among(batches: list[list[int]], alive: Sequence[int]) -> list[list[int]]:
    """The batches without the runs that were stopped."""
    rest = set(alive)
    return [left for batch in batches if (left := [i for i in batch if i in rest])]


def _stopped(outcome: Outcome, rung: int) -> Outcome:
    if outcome.status != "done":
        return outcome
    reason = f"Stopped after {rung} rounds, when others of its method were better."
    return outcome._replace(status="stopped", reason=reason)


class _Runs:
    """Makes the runs of a study that the store does not hold, phase by phase.

    All runs of a batch keep their places, also those that have ended before: how numbers are rounded depends on the
    columns in which runs train, and may not depend on when a study was interrupted.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        measured: Measured,
        store: Store | None,
        seconds: float,
        shown: Shown,
    ) -> None:
        self._planned, self._measured, self._store = planned, measured, store
        self._seconds, self._shown = seconds, shown
        self._identities: dict[Any, dict[str, Any]] = {}

    def through(self, phases: Sequence[_Phase]) -> dict[int, Outcome]:
        """Position -> outcome of the runs of the last of these phases, after it."""
        *before, phase = phases
        found, missing = dict[int, Outcome](), list[int]()
        for i in sorted(i for batch in phase.batches for i in batch):
            saved = self._saved(i, phase.rung)
            if saved is None or saved.status == "stopped":  # which may go on now
                missing.append(i)
                continue
            found[i] = saved
            if phase.rung is None:
                self._shown.ended(i, saved)
        if self._store is not None:
            for earlier in before:  # a run whose state was lost makes each phase again, beside the same runs
                lost = [i for i in missing if self._reached(i) < (earlier.rung or 0)]
                self._train(earlier, lost)
        found |= self._train(phase, missing)
        return {i: found[i] for i in sorted(found)}  # of settings that are equally good, the first is chosen

    def identity(self, i: int, rung: int | None) -> dict[str, Any]:
        """What tells runs of the same name apart, such as those of a method that has been changed since."""
        job = self._planned[i].job
        kind = id(job.algorithm), id(job.data), id(job.attack), id(job.systems), rung
        if kind not in self._identities:
            try:
                self._identities[kind] = identify(job if rung is None else job._replace(rounds=rung))
            except Exception:  # it will be found, and told, when the run begins
                self._identities[kind] = {}
        return self._identities[kind] | self._measured.identity

    def _saved(self, i: int, rung: int | None) -> Outcome | None:
        setting, seed, *_ = self._planned[i]
        store = self._store
        return None if store is None else store.load(setting, seed, self.identity(i, rung), rung)

    def _reached(self, i: int) -> int:
        """Rounds done in the latest state of a run."""
        assert self._store is not None
        setting, seed, *_ = self._planned[i]
        return max(Checkpoint(self._store.checkpoint(setting, seed)).saved(), default=0)

    def _train(self, phase: _Phase, missing: Sequence[int]) -> dict[int, Outcome]:
        """Position -> outcome of these runs, which train beside the others of their batches."""
        found = dict[int, Outcome]()
        for batch in phase.batches:
            if not (wanted := [place for place, i in enumerate(batch) if i in set(missing)]):
                continue
            jobs = [self._job(i, phase.rung) for i in batch]
            for place, result in iterate_many(jobs, wanted):
                if isinstance(result, StorageError):  # which is no result of the run
                    raise result
                setting, seed, job, new_data = self._planned[i := batch[place]]
                self._shown.measured(i, setting, job, result)
                told = self._measured.take(setting, seed, result)
                if isinstance(result, Exception) or result.info["rounds"] == jobs[place].rounds:
                    found[i] = Outcome.of(setting, seed, result, told, new_data=new_data)
                    if self._store is not None:
                        self._store.save(found[i], self.identity(i, phase.rung), phase.rung)
                    if phase.rung is None:
                        self._shown.ended(i, found[i])
                del result  # its memory goes to the next rounds
        return found

    def _job(self, i: int, rung: int | None) -> Job:
        setting, seed, job, _ = self._planned[i]
        if self._store is not None:
            place = Checkpoint(self._store.checkpoint(setting, seed), self._seconds, last=rung is not None)
            job = job._replace(checkpoint=place)
        return job if rung is None else job._replace(rounds=rung)
