"""The command ``evenhand``, which Ctrl-C ends quietly even in the seconds that importing JAX takes.

It is outside the package ``evenhand``, because it guards that package's import, and says what is wrong where it fails.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from evenhand_command import overview

__all__ = ["begin", "main"]


def begin(words: Sequence[str]) -> None:
    """What needs no JAX: lets Ctrl-C end the process quietly from here on, and prints the first page of help.

    Args:
      words: what follows ``evenhand``.

    Raises:
      SystemExit: the words ask for the first page of help, or for the version, which has been printed.
    """
    _guard()
    with suppress(ImportError):  # :func:`main` says which package is missing
        overview.answer(words)


def _guard() -> None:
    """Lets Ctrl-C end the process quietly until :func:`main` has imported the command line.

    There is nothing to clean up yet, and an exception in the middle of an import may be swallowed.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a caller has set another
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: object) -> None:
    os._exit(130)


def main() -> int:
    """Runs the command line of :mod:`evenhand.cli` and returns its exit code."""
    begin(sys.argv[1:])
    try:
        from evenhand.cli import main as command
    except Exception as failure:  # a package is missing, or two do not fit each other
        from evenhand_command import doctor

        return doctor.without_package(sys.argv[1:], failure)
    guarded = signal.getsignal(signal.SIGINT) is _leave
    if guarded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    finally:
        if guarded:
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # libraries' threads would complain as they end
