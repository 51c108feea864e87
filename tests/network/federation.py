"""A federation of the commands' making on the loopback address, and what its clients keep."""

from pathlib import Path

import jax
import numpy as np

from evenhand.cli._data import DataOptions
from evenhand.cli._deploy import InitCommand, SplitCommand
from evenhand.network import files
from evenhand.wire import decode

RESIDENT = Path(__file__).with_name("resident.py")
CLIENTS = 4
DATA = DataOptions(data="digits", clients=CLIENTS)


def made(folder, method, port, **options):
    """The folder of a new federation, with the examples of its clients."""
    standing = {"clients": CLIENTS, "rounds": 3, "eval_every": 1, "metrics": "numbers", "test_keys": True}
    InitCommand(folder, method=method, port=port, **(standing | options)).execute()
    SplitCommand(folder, DATA).execute()
    return folder


def kept(folder, number):
    """What a client keeps on its disk."""
    return decode((files.client_folder(folder, number) / "state.bin").read_bytes())


def gap(ours, theirs):
    """The largest difference of two trees; NaN where one has it."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    differences = [np.ravel(np.abs(np.asarray(a, float) - np.asarray(b, float))) for a, b in pairs]
    return float(np.max(np.concatenate([*differences, np.zeros(1)])))
