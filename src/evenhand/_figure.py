"""The figures that this package draws: matplotlib's, which a notebook shows and publishers accept."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

_CSS_DPI = 96
"""Pixels that a web page counts to an inch; pictures have twice as many, for screens that draw two dots for each."""

_FONTS: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42}
"""TrueType: publishers refuse the Type 3 fonts that matplotlib embeds by default."""


class ShownFigure(Figure):
    """A figure that a notebook shows even if pyplot was never imported, which registers how other figures are shown."""

    savefig = rc_context(_FONTS)(Figure.savefig)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=2 * _CSS_DPI)
        width, height = (round(_CSS_DPI * inches) for inches in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height}
