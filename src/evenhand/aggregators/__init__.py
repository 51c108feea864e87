"""Aggregators: they reduce a cohort's uploads to one direction."""

from evenhand.aggregators._reduce import aggregate, in_loop, in_parts, in_passes, reduce_uploads
from evenhand.aggregators.bounded_weights import bounded_weights
from evenhand.aggregators.bucketing import bucketing
from evenhand.aggregators.caf import caf
from evenhand.aggregators.centered_clipping import centered_clipping
from evenhand.aggregators.clip import arc, clip, normalize, reject
from evenhand.aggregators.compressed import quantized, top_k
from evenhand.aggregators.coordinatewise import coordinate_median, meamed, trimmed_mean
from evenhand.aggregators.drift_tilted import drift_tilted
from evenhand.aggregators.filters import loss_filter, norm_filter
from evenhand.aggregators.geometric_median import geometric_median
from evenhand.aggregators.krum import bulyan, krum, multi_krum
from evenhand.aggregators.loss_weighted import (
    ascending_mixture,
    loss_powers,
    qfedavg,
    reference_tilt,
    risk_weighted,
    running_tilt,
)
from evenhand.aggregators.mda import mda
from evenhand.aggregators.mean import mean
from evenhand.aggregators.min_norm import min_norm
from evenhand.aggregators.nnm import nnm
from evenhand.aggregators.secure import secure

__all__ = [
    "aggregate",
    "arc",
    "ascending_mixture",
    "bounded_weights",
    "bucketing",
    "bulyan",
    "caf",
    "centered_clipping",
    "clip",
    "coordinate_median",
    "drift_tilted",
    "geometric_median",
    "in_loop",
    "in_parts",
    "in_passes",
    "krum",
    "loss_filter",
    "loss_powers",
    "mda",
    "meamed",
    "mean",
    "min_norm",
    "multi_krum",
    "nnm",
    "norm_filter",
    "normalize",
    "qfedavg",
    "quantized",
    "reduce_uploads",
    "reference_tilt",
    "reject",
    "risk_weighted",
    "running_tilt",
    "secure",
    "top_k",
    "trimmed_mean",
]
