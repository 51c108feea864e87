"""The command ``evenhand``, which Ctrl-C ends quietly even in the seconds that importing JAX takes.

It stands outside of the package ``evenhand``, whose import is what is to be guarded.
"""

import os
import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line of :mod:`evenhand.cli` and returns its exit code."""
    guarded = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # else somebody wants it otherwise
    if guarded:
        # Nothing is to be tidied up yet, and an exception in the middle of somebody's import may be swallowed.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from evenhand.cli import main as command

    if guarded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    finally:
        if guarded:
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # threads of libraries would complain while they end
