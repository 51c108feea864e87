"""Making the runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from evenhand.errors import StorageError
from evenhand.lock import held
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
        found, alive = dict[int, Outcome](), list(range(len(planned)))
        first = planned[0].job
        for rung in rungs(halving, first.rounds, first.eval_every):
            assert halving is not None
            reached = _run(planned, alive, rung, measured, keeps, seconds, shown)
            best = survivors(list(reached.values()), by, halving.keep)
            ended = [i for i in alive if planned[i].setting not in best]
            alive = [i for i in alive if planned[i].setting in best]
            identities = {} if keeps is None else _identities(planned, ended, None, measured)
            for i in ended:
                found[i] = _stopped(reached[i], rung)
                shown.ended(i, found[i])
                if keeps is not None:
                    keeps.save(found[i], identities[i])
        found |= _run(planned, alive, None, measured, keeps, seconds, shown)
    return [found[i] for i in range(len(planned))]


def _stopped(outcome: Outcome, rung: int) -> Outcome:
    if outcome.status != "done":
        return outcome
    reason = f"Stopped after {rung} rounds, when others of its method were better."
    return outcome._replace(status="stopped", reason=reason)


def _run(
    planned: Sequence[Planned],
    alive: Sequence[int],
    rung: int | None,
    measured: Measured,
    store: Store | None,
    seconds: float,
    shown: Shown,
) -> dict[int, Outcome]:
    """Position -> outcome of these runs after their last round, or at a rung."""
    found, missing, jobs = dict[int, Outcome](), list[int](), list[Job]()
    identities = {} if store is None else _identities(planned, alive, rung, measured)
    for i in alive:
        setting, seed, job, _ = planned[i]
        known = None if store is None else store.load(setting, seed, identities[i], rung)
        if known is not None and known.status != "stopped":  # which may go on now
            found[i] = known
            if rung is None:
                shown.ended(i, known)
            continue
        if store is not None:
            place = Checkpoint(store.checkpoint(setting, seed), seconds, last=rung is not None)
            job = job._replace(checkpoint=place)
        missing.append(i)
        jobs.append(job if rung is None else job._replace(rounds=rung))
    for position, result in iterate_many(jobs):
        setting, seed, _, new_data = planned[i := missing[position]]
        if isinstance(result, StorageError):  # which is no result of the run
            raise result
        shown.measured(i, setting, planned[i].job, result)
        told = measured.take(setting, seed, result)
        if isinstance(result, Exception) or result.info["rounds"] == jobs[position].rounds:
            found[i] = Outcome.of(setting, seed, result, told, new_data=new_data)
            if store is not None:
                store.save(found[i], identities[i], rung)
            if rung is None:
                shown.ended(i, found[i])
        del result  # its memory goes to the next rounds
    return found


def _identities(
    planned: Sequence[Planned], alive: Sequence[int], rung: int | None, measured: Measured
) -> dict[int, dict[str, Any]]:
    """What tells runs of the same name apart, such as those of a method that has been changed since."""
    known: dict[Any, dict[str, Any]] = {}
    found: dict[int, dict[str, Any]] = {}
    for i in alive:
        job = planned[i].job
        kind = id(job.algorithm), id(job.data), id(job.attack), id(job.systems)
        if kind not in known:
            try:
                known[kind] = identify(job if rung is None else job._replace(rounds=rung))
            except Exception:  # it will be found, and told, when the run begins
                known[kind] = {}
        found[i] = known[kind] | measured.identity
    return found
