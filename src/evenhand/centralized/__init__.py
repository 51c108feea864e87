"""Centralised training of one model on any risk of its losses, with the solvers of TERM, or with weighted examples.

Solvers are values; :func:`fit` runs them.  Weightings of examples are values, too; :func:`weighted` makes solvers of
them.
"""

from evenhand.centralized._fit import Fit, fit
from evenhand.centralized._solver import Solver
from evenhand.centralized._solvers import batch, grouped, stochastic
from evenhand.centralized._weighting import Weighed, Weighting, weighted
from evenhand.centralized.crr import crr
from evenhand.centralized.hard_mine import hard_mine
from evenhand.centralized.inverse_ratio import inverse_ratio
from evenhand.centralized.learn_to_reweight import learn_to_reweight
from evenhand.centralized.mentornet_pd import mentornet_pd
from evenhand.centralized.quasi_newton import quasi_newton
from evenhand.centralized.random_weights import random_weights
from evenhand.centralized.self_paced import self_paced
from evenhand.centralized.stir import stir

__all__ = [
    "Fit",
    "Solver",
    "Weighed",
    "Weighting",
    "batch",
    "crr",
    "fit",
    "grouped",
    "hard_mine",
    "inverse_ratio",
    "learn_to_reweight",
    "mentornet_pd",
    "quasi_newton",
    "random_weights",
    "self_paced",
    "stir",
    "stochastic",
    "weighted",
]
