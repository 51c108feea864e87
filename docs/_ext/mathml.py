"""Equations as MathML, which browsers draw themselves: pages need no script and no connection."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


_BRACKETS = {"lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩", "|": "‖"}


def _mathml(latex: str, display: str) -> str:
    """The equation; what the converter draws badly is written in a way that it draws well."""
    latex = re.sub(r"\\(operatorname|mathrm|texttt)\{([^{}]*)\}", _upright, latex)
    latex = latex.replace(r"\arg", r"\text{arg }")
    latex = re.sub(r"\\([bB]igg?[lr]?)\s*\\(\w+|\|)", lambda m: f"\\{m[1]}{_BRACKETS.get(m[2], m[0])}", latex)
    if r"\\" in latex and r"\begin" not in latex:
        latex = r"\begin{aligned} " + latex + r" \end{aligned}"
    return re.sub(r'<mi mathvariant="([\w-]+)">(\w)</mi>', _letter, convert(latex, display=display))


# Browsers know letters of other alphabets as characters, and no longer as an attribute; some lie elsewhere in Unicode.
_ALPHABETS = {"double-struck": 0x1D538, "script": 0x1D49C, "bold": 0x1D400}
_ELSEWHERE = {
    "double-struck": dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True)),
    "script": dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True)),
}


def _letter(match: re.Match[str]) -> str:
    alphabet, letter = match[1], match[2]
    if alphabet not in _ALPHABETS or not "A" <= letter <= "z":
        return match[0]
    offset = ord(letter) - (ord("A") if letter.isupper() else ord("a") - 26)
    return f"<mi>{_ELSEWHERE.get(alphabet, {}).get(letter, chr(_ALPHABETS[alphabet] + offset))}</mi>"


def _upright(match: re.Match[str]) -> str:
    """A word in upright letters; letters one by one would be spaced like a product."""
    return r"\text{" + match[2].replace(r"\_", "_").replace(r"\,", " ") + "}"


def _draw(self: Any, node: nodes.Element, display: str) -> str:
    latex = node.astext().strip()
    try:
        drawn = _mathml(latex, display)
    except Exception as error:
        _LOG.warning("%r is not an equation that can be drawn: %s", latex, repr(error), location=node)
        return ""
    if unknown := re.findall(r"\\[a-zA-Z]+", drawn):
        _LOG.warning("%r has commands that cannot be drawn: %s", latex, ", ".join(unknown), location=node)
    return drawn


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(_draw(self, node, "inline"))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.Element) -> None:
    self.body.append('<div class="equation">' + _draw(self, node, "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"  # pyright: ignore[reportAttributeAccessIssue]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
