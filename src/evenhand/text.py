"""Text to show: names chosen by others made safe, counts in words, and the names of metrics and of values.

What others have chosen is safe in a terminal, a page or a figure, and in a spreadsheet.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

__all__ = [
    "call_text",
    "counted",
    "extent",
    "isolated",
    "listed",
    "measured",
    "of_model",
    "quoted",
    "short",
    "spreadsheet_cell",
    "spreadsheet_name",
    "visible",
]

_JOINERS = "\u200c\u200d"  # a part of emoji, and of words in Persian and Hindi

_ISOLATES = "\u2068\u2069"

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})

_BACKSLASHES = re.compile(r"\\+")

_CODE = re.compile(r"x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}")

_CODED = re.compile(rf"(\\+)({_CODE.pattern})")

_FORMULA = r"(?:[=@\t\r\n]|[+-](?!\d+(?:\.\d+)?\Z))"

_QUOTE = re.compile(rf"'*{_FORMULA}")

_QUOTED = re.compile(rf"'+{_FORMULA}")


def visible(text: object) -> str:
    r"""``text`` with all invisible and control characters written as escapes.

    Control characters (including terminal escape codes and line breaks), characters that change the direction of
    writing, other invisible ones and lone surrogates become ``\x1b``, ``\u202e`` and the like.  Letters of all
    scripts, wide characters and emoji stay as they are, and so do the joiners inside emoji and words.  Markup is not
    touched: pass the result only to code that interprets none.

    Args:
      text: anything; its ``str`` is shown.

    Example:
      >>> print(visible("[bold]north\x1b[31m\nside"))
      [bold]north\x1b[31m\nside
    """
    return "".join(_escaped(c) if _is_hidden(c) else c for c in str(text))


def counted(count: int, noun: str) -> str:
    """``"1 client"``, ``"1,000 clients"``: ``noun`` is a singular whose plural adds s, or es after an s.

    Example:
      >>> counted(1, "class"), counted(2, "class"), counted(1000, "client")
      ('1 class', '2 classes', '1,000 clients')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def extent(counts: Iterable[float]) -> str:
    """The smallest and the largest of some counts, or their only value.

    Example:
      >>> extent([7, 9, 8]), extent([1000, 1000])
      ('7 to 9', '1,000')
    """
    values = [int(count) for count in counts]
    low, high = min(values), max(values)
    return f"{low:,} to {high:,}" if low < high else f"{high:,}"


def listed(texts: Sequence[str], most: int | None = None) -> str:
    """Texts listed in a sentence: ``"a, b and c"``; ``"a, b and 4 more"`` if that is more than ``most``, here 2."""
    if most is not None and len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most:,} more"]
    *first, last = texts or [""]
    return f"{', '.join(first)} and {last}" if first else last


def call_text(name: str, first: str, options: Mapping[str, bool]) -> str:
    """The name of a method with its first argument, and with those of its options that are not the usual ones.

    Example:
      >>> call_text("averaged", "fedavg", {"growth=1.1": True, "initial=False": False})
      'averaged(fedavg, growth=1.1)'
    """
    return f"{name}({', '.join([first, *(option for option, is_given in options.items() if is_given)])})"


def isolated(text: object) -> str:
    """:func:`visible` text for the middle of a sentence: right-to-left script does not reorder what follows it.

    Only text with letters of such a script is put between the two invisible characters that isolate it; some terminals
    would show those, so this is for pages.

    Example:
      >>> isolated("north"), isolated("צפון") == "\\u2068צפון\\u2069"
      ('north', True)
    """
    shown = visible(text)
    if any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in shown):
        return f"{_ISOLATES[0]}{shown}{_ISOLATES[1]}"
    return shown


def quoted(path: Path | str) -> str:
    """A path as a shell reads it, in commands that a person may copy.

    Example:
      >>> print(quoted("runs/a"), quoted("my runs/a"))
      runs/a 'my runs/a'
    """
    return shlex.quote(str(path))


def spreadsheet_cell(name: str) -> str:
    r"""``name`` for a cell of a CSV file, safe in a spreadsheet and in a terminal.

    A ``'`` stands in front of a name that a spreadsheet might take for a formula: one that begins with ``=`` or ``@``,
    or with ``+`` or ``-`` and is no number.  Hidden characters, those of :func:`visible`, become codes such as
    ``\x1b``.  Where a name has ``'`` or ``\`` in front of these itself, they are doubled, so
    :func:`spreadsheet_name` recovers every name.

    Example:
      >>> spreadsheet_cell("=SUM(A1)"), spreadsheet_cell("-5"), spreadsheet_cell("north")
      ("'=SUM(A1)", '-5', 'north')
      >>> print(spreadsheet_cell("\x1b[31mred"))
      \x1b[31mred
    """

    def doubled(run: re.Match[str]) -> str:
        following = name[run.end() : run.end() + 1]
        code = _CODE.match(name, run.end())
        is_read_back = code is not None and _is_hidden(_character(code[0]))
        return 2 * run[0] if is_read_back or (following and _is_hidden(following)) else run[0]

    cell = "".join(_code(c) if _is_hidden(c) else c for c in _BACKSLASHES.sub(doubled, name))
    return f"'{cell}" if _QUOTE.match(cell) else cell


def spreadsheet_name(cell: str) -> str:
    """The name that :func:`spreadsheet_cell` made this cell from.

    Example:
      >>> spreadsheet_name("'=SUM(A1)"), spreadsheet_name("'s-Gravenhage")
      ('=SUM(A1)', "'s-Gravenhage")
    """

    def character(match: re.Match[str]) -> str:
        backslashes, code = len(match[1]), match[2]
        if not _is_hidden(_character(code)):  # not one that spreadsheet_cell() wrote
            return match[0]
        return "\\" * (backslashes // 2) + (_character(code) if backslashes % 2 else code)

    return _CODED.sub(character, cell[1:] if _QUOTED.match(cell) else cell)


def _is_hidden(c: str) -> bool:
    return c not in _JOINERS and unicodedata.category(c) in _HIDDEN


def _escaped(c: str) -> str:
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")


def _code(c: str) -> str:
    """As :func:`_escaped`, but in hexadecimal throughout: no other backslash in a name is read as a code."""
    number = ord(c)
    letter, width = ("x", 2) if number < 2**8 else ("u", 4) if number < 2**16 else ("U", 8)
    return f"\\{letter}{number:0{width}x}"


def _character(code: str) -> str:
    """What a code without its backslash stands for; code points beyond Unicode stand for nothing hidden."""
    number = int(code[1:], 16)
    return chr(number) if number <= 0x10FFFF else "?"


# --- metrics and values made of functions -------------------------------------------------------------------


def of_model(metric: str, model: str) -> str:
    """The name of one model's metric where several models have it: ``"accuracy (level)"``."""
    return f"{metric} ({model})"


def measured(metric: str) -> str:
    """The metric's name without that of the model, which :func:`of_model` added."""
    return metric.split(" (", 1)[0]


def short(self: Any) -> str:
    """A short ``repr`` of a NamedTuple of functions: its name if it has one, else the names of its functions.

    Parts that have their default value are left out.

    Example:
      >>> import evenhand as eh
      >>> eh.aggregators.mean()
      Sum(init=mean.init, lift=mean.lift, lower=mean.lower)
      >>> eh.models.softmax_regression(features=64, classes=10)
      <Model softmax_regression(features=64, classes=10)>
    """
    kind, parts, defaults = type(self).__name__, self._asdict(), self._field_defaults
    if parts.get("name"):
        return f"<{kind} {parts['name']}>"
    shown = [f"{name}={_text(part)}" for name, part in parts.items() if defaults.get(name, self) is not part]
    return f"{kind}({', '.join(shown)})"


def _text(part: Any) -> str:
    if isinstance(part, partial):
        return _text(part.func)
    if isinstance(part, tuple) and hasattr(part, "_asdict"):
        return short(part)
    if isinstance(part, Mapping):
        return f"{{{', '.join(map(str, part))}}}"
    name = getattr(part, "__qualname__", None)
    return repr(part) if name is None else str(name).replace("<locals>.", "")
