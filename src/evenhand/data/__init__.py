"""Federated data sets: made, loaded, partitioned."""

from evenhand.data import loaders, partition
from evenhand.data._characters import encode_characters
from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._features import Column, Features, Fill, Target
from evenhand.data._hold_out import hold_out
from evenhand.data._split import from_arrays
from evenhand.data._synthetic import synthetic
from evenhand.data._unseen import hold_out_clients
from evenhand.data.loaders import encode_table, from_frame, load, load_features, load_leaf

__all__ = [
    "Column",
    "Features",
    "FederatedDataset",
    "Fill",
    "Split",
    "Target",
    "encode_characters",
    "encode_table",
    "from_arrays",
    "from_frame",
    "hold_out",
    "hold_out_clients",
    "load",
    "load_features",
    "load_leaf",
    "loaders",
    "partition",
    "synthetic",
]
