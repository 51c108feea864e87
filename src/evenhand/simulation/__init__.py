"""Federated runs on one machine, at the speed of the chip."""

from evenhand.simulation._checkpoint import Checkpoint
from evenhand.simulation._job import Job, identify
from evenhand.simulation._many import iterate_many
from evenhand.simulation._run import Run
from evenhand.simulation._simulate import iterate, simulate

__all__ = ["Checkpoint", "Job", "Run", "identify", "iterate", "iterate_many", "simulate"]
