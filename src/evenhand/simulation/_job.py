"""A run as a value: what to simulate, before anything is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from evenhand.data import FederatedDataset
from evenhand.evaluation import Metrics
from evenhand.evaluation.metrics import resolved
from evenhand.simulation._checkpoint import Checkpoint
from evenhand.simulation._checks import check_numbers
from evenhand.simulation._identity import identity
from evenhand.simulation._served import Untrained
from evenhand.simulation.setup import set_up
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack

__all__ = ["Job", "cohort_of", "identify", "settings"]


class Job(NamedTuple):
    """One run: arguments of :func:`evenhand.simulation.iterate`."""

    algorithm: Algorithm
    data: FederatedDataset
    rounds: int
    seed: int = 0
    cohort: int | None = None
    eval_every: int = 10
    attack: Attack | None = None
    systems: Systems | None = None
    checkpoint: str | Path | Checkpoint | None = None
    eval_clients: int | None = None
    metrics: Metrics = ()
    untrained: Untrained = "global"


def identify(job: Job) -> dict[str, Any]:
    """What must be equal for two jobs to be the same run, except the seed, under which a result is kept."""
    setup = set_up(job.algorithm, job.data, devices=1, lanes=1, **settings(job))
    # Which clients are malicious depends on the seed: attacks are distinguished by what they do at seed 0.
    same = identity(setup, job.data, 0, job.eval_clients, job.untrained)
    del same["seed"]
    if metrics := resolved(job.metrics):  # no part of what is trained, but of what is kept of it
        same["metrics"] = [metric.name for metric in metrics]
    return same | {"rounds": job.rounds, "eval_every": job.eval_every}


def cohort_of(job: Job) -> int:
    """The cohort."""
    how = (
        job.rounds,
        job.seed,
        job.cohort,
        job.eval_every,
        None,
        None,
        job.eval_clients,
        job.systems,
        job.attack,
        job.untrained,
    )
    return check_numbers(job.algorithm, job.data, *how)


def settings(job: Job) -> dict[str, Any]:
    """Of what is set up: keyword arguments of ``set_up``."""
    return {"cohort": cohort_of(job), "seed": job.seed, "attack": job.attack, "systems": job.systems}
