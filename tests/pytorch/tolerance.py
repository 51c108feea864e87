"""Lets torchax 0.0.13 load beside PyTorch 2.13, which has lost overloads that torchax names without using them.

To be removed, with its caller, once a release of torchax loads without it: the fix is in torchax's repository (pull
request 102).
"""

from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from evenhand.models import _torch


def load() -> None:
    """Makes the environment of this package while a missing overload is None rather than an error."""
    packet = torch._ops.OpOverloadPacket
    strict = packet.__getattr__

    def tolerant(self: Any, name: str) -> Any:
        try:
            return strict(self, name)
        except AttributeError as error:
            if "has no overload name" not in str(error):
                raise
            return None

    packet.__getattr__ = tolerant
    try:
        _torch._environment()
    finally:
        packet.__getattr__ = strict
