r"""Local work: what a client does with its examples between a broadcast and its upload.

:class:`Work` is a model together with a *solver*, which runs some optimiser on :math:`F_k` from the broadcast
parameters.  What a method adds to the gradient (a proximal term, a control variate) is an optax transformation placed
before the optimiser, so that any method works with any optimiser and any solver of the user's own.

:func:`sgd` is made of three parts that a solver with its own loop can use too: :func:`batches`, the examples of each
step; an estimator of the gradient on them (:func:`batch_gradient`); and the loop, :func:`over_batches`.
"""

from evenhand.local._batches import (
    Batch,
    Batches,
    batches,
    every_row,
    in_turn,
    over_batches,
    rows_in,
    step_per_row,
    with_gradients,
)
from evenhand.local._gradients import (
    Estimator,
    MeanGradient,
    RowRisk,
    batch_gradient,
    full_gradient,
    full_loss,
    mean_gradient,
    proximal,
    shift,
    spared,
)
from evenhand.local._schedules import ClientOpt, Schedule, cosine, steps, warm_up
from evenhand.local._work import (
    SCHEDULE,
    Continued,
    Parts,
    Solver,
    Work,
    check_model,
    check_rows_apart,
    check_work,
    descent,
    marked,
    parts_of,
    sgd,
)

__all__ = [
    "SCHEDULE",
    "Batch",
    "Batches",
    "ClientOpt",
    "Continued",
    "Estimator",
    "MeanGradient",
    "Parts",
    "RowRisk",
    "Schedule",
    "Solver",
    "Work",
    "batch_gradient",
    "batches",
    "check_model",
    "check_rows_apart",
    "check_work",
    "cosine",
    "descent",
    "every_row",
    "full_gradient",
    "full_loss",
    "in_turn",
    "marked",
    "mean_gradient",
    "over_batches",
    "parts_of",
    "proximal",
    "rows_in",
    "sgd",
    "shift",
    "spared",
    "step_per_row",
    "steps",
    "warm_up",
    "with_gradients",
]
