"""Federated runs on one machine, at the speed of the chip."""

from evenhand.simulation._checkpoint import identify
from evenhand.simulation._job import Checkpoint, Job, cohort_of
from evenhand.simulation._many import iterate_many
from evenhand.simulation._run import Run
from evenhand.simulation._simulate import iterate, simulate
from evenhand.simulation.loaded import SavedRun, load_run

__all__ = [
    "Checkpoint",
    "Job",
    "Run",
    "SavedRun",
    "cohort_of",
    "identify",
    "iterate",
    "iterate_many",
    "load_run",
    "simulate",
]
