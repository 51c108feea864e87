"""Federated data sets: made, loaded, partitioned."""

from evenhand.data import loaders, partition
from evenhand.data._dataset import FederatedDataset, Split, from_arrays, hold_out, hold_out_clients
from evenhand.data._features import Column, Features, Fill, Form, Target
from evenhand.data._synthetic import synthetic
from evenhand.data.loaders import encode_table, from_frame, load, load_features, load_leaf
from evenhand.data.loaders._leaf import encode_characters

__all__ = [
    "Column",
    "Features",
    "FederatedDataset",
    "Fill",
    "Form",
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
