"""What a notebook shows of a value: a small piece of HTML, with charts as inline SVG.

Nothing is fetched.  Text has the colour of the page around it, and charts have colours that stand out on white and on
black, so that light and dark notebooks need no settings.  Names of clients and columns come from the data: whatever is
not said to be HTML is escaped here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from evenhand.text import counted, visible

__all__ = [
    "BARS",
    "bars",
    "curves",
    "escape",
    "frame",
    "gauge",
    "key",
    "name",
    "paragraph",
    "piece",
    "remarks",
    "table",
    "warning",
]

# Named by the class of the piece, so that they touch nothing else on the page.
_STYLE = """
.evenhand{max-width:44rem;font-size:.875rem;line-height:1.45;overflow-wrap:anywhere}
.evenhand p{margin:.2rem 0;font-size:inherit}
.evenhand .eh-title{font-weight:600;font-size:1rem}
.evenhand .eh-note{color:color-mix(in srgb,currentColor 72%,transparent);font-size:.8125rem}
.evenhand .eh-warning{border-left:.25rem solid #d9661f;padding:.1rem 0 .1rem .6rem;margin:.4rem 0}
.evenhand .eh-wide{overflow-x:auto}
.evenhand table{border-collapse:collapse;margin:.4rem 0;font-size:inherit;font-variant-numeric:tabular-nums}
.evenhand th,.evenhand td{padding:.15rem .6rem .15rem 0;text-align:right;vertical-align:top;border:0;
border-bottom:1px solid color-mix(in srgb,currentColor 18%,transparent);max-width:none;white-space:normal;
overflow-wrap:normal}
.evenhand thead th{vertical-align:bottom;font-weight:600}
.evenhand tbody th{font-weight:400;overflow-wrap:anywhere;min-width:3.5rem}
.evenhand td{white-space:nowrap}
.evenhand th:first-child,.evenhand .eh-text{text-align:left}
.evenhand .eh-text{white-space:normal;overflow-wrap:anywhere;min-width:6rem}
.evenhand svg{display:block;width:100%;max-width:26rem;height:auto;margin:.3rem 0;overflow:visible}
.evenhand svg text{fill:currentColor;font:11px system-ui,sans-serif}
.evenhand .eh-key{display:flex;flex-wrap:wrap;gap:.1rem 1rem}
.evenhand .eh-key svg{display:inline-block;width:1.5rem;height:.6rem;margin:0 .35rem 0 0}
.evenhand .eh-row{display:flex;flex-wrap:wrap;gap:.1rem .75rem;align-items:center;font-variant-numeric:tabular-nums}
.evenhand iframe{width:100%;height:30rem;border:1px solid color-mix(in srgb,currentColor 25%,transparent);
background:#fff;background-clip:padding-box}
"""

COLOURS = ("#2f86c9", "#d9661f", "#1f9a6c")
"""At least 3:1 on white and on #1e1e1e."""
_DASHES = ("", "5 3", "1.5 2.5")
_LONGEST = 48
"""Characters of a name."""
_WIDTH, _HEIGHT, _TOP, _BOTTOM = 400, 120, 8, 16
_POINTS = 200
"""Most points of a curve: a run of 10,000 evaluations is no larger."""
_REMARKS = 6
"""Most remarks."""
BARS = 100
"""Most bars: of more clients, a bar is the mean of neighbours."""


# --- text ---------------------------------------------------------------------------------------------------------


def escape(text: object) -> str:
    """Any text with its markup escaped and nothing hidden."""
    return html.escape(visible(text), quote=True)


def name(text: object) -> str:
    """A name from the data, escaped; of a long one, the beginning."""
    shown = str(text)
    return escape(shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…")


def piece(*parts: str) -> str:
    """Parts one below the other, with the style that they need."""
    return "\n".join([f'<div class="evenhand"><style>{_STYLE}</style>', *filter(None, parts), "</div>"])


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of HTML, ``"title"`` or ``"note"`` by its kind; empty for an empty text."""
    return f'<p class="eh-{kind}">{text}</p>' if text and kind else f"<p>{text}</p>" if text else ""


def warning(sentence: str) -> str:
    """What a reader must know before believing the numbers; the text is escaped here."""
    return f'<p class="eh-warning"><strong>{escape(sentence)}</strong></p>'


def remarks(sentences: Sequence[str], more: str) -> str:
    """What a reader should know, one below the other; of many the first ones, with the place of the others."""
    rest = len(sentences) - _REMARKS
    items = [escape(sentence) for sentence in sentences[:_REMARKS]]
    items += [f"And {counted(rest, 'more remark')}: <code>{escape(more)}</code>"] if rest > 0 else []
    return f'<div class="eh-warning">{"".join(map(paragraph, items))}</div>' if items else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 0) -> str:
    """A table of HTML cells, of which the first names its row; ``texts`` cells after it hold words, not numbers."""
    top = "".join(
        f'<th scope="col"{_of_words(0 < i <= texts)}>{escape(cell)}</th>' for i, cell in enumerate(head)
    )
    lines = [f'<div class="eh-wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>']
    for first, *cells in rows:
        rest = "".join(f"<td{_of_words(i < texts)}>{cell}</td>" for i, cell in enumerate(cells))
        lines.append(f'<tr><th scope="row">{first}</th>{rest}</tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def _of_words(holds: bool) -> str:
    return ' class="eh-text"' if holds else ""


def frame(page: str, title: str) -> str:
    """A whole page inside the piece; its scripts may run, and see nothing outside of it."""
    source = html.escape(page, quote=True)
    return (
        f'<iframe title="{escape(title)}" sandbox="allow-scripts allow-downloads" srcdoc="{source}"></iframe>'
    )


def gauge(texts: Sequence[str | float]) -> str:
    """Texts in a row, and a bar for each number: a share, or NaN while nothing is known."""
    cells = (escape(part) if isinstance(part, str) else _bar(part) for part in texts)
    return f'<div class="eh-row">{"".join(f"<span>{cell}</span>" for cell in cells if cell)}</div>'


def _bar(share: float) -> str:
    value = f' value="{min(max(share, 0.0), 1.0):.3f}"' if math.isfinite(share) else ""
    return f'<progress max="1"{value}></progress>'


# --- charts -------------------------------------------------------------------------------------------------------


def bars(sizes: npt.ArrayLike, labels: Sequence[str], title: str) -> str:
    """A bar for each number, the largest first; bars of few are labelled on hover; empty without numbers.

    Args:
      sizes: the numbers, at least 0.
      labels: what each of them is; texts, which are escaped here.
      title: what the chart shows, in words.
    """
    values = np.asarray(sizes, np.float64)
    if not values.size:
        return ""
    order = np.argsort(-values, kind="stable")
    groups = np.array_split(order, min(len(order), BARS))
    highest = max(float(values.max()), 1e-30)
    step, gap = _WIDTH / len(groups), 0.15 if len(groups) <= BARS // 2 else 0.0
    # One client would else be a block over the whole width.
    step = min(step, 40.0)
    shapes: list[str] = []
    for i, group in enumerate(groups):
        height = (_HEIGHT - _TOP) * float(values[group].mean()) / highest
        box = f'x="{i * step:.1f}" y="{_HEIGHT - height:.1f}" width="{(1 - gap) * step:.1f}" height="{height:.1f}"'
        hint = f"<title>{name(labels[group[0]])}</title>" if len(group) == 1 else ""
        shapes.append(f'<rect {box} fill="{COLOURS[0]}">{hint}</rect>')
    return _svg(_HEIGHT, title, shapes)


def curves(
    rounds: npt.ArrayLike, lines: Mapping[str, npt.NDArray[np.float64]], title: str, ends: tuple[str, str]
) -> str:
    """Up to three courses by round, with a gap where a value is not finite; empty without two values to join.

    Args:
      rounds: where the values are, ascending.
      lines: name -> the values.
      title: what the chart shows, in words.
      ends: the lowest and the highest value, as they are written at the axis.
    """
    at = np.asarray(rounds, np.float64)
    finite = np.concatenate([values[np.isfinite(values)] for values in lines.values()] or [np.zeros(0)])
    if len(at) < 2 or finite.size < 2 or at[-1] == at[0]:
        return ""
    low, high = float(finite.min()), float(finite.max())
    # Every line at the same places; the last evaluation is always among them.
    kept = np.unique(np.linspace(0, len(at) - 1, min(len(at), _POINTS)).round().astype(int))
    left, height = 48, _HEIGHT - _TOP - _BOTTOM
    x = left + (_WIDTH - left) * (at - at[0]) / (at[-1] - at[0])
    shapes = [_rule(left, _TOP, ends[1]), _rule(left, _TOP + height, ends[0])]
    for i, values in enumerate(lines.values()):
        y = _TOP + height * (1 - (values - low) / max(high - low, 1e-30))
        shapes.append(f'<path d="{_path(x[kept], y[kept])}" fill="none" {_stroke(i)}/>')
    below = f'y="{_HEIGHT - 2}"'
    shapes.append(f'<text x="{left}" {below}>round {at[0]:.0f}</text>')
    shapes.append(f'<text x="{_WIDTH}" {below} text-anchor="end">{at[-1]:,.0f}</text>')
    return _svg(_HEIGHT, title, shapes)


def key(names: Iterable[str]) -> str:
    """Which line of :func:`curves` is which; the names are HTML."""
    items = (
        f'<span><svg viewBox="0 0 24 8" aria-hidden="true"><path d="M0 4H24" {_stroke(i)}/></svg>{line}</span>'
        for i, line in enumerate(names)
    )
    return f'<div class="eh-key eh-note">{"".join(items)}</div>'


def _stroke(i: int) -> str:
    dash = f' stroke-dasharray="{_DASHES[i]}"' if _DASHES[i] else ""
    return f'stroke="{COLOURS[i]}" stroke-width="2"{dash}'


def _rule(left: int, y: int, text: str) -> str:
    """A line of the grid with its value at the left."""
    line = f'<path d="M{left} {y}H{_WIDTH}" stroke="currentColor" stroke-opacity=".2"/>'
    return f'{line}<text x="{left - 6}" y="{y + 4}" text-anchor="end">{escape(text)}</text>'


def _path(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> str:
    """Lines between neighbours that are both finite."""
    parts, is_joined = list[str](), False
    for place, value in zip(x, y, strict=True):
        if math.isfinite(value):
            parts.append(f"{'L' if is_joined else 'M'}{place:.1f} {value:.1f}")
        is_joined = math.isfinite(value)
    return "".join(parts)


def _svg(height: int, title: str, shapes: Iterable[str]) -> str:
    opening = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    return "".join([opening, *shapes, "</svg>"])
