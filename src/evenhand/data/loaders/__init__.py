"""Readers of files, folders, tables in memory and built-in data sets."""

from evenhand.data._synthetic import is_synthetic
from evenhand.data.loaders._encode import NewRows, encode_table, load_features, new_rows
from evenhand.data.loaders._frames import table_like
from evenhand.data.loaders._leaf import load_leaf
from evenhand.data.loaders._load import NAMES, PUBLISHED, from_frame, is_name, load, spreads

__all__ = [
    "NAMES",
    "PUBLISHED",
    "NewRows",
    "encode_table",
    "from_frame",
    "is_name",
    "is_synthetic",
    "load",
    "load_features",
    "load_leaf",
    "new_rows",
    "spreads",
    "table_like",
]
