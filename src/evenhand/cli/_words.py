"""Words that spell no command, told in one sentence rather than in a box."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from itertools import groupby

from tyro.conf import (
    CascadeSubcommandArgs,
    FlagCreatePairsOff,
    OmitArgPrefixes,
    OmitSubcommandPrefixes,
)

from evenhand.errors import EvenhandError

__all__ = ["STYLE", "in_one_sentence"]

STYLE = (CascadeSubcommandArgs, FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes)
"""How dataclasses become options, for all commands."""

_RULE = re.compile(r"│?\s*[─-]{3,}\s*│?|[╭╰].*")
_SIDES = re.compile(r"^│ ?|\s*│?$")


@contextmanager
def in_one_sentence() -> Generator[None]:
    """Within it, tyro's complaint becomes an :class:`EvenhandError`; a call for help still exits."""
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            yield
    except SystemExit as end:
        if end.code:
            raise EvenhandError(_sentence(told.getvalue())) from None
        raise
    sys.stderr.write(told.getvalue())


def _sentence(box: str) -> str:
    """What is wrong, what may have been meant, and where the help is."""
    parts = [
        " ".join(" ".join(_SIDES.sub("", line) for line in lines).split())
        for is_rule, lines in groupby(box.splitlines(), lambda line: bool(_RULE.fullmatch(line)))
        if not is_rule
    ]
    if not box.startswith("╭"):  # where the terminal has no such signs, the title is a part of its own
        parts = parts[1:]
    if not parts:
        return "These words are no command: see `evenhand --help`."
    problem = parts[0].partition(" Got errors:")[0].rstrip(".").replace(". Expected", "; expected")
    problem = problem[:1].upper() + problem[1:]
    help_at = re.search(r"evenhand.*--help", parts[-1])
    where = f": see `{help_at.group() if help_at else 'evenhand --help'}`."
    for part in parts[1:-1]:
        if part.startswith("Perhaps you meant"):
            options = dict.fromkeys(re.findall(r"(?<!\S)--(?!help)[\w-]+", part))
            return f"{problem}; perhaps you meant {' or '.join(options)}{where}"
        if part.startswith("Available"):
            return f"{problem}; {part[0].lower()}{part[1:]}{where}"
    return f"{problem}{where}"
