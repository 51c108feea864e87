"""The design matrix of linear regression, with its column of ones, in coordinates in which float32 is enough."""

from __future__ import annotations

import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError, expect
from evenhand.types import Array, Model, Params

_RANK = 1e-6
"""Directions with singular values below this share of the largest are left out: in float32 they are rounding."""


class Design(NamedTuple):
    """``[x, 1] = basis @ diag(stretch) @ axes.T``, by singular values that are not 0, with the labels.

    The factors are NumPy's, in float64, in which forming ``X'X`` loses nothing that matters.

    Attributes:
      basis: ``(n, rank)``, orthonormal columns.
      stretch: ``(rank,)``.
      axes: ``(features + 1, rank)``, orthonormal columns.
      labels: ``(n,)``.
    """

    basis: np.ndarray
    stretch: np.ndarray
    axes: np.ndarray
    labels: np.ndarray


def check_linear(solver: str, model: Model) -> None:
    """Checks that a model is linear regression with one output and squared error."""
    expect("model", model, Model, "eh.models.linear_regression(features=10)")
    if re.fullmatch(r"linear_regression\(features=\d+, outputs=1\)", model.name):
        losses = model.losses(jnp.array([[3.0], [0.5]]), jnp.array([1.0, 1.0]))
        if np.array_equal(losses, [4.0, 0.25]):
            return
    raise EvenhandError(
        f"{solver}() solves linear regression with one output and squared error in closed form, and cannot train "
        f"{model.name or 'this model'}: give it eh.models.linear_regression(features), or use eh.centralized.batch()."
    )


def design(solver: str, params: Params, x: Array, y: Array) -> Design:
    """The factors of these examples, which must fit the model."""
    rows, targets = (np.asarray(part, np.float64).reshape(len(part), -1) for part in (x, y))
    features = params["kernel"].shape[0]
    if rows.shape[1] != features or targets.shape[1] != 1:
        raise EvenhandError(
            f"{solver}() got x of shape {x.shape} and y of shape {y.shape}, but its model takes {features} features "
            "and one target per row."
        )
    if not (np.isfinite(rows).all() and np.isfinite(targets).all()):
        raise EvenhandError(
            f"{solver}() got features or labels that are NaN or infinite: leave out such rows."
        )
    basis, stretch, axes = np.linalg.svd(np.hstack([rows, np.ones((len(rows), 1))]), full_matrices=False)
    rank = int(np.sum(stretch > _RANK * stretch[0]))
    return Design(basis[:, :rank], stretch[:rank], axes[:rank].T, targets[:, 0])


def linear_params(weights: Array) -> Params:
    """Kernel and bias, from one weight per column of the design matrix."""
    return {"kernel": weights[:-1, None], "bias": weights[-1:]}
