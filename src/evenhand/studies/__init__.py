"""Many runs as one: grids, seeds, a fair choice of each method's hyper-parameters, and differences one can trust."""

from evenhand.studies._selection import Halving, Outcome, Rule, Setting, direction
from evenhand.studies._study import Study, load
from evenhand.studies._sweep import Family, study
from evenhand.studies._tables import Line, Tried

__all__ = [
    "Family",
    "Halving",
    "Line",
    "Outcome",
    "Rule",
    "Setting",
    "Study",
    "Tried",
    "direction",
    "load",
    "study",
]
