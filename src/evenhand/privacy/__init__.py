"""Private learning: clipping, noise, sampling and accounting, and the methods made of them."""

from evenhand.privacy.concentrated import (
    concentrated,
    concentrated_epsilon,
    histogram_for,
    no_wrap_modulus,
    quantile_error,
)
from evenhand.privacy.discrete_gaussian import (
    Law,
    discrete_gaussian,
    discrete_gaussian_error,
    discrete_gaussian_law,
    psi,
)
from evenhand.privacy.quantile import Histogram, dyadic_partition, histogram, quantile
from evenhand.privacy.quantile_sum import quantile_sum

__all__ = [
    "Histogram",
    "Law",
    "concentrated",
    "concentrated_epsilon",
    "discrete_gaussian",
    "discrete_gaussian_error",
    "discrete_gaussian_law",
    "dyadic_partition",
    "histogram",
    "histogram_for",
    "no_wrap_modulus",
    "psi",
    "quantile",
    "quantile_error",
    "quantile_sum",
]
