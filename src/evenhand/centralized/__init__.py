"""Any risk as the objective of one model on rows that lie in one place: the solvers of TERM, and of what is like it.

Solvers are values; :func:`fit` runs them.
"""

from evenhand.centralized._fit import Fit, Solver, fit
from evenhand.centralized.batch import batch
from evenhand.centralized.grouped import grouped
from evenhand.centralized.stochastic import stochastic

__all__ = ["Fit", "Solver", "batch", "fit", "grouped", "stochastic"]
