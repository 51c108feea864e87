"""Tests of PyTorch modules run in an environment of their own, which scripts/pytorch makes."""

import os
from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("torch") is None or find_spec("torchax") is None:
    if os.environ.get("EVENHAND_NEEDS_TORCH"):
        raise RuntimeError(
            "torch or torchax is not installed: scripts/pytorch makes an environment that has them."
        )
    collect_ignore_glob = ["*.py"]
else:
    import tolerance

    tolerance.load()
