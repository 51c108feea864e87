"""Federated methods, one file each."""

from evenhand.algorithms.fedavg import fedavg
from evenhand.algorithms.feddane import feddane
from evenhand.algorithms.fedprox import fedprox
from evenhand.algorithms.fedprox_adaptive import fedprox_adaptive
from evenhand.algorithms.scaffold import scaffold

__all__ = ["fedavg", "feddane", "fedprox", "fedprox_adaptive", "scaffold"]
