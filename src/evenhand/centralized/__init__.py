"""Centralised training of one model on any risk of its losses, with the solvers of TERM.

Solvers are values; :func:`fit` runs them.
"""

from evenhand.centralized._fit import Fit, fit
from evenhand.centralized._solver import Solver
from evenhand.centralized._solvers import batch, grouped, stochastic
from evenhand.centralized._weighting import Weighed, Weighting
from evenhand.centralized.quasi_newton import quasi_newton

__all__ = [
    "Fit",
    "Solver",
    "Weighed",
    "Weighting",
    "batch",
    "fit",
    "grouped",
    "quasi_newton",
    "stochastic",
]
