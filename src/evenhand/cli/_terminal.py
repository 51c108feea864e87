"""Sentences and names on a terminal, shown as they are: without markup or control codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from evenhand.text import visible

__all__ = ["Expression", "named", "remark", "say"]

_OF_PAGES = dict.fromkeys(map(ord, "\u2068\u2069")) | {ord("\u202f"): " "}


def named(text: object, style: str = "") -> Text:
    """A name for a cell of a table."""
    return Text(visible(text), style)


class Expression:
    """The name of a method in a cell of a table: too long for its column, it is broken where its arguments begin."""

    def __init__(self, name: str) -> None:
        self._parts = re.findall(r"[^(,=\s]*[(,=\s]\s*|[^(,=\s]+", visible(name))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [cell_len(part.rstrip()) for part in self._parts]
        return Measurement(max(widths, default=0), cell_len("".join(self._parts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(_lines(self._parts, options.max_width), overflow="fold")


def say(console: Console, sentence: str, style: str = "") -> None:
    """Prints a sentence, without the characters that isolate names on a page.

    A terminal gets it broken between words; a file or a pipe, as one line.
    """
    text = visible(sentence.translate(_OF_PAGES))
    if console.is_terminal:  # not by rich, which would cut a long path, too, and then it cannot be copied
        text = _lines(re.findall(r"\S+\s*", text), console.width)
    console.print(Text(text, style), soft_wrap=True)


def remark(sentence: str) -> None:
    """Prints a sentence that is not a result, on the error stream."""
    say(Console(file=sys.stderr, highlight=False), f"evenhand: {sentence}")


def _lines(parts: Sequence[str], width: int) -> str:
    """The parts, as many on a line as fit into it."""
    lines = [""]
    for part in parts:
        fits = cell_len((lines[-1] + part).rstrip()) <= width
        lines[-1:] = [lines[-1] + part] if fits or not lines[-1] else [lines[-1].rstrip(), part]
    return "\n".join(lines)
