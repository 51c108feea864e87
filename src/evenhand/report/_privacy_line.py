"""What a private method has spent, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evenhand.report.numbers import number

__all__ = ["privacy_line", "told_as"]


def privacy_line(told: Mapping[str, Any]) -> str:
    """The promise in a sentence."""
    return (
        f"Privacy: epsilon {told_as(told, 'epsilon')} at delta {told['delta']:g}, for {told['neighbours']} "
        f"(accountant: {told['accountant']})."
    )


def told_as(told: Mapping[str, Any], of: str) -> str:
    """One of the things that are told; files keep no infinity, and have nothing in its place."""
    if of in ("epsilon", "delta"):
        return number(math.inf if told[of] is None else float(told[of]), 4)
    return str(told[of])
