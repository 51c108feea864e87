"""Ctrl-C and SIGTERM, deferred until nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["uninterrupted"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Generator[None]:
    """Defers Ctrl-C and SIGTERM to the end of the block; without effect outside the main thread, which gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = [signal.signal(number, lambda number, frame: held.append(number)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
    for number in held[:1]:
        signal.raise_signal(number)
