"""How a report writes: numbers and lists as text, tables of them for every medium, and parts of an HTML page.

A :class:`Table` is the same value wherever it is shown: pages, Markdown, LaTeX and CSV are written here, and the
command line draws it in a terminal.  What runs with several seeds come to is a :class:`Value` in it.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.evaluation import is_share
from evenhand.text import spreadsheet_cell, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What other packages write with; the other names are for this package.
__all__ = [
    "COMPARED",
    "Cell",
    "Table",
    "Value",
    "capital",
    "deviation",
    "escape",
    "factor",
    "note",
    "number",
    "over_seeds",
    "section",
    "size",
    "svg",
    "unit",
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


_BYTES = ("bytes", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """A number of bytes, in a unit in which it has at most three digits before the point.

    Example:
      >>> size(2600), size(64)
      ('2.60 kB', '64 bytes')
    """
    if count < 1000:
        return f"{count:,.0f} bytes"
    power = min(int(math.log10(count) // 3), len(_BYTES) - 1)
    return f"{number(count / 1000**power, 3)} {_BYTES[power]}"


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


def unit(statistic: str, metric: str) -> str:
    """The unit of such a statistic, for the head of its column."""
    return {1.0: "", 100.0: " (%)", 1e4: " (%²)"}[factor(statistic, metric)]


COMPARED = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}
"""The statistics by which tables compare methods and groups of clients, and their names."""

SERVED = {"mean": "Mean over clients", "worst10": "Worst 10 %", "best10": "Best 10 %", "std": "Spread (std)"}
"""The statistics that say at a glance how well and how evenly clients are served, and their names."""


def capital(text: str) -> str:
    """The text with its first letter in upper case, and all others as they are."""
    return text[:1].upper() + text[1:]


# --- tables, in every medium --------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A number as a table shows it.

    Attributes:
      text: the number, or the mean over seeds, without its unit.
      deviation: the standard deviation over the seeds; empty without several of them.
      unit: what follows both, with a space where it needs one.
      is_marked: whether it stands out: as the best, or as a difference that is sure.
    """

    text: str
    deviation: str = ""
    unit: str = ""
    is_marked: bool = False

    def joined(self, sign: str = "±") -> str:
        """All of it: ``"87.6 ± 1.2 %"``."""
        return self.text + (f" {sign} {self.deviation}" if self.deviation else "") + self.unit


def deviation(values: npt.ArrayLike) -> float:
    """The standard deviation over seeds, by which a further seed would vary; NaN where it is not known.

    That is where there are fewer than two values, or where some are not finite.
    """
    x = np.asarray(values, np.float64)
    if x.size < 2 or not np.isfinite(x).all():
        return math.nan
    result = float(np.std(x, ddof=1))
    # Seeds with equal values differ by rounding alone: "± 1e-17" would look like a finding.
    return 0.0 if result < 1e-12 * float(np.max(np.abs(x))) else result


def over_seeds(values: npt.ArrayLike, scale: float = 1.0) -> Value:
    """The mean of the seeds' values and their deviation, both multiplied by ``scale``."""
    mean, std = float(np.mean(np.asarray(values, np.float64))), deviation(values)
    return Value(number(scale * mean), "" if math.isnan(std) else number(scale * std, 2))


class Cell(NamedTuple):
    """A table cell of a page: HTML that is already safe, and classes for the style sheet."""

    html: str
    classes: str = ""


Row: TypeAlias = Sequence[str | float | Value | Cell]
"""Texts and numbers; plain numbers are for CSV, which does not round them, and a :class:`Cell` is for pages."""


class Table(NamedTuple):
    """Rows of methods, clients, settings or runs, whose first column names them.

    Attributes:
      head: the names of the columns.
      rows: the cells of each row.
      words: how many columns, from the first on, hold words; the others hold numbers.
    """

    head: Sequence[str]
    rows: Sequence[Row]
    words: int = 1

    def html(self, caption: str, classes: str = "numbers") -> str:
        """A table of a page."""
        name, cells = escape(caption), [list(map(_html_cell, row)) for row in self.rows]
        # The head of a column stands above its cells: on the left of words, on the right of numbers.
        of_words = [not any("number" in row[i].classes for row in cells) for i in range(len(self.head))]
        kinds = [' class="words"' if i and cells and of_words[i] else "" for i in range(len(self.head))]
        # The caption is outside the scrolling part, so that it wraps on a narrow screen.
        lines = [
            f'<p class="caption">{name}</p>\n<div class="scroll" role="region" aria-label="{name}" tabindex="0">',
            f'<table class="{classes}" aria-label="{name}">',
            "<thead><tr>",
            *(
                f'<th scope="col"{kind}>{escape(name)}</th>'
                for name, kind in zip(self.head, kinds, strict=True)
            ),
            "</tr></thead><tbody>",
        ]
        for first, *rest in cells:
            lines.append(f'<tr class="{first.classes}"><th scope="row">{first.html}</th>')
            lines += [*(f'<td class="{cell.classes}">{cell.html}</td>' for cell in rest), "</tr>"]
        return "\n".join([*lines, "</tbody></table></div>"])

    def markdown(self) -> str:
        """A table of Markdown."""
        lines = [self._texts(row, "**{}**", "±", _MARKDOWN) for row in (self.head, *self.rows)]
        lines.insert(1, ["---"] * len(self.head))
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """A ``tabular`` with the rules of the package ``booktabs``."""
        lines = [self._texts(row, r"\textbf{{{}}}", r"$\pm$", _LATEX) for row in (self.head, *self.rows)]
        head, *rows = [rf"{' & '.join(line)} \\" for line in lines]
        columns = "l" * self.words + "r" * (len(self.head) - self.words)
        begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
        return "\n".join([*begin, *rows, r"\bottomrule", r"\end{tabular}", ""])

    def csv(self) -> str:
        """Comma-separated values: numbers unrounded, an empty field for NaN, no text that a spreadsheet computes."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        for row in (self.head, *self.rows):
            writer.writerow(spreadsheet_cell(x) if isinstance(x, str) else "" if x != x else x for x in row)
        return file.getvalue()

    def _texts(self, row: Row, bold: str, sign: str, escapes: dict[int, str]) -> list[str]:
        """The cells of a row in a language in which ``escapes`` make any text harmless."""
        values = [cell if isinstance(cell, Value) else Value(str(cell)) for cell in row]
        # Escaped part by part: the sign between them is already in the language.
        parts = [[part.translate(escapes) for part in (v.text, v.deviation, v.unit)] for v in values]
        texts = [Value(text, std, unit).joined(sign) for text, std, unit in parts]
        return [bold.format(x) if v.is_marked else x for x, v in zip(texts, values, strict=True)]


def _html_cell(cell: str | float | Value | Cell) -> Cell:
    if isinstance(cell, Value):
        return Cell(escape(cell.joined()), "number best" if cell.is_marked else "number")
    return cell if isinstance(cell, Cell) else Cell(escape(cell))


_LETTERS = "αβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩϵϕµ"
_LETTER_NAMES = (
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma sigma tau upsilon "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega epsilon phi mu"
)
_GREEK = dict(zip(_LETTERS, _LETTER_NAMES.split(), strict=True))
_SIGNS = dict(
    zip(
        "≤≥≠≈×·→ℓ∞±",
        ("leq", "geq", "neq", "approx", "times", "cdot", "to", "ell", "infty", "pm"),
        strict=True,
    )
)

_MARKDOWN = str.maketrans({"|": r"\|"})
_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "²": "$^2$",
        "³": "$^3$",
        "°": r"$^\circ$",
        "−": "$-$",
        "–": "--",
        "…": r"\ldots{}",
        "\u202f": r"\,",
        # pdflatex has no such letters in its fonts for text.
        **{letter: rf"$\{name}$" for letter, name in (_GREEK | _SIGNS).items()},
    }
)


# --- HTML ---------------------------------------------------------------------------------------------------------

INK, MUTED, GRID = "#1f2430", "#667080", "#e2e5ea"

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8609a", "#a87800", "#4a4a6a")

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(PALETTE)},
}


def escape(text: object) -> str:
    """Any text with its markup escaped and nothing hidden, except for the characters that isolate a name."""
    parts = re.split("([\u2068\u2069])", str(text))
    shown = (part if i % 2 else visible(part) for i, part in enumerate(parts))
    return html.escape("".join(shown), quote=True)


def bar(text: str, share: float, colour: int = 0, *, is_marked: bool = False) -> Cell:
    """A number with a bar that fills a share of the cell."""
    width = 100 * min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    style = f"--w:{width:.1f}%;--c:var(--c{colour % len(PALETTE)})"
    classes = "number best" if is_marked else "number"
    return Cell(f'<span class="bar" style="{style}">{escape(text)}</span>', classes)


def full(values: Iterable[float], *, is_share: bool) -> float:
    """The value whose bar fills its cell: 1 for shares, else the largest finite one."""
    return 1.0 if is_share else max([*filter(math.isfinite, values), 1e-30])


def swatch(colour: int, name: str) -> str:
    """A dot in a run's colour, and the name beside it."""
    return f'<span class="swatch" style="--c:var(--c{colour % len(PALETTE)})"></span>{escape(name)}'


def details(summary: str, body: str) -> str:
    """A part of the page that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>\n{body}\n</details>"


def note(text: str, kind: str = "note") -> str:
    """A remark on a table, below it, or another ``kind`` of paragraph; empty for an empty text."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def section(title: str, *parts: str) -> str:
    """A section of the page, of those parts that are not empty."""
    return "\n".join(filter(None, [f"<section>\n<h2>{title}</h2>", *parts, "</section>"]))


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
    # matplotlib makes ids from this salt: without it they would be random, and the page never the same twice.
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
    [box] = re.findall(r'viewBox="([^"]*)"', text)[:1]
    opening = f'<svg viewBox="{box}" role="img" aria-label="{escape(alt)}" class="plot"'
    opening += ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    caption = f"<figcaption><strong>{escape(title)}</strong> {escape(note)}</figcaption>"
    return f"<figure>\n{caption}\n{opening}{text[text.index('>') + 1 :]}</figure>"


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
