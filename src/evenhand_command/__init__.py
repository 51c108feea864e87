"""The command ``evenhand``, which Ctrl-C ends quietly even in the seconds that importing JAX takes.

It is outside the package ``evenhand``, because it guards that package's import.
"""

import os
import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line of :mod:`evenhand.cli` and returns its exit code."""
    guarded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else a caller has set another
    if guarded:
        # There is nothing to clean up yet, and an exception in the middle of an import may be swallowed.
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
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # libraries' threads would complain as they end
