"""Names chosen by others, made safe to show in a terminal, a page or a figure, and to keep in a spreadsheet."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["counted", "isolated", "spreadsheet_cell", "spreadsheet_name", "visible"]

_JOINERS = "\u200c\u200d"  # a part of emoji, and of words in Persian and Hindi
_ISOLATES = "\u2068\u2069"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})

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


def counted(count: int, what: str) -> str:
    """``"1 client"``, ``"1,000 clients"``: ``what`` is a singular whose plural adds s, or es after an s.

    Example:
      >>> counted(1, "class"), counted(2, "class"), counted(1000, "client")
      ('1 class', '2 classes', '1,000 clients')
    """
    ending = "" if count == 1 else "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{ending}"


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


def spreadsheet_cell(name: str) -> str:
    """``name`` for a cell of a CSV file, with ``'`` in front where a spreadsheet might take it for a formula.

    That is where it begins with ``=``, ``@``, a tab or a line break, or with ``+`` or ``-`` and is not a number; and
    where it begins with ``'`` before one of these, so that :func:`spreadsheet_name` recovers every name.

    Example:
      >>> spreadsheet_cell("=SUM(A1)"), spreadsheet_cell("-5"), spreadsheet_cell("north")
      ("'=SUM(A1)", '-5', 'north')
    """
    return f"'{name}" if _QUOTE.match(name) else name


def spreadsheet_name(cell: str) -> str:
    """The name that :func:`spreadsheet_cell` made this cell from.

    Example:
      >>> spreadsheet_name("'=SUM(A1)"), spreadsheet_name("'s-Gravenhage")
      ('=SUM(A1)', "'s-Gravenhage")
    """
    return cell[1:] if _QUOTED.match(cell) else cell


def _is_hidden(c: str) -> bool:
    return c not in _JOINERS and unicodedata.category(c) in _HIDDEN


def _escaped(c: str) -> str:
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")
