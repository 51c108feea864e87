"""Live bars: one line on stderr, in a terminal or under the cell of a notebook."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress, ProgressColumn

__all__ = ["line"]

_NOTEBOOK = 100
"""Characters of a line in a notebook, which does not say how wide it is."""


def line(*columns: ProgressColumn, show: bool) -> Progress:
    """A bar that is gone when it ends; in a notebook, its last state stays, and a file or a pipe gets nothing.

    Args:
      columns: its parts.
      show: whether it is to be seen at all.
    """
    console = Console(stderr=True)
    in_notebook = console.is_jupyter
    if in_notebook:
        # Rich would need ipywidgets there, and warn without; like a terminal, stderr can go back to the line's begin.
        console = Console(
            stderr=True, force_jupyter=False, force_terminal=True, color_system=None, width=_NOTEBOOK
        )
    return Progress(
        *columns,
        console=console,
        transient=not in_notebook,
        disable=not (show and console.is_terminal),
        refresh_per_second=2 if in_notebook else 10,  # a notebook keeps all that it is sent
        redirect_stdout=sys.stdout.isatty(),  # what is printed into a file must not go to stderr
    )
