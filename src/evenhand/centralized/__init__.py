"""Centralised training of one model on any risk of its losses, with the solvers of TERM.

Solvers are values; :func:`fit` runs them.
"""

from evenhand.centralized._fit import Fit, Solver, fit
from evenhand.centralized.batch import batch
from evenhand.centralized.grouped import grouped
from evenhand.centralized.stochastic import stochastic

__all__ = ["Fit", "Solver", "batch", "fit", "grouped", "stochastic"]
