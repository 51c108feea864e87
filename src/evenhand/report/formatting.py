"""How a report writes: numbers and lists as text, and text, tables and figures as parts of an HTML page."""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from evenhand.evaluation import is_share
from evenhand.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "GRID",
    "INK",
    "MUTED",
    "PALETTE",
    "Cell",
    "bar",
    "details",
    "escape",
    "factor",
    "listed",
    "number",
    "percent",
    "plural",
    "spread",
    "svg",
    "swatch",
    "table",
    "value",
]


# --- text ---------------------------------------------------------------------------------------------------------


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


def factor(statistic: str, metric: str) -> float:
    """What a statistic is multiplied with to be shown: accuracies are shown in percent."""
    if not is_share(metric):
        return 1.0
    return 1e4 if statistic.endswith("variance") else 100.0


def plural(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(texts: Sequence[str]) -> str:
    """Texts listed in a sentence: ``"a, b and c"``."""
    *first, last = texts or [""]
    return f"{', '.join(first)} and {last}" if first else last


# --- HTML ---------------------------------------------------------------------------------------------------------

INK, MUTED, GRID = "#1f2430", "#667080", "#e2e5ea"

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8609a", "#a87800", "#4a4a6a")

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(PALETTE)},
}


class Cell(NamedTuple):
    """A table cell: HTML that is already safe, and classes for the style sheet."""

    html: str
    classes: str = ""


def escape(text: object) -> str:
    """Any text with its markup escaped and nothing hidden, except for the characters that isolate a name."""
    parts = re.split("([\u2068\u2069])", str(text))
    shown = (part if i % 2 else visible(part) for i, part in enumerate(parts))
    return html.escape("".join(shown), quote=True)


def bar(text: str, share: float, colour: int = 0) -> Cell:
    """A number with a bar that fills a share of the cell."""
    width = 100 * min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    style = f"--w:{width:.1f}%;--c:var(--c{colour % len(PALETTE)})"
    return Cell(f'<span class="bar" style="{style}">{escape(text)}</span>', "number")


def swatch(colour: int) -> str:
    """A dot in a run's colour."""
    return f'<span class="swatch" style="--c:var(--c{colour % len(PALETTE)})"></span>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Cell]], classes: str = "") -> str:
    """A table whose first column names the rows; plain strings are escaped."""
    name = escape(caption)
    # The caption is outside the scrolling part, so that it wraps on a narrow screen.
    lines = [
        f'<p class="caption">{name}</p>\n<div class="scroll" role="region" aria-label="{name}" tabindex="0">'
    ]
    lines.append(f'<table class="{classes}" aria-label="{name}">')
    lines += [
        "<thead><tr>",
        *(f'<th scope="col">{escape(name)}</th>' for name in head),
        "</tr></thead><tbody>",
    ]
    for first, *rest in rows:
        cells = [cell if isinstance(cell, Cell) else Cell(escape(cell)) for cell in rest]
        name = first if isinstance(first, Cell) else Cell(escape(first))
        lines.append(f'<tr class="{name.classes}"><th scope="row">{name.html}</th>')
        lines += [f'<td class="{cell.classes}">{cell.html}</td>' for cell in cells]
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def details(summary: str, body: str) -> str:
    """A part of the page that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>\n{body}\n</details>"


# --- figures in HTML ----------------------------------------------------------------------------------------------


def svg(figure: Figure, name: str, title: str, note: str, alt: str) -> str:
    """A figure as inline SVG whose colours follow the page's and whose ids are unique.

    Args:
      figure: what to draw.
      name: short, and unique on the page.
      title: the line above it.
      note: how to read it.
      alt: what it shows, in words.
    """
    from matplotlib import rc_context  # matplotlib takes long to load

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        # The reader's browser draws the text with its own fonts, so that a glyph missing here does not matter.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\sid="([^"]+)"', rf' id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES.get(match[0], match[0]), text)
    text = re.sub(r"<[^>]+>", lambda tag: _shorter(tag[0]), re.sub(r"\n\s*", "\n", text))
    text = re.sub(r"<g>\n(<[^g/][^>]*/>\n)</g>\n", r"\1", text)
    box = _attribute(text, "viewBox")
    opening = f'<svg viewBox="{box}" role="img" aria-label="{escape(alt)}" class="plot"'
    opening += ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    text = opening + text[text.index(">") + 1 :]
    caption = f"<figcaption><strong>{escape(title)}</strong> {escape(note)}</figcaption>"
    return f"<figure>\n{caption}\n{text}</figure>"


def _shorter(tag: str) -> str:
    """A tag without what cannot be seen: digits beyond tenths of a point, and fonts, which the page sets."""
    tag = re.sub(r"font-family: [^;\"]*;? ?|", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", tag)
    if tag.startswith("<g id="):
        tag = re.sub(r' id="[^"]*"', "", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    return re.sub(r'(?<= )d="([^"]*)"', lambda path: f'd="{_short_path(path[1])}"', tag)


def _short_path(path: str) -> str:
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", re.sub(r"(\.\d)\d+|\.0+\b", r"\1", path)).strip()


def _attribute(text: str, name: str) -> Any:
    match = re.search(rf'{name}="([^"]*)"', text)
    assert match
    return match[1]
