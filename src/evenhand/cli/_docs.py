"""Docstrings as a terminal shows them: first sentences, and what arguments mean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any
from unicodedata import normalize

__all__ = ["argument_lines", "first_line", "plain"]

_SYMBOLS = {
    r"\ge": "≥",
    r"\le": "≤",
    r"\leftarrow": "←",
    r"\|": "‖",
    r"\cdot": "·",
    r"\infty": "∞",
    r"\in": "∈",
    r"\dots": "…",
    r"\sqrt": "√",
    r"\lceil": "⌈",
    r"\rceil": "⌉",
    r"\lfloor": "⌊",
    r"\rfloor": "⌋",
    r"\pi": "π",
    r"\rho": "ρ",
    r"\sigma": "σ",
    r"\sum": "Σ",
    r"\alpha": "α",
    r"\beta": "β",
    r"\gamma": "γ",
    r"\delta": "δ",
    r"\epsilon": "ε",
    r"\eta": "η",
    r"\theta": "θ",
    r"\lambda": "λ",
    r"\mu": "μ",
    r"\nu": "ν",
    r"\tau": "τ",
    r"\omega": "ω",
    r"\Delta": "Δ",
    r"\nabla": "∇",
    "_1": "₁",
    "_2": "₂",
    "_3": "₃",
    "^2": "²",
}
_FONT = re.compile(r"\\(?:mathcal|mathbf|mathrm) ?")
_ACCENT = re.compile(r"\\(bar|hat) ?(\w)")
_COMBINING = {"bar": "\u0304", "hat": "\u0302"}
_MATH = re.compile(r":math:`([^`]*)`")
_FRACTION = re.compile(r"\\frac(\w|{[^{}]*})(\w|{[^{}]*})")
_GROUP = re.compile(r"{([^{}]{2,})}")
_NAME = re.compile(r":\w+:`(?:[\w.]*\.)?(\w+)`|``([^`]*)``")
_EMPHASIS = re.compile(r"\*(\w[^*]*)\*")
_AS_IN = re.compile(r"as in (?:``|:func:`)(\w+)`{1,2}[.;]?\s*")


def plain(text: str) -> str:
    """``text`` without markup."""

    def formula(found: re.Match[str]) -> str:
        shown = _FONT.sub("", _FRACTION.sub(r"\1/\2", found[1]))
        shown = _ACCENT.sub(lambda accent: normalize("NFC", accent[2] + _COMBINING[accent[1]]), shown)
        for name, symbol in sorted(_SYMBOLS.items(), key=lambda pair: -len(pair[0])):
            shown = re.sub(re.escape(name) + r"(?![A-Za-z])", symbol, shown)
        return re.sub(r"[{}\\]", "", _GROUP.sub(r"(\1)", shown))

    text = _NAME.sub(lambda found: found[1] or found[2], _MATH.sub(formula, " ".join(text.split())))
    return _EMPHASIS.sub(r"\1", text)


def first_line(made: Callable[..., Any] | type) -> str:
    """The first paragraph of a docstring."""
    return plain((inspect.getdoc(made) or "").partition("\n\n")[0])


def argument_lines(name: str, known: dict[str, Callable[..., Any]]) -> dict[str, str]:
    """Argument -> what the docstring of the factory ``name`` says of it; "as in" another factory is looked up."""
    lines: dict[str, str] = {}
    for argument, text in _arguments(known[name]).items():
        reference = _AS_IN.match(text)
        if reference is not None and reference[1] in known and reference[1] != name:
            shared = argument_lines(reference[1], known).get(argument, "").rstrip(".")
            added = text[reference.end() :]
            text = f"{shared}; {added}" if added and shared else shared or added
        lines[argument] = plain(text).rstrip(".")
    return lines


@cache
def _arguments(factory: Callable[..., Any]) -> dict[str, str]:
    """The entries of a docstring's section ``Args:``; one with several names counts for each of them."""
    section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=  \S)", f"\n{section}")[1:]:
        names, _, text = entry.partition(":")
        found |= {name.strip(): text.strip() for name in names.split(",")}
    return found
