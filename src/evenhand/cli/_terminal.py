"""Sentences and names on a terminal, shown as they are: without markup or control codes."""

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
    """Prints a sentence as one unbroken line, without the characters that isolate names on a page."""
    console.print(named(sentence.translate(_OF_PAGES), style), soft_wrap=True)


def remark(sentence: str) -> None:
    """Prints a sentence that is not a result, on the error stream."""
    print(f"evenhand: {visible(sentence)}", file=sys.stderr)
