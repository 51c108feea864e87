"""Risks: they reduce the losses of examples or of clients to one number, and say how much each of them counts.

Every risk is a :class:`evenhand.types.Risk`.  Its ``value`` is an objective for training, its ``weights`` are those
that a server gives to clients; both ignore a loss of weight 0.
"""

from evenhand.risks.chi_square_ball import chi_square_ball
from evenhand.risks.hierarchical import hierarchical
from evenhand.risks.human_risk import human_risk
from evenhand.risks.mean import mean, mixture, project_simplex
from evenhand.risks.power import power
from evenhand.risks.superquantile import (
    inverse_superquantile,
    smoothed_superquantile,
    squared_superquantile,
    superquantile,
)
from evenhand.risks.tilted import tilted
from evenhand.risks.tilted_bounds import entropic_value_at_risk, tilted_value_at_risk
from evenhand.risks.value_at_risk import kth_smallest, tail_mean, value_at_risk

__all__ = [
    "chi_square_ball",
    "entropic_value_at_risk",
    "hierarchical",
    "human_risk",
    "inverse_superquantile",
    "kth_smallest",
    "mean",
    "mixture",
    "power",
    "project_simplex",
    "smoothed_superquantile",
    "squared_superquantile",
    "superquantile",
    "tail_mean",
    "tilted",
    "tilted_value_at_risk",
    "value_at_risk",
]
