"""Readers of files, folders and built-in data sets."""

from evenhand.data.loaders._leaf import load_leaf
from evenhand.data.loaders._load import NAMES, load

__all__ = ["NAMES", "load", "load_leaf"]
