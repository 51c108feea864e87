"""Theory as numbers: closed forms that methods are held against, and the constants of their convergence theorems."""

from evenhand.theory.federated_regression import (
    FederatedRegression,
    federated_regression,
    posterior_means,
    ridge,
)
from evenhand.theory.fedprox import (
    ProximalWeights,
    dissimilarity_bound,
    fedprox_decrease,
    fedprox_mu,
    fedprox_rounds,
)
from evenhand.theory.partial_personalization import PartialProblem, fedalt_variance, fedsim_variance
from evenhand.theory.point_estimation import PointEstimation, point_estimation
from evenhand.theory.superquantile import (
    DeltaFlConvex,
    cohort_bias,
    cohort_variance,
    delta_fl_convex,
    delta_fl_step,
    smoothed_lipschitz,
    smoothing_bias,
)

__all__ = [
    "DeltaFlConvex",
    "FederatedRegression",
    "PartialProblem",
    "PointEstimation",
    "ProximalWeights",
    "cohort_bias",
    "cohort_variance",
    "delta_fl_convex",
    "delta_fl_step",
    "dissimilarity_bound",
    "fedalt_variance",
    "federated_regression",
    "fedprox_decrease",
    "fedprox_mu",
    "fedprox_rounds",
    "fedsim_variance",
    "point_estimation",
    "posterior_means",
    "ridge",
    "smoothed_lipschitz",
    "smoothing_bias",
]
