"""Many runs as one: grids, seeds, a fair choice of each method's hyper-parameters, and differences one can trust."""

from evenhand.studies._halving import Halving
from evenhand.studies._lines import Line
from evenhand.studies._make import study
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Family, Setting
from evenhand.studies._select import Rule, direction
from evenhand.studies._study import Study, load
from evenhand.studies._tried import Tried

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
