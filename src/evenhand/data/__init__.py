"""Federated data sets: made, loaded, partitioned."""

from evenhand.data import loaders, partition
from evenhand.data._collected import from_torch_datasets
from evenhand.data._dataset import FederatedDataset, Split, from_arrays, hold_out, hold_out_clients
from evenhand.data._features import Column, Features, Fill, Form, Target, TextEncoding
from evenhand.data._synthetic import synthetic
from evenhand.data._text import (
    WordVectors,
    encode_characters,
    encode_counts,
    encode_hashed,
    encode_mean,
    encode_tokens,
    encode_vectors,
    encode_words,
    most_frequent,
)
from evenhand.data.loaders import encode_table, from_frame, load, load_features, load_leaf
from evenhand.data.loaders._download import download
from evenhand.data.loaders._texts import load_vectors

__all__ = [
    "Column",
    "Features",
    "FederatedDataset",
    "Fill",
    "Form",
    "Split",
    "Target",
    "TextEncoding",
    "WordVectors",
    "download",
    "encode_characters",
    "encode_counts",
    "encode_hashed",
    "encode_mean",
    "encode_table",
    "encode_tokens",
    "encode_vectors",
    "encode_words",
    "from_arrays",
    "from_frame",
    "from_torch_datasets",
    "hold_out",
    "hold_out_clients",
    "load",
    "load_features",
    "load_leaf",
    "load_vectors",
    "loaders",
    "most_frequent",
    "partition",
    "synthetic",
]
