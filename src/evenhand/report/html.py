"""The parts of an HTML page: text made safe, numbers made readable, tables and figures."""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from evenhand.report import draw
from evenhand.text import visible

__all__ = ["Cell", "bar", "details", "escape", "svg", "swatch", "table"]

_VARIABLES = {
    draw.INK: "var(--ink)",
    draw.MUTED: "var(--muted)",
    draw.GRID: "var(--grid)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(draw.PALETTE)},
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
    style = f"--w:{width:.1f}%;--c:var(--c{colour % len(draw.PALETTE)})"
    return Cell(f'<span class="bar" style="{style}">{escape(text)}</span>', "number")


def swatch(colour: int) -> str:
    """A dot in a run's colour."""
    return f'<span class="swatch" style="--c:var(--c{colour % len(draw.PALETTE)})"></span>'


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


def svg(figure: Figure, name: str, title: str, note: str, alt: str) -> str:
    """A figure as inline SVG whose colours follow the page's and whose ids are unique.

    Args:
      figure: what to draw.
      name: short, and unique on the page.
      title: the line above it.
      note: how to read it.
      alt: what it shows, in words.
    """
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
