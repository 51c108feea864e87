"""Sentences and names on a terminal, shown as they are: nothing in them is markup, and nothing acts."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from evenhand.text import visible

__all__ = ["named", "remark", "say"]

_OF_PAGES = dict.fromkeys(map(ord, "\u2068\u2069")) | {ord("\u202f"): " "}


def named(text: object, style: str = "") -> Text:
    """A name for a cell of a table."""
    return Text(visible(text), style)


def say(console: Console, sentence: str, style: str = "") -> None:
    """A sentence on a line of its own, not broken; what isolates a name on a page is left out."""
    console.print(named(sentence.translate(_OF_PAGES), style), soft_wrap=True)


def remark(sentence: str) -> None:
    """A sentence on the error stream, for what is not a result."""
    print(f"evenhand: {visible(sentence)}", file=sys.stderr)
