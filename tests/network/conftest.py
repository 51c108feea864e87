"""Tests of a network of Flower run in an environment of their own, which scripts/network makes; the others anywhere."""

import os
from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("flwr") is None:
    if os.environ.get("EVENHAND_NEEDS_FLOWER"):
        raise RuntimeError("flwr is not installed: scripts/network makes an environment that has it.")
    collect_ignore_glob = ["test_flower_*.py"]
