"""Uploads to one direction."""

from evenhand.aggregators._reduce import aggregate
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
    "loss_powers",
    "mean",
    "min_norm",
    "qfedavg",
    "reference_tilt",
    "risk_weighted",
    "running_tilt",
]
