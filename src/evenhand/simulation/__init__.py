"""Federated runs on one machine, at the speed of the chip."""

from evenhand.simulation._checkpoint import identify
from evenhand.simulation._estimate import Expectation, estimate
from evenhand.simulation._job import Checkpoint, Execution, Job, check_job, check_start
from evenhand.simulation._many import crews, iterate_many
from evenhand.simulation._run import Run
from evenhand.simulation._simulate import iterate, simulate
from evenhand.simulation.loaded import SavedRun, load_run

__all__ = [
    "Checkpoint",
    "Execution",
    "Expectation",
    "Job",
    "Run",
    "SavedRun",
    "check_job",
    "check_start",
    "crews",
    "estimate",
    "identify",
    "iterate",
    "iterate_many",
    "load_run",
    "simulate",
]
