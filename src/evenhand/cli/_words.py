"""How words become dataclasses; what cannot is told in one sentence rather than in a box."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr

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


@contextmanager
def in_one_sentence() -> Generator[None]:
    """Within it, tyro's complaint becomes an :class:`EvenhandError`; a call for help still exits.

    Slips are found before, by :func:`evenhand.cli._spelling.ordered`, and told better: this is for what slips by it.
    """
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            yield
    except SystemExit as end:
        if end.code:
            words = re.sub(r"[│╭╰╮╯─]+|-{3,}", " ", told.getvalue()).split()
            raise EvenhandError(f"These words are not understood: {' '.join(words)}") from None
        raise
    sys.stderr.write(told.getvalue())
