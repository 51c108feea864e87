"""Closed forms that methods are held against: problems so simple that the best personal models are known."""

from evenhand.theory.federated_regression import (
    FederatedRegression,
    federated_regression,
    posterior_means,
    ridge,
)
from evenhand.theory.point_estimation import PointEstimation, point_estimation

__all__ = [
    "FederatedRegression",
    "PointEstimation",
    "federated_regression",
    "point_estimation",
    "posterior_means",
    "ridge",
]
