"""The command line: ``evenhand run | resume | compare | report | list``."""

from evenhand.cli._main import main

__all__ = ["main"]
