"""Numbers made readable, and names listed in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenhand.evaluation import is_share

__all__ = ["listed", "number", "percent", "plural", "spread", "value"]


def number(x: float, digits: int = 4) -> str:
    """A number to some significant digits; a dash for NaN."""
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0:
        return "0"
    if 1e-4 <= abs(x) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(x))))
        return f"{x:,.{min(places, 6)}f}".replace("-", "−")
    return f"{x:.{digits - 1}e}".replace("-", "−")


def percent(x: float) -> str:
    """A share in percent."""
    return f"{100 * x:.1f}\u202f%" if math.isfinite(x) else "–"


def value(x: float, metric: str) -> str:
    """A value of a metric."""
    return percent(x) if is_share(metric) else number(x)


def spread(x: float, metric: str) -> str:
    """A standard deviation; that of shares in percentage points."""
    return f"{number(100 * x, 3)} points" if is_share(metric) else number(x)


def plural(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(texts: Sequence[str]) -> str:
    """Texts listed in a sentence: ``"a, b and c"``."""
    *first, last = texts or [""]
    return f"{', '.join(first)} and {last}" if first else last
