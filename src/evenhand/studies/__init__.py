"""Many runs as one: grids, seeds, a fair choice of each method's hyper-parameters, and differences one can trust."""

from evenhand.studies._make import study
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.studies._select import Rule
from evenhand.studies._study import Line, Study

__all__ = ["Line", "Outcome", "Rule", "Setting", "Study", "study"]
