"""Federated data sets: made, loaded, partitioned."""

from evenhand.data import loaders, partition
from evenhand.data._characters import encode_characters
from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._split import from_arrays
from evenhand.data._synthetic import synthetic
from evenhand.data.loaders import load, load_leaf

__all__ = [
    "FederatedDataset",
    "Split",
    "encode_characters",
    "from_arrays",
    "load",
    "load_leaf",
    "loaders",
    "partition",
    "synthetic",
]
