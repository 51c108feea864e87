"""Many runs as one: grids, seeds, a fair choice of each method's hyper-parameters, and differences one can trust."""

from typing import TYPE_CHECKING, Any

from evenhand.studies._selection import Halving, Outcome, Rule, Setting, direction
from evenhand.studies._study import Study, load
from evenhand.studies._sweep import Family, study
from evenhand.studies._tables import Line, Tried

if TYPE_CHECKING:
    from evenhand.studies._report import Figures

__all__ = [
    "Family",
    "Figures",
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


def __getattr__(name: str) -> Any:
    """:class:`Figures`, imported when a program first asks for it, since it loads matplotlib."""
    if name != "Figures":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evenhand.studies._report import Figures

    return Figures
