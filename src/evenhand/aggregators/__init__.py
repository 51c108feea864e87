"""Aggregators: they reduce a cohort's uploads to one direction."""

from evenhand.aggregators._in_parts import in_parts
from evenhand.aggregators._reduce import aggregate, in_passes, reduce_uploads
from evenhand.aggregators.ascending_mixture import ascending_mixture
from evenhand.aggregators.drift_tilted import drift_tilted
from evenhand.aggregators.mean import mean
from evenhand.aggregators.min_norm import min_norm
from evenhand.aggregators.powered import loss_powers, qfedavg
from evenhand.aggregators.risk_weighted import risk_weighted
from evenhand.aggregators.running_tilt import reference_tilt, running_tilt

__all__ = [
    "aggregate",
    "ascending_mixture",
    "drift_tilted",
    "in_parts",
    "in_passes",
    "loss_powers",
    "mean",
    "min_norm",
    "qfedavg",
    "reduce_uploads",
    "reference_tilt",
    "risk_weighted",
    "running_tilt",
]
