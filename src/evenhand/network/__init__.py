"""The same methods on real machines: a server, and clients whose data stay with them.

:func:`local` runs a method over a network that is one process.  Every message becomes bytes and is parsed again: a
method that trains there trains on machines.
"""

from evenhand.network.in_process import local

__all__ = ["local"]
