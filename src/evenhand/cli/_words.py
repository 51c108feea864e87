"""Words of the command line turned into dataclasses."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

import tyro
from tyro.conf import CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes

from evenhand.errors import EvenhandError

__all__ = ["read"]

_STYLE = (CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes)
"""How dataclasses become options, for all commands."""


def read(kind: Any, words: Sequence[str], *, prog: str, description: str) -> Any:
    """The dataclass that ``words`` spell, once :func:`evenhand.cli._spelling.ordered` has checked them.

    Raises:
      SystemExit: the words ask for help, which is printed.
      EvenhandError: they do not spell one.
    """
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(kind, prog=prog, description=description, args=words, config=_STYLE)
    except SystemExit as end:
        if end.code:
            shown = " ".join(words)
            raise EvenhandError(f"{shown!r:.80} cannot be read: see `evenhand {words[0]} --help`.") from None
        raise
