"""Uploads to one direction."""

from evenhand.aggregators._reduce import aggregate
from evenhand.aggregators.mean import mean

__all__ = ["aggregate", "mean"]
