r"""Local work: what a client does with its own rows between a broadcast and its upload.

A *solver* runs some optimiser on :math:`F_k` from the broadcast parameters.  What a method adds to the gradient (a
proximal term, a control variate) is an optax transformation placed before the optimiser, so that any method works
with any optimiser and any solver of the user's own.

No row is wasted or counted twice: batches are consecutive slices of a fresh permutation of the client's own rows,
the last one may be smaller and is used with the mean over its own size, and nothing is padded.
"""

from evenhand.local._corrections import MeanGradient, mean_gradient, proximal, shift
from evenhand.local._passes import full_gradient, full_loss
from evenhand.local._sgd import RowRisk, Sgd, Solver, effort_of, sgd, step_per_row

__all__ = [
    "MeanGradient",
    "RowRisk",
    "Sgd",
    "Solver",
    "effort_of",
    "full_gradient",
    "full_loss",
    "mean_gradient",
    "proximal",
    "sgd",
    "shift",
    "step_per_row",
]
